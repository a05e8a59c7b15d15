"""Tasks of the text editor."""

from random import Random

from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Params, add_files, others_kept, place
from arpo.envs.pocket.screen import Control, Move, ParsedScreen
from arpo.envs.pocket.vfs import DOCUMENTS
from arpo.envs.pocket.words import NOUNS, drawn, nouns, sentence, text_file


def open_in_editor(desk: Desktop, rng: Random, name: str) -> Editor:
    """An editor window somewhere, with a file of the Documents folder in it."""
    app = place(desk, rng, "Editor")
    assert isinstance(app, Editor)
    app.open_path(f"{DOCUMENTS}/{name}")
    return app


def distract(desk: Desktop, rng: Random, *avoid: str) -> None:
    """Perhaps another editor window, in front or behind, with another file in it."""
    if rng.random() < 0.5:
        other = add_files(desk, rng, DOCUMENTS, 1, avoid=avoid)[0]
        open_in_editor(desk, rng, other)
        if rng.random() < 0.5:
            desk.raise_window(desk.windows[0])


def saved(desk: Desktop, name: str, text: str) -> bool:
    """Whether a file of the Documents folder has this text, but for space around it, and nothing else has changed."""
    path = f"{DOCUMENTS}/{name}"
    return path in desk.files.files and desk.files.read(path).strip() == text.strip() and others_kept(desk, path)


def page_of(s: ParsedScreen, name: str) -> Control | None:
    """The page of the front window, if that is the file's editor."""
    return s.find("text", kind="area", window=s.front) if s.is_front(name) else None


def open_page(s: ParsedScreen, name: str) -> Move | None:
    """Bring a file's editor to the front, by the taskbar or through the editor's own Open dialog."""
    if move := s.escape("Open", "Open file", "Editor"):
        return move
    if s.dialog == "Open file":
        return s.fill("Name", name) or s.click("Open", kind="button")
    in_editor = s.find("text", kind="area", window=s.front)
    return (
        s.switch(name)
        or s.menuitem("Open")
        or (s.click("File", kind="menu", window=s.front) if in_editor else None)
        or s.switch("Untitled")
        or s.app("Editor")
    )


def note_down(s: ParsedScreen, name: str, text: str) -> Move | None:
    """Write a text into a new file of the Documents folder, from whatever is on the screen."""
    if s.dialog == "Save as":
        return save_as(s, name)
    page = page_of(s, "Untitled")
    if page and page.value == text:
        return s.escape("Save") or s.menu("File", "Save", window=s.front)
    return (
        s.escape("Editor")
        or s.switch("Untitled")
        or (s.app("Editor") if page is None else None)
        or s.fill("text", text, window=s.front)
    )


def save_as(s: ParsedScreen, name: str) -> Move | None:
    """The Save as dialog: the Documents folder, the name, the button."""
    folder = s.find("Folder", kind="dropdown")
    if folder and folder.value != "Documents":
        return s.menuitem("Documents") or s.click("Folder", kind="dropdown")
    return s.escape("Save as") or s.fill("Name", name) or s.click("Save", kind="button")


class NewFile(Family):
    """Write a line in an empty editor and save it under a name."""

    name = "editor-new"
    judges = ("files",)
    asks = "Write '{text}' in the Editor and save it as {name} in Documents."
    random_params = drawn(name=text_file, text=sentence)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 7), avoid=(p["name"],))
        if rng.random() < 0.5:
            place(desk, rng, "Editor")

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["name"], p["text"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return note_down(s, p["name"], p["text"])


class Append(Family):
    """Add a line at the end of a file and save it with the keyboard."""

    name = "editor-append"
    judges = ("files",)
    asks = "Add the line '{line}' at the end of {name} and save it."
    random_params = drawn(name=text_file, line=sentence)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        text = "\n".join(sentence(rng) for _ in range(rng.randrange(1, 5)))
        desk.stores["goal"] = f"{text}\n{p['line']}"
        desk.files.write(f"{DOCUMENTS}/{p['name']}", text)
        add_files(desk, rng, DOCUMENTS, rng.randrange(4), avoid=(p["name"],))
        if rng.random() < 0.7:
            open_in_editor(desk, rng, p["name"])
        distract(desk, rng, p["name"])

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["name"], desk.stores["goal"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        page = page_of(s, p["name"])
        if page is None:
            return open_page(s, p["name"])
        s.notes.setdefault("before", page.value)
        goal = f"{s.notes['before']}\n{p['line']}"
        if page.value == goal:
            return s.keys("ctrl", "s", thought="Save the file.")
        if page.value != s.notes["before"]:
            return s.escape() or s.fill("text", goal, window=s.front)
        if s.notes.get("at") != "end" or "focused" not in page.state:
            s.notes["at"] = "end"
            return s.escape() or s.keys("ctrl", "end", thought="Go to the end.")
        s.notes["at"] = ""
        return s.escape() or s.type(f"\n{p['line']}")


class ReplaceWord(Family):
    """Replace a word everywhere through the Replace dialog, then save by the menu."""

    name = "editor-replace"
    judges = ("files",)
    asks = "Replace the word {old} by {new} in all of {name} and save it."

    def random_params(self, rng: Random) -> Params:
        name, old, new = nouns(rng, 3)
        return {"name": f"{name}.txt", "old": old, "new": new}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        lines = []
        for _ in range(rng.randrange(2, 5)):
            # No word that has the old one in it, such as train for rain: it would be replaced there, too.
            first, second = nouns(rng, 2, (p["new"], *(noun for noun in NOUNS if p["old"] in noun)))
            lines.append(f"{first} {p['old']} {second}" if rng.random() < 0.6 else f"{first} and {second}")
        lines.insert(rng.randrange(len(lines) + 1), f"the {p['old']}")
        text = "\n".join(lines)
        desk.stores["goal"] = text.replace(p["old"], p["new"])
        desk.files.write(f"{DOCUMENTS}/{p['name']}", text)
        open_in_editor(desk, rng, p["name"])
        distract(desk, rng, p["name"])

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["name"], desk.stores["goal"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.dialog == "Replace":
            if any(c.label.startswith("Replaced") for c in s.all(kind="text")):
                return s.click("Close", kind="button")
            return s.fill("Find", p["old"]) or s.fill("Replace by", p["new"]) or s.click("Replace all", kind="button")
        page = page_of(s, p["name"])
        if page is None:
            return open_page(s, p["name"])
        if p["old"] in page.value.split():
            return s.escape("Replace") or s.menu("Edit", "Replace", window=s.front)
        return s.escape("Save") or s.menu("File", "Save", window=s.front)


class Discard(Family):
    """Close a window with unsaved changes and let them go."""

    name = "editor-discard"
    asks = "Close {name} without saving the changes."
    random_params = drawn(name=text_file)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        desk.files.write(f"{DOCUMENTS}/{p['name']}", sentence(rng))
        open_in_editor(desk, rng, p["name"]).box.insert(f"{sentence(rng)}\n")
        distract(desk, rng, p["name"])
        desk.stores["keep"] = {window.app.path for window in desk.windows} - {f"{DOCUMENTS}/{p['name']}"}

    def check(self, desk: Desktop, p: Params) -> bool:
        paths = {window.app.path for window in desk.windows}
        return f"{DOCUMENTS}/{p['name']}" not in paths and paths >= desk.stores["keep"]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.dialog == "Unsaved changes":
            mine = any(c.label.startswith(p["name"]) for c in s.all(kind="text", window="Unsaved changes"))
            return s.click("Discard" if mine else "Cancel", kind="button")
        return s.escape() or s.switch(p["name"]) or s.close(s.front, p["name"])
