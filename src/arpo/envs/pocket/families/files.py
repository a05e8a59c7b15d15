"""Tasks of the file manager.

Each family says what it asks for as a change of the file system (`goal`). A check applies that change to the state
that the episode began with and compares: nothing else may have changed outside the trash.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import ClassVar

from arpo.agent.actions import Click, Fail
from arpo.envs.pocket.apps.files import FileManager
from arpo.envs.pocket.controls import Control
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Infeasible, Params, add_files, open_perhaps
from arpo.envs.pocket.families.lookup import looked_through, pick, seek
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.vfs import PLACES, TRASH, Files, join
from arpo.envs.pocket.words import nouns, sentence

KINDS = "txt csv png html"


def put(desk: Desktop, rng: random.Random, path: str) -> None:
    """A file that the instruction names."""
    desk.files.write(path, sentence(rng), kb=rng.randrange(1, 90))


def row_of(s: Screen, name: str) -> Control | None:
    return s.find(name, kind="row", window="Files")


def file_rows(s: Screen) -> list[Control]:
    """The rows of files in sight: those that show a size."""
    return [row for row in list_rows(s) if row.value.endswith("kB")]


def list_rows(s: Screen) -> list[Control]:
    """The rows of the folder in sight, without those of the places."""
    return [row for row in s.all(kind="row", window="Files") if row.label not in (*PLACES, "Trash")]


def is_at(s: Screen, path: str) -> bool:
    """Whether the file manager shows this folder ("Documents", "Documents/trips")."""
    return s.find(path, kind="text", window="Files") is not None


def go(s: Screen, folder: str) -> Move | None:
    """Bring the file manager to the front and go to a place."""
    return s.arrive("Files") or (
        None if is_at(s, folder) else s.click(folder, kind="row", window="Files", thought=f"Go to {folder}.")
    )


def reach(s: Screen, folder: str, name: str, notes: dict[str, str]) -> Move | None:
    """Go to a place and bring a file's row in sight."""
    return go(s, folder) or seek(s, row_of(s, name), "Files", notes)


def new_folder(s: Screen, folder: str, notes: dict[str, str]) -> Move | None:
    """Ask for a new folder by the File menu. That menu covers the folder's name, so a note says where it was opened."""
    item = s.find("New folder", kind="menuitem", window="File")
    if notes.pop("menu of", "") == folder and item:
        return s.menuitem("New folder")
    if move := go(s, folder):
        return move
    notes["menu of"] = folder
    return s.click("File", kind="menu", window="Files", thought="Open the File menu.")


def select(s: Screen, name: str) -> Move | None:
    row = row_of(s, name)
    return None if row and "selected" in row.state else s.click(name, kind="row", window="Files")


