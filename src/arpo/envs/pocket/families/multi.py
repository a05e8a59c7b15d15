"""Tasks that cross applications: something is read in one and used in another."""

from __future__ import annotations

import random

from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.apps.mail import ME, Letter, add_message, fill, letters, new_subject
from arpo.envs.pocket.apps.pages import SECTIONS, new_store
from arpo.envs.pocket.controls import Control
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families import calculator, tables
from arpo.envs.pocket.families.base import DOCUMENTS, Family, Params, add_files, others_kept, place, place_some, text_of
from arpo.envs.pocket.families.browser import downloaded, price_of
from arpo.envs.pocket.families.editor import note_down, open_in_editor, page_of, saved, write_anew
from arpo.envs.pocket.families.files import go as go_to_folder
from arpo.envs.pocket.families.files import row_of as file_row
from arpo.envs.pocket.families.lookup import seek
from arpo.envs.pocket.families.mail import go as go_to_mail
from arpo.envs.pocket.families.mail import ledger, mix_in, remember, remembered
from arpo.envs.pocket.families.mail import read as read_mail
from arpo.envs.pocket.families.mail import write as write_mail
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.vfs import PLACES
from arpo.envs.pocket.words import PEOPLE, nouns, person, sentence


def mail_from(desk: Desktop, rng: random.Random, sender: str, body: str, file: tuple[str, str] | None = None) -> None:
    """Some mails, one of them from this person."""
    fill(desk, rng, (sender,), count=rng.randrange(2, 5))
    mix_in(desk, rng, add_message(desk, sender, new_subject(rng), body, file))


def only_sent(desk: Desktop, to: str, subject: str, text: str) -> bool:
    """Whether this mail was sent and the others are as they were."""
    return ledger(letters(desk)) == ledger([*remembered(desk), Letter(ME, to, subject, text, "Sent")])


def row_from(s: Screen, sender: str) -> Control | None:
    """The first row of a mail from somebody."""
    rows = s.all(kind="row", label=sender, window="Mail")
    return rows[0] if rows else None


def body_of(s: Screen, sender: str) -> str:
    """The text of the mail that is being read, if it is from that person."""
    lines = [c.label for c in s.all(kind="text", window="Mail")]
    return " ".join(lines[1:]) if lines and lines[0].startswith(f"From {sender}:") else ""


def read_from(s: Screen, sender: str, notes: dict[str, str]) -> Move | None:
    """Find and open the only mail from somebody."""
    row = row_from(s, sender)
    return go_to_mail(s) or seek(s, row, "Mail", notes) or read_mail(s, row)


def send(s: Screen, p: Params, text: str) -> Move | None:
    """Write a new mail to the person and with the subject that the instruction names."""
    return (
        write_mail(s, p["to"], p["subject"], text)
        or s.arrive("Mail")
        or s.click("New", kind="button", window="Mail", thought="Write a new mail.")
    )


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
        place_some(desk, rng, ["Calculator", "Editor"])

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["name"], str(calculator.solve(p["a"], p["operator"], p["b"])))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "result" in notes:
            return note_down(s, p["name"], notes["result"])
        if move := s.arrive("Calculator"):
            return move
        line, number = calculator.read(s)
        if line == f"{p['a']} {p['operator']} {p['b']} =":
            notes["result"] = number
            return note_down(s, p["name"], number)
        return calculator.work_out(s, f"{p['a']}{p['operator']}{p['b']}=")


class MailedNote(Family):
    """Read a number in a mail and save it in a file."""

    name = "multi-mailnote"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        return {"sender": person(rng), "name": f"{nouns(rng, 1)[0]}.txt"}

    def instruction(self, p: Params) -> str:
        return f"Save the phone number from the mail of {p['sender']} as {p['name']} in Documents."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        desk.stores["number"] = f"555-{rng.randrange(1000, 10000)}"
        mail_from(desk, rng, p["sender"], f"my phone number is {desk.stores['number']}")
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 4), avoid=(p["name"],))
        place_some(desk, rng, ["Mail", "Editor"])

    def check(self, desk: Desktop, p: Params) -> bool:
        return saved(desk, p["name"], desk.stores["number"])

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
        price = f"the price of {p['item']} from the Shop of the Browser"
        return f"Put {price} into cell {p['cell']} of {p['name']} and save it."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        store = desk.stores["browser"] = new_store(rng, items=(p["item"],))
        price = next(row[2][1:] for row in store["pages"][SECTIONS["Shop"]] if row[1] == p["item"])
        desk.stores["price"] = price
        rows = tables.table(rng)
        while tables.put(tables.padded(rows), p["cell"], price) == tables.padded(rows):  # it is there already
            rows = tables.table(rng)
        tables.begin_open(desk, rng, p["name"], rows)
        if rng.random() < 0.6:
            place(desk, rng, "Browser")

    def check(self, desk: Desktop, p: Params) -> bool:
        found = tables.saved(desk, p["name"])
        prices = (desk.stores["price"], f"${desk.stores['price']}")
        return found in [tables.put(tables.start_of(desk), p["cell"], price) for price in prices]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "price" not in notes:
            if move := s.arrive("Browser"):
                return move
            price = price_of(s, p["item"])
            if price is None:
                return s.click("Shop", kind="link") or s.click("Home", kind="tool", thought="Go to the home page.")
            notes["price"] = str(price)
        return (
            tables.open_sheet(s, notes, p["name"])
            or tables.steady(s, notes, p["cell"])
            or tables.write(s, p["cell"], notes["price"])
            or tables.save_by_menu(s, notes)
        )


