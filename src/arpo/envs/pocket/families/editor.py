"""Tasks of the text editor."""

from __future__ import annotations

import random

from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Params, add_files, place
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.words import nouns, sentence

DOCUMENTS = "/Documents"


def open_in_editor(desk: Desktop, rng: random.Random, name: str) -> Editor:
    """An editor window somewhere, with a file of the Documents folder in it."""
    app = place(desk, rng, "Editor")
    assert isinstance(app, Editor)
    app.open_path(f"{DOCUMENTS}/{name}")
    return app


class NewFile(Family):
    """Write a line in an empty editor and save it under a name."""

    name = "editor-new"
    domain = "editor"

    def draw(self, rng: random.Random) -> Params:
        return {"name": f"{nouns(rng, 1)[0]}.txt", "text": sentence(rng)}

    def instruction(self, p: Params) -> str:
        return f"Write '{p['text']}' in the Editor and save it as {p['name']} in Documents."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 7), avoid=(p["name"],))
        if rng.random() < 0.5:
            place(desk, rng, "Editor")

    def check(self, desk: Desktop, p: Params) -> bool:
        file = desk.files.files.get(f"{DOCUMENTS}/{p['name']}")
        return file is not None and file.text.strip() == p["text"]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        page = s.find("text", kind="area")
        if s.dialog == "Save as":
            return s.fill("Name", p["name"]) or s.click("Save", kind="button")
        return (
            s.escape("Editor", "Save")
            or (s.menu("File", "Save") if page and page.value == p["text"] else None)
            or (s.app("Editor") if page is None or page.window.lstrip("*") != "Untitled" else None)
            or (s.keys("ctrl", "a", thought="Start over.") if page and page.value and "all" not in page.state else None)
            or s.type(p["text"])
        )


FAMILIES = (NewFile(),)
