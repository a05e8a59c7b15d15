"""Tasks for LibreOffice Calc."""

from typing import Any

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params, impossible
from arpo.envs.desktop.families.moves import CONFIRMS, Look, Moves, click, press
from arpo.envs.desktop.families.office import save, save_copy, spreadsheet
from arpo.envs.desktop.families.parts import HOME, every, file_check, file_is, launch, task
from arpo.types import Json

APPS = ("libreoffice",)
TITLE = "LibreOffice Calc"
CELL_X, CELL_Y, CELL_WIDTH, CELL_HEIGHT = 81, 171, 82, 17  # the middle of A1, and the way to the next
COSTS = [["Item", "Price"], ["Rent", 820], ["Food", 310], ["Phone", 25], ["Books", 64]]
STAFF = [["Name", "Hours"], ["Zoe", 31], ["Ali", 40], ["Mia", 12], ["Tom", 27], ["Eva", 38]]
TOWNS = [["Town", "Rain", "Days"], ["Bergen", 2250, 231], ["Lyon", 832, 104], ["Cairo", 18, 5]]


def _one_cell(p: Params) -> Json:
    options = {"formulas": {p["at"]: p["of"]}} if "of" in p else {}  # where the instruction wants a formula
    return _on_sheet(p, p["say"], {**_cells(p["rows"]), p["at"]: p["value"]}, **options)


def _formula_script(look: Look, p: Params) -> Moves:
    yield from _cell(look, p["at"])
    yield "Write the formula.", Type(f"{p['formula']}\n")
    yield from save(look, _path(p))


def _change_script(look: Look, p: Params) -> Moves:
    yield from _cell(look, p["at"])
    yield "Write the new value over the old one.", Type(f"{p['value']}\n")
    yield from save(look, _path(p))


def _sort(p: Params) -> Json:
    head, *rows = p["rows"]
    sorted_rows = [head, *sorted(rows, key=lambda row: row[p["column"]], reverse=p["down"])]
    return _on_sheet(p, p["say"], _cells(sorted_rows))


def _sort_script(look: Look, p: Params) -> Moves:
    yield from _cell(look, f"{'ABC'[p['column']]}2")
    kind = "descending" if p["down"] else "ascending"
    yield from click(f"Sort {kind}.", look.window(TITLE), 780 if p["down"] else 752, 45)
    yield from save(look, _path(p))


def _sheet(p: Params) -> Json:
    return _on_sheet(p, f"Rename the sheet to '{p['new']}' and save the file.", _cells(p["rows"]), sheet=p["new"])


def _sheet_script(look: Look, p: Params) -> Moves:
    box = look.window(TITLE)
    for _ in range(CONFIRMS):  # on a busy machine the tabs come later than the rest of the window
        yield from click("Double-click the sheet's tab.", box, 172, -34, count=2)
        if look.soon(lambda: look.shows("Rename Sheet")):
            break
    look.window("Rename Sheet")
    yield from press("Take the old name away.", "ctrl a")
    yield "Type the new one.", Type(f"{p['new']}\n")
    look.window(TITLE)
    yield from save(look, _path(p))


def _csv(p: Params) -> Json:
    text = "".join(",".join(map(str, row)) + "\n" for row in p["rows"])
    return task(
        f"Save this table as a CSV file, with commas and the usual settings, as {p['csv']}.",
        _config(p),
        file_is(p["csv"], text),
    )


def _csv_script(look: Look, p: Params) -> Moves:
    look.window(TITLE)
    yield from press("Save under another name.", "ctrl shift s")
    yield from save_copy(look, p["csv"], "Save")
    look.window("Confirm File Format")
    yield from press("Use the format CSV.", "enter")
    look.window("Export Text File")
    yield from press("The settings are right.", "enter")
    look.file(p["csv"], str(p["rows"][-1][-1]))


def _bold(p: Params) -> Json:
    say = "Make the first row, with the names of the columns, bold, and save the file."
    rules = {"text": p["rows"][0], "property": "font-weight", "expected": "bold", "only": True}
    table = _on_sheet(p, say, _cells(p["rows"]))
    return table | {"evaluator": every(file_check("check_style", _path(p), rules), table["evaluator"])}


