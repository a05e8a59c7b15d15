"""Tasks of the spreadsheet: a small table in a file of the Documents folder, changed and saved.

The check reads the saved file: the cells that were asked for are right and all others are as they were.
"""

from __future__ import annotations

import random

from arpo.agent.actions import Click, Fail
from arpo.envs.pocket.apps.formulas import COLUMNS, Grid, cell_place, evaluate, number
from arpo.envs.pocket.apps.sheet import UNTITLED, Sheet
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import DOCUMENTS, Family, Infeasible, Params, add_files, hide, open_perhaps
from arpo.envs.pocket.families.tables import (
    HEADINGS,
    bar,
    begin,
    cell,
    cells,
    choose,
    file_name,
    last_row,
    leave_bar,
    letter_of,
    menu,
    noted,
    open_sheet,
    padded,
    pick,
    put,
    row_of,
    save_by_key,
    save_by_menu,
    saved,
    start_of,
    steady,
    table,
    to_documents,
    undo,
    write,
)
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.words import PEOPLE, nouns


class SetCell(Family):
    """Put a value into a cell."""

    name = "sheet-set"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        cell = f"{rng.choice('BCDE')}{rng.randrange(2, 8)}"
        return {"file": file_name(rng), "cell": cell, "value": str(rng.randrange(100, 1000))}

    def instruction(self, p: Params) -> str:
        return f"Put {p['value']} into cell {p['cell']} of {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, p["file"], table(rng))

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["file"]) == put(start_of(desk), p["cell"], p["value"])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return (
            open_sheet(s, notes, p["file"])
            or steady(s, notes, p["cell"])
            or write(s, p["cell"], p["value"])
            or save_by_key(s)
        )


class Formula(Family):
    """A formula over a column."""

    name = "sheet-formula"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        function, column = rng.choice(["SUM", "AVG", "MIN", "MAX"]), rng.choice("BC")
        return {"file": file_name(rng), "function": function, "column": column, "cell": f"E{rng.randrange(1, 8)}"}

    def instruction(self, p: Params) -> str:
        what = f"formula with the {p['function']} of the numbers in column {p['column']}"
        return f"Put a {what} into cell {p['cell']} of {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, p["file"], table(rng))

    def check(self, desk: Desktop, p: Params) -> bool:
        found = saved(desk, p["file"])
        if found is None:
            return False
        row, column = cell_place(p["cell"])
        text = found[row][column]
        if not text.startswith("=") or found != put(start_of(desk), p["cell"], text):
            return False
        # A formula, not a number in disguise: it must hold for other numbers in the column, too, with the largest of
        # them now at the end and now at the beginning.
        return all(_right(start_of(desk), p, text, change) for change in (0, 100, -100))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := open_sheet(s, notes, p["file"]) or steady(s, notes, p["cell"]):
            return move
        formula = f"={p['function']}({p['column']}2:{p['column']}{last_row(notes)})"
        row, column = cell_place(p["cell"])
        shown = evaluate(put(padded(noted(notes)), p["cell"], formula))[row][column]
        return write(s, p["cell"], formula, shown) or save_by_menu(s, notes)


def _right(table: Grid, p: Params, formula: str, change: int) -> bool:
    """Whether a formula gives the right value when the column's numbers are changed by so much times their row."""
    column = COLUMNS.index(p["column"])
    for r, row in enumerate(table[1:]):
        if row[column]:
            row[column] = str(int(row[column]) + change * r)
    first = put([list(row) for row in table], p["cell"], formula)
    reference = put([list(row) for row in table], p["cell"], f"={p['function']}({p['column']}2:{p['column']}12)")
    at, letter = cell_place(p["cell"])
    return evaluate(first)[at][letter] == evaluate(reference)[at][letter]


class Sort(Family):
    """Sort by a column."""

    name = "sheet-sort"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        return {"file": file_name(rng), "column": rng.choice("ABC"), "down": rng.random() < 0.5}

    def instruction(self, p: Params) -> str:
        return f"Sort {p['file']} by column {p['column']}, {'down' if p['down'] else 'up'}, and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        rows = table(rng)
        while _sorted(rows, p) == rows:
            rows = table(rng)
        begin(desk, rng, p["file"], rows)

    def check(self, desk: Desktop, p: Params) -> bool:
        used = [row for row in start_of(desk) if any(row)]
        return saved(desk, p["file"]) == padded(_sorted(used, p))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := open_sheet(s, notes, p["file"]):
            return move
        if "A1" not in notes and (move := steady(s, notes)):
            return move
        before, shown = noted(notes), noted(cells(s))
        if shown == _sorted(before, p):
            return leave_bar(s) or save_by_menu(s, notes)
        if shown != before:
            return undo(s)
        column = p["column"]
        picked = next((c.label for c in s.all(kind="cell", window=s.front) if "selected" in c.state), "")
        if not picked.startswith(column):
            return leave_bar(s) or pick(s, f"{column}2")
        return leave_bar(s) or menu(s, notes, "Data", f"Sort {column} {'down' if p['down'] else 'up'}")


