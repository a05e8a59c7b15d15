"""Tasks of the spreadsheet: a small table in a file of the Documents folder, changed and saved.

The check reads the saved file: the cells that were asked for are right and all others are as they were.
"""

from abc import abstractmethod
from random import Random

from arpo.agent.actions import Fail
from arpo.envs.pocket.apps.formulas import COLUMNS, ROWS, Cells, cell_place, evaluate, number
from arpo.envs.pocket.apps.sheet import UNTITLED, Sheet, from_csv, to_csv
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Infeasible, Params, add_files, hide, open_perhaps, others_kept, place
from arpo.envs.pocket.screen import Control, Move, ParsedScreen
from arpo.envs.pocket.vfs import DOCUMENTS, FileProblem
from arpo.envs.pocket.words import PEOPLE, coin, drawn, noun, one_of

HEADINGS = ("Age", "Cost", "Days", "Miles", "Price", "Score")


def table_file(rng: Random) -> str:
    return f"{noun(rng)}.csv"


def new_table(rng: Random, headings: tuple[str, ...] = (), avoid: str = "") -> Cells:
    """Names and two or three columns of numbers, none twice in a column, in no order; no heading is `avoid`."""
    others = rng.sample([h for h in HEADINGS if h not in (*headings, avoid)], rng.randrange(2, 4) - len(headings))
    columns = [*headings, *others]
    rng.shuffle(columns)
    names = rng.sample(PEOPLE, rng.randrange(4, 7))
    numbers = [[str(n) for n in rng.sample(range(10, 100), len(names))] for _ in columns]
    return [["Name", *columns], *([name, *row] for name, row in zip(names, zip(*numbers, strict=True), strict=True))]


def begin(desk: Desktop, rng: Random, file: str, rows: Cells, always_open: bool = False) -> None:
    """The table in a file among others, remembered for the check; the file open or not, with any cell picked."""
    add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(file,))
    desk.files.write(f"{DOCUMENTS}/{file}", to_csv(rows))
    desk.stores["before"] = padded(rows)
    app = place(desk, rng, "Sheet") if always_open else open_perhaps(desk, rng, "Sheet")
    if isinstance(app, Sheet):
        app.open_path(f"{DOCUMENTS}/{file}")
        app.pick(rng.randrange(7), rng.randrange(len(COLUMNS)))


def start_of(desk: Desktop) -> Cells:
    """The table as it was, to be changed into what is wanted."""
    before: Cells = desk.stores["before"]
    return [list(row) for row in before]


def saved(desk: Desktop, file: str) -> Cells | None:
    """The cells in the file now; None if it is gone or no table any more, or if another file has changed."""
    path = f"{DOCUMENTS}/{file}"
    try:
        return from_csv(desk.files.read(path)) if others_kept(desk, path) else None
    except FileProblem:
        return None


def padded(rows: Cells) -> Cells:
    """Rows filled up to a whole sheet."""
    return from_csv(to_csv(rows))


def put(cells: Cells, name: str, text: str) -> Cells:
    row, column = cell_place(name)
    cells[row][column] = text
    return cells


# What the experts share.


def bar(s: ParsedScreen) -> Control | None:
    """The field above the cells, if the front window is a sheet."""
    return s.find("Cell", kind="field", window=s.front)


def cells(s: ParsedScreen) -> dict[str, str]:
    """The cells in sight and what they show."""
    return {c.label: c.value for c in s.all(kind="cell", window=s.front)}


def cell(s: ParsedScreen, name: str) -> Control | None:
    return s.find(name, kind="cell", window=s.front)


def open_sheet(s: ParsedScreen, file: str) -> Move | None:
    """The file's window to the front, by the taskbar or the Open dialog of a new sheet; no menu, row 1 in sight."""
    if s.menu_open:
        return choose(s, _entry(s, file))
    if s.is_front(file):
        return None if cell(s, "A1") else s.scroll(s.find(kind="cell", window=s.front), "up")
    if s.dialog == "Open file":
        folder = s.find("Folder", kind="dropdown")
        if folder and folder.value != "Documents":
            return s.click("Folder", kind="dropdown")
        return s.fill("Name", file) or s.click("Open", kind="button")
    if move := s.escape() or s.switch(file):
        return move
    if s.is_front(UNTITLED):
        return menu(s, "File", "Open")
    return s.switch(UNTITLED) or s.app("Sheet")


def _entry(s: ParsedScreen, file: str) -> str:
    """What to choose in a menu that the expert did not open on the sheet itself."""
    if s.is_front(file) or s.is_front(UNTITLED) or s.switch(file):
        return ""
    return "Documents" if s.dialog else "Sheet"


def menu(s: ParsedScreen, name: str, entry: str) -> Move | None:
    """Open a menu for one of its entries. It will cover cells, so that the intention is noted."""
    s.notes["menu"] = entry
    return s.click(name, kind="menu", window=s.front, thought=f"Open the {name} menu.")


