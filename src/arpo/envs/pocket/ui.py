"""The widgets. Each screen is described anew from the state (immediate mode): no widget outlives a frame.

An application's `view(ui)` calls `ui.button(…)`, `ui.field(…)` and so on. Each call appends an `Item`: where it is,
what it looks like (`spec`, the key under which its picture is cached) and what it does (`on`). The same items are
drawn, hit by clicks and listed in the screen parse, so what is seen is what can be clicked.

All sizes are logical pixels; canvas.py alone knows the screen's scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from arpo.envs.pocket.text_layout import LINE, advance, fit, width
from arpo.envs.pocket.textbox import TextBox

if TYPE_CHECKING:
    from arpo.envs.pocket.desktop import Desktop, Surface, Window

ROW = 17  # the height of list rows, buttons and fields
SCROLL_ROWS = 3  # how far one scroll gesture goes
WIDEST_MENU = 220
Do: TypeAlias = Callable[[], object]
Act: TypeAlias = Callable[..., object]
ScrollBy: TypeAlias = Callable[[int, int], object]
"""Takes rows to the right and rows down."""
Spec: TypeAlias = tuple[str, int, int, str, tuple[str, ...], Any]
"""kind, width, height, label as drawn, states, and what else the kind needs to be drawn."""


@dataclass(frozen=True, slots=True)
class On:
    """What an item does. Offsets handed to `press` and `drag` count from the item's corner."""

    click: Do | None = None
    double: Do | None = None
    press: Callable[[int, int], object] | None = None  # a left click, with its offset
    drag: Callable[[int, int, int, int], object] | None = None
    scroll: ScrollBy | None = None
    menu: Callable[[], list[MenuItem]] | None = None  # right click
    payload: str = ""  # what a drag from here carries …
    drop: Callable[[str], object] | None = None  # … and what happens where it is let go
    focus: TextBox | None = None  # the text that typing here changes …
    enter: Do | None = None  # … and what the Enter key does meanwhile


class Item(NamedTuple):
    """One visible thing: its corner on the screen, its looks, its full label and value, its behaviour."""

    x: int
    y: int
    spec: Spec
    label: str
    value: str
    on: On | None

    def contains(self, x: int, y: int) -> bool:
        return self.x <= x < self.x + self.spec[1] and self.y <= y < self.y + self.spec[2]


@dataclass(slots=True)
class MenuItem:
    """An entry of a menu. `do` must be a bound method (or None: disabled), since menus live on between frames."""

    label: str
    do: Act | None
    args: tuple[Any, ...] = ()
    shortcut: str = ""
    checked: bool = False


@dataclass(slots=True)
class Menu:
    """An open menu, context menu or drop-down list."""

    title: str
    items: list[MenuItem]
    x: int
    y: int
    lit: int = -1  # the entry that the arrow keys are on

    @property
    def size(self) -> tuple[int, int]:
        text = max((width(i.label) + (width(i.shortcut) + 12 if i.shortcut else 0) for i in self.items), default=20)
        return min(text + 28, WIDEST_MENU), len(self.items) * ROW + 4


@dataclass(slots=True)
class Layer:
    """One surface of the screen, back to front: the desktop, a window, a dialog, the taskbar, an open menu."""

    title: str
    x: int
    y: int
    w: int
    h: int
    items: list[Item] = field(default_factory=list)
    owner: Window | None = None
    live: bool = True  # False: a dialog in front of it takes all input

    def contains(self, x: int, y: int) -> bool:
        return self.x <= x < self.x + self.w and self.y <= y < self.y + self.h

    def meets(self, x0: int, y0: int, x1: int, y1: int) -> bool:
        """Whether it covers any part of a box."""
        return x0 < self.x + self.w and self.x < x1 and y0 < self.y + self.h and self.y < y1

    def item_at(self, x: int, y: int) -> Item | None:
        """The topmost item under a point. Plain text lets a click through to what it lies on."""
        for item in reversed(self.items):
            if item.spec[0] not in ("text", "line") and item.contains(x, y):
                return item
        return None


