"""The file system that all applications share: paths to files, folders as entries of their own, and a trash.

    FileSystem().write("/Documents/plan.txt", "buy milk")      files.names("/Documents") == ["plan.txt"]

Paths are absolute with "/" between the parts; "/" itself is the home folder. Errors that a user can make (a name
that is taken, an empty name, a full disk) are `FileProblem`s whose text an application shows in a dialog.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PLACES = ("Documents", "Downloads", "Pictures")
DOCUMENTS = "/Documents"
TRASH = "/Trash"
BAD_CHARACTERS = '/\\:*?"<>|'
NAME_LIMIT = 32
DISK_LIMIT = 300  # files and folders
DEEPEST = 12  # folders within folders


class FileProblem(Exception):
    """Something that the user wants and the file system cannot do."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's text and the size shown for it."""

    text: str = ""
    kb: int = 1

    def __deepcopy__(self, memo: dict[int, Any]) -> File:
        return self  # it never changes


def join(folder: str, name: str) -> str:
    return f"{folder.rstrip('/')}/{name}"


def split(path: str) -> tuple[str, str]:
    """(folder, name) of a path: ("/Documents", "plan.txt")."""
    folder, _, name = path.rpartition("/")
    return folder or "/", name


def check_name(name: str) -> str:
    """The name with outer spaces removed, or a FileProblem."""
    name = name.strip()
    if not name or name in (".", ".."):
        raise FileProblem("Please enter a name.")
    if len(name) > NAME_LIMIT:
        raise FileProblem("The name is too long.")
    if any(char in BAD_CHARACTERS or not char.isprintable() for char in name):
        raise FileProblem("The name has a bad character.")
    return name


@dataclass(slots=True)
class FileSystem:
    """The tree: files by path, folders by path, and where the things in the trash came from."""

    files: dict[str, File] = field(default_factory=dict)
    folders: dict[str, None] = field(  # a set that keeps its order, so that equal episodes stay equal
        default_factory=lambda: dict.fromkeys(("/", TRASH, *(f"/{place}" for place in PLACES)))
    )
    origins: dict[str, str] = field(default_factory=dict)

    def twin(self) -> FileSystem:
        """A copy. A change to one of the two does not show in the other."""
        return FileSystem(dict(self.files), dict(self.folders), dict(self.origins))

    def outside_trash(self) -> tuple[dict[str, str], set[str]]:
        """What a user has: the texts of all files, and all folders, but for the trash."""
        inside = f"{TRASH}/"
        texts = {path: file.text for path, file in self.files.items() if not path.startswith(inside)}
        return texts, {path for path in self.folders if not path.startswith(inside)}

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def names(self, folder: str) -> list[str]:
        """What lies in a folder: folders first, then files, each by name."""
        shown = (path for path in self.folders if path not in ("/", TRASH))
        folders = sorted(name for parent, name in map(split, shown) if parent == folder)
        return folders + sorted(name for parent, name in map(split, self.files) if parent == folder)

    def read(self, path: str) -> str:
        if path not in self.files:
            raise FileProblem(f"{split(path)[1]} is gone.")
        return self.files[path].text

    def write(self, path: str, text: str, kb: int | None = None) -> None:
        """Create or overwrite a file. Its size follows the text unless one is given."""
        self._check_place(path, new=path not in self.files)
        if path in self.folders:
            raise FileProblem("A folder has this name.")
        self.files[path] = File(text, kb if kb is not None else 1 + len(text) // 1024)

    def make_folder(self, path: str) -> None:
        if self.exists(path):
            raise FileProblem(f"{split(path)[1]} exists already.")
        self._check_place(path)
        self.folders[path] = None

    def move(self, source: str, target: str) -> None:
        """Move or rename a file or a folder with all that is in it."""
        self._check_transfer(source, target)
        self.origins.pop(source, None)
        for path in self._tree(source):
            moved = target + path[len(source) :]
            if path in self.folders:
                del self.folders[path]
                self.folders[moved] = None
            else:
                self.files[moved] = self.files.pop(path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file or a folder with all that is in it."""
        self._check_transfer(source, target, copies=len(self._tree(source)))
        for path in self._tree(source):
            copied = target + path[len(source) :]
            if path in self.folders:
                self.folders[copied] = None
            else:
                self.files[copied] = self.files[path]

    def trash(self, path: str) -> None:
        """Move a file or folder to the trash, under a free name; from the trash it is gone for good."""
        if path == TRASH or path.startswith(TRASH + "/"):
            for gone in self._tree(path):
                self.folders.pop(gone, None)
                self.files.pop(gone, None)
                self.origins.pop(gone, None)
            return
        target = self.free_name(join(TRASH, split(path)[1]))
        self.move(path, target)
        self.origins[target] = path

    def restore(self, path: str) -> str:
        """Put a file or folder from the trash back to where it came from; returns where that is."""
        if path not in self.origins:
            raise FileProblem("This cannot be restored.")
        origin = self.origins[path]
        self.move(path, origin)
        return origin

    def free_name(self, path: str) -> str:
        """The path, or the first of "name 2.txt", "name 3.txt", … that is not taken."""
        stem, dot, extension = split(path)[1].partition(".")
        candidate, number = path, 1
        while self.exists(candidate):
            number += 1
            candidate = join(split(path)[0], f"{stem} {number}{dot}{extension}")
        return candidate

    def _tree(self, path: str) -> list[str]:
        inside = path + "/"
        return [p for p in [*self.folders, *self.files] if p == path or p.startswith(inside)]

    def _check_place(self, path: str, new: int = 1, depth: int = 0) -> None:
        """FileProblem if the path cannot take something `depth` levels deep that adds `new` files and folders."""
        if split(path)[0] not in self.folders:
            raise FileProblem("The folder is gone.")
        if path.count("/") + depth > DEEPEST:
            raise FileProblem("The folders are too deep.")
        if new and len(self.files) + len(self.folders) + new > DISK_LIMIT:
            raise FileProblem("The disk is full.")

    def _check_transfer(self, source: str, target: str, copies: int = 0) -> None:
        name = split(target)[1]
        if not self.exists(source):
            raise FileProblem(f"{split(source)[1]} is gone.")
        if source in ("/", TRASH) or (split(source)[0] == "/" and split(source)[1] in PLACES):
            raise FileProblem("This folder cannot be changed.")
        if target == source or self.exists(target):
            raise FileProblem(f"{name} exists already.")
        if target.startswith(source + "/"):
            raise FileProblem("A folder cannot go into itself.")
        depth = max(path.count("/") for path in self._tree(source)) - source.count("/")
        self._check_place(target, copies, depth)