def _sorted(rows: Grid, p: Params) -> Grid:
    column = COLUMNS.index(p["column"])

    def key(row: list[str]) -> tuple[object, str]:
        return number(row[column]) or 0, row[column].lower()

    return [rows[0], *sorted(rows[1:], key=key, reverse=p["down"])]


class Fix(Family):
    """Change a value that is found by a name and a heading."""

    name = "sheet-fix"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        heading, person = rng.choice(HEADINGS), rng.choice(PEOPLE)
        return {"file": file_name(rng), "name": person, "heading": heading, "value": str(rng.randrange(100, 1000))}

    def instruction(self, p: Params) -> str:
        return f"Change the {p['heading']} of {p['name']} to {p['value']} in {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, p["file"], table(rng, (p["heading"],), (p["name"],)))

    def check(self, desk: Desktop, p: Params) -> bool:
        before = start_of(desk)
        row = next(r for r in before if r[0] == p["name"])
        row[before[0].index(p["heading"])] = p["value"]
        return saved(desk, p["file"]) == before

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := open_sheet(s, notes, p["file"]):
            return move
        row, letter = row_of(s, p["name"]), letter_of(s, p["heading"])
        if row is None or letter is None:
            return undo(s)
        name = f"{letter}{row}"
        if move := steady(s, notes, name):
            return move
        target, editing = cell(s, name), bar(s)
        if not target or not editing:
            return s.escape()
        if target.value == p["value"]:
            return leave_bar(s) or save_by_menu(s, notes)
        if "selected" not in target.state or "focused" not in editing.state:
            return f"Edit cell {name}.", Click(*target.centre, count=2)
        return s.fill("Cell", p["value"], window=s.front) or s.keys("enter", thought="Press Enter.")


class Largest(Family):
    """Read a column, find the largest or smallest number, write down whose it is."""

    name = "sheet-largest"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        return {"file": file_name(rng), "heading": rng.choice(HEADINGS), "largest": rng.random() < 0.5}

    def instruction(self, p: Params) -> str:
        which = "largest" if p["largest"] else "smallest"
        return f"Write the name with the {which} {p['heading']} into cell E1 of {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        rows = table(rng, (p["heading"],))
        begin(desk, rng, p["file"], rows)

    def check(self, desk: Desktop, p: Params) -> bool:
        before = start_of(desk)
        column = before[0].index(p["heading"])
        pick = max if p["largest"] else min
        row = pick((row for row in before[1:] if row[0]), key=lambda row: int(row[column]))
        return saved(desk, p["file"]) == put(before, "E1", row[0])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := open_sheet(s, notes, p["file"]) or steady(s, notes, "E1"):
            return move
        letter = letter_of(s, p["heading"])
        numbers = {row: int(notes[f"{letter}{row}"]) for row in range(2, last_row(notes) + 1)}
        pick = max if p["largest"] else min
        return write(s, "E1", notes[f"A{pick(numbers, key=numbers.__getitem__)}"]) or save_by_key(s)


class DeleteRow(Family):
    """Delete the row of a name."""

    name = "sheet-delete"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        return {"file": file_name(rng), "name": rng.choice(PEOPLE)}

    def instruction(self, p: Params) -> str:
        return f"Delete the row of {p['name']} in {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, p["file"], table(rng, people=(p["name"],)))

    def check(self, desk: Desktop, p: Params) -> bool:
        rows = [row for row in start_of(desk) if row[0] not in ("", p["name"])]
        return saved(desk, p["file"]) == padded(rows)

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := open_sheet(s, notes, p["file"]):
            return move
        if "A1" not in notes and (move := steady(s, notes)):
            return move
        before, shown = noted(notes), noted(cells(s))
        after = [row for row in before if row[0] != p["name"]]
        if shown == after:
            return leave_bar(s) or save_by_key(s)
        row = row_of(s, p["name"])
        if shown != before or row is None:
            return undo(s)
        picked = next((c.label for c in s.all(kind="cell", window=s.front) if "selected" in c.state), "")
        if picked[1:] != str(row):
            return leave_bar(s) or pick(s, f"A{row}")
        return menu(s, notes, "Edit", "Delete row")


