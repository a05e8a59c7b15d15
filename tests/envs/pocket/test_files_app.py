"""The file manager, used as a person does: what is clicked, what is then on the screen and in the file system."""

import pytest
from machine import Machine

from arpo.agent.actions import Click, Drag, Scroll, Type
from arpo.envs.pocket.vfs import FileSystem


@pytest.fixture
def machine() -> Machine:
    """Files shows Documents with a folder and two files; there is one file in the trash and one in Downloads."""
    machine = Machine()
    files = machine.desk.files = FileSystem()
    files.write("/Documents/plan.txt", "buy milk", kb=7)
    files.write("/Documents/cake.png", "", kb=40)
    files.make_folder("/Documents/trips")
    files.write("/Downloads/song.txt", "la la")
    files.write("/Pictures/old.txt", "old")
    files.trash("/Pictures/old.txt")
    machine.desk.launch("Files", (100, 20))
    return machine


def rows(machine: Machine) -> list[str]:
    """The names in the list, top to bottom."""
    places = ("Documents", "Downloads", "Pictures", "Trash")
    return [c.label for c in machine.env.parse() if c.kind == "row" and c.label not in places]


def drag(machine: Machine, source: str, target: str) -> None:
    machine.do(Drag(*machine.find(source, "row").centre, *machine.find(target, "row").centre))


def menu(machine: Machine, name: str, entry: str) -> None:
    machine.click(name, kind="menu")
    machine.click(entry, kind="menuitem")


def context(machine: Machine, row: str, entry: str) -> None:
    machine.click(row, kind="row", button="right")
    machine.click(entry, kind="menuitem")


def background(machine: Machine) -> None:
    """Right-click below the last row."""
    x, y = machine.find(rows(machine)[-1], "row").centre
    machine.do(Click(x, y + 40, button="right"))


def test_the_list_shows_folders_first_then_files_with_their_sizes(machine: Machine) -> None:
    assert rows(machine) == ["trips", "cake.png", "plan.txt"]
    assert machine.find("plan.txt", "row").value == "7 kB"
    assert machine.find("trips", "row").value == ""


def test_sorting_by_size_puts_the_largest_file_first(machine: Machine) -> None:
    machine.desk.files.write("/Documents/zoo.txt", "", kb=99)
    menu(machine, "View", "Sort by size")
    assert rows(machine) == ["trips", "zoo.txt", "cake.png", "plan.txt"]
    background(machine)
    machine.click("Sort by name", kind="menuitem")
    assert rows(machine) == ["trips", "cake.png", "plan.txt", "zoo.txt"]


def test_a_double_click_opens_a_folder_and_up_leads_back_and_no_further(machine: Machine) -> None:
    assert "disabled" in machine.find("Up", "button").state
    machine.click("trips", kind="row", count=2)
    assert machine.shows("Documents/trips", "text") and rows(machine) == []
    machine.click("Up", kind="button")
    assert machine.shows("Documents", "text")
    machine.keys("backspace")
    assert machine.shows("Documents", "text")


def test_a_double_click_opens_a_file_with_its_application(machine: Machine) -> None:
    machine.click("plan.txt", kind="row", count=2)
    assert machine.titles == ["Files", "plan.txt"]
    assert machine.find("text", "area").value == "buy milk"


def test_a_file_that_no_application_opens_says_so(machine: Machine) -> None:
    machine.click("cake.png", kind="row")
    machine.keys("enter")
    assert machine.shows("No app opens cake.png.")


def test_rename_keeps_the_content_and_selects_the_new_name(machine: Machine) -> None:
    context(machine, "plan.txt", "Rename")
    machine.do(Type("list.txt\n"))
    assert rows(machine) == ["trips", "cake.png", "list.txt"]
    assert machine.desk.files.files["/Documents/list.txt"].text == "buy milk"
    assert "selected" in machine.find("list.txt", "row").state


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("cake.png", "cake.png exists already."),
        ("", "Please enter a name."),
        ("a/b", "The name has a bad character."),
        ("x" * 40, "The name is too long."),
    ],
)
def test_a_name_that_cannot_be_used_is_a_problem_in_the_dialog(machine: Machine, name: str, problem: str) -> None:
    machine.click("plan.txt", kind="row")
    machine.keys("f2")
    machine.keys("delete")
    machine.do(Type(name))
    machine.click("Rename", kind="button")
    assert machine.shows(problem, "text") and machine.shows("Rename plan.txt", "title")
    machine.keys("esc")
    assert rows(machine) == ["trips", "cake.png", "plan.txt"]


def test_renaming_to_the_same_name_just_closes_the_dialog(machine: Machine) -> None:
    machine.click("plan.txt", kind="row")
    machine.keys("f2")
    machine.keys("enter")
    assert not machine.shows("Rename plan.txt", "title")


