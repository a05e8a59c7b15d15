"""Who writes to a run. The system lets go of a lock when its file is closed or its holder ends, also by a kill."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arpo.errors import ConfigError
from arpo.files import no_link

FAR = 2**30  # the byte that is locked on Windows: far behind what the file says, for what is locked cannot be read


def lock(folder: Path) -> int:
    """The lock file, locked until it is closed. It says who holds it. ConfigError where another process does."""
    file = no_link(str(folder / "run.lock"), os.O_RDWR | os.O_CREAT)
    _lock_or_close(file, folder)
    os.truncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
    return file


@contextlib.contextmanager
def unwritten(folder: Path) -> Iterator[None]:
    """Nobody writes to the run meanwhile; nothing in its folder changes. ConfigError where a process is writing.

    Several can hold this at once, but on Windows.
    """
    try:
        file = no_link(str(folder / "run.lock"), os.O_RDONLY)
    except FileNotFoundError:  # a copy of a run, without it
        yield
        return
    _lock_or_close(file, folder, shared=True)
    try:
        yield
    finally:
        os.close(file)


def _lock_or_close(file: int, folder: Path, shared: bool = False) -> None:
    try:
        _lock(file, shared)
    except (BlockingIOError, PermissionError):
        pid = os.read(file, 100).decode(errors="replace").strip()
        os.close(file)
        raise ConfigError(f"{folder}: process {pid or '?'} is writing to this run; wait, or choose another") from None


def _lock(file: int, shared: bool) -> None:
    try:
        from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
    except ImportError:  # Windows
        msvcrt: Any = importlib.import_module("msvcrt")
        os.lseek(file, FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    else:
        flock(file, (LOCK_SH if shared else LOCK_EX) | LOCK_NB)
