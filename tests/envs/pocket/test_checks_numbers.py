"""What the checks of the sheet, the calculator, the settings and of mixed tasks accept and refuse (plays.py).

Other legitimate ways than the expert's score; half-done and overdone work does not.
"""

from machine import Machine
from plays import Cases, Params, edit, files, start

from arpo.agent.actions import Type
from arpo.envs.pocket.apps.formulas import cell_place

cases = Cases()


# The sheet.


def put(m: Machine, p: Params, cell: str, text: str, save: bool = True) -> None:
    """Open the file by its row and put a text into a cell by the keyboard."""
    edit(m, p.get("file") or p["name"])
    row, column = cell_place(cell)
    for key in ["down"] * row + ["right"] * column:
        m.keys(key)
    m.do(Type(f"{text}\n"))
    if save:
        m.keys("ctrl", "s")


@cases.add("sheet-set", 1)
def by_keys_after_another_text(m: Machine, p: Params) -> None:
    put(m, p, p["cell"], "wrong")
    m.keys("up")
    m.do(Type(f"{p['value']}\n"))
    m.keys("ctrl", "s")
    m.keys("alt", "f4")


@cases.add("sheet-set", 1)
def saved_over_itself(m: Machine, p: Params) -> None:
    put(m, p, p["cell"], p["value"], save=False)
    m.keys("ctrl", "shift", "s")
    m.keys("enter")
    m.keys("enter")


@cases.add("sheet-set", 0)
def not_saved(m: Machine, p: Params) -> None:
    put(m, p, p["cell"], p["value"], save=False)


@cases.add("sheet-set", 0)
def and_another_cell(m: Machine, p: Params) -> None:
    put(m, p, p["cell"], f"{p['value']}\nx")


@cases.add("sheet-formula", 1)
def in_small_letters_over_all_rows(m: Machine, p: Params) -> None:
    put(m, p, p["cell"], f"={p['function'].lower()}( {p['column'].lower()}12:{p['column']}1 )")


@cases.add("sheet-formula", 0)
def the_number_itself(m: Machine, p: Params) -> None:
    in_small_letters_over_all_rows(m, p)
    number = m.find(p["cell"], "cell").value
    m.keys("up")
    m.do(Type(f"={number}\n"))
    m.keys("ctrl", "s")


@cases.add("sheet-formula", 0)
def the_one_cell_that_is_the_largest_now(m: Machine, p: Params) -> None:
    column = "ABC".index(p["column"])
    numbers = [int(row.split(",")[column]) for row in m.desk.files.read(f"/Documents/{p['file']}").split()[1:]]
    put(m, p, p["cell"], f"={p['column']}{2 + numbers.index(max(numbers))}")


@cases.add("sheet-sort", 1)
def sorted_as_text_in_the_editor(m: Machine, p: Params) -> None:
    head, *rows = m.desk.files.read(f"/Documents/{p['file']}").split()
    rows.sort(key=lambda row: row.split(",")["ABC".index(p["column"])], reverse=p["down"])
    start(m, "Editor")
    m.keys("ctrl", "o")
    m.do(Type(f"{p['file']}\n"))
    m.keys("ctrl", "a")
    m.do(Type("\n".join([head, *rows])))
    m.keys("ctrl", "s")


@cases.add("sheet-copy", 1)
def typed_instead_of_pasted(m: Machine, p: Params) -> None:
    edit(m, p["file"])
    put(m, p, p["to"], m.find(p["from"], "cell").value)


# The calculator and the settings.


def calculate(m: Machine, keys: str) -> None:
    start(m, "Calculator")
    m.do(Type(keys))


@cases.add("calculator-simple", 1)
def typed_with_a_mistake(m: Machine, p: Params) -> None:
    calculate(m, f"{p['a']}{p['operator']}{p['b']}9")
    m.keys("backspace")
    m.keys("enter")


@cases.add("calculator-simple", 0)
def not_worked_out(m: Machine, p: Params) -> None:
    calculate(m, f"{p['a']}{p['operator']}{p['b']}")


@cases.add("calculator-correct", 1)
def all_anew(m: Machine, p: Params) -> None:
    calculate(m, f"{p['a']}+{p['b']}\n")


@cases.add("settings-toggle", 1)
def on_off_and_on_again(m: Machine, p: Params) -> None:
    start(m, "Settings")
    for tab in ("Display", "Sound", "System", "Alerts"):
        m.click(tab, "tab")
        if m.shows(p["what"]):
            break
    m.click(tab, "tab")
    for _ in range(3):
        m.click(p["what"], "checkbox")


@cases.add("settings-slider", 0)
def and_muted(m: Machine, p: Params) -> None:
    m.desk.settings[p["what"].lower()] = p["level"]
    m.desk.settings["mute"] = True


@cases.add("settings-reset", 0)
def and_nothing_else(m: Machine, p: Params) -> None:
    start(m, "Settings")
    m.click("System", "tab")
    m.click("Reset all", "button")
    m.keys("enter")


# Several applications.


@cases.add("multi-webprice", 1)
def with_the_dollar_sign(m: Machine, p: Params) -> None:
    put(m, p, p["cell"], f"${m.desk.stores['price']}")


@cases.add("multi-filemail", 1)
def carried_by_the_clipboard(m: Machine, p: Params) -> None:
    edit(m, p["name"])
    m.keys("ctrl", "a")
    m.keys("ctrl", "c")
    start(m, "Mail")
    m.keys("ctrl", "n")
    m.do(Type(f"{p['to']}\t{p['subject']}\t"))
    m.keys("ctrl", "v")
    m.click("Send", "button")


@cases.add("multi-attachment", 1)
def copied_and_the_first_deleted(m: Machine, p: Params) -> None:
    name, text = m.desk.stores["file"]
    m.desk.files.write(f"/Downloads/{name}", text)
    files(m, "Downloads")
    m.do(Type(name))
    m.keys("ctrl", "c")
    m.click(p["folder"], "row")
    m.keys("ctrl", "v")
    m.click("Downloads", "row")
    m.do(Type(name))
    m.keys("delete")


@cases.add("multi-attachment", 0)
def saved_only(m: Machine, p: Params) -> None:
    name, text = m.desk.stores["file"]
    m.desk.files.write(f"/Downloads/{name}", text)


@cases.add("multi-download", 0)
def a_file_of_that_name_written_by_hand(m: Machine, p: Params) -> None:
    m.desk.files.write(f"/Downloads/{p['name']}", "mine")
    m.desk.open_file(f"/Downloads/{p['name']}")


test_the_check_gives_the_score_that_is_due = cases.test()
