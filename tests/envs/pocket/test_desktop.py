"""The shell: what clicks, keys, drags and scrolls do to windows, menus and dialogs, seen through the screen parse."""

import time

import pytest
from machine import Machine

from arpo.agent.actions import Click, Drag, Hotkey, Scroll, Type
from arpo.envs.pocket.desktop import MAX_WINDOWS, SPARE, TASKBAR
from arpo.envs.pocket.vfs import DEEPEST, DISK_LIMIT
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


def test_a_click_on_another_menus_name_opens_that_one(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.click("File", kind="menu")
    machine.click("Edit", kind="menu")
    assert machine.shows("Select all", kind="menuitem") and not machine.shows("Save as", kind="menuitem")
    machine.click("Edit", kind="menu")
    assert machine.desk.menu is None


def test_a_typed_enter_chooses_from_a_menu_and_letters_close_it(machine: Machine) -> None:
    machine.keys("win")
    machine.keys("up")
    machine.do(Type("\n"))
    assert machine.titles == ["Settings"]  # the last entry
    machine.keys("win")
    machine.do(Type("abc"))
    assert machine.desk.menu is None
    machine.keys("win")
    machine.keys("win")
    assert machine.desk.menu is None


def test_an_icon_and_a_taskbar_entry_have_context_menus(machine: Machine) -> None:
    machine.click("Editor", kind="icon", button="right")
    machine.click("Open", kind="menuitem")
    machine.do(Type("hello"))
    machine.click("*Untitled", kind="task", button="right")
    machine.click("Minimise", kind="menuitem")
    assert machine.titles == []
    machine.click("*Untitled", kind="task", button="right")
    machine.click("Close", kind="menuitem")
    assert machine.shows("Unsaved changes", kind="title")
    machine.click("*Untitled", kind="task", button="right")
    machine.click("Close", kind="menuitem")
    assert len(machine.desk.windows[-1].dialogs) == 1  # the question is asked once


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
    assert machine.titles == [] and machine.desk.files.read("/Documents/hello.txt") == "hello"
    machine.desk.open_file("/Documents/hello.txt")
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


def test_a_capital_letter_and_shift_with_a_letter_type_a_capital(machine: Machine) -> None:
    machine.desk.launch("Editor")
    machine.do(Hotkey(("shift", "a")), Hotkey(("B",)), Hotkey(("c",)), Hotkey(("space",)), Hotkey(("+",)))
    assert machine.find("text", kind="area").value == "ABc +"


def test_shift_and_tab_go_back_to_the_field_before(machine: Machine) -> None:
    machine.desk.launch("Editor", (100, 20))
    machine.do(Type("one two"), Hotkey(("ctrl", "h")), Type("two\tsix"), Hotkey(("shift", "tab")), Type("one\n"))
    assert machine.find("text", kind="area").value == "six two"


def test_alt_and_an_arrow_go_back_in_the_browser_while_the_address_is_edited(machine: Machine) -> None:
    machine.desk.launch("Browser")
    machine.do(Hotkey(("ctrl", "l")), Type("shop.web\n"), Hotkey(("ctrl", "l")), Hotkey(("alt", "left")))
    assert machine.find("Address", kind="field").value == "home.web"


def test_a_file_that_is_open_is_not_opened_twice(machine: Machine) -> None:
    machine.desk.files.write("/Documents/plan.txt", "buy milk")
    for app in ("Files", "Calculator", "Files"):
        machine.desk.launch(app, (0, 0))
        if app == "Files":
            machine.desk.open_file("/Documents/plan.txt")
    assert sorted(machine.titles) == ["Calculator", "Files", "plan.txt"] and machine.titles[-1] == "plan.txt"


def test_the_editor_opens_any_file_as_text(machine: Machine) -> None:
    machine.desk.files.write("/Documents/plan.csv", "a,b")
    machine.desk.launch("Editor", (100, 20))
    machine.do(Hotkey(("ctrl", "o")), Type("plan.csv\n"))
    assert machine.titles == ["plan.csv"] and machine.find("text", kind="area").value == "a,b"


def test_a_file_cannot_be_saved_under_the_name_of_a_folder(machine: Machine) -> None:
    machine.desk.files.make_folder("/Documents/trips")
    machine.desk.launch("Editor")
    machine.do(Type("hello"), Hotkey(("ctrl", "s")), Type("trips\n"))
    assert machine.shows("A folder has this name.") and "/Documents/trips" not in machine.desk.files.files


@pytest.mark.parametrize("size", [(336, 224), (448, 230), (448, 280), (1920, 1080)])
def test_every_window_leaves_room_to_be_moved(size: tuple[int, int]) -> None:
    machine = Machine(size=size)
    for app in machine.desk.apps:
        w, h = machine.desk.window_size(machine.desk.apps[app])
        assert w <= machine.desk.w - SPARE and h <= machine.desk.h - TASKBAR - SPARE


def test_a_menu_with_a_very_long_entry_stays_on_the_screen_and_says_that_it_is_cut() -> None:
    machine = Machine(size=(336, 224))
    machine.desk.launch("Browser", (0, 0))
    address = "x" * 150
    machine.do(Hotkey(("ctrl", "l")), Type(f"{address}\n"), Hotkey(("ctrl", "d")))
    machine.click("Bookmarks", kind="menu")
    entry = machine.find(address, kind="menuitem")
    assert "cut" in entry.state and entry.box[2] <= 336
    machine.click(address, kind="menuitem")
    assert machine.find("Address", kind="field").value == address


def test_a_long_text_in_a_field_shows_its_end_while_edited_and_its_beginning_after(machine: Machine) -> None:
    machine.desk.launch("Mail", (60, 0))
    machine.do(Hotkey(("ctrl", "n")), Type("Ada\tfirst " + "word " * 20 + "last"))
    assert {"last"} <= set(dict(machine.env.words())) and "first" not in dict(machine.env.words())
    machine.do(Type("\t"))
    assert "first" in dict(machine.env.words()) and "last" not in dict(machine.env.words())


def test_folders_copied_into_each_other_fill_the_disk_and_no_more(machine: Machine) -> None:
    machine.desk.files.make_folder("/Documents/a")
    machine.desk.launch("Files", (60, 0))
    for i in range(14):  # each round doubles what is there: a copy of the folder goes into it
        machine.do(Type("a"), Hotkey(("ctrl", "c")), Hotkey(("ctrl", "v")))
        if machine.shows("The disk is full."):
            break
        machine.do(Hotkey(("f2",)), Type(f"n{i}\n"), Hotkey(("ctrl", "x")), Type("a\n"), Hotkey(("ctrl", "v")))
        machine.keys("backspace")
    assert 6 < i < 13 and len(machine.desk.files.folders) <= DISK_LIMIT


def test_folders_within_folders_come_to_an_end(machine: Machine) -> None:
    machine.desk.launch("Files", (60, 0))
    for _ in range(2 * DEEPEST):
        machine.click("File", kind="menu")
        machine.click("New folder", kind="menuitem")
        machine.do(Type("a\n"))
        if machine.shows("The folders are too deep."):
            break
        machine.keys("enter")
    assert max(path.count("/") for path in machine.desk.files.folders) == DEEPEST


STRANGE = [
    "x" * 100_000,
    "\n" * 100_000,
    "a\tb\n" * 30_000,
    "\ud800\udfff",
    "שלום",
    "e\u0301\u0302",
    "👩‍👩‍👧",
    "\u3000中",
    "𓀀" * 9999,
]


@pytest.mark.parametrize("app", ["Files", "Editor", "Mail", "Browser", "Sheet", "Calculator", "Settings", ""])
def test_strange_and_endless_texts_are_typed_anywhere_within_a_second(machine: Machine, app: str) -> None:
    if app:
        machine.desk.launch(app)
    for text in STRANGE:
        for action in (Type(text), Hotkey(("enter",)), Hotkey(("ctrl", "n")), Type(text), Hotkey(("esc",))):
            begin = time.process_time()
            machine.do(action)
            machine.env.pixels()
            assert time.process_time() - begin < 1
