"""Tasks for PCManFM, a file manager."""

from collections.abc import Iterable

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params, impossible
from arpo.envs.desktop.families.moves import Look, Moves, click, press
from arpo.envs.desktop.families.parts import HOME, every, folder, folder_is, launch, shell_says, task, write
from arpo.types import Json

APPS = ("pcmanfm",)
ICON_X, ICON_Y, ICON_STEP = 206, 97, 94.5  # the first icon's middle in the window, and the way to the next


def _rename(p: Params) -> Json:
    after = _texts({*p["files"]} - {p["old"]}) | {p["new"]: _text(p["old"])}
    return task(f"Rename the file {p['old']} to {p['new']}.", _config(p), folder_is(_place(p), after))


def _rename_script(look: Look, p: Params) -> Moves:
    yield from _select(look, p, p["old"])
    yield from press("Rename it.", "f2")
    look.window("Rename File")
    yield from press("The name without its ending is selected; take all of it.", "ctrl a")
    yield "Type the new name and confirm.", Type(f"{p['new']}\n")
    look.file(f"{_place(p)}/{p['new']}")


def _folder(p: Params) -> Json:
    return task(
        f"Make a new folder called '{p['new']}' in {p['at']}.",
        _config(p),
        folder_is(_place(p), _texts(p["files"]), p["new"]),
    )


def _folder_script(look: Look, p: Params) -> Moves:
    look.window(p["at"])
    yield from press("Ask for a new folder.", "ctrl shift n")
    look.window("Creating New Folder")
    yield "Type its name and confirm.", Type(f"{p['new']}\n")
    look.says(f"ls {_place(p)}", p["new"])


def _move(p: Params) -> Json:
    verb = "Copy" if p["copy"] else "Move"
    rest = p["files"] if p["copy"] else {*p["files"]} - {p["file"]}
    after = _texts(rest) | {f"{p['to']}/{p['file']}": _text(p["file"])}
    return task(
        f"{verb} the file {p['file']} into the folder {p['to']}.",
        [*_config(p), folder(f"{_place(p)}/{p['to']}")],
        folder_is(_place(p), after, p["to"]),
    )


def _move_script(look: Look, p: Params) -> Moves:
    yield from _select(look, p, p["file"], p["to"])
    yield from (press("Copy it.", "ctrl c") if p["copy"] else press("Cut it.", "ctrl x"))
    yield from press("Go to the location bar.", "ctrl l")
    yield f"Open the folder {p['to']}.", Type(f"{_place(p)}/{p['to']}\n")
    look.window(p["to"])
    yield from press("Paste it here.", "ctrl v")
    look.file(f"{_place(p)}/{p['to']}/{p['file']}", _text(p["file"]))
    if not p["copy"]:
        look.until(lambda: p["file"] not in look.sandbox.run(["ls", _place(p)]).out, "the end of the move")


def _delete(p: Params) -> Json:
    nowhere = shell_says('grep -rlF "$1" "$2"', "", _text(p["file"]), HOME)  # the wastebasket is in the home folder
    return task(
        f"Delete the file {p['file']} for good, without the wastebasket. Leave the others.",
        _config(p),
        every(folder_is(_place(p), _texts({*p["files"]} - {p["file"]})), nowhere),
    )


def _delete_script(look: Look, p: Params) -> Moves:
    yield from _select(look, p, p["file"])
    yield from press("Delete it for good.", "shift delete")
    look.window("Confirm")
    yield from press("Yes.", "enter")
    look.until(lambda: p["file"] not in look.sandbox.run(["ls", _place(p)]).out, f"{p['file']} to go")


def _config(p: Params) -> list[Json]:
    return [
        folder(_place(p)),
        *(write(f"{_place(p)}/{name}", _text(name)) for name in p["files"]),
        launch("pcmanfm", _place(p)),
    ]


def _place(p: Params) -> str:
    return f"{HOME}/{p['at']}"


def _texts(names: Iterable[str]) -> dict[str, str]:
    return {name: _text(name) for name in names}


def _text(name: str) -> str:
    return f"This is {name}."


def _select(look: Look, p: Params, name: str, *folders: str) -> Moves:
    box = look.window(p["at"])
    shown = [*sorted(folders), *sorted(p["files"])]  # folders come first
    yield from click(f"Select {name}.", box, round(ICON_X + ICON_STEP * shown.index(name)), ICON_Y)


FAMILIES = (
    DesktopFamily("files-rename", APPS, _rename, _rename_script, (
        {"at": "Documents", "files": ["draft.txt", "notes.txt"], "old": "draft.txt", "new": "plan.txt"},
        {"at": "Music", "files": ["song1.ogg", "song2.ogg", "song3.ogg"], "old": "song2.ogg", "new": "waltz.ogg"},
        {"at": "Work", "files": ["budget.csv", "team.csv"], "old": "team.csv", "new": "team-2026.csv"},
    )),
    DesktopFamily("files-folder", APPS, _folder, _folder_script, (
        {"at": "Documents", "files": ["letter.txt"], "new": "Invoices"},
        {"at": "Pictures", "files": [], "new": "Summer holiday"},
    )),
    DesktopFamily("files-move", APPS, _move, _move_script, (
        {"at": "Documents", "files": ["agenda.txt", "notes.txt"], "file": "notes.txt", "to": "Archive", "copy": False},
        {"at": "Downloads", "files": ["manual.pdf", "ticket.pdf"], "file": "ticket.pdf", "to": "Travel", "copy": False},
        {"at": "Documents", "files": ["cv.txt", "photo.txt"], "file": "cv.txt", "to": "Backup", "copy": True},
        {"at": "Work", "files": ["a.log", "b.log", "c.log"], "file": "b.log", "to": "Old", "copy": True},
    )),
    DesktopFamily("files-delete", APPS, _delete, _delete_script, (
        {"at": "Downloads", "files": ["movie.part", "photo.jpg", "song.mp3"], "file": "movie.part"},
        {"at": "Documents", "files": ["keep.txt", "old.txt"], "file": "old.txt"},
    )),
    impossible("files-impossible", APPS, _config,
        {"at": "Documents", "files": ["agenda.txt", "minutes.txt"],
         "say": "Rename the file invoice-2024.pdf in this folder to paid.pdf."},
        {"at": "Music", "files": ["tune.ogg"], "say": "Burn tune.ogg to the disc in this computer's CD drive."},
    ),
)  # fmt: skip
