"""States of the families whose end is a document (states.py)."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Sequence
from typing import Any
from xml.sax.saxutils import escape

from states import HOME, Do, Params, States, misplaced, put, text_file

from arpo.envs.desktop.families.office import MIME

URN = "urn:oasis:names:tc:opendocument:xmlns"
NAMES = " ".join(f'xmlns:{name}="{URN}:{name}:1.0"' for name in ("office", "table", "text", "style"))
NAMES += f' xmlns:fo="{URN}:xsl-fo-compatible:1.0"'
WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
EXCEL = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
LINKS = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
Rows = Sequence[Sequence[Any]]
Formula = tuple[str, float]  # of a cell: what it calculates, and what it shows


def packed(parts: dict[str, str]) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as file:
        for name, part in parts.items():
            file.writestr(name, part)
    return memory.getvalue()


def _open(kind: str, styles: str, body: str) -> bytes:
    content = (
        f'<office:document-content {NAMES} office:version="1.2"><office:automatic-styles>{styles}'
        f"</office:automatic-styles><office:body><office:{kind}>{body}</office:{kind}></office:body>"
        "</office:document-content>"
    )
    return packed({"mimetype": f"{MIME}.{kind}", "content.xml": content})


def _style(name: str, family: str, properties: str) -> str:
    return f'<style:style style:name="{name}" style:family="{family}">{properties}</style:style>'


# Spreadsheets.


def ods(
    sheets: dict[str, Rows], bold: Callable[[int, int], bool] = lambda i, j: False, how: str = "font-weight"
) -> bytes:
    """None is an empty cell; `bold` says of a cell whether it has the one style that there is."""
    value = "bold" if how == "font-weight" else "italic"
    style = _style("ce1", "table-cell", f'<style:text-properties fo:{how}="{value}"/>')

    def cell(i: int, j: int, one: Any) -> str:
        mark = ' table:style-name="ce1"' if bold(i, j) else ""
        if one is None:
            return f"<table:table-cell{mark}/>"
        if isinstance(one, str):
            return (
                f'<table:table-cell{mark} office:value-type="string"><text:p>{escape(one)}</text:p></table:table-cell>'
            )
        if isinstance(one, tuple):
            mark += f' table:formula="of:={one[0]}"'
            one = one[1]
        mark += f' office:value-type="float" office:value="{one}"'
        return f"<table:table-cell{mark}><text:p>{one}</text:p></table:table-cell>"

    tables = ""
    for name, rows in sheets.items():
        lines = ("".join(cell(i, j, one) for j, one in enumerate(row)) for i, row in enumerate(rows))
        body = "".join(f"<table:table-row>{line}</table:table-row>" for line in lines)
        tables += f'<table:table table:name="{escape(name)}">{body}</table:table>'
    return _open("spreadsheet", style, tables)


def xlsx(name: str, rows: Rows) -> bytes:
    def cell(i: int, j: int, one: Any) -> str:
        at = f'r="{"ABCDEF"[j]}{i + 1}"'
        if isinstance(one, str):
            return f'<c {at} t="inlineStr"><is><t>{escape(one)}</t></is></c>'
        return "" if one is None else f"<c {at}><v>{one[1] if isinstance(one, tuple) else one}</v></c>"

    lines = ("".join(cell(i, j, one) for j, one in enumerate(row)) for i, row in enumerate(rows))
    data = "".join(f"<row>{line}</row>" for line in lines)
    return packed({
        "xl/workbook.xml": f'<workbook {EXCEL} {LINKS}><sheets><sheet name="{name}" r:id="r1"/></sheets></workbook>',
        "xl/_rels/workbook.xml.rels": '<Relationships><Relationship Id="r1" Target="sheet1.xml"/></Relationships>',
        "xl/sheet1.xml": f"<worksheet {EXCEL}><sheetData>{data}</sheetData></worksheet>",
    })  # fmt: skip


def _with(rows: Rows, name: str, value: Any) -> list[list[Any]]:
    """A table with a cell more, or another in its place."""
    row, column = int(name[1:]) - 1, "ABCDEF".index(name[0])
    table = [list(one) for one in rows]
    while len(table) <= row:
        table.append([])
    table[row] += [None] * (column + 1 - len(table[row]))
    table[row][column] = value
    return table


def _table(p: Params, right: Rows, others: dict[str, Rows], name: str = "Table1") -> States:
    """A sheet; the right one is also put where it does not belong."""
    path, data = f"{HOME}/{p['file']}", ods({name: right})
    commas = "".join(",".join("" if one is None else str(one) for one in row) + "\n" for row in right)
    wrong = {key: ods({name: rows}) for key, rows in others.items()} | {
        "on a second sheet": ods({name: p["rows"], "Sheet2": right}),
        "beside a second sheet": ods({name: right, "Sheet2": p["rows"]}),
        "as another program's file": xlsx(name, right),
        "as text": commas.encode(),
        "with the rest gone": ods({name: right[-1:]}),
        "and something below": ods({name: [*right, [None], ["done"]]}),
        "and something beside": ods({name: [[*right[0], "done"], *right[1:]]}),
        "in every row": ods({name: [*right, *right]}),
    }
    return put(path, data), {key: put(path, one) for key, one in wrong.items()} | misplaced(path, data)


def calc_formula(p: Params) -> States:
    rows, at, value = p["rows"], p["at"], p["value"]
    formula = p["formula"].removeprefix("=").replace("(", "([.").replace(":", ":.").replace(")", "])")
    right, wrong = _table(p, _with(rows, at, (formula, value)), {
        "in the next column": _with(rows, f"C{at[1:]}", (formula, value)),
        "in the next row": _with(rows, f"B{int(at[1:]) + 1}", (formula, value)),
        "one too much": _with(rows, at, (f"{formula}+1", value + 1)),
        "without the last one": _with(rows, at, ("SUM([.B2:.B3])", rows[1][1] + rows[2][1])),
        "as a word": _with(rows, at, str(value)),
        "the formula as a word": _with(rows, at, p["formula"]),
        "and a price changed": _with(_with(rows, at, value), "B2", 1),
        "in two cells": _with(_with(rows, at, value), f"C{at[1:]}", value),
        "rounded": _with(rows, at, float(round(value, 1)) + (0.0 if value % 1 else 0.5)),
    })  # fmt: skip
    if "with a formula" in p["say"]:
        path, row = f"{HOME}/{p['file']}", 2 + [one[1] for one in rows[1:]].index(value)
        tables = {
            "a number": _with(rows, at, value),
            "a formula of a number": _with(rows, at, (f"{value}", value)),
            "the one cell": _with(rows, at, (f"[.B{row}]", value)),
            "of some of the cells": _with(rows, at, (f"MAX([.B2:.B{row}])", value)),
            "of the other column": _with(rows, at, ("MAX([.A2:.A6])", value)),
        }
        wrong |= {name: put(path, ods({"Table1": table})) for name, table in tables.items()}
    return right, wrong


def calc_change(p: Params) -> States:
    rows, at, value = p["rows"], p["at"], p["value"]
    column, row = at[0], int(at[1:])
    old = rows[row - 1]["AB".index(column)]
    word = isinstance(value, str)
    return _table(p, _with(rows, at, value), {
        "in the row above": _with(rows, f"{column}{row - 1}", value),
        "in the row below": _with(rows, f"{column}{row + 1}", value),
        "beside the old one": _with(rows, f"C{row}", value),
        "with the old one": _with(rows, at, f"{old} {value}"),
        "in capitals" if word else "as a word": _with(rows, at, str(value).upper()),
        "in all rows": [rows[0], *(_with([one], f"{column}1", value)[0] for one in rows[1:])],
        "a letter more" if word else "a digit more": _with(rows, at, f"{value}n" if word else value * 10),
        "a new row": [*rows, [*rows[row - 1][:-1], value]],
    })  # fmt: skip


def calc_sort(p: Params) -> States:
    head, *rows = p["rows"]

    def by(column: int, down: bool) -> list[list[Any]]:
        return [head, *sorted(rows, key=lambda row: row[column], reverse=down)]

    right = by(p["column"], p["down"])
    only = sorted((row[p["column"]] for row in rows), reverse=p["down"])
    alone = [[*row[: p["column"]], one, *row[p["column"] + 1 :]] for row, one in zip(rows, only, strict=True)]
    others = {
        "the other way round": by(p["column"], not p["down"]),
        "by another column": by(1 - p["column"] if p["column"] < 2 else 0, p["down"]),
        "the column alone": [head, *alone],
        "the heading too": [*right[1:], head],
        "without the heading": right[1:],
        "two rows exchanged": [*right[:-2], right[-1], right[-2]],
        "below the old one": [*p["rows"], *right[1:]],
    }
    return _table(p, right, {name: table for name, table in others.items() if table != right})


def calc_sheet(p: Params) -> States:
    path, rows, new = f"{HOME}/{p['file']}", p["rows"], p["new"]
    wrong = {
        "a copy": ods({"Table1": rows, new: rows}),
        "a new sheet": ods({"Table1": rows, new: []}),
        "all moved to a new sheet": ods({"Table1": [], new: rows}),
        "in capitals": ods({new.upper(): rows}),
        "a letter more": ods({f"{new}s": rows}),
        "with the old name": ods({f"Table1 {new}": rows}),
        "emptied": ods({new: []}),
        "in the first cell": ods({"Table1": _with(rows, "A1", new)}),
        "with the name in a cell too": ods({new: _with(rows, "D1", new)}),
        "as another program's file": xlsx(new, rows),
    }
    return put(path, ods({new: rows})), {name: put(path, one) for name, one in wrong.items()}


def calc_csv(p: Params) -> States:
    def text(between: str) -> str:
        return "".join(between.join(map(str, row)) + "\n" for row in p["rows"])

    right, wrong = text_file(p["csv"], text(","))
    quoted = "".join(",".join(f'"{one}"' for one in row) + "\n" for row in p["rows"])
    datas: dict[str, str | bytes] = {
        "with semicolons": text(";"),
        "with tabs": text("\t"),
        "with quotes": quoted,
        "the spreadsheet": ods({"Table1": p["rows"]}),
        "without the headings": text(",").partition("\n")[2],
        "a blank after the commas": text(", "),
    }
    return right, wrong | {name: put(p["csv"], one) for name, one in datas.items()}


def calc_bold(p: Params) -> States:
    path, rows = f"{HOME}/{p['file']}", p["rows"]

    def marked(where: Callable[[int, int], bool], table: Rows = rows, how: str = "font-weight") -> Do:
        return put(path, ods({"Table1": table}, where, how))

    return marked(lambda i, j: i == 0), {
        "one of them": marked(lambda i, j: (i, j) == (0, 0)),
        "everything": marked(lambda i, j: True),
        "the first column": marked(lambda i, j: j == 0),
        "the second row": marked(lambda i, j: i == 1),
        "two rows": marked(lambda i, j: i < 2),
        "italic": marked(lambda i, j: i == 0, how="font-style"),
        "the others gone": marked(lambda i, j: i == 0, rows[:1]),
        "a value changed": marked(lambda i, j: i == 0, _with(rows, "B2", 0)),
        "the row twice": marked(lambda i, j: i == 0, [rows[0], *rows]),
    }


# Texts.


def odt(paragraphs: Sequence[str], style: str = "", level: int = 0, at: Sequence[int] = (), part: str = "") -> bytes:
    """`at`: the paragraphs that have the style; `part`: only this piece of them."""
    lines = []
    for i, text in enumerate(paragraphs):
        words = escape(text)
        if level and i in at:
            lines.append(f'<text:h text:outline-level="{level}">{words}</text:h>')
        elif part and i in at:
            span = words.replace(part, f'<text:span text:style-name="P1">{part}</text:span>')
            lines.append(f"<text:p>{span}</text:p>")
        else:
            lines.append(f"<text:p{' text:style-name=' + chr(34) + 'P1' + chr(34) if i in at else ''}>{words}</text:p>")
    name, _, value = style.partition("=")
    kind = "paragraph" if name == "text-align" else "text"
    known = _style("P1", "paragraph", f'<style:{kind}-properties fo:{name or "x"}="{value}"/>')
    return _open("text", known, "".join(lines))


def docx(paragraphs: Sequence[str]) -> bytes:
    lines = "".join(f"<w:p><w:r><w:t>{escape(text)}</w:t></w:r></w:p>" for text in paragraphs)
    return packed({"word/document.xml": f"<w:document {WORD}><w:body>{lines}</w:body></w:document>"})


def _written(p: Params, right: list[str], others: dict[str, list[str]]) -> States:
    path, data = f"{HOME}/{p['file']}", odt(right)
    wrong = {name: odt(lines) for name, lines in others.items() if lines != right} | {
        "as another program's file": docx(right),
        "as plain text": "\n".join(right).encode(),
        "all in one paragraph": odt([" ".join(right)]),
        "the last paragraph left out": odt(right[:-1]),
        "in capitals": odt([line.upper() for line in right]),
        "twice": odt([*right, *right]),
        "below the old text": odt([*p["text"], *right]),
    }
    return put(path, data), {name: put(path, one) for name, one in wrong.items()} | misplaced(path, data)


def writer_replace(p: Params) -> States:
    text, old, new = p["text"], p["old"], p["new"]
    right = [line.replace(old, new) for line in text]
    first = next(i for i, line in enumerate(text) if old in line)
    return _written(p, right, {
        "untouched": text,
        "only the first": [*right[: first + 1], *text[first + 1 :]],
        "the new beside the old": [line.replace(old, f"{old} {new}") for line in text],
        "the old in brackets": [line.replace(old, f"{new} ({old})") for line in text],
        "a letter more": [line.replace(old, f"{new}s") for line in text],
        "without a capital": [line.replace(old, new.lower()) for line in text],
        "taken away": [line.replace(old, "") for line in text],
        "the new one at the end": [*text, new],
    })  # fmt: skip


def writer_append(p: Params) -> States:
    text, new = p["text"], p["new"]
    return _written(p, [*text, new], {
        "at the beginning": [new, *text],
        "behind the last paragraph": [*text[:-1], f"{text[-1]} {new}"],
        "before the last paragraph": [*text[:-1], new, text[-1]],
        "twice at the end": [*text, new, new],
        "in quotes": [*text, f"'{new}'"],
        "a letter less": [*text, new[:-1]],
        "behind every paragraph": [one for line in text for one in (line, new)],
        "alone": [new],
    })  # fmt: skip


def writer_style(p: Params) -> States:
    path, text, line = f"{HOME}/{p['file']}", p["text"], p["line"]
    name, value = p["property"], p["value"]
    near = {"center": "text-align=end", "bold": "font-style=italic", "italic": "font-weight=bold"}.get(value, "")
    head = name == "outline-level"

    def styled(*at: int, lines: list[str] = text, part: str = "", style: str = f"{name}={value}", level: int = 1) -> Do:
        return put(path, odt(lines, "" if head else style, level if head else 0, at, part))

    wrong = {
        "another line": styled(line + 1 if line + 1 < len(text) else line - 1),
        "all lines": styled(*range(len(text))),
        "one line more": styled(line, line + 1 if line + 1 < len(text) else line - 1),
        "another style": styled(line, style=near, level=2),
        "the others gone": styled(0, lines=[text[line]]),
        "the text changed": styled(line, lines=[f"{one}!" if i == line else one for i, one in enumerate(text)]),
        "none": styled(),
        "the words instead": styled(lines=[f"*{one}*" if i == line else one for i, one in enumerate(text)]),
    }
    if not head:
        words = text[line].split()
        wrong |= {"one word": styled(line, part=words[-1]), "as a link": styled(line, part=" ".join(words[:2]))}
    return styled(line), wrong


def pdf(lines: Sequence[str]) -> bytes:
    """One page, by hand."""
    shown = "".join(f"BT /F1 12 Tf 50 {800 - 20 * i} Td ({line}) Tj ET\n" for i, line in enumerate(lines)).encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>\nstream\n%s\nendstream" % (len(shown), shown),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]  # fmt: skip
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (i, one) for i, one in enumerate(objects, 1))
    return b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R>>\n%%EOF\n"


def writer_pdf(p: Params) -> States:
    path, text = p["pdf"], p["text"]
    datas: dict[str, bytes] = {
        "five letters": b"%PDF-",
        "no page": b"%PDF-1.4\n%%EOF\n",
        "an empty page": pdf([]),
        "the first line alone": pdf(text[:1]),
        "without the last line": pdf(text[:-1]),
        "another document": pdf(["Dear Ms Park,", "your parcel has come."]),
        "the lines turned round": pdf(text[::-1]),
        "twice": pdf([*text, *text]),
        "in capitals": pdf([line.upper() for line in text]),
        "the document itself": odt(text),
        "plain text": "\n".join(text).encode(),
        "plain text with the first letters": b"%PDF-1.4\n" + "\n".join(text).encode(),
        "cut in half": pdf(text)[: len(pdf(text)) // 2],
    }
    return put(path, pdf(text)), {name: put(path, one) for name, one in datas.items()} | misplaced(path, pdf(text))


STATES: dict[str, Callable[[Params], States]] = {
    "calc-formula": calc_formula, "calc-change": calc_change, "calc-sort": calc_sort, "calc-sheet": calc_sheet,
    "calc-csv": calc_csv, "calc-bold": calc_bold,
    "writer-replace": writer_replace, "writer-append": writer_append, "writer-style": writer_style,
    "writer-pdf": writer_pdf,
}  # fmt: skip
