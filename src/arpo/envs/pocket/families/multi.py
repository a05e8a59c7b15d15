"""Tasks that cross applications: something is read in one and used in another."""

from __future__ import annotations

import random

from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.apps.mail import ME, add_message, fill, letters, new_subject
from arpo.envs.pocket.apps.pages import SECTIONS, new_store
from arpo.envs.pocket.apps.sheet import Sheet, from_csv, to_csv
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.env import Control
from arpo.envs.pocket.families import calculator
from arpo.envs.pocket.families.base import Family, Params, add_files, place
from arpo.envs.pocket.families.editor import DOCUMENTS, open_in_editor, page_of, save_as, text_of, write_anew
from arpo.envs.pocket.families.files import go as go_to_folder
from arpo.envs.pocket.families.files import row_of as file_row
from arpo.envs.pocket.families.lookup import seek
from arpo.envs.pocket.families.mail import go as go_to_mail
from arpo.envs.pocket.families.mail import read as read_mail
from arpo.envs.pocket.families.mail import write as write_mail
from arpo.envs.pocket.families.scene import arrive
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.words import nouns, person, sentence

HEADER = ("name", "number")


def note_down(s: Screen, name: str, text: str) -> Move | None:
    """Write a text into a new file of the Documents folder, from whatever is on the screen."""
    if s.dialog == "Save as":
        return save_as(s, name)
    page = page_of(s, "Untitled")
    if page and page.value == text:
        return s.escape("Save") or s.menu("File", "Save", window=s.front)
    return (
        s.escape("Editor")
        or s.switch("Untitled")
        or (s.app("Editor") if page is None else None)
        or write_anew(s, page, text)
    )


def mail_from(s: Screen, sender: str) -> Control | None:
    """The first row of a mail from somebody."""
    rows = s.all(kind="row", label=sender, window="Mail")
    return rows[0] if rows else None


def body_of(s: Screen, sender: str) -> str:
    """The text of the mail that is being read, if it is from that person."""
    lines = [c.label for c in s.all(kind="text", window="Mail")]
    return " ".join(lines[1:]) if lines and lines[0].startswith(f"From {sender}:") else ""


def read_from(s: Screen, sender: str, notes: dict[str, str]) -> Move | None:
    """Find and open the only mail from somebody."""
    row = mail_from(s, sender)
    return go_to_mail(s) or seek(s, row, "Mail", notes) or read_mail(s, row)


def table(rng: random.Random, rows: int) -> list[list[str]]:
    """A header and rows of a noun and a number, all different."""
    numbers = rng.sample(range(10, 100), rows)
    return [list(HEADER), *([word, str(number)] for word, number in zip(nouns(rng, rows), numbers, strict=True))]


def open_table(desk: Desktop, rng: random.Random, name: str, rows: list[list[str]]) -> None:
    """A sheet window with this table as a file of the Documents folder."""
    desk.files.write(f"{DOCUMENTS}/{name}", "\n".join(",".join(row) for row in rows))
    app = place(desk, rng, "Sheet")
    assert isinstance(app, Sheet)
    app.open_path(f"{DOCUMENTS}/{name}")


