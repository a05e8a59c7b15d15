"""The screen parse: every visible control. What experts and tests look at, and what pretraining learns from."""

from __future__ import annotations

from dataclasses import dataclass

from arpo.envs.pocket.ui import Item, Layer


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
    found = []
    for i, layer in enumerate(frame):
        above = frame[i + 1 :]
        for item in layer.items:
            if (item.label or item.value) and (state := _state(item, layer, above)) is not None:
                kind, w, h, _, _, _ = item.spec
                box = (item.x * scale, item.y * scale, (item.x + w) * scale, (item.y + h) * scale)
                found.append(Control(kind, item.label, box, state, item.value, layer.title))
    return tuple(found)


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
