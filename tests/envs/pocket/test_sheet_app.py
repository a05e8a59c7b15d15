"""The spreadsheet and its formulas."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Machine

from arpo.agent.actions import Hotkey, Scroll, Type
from arpo.envs.pocket.apps.formulas import COLUMNS, ERROR, ROWS, evaluate, number
from arpo.envs.pocket.apps.sheet import Sheet, from_csv, to_csv
from arpo.envs.pocket.vfs import FileProblem

PATH = "/Documents/trip.csv"
TABLE = "Name,Price,Days\nCleo,12,3\nAda,7,10\nBen,30,2\n"


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.desk.files.write(PATH, TABLE)
    app = machine.desk.launch("Sheet", (60, 5))
    assert app is not None
    app.open_path(PATH)
    return machine


def value(machine: Machine, name: str) -> str:
    return machine.find(name, kind="cell").value


def column(machine: Machine, letter: str, last: int) -> list[str]:
    return [value(machine, f"{letter}{row}") for row in range(1, last + 1)]


def test_a_click_picks_a_cell_and_typing_replaces_it(machine: Machine) -> None:
    machine.click("B2")
    assert "selected" in machine.find("B2").state
    assert machine.find("Cell").value == "12"
    machine.do(Type("99\n"))
    assert value(machine, "B2") == "99"
    assert "selected" in machine.find("B3").state
    assert machine.titles == ["*trip.csv"]


def test_a_click_on_another_cell_keeps_what_was_typed_and_esc_does_not(machine: Machine) -> None:
    machine.click("B2")
    machine.do(Type("99"))
    machine.click("C3")
    assert value(machine, "B2") == "99"
    machine.do(Type("5"))
    machine.keys("esc")
    assert value(machine, "C3") == machine.find("Cell").value == "10"


def test_a_double_click_edits_the_text_that_is_there(machine: Machine) -> None:
    machine.click("B2", count=2)
    assert "focused" in machine.find("Cell").state
    machine.keys("end")
    machine.do(Type("5\n"))
    assert value(machine, "B2") == "125"


def test_tab_and_arrows_move_between_cells(machine: Machine) -> None:
    machine.click("A6")
    machine.do(Type("Dan\t4\t1\n"))
    assert [value(machine, name) for name in ("A6", "B6", "C6")] == ["Dan", "4", "1"]
    for key in ("up", "left", "left", "left"):
        machine.keys(key)
    assert "selected" in machine.find("A6").state


def test_delete_clears_and_undo_brings_back(machine: Machine) -> None:
    machine.click("B2")
    machine.keys("delete")
    assert value(machine, "B2") == ""
    machine.click("Edit", kind="menu")
    machine.click("Undo", kind="menuitem")
    assert value(machine, "B2") == machine.find("Cell").value == "12"
    assert machine.titles == ["trip.csv"]
    machine.click("Edit", kind="menu")
    assert "disabled" in machine.find("Undo", kind="menuitem").state


def test_cells_are_copied_cut_and_pasted(machine: Machine) -> None:
    machine.click("B2")
    machine.keys("ctrl", "c")
    machine.click("E5")
    machine.keys("ctrl", "v")
    machine.click("B3", button="right")
    machine.click("Cut", kind="menuitem")
    machine.click("E6", button="right")
    machine.click("Paste", kind="menuitem")
    assert [value(machine, name) for name in ("B2", "E5", "B3", "E6")] == ["12", "12", "", "7"]


def test_formulas_follow_the_cells_that_they_name(machine: Machine) -> None:
    machine.click("D2")
    machine.do(Type("=B2*C2\n"))
    machine.do(Type("=SUM(B2:B4)\n"))
    assert (value(machine, "D2"), value(machine, "D3")) == ("36", "49")
    machine.click("B2")
    machine.do(Type("1\n"))
    assert (value(machine, "D2"), value(machine, "D3")) == ("3", "38")
    machine.click("D2")
    assert machine.find("Cell").value == "=B2*C2"


def test_sorting_keeps_the_header_and_the_rows_together(machine: Machine) -> None:
    machine.click("B3")
    machine.click("Data", kind="menu")
    machine.click("Sort B up", kind="menuitem")
    assert column(machine, "A", 5) == ["Name", "Ada", "Cleo", "Ben", ""]
    machine.click("A1")
    machine.click("Data", kind="menu")
    machine.click("Sort A down", kind="menuitem")
    assert column(machine, "A", 5) == ["Name", "Cleo", "Ben", "Ada", ""]
    machine.keys("ctrl", "z")
    machine.keys("ctrl", "z")
    assert column(machine, "C", 4) == ["Days", "3", "10", "2"]


def test_saving_takes_what_is_being_typed_and_writes_formulas_as_text(machine: Machine) -> None:
    machine.click("D1")
    machine.do(Type("=1+1"))
    machine.keys("ctrl", "s")
    assert machine.desk.files.read(PATH).startswith("Name,Price,Days,=1+1\n")
    assert machine.titles == ["trip.csv"]


def test_a_new_sheet_is_saved_under_a_name(machine: Machine) -> None:
    machine.keys("ctrl", "n")
    machine.do(Type("tea\n"))
    machine.keys("ctrl", "s")
    machine.do(Type("tea.csv\n"))
    assert machine.desk.files.read("/Documents/tea.csv") == "tea\n"
    assert machine.titles == ["trip.csv", "tea.csv"]


def test_an_empty_new_sheet_is_filled_by_open_and_a_full_one_is_left_alone(machine: Machine) -> None:
    machine.desk.windows.clear()
    machine.desk.files.write("/Documents/plan.csv", "a,b")
    machine.desk.launch("Sheet")
    for name in ("trip.csv", "plan.csv", "trip.csv"):  # the last is open already
        machine.keys("ctrl", "o")
        machine.do(Type(f"{name}\n"))
    assert machine.titles == ["plan.csv", "trip.csv"]


def test_a_file_that_is_no_table_of_this_size_is_not_opened_and_not_overwritten(machine: Machine) -> None:
    machine.desk.files.write("/Documents/long.csv", "a\n" * 40)
    machine.desk.windows.clear()
    machine.desk.launch("Sheet")
    machine.do(Hotkey(("ctrl", "o")), Type("long.csv\n"))
    assert machine.shows("This table is too large.") and machine.titles == ["New sheet"]
    machine.keys("esc")
    machine.do(Type("x\n"), Hotkey(("ctrl", "s")))
    assert machine.shows("Save as", kind="title") and machine.desk.files.read("/Documents/long.csv") == "a\n" * 40


def test_closing_with_unsaved_changes_asks(machine: Machine) -> None:
    machine.do(Type("x"))
    machine.click("close")
    assert machine.shows("Unsaved changes", kind="title")
    machine.click("Cancel")
    machine.click("close")
    machine.click("Discard")
    assert machine.titles == [] and machine.desk.files.read(PATH) == TABLE


def test_the_wheel_and_the_arrows_reach_the_last_row(machine: Machine) -> None:
    assert not machine.shows("A12", kind="cell")
    machine.do(Scroll(*machine.find("B3").centre, "down"), Scroll(*machine.find("B7").centre, "down"))
    assert machine.shows("A12", kind="cell") and not machine.shows("A1", kind="cell")
    for _ in range(12):
        machine.keys("up")
    assert machine.shows("A1", kind="cell")


def test_a_table_that_is_too_large_is_refused(machine: Machine) -> None:
    machine.desk.files.write("/Documents/big.csv", "1,2,3,4,5,6\n")
    machine.keys("ctrl", "o")
    machine.do(Type("big.csv\n"))
    assert machine.shows("This table is too large.", kind="text")
    with pytest.raises(FileProblem):
        from_csv("a\n" * (ROWS + 1))


@given(
    st.lists(
        st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=6), max_size=5), max_size=12
    )
)
def test_csv_text_comes_back_as_the_same_cells(rows: list[list[str]]) -> None:
    cells = [[*row, *[""] * (len(COLUMNS) - len(row))] for row in rows]
    cells += [[""] * len(COLUMNS) for _ in range(ROWS - len(cells))]
    assert from_csv(to_csv(cells)) == cells


def shown(*rows: str) -> list[list[str]]:
    return evaluate([row.split("|") + [""] * (len(COLUMNS) - len(row.split("|"))) for row in rows])


@pytest.mark.parametrize(
    ("formula", "result"),
    [
        ("=1+2*3", "7"),
        ("=(1+2)*3", "9"),
        ("=-2*-3", "6"),
        ("= a1 + B1", "5"),
        ("=SUM(A1:B1)", "5"),
        ("=SUM(B1:A1, 10)", "15"),
        ("=AVG(A1:C1)", "2.5"),
        ("=MIN(A1:B1)", "2"),
        ("=MAX(A1:B1)*2", "6"),
        ("=COUNT(A1:C1)", "2"),
        ("=1/3", "0.3333"),
        ("=D1+1", "1"),
        ("=1/0", ERROR),
        ("=C1+1", ERROR),
        ("=E1", ERROR),
        ("=Z9", ERROR),
        ("=A13", ERROR),
        ("=AVG(D1:D1)", ERROR),
        ("=FOO(1)", ERROR),
        ("=1+", ERROR),
        ("=(1", ERROR),
        ("=1 2", ERROR),
        ("=", ERROR),
        ("=A1:B1", ERROR),
        ("=__import__('os')", ERROR),
        ("=9999999999*9999999999", ERROR),
    ],
)
def test_formulas(formula: str, result: str) -> None:
    assert shown(f"2|3|word||{formula}")[0][4] == result


def test_a_circle_of_references_is_an_error_and_the_rest_is_not() -> None:
    assert shown("=B1|=C1|=A1|5|=D1")[0] == [ERROR, ERROR, ERROR, "5", "5"]


def test_a_long_chain_of_references_is_worked_out_and_deep_brackets_are_refused() -> None:
    names = [f"{letter}{row}" for letter in COLUMNS for row in range(1, ROWS + 1)]
    cells = [[""] * len(COLUMNS) for _ in range(ROWS)]
    for i, name in enumerate(names):
        follower = names[i + 1] if i + 1 < len(names) else ""
        cells[int(name[1:]) - 1][COLUMNS.index(name[0])] = f"={follower}+1" if follower else "1"
    assert evaluate(cells)[0][0] == "60"
    for row in cells:
        row[:] = ["=" + "(" * 30 + text[1:] + ")" * 30 if text[0] == "=" else text for text in row]
    assert evaluate(cells)[0][0] == ERROR


pieces = st.sampled_from(
    ["=", "(", ")", "+", "-", "*", "/", ":", ",", ".", " ", "SUM", "MAX", "A1", "B2", "7", "1e9", "é"]
)


@given(st.lists(st.one_of(st.text(max_size=100), st.lists(pieces, max_size=60).map("".join)), max_size=10))
@settings(deadline=None)
def test_no_text_breaks_the_formulas_and_the_work_is_bounded(texts: list[str]) -> None:
    cells = [[""] * len(COLUMNS) for _ in range(ROWS)]
    for i, text in enumerate(texts):
        cells[i // 5][i % 5] = f"={text}"
    began = time.process_time()
    values = evaluate(cells)
    assert time.process_time() - began < 0.5
    for row in values:
        assert all(v in ("", ERROR) or number(v) is not None for v in row)


def test_typing_into_a_sheet_that_nobody_sees_does_nothing(machine: Machine) -> None:
    machine.click("minimise")
    machine.do(Type("zzz\n"))
    app = machine.desk.windows[0].app
    assert isinstance(app, Sheet) and not app.unsaved
