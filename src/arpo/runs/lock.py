"""Who writes to a run. The system lets go of a lock when its file is closed or its holder ends, also by a kill."""

import importlib
import os
from pathlib import Path
from typing import Any

from arpo.errors import ConfigError

FAR = 2**30  # the byte that is locked on Windows: far behind what the file says, for what is locked cannot be read


def lock(folder: Path) -> int:
    """The lock file, locked until it is closed. It says who holds it. ConfigError where another process does."""
    file = os.open(folder / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(file)
    except (BlockingIOError, PermissionError):
        pid = os.read(file, 100).decode(errors="replace").strip()
        os.close(file)
        raise ConfigError(f"{folder}: process {pid or '?'} is writing to this run; wait, or choose another") from None
    os.truncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
    return file


def _lock(file: int) -> None:
    try:
        from fcntl import LOCK_EX, LOCK_NB, flock
    except ImportError:  # Windows
        msvcrt: Any = importlib.import_module("msvcrt")
        os.lseek(file, FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    else:
        flock(file, LOCK_EX | LOCK_NB)
