"""The browser: addresses, links, history, bookmarks, forms and downloads, on the local pages of pages.py.

What stays when it is closed (pages, bookmarks, the forms sent) is in `desk.stores["browser"]`.
"""

from functools import partial
from random import Random
from typing import Any

from arpo.envs.pocket.apps.pages import HOME, Block, new_store, page_at
from arpo.envs.pocket.desktop import MENUBAR, TITLE, App, Desktop, Keys, Menus, Window
from arpo.envs.pocket.text_layout import width, wrap
from arpo.envs.pocket.textbox import TextBox
from arpo.envs.pocket.ui import ROW, Do, MenuItem, On, Ui
from arpo.envs.pocket.vfs import join

TOP = 21  # the height of the bar with the address
MOST_BOOKMARKS = 8
MOST_ROWS = 400  # of a page; a file may be long
LONGEST_HISTORY = 50
MOST_SENT = 50  # forms that are kept


class Browser(App):
    """The history and the place in it; the page as rows of the window's width; what its form holds."""

    name = "Browser"
    size = (316, 200)

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        if "browser" not in desk.stores:
            desk.stores["browser"] = new_store(Random(0))
        self.bar = TextBox()
        self.history: list[str] = []
        self.at = -1
        self.rows: list[Block] = []
        self.first = 0  # the topmost visible row
        self.boxes: dict[str, TextBox] = {}
        self.picked = ""  # the radio button
        self.checked: set[str] = set()
        self.visit(HOME)

    @property
    def store(self) -> dict[str, Any]:
        store: dict[str, Any] = self.desk.stores["browser"]
        return store

    @property
    def address(self) -> str:
        return self.history[self.at]

    @property
    def visible(self) -> int:
        return (self.window.h - TITLE - MENUBAR - TOP - 4) // ROW

    def view(self, ui: Ui) -> None:
        last = len(self.history) - 1
        self._tool(ui, 3, "Back", "back", (lambda: self.turn(-1)) if self.at > 0 else None)
        self._tool(ui, 22, "Forward", "forward", (lambda: self.turn(1)) if self.at < last else None)
        self._tool(ui, 41, "Home", "home", lambda: self.visit(HOME))
        ui.field(62, 1, ui.w - 114, "Address", self.bar, enter=self.go)
        ui.button(ui.w - 50, 1, 26, "Go", self.go)
        marked = self.address in self.store["bookmarks"]
        self._tool(ui, ui.w - 22, "Bookmark", "star", self.bookmark, on=marked)
        page = On(click=self._leave_fields, scroll=lambda dx, dy: self.scroll_to(self.first + dy))
        ui.panel(2, TOP, ui.w - 4, ui.h - TOP - 2, on=page)
        for i, row in enumerate(self.rows[self.first : self.first + self.visible]):
            self._row(ui, 8, TOP + 2 + i * ROW, row)
        if len(self.rows) > self.visible:
            h = ui.h - TOP - 4
            ui.scrollbar(ui.w - 11, TOP + 1, h, self.first, self.visible, len(self.rows), self.scroll_to)

    def _tool(self, ui: Ui, x: int, label: str, icon: str, do: Do | None, on: bool = False) -> None:
        state = ("disabled",) if do is None else ("on",) if on else ()
        ui.add("tool", x, 1, 18, ROW, label, state, icon, on=On(click=do) if do else None, shown="")

    def _row(self, ui: Ui, x: int, y: int, row: Block) -> None:
        kind, *rest = row
        match kind:
            case "title":
                ui.text(x, y + 1, rest[0], style="page-title")
            case "text":
                ui.text(x, y + 1, rest[0], style="page")
            case "link":
                ui.link(x, y + 1, rest[0], lambda: self.visit(rest[1]))
            case "item":
                ui.link(x, y + 1, rest[0], lambda: self.visit(rest[2]))
                ui.text(x + 100, y + 1, rest[1], style="page")
            case "save":
                ui.link(x, y + 1, rest[0], lambda: self.download(*rest))
            case "field":
                ui.text(x, y + 1, rest[0], style="page")
                ui.field(x + 50, y, min(150, ui.w - x - 66), rest[0], self.boxes[rest[0]], enter=self.submit)
            case "radio":
                for choice in rest:
                    pick = partial(setattr, self, "picked", choice)
                    ui.mark("radio", x, y, choice, choice == self.picked, pick, "page")
                    x += width(choice) + 26
            case "check":
                ui.mark("checkbox", x, y, rest[0], rest[0] in self.checked, partial(self._check, rest[0]), "page")
            case "submit":
                ui.button(x, y, 60, rest[0], self.submit if self.complete else None)

    # Menus and keys.

    def menus(self) -> Menus:
        return {"Page": self._page_menu, "Bookmarks": self._bookmarks_menu}

    def _page_menu(self) -> list[MenuItem]:
        return [
            MenuItem("Back", self.turn if self.at > 0 else None, (-1,), shortcut="Alt+Left"),
            MenuItem("Forward", self.turn if self.at < len(self.history) - 1 else None, (1,), shortcut="Alt+Right"),
            MenuItem("Home", self.visit, (HOME,)),
            MenuItem("Reload", self.reload, shortcut="F5"),
            MenuItem("Close", self.request_close, shortcut="Alt+F4"),
        ]

    def _bookmarks_menu(self) -> list[MenuItem]:
        marks = self.store["bookmarks"]
        change = "Remove bookmark" if self.address in marks else "Add bookmark"
        return [MenuItem(change, self.bookmark), *(MenuItem(address, self.visit, (address,)) for address in marks)]

    def shortcuts(self) -> Keys:
        return {
            "alt+left": lambda: self.turn(-1),
            "alt+right": lambda: self.turn(1),
            "f5": self.reload,
            "ctrl+d": self.bookmark,
            "ctrl+l": self._to_address,
            "esc": self._leave_fields,
            "up": lambda: self.scroll_to(self.first - 1),
            "down": lambda: self.scroll_to(self.first + 1),
            "pageup": lambda: self.scroll_to(self.first - self.visible),
            "pagedown": lambda: self.scroll_to(self.first + self.visible),
            "home": lambda: self.scroll_to(0),
            "end": lambda: self.scroll_to(len(self.rows)),
        }

    def _to_address(self) -> None:
        self.window.focus = self.bar
        self.bar.select_all()

    def _leave_fields(self) -> None:
        self.window.focus = None
        self.bar.set(self.address)

    # Going places.

    def visit(self, address: str) -> None:
        """Go to an address; what was ahead in the history is gone."""
        if self.at < 0 or address != self.address:
            self.history = [*self.history[: self.at + 1], address][-LONGEST_HISTORY:]
            self.at = len(self.history) - 1
        self.reload()

    def go(self) -> None:
        address = self.bar.text.strip()
        if address.startswith("/"):
            address = f"file:{address}"
        if not address.startswith("file:"):
            address = address.lower().removeprefix("https://").removeprefix("http://").removeprefix("www.").rstrip("/")
        self.visit(address or HOME)

    def turn(self, step: int) -> None:
        """Back (-1) or forward (1) in the history."""
        if 0 <= self.at + step < len(self.history):
            self.at += step
            self.reload()

    def reload(self) -> None:
        """Show the page from its top, with an empty form."""
        self.bar.set(self.address)
        self.window.focus = None
        self.first, self.picked, self.checked = 0, "", set()
        self.rows = self._laid_out()
        self.boxes = {row[1]: TextBox() for row in self.rows if row[0] == "field"}

    def _laid_out(self) -> list[Block]:
        """The page's blocks, texts broken into rows."""
        rows: list[Block] = []
        for block in page_at(self.address, self.store["pages"], self.desk.files):
            if block[0] == "text":
                text = block[1]
                rows += [("text", text[start:end].rstrip()) for start, end in wrap(text, self.window.w - 30)]
            else:
                rows.append(block)
        return rows[:MOST_ROWS]

    def scroll_to(self, first: int) -> None:
        self.first = max(0, min(first, len(self.rows) - self.visible))

    def open_path(self, path: str) -> None:
        self.visit(f"file:{path}")

    # What pages do.

    def bookmark(self) -> None:
        """Add this page to the bookmarks, or take it away."""
        marks = self.store["bookmarks"]
        if self.address in marks:
            marks.remove(self.address)
        elif len(marks) < MOST_BOOKMARKS:
            marks.append(self.address)
        else:
            self.desk.notice = "Too many bookmarks"

    def download(self, name: str, text: str) -> None:
        path = self.desk.files.free_name(join("/Downloads", name))
        self.desk.files.write(path, text)
        self.desk.notice = f"Saved {name} in Downloads"

    def _check(self, label: str) -> None:
        self.checked ^= {label}

    @property
    def complete(self) -> bool:
        """Whether the form can be sent: no empty field, and a choice made."""
        choose = any(row[0] == "radio" for row in self.rows)
        return all(box.text.strip() for box in self.boxes.values()) and (bool(self.picked) or not choose)

    def submit(self) -> None:
        """Send the form of this page, if it has one and all is filled in."""
        target = next((row[2] for row in self.rows if row[0] == "submit"), "")
        if target and self.complete:
            fields = {label: box.text.strip() for label, box in self.boxes.items()}
            sent = {"page": self.address, "fields": fields, "choice": self.picked, "checked": sorted(self.checked)}
            self.store["sent"] = [*self.store["sent"], sent][-MOST_SENT:]
            self.visit(target)