def choose(s: ParsedScreen, otherwise: str) -> Move:
    """The entry that the open menu was opened for; a menu without it is closed."""
    wanted = s.notes.pop("menu", "") or otherwise
    return (s.menuitem(wanted) if wanted else None) or s.keys("esc", thought="Close this menu.")


def steady(s: ParsedScreen, *targets: str) -> Move | None:
    """Undo what somebody changed outside of the targets; at first sight, all that is not saved."""
    now = cells(s)
    if "A1" not in s.notes:
        if s.front.startswith("*"):
            return undo(s)
        s.notes.update(now)
    changed = any(s.notes.get(name, value) != value for name, value in now.items() if name not in targets)
    return undo(s) if changed else None


def begin_work(s: ParsedScreen, file: str, *targets: str) -> Move | None:
    """The file's window to the front, and nothing changed in it but the targets."""
    return open_sheet(s, file) or steady(s, *targets)


def undo(s: ParsedScreen) -> Move:
    return leave_bar(s) or s.keys("ctrl", "z", thought="Undo this change.")


def leave_bar(s: ParsedScreen) -> Move | None:
    """Leave a half-typed cell as it was."""
    editing = bar(s)
    return s.keys("esc", thought="Leave the cell.") if editing and "focused" in editing.state else None


def pick(s: ParsedScreen, name: str) -> Move | None:
    return s.select(name, kind="cell", window=s.front, thought=f"Click cell {name}.")


def write(s: ParsedScreen, name: str, text: str, shown: str = "") -> Move | None:
    """Click a cell, type over it; None once it shows what it should."""
    target, editing = cell(s, name), bar(s)
    if target is None or editing is None:
        return None
    value = editing.value if "selected" in target.state else target.value
    if value == text or (shown and target.value == shown):
        return s.keys("enter", thought="Press Enter.") if "focused" in editing.state else None
    return leave_bar(s) or pick(s, name) or s.type(f"{text}\n", thought=f"Type {text}.")


def noted(seen: dict[str, str]) -> Cells:
    """The rows down to the last with a name, as they were seen."""
    return [[seen.get(f"{letter}{r}", "") for letter in COLUMNS] for r in range(1, last_row(seen) + 1)]


def last_row(seen: dict[str, str]) -> int:
    """The number of the last row with a name."""
    return max((r for r in range(1, ROWS + 1) if seen.get(f"A{r}")), default=1)


class SheetFamily(Family):
    """A table in a file of the Documents folder, to be changed and saved."""

    judges = ("files",)

    def table(self, p: Params, rng: Random) -> Cells:
        return new_table(rng)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng, p["file"], self.table(p, rng))

    @abstractmethod
    def goal(self, cells: Cells, p: Params) -> Cells:
        """Change the cells into what the instruction asks for."""

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["file"]) == self.goal(start_of(desk), p)