class Ui:
    """Collects the items of one layer. `x`, `y` in calls count from the layer's content corner."""

    def __init__(self, desk: Desktop, surface: Surface, layer: Layer, top: int, active: bool) -> None:
        self.desk = desk
        self.surface = surface
        self.layer = layer
        self.left = layer.x
        self.top = layer.y + top
        self.w = layer.w
        self.h = layer.h - top
        self.active = active and layer.live  # whether keys go here, so that a caret is shown

    def add(
        self,
        kind: str,
        x: int,
        y: int,
        w: int,
        h: int,
        label: str = "",
        state: tuple[str, ...] = (),
        extra: Any = None,
        value: str = "",
        on: On | None = None,
        shown: str | None = None,
    ) -> None:
        """Append an item. `shown` is the label as drawn where that differs."""
        spec = (kind, w, h, label if shown is None else shown, state, extra)
        self.layer.items.append(Item(self.left + x, self.top + y, spec, label, value, on))

    def text(self, x: int, y: int, text: str, w: int = 0, style: str = "") -> None:
        """A line of text. Styles: "" (on a panel), "page" (on white), "title", "faint", "wrong", "page-title"."""
        limit = w or self.w - x - 4
        shown = fit(text, limit)
        self.add("text", x, y, min(limit, width(shown) + 2), LINE, text, extra=style, shown=shown)

    def panel(self, x: int, y: int, w: int, h: int, style: str = "page", on: On | None = None) -> None:
        """A background: "page" (white, framed), "bar", "line" (a rule)."""
        self.add("panel", x, y, w, h, extra=style, on=on)

    def button(
        self, x: int, y: int, w: int, label: str, do: Do | None, default: bool = False, on: bool = False
    ) -> None:
        """A push button; disabled where `do` is None; `on` for one that stays pressed."""
        state = states(disabled=do is None, default=default, on=on)
        self.add("button", x, y, w, ROW, label, state, on=On(click=do) if do else None, shown=fit(label, w - 4))

    def mark(self, kind: str, x: int, y: int, label: str, checked: bool, do: Do | None, style: str = "") -> None:
        """A "checkbox" or a "radio" button. Styles: "" (on a panel), "page" (on white)."""
        state = states(checked=checked, disabled=do is None)
        self.add(kind, x, y, width(label) + 22, ROW, label, state, style, on=On(do) if do else None)

    def tab(self, x: int, y: int, label: str, selected: bool, do: Do) -> int:
        """One tab; returns the x of the next."""
        w = width(label) + 12
        self.add("tab", x, y, w, ROW, label, ("selected",) if selected else (), on=On(click=do))
        return x + w

    def link(self, x: int, y: int, label: str, do: Do) -> None:
        shown = fit(label, self.w - x - 4)
        self.add("link", x, y, width(shown) + 2, LINE, label, on=On(click=do), shown=shown)

    def row(
        self,
        x: int,
        y: int,
        w: int,
        label: str,
        on: On,
        selected: bool = False,
        columns: Sequence[tuple[int, str]] = (),
        icon: str = "",
        state: tuple[str, ...] = (),
    ) -> None:
        """A row of a list: an icon, the label, and more columns at their own x."""
        first = columns[0][0] if columns else w
        shown = fit(label, first - (20 if icon else 4) - 2)
        cells = tuple((at, fit(text, w - at - 2)) for at, text in columns)
        value = " ".join(text for _, text in columns)
        state = (*state, "selected") if selected else state
        self.add("row", x, y, w, ROW, label, state, (icon, cells), value, on, shown)

    def dropdown(
        self, x: int, y: int, w: int, label: str, value: str, choices: Sequence[str], do: Act, *args: str
    ) -> None:
        """A closed drop-down; a click opens its list. `do` must be a bound method that takes `args` and the choice."""

        def open_list() -> None:
            entries = [MenuItem(choice, do, (*args, choice), checked=choice == value) for choice in choices]
            self.desk.open_menu(Menu(label, entries, self.left + x, self.top + y + ROW))

        self.add("dropdown", x, y, w, ROW, label, value=value, on=On(click=open_list), shown=fit(value, w - 18))

    def slider(self, x: int, y: int, w: int, label: str, value: int, do: Callable[[int], object] | None) -> None:
        """A slider from 0 to 100 in steps of ten: click or drag to a place; disabled where `do` is None."""

        def at(dx: int) -> int:
            return 10 * max(0, min(10, round((dx - 6) * 10 / (w - 12))))

        on = On(press=lambda dx, dy: do(at(dx)), drag=lambda dx, dy, to_x, to_y: do(at(to_x))) if do else None
        state = () if do else ("disabled",)
        self.add("slider", x, y, w, ROW, label, state, extra=value, value=str(value), on=on, shown="")

    def field(self, x: int, y: int, w: int, label: str, box: TextBox, enter: Do | None = None) -> None:
        """A single-line text field. `enter` is what the Enter key does in it (else: the dialog's default button)."""
        state = self._edit_state(box)
        first, last = _window(box.text, box.caret if state else 0, w - 8)
        shown = box.text[first:last]
        start, end = (max(first, p) - first for p in box.selection)
        marks = (_x(shown, box.caret - first), _x(shown, start), _x(shown, end)) if state else None
        on = self._typing(box, lambda dx, dy: box.position((first, last), dx - 4), enter)
        self.add("field", x, y, w, ROW, label, state, marks, box.text, on, shown)

    def area(self, x: int, y: int, w: int, h: int, label: str, box: TextBox) -> None:
        """A page of text that wraps and scrolls."""
        state = self._edit_state(box)
        rows = box.rows(text_width(w))
        visible = visible_rows(h)
        top = max(0, min(box.first_row, len(rows) - visible))

        def place(dx: int, dy: int) -> int:
            row = max(0, min(len(rows) - 1, top + (dy - 2) // LINE))
            return box.position(rows[row], dx - 4)

        def scroll(dx: int, dy: int) -> None:
            box.first_row = max(0, min(top + dy, len(rows) - visible))

        on = self._typing(box, place, scroll=scroll)
        self.add("area", x, y, w, h, label, state, value=box.text, on=on, shown="")
        start, end = box.selection
        for i, (row_start, row_end) in enumerate(rows[top : top + visible]):
            text = box.text[row_start:row_end]
            marks = None
            if state:
                last = top + i + 1 >= len(rows) or rows[top + i + 1][0] > box.caret
                caret = _x(text, box.caret - row_start) if row_start <= box.caret and last else -1
                marks = (caret, _x(text, start - row_start), _x(text, end - row_start))
            if text or (marks and marks[0] >= 0):
                self.add("line", x + 3, y + 2 + i * LINE, w - 12, LINE, text.rstrip(), extra=marks)
        if len(rows) > visible:
            self.scrollbar(x + w - 9, y + 1, h - 2, top, visible, len(rows), partial(setattr, box, "first_row"))

    def _edit_state(self, box: TextBox) -> tuple[str, ...]:
        """ "focused" while keys go to a box, "all" while its whole text is selected."""
        focused = self.active and self.surface.focus is box
        return states(focused=focused, all=focused and box.text != "" and box.selected == box.text)

    def _typing(
        self, box: TextBox, place_at: Callable[[int, int], int], enter: Do | None = None, scroll: ScrollBy | None = None
    ) -> On:
        desk, surface = self.desk, self.surface

        def press(dx: int, dy: int) -> None:
            surface.focus = box
            box.move(place_at(dx, dy), extend="shift" in desk.held)

        def drag(dx: int, dy: int, to_x: int, to_y: int) -> None:
            surface.focus = box
            box.move(place_at(dx, dy))
            box.move(place_at(to_x, to_y), extend=True)

        def double() -> None:  # selects the word under the caret, which the click has just placed
            start = end = box.caret
            while start > 0 and box.text[start - 1].isalnum():
                start -= 1
            while end < len(box.text) and box.text[end].isalnum():
                end += 1
            box.anchor, box.caret = start, end

        def menu() -> list[MenuItem]:
            surface.focus = box
            return clipboard_items(desk, box)

        return On(press=press, drag=drag, double=double, menu=menu, scroll=scroll, focus=box, enter=enter)

    def scrollbar(
        self, x: int, y: int, h: int, first: int, visible: int, total: int, set_first: Callable[[int], object]
    ) -> None:
        """A vertical bar: click above or below the thumb for a page, drag the thumb anywhere."""
        size = max(8, h * visible // max(1, total))
        last = max(1, total - visible)
        thumb = (h - size) * min(first, last) // last

        def move(rows: int) -> None:
            set_first(max(0, min(first + rows, last)))

        def press(dx: int, dy: int) -> None:
            if not thumb <= dy < thumb + size:
                move(visible if dy > thumb else -visible)

        def drag(dx: int, dy: int, to_x: int, to_y: int) -> None:
            move(round((to_y - dy) * last / max(1, h - size)))

        where = "top" if first <= 0 else "end" if first >= last else "middle"
        self.add("scrollbar", x, y, 8, h, extra=(thumb, size), value=where, on=On(press=press, drag=drag))

    def rows(
        self, x: int, y: int, w: int, h: int, total: int, first: int, set_first: Callable[[int], object], on: On
    ) -> range:
        """The frame of a scrolling list: draws the page and the bar and returns which rows to put in it.

        `on` is what a click beside the rows does. Rows go at `y + 1 + i * ROW` and are `w - 10` wide.
        """
        visible = max(1, (h - 2) // ROW)
        first = max(0, min(first, total - visible))
        scroll = lambda dx, dy: set_first(max(0, min(first + dy, total - visible)))  # noqa: E731
        self.panel(x, y, w, h, on=replace(on, scroll=scroll))
        if total > visible:
            self.scrollbar(x + w - 9, y + 1, h - 2, first, visible, total, set_first)
        return range(first, min(total, first + visible))


def states(**flags: bool) -> tuple[str, ...]:
    """The names of the flags that are set."""
    return tuple(name for name, yes in flags.items() if yes)


def clipboard_items(desk: Desktop, box: TextBox) -> list[MenuItem]:
    """What the menus of a text box have in common."""
    return [
        MenuItem("Cut", desk.cut if box.selected else None, shortcut="Ctrl+X"),
        MenuItem("Copy", desk.copy if box.selected else None, shortcut="Ctrl+C"),
        MenuItem("Paste", desk.paste if desk.clipboard else None, shortcut="Ctrl+V"),
        MenuItem("Select all", box.select_all if box.text else None, shortcut="Ctrl+A"),
    ]


def text_width(area_width: int) -> int:
    """Where the text of an area of this width wraps."""
    return area_width - 14


def visible_rows(area_height: int) -> int:
    return max(1, (area_height - 4) // LINE)


def _window(text: str, caret: int, room: int) -> tuple[int, int]:
    """Which part of a long line to show: from its beginning or, where the caret would be out of sight, up to there."""
    first, used = caret, 0
    while first > 0 and used + advance(text[first - 1]) <= room:
        first -= 1
        used += advance(text[first])
    last = caret
    while last < len(text) and used + advance(text[last]) <= room:
        used += advance(text[last])
        last += 1
    return first, last


def _x(text: str, position: int) -> int:
    """How far a position in a text is from its start, in pixels; -1 before it."""
    return -1 if position < 0 else int(sum(map(advance, text[:position])))
