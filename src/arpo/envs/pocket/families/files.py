"""Tasks of the file manager.

Each family says what it asks for as a change of the file system (`goal`). A check applies that change to the state
that the episode began with and compares: nothing else may have changed outside the trash.
"""

from abc import abstractmethod
from random import Random
from typing import ClassVar

from arpo.agent.actions import Click, Fail
from arpo.envs.pocket.apps.files import FileManager
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import (
    KINDS,
    Family,
    Infeasible,
    Params,
    add_file,
    add_files,
    open_perhaps,
    way_made,
)
from arpo.envs.pocket.screen import Control, Move, ParsedScreen
from arpo.envs.pocket.vfs import PLACES, TRASH, FileSystem, join
from arpo.envs.pocket.words import drawn, noun, nouns, one_of, sentence


def any_file(rng: Random) -> str:
    return f"{noun(rng)}.{rng.choice(KINDS)}"


def row_of(s: ParsedScreen, name: str) -> Control | None:
    return s.find(name, kind="row", window="Files")


def file_rows(s: ParsedScreen) -> list[Control]:
    """The rows of files in sight: those that show a size."""
    return [row for row in list_rows(s) if row.value.endswith("kB")]


def list_rows(s: ParsedScreen) -> list[Control]:
    """The rows of the folder in sight, without those of the places."""
    return [row for row in s.all(kind="row", window="Files") if row.label not in (*PLACES, "Trash")]


def is_at(s: ParsedScreen, path: str) -> bool:
    """Whether the file manager shows this folder ("Documents", "Documents/trips")."""
    return s.find(path, kind="text", window="Files") is not None


def go(s: ParsedScreen, folder: str) -> Move | None:
    """Bring the file manager to the front and go to a place."""
    return s.arrive("Files") or (
        None if is_at(s, folder) else s.click(folder, kind="row", window="Files", thought=f"Go to {folder}.")
    )


def reach(s: ParsedScreen, folder: str, name: str) -> Move | None:
    """Go to a place and bring a file's row in sight."""
    return go(s, folder) or s.seek(row_of(s, name), "Files")


def new_folder(s: ParsedScreen, folder: str) -> Move | None:
    """Ask for a new folder by the File menu. That menu covers the folder's name, so a note says where it was opened."""
    if s.notes.pop("menu of", "") == folder and s.find("New folder", kind="menuitem", window="File"):
        return s.menuitem("New folder")
    if move := go(s, folder):
        return move
    s.notes["menu of"] = folder
    return s.click("File", kind="menu", window="Files", thought="Open the File menu.")


def hold(s: ParsedScreen, folder: str, name: str) -> Move | None:
    """Go to a place and select a file."""
    return reach(s, folder, name) or s.select(name, kind="row", window="Files")


class FileFamily(Family):
    """A folder with a file that the instruction names, among others."""

    judges = ("files",)
    most: ClassVar[int] = 10  # other files in the folder; a list of more than seven scrolls on the default screen
    trash_counts: ClassVar[bool] = False  # whether the trash must be as the goal says, too
    random_params = drawn(name=any_file, folder=one_of(PLACES))

    def files(self, desk: Desktop, p: Params, rng: Random) -> None:
        """Put the named files in place; the others are there already."""
        add_file(desk, rng, f"/{p['folder']}/{p['name']}")

    @abstractmethod
    def goal(self, files: FileSystem, p: Params) -> None:
        """Do to the file system what the instruction asks for."""

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        named = tuple(str(value) for value in p.values())
        for name in PLACES:
            for other in add_files(desk, rng, f"/{name}", rng.randrange(3), KINDS, avoid=named):
                desk.files.trash(f"/{name}/{other}")
            count = rng.randint(2, self.most if name == p.get("folder") else 5)
            add_files(desk, rng, f"/{name}", count, KINDS, avoid=named)
        self.files(desk, p, rng)
        app = open_perhaps(desk, rng, "Files")
        if isinstance(app, FileManager):
            # What cannot be done must be looked for first, so its folder is not in sight yet.
            folders = [name for name in (*PLACES, "Trash") if self.feasible or name != p["folder"]]
            app.go(f"/{rng.choice(folders)}")

    def check(self, desk: Desktop, p: Params) -> bool:
        wanted: FileSystem = desk.stores["files"].twin()
        self.goal(wanted, p)
        if self.trash_counts and desk.files.names(TRASH) != wanted.names(TRASH):
            return False
        return desk.files.outside_trash() == wanted.outside_trash()


