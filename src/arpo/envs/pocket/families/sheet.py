"""Tasks of the spreadsheet: a small table in a file of the Documents folder, changed and saved.

The check reads the saved file: the cells that were asked for are right and all others are as they were.
"""

from __future__ import annotations

import random

from arpo.agent.actions import Fail
from arpo.envs.pocket.apps.formulas import COLUMNS, Grid, cell_place, evaluate, number
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families import tables
from arpo.envs.pocket.families.base import Family, Infeasible, Params, hide
from arpo.envs.pocket.screen import Move, Screen


class SetCell(Family):
    """Put a value into a cell."""

    name = "sheet-set"
    asks = "Put {value} into cell {cell} of {file} and save it."

    def draw(self, rng: random.Random) -> Params:
        cell = f"{rng.choice('BCDE')}{rng.randrange(2, 8)}"
        return {"file": tables.file_name(rng), "cell": cell, "value": str(rng.randrange(100, 1000))}

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        tables.begin(desk, rng, p["file"], tables.table(rng))

    def check(self, desk: Desktop, p: Params) -> bool:
        return tables.saved(desk, p["file"]) == tables.put(tables.start_of(desk), p["cell"], p["value"])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return (
            tables.open_sheet(s, notes, p["file"])
            or tables.steady(s, notes, p["cell"])
            or tables.write(s, p["cell"], p["value"])
            or tables.save_by_key(s)
        )


class Formula(Family):
    """A formula over a column."""

    name = "sheet-formula"
    asks = "Put a formula with the {function} of the numbers in column {column} into cell {cell} of {file} and save it."

    def draw(self, rng: random.Random) -> Params:
        function, column = rng.choice(["SUM", "AVG", "MIN", "MAX"]), rng.choice("BC")
        file, cell = tables.file_name(rng), f"E{rng.randrange(1, 8)}"
        return {"file": file, "function": function, "column": column, "cell": cell}

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        tables.begin(desk, rng, p["file"], tables.table(rng))

    def check(self, desk: Desktop, p: Params) -> bool:
        found = tables.saved(desk, p["file"])
        if found is None:
            return False
        row, column = cell_place(p["cell"])
        text = found[row][column]
        if not text.startswith("=") or found != tables.put(tables.start_of(desk), p["cell"], text):
            return False
        # A formula, not a number in disguise: it must hold for other numbers in the column, too, with the largest of
        # them now at the end and now at the beginning.
        return all(_right(tables.start_of(desk), p, text, change) for change in (0, 100, -100))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := tables.open_sheet(s, notes, p["file"]) or tables.steady(s, notes, p["cell"]):
            return move
        formula = f"={p['function']}({p['column']}2:{p['column']}{tables.last_row(notes)})"
        row, column = cell_place(p["cell"])
        shown = evaluate(tables.put(tables.padded(tables.noted(notes)), p["cell"], formula))[row][column]
        return tables.write(s, p["cell"], formula, shown) or tables.save_by_menu(s, notes)


def _right(table: Grid, p: Params, formula: str, change: int) -> bool:
    """Whether a formula gives the right value when the column's numbers are changed by so much times their row."""
    column = COLUMNS.index(p["column"])
    for r, row in enumerate(table[1:]):
        if row[column]:
            row[column] = str(int(row[column]) + change * r)
    first = tables.put([list(row) for row in table], p["cell"], formula)
    reference = tables.put([list(row) for row in table], p["cell"], f"={p['function']}({p['column']}2:{p['column']}12)")
    at, letter = cell_place(p["cell"])
    return evaluate(first)[at][letter] == evaluate(reference)[at][letter]


