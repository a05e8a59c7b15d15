"""The spreadsheet: five columns and twelve rows of text, numbers and formulas, kept as .csv files.

A click picks a cell; what is typed then replaces it. The bar at the top shows and edits the cell's own text, while
the cell shows its value. Values are worked out once an edit, so that drawing only looks them up.
"""

import csv
import io
from functools import partial

from arpo.envs.pocket.apps.document import Document
from arpo.envs.pocket.apps.formulas import COLUMNS, ROWS, Cells, cell_name, evaluate, number
from arpo.envs.pocket.desktop import MENUBAR, TITLE, Desktop, Keys, Menus, Window
from arpo.envs.pocket.text_layout import LINE, fit
from arpo.envs.pocket.textbox import FIELD_LIMIT, UNDO_LIMIT, TextBox
from arpo.envs.pocket.ui import MenuItem, On, Ui
from arpo.envs.pocket.vfs import FileProblem

UNTITLED = "New sheet"
TOP = 20  # the height of the bar
HEAD = 20  # the width of the row numbers


def empty() -> Cells:
    return [[""] * len(COLUMNS) for _ in range(ROWS)]


def from_csv(text: str) -> Cells:
    """The cells of a file; a FileProblem where it has more than a sheet can hold."""
    cells = empty()
    try:
        table = [row for row in csv.reader(io.StringIO(text)) if row]
    except csv.Error:
        raise FileProblem("This is not a table.") from None
    for r, row in enumerate(table):
        if r >= ROWS or len(row) > len(COLUMNS) or any(len(cell) > FIELD_LIMIT for cell in row):
            raise FileProblem("This table is too large.")
        cells[r][: len(row)] = [cell.replace("\n", " ") for cell in row]
    return cells


def to_csv(cells: Cells) -> str:
    """The used part of the cells, a line a row."""
    last_row = max((r for r, row in enumerate(cells) if any(row)), default=-1)
    last_column = max((c for row in cells for c, cell in enumerate(row) if cell), default=-1)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(row[: last_column + 1] for row in cells[: last_row + 1])
    return out.getvalue()


