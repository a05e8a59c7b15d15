"""The screen parse (`Control`s), and what a scripted expert does with it: moves made of public actions.

An expert is a function of the present screen, so that it also finds its way back after somebody else's wrong move.
It is a list of moves joined by `or`, the last step of the task first. A move that is not needed or not possible on this
screen is None, so the first one that is left is made:

    def expert(self, s, p):
        return (
            s.fill("Name", p["new"], window="Rename")      # None unless that dialog is open and the field is wrong
            or s.click("Rename", window="Rename")          # None unless that dialog is open
            or s.menuitem("Rename")                        # None unless a menu with that entry is open
            or s.app("Files")                              # None if Files is in front
            or s.right_click(p["old"], kind="row")
        )
"""

from dataclasses import dataclass
from typing import TypeAlias

from arpo.agent.actions import Action, Click, Drag, Hotkey, Scroll, Type
from arpo.envs.pocket.ui import Item, Layer

Move: TypeAlias = tuple[str, Action]
"""A short thought and the action that follows from it."""


@dataclass(frozen=True, slots=True)
class Control:
    """One visible control, in screen pixels.

        Control(kind="button", label="Save", box=(210, 180, 270, 197), state=("default",), value="", window="Save as")

    Kinds are those of ui.py: "button", "field", "row", "menuitem" … States: "active", "all" (its whole text is
    selected), "blocked" (behind a dialog), "bold", "checked", "covered" (a page of text in part), "cut" (the label is
    too long for its place), "default", "disabled", "faint", "focused", "lit", "minimised", "on", "selected",
    "starred", "wrong".
    """

    kind: str
    label: str
    box: tuple[int, int, int, int]  # x0, y0, x1, y1, the last two exclusive
    state: tuple[str, ...]
    value: str  # what a field, slider, cell or drop-down holds; further columns of a row
    window: str  # the title of the window, dialog or menu that it belongs to

    @property
    def centre(self) -> tuple[int, int]:
        x0, y0, x1, y1 = self.box
        return (x0 + x1) // 2, (y0 + y1) // 2


def parse(frame: list[Layer], scale: int) -> tuple[Control, ...]:
    """Every control with a label or a value whose middle can be seen, back to front."""
    controls = []
    for i, layer in enumerate(frame):
        above = frame[i + 1 :]
        for item in layer.items:
            if (item.label or item.value) and (state := _state(item, layer, above)) is not None:
                kind, w, h, _, _, _ = item.spec
                box = (item.x * scale, item.y * scale, (item.x + w) * scale, (item.y + h) * scale)
                controls.append(Control(kind, item.label, box, state, item.value, layer.title))
    return tuple(controls)


def _state(item: Item, layer: Layer, above: list[Layer]) -> tuple[str, ...] | None:
    """An item's states, with those that follow from where it is; None if it is hidden."""
    kind, w, h, shown, state, _ = item.spec
    x, y = item.x + w // 2, item.y + h // 2
    if any(other.contains(x, y) for other in above):
        if kind != "area" or any(other.contains(item.x, item.y) for other in above):
            return None
        state = (*state, "covered")  # a page is large: its beginning tells enough
    if not layer.live:
        state = (*state, "blocked")
    if shown and shown != item.label and shown.endswith("…"):
        state = (*state, "cut")
    return state


