"""Cells of spreadsheets (.xlsx, .ods, .csv), read with the standard library.

cells("sums.xlsx")                          {"A1": "Month", "B2": 12.5, …} of the first sheet
check_cells(path, {"B2": 12.5})             are they so? {"A3": None}: is it empty? only=True: is there nothing else?
compare_table(path, wanted, rules=[…])      OSWorld's, for the rules sheet_name, sheet_data and check_cell
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from typing import Any

from arpo.envs.desktop.checks.reading import archive, csv_of, reader, xml_of
from arpo.envs.desktop.checks.rules import matches, refuse_rule
from arpo.envs.evaluators import Unreadable

Cells = dict[str, Any]
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
REFERENCE = re.compile(r"\[\.([A-Z]{1,3}[0-9]{1,7})(?::\.([A-Z]{1,3}[0-9]{1,7}))?\]")
DIGITS = 9  # decimal places that count
FEW = 1000  # repeated cells or rows beyond are the empty rest of a sheet
MOST_CELLS = 1_000_000
RULES: dict[str, set[str]] = {  # of compare_table, and what each must have
    "sheet_name": set(),
    "sheet_data": {"sheet_idx0", "sheet_idx1"},
    "check_cell": {"sheet_idx", "coordinate", "props"},
}


@reader
def sheets_of(path: str) -> dict[str, Cells]:
    """The cells of each sheet by its name, those that are empty left out. Numbers are floats."""
    if path.lower().endswith(".csv"):
        return {"": _csv(csv_of(path))}
    parts = archive(path)
    if "content.xml" in parts and not path.lower().endswith(".xlsx"):
        return _ods(xml_of(parts["content.xml"]()))
    if "xl/workbook.xml" in parts and not path.lower().endswith(".ods"):
        return _xlsx(parts)
    raise Unreadable(f"{path}: not a spreadsheet")


def cells(path: str, sheet: int | str = 0) -> Cells:
    sheets = sheets_of(path)
    if isinstance(sheet, str):
        return sheets.get(sheet, {})
    return list(sheets.values())[sheet] if sheet < len(sheets) else {}


@reader
def rows_of(path: str, sheet: int | str = 0) -> list[list[Any]]:
    """The same as a table, None where a cell is empty."""
    values = {_place(name): value for name, value in cells(path, sheet).items()}
    if not values:
        return []
    height, width = max(row for row, _ in values) + 1, max(column for _, column in values) + 1
    if height * width > MOST_CELLS:
        raise Unreadable(f"{path}: has too many cells")
    return [[values.get((row, column)) for column in range(width)] for row in range(height)]


def check_cells(
    path: str, wanted: Cells, sheet: int | str = 0, only: bool = False, formulas: dict[str, list[str]] | None = None
) -> float:
    """`only`: no other cell has a value, and there is no other sheet. `formulas` (.ods): cells that are calculated, and
    from which others: {"B7": ["B2", "B3"]}."""
    values = cells(path, sheet)
    if only and (
        len(sheets_of(path)) > 1 or values.keys() - {name for name, value in wanted.items() if value is not None}
    ):
        return 0.0
    if formulas and not _calculated(path, sheet, formulas):
        return 0.0
    return float(all(_same(values.get(name), value) for name, value in wanted.items()))


@reader
def _calculated(path: str, sheet: int | str, wanted: dict[str, list[str]]) -> bool:
    sheets = _ods(xml_of(archive(path)["content.xml"]()), lambda cell: cell.get(f"{TABLE}formula"))
    formulas = sheets.get(sheet, {}) if isinstance(sheet, str) else list(sheets.values())[sheet]
    return all(_looks_at(formulas.get(name, ""), others) for name, others in wanted.items())


def _looks_at(formula: str, names: list[str]) -> bool:
    """Whether a formula of OpenDocument ("of:=SUM([.B2:.B5])") refers to all of these cells."""
    ranges = [(_place(first), _place(last or first)) for first, last in REFERENCE.findall(formula.replace("$", ""))]
    return all(
        any(a <= row <= c and b <= column <= d for (a, b), (c, d) in ranges) for row, column in map(_place, names)
    )


def compare_table(path: str, wanted: str | None = None, *, rules: list[dict[str, Any]]) -> float:
    books = {"R": sheets_of(path), "E": sheets_of(wanted) if wanted else {}}
    return float(all(_holds(books, rule) for rule in rules))


def _holds(books: dict[str, dict[str, Cells]], rule: dict[str, Any]) -> bool:
    if rule["type"] == "sheet_name":
        return list(books["R"]) == list(books["E"])
    if rule["type"] == "sheet_data":
        ours, theirs = _sheet(books, rule["sheet_idx0"], "R"), _sheet(books, rule["sheet_idx1"], "E")
        return ours.keys() == theirs.keys() and all(_same(ours[name], theirs[name]) for name in ours)
    if rule["type"] == "check_cell":
        value = _sheet(books, rule["sheet_idx"], "R").get(rule["coordinate"])
        return all(matches(value, wanted) for wanted in rule["props"].values())
    raise ValueError(f"compare_table has no rule {rule['type']!r}")


def tables_cannot(options: dict[str, Any]) -> set[str]:
    """What of the rules of compare_table is not here."""
    lacking = set()
    for rule in options.get("rules", []):
        if rule.get("type") not in RULES:
            lacking.add(f"compare_table ({rule.get('type')})")
        elif rule["type"] == "check_cell" and rule.get("props", {}).keys() - {"value"}:
            lacking.add("compare_table (check_cell of style)")
    return lacking


def refuse_table_rules(rules: list[dict[str, Any]]) -> None:
    """ValueError for rules that lack something, or say nothing."""
    if not rules:
        raise ValueError("compare_table without rules holds for every table")
    for rule in rules:
        if lacking := RULES[rule["type"]] - {key for key, value in rule.items() if value != {}}:
            raise ValueError(f"its rule {rule['type']} lacks {', '.join(sorted(lacking))}")
        for one in rule.get("props", {}).values():
            refuse_rule(one)


def _sheet(books: dict[str, dict[str, Cells]], which: int | str, book: str) -> Cells:
    """A sheet by OSWorld's name for it: 0, "RI0" or "EI0" (its number in the result, or the expected), "RNname"."""
    if isinstance(which, str):
        book, which = which[0], (int(which[2:]) if which[1] == "I" else which[2:])
    if isinstance(which, str):
        return books[book].get(which, {})
    sheets = list(books[book].values())
    return sheets[which] if which < len(sheets) else {}


