"""Folders that somebody else may have made: nothing in them leads out of them, and nothing is read without a bound."""

import os
import stat
from pathlib import Path

from arpo.errors import ConfigError


def refuse_links(folder: Path, write: bool = False, store: Path | None = None) -> None:
    """ConfigError where a folder holds what is neither a file nor a folder, at any depth.

    `write`: nor may its files have a second name elsewhere, under which they would change too. `store`: only what is
    directly in it is looked at, and links may lead to files there. wandb's folder, in a run's, is full of links, of
    which none is ever opened here.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            try:
                found = path.lstat()
            except FileNotFoundError:  # of a writer, who is done with it
                continue
            if store is not None and stat.S_ISLNK(found.st_mode) and path.resolve().parent == store.resolve():
                found = path.stat()
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                raise ConfigError(f"{path}: is a link, a pipe or a device; put a plain file or folder in its place")
            if write and place == str(folder) and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                raise ConfigError(f"{path}: has a second name elsewhere (a hard link); put a copy in its place")
        if store is not None:
            return
        folders[:] = [name for name in folders if (place, name) != (str(folder), "wandb")]


def no_link(path: str, flags: int) -> int:
    """The `opener` of a file that must not be a link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def read_bytes(path: Path, most: int) -> bytes:
    """A whole file. ValueError where it is larger."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data