class ParsedScreen:
    """The parse of one screenshot, with the moves that it allows, and what was noted on earlier ones."""

    def __init__(self, controls: tuple[Control, ...], notes: dict[str, str]) -> None:
        self.controls = tuple(c for c in controls if "blocked" not in c.state)
        self.notes = notes

    # Looking.

    def all(self, kind: str = "", label: str = "", window: str = "") -> list[Control]:
        """Every live control of that kind, label and window (empty: any), in reading order of the parse."""
        return [
            c
            for c in self.controls
            if (not kind or c.kind == kind) and (not label or c.label == label) and (not window or c.window == window)
        ]

    def find(self, label: str = "", kind: str = "", window: str = "") -> Control | None:
        """The frontmost such control."""
        matching = self.all(kind, label, window)
        return matching[-1] if matching else None

    @property
    def menu_open(self) -> bool:
        return any(c.kind == "menuitem" for c in self.controls)

    @property
    def front(self) -> str:
        """The title of the active window or dialog; "" where there is none."""
        active = [c for c in self.controls if c.kind == "title" and "active" in c.state]
        return active[-1].label if active else ""

    # Moving.

    def click(self, label: str, kind: str = "", window: str = "", thought: str = "") -> Move | None:
        control = self.find(label, kind, window)
        if control is None or "disabled" in control.state:
            return None
        return thought or f"Click {label}.", Click(*control.centre)

    def select(self, label: str, kind: str, window: str, thought: str = "") -> Move | None:
        """Click what is to be selected; None once it is."""
        control = self.find(label, kind, window)
        return None if control and "selected" in control.state else self.click(label, kind, window, thought)

    def double_click(self, label: str, kind: str, window: str = "") -> Move | None:
        control = self.find(label, kind, window)
        return (f"Open {label}.", Click(*control.centre, count=2)) if control else None

    def right_click(self, label: str, kind: str, window: str) -> Move | None:
        control = self.find(label, kind, window)
        return (f"Right-click {label}.", Click(*control.centre, button="right")) if control else None

    def close(self, window: str, name: str = "") -> Move | None:
        return self.click("close", kind="close", window=window, thought=f"Close {name or window}.")

    def drag(self, source: Control | None, target: Control | None, thought: str) -> Move | None:
        return (thought, Drag(*source.centre, *target.centre)) if source and target else None

    def keys(self, *keys: str, thought: str) -> Move:
        return thought, Hotkey(keys)

    def type(self, text: str, thought: str = "") -> Move:
        return thought or f"Type {text.strip()}.", Type(text)

    def scroll(self, over: Control | None, direction: str, thought: str = "Scroll on.") -> Move | None:
        return (thought, Scroll(*over.centre, direction)) if over else None  # type: ignore[arg-type]

    # Small plans.

    def menuitem(self, label: str) -> Move | None:
        """Choose an entry of the open menu."""
        return self.click(label, kind="menuitem")

    def menu(self, name: str, entry: str, window: str = "") -> Move | None:
        """Choose an entry of a menu bar's menu, opening it first."""
        return self.menuitem(entry) or self.click(name, kind="menu", window=window, thought=f"Open the {name} menu.")

    def escape(self, *expected: str) -> Move | None:
        """Close a menu that has none of the expected entries, or a dialog with none of the expected titles."""
        if self.menu_open:
            wanted = any(c.kind == "menuitem" and c.label in expected for c in self.controls)
            return None if wanted else self.keys("esc", thought="Close this menu.")
        if self.dialog and self.dialog not in expected:
            return self.keys("esc", thought="Close this dialog.")
        return None

    @property
    def dialog(self) -> str:
        """The title of the open dialog in front, or ""; a dialog has no minimise button."""
        title = self.front
        return title if title and not self.find(kind="minimise", window=title) else ""

    def is_front(self, name: str) -> bool:
        """Whether the active window has this title, apart from the star of unsaved work."""
        return self.front.lstrip("*") == name

    def switch(self, name: str) -> Move | None:
        """Bring the open window with this title to the front; None if it is there, or nowhere."""
        task = next((c for c in self.all(kind="task") if c.label.lstrip("*") == name), None)
        return (f"Go to {name}.", Click(*task.centre)) if task and not self.is_front(name) else None

    def app(self, name: str) -> Move | None:
        """Bring an application's window to the front, or start it by its icon or the menu."""
        if self.is_front(name):
            return None
        return (
            self.switch(name)
            or self.menuitem(name)
            or self.double_click(name, kind="icon")
            or self.click("Menu", kind="launcher", thought="Open the menu.")
        )

    def arrive(self, name: str, *expected: str) -> Move | None:
        """Bring a window to the front and close what does not belong there; None once that is done.

        `expected` are entries of menus and titles of dialogs of that window that may stay open.
        """
        if self.is_front(name) or (self.dialog and self.dialog in expected):
            return self.escape(*expected)
        return self.escape(name, *expected) or self.app(name)

    def fill(self, label: str, text: str, window: str = "") -> Move | None:
        """Make a field or a page hold exactly this text."""
        control = self.find(label, kind="field", window=window) or self.find(label, kind="area", window=window)
        if control is None or control.value == text:
            return None
        if "focused" not in control.state:
            return f"Click the {label} field.", Click(*control.centre)
        if control.value and "all" not in control.state:
            return self.keys("ctrl", "a", thought="Select the old text.")
        return self.type(text)

    # Lists that may be longer than their windows.

    def look_through(self, window: str, thought: str = "Scroll on.") -> Move | None:
        """Scroll through a window's list; None once both ends were in sight. The notes say which ends were."""
        bar = self.find(kind="scrollbar", window=window)
        if bar is None:
            return None
        if bar.value != "middle":
            self.notes["way"] = "down" if bar.value == "top" else "up"
            self.notes["seen"] = f"{self.notes.get('seen', '')} {bar.value}"
        seen = self.notes.get("seen", "")
        return None if "top" in seen and "end" in seen else self.scroll(bar, self.notes.get("way", "down"), thought)

    def seek(self, row: Control | None, window: str) -> Move | None:
        """Scroll a window's list until the row is in sight. If it is nowhere, somebody has moved it: undo that."""
        if row is None and (move := self.look_through(window)):
            return move
        self.notes["seen"] = ""
        return None if row else self.keys("ctrl", "z", thought="It is gone: undo that.")

    def context_entry(self, row: str, entry: str) -> Move | None:
        """Choose an entry of the open context menu, if it is the menu of that row ("plan.txt", "Ada train ticket")."""
        item = self.find(entry, kind="menuitem")
        return self.menuitem(entry) if item and f"{item.window} ".startswith(f"{row} ") else None
