"""The shell: what clicks, keys, drags and scrolls do to windows, menus and dialogs, seen through the screen parse."""

import pytest
from machine import Machine

from arpo.agent.actions import Click, Drag, Hotkey, Scroll, Type
from arpo.envs.pocket.desktop import MAX_WINDOWS
from arpo.errors import ActionError


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_an_application_starts_from_its_icon_by_a_double_click_and_from_the_menu(machine: Machine) -> None:
    machine.click("Calculator", kind="icon")
    assert machine.titles == []
    machine.click("Calculator", kind="icon", count=2)
    assert machine.titles == ["Calculator"]
    machine.click("Menu", kind="launcher")
    machine.click("Settings", kind="menuitem")
    assert machine.titles == ["Calculator", "Settings"]


def test_a_single_window_application_is_not_started_twice(machine: Machine) -> None:
    machine.desk.launch("Files")
    machine.desk.launch("Settings")
    machine.desk.launch("Files")
    assert machine.titles == ["Settings", "Files"]


def test_a_click_on_a_window_behind_brings_it_to_the_front(machine: Machine) -> None:
    machine.desk.launch("Files", (150, 0))
    machine.desk.launch("Settings", (0, 50))
    machine.click("Files", kind="title")
    assert machine.titles == ["Settings", "Files"]


def test_the_taskbar_minimises_the_active_window_and_brings_any_other_to_the_front(machine: Machine) -> None:
    machine.desk.launch("Files")
    machine.desk.launch("Settings")
    machine.click("Settings", kind="task")
    assert machine.titles == ["Files"]
    machine.click("Settings", kind="task")
    assert machine.titles == ["Files", "Settings"]
    machine.click("Files", kind="task")
    assert machine.titles == ["Settings", "Files"]


def test_a_covered_control_is_not_in_the_parse_and_cannot_be_clicked(machine: Machine) -> None:
    machine.desk.launch("Calculator", (100, 20))
    button = machine.find("C", window="Calculator")
    machine.desk.launch("Files", (60, 10))
    machine.env.restore(machine.env.snapshot())
    assert not any(c.label == "C" and c.window == "Calculator" for c in machine.env.parse())
    machine.do(Click(*button.centre))
    assert machine.env.desk.active is not None and machine.env.desk.active.app.name == "Files"


def test_a_window_is_dragged_by_its_title_and_stays_on_the_screen(machine: Machine) -> None:
    machine.desk.launch("Files", (50, 50))
    x, y = machine.find("Files", kind="title").centre
    machine.do(Drag(x, y, x + 30, y + 10))
    window = machine.desk.windows[-1]
    assert (window.x, window.y) == (80, 60)
    machine.do(Drag(*machine.find("Files", kind="title").centre, 447, 279))
    assert window.x + window.w <= 448 and window.y + window.h <= 280