def test_a_new_folder_comes_from_the_background_menu_and_a_new_file_from_the_file_menu(machine: Machine) -> None:
    background(machine)
    machine.click("New folder", kind="menuitem")
    machine.do(Type("bills\n"))
    menu(machine, "File", "New file")
    machine.do(Type("empty.txt\n"))
    assert "/Documents/bills" in machine.desk.files.folders
    assert machine.desk.files.read("/Documents/empty.txt") == ""
    menu(machine, "File", "New folder")
    machine.do(Type("bills\n"))
    assert machine.shows("bills exists already.")


def test_cut_and_paste_moves_and_the_tool_bar_tells_what_was_cut(machine: Machine) -> None:
    context(machine, "plan.txt", "Cut")
    assert machine.shows("Cut plan.txt", "text") and "faint" in machine.find("plan.txt", "row").state
    machine.click("Pictures", kind="row")
    machine.keys("ctrl", "v")
    assert rows(machine) == ["plan.txt"] and not machine.shows("Cut plan.txt")
    assert not machine.desk.files.exists("/Documents/plan.txt")
    machine.click("Edit", kind="menu")
    assert "disabled" in machine.find("Paste", "menuitem").state


def test_copy_and_paste_leaves_the_original_and_pastes_again(machine: Machine) -> None:
    machine.click("plan.txt", kind="row")
    machine.keys("ctrl", "c")
    machine.keys("ctrl", "v")
    assert rows(machine) == ["trips", "cake.png", "plan 2.txt", "plan.txt"]
    machine.click("Downloads", kind="row")
    menu(machine, "Edit", "Paste")
    assert rows(machine) == ["plan.txt", "song.txt"]
    menu(machine, "Edit", "Paste")
    assert machine.shows("plan.txt exists already.")


def test_a_cut_file_pasted_where_it_lies_stays(machine: Machine) -> None:
    machine.click("plan.txt", kind="row")
    machine.keys("ctrl", "x")
    machine.keys("ctrl", "v")
    assert rows(machine) == ["trips", "cake.png", "plan.txt"] and not machine.shows("Problem")


def test_a_row_can_be_dragged_onto_a_folder_and_onto_a_place(machine: Machine) -> None:
    drag(machine, "plan.txt", "trips")
    drag(machine, "cake.png", "Pictures")
    assert rows(machine) == ["trips"]
    assert machine.desk.files.exists("/Documents/trips/plan.txt") and machine.desk.files.exists("/Pictures/cake.png")


def test_a_drag_onto_a_file_itself_or_the_own_place_changes_nothing(machine: Machine) -> None:
    for target in ("cake.png", "plan.txt", "Documents"):
        drag(machine, "plan.txt", target)
    drag(machine, "trips", "trips")
    assert rows(machine) == ["trips", "cake.png", "plan.txt"] and not machine.shows("Problem")


def test_a_drag_to_a_place_where_the_name_is_taken_is_a_problem(machine: Machine) -> None:
    machine.desk.files.write("/Pictures/plan.txt", "other")
    drag(machine, "plan.txt", "Pictures")
    assert machine.shows("plan.txt exists already.")
    machine.click("OK", kind="button")
    assert machine.desk.files.read("/Pictures/plan.txt") == "other"


def test_delete_moves_to_the_trash_without_a_question_and_restore_brings_back(machine: Machine) -> None:
    machine.click("plan.txt", kind="row")
    machine.keys("delete")
    assert rows(machine) == ["trips", "cake.png"]
    machine.click("Trash", kind="row")
    assert rows(machine) == ["old.txt", "plan.txt"]
    context(machine, "plan.txt", "Restore")
    assert rows(machine) == ["old.txt"]
    assert machine.desk.files.read("/Documents/plan.txt") == "buy milk"


def test_a_folder_is_restored_with_all_that_is_in_it(machine: Machine) -> None:
    machine.desk.files.write("/Documents/trips/list.txt", "tent")
    machine.click("trips", "row")
    machine.keys("delete")
    machine.click("Trash", "row")
    context(machine, "trips", "Restore")
    assert machine.desk.files.read("/Documents/trips/list.txt") == "tent" and rows(machine) == ["old.txt"]


def test_an_empty_folder_says_so(machine: Machine) -> None:
    machine.click("trips", "row", count=2)
    assert machine.shows("This folder is empty.", kind="text")


def test_restoring_to_a_taken_name_is_a_problem(machine: Machine) -> None:
    drag(machine, "plan.txt", "Trash")
    machine.desk.files.write("/Documents/plan.txt", "new")
    machine.click("Trash", kind="row")
    context(machine, "plan.txt", "Restore")
    assert machine.shows("plan.txt exists already.")
    assert machine.desk.files.read("/Documents/plan.txt") == "new"


def test_deleting_forever_asks_first(machine: Machine) -> None:
    machine.click("Trash", kind="row")
    machine.click("old.txt", kind="row")
    machine.keys("delete")
    machine.click("Cancel", kind="button")
    assert rows(machine) == ["old.txt"]
    context(machine, "old.txt", "Delete forever")
    machine.click("Delete", kind="button")
    assert rows(machine) == [] and not machine.desk.files.names("/Trash")