def _same(value: Any, wanted: Any) -> bool:
    if isinstance(value, float) and isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return round(value, DIGITS) == round(wanted, DIGITS)
    return bool(value == wanted)


# Reading.


def _csv(rows: list[list[str]]) -> Cells:
    return {_name(i, j): _number(value) for i, row in enumerate(rows) for j, value in enumerate(row) if value}


def _number(value: str) -> Any:
    return float(value) if re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value) else value


def _xlsx(parts: dict[str, Callable[[], bytes]]) -> dict[str, Cells]:
    shared = xml_of(parts["xl/sharedStrings.xml"]()) if "xl/sharedStrings.xml" in parts else ET.Element("none")
    texts = ["".join(part.text or "" for part in one.iter(f"{SHEET}t")) for one in shared.iter(f"{SHEET}si")]
    rels = parts.get("xl/_rels/workbook.xml.rels")
    links: Iterable[ET.Element] = xml_of(rels()) if rels else []
    places = {link.get("Id"): (link.get("Target") or "").removeprefix("/xl/") for link in links}
    sheets = {}
    for sheet in xml_of(parts["xl/workbook.xml"]()).iter(f"{SHEET}sheet"):
        part = parts.get(f"xl/{places.get(sheet.get(f'{LINK}id'))}")
        if part is None:
            raise Unreadable("a workbook without its sheets")
        sheets[sheet.get("name") or ""] = _xlsx_sheet(xml_of(part()), texts)
    return sheets


def _xlsx_sheet(sheet: ET.Element, texts: list[str]) -> Cells:
    values: Cells = {}
    for cell in sheet.iter(f"{SHEET}c"):
        name, kind, value = cell.get("r") or "", cell.get("t", "n"), cell.findtext(f"{SHEET}v")
        if kind == "inlineStr":
            values[name] = "".join(part.text or "" for part in cell.iter(f"{SHEET}t"))
        elif value is not None:
            values[name] = texts[int(value)] if kind == "s" else float(value) if kind == "n" else value
    return values


def _ods_value(cell: ET.Element) -> Any:
    value = cell.get(f"{OFFICE}value")
    if value is not None:
        return float(value)
    if cell.get(f"{OFFICE}value-type") is not None:
        return "\n".join("".join(part.itertext()) for part in cell.iter(f"{TEXT}p"))
    return None


def _ods(content: ET.Element, read: Callable[[ET.Element], Any] = _ods_value) -> dict[str, Cells]:
    """`read`: what is taken of a cell."""
    sheets, size = {}, 0
    for table in content.iter(f"{TABLE}table"):
        sheet: Cells = {}
        row = 0
        for element in table.iter(f"{TABLE}table-row"):
            copies = _copies(element, "rows")
            values = _ods_row(element, read)
            if values and copies < FEW:
                size += copies * len(values)
                if size > MOST_CELLS:
                    raise Unreadable("the spreadsheet has too many cells")
                sheet |= {_name(row + i, j): value for i in range(copies) for j, value in values.items()}
            row += copies
        sheets[table.get(f"{TABLE}name") or ""] = sheet
    return sheets


def _ods_row(row: ET.Element, read: Callable[[ET.Element], Any]) -> dict[int, Any]:
    values: dict[int, Any] = {}
    column = 0
    for cell in row:
        if not cell.tag.startswith(TABLE):
            continue
        copies = _copies(cell, "columns")
        value = read(cell)
        if value is not None and copies < FEW:
            values |= {column + i: value for i in range(copies)}
        if len(values) > MOST_CELLS:
            raise Unreadable("the spreadsheet has too many cells")
        column += copies
    return values


def _copies(part: ET.Element, of: str) -> int:
    copies = int(part.get(f"{TABLE}number-{of}-repeated", "1"))
    if copies < 1:
        raise Unreadable(f"{of} that are repeated {copies} times")
    return copies


def _name(row: int, column: int) -> str:
    letters = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return f"{letters}{row + 1}"


def _place(name: str) -> tuple[int, int]:
    """(row, column) of a cell's name, both from 0."""
    letters = name.rstrip("0123456789")
    column = 0
    for letter in letters:
        column = 26 * column + ord(letter) - ord("A") + 1
    return int(name[len(letters) :]) - 1, column - 1


TABLE_METRICS: dict[str, Callable[..., float]] = {"check_cells": check_cells, "compare_table": compare_table}