class CopyCell(Family):
    """Copy one cell to another with the keyboard."""

    name = "sheet-copy"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        return {
            "file": file_name(rng),
            "from": f"{rng.choice('BC')}{rng.randrange(2, 6)}",
            "to": f"E{rng.randrange(1, 8)}",
        }

    def instruction(self, p: Params) -> str:
        return f"Copy cell {p['from']} to cell {p['to']} in {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, p["file"], table(rng))

    def check(self, desk: Desktop, p: Params) -> bool:
        before = start_of(desk)
        row, column = cell_place(p["from"])
        return saved(desk, p["file"]) == put(before, p["to"], before[row][column])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := open_sheet(s, notes, p["file"]) or steady(s, notes, p["to"]) or leave_bar(s):
            return move
        source, target = cell(s, p["from"]), cell(s, p["to"])
        if not source or not target:
            return s.escape()
        if target.value == source.value:
            return save_by_key(s)
        if notes.get("copied") == "yes":
            if move := pick(s, p["to"]):
                return move
            notes["copied"] = ""  # should the paste bring something else, copy again
            return s.keys("ctrl", "v", thought="Paste it.")
        if move := pick(s, p["from"]):
            return move
        notes["copied"] = "yes"
        return s.keys("ctrl", "c", thought="Copy it.")


class NewTable(Family):
    """A new table of two cells, saved under a name."""

    name = "sheet-new"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        return {"file": file_name(rng), "first": nouns(rng, 1)[0], "second": str(rng.randrange(10, 100))}

    def instruction(self, p: Params) -> str:
        cells = f"put {p['first']} into A1 and {p['second']} into B1"
        return f"In a new Sheet, {cells}. Save it as {p['file']} in Documents."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(p["file"],))
        app = open_perhaps(desk, rng, "Sheet")
        if isinstance(app, Sheet):
            app.pick(rng.randrange(7), rng.randrange(len(COLUMNS)))

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["file"]) == padded([[p["first"], p["second"]]])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        title = p["file"] if s.is_front(p["file"]) else UNTITLED
        if s.menu_open:
            return choose(s, notes, "Documents" if s.dialog else "" if s.is_front(title) else "Sheet")
        if s.dialog == "Save as":
            return to_documents(s) or s.fill("Name", p["file"]) or s.click("Save", kind="button")
        if s.dialog == "Replace file":
            return s.click("Replace", kind="button")
        if not s.is_front(title):
            return s.escape() or s.switch(UNTITLED) or s.app("Sheet")
        if not cell(s, "A1"):
            return s.scroll(s.find(kind="cell", window=s.front), "up")
        wanted = {"A1": p["first"], "B1": p["second"]}
        wrong = [name for name, value in cells(s).items() if value != wanted.get(name, "")]
        extra = next((name for name in wrong if name not in wanted), "")
        if extra:
            return leave_bar(s) or pick(s, extra) or s.keys("delete", thought="Clear it.")
        if wrong:
            text = f"{p['first']}\t{p['second']}\n"
            return leave_bar(s) or pick(s, "A1") or s.type(text, f"Type {p['first']} and {p['second']}.")
        return leave_bar(s) or menu(s, notes, "File", "Save as")


class MissingName(Infeasible):
    """Change a value of somebody who is not in the table."""

    name = "sheet-missing"
    domain = "sheet"

    def draw(self, rng: random.Random) -> Params:
        heading, person = rng.choice(HEADINGS), rng.choice(PEOPLE)
        return {"file": file_name(rng), "name": person, "heading": heading, "value": str(rng.randrange(100, 1000))}

    def instruction(self, p: Params) -> str:
        return f"Change the {p['heading']} of {p['name']} to {p['value']} in {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, p["file"], table(rng, (p["heading"],), avoid=p["name"]))
        hide(desk, "Sheet")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return open_sheet(s, notes, p["file"]) or (f"{p['name']} is not in the table.", Fail())


FAMILIES = (
    SetCell(),
    Formula(),
    Sort(),
    Fix(),
    Largest(),
    DeleteRow(),
    CopyCell(),
    NewTable(),
    MissingName(),
)