def _bold_script(look: Look, p: Params) -> Moves:
    yield from click("Select the whole first row by its number.", look.window(TITLE), 20, CELL_Y)
    yield from press("Bold.", "ctrl b")
    yield from save(look, _path(p))


def _on_sheet(p: Params, say: str, cells: dict[str, Any], **options: Any) -> Json:
    """The file has these cells and nothing else."""
    return task(say, _config(p), file_check("check_cells", _path(p), cells) | {"options": {"only": True, **options}})


def _config(p: Params) -> list[Json]:
    return [spreadsheet(_path(p), "Table1", p["rows"]), launch("libreoffice", "--norestore", _path(p))]


def _path(p: Params) -> str:
    return f"{HOME}/{p['file']}"


def _cells(rows: list[list[Any]]) -> dict[str, Any]:
    return {f"{'ABC'[j]}{i}": value for i, row in enumerate(rows, 1) for j, value in enumerate(row)}


def _cell(look: Look, name: str) -> Moves:
    box = look.window(TITLE)
    column, row = "ABCDEF".index(name[0]), int(name[1:]) - 1
    yield from click(f"Select the cell {name}.", box, CELL_X + CELL_WIDTH * column, CELL_Y + CELL_HEIGHT * row)


FAMILIES = (
    DesktopFamily("calc-formula", APPS, _one_cell, _formula_script, (
        {"file": "costs.ods", "rows": COSTS, "at": "B7", "formula": "=SUM(B2:B5)", "value": 1219,
         "say": "Put the sum of all prices into cell B7 and save the file."},
        {"file": "hours.ods", "rows": STAFF, "at": "B9", "formula": "=MAX(B2:B6)", "value": 40,
         "of": ["B2", "B3", "B4", "B5", "B6"],
         "say": "Calculate the largest number of hours in cell B9, with a formula, and save."},
        {"file": "rain.ods", "rows": TOWNS, "at": "B6", "formula": "=AVERAGE(B2:B4)", "value": 3100 / 3,
         "say": "I need the mean of the rain in the three towns in cell B6. Save the table then."},
    )),
    DesktopFamily("calc-change", APPS, _one_cell, _change_script, (
        {"file": "costs.ods", "rows": COSTS, "at": "B4", "value": 32,
         "say": "The phone costs 32 now. Correct the price and save the table."},
        {"file": "hours.ods", "rows": STAFF, "at": "A6", "value": "Eve",
         "say": "Eva is really called Eve. Correct the name in the table and save it."},
    )),
    DesktopFamily("calc-sort", APPS, _sort, _sort_script, (
        {"file": "hours.ods", "rows": STAFF, "column": 1, "down": False,
         "say": "Sort the people by their hours, the fewest first, and save the file."},
        {"file": "hours.ods", "rows": STAFF, "column": 0, "down": False,
         "say": "Sort this table by the names from A to Z, then save it."},
        {"file": "rain.ods", "rows": [TOWNS[0], *TOWNS[:0:-1]], "column": 2, "down": True,
         "say": "Put the town with the most days of rain on top: sort the table by Days, and save."},
    )),
    DesktopFamily("calc-sheet", APPS, _sheet, _sheet_script, (
        {"file": "costs.ods", "rows": COSTS, "new": "March"},
        {"file": "rain.ods", "rows": TOWNS, "new": "Weather 2025"},
    )),
    DesktopFamily("calc-csv", APPS, _csv, _csv_script, (
        {"file": "costs.ods", "rows": COSTS, "csv": f"{HOME}/costs.csv"},
        {"file": "rain.ods", "rows": TOWNS, "csv": f"{HOME}/rainfall.csv"},
    )),
    DesktopFamily("calc-bold", APPS, _bold, _bold_script, ({"file": "hours.ods", "rows": STAFF},), held_out=0),
    impossible("calc-impossible", APPS, _config,
        {"file": "costs.ods", "rows": COSTS, "say": "Fill column C with live share prices from the internet and save."},
    ),
)  # fmt: skip