class Sort(Family):
    """Sort by a column."""

    name = "sheet-sort"

    def draw(self, rng: random.Random) -> Params:
        return {"file": tables.file_name(rng), "column": rng.choice("ABC"), "down": rng.random() < 0.5}

    def instruction(self, p: Params) -> str:
        return f"Sort {p['file']} by column {p['column']}, {'down' if p['down'] else 'up'}, and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        rows = tables.table(rng)
        while _sorted(rows, p) == rows:
            rows = tables.table(rng)
        tables.begin(desk, rng, p["file"], rows)

    def check(self, desk: Desktop, p: Params) -> bool:
        used = [row for row in tables.start_of(desk) if any(row)]
        return tables.saved(desk, p["file"]) == tables.padded(_sorted(used, p))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := tables.open_sheet(s, notes, p["file"]):
            return move
        if "A1" not in notes and (move := tables.steady(s, notes)):
            return move
        before, shown = tables.noted(notes), tables.noted(tables.cells(s))
        if shown == _sorted(before, p):
            return tables.leave_bar(s) or tables.save_by_menu(s, notes)
        if shown != before:
            return tables.undo(s)
        column = p["column"]
        picked = next((c.label for c in s.all(kind="cell", window=s.front) if "selected" in c.state), "")
        if not picked.startswith(column):
            return tables.leave_bar(s) or tables.pick(s, f"{column}2")
        return tables.leave_bar(s) or tables.menu(s, notes, "Data", f"Sort {column} {'down' if p['down'] else 'up'}")


def _sorted(rows: Grid, p: Params) -> Grid:
    column = COLUMNS.index(p["column"])

    def key(row: list[str]) -> tuple[object, str]:
        return number(row[column]) or 0, row[column].lower()

    return [rows[0], *sorted(rows[1:], key=key, reverse=p["down"])]


class Largest(Family):
    """Read a column, find the largest or smallest number, write down whose it is."""

    name = "sheet-largest"

    def draw(self, rng: random.Random) -> Params:
        return {"file": tables.file_name(rng), "heading": rng.choice(tables.HEADINGS), "largest": rng.random() < 0.5}

    def instruction(self, p: Params) -> str:
        which = "largest" if p["largest"] else "smallest"
        return f"Write the name with the {which} {p['heading']} into cell E1 of {p['file']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        tables.begin(desk, rng, p["file"], tables.table(rng, (p["heading"],)))

    def check(self, desk: Desktop, p: Params) -> bool:
        before = tables.start_of(desk)
        column = before[0].index(p["heading"])
        extreme = max if p["largest"] else min
        row = extreme((row for row in before[1:] if row[0]), key=lambda row: int(row[column]))
        return tables.saved(desk, p["file"]) == tables.put(before, "E1", row[0])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := tables.open_sheet(s, notes, p["file"]) or tables.steady(s, notes, "E1"):
            return move
        letter = tables.letter_of(s, p["heading"])
        numbers = {row: int(notes[f"{letter}{row}"]) for row in range(2, tables.last_row(notes) + 1)}
        extreme = max if p["largest"] else min
        name = notes[f"A{extreme(numbers, key=numbers.__getitem__)}"]
        return tables.write(s, "E1", name) or tables.save_by_key(s)


class CopyCell(Family):
    """Copy one cell to another with the keyboard."""

    name = "sheet-copy"
    asks = "Copy cell {from} to cell {to} in {file} and save it."

    def draw(self, rng: random.Random) -> Params:
        file, source = tables.file_name(rng), f"{rng.choice('BC')}{rng.randrange(2, 6)}"
        return {"file": file, "from": source, "to": f"E{rng.randrange(1, 8)}"}

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        tables.begin(desk, rng, p["file"], tables.table(rng))

    def check(self, desk: Desktop, p: Params) -> bool:
        before = tables.start_of(desk)
        row, column = cell_place(p["from"])
        return tables.saved(desk, p["file"]) == tables.put(before, p["to"], before[row][column])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := tables.open_sheet(s, notes, p["file"]) or tables.steady(s, notes, p["to"]) or tables.leave_bar(s):
            return move
        source, target = tables.cell(s, p["from"]), tables.cell(s, p["to"])
        if not source or not target:
            return s.escape()
        if target.value == source.value:
            return tables.save_by_key(s)
        if notes.get("copied") == "yes":
            if move := tables.pick(s, p["to"]):
                return move
            notes["copied"] = ""  # should the paste bring something else, copy again
            return s.keys("ctrl", "v", thought="Paste it.")
        if move := tables.pick(s, p["from"]):
            return move
        notes["copied"] = "yes"
        return s.keys("ctrl", "c", thought="Copy it.")


class MissingColumn(Infeasible):
    """Look for the largest number of a column that the table does not have."""

    name = "sheet-missing"
    draw = Largest.draw
    instruction = Largest.instruction

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        tables.begin(desk, rng, p["file"], tables.table(rng, avoid=p["heading"]))
        hide(desk, "Sheet")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return tables.open_sheet(s, notes, p["file"]) or (f"The table has no {p['heading']}.", Fail())