def test_a_click_beside_an_open_menu_only_closes_it(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    close = machine.find("close", kind="close")
    machine.click("File", kind="menu")
    assert machine.shows("Save as", kind="menuitem")
    machine.do(Click(*close.centre))
    assert not machine.shows("Save as", kind="menuitem") and machine.titles == ["Untitled"]


def test_arrow_keys_and_enter_choose_from_a_menu_and_esc_closes_it(machine: Machine) -> None:
    machine.keys("win")
    machine.keys("down")
    machine.keys("down")
    machine.keys("enter")
    assert len(machine.titles) == 1
    machine.keys("win")
    machine.keys("esc")
    assert machine.desk.menu is None and len(machine.titles) == 1


def test_a_disabled_menu_entry_does_nothing(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.click("Edit", kind="menu")
    assert "disabled" in machine.find("Undo", kind="menuitem").state
    machine.click("Undo", kind="menuitem")
    assert machine.desk.menu is not None


def test_a_dialog_blocks_its_window_and_not_the_others(machine: Machine) -> None:
    machine.desk.launch("Calculator", (0, 0))
    machine.desk.launch("Editor", (200, 20))
    machine.do(Type("hello"))
    machine.keys("alt", "f4")
    assert machine.shows("Unsaved changes", kind="title")
    assert "blocked" in machine.find("File", kind="menu").state
    machine.click("File", kind="menu")
    assert machine.desk.menu is None
    machine.click("Calculator", kind="title")
    assert machine.titles[-1] == "Calculator"


def test_closing_unsaved_work_asks_and_each_answer_does_what_it_says(machine: Machine) -> None:
    machine.desk.launch("Editor")
    machine.do(Type("hello"))
    machine.click("close", kind="close")
    machine.click("Cancel", kind="button")
    assert machine.titles == ["*Untitled"]
    machine.click("close", kind="close")
    machine.click("Save", kind="button")
    machine.do(Type("hello.txt\n"))
    assert machine.desk.files.read("/Documents/hello.txt") == "hello"
    machine.do(Type(" again"))
    machine.click("close", kind="close")
    machine.click("Discard", kind="button")
    assert machine.titles == [] and machine.desk.files.read("/Documents/hello.txt") == "hello"


def test_saving_over_another_file_asks_first(machine: Machine) -> None:
    machine.desk.files.write("/Documents/taken.txt", "old")
    machine.desk.launch("Editor")
    machine.do(Type("new"), Hotkey(("ctrl", "s")), Type("taken.txt\n"))
    assert machine.shows("Replace file", kind="title")
    machine.click("Cancel", kind="button", window="Replace file")
    assert machine.desk.files.read("/Documents/taken.txt") == "old" and machine.shows("Save as", kind="title")
    machine.click("Save", kind="button", window="Save as")
    machine.click("Replace", kind="button")
    assert machine.desk.files.read("/Documents/taken.txt") == "new"


def test_text_is_copied_from_one_window_and_pasted_into_another(machine: Machine) -> None:
    machine.desk.launch("Editor", (0, 0))
    machine.do(Type("carry me"), Hotkey(("ctrl", "a")), Hotkey(("ctrl", "c")))
    machine.desk.launch("Editor", (200, 60))
    machine.keys("ctrl", "v")
    assert machine.desk.windows[-1].app.box.text == "carry me"  # type: ignore[attr-defined]


def test_a_right_click_in_a_text_offers_the_clipboard(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.do(Type("some words"), Hotkey(("ctrl", "a")))
    machine.do(Click(*machine.find("text", kind="area").centre, "right"))
    machine.click("Cut", kind="menuitem")
    assert machine.desk.clipboard == "some words" and machine.find("text", kind="area").value == ""


def test_a_drag_and_a_double_click_select_text(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.do(Type("alpha beta"))
    line = machine.find("alpha beta", kind="line")
    x, y = line.box[0] + 1, line.centre[1]
    machine.do(Click(x + 8, y, count=2))
    assert machine.desk.windows[-1].app.box.selected == "alpha"  # type: ignore[attr-defined]
    machine.do(Drag(x, y, x + 200, y))
    assert machine.desk.windows[-1].app.box.selected == "alpha beta"  # type: ignore[attr-defined]


def test_a_long_text_scrolls_and_typing_brings_the_caret_back_into_sight(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.do(Type("\n".join(f"line {n}" for n in range(40))))
    assert machine.shows("line 39", kind="line") and not machine.shows("line 0", kind="line")
    for _ in range(15):
        machine.do(Scroll(*machine.find("text", kind="area").centre, "up"))
    assert machine.shows("line 0", kind="line") and not machine.shows("line 39", kind="line")
    machine.do(Type("!"))
    assert machine.shows("line 39!", kind="line")


def test_tab_goes_from_field_to_field(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.do(Type("one one"), Hotkey(("ctrl", "h")), Type("one\ttwo\n"))
    assert machine.find("text", kind="area").value == "two two"


def test_a_held_shift_key_extends_the_selection_until_it_is_let_go(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.do(Type("abc"), Hotkey(("shift",), "down"), Hotkey(("left",)), Hotkey(("left",)), Hotkey(("shift",), "up"))
    assert machine.desk.windows[-1].app.box.selected == "bc"  # type: ignore[attr-defined]
    machine.keys("left")
    assert machine.desk.windows[-1].app.box.selected == ""  # type: ignore[attr-defined]


def test_alt_tab_shows_the_other_window_and_alt_f4_closes_the_active_one(machine: Machine) -> None:
    machine.desk.launch("Files")
    machine.desk.launch("Calculator")
    machine.keys("alt", "tab")
    assert machine.titles[-1] == "Files"
    machine.keys("alt", "f4")
    assert machine.titles == ["Calculator"]


def test_a_seventh_window_is_refused_with_a_notice(machine: Machine) -> None:
    for _ in range(MAX_WINDOWS + 1):
        machine.keys("win")
        machine.click("Editor", kind="menuitem")
    assert len(machine.desk.windows) == MAX_WINDOWS and machine.shows("Too many open windows", kind="notice")
    machine.keys("esc")
    assert not machine.shows("Too many open windows", kind="notice")


def test_control_characters_are_not_typed(machine: Machine) -> None:
    machine.desk.launch("Editor")
    machine.do(Type("a\x00b\x1b[31mc\u202ed"))
    assert machine.find("text", kind="area").value == "ab[31mcd"


def test_an_unknown_key_is_refused_and_nothing_happens(machine: Machine) -> None:
    machine.desk.launch("Editor")
    before = machine.env.pixels()
    with pytest.raises(ActionError, match="unknown key 'hyper'"):
        machine.keys("ctrl", "hyper")
    assert (machine.env.pixels() == before).all()
