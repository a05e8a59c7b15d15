"""What the checks of the shell, the editor and the files accept and refuse (plays.py).

Other legitimate ways than the expert's score; half-done and overdone work does not.
"""

from machine import Machine
from plays import Cases, Params, drag_row, edit, files, start

from arpo.agent.actions import Click, Scroll, Type
from arpo.envs.pocket.vfs import PLACES

cases = Cases()


# The shell.


@cases.add("shell-open", 1)
def by_the_keyboard_alone(m: Machine, p: Params) -> None:
    m.keys("win")
    for _ in range(1 + list(m.desk.apps).index(p["app"])):
        m.keys("down")
    m.do(Type("\n"))


@cases.add("shell-open", 0)
def another_app(m: Machine, p: Params) -> None:
    start(m, next(name for name in m.desk.apps if name != p["app"]))


@cases.add("shell-close", 1)
def by_the_taskbar(m: Machine, p: Params) -> None:
    m.click(p["app"], "task", button="right")
    m.click("Close", "menuitem")


@cases.add("shell-close", 0)
def all_of_them(m: Machine, p: Params) -> None:
    while m.desk.windows:
        m.keys("alt", "f4")


@cases.add("shell-minimise", 1)
def after_a_look_at_another_app(m: Machine, p: Params) -> None:
    m.desk.launch(next(name for name in m.desk.apps if m.desk.window_of(name) is None))
    m.refresh()
    m.click(p["app"], "task")
    m.click(p["app"], "task")


@cases.add("shell-closeall", 0)
def with_the_changes_saved(m: Machine, p: Params) -> None:
    m.desk.files.write("/Documents/new.txt", "saved")
    m.desk.windows.clear()


# The editor.


@cases.add("editor-new", 1)
def as_an_empty_file_that_is_then_filled_and_closed(m: Machine, p: Params) -> None:
    files(m, "Documents")
    m.click("File", "menu")
    m.click("New file", "menuitem")
    m.do(Type(f"{p['name']}\n"), Type("\n"), Type(f"{p['text']}\n"))
    m.keys("ctrl", "s")
    m.keys("alt", "f4")


@cases.add("editor-new", 0)
def typed_and_not_saved(m: Machine, p: Params) -> None:
    start(m, "Editor")
    m.do(Type(p["text"]))


@cases.add("editor-new", 0)
def in_another_folder(m: Machine, p: Params) -> None:
    m.desk.files.write(f"/Downloads/{p['name']}", p["text"])


@cases.add("editor-append", 1)
def through_the_file_manager_with_a_newline_at_the_end(m: Machine, p: Params) -> None:
    edit(m, p["name"])
    m.keys("ctrl", "end")
    m.do(Type(f"\n{p['line']}\n"))
    m.click("File", "menu")
    m.click("Save", "menuitem")
    m.keys("alt", "f4")


@cases.add("editor-append", 0)
def saved_under_another_name(m: Machine, p: Params) -> None:
    edit(m, p["name"])
    m.keys("ctrl", "end")
    m.do(Type(f"\n{p['line']}"))
    m.keys("ctrl", "shift", "s")
    m.do(Type("other.txt\n"))


@cases.add("editor-append", 0)
def in_front_of_the_text(m: Machine, p: Params) -> None:
    edit(m, p["name"])
    m.do(Type(f"{p['line']}\n"))
    m.keys("ctrl", "s")


@cases.add("editor-replace", 1)
def all_typed_anew(m: Machine, p: Params) -> None:
    edit(m, p["name"])
    text = m.find("text", "area").value
    m.keys("ctrl", "a")
    m.do(Type(text.replace(p["old"], p["new"])))
    m.keys("ctrl", "s")


@cases.add("editor-replace", 0)
def and_another_file_changed_too(m: Machine, p: Params) -> None:
    all_typed_anew(m, p)
    m.desk.files.write("/Documents/other.txt", "oops")


@cases.add("editor-discard", 1)
def undone_and_then_closed(m: Machine, p: Params) -> None:
    m.click(f"*{p['name']}", "task", button="right")
    if "disabled" in m.find("Show", "menuitem").state:
        m.keys("esc")
    else:
        m.click("Show", "menuitem")
    m.keys("ctrl", "z")
    m.keys("alt", "f4")


@cases.add("editor-discard", 0)
def with_the_changes_in_the_file(m: Machine, p: Params) -> None:
    m.click(f"*{p['name']}", "task", button="right")
    m.click("Close", "menuitem")
    m.click("Save", "button")