class NumberToMail(Family):
    """Read a number in a sheet and send it to somebody."""

    name = "multi-sheetmail"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        name, subject = nouns(rng, 2)
        what = {"heading": rng.choice(tables.HEADINGS), "person": rng.choice(PEOPLE), "name": f"{name}.csv"}
        return {**what, "to": person(rng, (what["person"],)), "subject": subject}

    def instruction(self, p: Params) -> str:
        what = f"the {p['heading']} of {p['person']} in {p['name']}"
        return f"Mail {what} to {p['to']} with the subject '{p['subject']}'."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        rows = tables.table(rng, (p["heading"],), (p["person"],))
        desk.stores["number"] = next(row for row in rows if row[0] == p["person"])[rows[0].index(p["heading"])]
        fill(desk, rng, count=rng.randrange(1, 5))
        remember(desk)
        place_some(desk, rng, ["Mail"])
        tables.begin_open(desk, rng, p["name"], rows)

    def check(self, desk: Desktop, p: Params) -> bool:
        return only_sent(desk, p["to"], p["subject"], desk.stores["number"])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "number" not in notes:
            if move := tables.open_sheet(s, notes, p["name"]):
                return move
            row, letter = tables.row_of(s, p["person"]), tables.letter_of(s, p["heading"])
            if row is None or letter is None:
                return tables.undo(s)
            notes["number"] = tables.cells(s)[f"{letter}{row}"]
        return send(s, p, notes["number"])


class FileToMail(Family):
    """Open a file to read it, then send its text."""

    name = "multi-filemail"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        name, subject = nouns(rng, 2)
        return {"name": f"{name}.txt", "to": person(rng), "subject": subject}

    def instruction(self, p: Params) -> str:
        return f"Mail the text of {p['name']} in Documents to {p['to']} with the subject '{p['subject']}'."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        desk.stores["text"] = sentence(rng)
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(p["name"],))
        desk.files.write(f"{DOCUMENTS}/{p['name']}", desk.stores["text"])
        fill(desk, rng, count=rng.randrange(1, 5))
        remember(desk)
        place_some(desk, rng, ["Mail", "Files"], least=1)

    def check(self, desk: Desktop, p: Params) -> bool:
        return only_sent(desk, p["to"], p["subject"], desk.stores["text"])

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
        return send(s, p, notes["text"])


class FileAttachment(Family):
    """Save a file from a mail, then put it where it belongs."""

    name = "multi-attachment"
    domain = "multi"

    def draw(self, rng: random.Random) -> Params:
        return {"sender": person(rng), "folder": rng.choice(["Documents", "Pictures"])}

    def instruction(self, p: Params) -> str:
        return f"Save the file in the mail from {p['sender']} and move it to {p['folder']}."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        name, text = desk.stores["file"] = (f"{nouns(rng, 1)[0]}.txt", sentence(rng))
        for folder in PLACES:
            add_files(desk, rng, f"/{folder}", rng.randrange(1, 4), avoid=(name,))
        mail_from(desk, rng, p["sender"], sentence(rng), (name, text))
        place_some(desk, rng, ["Mail", "Files"])

    def check(self, desk: Desktop, p: Params) -> bool:
        name, text = desk.stores["file"]
        path = f"/{p['folder']}/{name}"
        return path in desk.files.files and desk.files.read(path) == text and others_kept(desk, path)

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
        place_some(desk, rng, ["Browser", "Files"])

    def check(self, desk: Desktop, p: Params) -> bool:
        window = desk.window_with(f"/Downloads/{p['name']}")
        return window is not None and isinstance(window.app, Editor) and downloaded(desk, p["name"])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "saved" not in notes:
            if move := s.arrive("Browser"):
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
        desk.files.write(f"{DOCUMENTS}/{p['source']}", source)
        desk.files.write(f"{DOCUMENTS}/{p['target']}", target)
        others = add_files(desk, rng, DOCUMENTS, rng.randrange(1, 3), avoid=(p["source"], p["target"]))
        for name in rng.sample([p["source"], p["target"], *others], 2 + len(others)):
            open_in_editor(desk, rng, name)

    def check(self, desk: Desktop, p: Params) -> bool:
        text = text_of(desk, p["target"]) or ""
        return "".join(text.split()) == desk.stores["goal"] and others_kept(desk, f"{DOCUMENTS}/{p['target']}")

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
        a, b = desk.stores["numbers"] = (rng.randrange(11, 100), rng.randrange(11, 100))
        mail_from(desk, rng, p["sender"], f"my numbers are {a} and {b}")
        place_some(desk, rng, ["Mail", "Calculator"])

    def check(self, desk: Desktop, p: Params) -> bool:
        a, b = desk.stores["numbers"]
        return calculator.shows(desk, *calculator.both_ways(a, "+" if p["verb"] == "Add" else "x", b))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if "sum" not in notes:
            if move := read_from(s, p["sender"], notes):
                return move
            words = body_of(s, p["sender"]).split()
            notes["sum"] = f"{words[-3]}{'+' if p['verb'] == 'Add' else 'x'}{words[-1]}="
        return s.arrive("Calculator") or calculator.work_out(s, notes["sum"])


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