class FileFamily(Family):
    """A folder with a file that the instruction names, among others."""

    most: ClassVar[int] = 10  # other files in the folder; a list of more than seven scrolls on the default screen
    trash_counts: ClassVar[bool] = False  # whether the trash must be as the goal says, too

    def draw(self, rng: random.Random) -> Params:
        return {"name": f"{nouns(rng, 1)[0]}.{rng.choice(KINDS.split())}", "folder": rng.choice(PLACES)}

    def files(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        """Put the named files in place; the others are there already."""
        put(desk, rng, f"/{p['folder']}/{p['name']}")

    @abstractmethod
    def goal(self, files: Files, p: Params) -> None:
        """Do to the file system what the instruction asks for."""

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
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
        wanted: Files = desk.stores["files"].twin()
        self.goal(wanted, p)
        if self.trash_counts and desk.files.names(TRASH) != wanted.names(TRASH):
            return False
        return desk.files.outside_trash() == wanted.outside_trash()


class NewFolder(FileFamily):
    """Make a folder through the context menu of the empty space, where there is some."""

    name = "files-newfolder"
    asks = "Make a folder named {new} in {folder}."

    def draw(self, rng: random.Random) -> Params:
        return {"new": nouns(rng, 1)[0], "folder": rng.choice(PLACES)}

    def files(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        if rng.random() < 0.6:  # so few that the list has empty space below them
            for name in desk.files.names(f"/{p['folder']}")[rng.randrange(1, 4) :]:
                desk.files.files.pop(f"/{p['folder']}/{name}")

    def goal(self, files: Files, p: Params) -> None:
        files.make_folder(f"/{p['folder']}/{p['new']}")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if s.dialog == "New folder":
            return s.fill("Name", p["new"]) or s.click("Create", kind="button")
        if is_at(s, p["folder"]) and s.find("New folder", kind="menuitem", window="context"):
            return s.menuitem("New folder")
        corner, lowest = s.find(kind="minimise", window="Files"), row_of(s, "Trash")
        if corner and lowest and len(list_rows(s)) <= len(PLACES):  # then the list is empty level with the last place
            free = Click(corner.centre[0], lowest.centre[1], button="right")
            return go(s, p["folder"]) or ("Right-click the empty space.", free)
        return new_folder(s, p["folder"], notes)


class Rename(FileFamily):
    """Rename a file through its context menu."""

    name = "files-rename"
    asks = "Rename {old} to {new} in {folder}."

    def draw(self, rng: random.Random) -> Params:
        old, new = nouns(rng, 2)
        kind = rng.choice(KINDS.split())
        return {"old": f"{old}.{kind}", "new": f"{new}.{kind}", "folder": rng.choice(PLACES)}

    def files(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        put(desk, rng, f"/{p['folder']}/{p['old']}")

    def goal(self, files: Files, p: Params) -> None:
        files.move(f"/{p['folder']}/{p['old']}", f"/{p['folder']}/{p['new']}")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if s.dialog == f"Rename {p['old']}":
            return s.fill("Name", p["new"]) or s.click("Rename", kind="button")
        return (
            pick(s, p["old"], "Rename")
            or reach(s, p["folder"], p["old"], notes)
            or s.right_click(p["old"], kind="row", window="Files")
        )


class Delete(FileFamily):
    """Select a file and press the Delete key."""

    name = "files-delete"
    asks = "Delete {name} in {folder}."

    def goal(self, files: Files, p: Params) -> None:
        files.trash(f"/{p['folder']}/{p['name']}")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return (
            reach(s, p["folder"], p["name"], notes) or select(s, p["name"]) or s.keys("delete", thought="Press Delete.")
        )


class MoveFile(FileFamily):
    """Drag a file from one place to another."""

    name = "files-move"
    asks = "Move {name} from {folder} to {to}."

    def draw(self, rng: random.Random) -> Params:
        folder, target = rng.sample(PLACES, 2)
        return {"name": f"{nouns(rng, 1)[0]}.{rng.choice(KINDS.split())}", "folder": folder, "to": target}

    def goal(self, files: Files, p: Params) -> None:
        files.move(f"/{p['folder']}/{p['name']}", f"/{p['to']}/{p['name']}")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        file, target = row_of(s, p["name"]), row_of(s, p["to"])
        return reach(s, p["folder"], p["name"], notes) or s.drag(file, target, f"Drag {p['name']} to {p['to']}.")


class CopyFile(FileFamily):
    """Copy a file to another place with the keyboard; the tool bar tells what was copied."""

    name = "files-copy"
    asks = "Copy {name} from {folder} to {to}."
    draw = MoveFile.draw

    def goal(self, files: Files, p: Params) -> None:
        files.copy(f"/{p['folder']}/{p['name']}", f"/{p['to']}/{p['name']}")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if s.find(f"Copied {p['name']}", kind="text", window="Files"):
            return go(s, p["to"]) or s.keys("ctrl", "v", thought="Paste it here.")
        return (
            reach(s, p["folder"], p["name"], notes) or select(s, p["name"]) or s.keys("ctrl", "c", thought="Copy it.")
        )


class Restore(FileFamily):
    """Put a file back from the trash, by the File menu."""

    name = "files-restore"
    asks = "Restore {name} from the Trash."
    trash_counts = True

    def files(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        super().files(desk, p, rng)
        desk.files.trash(f"/{p['folder']}/{p['name']}")

    def goal(self, files: Files, p: Params) -> None:
        files.restore(join(TRASH, p["name"]))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        others = [row for row in list_rows(s) if "selected" in row.state and row.label != p["name"]]
        mine = s.find("Restore", kind="menuitem", window="File") and not others
        return (
            (s.menuitem("Restore") if mine else pick(s, p["name"], "Restore"))
            or reach(s, "Trash", p["name"], notes)
            or select(s, p["name"])
            or s.menu("File", "Restore", window="Files")
        )


class Largest(FileFamily):
    """Read all sizes, remember the extreme one, and drag that file to the trash."""

    name = "files-largest"

    def draw(self, rng: random.Random) -> Params:
        kind = rng.choice(["", *KINDS.split()])
        return {"which": rng.choice(["largest", "smallest"]), "kind": kind, "folder": rng.choice(PLACES)}

    def instruction(self, p: Params) -> str:
        return f"Delete the {p['which']} {p['kind']}{' ' if p['kind'] else ''}file in {p['folder']}."

    def files(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        folder = f"/{p['folder']}"
        add_files(desk, rng, folder, rng.randrange(2, 4), p["kind"] or KINDS)
        names = desk.files.names(folder)
        for name, kb in zip(names, rng.sample(range(1, 90), len(names)), strict=True):  # no two of one size
            desk.files.write(f"{folder}/{name}", sentence(rng), kb)

    def goal(self, files: Files, p: Params) -> None:
        folder = f"/{p['folder']}"
        sizes = {name: files.files[join(folder, name)].kb for name in files.names(folder) if name.endswith(p["kind"])}
        extreme = max if p["which"] == "largest" else min
        files.trash(join(folder, extreme(sizes, key=lambda name: sizes[name])))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := go(s, p["folder"]):
            return move
        sizes = {row.label: int(row.value.split()[0]) for row in file_rows(s) if row.label.endswith(p["kind"])}
        if notes.get("best"):
            sizes[notes["best"]] = int(notes["kb"])
        if sizes:
            best = (max if p["which"] == "largest" else min)(sizes, key=lambda name: sizes[name])
            notes.update(best=best, kb=str(sizes[best]))
        if not notes.get("all") and not looked_through(s, "Files", notes):
            return s.scroll(s.find(kind="scrollbar", window="Files"), notes["way"], "Look at all sizes.")
        notes.update(all="seen", seen=notes.get("seen", "") if notes.get("all") else "")
        row = row_of(s, notes["best"]) if "best" in notes else None
        return seek(s, row, "Files", notes) or s.drag(row, row_of(s, "Trash"), "Drag it to the Trash.")


class SubFolder(FileFamily):
    """Make a folder and put a file into it: the File menu, then cut, open and paste."""

    name = "files-subfolder"
    asks = "Make a folder named {new} in {folder} and move {name} into it."
    most = 7

    def draw(self, rng: random.Random) -> Params:
        name, new = nouns(rng, 2)
        return {"name": f"{name}.{rng.choice(KINDS.split())}", "new": new, "folder": rng.choice(PLACES)}

    def goal(self, files: Files, p: Params) -> None:
        files.make_folder(f"/{p['folder']}/{p['new']}")
        files.move(f"/{p['folder']}/{p['name']}", f"/{p['folder']}/{p['new']}/{p['name']}")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if s.dialog == "New folder":
            return s.fill("Name", p["new"]) or s.click("Create", kind="button")
        cut = s.find(f"Cut {p['name']}", kind="text", window="Files")
        if cut and is_at(s, f"{p['folder']}/{p['new']}"):
            return s.arrive("Files") or s.keys("ctrl", "v", thought="Paste it here.")
        if row_of(s, p["new"]):
            notes["made"] = "yes"
        if not notes.get("made") or (cut and not row_of(s, p["new"])):
            bar = s.find(kind="scrollbar", window="Files")
            if is_at(s, p["folder"]) and bar and bar.value != "top":  # folders come first, so it may be out of sight
                return s.arrive("Files") or s.scroll(bar, "up")
            notes["made"] = ""
            return new_folder(s, p["folder"], notes)
        if move := go(s, p["folder"]):
            return move
        if cut:
            return s.double_click(p["new"], kind="row", window="Files")
        return (
            seek(s, row_of(s, p["name"]), "Files", notes)
            or select(s, p["name"])
            or s.keys("ctrl", "x", thought="Cut it.")
        )


class CleanUp(FileFamily):
    """Delete all files of a kind but one, each through its context menu."""

    name = "files-cleanup"
    asks = "Delete all {kind} files but {keep} in {folder}."

    def draw(self, rng: random.Random) -> Params:
        kind = rng.choice(KINDS.split())
        return {"kind": kind, "keep": f"{nouns(rng, 1)[0]}.{kind}", "folder": rng.choice(PLACES)}

    def files(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        folder = f"/{p['folder']}"
        for name in self._targets(desk.files, p):
            desk.files.files.pop(join(folder, name))
        add_files(desk, rng, folder, 3, p["kind"], avoid=(p["keep"],))
        put(desk, rng, join(folder, p["keep"]))

    def _targets(self, files: Files, p: Params) -> list[str]:
        return [name for name in files.names(f"/{p['folder']}") if name.endswith(p["kind"]) and name != p["keep"]]

    def goal(self, files: Files, p: Params) -> None:
        for name in self._targets(files, p):
            files.trash(f"/{p['folder']}/{name}")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        item = s.find("Delete", kind="menuitem")
        if item and item.window.split()[0].endswith(p["kind"]) and item.window.split()[0] != p["keep"]:
            return s.menuitem("Delete")
        if move := go(s, p["folder"]):
            return move
        rows = [row for row in file_rows(s) if row.label.endswith(p["kind"]) and row.label != p["keep"]]
        row = rows[0] if rows else None
        return seek(s, row, "Files", notes) or (s.right_click(row.label, kind="row", window="Files") if row else None)


class MissingFile(Infeasible, FileFamily):
    """Rename or delete a file that is not there: look through the folder, then give up."""

    name = "files-missing"

    def draw(self, rng: random.Random) -> Params:
        name, new = nouns(rng, 2)
        name, new = f"{name}.txt", rng.choice(["", f"{new}.txt"])
        return {"name": name, "new": new, "folder": rng.choice(PLACES)}

    def instruction(self, p: Params) -> str:
        what = f"Rename {p['name']} to {p['new']}" if p["new"] else f"Delete {p['name']}"
        return f"{what} in {p['folder']}."

    def files(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        """The one that is named is not put anywhere."""

    def goal(self, files: Files, p: Params) -> None:
        """There is none."""

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := go(s, p["folder"]):
            return move
        if looked_through(s, "Files", notes):
            return f"There is no {p['name']}.", Fail()
        return s.scroll(s.find(kind="scrollbar", window="Files"), notes["way"], "Look further down.")