# The files.


@cases.add("files-newfolder", 1)
def misspelt_first(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.click("File", "menu")
    m.click("New folder", "menuitem")
    m.do(Type("wrong\n"))
    m.keys("f2")
    m.do(Type(f" {p['new']} \n"))


@cases.add("files-newfolder", 0)
def in_another_place(m: Machine, p: Params) -> None:
    m.desk.files.make_folder(f"/{next(place for place in PLACES if place != p['folder'])}/{p['new']}")


@cases.add("files-rename", 1)
def copied_renamed_and_the_old_one_deleted(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.do(Type(p["old"]))
    m.keys("ctrl", "c")
    m.keys("ctrl", "v")
    m.keys("f2")
    m.do(Type(f"{p['new']}\n"), Type(p["old"]))
    m.keys("delete")


@cases.add("files-rename", 0)
def in_capitals(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.do(Type(p["old"]))
    m.keys("f2")
    m.do(Type(f"{p['new'].upper()}\n"))


@cases.add("files-delete", 1)
def dragged_to_the_trash_which_is_then_emptied(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.do(Type(p["name"]))
    drag_row(m, p["name"], "Trash")
    m.click("Trash", "row")
    m.click("Empty trash", "button")
    m.keys("enter")


@cases.add("files-delete", 0)
def and_one_more(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.do(Type(p["name"]))
    m.keys("delete")
    m.keys("down")
    m.keys("delete")


@cases.add("files-move", 1)
def copied_and_the_old_one_deleted(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.do(Type(p["name"]))
    m.keys("ctrl", "c")
    m.click(p["to"], "row")
    m.keys("ctrl", "v")
    m.click(p["folder"], "row")
    m.do(Type(p["name"]))
    m.keys("delete")


@cases.add("files-move", 0)
def copied_only(m: Machine, p: Params) -> None:
    m.desk.files.copy(f"/{p['folder']}/{p['name']}", f"/{p['to']}/{p['name']}")


@cases.add("files-copy", 1)
def by_the_menus_after_a_look_into_the_file(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.do(Type(p["name"]))
    m.click("Edit", "menu")
    m.click("Copy", "menuitem")
    m.click(p["to"], "row")
    m.click("Edit", "menu")
    m.click("Paste", "menuitem")


@cases.add("files-restore", 1)
def dragged_to_where_it_came_from(m: Machine, p: Params) -> None:
    files(m, "Trash")
    m.do(Type(p["name"]))
    drag_row(m, p["name"], p["folder"])


@cases.add("files-restore", 0)
def dragged_elsewhere(m: Machine, p: Params) -> None:
    files(m, "Trash")
    m.do(Type(p["name"]))
    drag_row(m, p["name"], next(place for place in PLACES if place != p["folder"]))


@cases.add("files-subfolder", 1)
def dragged_onto_the_folder(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.click("File", "menu")
    m.click("New folder", "menuitem")
    m.do(Type(f"{p['new']}\n"), Type(p["name"]))
    drag_row(m, p["name"], p["new"])


@cases.add("files-subfolder", 0)
def the_folder_only(m: Machine, p: Params) -> None:
    m.desk.files.make_folder(f"/{p['folder']}/{p['new']}")


@cases.add("files-cleanup", 1)
def by_the_delete_key_and_one_undo(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.do(Type(p["keep"]))
    m.keys("delete")
    m.keys("ctrl", "z")
    for name in m.desk.files.names(f"/{p['folder']}"):
        if name.endswith(p["kind"]) and name != p["keep"]:
            m.do(Type(name))
            m.keys("delete")


@cases.add("files-cleanup", 0)
def all_of_the_kind(m: Machine, p: Params) -> None:
    for name in m.desk.files.names(f"/{p['folder']}"):
        if name.endswith(p["kind"]):
            m.desk.files.trash(f"/{p['folder']}/{name}")


@cases.add("files-largest", 1)
def sorted_by_size(m: Machine, p: Params) -> None:
    files(m, p["folder"])
    m.click("View", "menu")
    m.click("Sort by size", "menuitem")
    for _ in range(0 if p["which"] == "largest" else 9):
        m.do(Scroll(250, 100, "down"))
    rows = [c for c in m.env.parse() if c.kind == "row" and c.value.endswith("kB") and c.label.endswith(p["kind"])]
    m.do(Click(*rows[0 if p["which"] == "largest" else -1].centre))
    m.keys("delete")


test_the_check_gives_the_score_that_is_due = cases.test()