class SetCell(SheetFamily):
    """Put a value into a cell."""

    name = "sheet-set"
    asks = "Put {value} into cell {cell} of {file} and save it."

    def random_params(self, rng: Random) -> Params:
        cell = f"{rng.choice('BCDE')}{rng.randrange(2, 8)}"
        return {"file": table_file(rng), "cell": cell, "value": str(rng.randrange(100, 1000))}

    def goal(self, cells: Cells, p: Params) -> Cells:
        return put(cells, p["cell"], p["value"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return (
            begin_work(s, p["file"], p["cell"])
            or write(s, p["cell"], p["value"])
            or s.keys("ctrl", "s", thought="Save the file.")
        )


class Formula(SheetFamily):
    """A formula over a column."""

    name = "sheet-formula"
    asks = "Put a formula with the {function} of the numbers in column {column} into cell {cell} of {file} and save it."

    def random_params(self, rng: Random) -> Params:
        function, column = rng.choice(["SUM", "AVG", "MIN", "MAX"]), rng.choice("BC")
        file, cell = table_file(rng), f"E{rng.randrange(1, 8)}"
        return {"file": file, "function": function, "column": column, "cell": cell}

    def goal(self, cells: Cells, p: Params) -> Cells:
        return put(cells, p["cell"], f"={p['function']}({p['column']}2:{p['column']}12)")

    def check(self, desk: Desktop, p: Params) -> bool:
        table = saved(desk, p["file"])
        if table is None:
            return False
        row, column = cell_place(p["cell"])
        text = table[row][column]
        if not text.startswith("=") or table != put(start_of(desk), p["cell"], text):
            return False
        # A formula, not a number in disguise: it must hold for other numbers in the column, too, with the largest of
        # them now at the end and now at the beginning.
        return all(self._right(start_of(desk), p, text, change) for change in (0, 100, -100))

    def _right(self, table: Cells, p: Params, formula: str, change: int) -> bool:
        """Whether a formula gives the right value when the column's numbers are changed by so much times their row."""
        column = COLUMNS.index(p["column"])
        for r, row in enumerate(table[1:]):
            if row[column]:
                row[column] = str(int(row[column]) + change * r)
        values = evaluate(put([list(row) for row in table], p["cell"], formula))
        at, letter = cell_place(p["cell"])
        return values[at][letter] == evaluate(self.goal(table, p))[at][letter]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := begin_work(s, p["file"], p["cell"]):
            return move
        formula = f"={p['function']}({p['column']}2:{p['column']}{last_row(s.notes)})"
        row, column = cell_place(p["cell"])
        shown = evaluate(put(padded(noted(s.notes)), p["cell"], formula))[row][column]
        return write(s, p["cell"], formula, shown) or menu(s, "File", "Save")


class Sort(SheetFamily):
    """Sort by a column."""

    name = "sheet-sort"
    asks = "Sort {file} by column {column}, {down:down|up}, and save it."
    random_params = drawn(file=table_file, column=one_of("ABC"), down=coin)

    def table(self, p: Params, rng: Random) -> Cells:
        rows = new_table(rng)
        while _sorted(rows, p) == rows:
            rows = new_table(rng)
        return rows

    def goal(self, cells: Cells, p: Params) -> Cells:
        return padded(_sorted([row for row in cells if any(row)], p))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := open_sheet(s, p["file"]):
            return move
        if "A1" not in s.notes and (move := steady(s)):
            return move
        before, shown = noted(s.notes), noted(cells(s))
        if shown == _sorted(before, p):
            return leave_bar(s) or menu(s, "File", "Save")
        if shown != before:
            return undo(s)
        column = p["column"]
        picked = next((c.label for c in s.all(kind="cell", window=s.front) if "selected" in c.state), "")
        if not picked.startswith(column):
            return leave_bar(s) or pick(s, f"{column}2")
        return leave_bar(s) or menu(s, "Data", f"Sort {column} {'down' if p['down'] else 'up'}")


def _sorted(rows: Cells, p: Params) -> Cells:
    column = COLUMNS.index(p["column"])

    def key(row: list[str]) -> tuple[object, str]:
        return number(row[column]) or 0, row[column].lower()

    return [rows[0], *sorted(rows[1:], key=key, reverse=p["down"])]


class LargestInColumn(SheetFamily):
    """Read a column, find the largest or smallest number, write down whose it is."""

    name = "sheet-largest"
    asks = "Write the name with the {largest:largest|smallest} {heading} into cell E1 of {file} and save it."
    random_params = drawn(file=table_file, heading=one_of(HEADINGS), largest=coin)

    def table(self, p: Params, rng: Random) -> Cells:
        return new_table(rng, (p["heading"],))

    def goal(self, cells: Cells, p: Params) -> Cells:
        return put(cells, "E1", self._name(cells, p))

    def _name(self, cells: Cells, p: Params) -> str:
        column = cells[0].index(p["heading"])
        extreme = max if p["largest"] else min
        return extreme((row for row in cells[1:] if row[0]), key=lambda row: int(row[column]))[0]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return (
            begin_work(s, p["file"], "E1")
            or write(s, "E1", self._name(noted(s.notes), p))
            or s.keys("ctrl", "s", thought="Save the file.")
        )


class CopyCell(SheetFamily):
    """Copy one cell to another with the keyboard."""

    name = "sheet-copy"
    asks = "Copy cell {from} to cell {to} in {file} and save it."

    def random_params(self, rng: Random) -> Params:
        file, source = table_file(rng), f"{rng.choice('BC')}{rng.randrange(2, 6)}"
        return {"file": file, "from": source, "to": f"E{rng.randrange(1, 8)}"}

    def goal(self, cells: Cells, p: Params) -> Cells:
        row, column = cell_place(p["from"])
        return put(cells, p["to"], cells[row][column])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := begin_work(s, p["file"], p["to"]) or leave_bar(s):
            return move
        source, target = cell(s, p["from"]), cell(s, p["to"])
        if not source or not target:
            return s.escape()
        if target.value == source.value:
            return s.keys("ctrl", "s", thought="Save the file.")
        if s.notes.get("copied") == "yes":
            if move := pick(s, p["to"]):
                return move
            s.notes["copied"] = ""  # should the paste bring something else, copy again
            return s.keys("ctrl", "v", thought="Paste it.")
        if move := pick(s, p["from"]):
            return move
        s.notes["copied"] = "yes"
        return s.keys("ctrl", "c", thought="Copy it.")


class MissingColumn(Infeasible):
    """Look for the largest number of a column that the table does not have."""

    name = "sheet-missing"
    random_params = LargestInColumn.random_params
    asks = LargestInColumn.asks

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng, p["file"], new_table(rng, avoid=p["heading"]))
        hide(desk, "Sheet")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return open_sheet(s, p["file"]) or (f"The table has no {p['heading']}.", Fail())
