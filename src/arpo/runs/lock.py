"""A lock on an open file. The system lets go of it when the file is closed or its holder ends, also by a kill."""

import importlib
import os
from typing import Any

try:
    from fcntl import LOCK_EX, LOCK_NB, flock
except ImportError:  # Windows
    AT = 2**30  # the byte that is locked: far behind what the file says, for what is locked cannot be read
    msvcrt: Any = importlib.import_module("msvcrt")

    def lock(file: int) -> None:
        """BlockingIOError where another holds it."""
        place = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, AT, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(error.errno, error.strerror) from None
        finally:
            os.lseek(file, place, os.SEEK_SET)

else:

    def lock(file: int) -> None:
        """BlockingIOError where another holds it."""
        flock(file, LOCK_EX | LOCK_NB)
