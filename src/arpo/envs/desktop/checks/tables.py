"""Cells of spreadsheets (.xlsx, .ods, .csv), read with the standard library.

cells("sums.xlsx")                          {"A1": "Month", "B2": 12.5, …} of the first sheet
check_cells(path, {"B2": 12.5})             are they so? {"A3": None}: is it empty?
compare_table(path, wanted, rules=[…])      OSWorld's, for the rules sheet_name, sheet_data and check_cell
"""

from __future__ import annotations

import csv
import io
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from typing import Any

from arpo.envs.desktop.checks.reading import Unreadable, archive, text, xml_of
from arpo.envs.desktop.checks.rules import matches

Cells = dict[str, Any]
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
LINK = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"
TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
DIGITS = 9  # decimal places that count
FEW = 1000  # repeated cells or rows beyond are the empty rest of a sheet


def sheets_of(path: str) -> dict[str, Cells]:
    """The cells of each sheet by its name, those that are empty left out. Numbers are floats."""
    if path.lower().endswith(".csv"):
        return {"": _csv(text(path))}
    parts = archive(path)
    if "content.xml" in parts:
        return _ods(xml_of(parts["content.xml"]()))
    if "xl/workbook.xml" in parts:
        return _xlsx(parts)
    raise Unreadable(f"{path}: not a spreadsheet")


def cells(path: str, sheet: int | str = 0) -> Cells:
    found = sheets_of(path)
    if isinstance(sheet, str):
        return found.get(sheet, {})
    return list(found.values())[sheet] if sheet < len(found) else {}


def rows_of(path: str, sheet: int | str = 0) -> list[list[Any]]:
    """The same as a table, None where a cell is empty."""
    found = {_place(name): value for name, value in cells(path, sheet).items()}
    if not found:
        return []
    height, width = max(row for row, _ in found) + 1, max(column for _, column in found) + 1
    return [[found.get((row, column)) for column in range(width)] for row in range(height)]


def check_cells(path: str, wanted: Cells, sheet: int | str = 0) -> float:
    found = cells(path, sheet)
    return float(all(_same(found.get(name), value) for name, value in wanted.items()))


def compare_table(path: str, wanted: str | None = None, rules: list[dict[str, Any]] | None = None) -> float:
    found = sheets_of(path)
    books = {"R": found, "E": sheets_of(wanted) if wanted else {}}
    return float(all(_holds(books, rule) for rule in rules or []))


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
        if rule["type"] not in ("sheet_name", "sheet_data", "check_cell"):
            lacking.add(f"compare_table ({rule['type']})")
        elif rule["type"] == "check_cell" and rule["props"].keys() != {"value"}:
            lacking.add("compare_table (check_cell of style)")
    return lacking


def _sheet(books: dict[str, dict[str, Cells]], which: int | str, book: str) -> Cells:
    """A sheet by OSWorld's name for it: 0, "RI0" or "EI0" (its number in the found, or the expected), "RNname"."""
    if isinstance(which, str):
        book, which = which[0], (int(which[2:]) if which[1] == "I" else which[2:])
    if isinstance(which, str):
        return books[book].get(which, {})
    sheets = list(books[book].values())
    return sheets[which] if which < len(sheets) else {}


def _same(found: Any, wanted: Any) -> bool:
    if isinstance(found, float) and isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return round(found, DIGITS) == round(wanted, DIGITS)
    return bool(found == wanted)


# Reading.


def _csv(content: str) -> Cells:
    rows = csv.reader(io.StringIO(content))
    return {_name(i, j): _number(value) for i, row in enumerate(rows) for j, value in enumerate(row) if value}


def _number(value: str) -> Any:
    return float(value) if re.fullmatch(r"-?\d+(\.\d+)?([eE][-+]?\d+)?", value) else value


def _xlsx(parts: dict[str, Callable[[], bytes]]) -> dict[str, Cells]:
    shared = xml_of(parts["xl/sharedStrings.xml"]()) if "xl/sharedStrings.xml" in parts else ET.Element("none")
    texts = ["".join(part.text or "" for part in one.iter(f"{SHEET}t")) for one in shared.iter(f"{SHEET}si")]
    rels = parts.get("xl/_rels/workbook.xml.rels")
    links: Iterable[ET.Element] = xml_of(rels()) if rels else []
    places = {link.get("Id"): (link.get("Target") or "").removeprefix("/xl/") for link in links}
    found = {}
    for sheet in xml_of(parts["xl/workbook.xml"]()).iter(f"{SHEET}sheet"):
        part = parts.get(f"xl/{places.get(sheet.get(f'{LINK}id'))}")
        if part is None:
            raise Unreadable("a workbook without its sheets")
        found[sheet.get("name") or ""] = _xlsx_sheet(xml_of(part()), texts)
    return found


def _xlsx_sheet(sheet: ET.Element, texts: list[str]) -> Cells:
    found: Cells = {}
    for cell in sheet.iter(f"{SHEET}c"):
        name, kind, value = cell.get("r") or "", cell.get("t", "n"), cell.findtext(f"{SHEET}v")
        if kind == "inlineStr":
            found[name] = "".join(part.text or "" for part in cell.iter(f"{SHEET}t"))
        elif value is not None:
            try:
                found[name] = texts[int(value)] if kind == "s" else float(value) if kind == "n" else value
            except (ValueError, IndexError) as error:
                raise Unreadable(f"the cell {name}: {error}") from error
    return found


def _ods(content: ET.Element) -> dict[str, Cells]:
    found = {}
    for table in content.iter(f"{TABLE}table"):
        sheet: Cells = {}
        row = 0
        for line in table.iter(f"{TABLE}table-row"):
            copies = int(line.get(f"{TABLE}number-rows-repeated", "1"))
            values = _ods_row(line)
            if values and copies < FEW:
                sheet |= {_name(row + i, j): value for i in range(copies) for j, value in values.items()}
            row += copies
        found[table.get(f"{TABLE}name") or ""] = sheet
    return found


def _ods_row(line: ET.Element) -> dict[int, Any]:
    found: dict[int, Any] = {}
    column = 0
    for cell in line:
        if not cell.tag.startswith(TABLE):
            continue
        copies = int(cell.get(f"{TABLE}number-columns-repeated", "1"))
        value: Any = cell.get(f"{OFFICE}value")
        if value is not None:
            value = float(value)
        elif cell.get(f"{OFFICE}value-type") is not None:
            value = "\n".join("".join(part.itertext()) for part in cell.iter(f"{TEXT}p"))
        if value is not None and copies < FEW:
            found |= {column + i: value for i in range(copies)}
        column += copies
    return found


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