class NewFolder(FileFamily):
    """Make a folder through the context menu of the empty space, where there is some."""

    name = "files-newfolder"
    asks = "Make a folder named {new} in {folder}."
    random_params = drawn(new=noun, folder=one_of(PLACES))

    def files(self, desk: Desktop, p: Params, rng: Random) -> None:
        if rng.random() < 0.6:  # so few that the list has empty space below them
            for name in desk.files.names(f"/{p['folder']}")[rng.randrange(1, 4) :]:
                desk.files.files.pop(f"/{p['folder']}/{name}")

    def goal(self, files: FileSystem, p: Params) -> None:
        files.make_folder(f"/{p['folder']}/{p['new']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.dialog == "New folder":
            return s.fill("Name", p["new"]) or s.click("Create", kind="button")
        if is_at(s, p["folder"]) and s.find("New folder", kind="menuitem", window="context"):
            return s.menuitem("New folder")
        corner, lowest = s.find(kind="minimise", window="Files"), row_of(s, "Trash")
        if corner and lowest and len(list_rows(s)) <= len(PLACES):  # then the list is empty level with the last place
            free = Click(corner.centre[0], lowest.centre[1], button="right")
            return go(s, p["folder"]) or ("Right-click the empty space.", free)
        return new_folder(s, p["folder"])


class Rename(FileFamily):
    """Rename a file through its context menu."""

    name = "files-rename"
    asks = "Rename {old} to {new} in {folder}."

    def random_params(self, rng: Random) -> Params:
        old, new = nouns(rng, 2)
        kind = rng.choice(KINDS)
        return {"old": f"{old}.{kind}", "new": f"{new}.{kind}", "folder": rng.choice(PLACES)}

    def files(self, desk: Desktop, p: Params, rng: Random) -> None:
        add_file(desk, rng, f"/{p['folder']}/{p['old']}")

    def goal(self, files: FileSystem, p: Params) -> None:
        files.move(f"/{p['folder']}/{p['old']}", f"/{p['folder']}/{p['new']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.dialog == f"Rename {p['old']}":
            return s.fill("Name", p["new"]) or s.click("Rename", kind="button")
        return (
            s.context_entry(p["old"], "Rename")
            or reach(s, p["folder"], p["old"])
            or s.right_click(p["old"], kind="row", window="Files")
        )


class DeleteFile(FileFamily):
    """Select a file and press the Delete key."""

    name = "files-delete"
    asks = "Delete {name} in {folder}."

    def goal(self, files: FileSystem, p: Params) -> None:
        files.trash(f"/{p['folder']}/{p['name']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return hold(s, p["folder"], p["name"]) or s.keys("delete", thought="Press Delete.")


class MoveFile(FileFamily):
    """Drag a file from one place to another."""

    name = "files-move"
    asks = "Move {name} from {folder} to {to}."

    def random_params(self, rng: Random) -> Params:
        folder, target = rng.sample(PLACES, 2)
        return {"name": any_file(rng), "folder": folder, "to": target}

    def goal(self, files: FileSystem, p: Params) -> None:
        files.move(f"/{p['folder']}/{p['name']}", f"/{p['to']}/{p['name']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        file, target = row_of(s, p["name"]), row_of(s, p["to"])
        return reach(s, p["folder"], p["name"]) or s.drag(file, target, f"Drag {p['name']} to {p['to']}.")


class CopyFile(FileFamily):
    """Copy a file to another place with the keyboard; the tool bar tells what was copied."""

    name = "files-copy"
    asks = "Copy {name} from {folder} to {to}."
    random_params = MoveFile.random_params

    def goal(self, files: FileSystem, p: Params) -> None:
        files.copy(f"/{p['folder']}/{p['name']}", f"/{p['to']}/{p['name']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.find(f"Copied {p['name']}", kind="text", window="Files"):
            return go(s, p["to"]) or s.keys("ctrl", "v", thought="Paste it here.")
        return hold(s, p["folder"], p["name"]) or s.keys("ctrl", "c", thought="Copy it.")


class Restore(FileFamily):
    """Put a file back from the trash, by the File menu."""

    name = "files-restore"
    asks = "Restore {name} from the Trash."
    trash_counts = True

    def files(self, desk: Desktop, p: Params, rng: Random) -> None:
        super().files(desk, p, rng)
        desk.files.trash(f"/{p['folder']}/{p['name']}")

    def goal(self, files: FileSystem, p: Params) -> None:
        files.restore(join(TRASH, p["name"]))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        others = [row for row in list_rows(s) if "selected" in row.state and row.label != p["name"]]
        mine = s.find("Restore", kind="menuitem", window="File") and not others
        return (
            (s.menuitem("Restore") if mine else s.context_entry(p["name"], "Restore"))
            or hold(s, "Trash", p["name"])
            or s.menu("File", "Restore", window="Files")
        )


class LargestFile(FileFamily):
    """Read all sizes, remember the extreme one, and drag that file to the trash."""

    name = "files-largest"

    def random_params(self, rng: Random) -> Params:
        kind = rng.choice(["", *KINDS])
        return {"which": rng.choice(["largest", "smallest"]), "kind": kind, "folder": rng.choice(PLACES)}

    def instruction(self, p: Params) -> str:
        return f"Delete the {p['which']} {p['kind']} file in {p['folder']}.".replace("  ", " ")

    def files(self, desk: Desktop, p: Params, rng: Random) -> None:
        folder = f"/{p['folder']}"
        add_files(desk, rng, folder, rng.randrange(2, 4), [p["kind"]] if p["kind"] else KINDS)
        names = desk.files.names(folder)
        for name, kb in zip(names, rng.sample(range(1, 90), len(names)), strict=True):  # no two of one size
            desk.files.write(f"{folder}/{name}", sentence(rng), kb)

    def goal(self, files: FileSystem, p: Params) -> None:
        folder = f"/{p['folder']}"
        sizes = {name: files.files[join(folder, name)].kb for name in files.names(folder) if name.endswith(p["kind"])}
        files.trash(join(folder, _extreme(sizes, p)))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := go(s, p["folder"]):
            return move
        sizes = {row.label: int(row.value.split()[0]) for row in file_rows(s) if row.label.endswith(p["kind"])}
        if s.notes.get("best"):
            sizes[s.notes["best"]] = int(s.notes["kb"])
        if sizes:
            best = _extreme(sizes, p)
            s.notes.update(best=best, kb=str(sizes[best]))
        if not s.notes.get("all") and (move := s.look_through("Files", "Look at all sizes.")):
            return move
        s.notes.update(all="seen", seen=s.notes.get("seen", "") if s.notes.get("all") else "")
        row = row_of(s, s.notes["best"]) if "best" in s.notes else None
        return s.seek(row, "Files") or s.drag(row, row_of(s, "Trash"), "Drag it to the Trash.")


def _extreme(sizes: dict[str, int], p: Params) -> str:
    return (max if p["which"] == "largest" else min)(sizes, key=sizes.__getitem__)


class SubFolder(FileFamily):
    """Make a folder and put a file into it: the File menu, then cut, open and paste."""

    name = "files-subfolder"
    asks = "Make a folder named {new} in {folder} and move {name} into it."
    most = 7

    def random_params(self, rng: Random) -> Params:
        name, new = nouns(rng, 2)
        return {"name": f"{name}.{rng.choice(KINDS)}", "new": new, "folder": rng.choice(PLACES)}

    def goal(self, files: FileSystem, p: Params) -> None:
        files.make_folder(f"/{p['folder']}/{p['new']}")
        files.move(f"/{p['folder']}/{p['name']}", f"/{p['folder']}/{p['new']}/{p['name']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.dialog == "New folder":
            return s.fill("Name", p["new"]) or s.click("Create", kind="button")
        cut = s.find(f"Cut {p['name']}", kind="text", window="Files")
        if cut and is_at(s, f"{p['folder']}/{p['new']}"):
            return s.arrive("Files") or s.keys("ctrl", "v", thought="Paste it here.")
        if row_of(s, p["new"]):
            s.notes["made"] = "yes"
        if not s.notes.get("made") or (cut and not row_of(s, p["new"])):
            bar = s.find(kind="scrollbar", window="Files")
            if is_at(s, p["folder"]) and bar and bar.value != "top":  # folders come first, so it may be out of sight
                return s.arrive("Files") or s.scroll(bar, "up")
            s.notes["made"] = ""
            return new_folder(s, p["folder"])
        if cut:
            return go(s, p["folder"]) or s.double_click(p["new"], kind="row", window="Files")
        return hold(s, p["folder"], p["name"]) or s.keys("ctrl", "x", thought="Cut it.")


class CleanUp(FileFamily):
    """Delete all files of a kind but one, each through its context menu."""

    name = "files-cleanup"
    asks = "Delete all {kind} files but {keep} in {folder}."

    def random_params(self, rng: Random) -> Params:
        kind = rng.choice(KINDS)
        return {"kind": kind, "keep": f"{noun(rng)}.{kind}", "folder": rng.choice(PLACES)}

    def files(self, desk: Desktop, p: Params, rng: Random) -> None:
        folder = f"/{p['folder']}"
        for name in desk.files.names(folder):
            if self._goes(name, p):
                desk.files.files.pop(join(folder, name))
        add_files(desk, rng, folder, 3, [p["kind"]], avoid=(p["keep"],))
        add_file(desk, rng, join(folder, p["keep"]))

    def _goes(self, name: str, p: Params) -> bool:
        return name.endswith(p["kind"]) and name != p["keep"]

    def goal(self, files: FileSystem, p: Params) -> None:
        for name in files.names(f"/{p['folder']}"):
            if self._goes(name, p):
                files.trash(f"/{p['folder']}/{name}")

    def progress(self, desk: Desktop, p: Params) -> float:
        wanted: FileSystem = desk.stores["files"].twin()
        self.goal(wanted, p)
        states = (state.outside_trash() for state in (desk.stores["files"], wanted, desk.files))
        return way_made(*([*texts.items(), *folders] for texts, folders in states))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        item = s.find("Delete", kind="menuitem")
        if item and self._goes(item.window.split()[0], p):
            return s.menuitem("Delete")
        if move := go(s, p["folder"]):
            return move
        row = next((row for row in file_rows(s) if self._goes(row.label, p)), None)
        return s.seek(row, "Files") or (s.right_click(row.label, kind="row", window="Files") if row else None)


class MissingFile(Infeasible, FileFamily):
    """Rename or delete a file that is not there: look through the folder, then give up."""

    name = "files-missing"

    def random_params(self, rng: Random) -> Params:
        name, new = nouns(rng, 2)
        name, new = f"{name}.txt", rng.choice(["", f"{new}.txt"])
        return {"name": name, "new": new, "folder": rng.choice(PLACES)}

    def instruction(self, p: Params) -> str:
        what = f"Rename {p['name']} to {p['new']}" if p["new"] else f"Delete {p['name']}"
        return f"{what} in {p['folder']}."

    def files(self, desk: Desktop, p: Params, rng: Random) -> None:
        """The one that is named is not put anywhere."""

    def goal(self, files: FileSystem, p: Params) -> None:
        """There is none."""

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        move = go(s, p["folder"]) or s.look_through("Files", "Look further down.")
        return move or (f"There is no {p['name']}.", Fail())
