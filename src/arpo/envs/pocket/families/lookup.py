"""How experts look something up in a list that may be longer than its window, and use its context menu."""

from __future__ import annotations

from arpo.envs.pocket.controls import Control
from arpo.envs.pocket.screen import Move, Screen


def seek(s: Screen, row: Control | None, window: str, notes: dict[str, str]) -> Move | None:
    """Scroll a window's list until the row is in sight. If it is nowhere, somebody has moved it: undo that."""
    if row:
        notes["seen"] = ""
        return None
    if not looked_through(s, window, notes):
        return s.scroll(s.find(kind="scrollbar", window=window), notes["way"])
    notes["seen"] = ""
    return s.keys("ctrl", "z", thought="It is gone: undo that.")


def looked_through(s: Screen, window: str, notes: dict[str, str]) -> bool:
    """Whether the whole list was in sight; `notes` hold which ends were seen, and the way to scroll on."""
    bar = s.find(kind="scrollbar", window=window)
    if bar is None:
        return True
    notes.setdefault("way", "down")
    if bar.value != "middle":
        notes["way"] = "down" if bar.value == "top" else "up"
        if bar.value not in notes.get("seen", ""):
            notes["seen"] = f"{notes.get('seen', '')} {bar.value}"
    return "top" in notes.get("seen", "") and "end" in notes["seen"]


def pick(s: Screen, row: str, entry: str) -> Move | None:
    """Choose an entry of the open context menu, if it is the menu of that row ("plan.txt", "Ada train ticket")."""
    item = s.find(entry, kind="menuitem")
    return s.menuitem(entry) if item and f"{item.window} ".startswith(f"{row} ") else None
