"""The file system that all applications share: paths to files, folders as entries of their own, and a trash.

    Files().write("/Documents/plan.txt", "buy milk")      files.names("/Documents") == ["plan.txt"]

Paths are absolute with "/" between the parts; "/" itself is the home folder. Errors that a user can make (a name
that is taken, an empty name) are `FileProblem`s whose text an application shows in a dialog.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

PLACES = ("Documents", "Downloads", "Pictures")
TRASH = "/Trash"
BAD_CHARACTERS = '/\\:*?"<>|'
NAME_LIMIT = 32


class FileProblem(Exception):
    """Something that the user asked of the file system and cannot have."""


@dataclass(frozen=True, slots=True)
class File:
    """A file's text and the size shown for it; `origin` is where a file in the trash came from."""

    text: str = ""
    kb: int = 1
    origin: str = ""


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
class Files:
    """The tree: files by path, and folders by path."""

    files: dict[str, File] = field(default_factory=dict)
    folders: dict[str, None] = field(  # a set that keeps its order, so that equal episodes stay equal
        default_factory=lambda: dict.fromkeys(("/", TRASH, *(f"/{place}" for place in PLACES)))
    )

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.folders

    def names(self, folder: str) -> list[str]:
        """What lies in a folder: folders first, then files, each by name."""
        prefix = join(folder, "")
        inside = [path[len(prefix) :] for path in self.folders if path.startswith(prefix) and path != folder]
        folders = sorted(name for name in inside if name and "/" not in name and join(folder, name) != TRASH)
        files = sorted(p[len(prefix) :] for p in self.files if p.startswith(prefix) and "/" not in p[len(prefix) :])
        return folders + files

    def is_folder(self, path: str) -> bool:
        return path in self.folders

    def read(self, path: str) -> str:
        if path not in self.files:
            raise FileProblem(f"{split(path)[1]} is gone.")
        return self.files[path].text

    def write(self, path: str, text: str, kb: int | None = None) -> None:
        """Create or overwrite a file. Its size follows the text unless one is given."""
        if split(path)[0] not in self.folders:
            raise FileProblem("The folder is gone.")
        self.files[path] = File(text, kb if kb is not None else 1 + len(text) // 1024)

    def make_folder(self, path: str) -> None:
        if self.exists(path):
            raise FileProblem(f"{split(path)[1]} exists already.")
        self.folders[path] = None

    def move(self, source: str, target: str) -> None:
        """Move or rename a file or a folder with all that is in it."""
        self._check_transfer(source, target)
        for path in self._tree(source):
            moved = target + path[len(source) :]
            if path in self.folders:
                del self.folders[path]
                self.folders[moved] = None
            else:
                self.files[moved] = self.files.pop(path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file or a folder with all that is in it."""
        self._check_transfer(source, target)
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
            return
        target = self.free_name(join(TRASH, split(path)[1]))
        is_file = path in self.files
        self.move(path, target)
        if is_file:
            self.files[target] = replace(self.files[target], origin=path)

    def restore(self, path: str) -> None:
        """Put a file from the trash back to where it came from."""
        if path not in self.files or not self.files[path].origin:
            raise FileProblem("This cannot be restored.")
        origin = self.files[path].origin
        self.move(path, origin)
        self.files[origin] = replace(self.files[origin], origin="")

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

    def _check_transfer(self, source: str, target: str) -> None:
        name = split(target)[1]
        if not self.exists(source):
            raise FileProblem(f"{split(source)[1]} is gone.")
        if source in ("/", TRASH) or (split(source)[0] == "/" and split(source)[1] in PLACES):
            raise FileProblem("This folder cannot be changed.")
        if target == source or self.exists(target):
            raise FileProblem(f"{name} exists already.")
        if split(target)[0] not in self.folders:
            raise FileProblem("The folder is gone.")
        if target.startswith(source + "/"):
            raise FileProblem("A folder cannot go into itself.")