class CalculatedNote(Family):
    """Work something out, then write the result down."""

    name = "multi-calcnote"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        return {
            "a": rng.randrange(11, 100),
            "operator": rng.choice("+-x"),
            "b": rng.randrange(11, 100),
            "name": f"{nouns(rng, 1)[0]}.txt",
        }

    def instruction(self, p: Params) -> str:
        return f"Calculate {p['a']} {p['operator']} {p['b']} and save the result as {p['name']} in Documents."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(p["name"],))
        for name in rng.sample(["Calculator", "Editor"], rng.randrange(3)):
            place(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        return (text_of(desk, p["name"]) or "").strip() == str(calculator.solve(p["a"], p["operator"], p["b"]))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "result" in notes:
            return note_down(s, p["name"], notes["result"])
        if move := arrive(s, "Calculator"):
            return move
        line, number = calculator.read(s)
        if line == f"{p['a']} {p['operator']} {p['b']} =":
            notes["result"] = number
            return note_down(s, p["name"], number)
        if line or number != "0":
            return s.click("C", kind="key", thought="Clear it.")
        return s.type(f"{p['a']}{p['operator']}{p['b']}=")


class MailedNote(Family):
    """Read a number in a mail and save it in a file."""

    name = "multi-mailnote"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        return {"sender": person(rng), "name": f"{nouns(rng, 1)[0]}.txt"}

    def instruction(self, p: Params) -> str:
        return f"Save the phone number from the mail of {p['sender']} as {p['name']} in Documents."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        fill(desk, rng, (p["sender"],), count=rng.randrange(2, 5))
        number = f"555-{rng.randrange(1000, 10000)}"
        desk.stores["number"] = number
        add_message(desk, p["sender"], new_subject(rng), f"my phone number is {number}")
        mails = letters(desk)
        mails.insert(rng.randrange(len(mails)), mails.pop(0))
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 4), avoid=(p["name"],))
        for name in rng.sample(["Mail", "Editor"], rng.randrange(3)):
            place(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        return (text_of(desk, p["name"]) or "").strip() == desk.stores["number"]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "number" not in notes:
            if move := read_from(s, p["sender"], notes):
                return move
            notes["number"] = body_of(s, p["sender"]).split()[-1]
        return note_down(s, p["name"], notes["number"])


class PriceToSheet(Family):
    """Look a price up in the browser and put it into a cell."""

    name = "multi-webprice"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        item, name = nouns(rng, 2)
        return {"item": item, "cell": f"{rng.choice('BCD')}{rng.randrange(2, 6)}", "name": f"{name}.csv"}

    def instruction(self, p: Params) -> str:
        return f"Put the price of {p['item']} from the Shop page into cell {p['cell']} of {p['name']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        desk.stores["browser"] = new_store(rng, items=(p["item"],))
        rows = [row for row in desk.stores["browser"]["pages"][SECTIONS["Shop"]] if row[:2] == ("item", p["item"])]
        cells = from_csv("\n".join(",".join(row) for row in table(rng, rng.randrange(3, 6))))
        column, row = "ABCDE".index(p["cell"][0]), int(p["cell"][1:]) - 1
        open_table(desk, rng, p["name"], [list(line) for line in cells])
        cells[row][column] = rows[0][2].lstrip("$")
        desk.stores["goal"] = to_csv(cells)
        if rng.random() < 0.6:
            place(desk, rng, "Browser")

    def check(self, desk: Desktop, p: Params) -> bool:
        return (text_of(desk, p["name"]) or "").replace("$", "").strip() == desk.stores["goal"].strip()

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "price" not in notes:
            if move := arrive(s, "Browser"):
                return move
            item = s.find(p["item"], kind="link", window="Browser")
            prices = [c.label for c in s.all(kind="text", window="Browser") if item and c.box[1] == item.box[1]]
            if not prices:
                return s.click("Shop", kind="link") or s.click("Home", kind="tool", thought="Go to the home page.")
            notes["price"] = prices[0].lstrip("$")
        return put_into_cell(s, p["name"], p["cell"], notes["price"])


def put_into_cell(s: Screen, name: str, cell: str, value: str) -> Move | None:
    """Write a value into a cell of an open sheet and save it."""
    if not s.is_front(name):
        return s.escape() or s.switch(name)
    at = s.find(cell, kind="cell")
    if at is None:
        return s.escape() or s.scroll(s.find(kind="cell"), "up")
    if at.value == value:
        return s.escape("Save") or s.menu("File", "Save", window=s.front)
    bar = s.find("Cell", kind="field")
    if bar and "focused" in bar.state:  # an edit that somebody left half done
        return s.keys("esc", thought="Leave this edit.")
    if "selected" not in at.state:
        return s.escape() or s.click(cell, kind="cell", thought=f"Click cell {cell}.")
    return s.escape() or s.type(f"{value}\n", f"Type {value}.")


class NumberToMail(Family):
    """Read a number in a sheet and send it to somebody."""

    name = "multi-sheetmail"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        row, name, subject = nouns(rng, 3)
        return {"row": row, "name": f"{name}.csv", "to": person(rng), "subject": subject}

    def instruction(self, p: Params) -> str:
        return f"Send the number of {p['row']} in {p['name']} to {p['to']} with the subject '{p['subject']}'."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        rows = [row for row in table(rng, rng.randrange(4, 7)) if row[0] != p["row"]]
        desk.stores["number"] = str(rng.randrange(100, 1000))
        rows.insert(rng.randrange(1, len(rows) + 1), [p["row"], desk.stores["number"]])
        fill(desk, rng, count=rng.randrange(1, 5))
        if rng.random() < 0.5:
            place(desk, rng, "Mail")
        open_table(desk, rng, p["name"], rows)

    def check(self, desk: Desktop, p: Params) -> bool:
        sent = [(m.to, m.subject, m.body.strip()) for m in letters(desk) if m.sender == ME]
        return sent == [(p["to"], p["subject"], desk.stores["number"])]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "number" not in notes:
            if not s.is_front(p["name"]):
                return s.escape() or s.switch(p["name"])
            row = next((c for c in s.all(kind="cell") if c.value == p["row"]), None)
            if row is None:
                return s.escape() or s.scroll(s.find(kind="cell"), "up")
            number = s.find(f"B{row.label[1:]}", kind="cell")
            assert number is not None
            notes["number"] = number.value
        return (
            write_mail(s, p["to"], p["subject"], notes["number"])
            or s.escape("Mail")
            or s.app("Mail")
            or s.click("New", kind="button", window="Mail", thought="Write a new mail.")
        )


class FileToMail(Family):
    """Open a file to read it, then send its text."""

    name = "multi-filemail"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        name, subject = nouns(rng, 2)
        return {"name": f"{name}.txt", "to": person(rng), "subject": subject}

    def instruction(self, p: Params) -> str:
        return f"Send the text of {p['name']} in Documents to {p['to']} with the subject '{p['subject']}'."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        desk.stores["text"] = sentence(rng)
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(p["name"],))
        desk.files.write(f"{DOCUMENTS}/{p['name']}", desk.stores["text"])
        fill(desk, rng, count=rng.randrange(1, 5))
        for name in rng.sample(["Mail", "Files"], rng.randrange(1, 3)):
            place(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        sent = [(m.to, m.subject, m.body.strip()) for m in letters(desk) if m.sender == ME]
        return sent == [(p["to"], p["subject"], desk.stores["text"])]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        page = page_of(s, p["name"])
        if page and "text" not in notes:
            notes["text"] = page.value
        if "text" not in notes:
            row = file_row(s, p["name"])
            return (
                s.switch(p["name"])
                or go_to_folder(s, "Documents")
                or seek(s, row, "Files", notes)
                or s.double_click(p["name"], kind="row", window="Files")
            )
        return (
            write_mail(s, p["to"], p["subject"], notes["text"])
            or s.escape("Mail")
            or s.app("Mail")
            or s.click("New", kind="button", window="Mail", thought="Write a new mail.")
        )


class FileAttachment(Family):
    """Save a file from a mail, then put it where it belongs."""

    name = "multi-attachment"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        return {"sender": person(rng), "folder": rng.choice(["Documents", "Pictures"])}

    def instruction(self, p: Params) -> str:
        return f"Save the file in the mail from {p['sender']} and move it to {p['folder']}."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        fill(desk, rng, (p["sender"],), count=rng.randrange(2, 5))
        word = nouns(rng, 1)[0]
        desk.stores["file"] = (f"{word}.txt", sentence(rng))
        for folder in ("/Documents", "/Downloads", "/Pictures"):
            add_files(desk, rng, folder, rng.randrange(1, 4), avoid=(word,))
        add_message(desk, p["sender"], new_subject(rng), sentence(rng), desk.stores["file"])
        mails = letters(desk)
        mails.insert(rng.randrange(len(mails)), mails.pop(0))
        for name in rng.sample(["Mail", "Files"], rng.randrange(3)):
            place(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        name, text = desk.stores["file"]
        places = [path for path, file in desk.files.files.items() if file.text == text and path.endswith(name)]
        return places == [f"/{p['folder']}/{name}"]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "file" not in notes:
            if move := read_from(s, p["sender"], notes):
                return move
            label = next((c.label for c in s.all(kind="text", window="Mail") if c.label.startswith("File ")), None)
            if label is None:
                return None
            notes["file"] = label.removeprefix("File ")
            return s.click("Save", kind="button", window="Mail", thought="Save the file.")
        row, target = file_row(s, notes["file"]), s.find(p["folder"], kind="row", window="Files")
        return (
            go_to_folder(s, "Downloads")
            or seek(s, row, "Files", notes)
            or s.drag(row, target, f"Drag it to {p['folder']}.")
        )


class Download(Family):
    """Download a file from a page, then open it."""

    name = "multi-download"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        return {"name": f"{nouns(rng, 1)[0]}.txt"}

    def instruction(self, p: Params) -> str:
        return f"Download {p['name']} from the Files page of the Browser and open it in the Editor."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        desk.stores["browser"] = new_store(rng, files=(p["name"],))
        add_files(desk, rng, "/Downloads", rng.randrange(1, 5), avoid=(p["name"],))
        for name in rng.sample(["Browser", "Files"], rng.randrange(3)):
            place(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        path = f"/Downloads/{p['name']}"
        shown = [window.app.path for window in desk.windows if isinstance(window.app, Editor)]
        return path in desk.files.files and path in shown

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "saved" not in notes:
            if move := arrive(s, "Browser"):
                return move
            if move := s.click(p["name"], kind="link", window="Browser"):
                notes["saved"] = "yes"
                return move
            return s.click("Files", kind="link") or s.click("Home", kind="tool", thought="Go to the home page.")
        row = file_row(s, p["name"])
        return (
            go_to_folder(s, "Downloads")
            or seek(s, row, "Files", notes)
            or s.double_click(p["name"], kind="row", window="Files")
        )


class CopyText(Family):
    """Carry text from one window to another by the clipboard."""

    name = "multi-copytext"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        source, target = nouns(rng, 2)
        return {"source": f"{source}.txt", "target": f"{target}.txt"}

    def instruction(self, p: Params) -> str:
        return f"Copy all text of {p['source']} to the end of {p['target']} and save {p['target']}."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        source, target = sentence(rng), sentence(rng)
        desk.stores["goal"] = (target + source).replace(" ", "")
        desk.stores["source"] = source
        desk.files.write(f"{DOCUMENTS}/{p['source']}", source)
        desk.files.write(f"{DOCUMENTS}/{p['target']}", target)
        others = add_files(desk, rng, DOCUMENTS, rng.randrange(1, 3), avoid=(p["source"], p["target"]))
        for name in rng.sample([p["source"], p["target"], *others], 2 + len(others)):
            open_in_editor(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        text = text_of(desk, p["target"]) or ""
        return "".join(text.split()) == desk.stores["goal"] and text_of(desk, p["source"]) == desk.stores["source"]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := s.escape():
            return move
        if "copied" not in notes:
            page = page_of(s, p["source"])
            if page is None:
                return s.switch(p["source"])
            if "all" not in page.state:
                return s.keys("ctrl", "a", thought="Select all text.")
            notes["copied"] = page.value
            return s.keys("ctrl", "c", thought="Copy it.")
        page = page_of(s, p["target"])
        if page is None:
            return s.switch(p["target"])
        notes.setdefault("before", page.value)
        if page.value == notes["before"] + notes["copied"]:
            return s.keys("ctrl", "s", thought="Save the file.")
        if page.value != notes["before"]:  # somebody else has changed the page: write it as it should be
            return write_anew(s, page, notes["before"] + notes["copied"])
        if notes.pop("at", "") == "end":
            return s.keys("ctrl", "v", thought="Paste the text.")
        notes["at"] = "end"
        return s.keys("ctrl", "end", thought="Go to the end.")


class MailedSum(Family):
    """Read two numbers in a mail and add them up."""

    name = "multi-mailsum"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        return {"sender": person(rng), "verb": rng.choice(["Add", "Multiply"])}

    def instruction(self, p: Params) -> str:
        return f"{p['verb']} the two numbers from the mail of {p['sender']} in the Calculator."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        fill(desk, rng, (p["sender"],), count=rng.randrange(2, 5))
        a, b = rng.randrange(11, 100), rng.randrange(11, 100)
        desk.stores["numbers"] = (a, b)
        add_message(desk, p["sender"], new_subject(rng), f"my numbers are {a} and {b}")
        mails = letters(desk)
        mails.insert(rng.randrange(len(mails)), mails.pop(0))
        for name in rng.sample(["Mail", "Calculator"], rng.randrange(3)):
            place(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        a, b = desk.stores["numbers"]
        operator = "+" if p["verb"] == "Add" else "x"
        return any(
            calculator.shows(desk, f"{x} {operator} {y} =", calculator.solve(a, operator, b))
            for x, y in ((a, b), (b, a))
        )

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "sum" not in notes:
            if move := read_from(s, p["sender"], notes):
                return move
            words = body_of(s, p["sender"]).split()
            notes["sum"] = f"{words[-3]}{'+' if p['verb'] == 'Add' else 'x'}{words[-1]}="
        if move := arrive(s, "Calculator"):
            return move
        line, number = calculator.read(s)
        return s.click("C", kind="key", thought="Clear it.") if line or number != "0" else s.type(notes["sum"])


FAMILIES = (
    CalculatedNote(),
    MailedNote(),
    PriceToSheet(),
    NumberToMail(),
    FileToMail(),
    FileAttachment(),
    Download(),
    CopyText(),
    MailedSum(),
)
