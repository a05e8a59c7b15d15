"""Files by which processes of one user tell each other something, where no other user can get in between.

    folder()                        a folder that nobody else can use
    with locked("home", 60.0):      only one process at a time, in so long
    with kept("place-1"):           a name that the others see in names()
    names()                         those whose processes live

A lock and a name go with their process, however it ends: the kernel lets go of the file.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from arpo.errors import ConfigError, EnvError

WRITE, ALL = 0o022, 0o077  # rights of other users
NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW


def folder() -> Path:
    """ConfigError where somebody has put something else in its place."""
    path = _place()
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    refuse_shared(path, ALL, "XDG_RUNTIME_DIR")
    return path


def refuse_shared(path: Path, closed: int, variable: str) -> None:
    """ConfigError where a folder is not this user's own, or others have one of these rights in it."""
    state = path.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid():
        raise ConfigError(f"{path}: is not a folder of yours; remove it, or set {variable} to a folder that is")
    if state.st_mode & closed:
        rights = "w" if closed == WRITE else "rwx"
        raise ConfigError(f"{path}: is open to other users; close it: chmod go-{rights} {path}")


def _place() -> Path:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given):
        with contextlib.suppress(OSError, ConfigError):  # after `sudo` it may be another's
            refuse_shared(Path(given), WRITE, "")
            return Path(given, "arpo")
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/arpo")
    return Path(tempfile.gettempdir(), f"arpo-{os.geteuid()}")


@contextlib.contextmanager
def locked(name: str, within_s: float) -> Iterator[None]:
    path = folder() / f"{name}.lock"
    with _opened(path, NEW) as file:
        deadline = time.monotonic() + within_s
        while not _taken(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EnvError(f"another process has kept {path} for {within_s:g} s")
            time.sleep(0.002)  # another has it, for a moment
        yield


@contextlib.contextmanager
def kept(name: str) -> Iterator[None]:
    path = folder() / name
    with _opened(path, NEW | os.O_EXCL) as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # who looks at it just now lets go at once
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def names() -> list[str]:
    return [path.name for path in folder().iterdir() if _in_use(path)]


def forget_the_dead() -> None:
    """Removes what ended processes left. Only for who has a lock that all who make names take: a new one is not in use
    for a moment."""
    for path in folder().iterdir():
        if path.suffix != ".lock" and not _in_use(path):
            path.unlink(missing_ok=True)


def _in_use(path: Path) -> bool:
    try:
        with _opened(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK) as file:
            return not _taken(file, fcntl.LOCK_SH)
    except OSError:  # it has just been removed
        return False


def _taken(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags, 0o600)
    try:
        yield file
    finally:
        os.close(file)
