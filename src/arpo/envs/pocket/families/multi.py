"""Tasks that cross applications: something is read in one and used in another."""

from __future__ import annotations

import random

from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.apps.mail import ME, Letter, add_message, fill, letters, new_subject
from arpo.envs.pocket.apps.pages import SECTIONS, new_store
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families import tables
from arpo.envs.pocket.families.base import DOCUMENTS, Family, Params, add_files, others_kept, place, place_some
from arpo.envs.pocket.families.browser import downloaded, price_of
from arpo.envs.pocket.families.editor import note_down, page_of, saved
from arpo.envs.pocket.families.files import reach as reach_file
from arpo.envs.pocket.families.files import row_of as file_row
from arpo.envs.pocket.families.mail import ledger, mix_in, remember, remembered
from arpo.envs.pocket.families.mail import reach as reach_mail
from arpo.envs.pocket.families.mail import send as send_mail
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.vfs import PLACES
from arpo.envs.pocket.words import nouns, person, sentence


def mail_from(desk: Desktop, rng: random.Random, sender: str, body: str, file: tuple[str, str] | None = None) -> None:
    """Some mails, one of them from this person."""
    fill(desk, rng, (sender,), count=rng.randrange(2, 5))
    mix_in(desk, rng, add_message(desk, sender, new_subject(rng), body, file))


def body_of(s: Screen, sender: str) -> str:
    """The text of the mail that is being read, if it is from that person."""
    lines = [c.label for c in s.all(kind="text", window="Mail")]
    return " ".join(lines[1:]) if lines and lines[0].startswith(f"From {sender}:") else ""


def read_from(s: Screen, sender: str, notes: dict[str, str]) -> Move | None:
    """Find and open the only mail from somebody."""
    return reach_mail(s, s.find(sender, kind="row", window="Mail"), notes)


class MailedNote(Family):
    """Read a number in a mail and save it in a file."""

    name = "multi-mailnote"
    asks = "Save the phone number from the mail of {sender} as {name} in Documents."

    def draw(self, rng: random.Random) -> Params:
        return {"sender": person(rng), "name": f"{nouns(rng, 1)[0]}.txt"}

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
    asks = "Put the price of {item} from the Shop of the Browser into cell {cell} of {name} and save it."

    def draw(self, rng: random.Random) -> Params:
        item, name = nouns(rng, 2)
        return {"item": item, "cell": f"{rng.choice('BCD')}{rng.randrange(2, 6)}", "name": f"{name}.csv"}

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        store = desk.stores["browser"] = new_store(rng, items=(p["item"],))
        price = next(row[2][1:] for row in store["pages"][SECTIONS["Shop"]] if row[1] == p["item"])
        desk.stores["price"] = price
        rows = tables.table(rng)
        while tables.put(tables.padded(rows), p["cell"], price) == tables.padded(rows):  # it is there already
            rows = tables.table(rng)
        tables.begin(desk, rng, p["name"], rows, always_open=True)
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


class FileToMail(Family):
    """Open a file to read it, then send its text."""

    name = "multi-filemail"
    asks = "Mail the text of {name} in Documents to {to} with the subject '{subject}'."

    def draw(self, rng: random.Random) -> Params:
        name, subject = nouns(rng, 2)
        return {"name": f"{name}.txt", "to": person(rng), "subject": subject}

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        desk.stores["text"] = sentence(rng)
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(p["name"],))
        desk.files.write(f"{DOCUMENTS}/{p['name']}", desk.stores["text"])
        fill(desk, rng, count=rng.randrange(1, 5))
        remember(desk)
        place_some(desk, rng, ["Mail", "Files"], least=1)

    def check(self, desk: Desktop, p: Params) -> bool:
        mail = Letter(ME, p["to"], p["subject"], desk.stores["text"], "Sent")
        return ledger(letters(desk)) == ledger([*remembered(desk), mail])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        page = page_of(s, p["name"])
        if page and "text" not in notes:
            notes["text"] = page.value
        if "text" not in notes:
            return (
                s.switch(p["name"])
                or reach_file(s, "Documents", p["name"], notes)
                or s.double_click(p["name"], kind="row", window="Files")
            )
        return send_mail(s, p, notes["text"])


class FileAttachment(Family):
    """Save a file from a mail, then put it where it belongs."""

    name = "multi-attachment"
    asks = "Save the file in the mail from {sender} and move it to {folder}."

    def draw(self, rng: random.Random) -> Params:
        return {"sender": person(rng), "folder": rng.choice(["Documents", "Pictures"])}

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
        return reach_file(s, "Downloads", notes["file"], notes) or s.drag(row, target, f"Drag it to {p['folder']}.")


class Download(Family):
    """Download a file from a page, then open it."""

    name = "multi-download"
    asks = "Download {name} from the Files page of the Browser and open it in the Editor."

    def draw(self, rng: random.Random) -> Params:
        return {"name": f"{nouns(rng, 1)[0]}.txt"}

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
        return reach_file(s, "Downloads", p["name"], notes) or s.double_click(p["name"], kind="row", window="Files")