class Sheet(Document):
    """Cells, the picked one, and the text that the bar holds for it. Rows of `cells` are replaced, never changed."""

    name = "Sheet"
    size = (316, 196)
    untitled = UNTITLED

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        self.saved = self.cells = empty()
        self.shown: list[list[tuple[str, bool]]] = []  # each cell's value, and whether it is a number
        self.row = self.column = 0
        self.first = 0  # the topmost visible row
        self.box = TextBox()
        self.undo_stack: list[Cells] = []
        self._show(self.cells)

    def content(self) -> Cells:
        return self.cells

    def to_text(self) -> str:
        return to_csv(self.cells)

    def show_text(self, text: str) -> None:
        cells = from_csv(text)
        self.undo_stack = []
        self.row = self.column = self.first = 0
        self._show(cells)

    def view(self, ui: Ui) -> None:
        ui.text(4, 2, cell_name(self.row, self.column), 24)
        ui.field(28, 1, ui.w - 31, "Cell", self.box, enter=partial(self.step, 1, 0))
        visible = self.visible_rows(ui.h)
        first = max(0, min(self.first, ROWS - visible))
        scroll = On(scroll=lambda dx, dy: self.scroll_to(first + dy, visible))
        ui.panel(2, TOP, ui.w - 4, ui.h - TOP - 2, on=scroll)
        w = (ui.w - HEAD - 13) // len(COLUMNS)
        for c, letter in enumerate(COLUMNS):
            state = ("selected",) if c == self.column else ()
            ui.add("head", 2 + HEAD + c * w, TOP, w, LINE, letter, state, on=On(partial(self.pick, 0, c)))
        y = TOP + LINE
        for r in range(first, first + visible):
            state = ("selected",) if r == self.row else ()
            ui.add("head", 2, y, HEAD, LINE, str(r + 1), state)
            for c, (value, right) in enumerate(self.shown[r]):
                on = On(partial(self.pick, r, c), self.edit, menu=partial(self._cell_menu, r, c))
                state = ("selected",) if r == self.row and c == self.column else ()
                label = f"{COLUMNS[c]}{r + 1}"
                ui.add("cell", 2 + HEAD + c * w, y, w, LINE, label, state, right, value, on, fit(value, w - 5))
            y += LINE
        if visible < ROWS:
            bar = ui.h - TOP - 4
            ui.scrollbar(ui.w - 11, TOP + 1, bar, first, visible, ROWS, lambda to: self.scroll_to(to, visible))

    @staticmethod
    def visible_rows(height: int) -> int:
        """How many rows fit under the bar and the letters."""
        return min(ROWS, (height - TOP - LINE - 3) // LINE)

    def scroll_to(self, first: int, visible: int) -> None:
        self.first = max(0, min(first, ROWS - visible))

    # Menus and keys.

    def menus(self) -> Menus:
        return {"File": self.file_menu, "Edit": self._edit_menu, "Data": self._data_menu}

    def _edit_menu(self) -> list[MenuItem]:
        self.commit()
        undo = MenuItem("Undo", self.undo if self.undo_stack else None, shortcut="Ctrl+Z")
        return [undo, *self._clipboard_items()]

    def _clipboard_items(self) -> list[MenuItem]:
        filled = bool(self.cells[self.row][self.column])
        return [
            MenuItem("Cut", self.cut if filled else None, shortcut="Ctrl+X"),
            MenuItem("Copy", self.copy if filled else None, shortcut="Ctrl+C"),
            MenuItem("Paste", self.paste if self.desk.clipboard else None, shortcut="Ctrl+V"),
            MenuItem("Clear", self.clear if filled else None, shortcut="Del"),
        ]

    def _data_menu(self) -> list[MenuItem]:
        self.commit()
        letter = COLUMNS[self.column]
        some = any(self.cells[1])
        return [
            MenuItem(f"Sort {letter} up", self.sort if some else None, (False,)),
            MenuItem(f"Sort {letter} down", self.sort if some else None, (True,)),
        ]

    def _cell_menu(self, row: int, column: int) -> list[MenuItem]:
        self.pick(row, column)
        return self._clipboard_items()

    def shortcuts(self) -> Keys:
        return {
            **super().shortcuts(),
            "ctrl+z": self.undo,
            "ctrl+x": self.cut,
            "ctrl+c": self.copy,
            "ctrl+v": self.paste,
            "esc": self._escape,
            "enter": partial(self.step, 1, 0),
            "tab": partial(self.step, 0, 1),
            "up": partial(self.step, -1, 0),
            "down": partial(self.step, 1, 0),
            "left": partial(self.step, 0, -1),
            "right": partial(self.step, 0, 1),
            "f2": self.edit,
            "delete": self.clear,
            "backspace": self.clear,
        }

    def typed(self, text: str) -> None:
        self.box.set("")
        self.box.insert(text)
        self.window.focus = self.box

    # Moving and editing.

    def pick(self, row: int, column: int) -> None:
        """Go to a cell and bring it in sight; what was being typed into another is kept."""
        self.commit()
        self.row, self.column = max(0, min(row, ROWS - 1)), max(0, min(column, len(COLUMNS) - 1))
        self.box.set(self.cells[self.row][self.column])
        visible = self.visible_rows(self.window.h - TITLE - MENUBAR)
        self.first = max(self.row - visible + 1, min(self.first, self.row))

    def step(self, down: int, right: int) -> None:
        self.pick(self.row + down, self.column + right)

    def edit(self) -> None:
        self.window.focus = self.box

    def commit(self) -> None:
        """Take over what the bar holds."""
        self.window.focus = None
        if self.box.text != self.cells[self.row][self.column]:
            self.put(self.box.text)

    def _escape(self) -> None:
        self.window.focus = None
        self.box.set(self.cells[self.row][self.column])

    def put(self, text: str) -> None:
        """Give the picked cell a new text."""
        row = list(self.cells[self.row])
        row[self.column] = text
        self._change([*self.cells[: self.row], row, *self.cells[self.row + 1 :]])

    def clear(self) -> None:
        if self.cells[self.row][self.column]:
            self.put("")

    def copy(self) -> None:
        if text := self.cells[self.row][self.column]:
            self.desk.clipboard = text

    def cut(self) -> None:
        self.copy()
        self.clear()

    def paste(self) -> None:
        if self.desk.clipboard:
            self.put(self.desk.clipboard.replace("\n", " ")[:FIELD_LIMIT])

    def sort(self, down: bool) -> None:
        """Order the rows under the first by the picked column: numbers, then words; empty cells stay last."""
        filled = [r for r in range(1, ROWS) if self.shown[r][self.column][0]]
        rest = [r for r in range(1, ROWS) if r not in filled]
        filled.sort(key=self._sort_key, reverse=down)
        self._change([self.cells[r] for r in (0, *filled, *rest)])

    def _sort_key(self, row: int) -> tuple[bool, object]:
        value, right = self.shown[row][self.column]
        is_number = number(value) if right else None
        return (True, value.lower()) if is_number is None else (False, is_number)

    def undo(self) -> None:
        if self.undo_stack:
            self._show(self.undo_stack.pop())

    def _change(self, cells: Cells) -> None:
        if cells != self.cells:
            self.undo_stack.append(self.cells)
            del self.undo_stack[:-UNDO_LIMIT]
            self._show(cells)

    def _show(self, cells: Cells) -> None:
        """Make these the cells and work their values out."""
        self.cells = cells
        values = evaluate(cells)
        self.shown = [
            [(v, text[:1] == "=" or number(v) is not None) for text, v in zip(*rows, strict=True)]
            for rows in zip(cells, values, strict=True)
        ]
        self.box.set(cells[self.row][self.column])