def test_emptying_the_trash_asks_first_and_is_disabled_when_there_is_nothing(machine: Machine) -> None:
    machine.click("Trash", kind="row")
    machine.click("Empty trash", kind="button")
    machine.keys("esc")
    assert rows(machine) == ["old.txt"]
    machine.click("Empty trash", kind="button")
    machine.click("Empty", kind="button")
    assert rows(machine) == [] and "disabled" in machine.find("Empty trash", "button").state


def test_nothing_is_made_renamed_cut_or_opened_in_the_trash(machine: Machine) -> None:
    machine.click("plan.txt", kind="row")
    machine.keys("ctrl", "c")
    machine.click("Trash", kind="row")
    machine.click("old.txt", kind="row")
    machine.click("File", kind="menu")
    assert all("disabled" in machine.find(entry, "menuitem").state for entry in ("New folder", "New file"))
    machine.keys("esc")
    machine.click("Edit", kind="menu")
    assert all("disabled" in machine.find(entry, "menuitem").state for entry in ("Undo", "Cut", "Copy", "Paste"))
    machine.keys("esc")
    machine.keys("f2")
    assert not machine.shows("Rename old.txt")
    machine.keys("enter")
    assert machine.shows("Restore the file first.") and machine.titles == ["Files"]


def test_entries_that_need_a_selection_are_disabled_without_one(machine: Machine) -> None:
    machine.click("File", kind="menu")
    assert all("disabled" in machine.find(entry, "menuitem").state for entry in ("Open", "Rename", "Delete"))
    machine.click("Delete", kind="menuitem")
    assert rows(machine) == ["trips", "cake.png", "plan.txt"]


def test_undo_takes_back_rename_move_delete_and_restore_in_turn(machine: Machine) -> None:
    files = machine.desk.files
    before = FileSystem(dict(files.files), dict(files.folders))
    context(machine, "plan.txt", "Rename")
    machine.do(Type("list.txt\n"))
    drag(machine, "list.txt", "trips")
    machine.click("cake.png", kind="row")
    machine.keys("delete")
    machine.click("Trash", kind="row")
    context(machine, "old.txt", "Restore")
    machine.click("Documents", kind="row")
    for _ in range(4):
        menu(machine, "Edit", "Undo")
    assert rows(machine) == ["trips", "cake.png", "plan.txt"]
    assert (files.files, files.folders) == (before.files, before.folders)
    machine.click("Edit", kind="menu")
    assert "disabled" in machine.find("Undo", "menuitem").state


def test_undo_of_something_new_takes_it_away_and_leaves_a_folder_that_is_gone(machine: Machine) -> None:
    menu(machine, "File", "New folder")
    machine.do(Type("bills\n"))
    machine.keys("enter")
    assert machine.shows("Documents/bills", "text")
    machine.keys("ctrl", "z")
    assert machine.shows("Documents", "text") and rows(machine) == ["trips", "cake.png", "plan.txt"]


def test_undo_of_a_paste_takes_the_copy_away(machine: Machine) -> None:
    machine.click("plan.txt", kind="row")
    machine.keys("ctrl", "c")
    machine.keys("ctrl", "v")
    machine.keys("ctrl", "z")
    assert rows(machine) == ["trips", "cake.png", "plan.txt"]


def test_arrow_keys_and_letters_move_the_selection(machine: Machine) -> None:
    machine.keys("down")
    machine.keys("down")
    assert "selected" in machine.find("cake.png", "row").state
    machine.keys("up")
    assert "selected" in machine.find("trips", "row").state
    machine.keys("p")
    assert "selected" in machine.find("plan.txt", "row").state


def test_a_click_beside_the_rows_clears_the_selection(machine: Machine) -> None:
    machine.click("plan.txt", kind="row")
    x, y = machine.find("plan.txt", "row").centre
    machine.do(Click(x, y + 40))
    machine.keys("delete")
    assert rows(machine) == ["trips", "cake.png", "plan.txt"]


def test_a_long_list_scrolls_and_the_selection_stays_in_sight(machine: Machine) -> None:
    for n in range(20):
        machine.desk.files.write(f"/Downloads/file{n:02d}.txt", "")
    machine.click("Downloads", kind="row")
    assert not machine.shows("song.txt", "row")
    centre = machine.find("file03.txt", "row").centre
    machine.do(*[Scroll(*centre, "down")] * 6)
    assert machine.shows("song.txt", "row")
    machine.keys("down")
    assert "selected" in machine.find("file00.txt", "row").state


@pytest.mark.parametrize("size", [(336, 224), (448, 280), (1920, 1080)])
def test_no_words_are_cut_on_any_screen(size: tuple[int, int]) -> None:
    machine = Machine(size=size)
    machine.desk.files.write("/Documents/garden.html", "", kb=100)
    machine.desk.launch("Files")
    machine.click("garden.html", kind="row")
    machine.keys("ctrl", "c")
    assert machine.shows("Copied garden.html", "text")
    assert not [c.label for c in machine.env.parse() if "cut" in c.state and c.window == "Files"]
