"""Tables for the tasks of the spreadsheet: how one begins, how a check reads it, how an expert moves in it."""

from __future__ import annotations

import random

from arpo.agent.actions import Click
from arpo.envs.pocket.apps.formulas import COLUMNS, ROWS, Grid, cell_place
from arpo.envs.pocket.apps.sheet import UNTITLED, Sheet, from_csv, to_csv
from arpo.envs.pocket.controls import Control
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import DOCUMENTS, add_files, open_perhaps, others_kept, place
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.vfs import FileProblem
from arpo.envs.pocket.words import PEOPLE, nouns

HEADINGS = ("Age", "Cost", "Days", "Miles", "Price", "Score")


def file_name(rng: random.Random) -> str:
    return f"{nouns(rng, 1)[0]}.csv"


def table(rng: random.Random, headings: tuple[str, ...] = (), avoid: str = "") -> Grid:
    """Names and two or three columns of numbers, none twice in a column, in no order; no heading is `avoid`."""
    others = rng.sample([h for h in HEADINGS if h not in (*headings, avoid)], rng.randrange(2, 4) - len(headings))
    columns = [*headings, *others]
    rng.shuffle(columns)
    names = rng.sample(PEOPLE, rng.randrange(4, 7))
    numbers = [[str(n) for n in rng.sample(range(10, 100), len(names))] for _ in columns]
    return [["Name", *columns], *([name, *row] for name, row in zip(names, zip(*numbers, strict=True), strict=True))]


def begin(desk: Desktop, rng: random.Random, file: str, rows: Grid, always_open: bool = False) -> None:
    """The table in a file among others, remembered for the check; the file open or not, with any cell picked."""
    add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(file,))
    desk.files.write(f"{DOCUMENTS}/{file}", to_csv(rows))
    desk.stores["before"] = padded(rows)
    app = place(desk, rng, "Sheet") if always_open else open_perhaps(desk, rng, "Sheet")
    if isinstance(app, Sheet):
        app.open_path(f"{DOCUMENTS}/{file}")
        app.pick(rng.randrange(7), rng.randrange(len(COLUMNS)))


def start_of(desk: Desktop) -> Grid:
    """The table as it was, to be changed into what is wanted."""
    before: Grid = desk.stores["before"]
    return [list(row) for row in before]


def saved(desk: Desktop, file: str) -> Grid | None:
    """The cells in the file now; None if it is gone or no table any more, or if another file has changed."""
    path = f"{DOCUMENTS}/{file}"
    try:
        return from_csv(desk.files.read(path)) if others_kept(desk, path) else None
    except FileProblem:
        return None


def padded(rows: Grid) -> Grid:
    """Rows filled up to a whole sheet."""
    return from_csv(to_csv(rows))


def put(cells: Grid, name: str, text: str) -> Grid:
    row, column = cell_place(name)
    cells[row][column] = text
    return cells


# What the experts share.


def bar(s: Screen) -> Control | None:
    """The field above the cells, if the front window is a sheet."""
    return s.find("Cell", kind="field", window=s.front)


def cells(s: Screen) -> dict[str, str]:
    """The cells in sight and what they show."""
    return {c.label: c.value for c in s.all(kind="cell", window=s.front)}


def cell(s: Screen, name: str) -> Control | None:
    return s.find(name, kind="cell", window=s.front)


def open_sheet(s: Screen, notes: dict[str, str], file: str) -> Move | None:
    """The file's window to the front, by the taskbar or the Open dialog of a new sheet; no menu, row 1 in sight."""
    if s.menu_open:
        return choose(s, notes, _entry(s, file))
    if s.is_front(file):
        return None if cell(s, "A1") else s.scroll(s.find(kind="cell", window=s.front), "up")
    if s.dialog == "Open file":
        return to_documents(s) or s.fill("Name", file) or s.click("Open", kind="button")
    if move := s.escape() or s.switch(file):
        return move
    if s.is_front(UNTITLED):
        return menu(s, notes, "File", "Open")
    return s.switch(UNTITLED) or s.app("Sheet")


def _entry(s: Screen, file: str) -> str:
    """What to choose in a menu that the expert did not open on the sheet itself."""
    if s.is_front(file) or s.is_front(UNTITLED) or s.switch(file):
        return ""
    return "Documents" if s.dialog else "Sheet"


def menu(s: Screen, notes: dict[str, str], name: str, entry: str) -> Move | None:
    """Open a menu for one of its entries. It will cover cells, so that the intention is noted."""
    notes["menu"] = entry
    return s.click(name, kind="menu", window=s.front, thought=f"Open the {name} menu.")


def choose(s: Screen, notes: dict[str, str], otherwise: str) -> Move:
    """The entry that the open menu was opened for; a menu without it is closed."""
    wanted = notes.pop("menu", "") or otherwise
    return (s.menuitem(wanted) if wanted else None) or s.keys("esc", thought="Close this menu.")


def to_documents(s: Screen) -> Move | None:
    """A file dialog's folder."""
    folder = s.find("Folder", kind="dropdown")
    return s.click("Folder", kind="dropdown") if folder and folder.value != "Documents" else None


def steady(s: Screen, notes: dict[str, str], *targets: str) -> Move | None:
    """Undo what somebody changed outside of the targets; at first sight, all that is not saved."""
    now = cells(s)
    if "A1" not in notes:
        if s.front.startswith("*"):
            return undo(s)
        notes.update(now)
    changed = any(notes.get(name, value) != value for name, value in now.items() if name not in targets)
    return undo(s) if changed else None


def undo(s: Screen) -> Move:
    return leave_bar(s) or s.keys("ctrl", "z", thought="Undo this change.")


def leave_bar(s: Screen) -> Move | None:
    """Leave a half-typed cell as it was."""
    editing = bar(s)
    return s.keys("esc", thought="Leave the cell.") if editing and "focused" in editing.state else None


def pick(s: Screen, name: str) -> Move | None:
    found = cell(s, name)
    if found is None or "selected" in found.state:
        return None
    return f"Click cell {name}.", Click(*found.centre)


def write(s: Screen, name: str, text: str, shown: str = "") -> Move | None:
    """Click a cell, type over it; None once it shows what it should."""
    found, editing = cell(s, name), bar(s)
    if found is None or editing is None:
        return None
    value = editing.value if "selected" in found.state else found.value
    if value == text or (shown and found.value == shown):
        return s.keys("enter", thought="Press Enter.") if "focused" in editing.state else None
    return leave_bar(s) or pick(s, name) or s.type(f"{text}\n", thought=f"Type {text}.")


def save_by_key(s: Screen) -> Move:
    return s.keys("ctrl", "s", thought="Save the file.")


def save_by_menu(s: Screen, notes: dict[str, str]) -> Move | None:
    return menu(s, notes, "File", "Save")


def letter_of(s: Screen, heading: str) -> str | None:
    return next((letter for letter in COLUMNS if cells(s).get(f"{letter}1") == heading), None)


def noted(seen: dict[str, str]) -> Grid:
    """The rows down to the last with a name, as they were seen."""
    return [[seen.get(f"{letter}{r}", "") for letter in COLUMNS] for r in range(1, last_row(seen) + 1)]


def last_row(seen: dict[str, str]) -> int:
    """The number of the last row with a name."""
    return max((r for r in range(1, ROWS + 1) if seen.get(f"A{r}")), default=1)
