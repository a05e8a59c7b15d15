"""Checkers of the desktop's own tasks that OSWorld does not have: what they let through, and what they refuse."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
from document_states import ods, odt

from arpo.envs.desktop.checks import METRICS
from arpo.envs.desktop.checks.pdf import pdf_text
from arpo.envs.evaluators import Unreadable

ROWS: list[list[Any]] = [["n", "v"], ["x", 2], ["y", 3]]
CELLS = {"A1": "n", "B1": "v", "A2": "x", "B2": 2, "A3": "y", "B3": 3}
CMAP = b"begincmap 1 begincodespacerange <00> <FF> endcodespacerange 2 beginbfchar <01> <0048> <02> <0069> endbfchar"


def file(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


@pytest.mark.parametrize(
    ("answer", "score"),
    [("212", 1), ("It is 212 metres long.", 1), ("212 or 9", 0), ("2120", 0), ("-212", 0), ("212,5", 0), ("long", 0)],
)
def test_an_answer_names_just_the_numbers(answer: str, score: float) -> None:
    assert METRICS["check_numbers"](answer, {"expected": [212]}) == score


@pytest.mark.parametrize(
    ("more", "score"), [({}, 1), ({"two": []}, 0), ({"two": ROWS}, 0)], ids=["alone", "an empty sheet", "another sheet"]
)
def test_only_these_cells_are_there(tmp_path: Path, more: dict[str, Any], score: float) -> None:
    path = file(tmp_path, "a.ods", ods({"one": ROWS, **more}))
    assert METRICS["check_cells"](path, CELLS, only=True) == score
    assert METRICS["check_cells"](path, CELLS) == 1
    assert METRICS["check_cells"](path, {"A1": "n", "C9": None}, only=True) == 0


@pytest.mark.parametrize(
    ("formula", "score"),
    [
        ("SUM([.B2:.B3])", 1),
        ("[.B2]+[.B3]", 1),
        ("SUM([.$B$1:.$B$9])", 1),
        ("5", 0),
        ("[.B2]+3", 0),
        ("SUM([.A2:.A3])", 0),
    ],
)
def test_a_formula_looks_at_its_cells(tmp_path: Path, formula: str, score: float) -> None:
    path = file(tmp_path, "a.ods", ods({"one": [*ROWS, [None, (formula, 5)]]}))
    assert METRICS["check_cells"](path, {"B4": 5}, formulas={"B4": ["B2", "B3"]}) == score
    assert METRICS["check_cells"](path, {"B4": 5}, sheet="one", formulas={"B4": ["B2", "B3"]}) == score
    assert METRICS["check_cells"](path, {"B4": 5}, sheet="two", formulas={"B4": ["B2", "B3"]}) == 0


def test_only_these_texts_have_a_style(tmp_path: Path) -> None:
    rules = {"text": "b c", "property": "font-weight", "expected": "bold", "only": True}
    for at, part, score in (((1,), "", 1), ((1, 2), "", 0), ((0,), "", 0), ((1,), "c", 0)):
        path = file(tmp_path, "a.odt", odt(["a", "b c", "d"], "font-weight=bold", at=at, part=part))
        assert METRICS["check_style"](path, rules) == score, (at, part)
    both = file(tmp_path, "a.ods", ods({"one": ROWS}, lambda i, j: i == 0))
    assert METRICS["check_style"](both, {**rules, "text": ["n", "v"]}) == 1
    assert METRICS["check_style"](both, {**rules, "text": ["n"]}) == 0


def test_the_text_of_a_pdf_is_read_by_its_fonts_letters(tmp_path: Path) -> None:
    drawn = zlib.compress(b"BT /F1 12 Tf [<01>-5<02>] TJ ET")
    data = (
        b"%%PDF-1.4\n1 0 obj <</Type/Page>> endobj\n2 0 obj <</F1 3 0 R>> endobj\n3 0 obj <</ToUnicode 4 0 R>> endobj\n"
    )
    data += b"4 0 obj <</Length 9>>\nstream\n%s\nendstream endobj\n" % CMAP
    data += b"5 0 obj <</Filter/FlateDecode>>\nstream\n%s\nendstream endobj\n" % drawn
    path = file(tmp_path, "a.pdf", data.replace(b"%%", b"%"))
    assert pdf_text(path) == "Hi\n"
    assert METRICS["check_pdf"](path, {"expected": ["H", "i"]}) == 1


BOMB = zlib.compress(bytes(64 << 20))
PAGE = b"%PDF-1.4\n1 0 obj <</Type/Page>> endobj\n"


@pytest.mark.attack("agent")
@pytest.mark.parametrize(
    "data",
    [
        b"", b"%PDF-", PAGE.replace(b"Page", b"Pages"),
        PAGE + b"2 0 obj <</Filter/FlateDecode>>\nstream\n" + BOMB,
        PAGE + b"2 0 obj <</Filter/FlateDecode>>\nstream\nnot deflated",
        PAGE + b"2 0 obj\nstream\nbegincmap beginbfrange " + b"<0000> <FFFF> <0041> " * 99,
        PAGE + b"2 0 obj\nstream\nbegincmap beginbfchar <01> <D800> endbf",
        PAGE + b"2 0 obj\nstream\nBT <123> Tj ET",
    ],
    ids=["empty", "no page", "pages without one", "a bomb", "not deflated", "many letters",
         "half a letter", "half a code"],
)  # fmt: skip
def test_a_pdf_that_is_made_to_harm_is_unreadable(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Unreadable):
        pdf_text(file(tmp_path, "a.pdf", data))


@pytest.mark.attack("agent")
@pytest.mark.parametrize("part", [b"beginbf ", b"BT (", b"BT <0", b"7 0 obj ", b"stream\n", b"/F1 1 0 R "])
def test_a_pdf_of_one_part_over_and_over_takes_no_longer_than_its_length(tmp_path: Path, part: bytes) -> None:
    """Were it the square of that, this would not end."""
    assert pdf_text(file(tmp_path, "a.pdf", PAGE + b"2 0 obj\nstream\nbegincmap " + part * 300_000)).strip() == ""
