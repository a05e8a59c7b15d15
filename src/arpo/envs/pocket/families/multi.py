"""Tasks that cross applications: something is read in one and used in another."""

from random import Random

from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.apps.mail import ME, Letter, add_message, fill, letters, new_subject
from arpo.envs.pocket.apps.pages import SECTIONS, new_store
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families import browser, editor, files, mail, sheet
from arpo.envs.pocket.families.base import Family, Params, add_files, ledger, others_kept, place, place_some
from arpo.envs.pocket.screen import Move, ParsedScreen
from arpo.envs.pocket.vfs import DOCUMENTS, PLACES
from arpo.envs.pocket.words import drawn, nouns, one_of, person, sentence, text_file


def mail_from(desk: Desktop, rng: Random, sender: str, body: str, file: tuple[str, str] | None = None) -> None:
    """Some mails, one of them from this person."""
    fill(desk, rng, (sender,), count=rng.randrange(2, 5))
    mail.mix_in(desk, rng, add_message(desk, sender, new_subject(rng), body, file))


def read_from(s: ParsedScreen, sender: str) -> Move | None:
    """Find and open the only mail from somebody."""
    return mail.reach(s, s.find(sender, kind="row", window="Mail"))


class MailedNote(Family):
    """Read a number in a mail and save it in a file."""

    name = "multi-mailnote"
    judges = ("files",)
    asks = "Save the phone number from the mail of {sender} as {name} in Documents."
    random_params = drawn(sender=person, name=text_file)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        desk.stores["number"] = f"555-{rng.randrange(1000, 10000)}"
        mail_from(desk, rng, p["sender"], f"my phone number is {desk.stores['number']}")
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 4), avoid=(p["name"],))
        place_some(desk, rng, ["Mail", "Editor"])

    def check(self, desk: Desktop, p: Params) -> bool:
        return editor.saved(desk, p["name"], desk.stores["number"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if "number" not in s.notes:
            if move := read_from(s, p["sender"]):
                return move
            s.notes["number"] = s.all(kind="text", window="Mail")[-1].label.split()[-1]
        return editor.note_down(s, p["name"], s.notes["number"])


class PriceToSheet(Family):
    """Look a price up in the browser and put it into a cell."""

    name = "multi-webprice"
    judges = ("files",)
    asks = "Put the price of {item} from the Shop of the Browser into cell {cell} of {name} and save it."

    def random_params(self, rng: Random) -> Params:
        item, name = nouns(rng, 2)
        return {"item": item, "cell": f"{rng.choice('BCD')}{rng.randrange(2, 6)}", "name": f"{name}.csv"}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        store = desk.stores["browser"] = new_store(rng, items=(p["item"],))
        price = next(row[2][1:] for row in store["pages"][SECTIONS["Shop"]] if row[1] == p["item"])
        desk.stores["price"] = price
        rows = sheet.new_table(rng)
        while sheet.put(sheet.padded(rows), p["cell"], price) == sheet.padded(rows):  # it is there already
            rows = sheet.new_table(rng)
        sheet.begin(desk, rng, p["name"], rows, always_open=True)
        if rng.random() < 0.6:
            place(desk, rng, "Browser")

    def check(self, desk: Desktop, p: Params) -> bool:
        saved = sheet.saved(desk, p["name"])
        prices = (desk.stores["price"], f"${desk.stores['price']}")
        return saved in [sheet.put(sheet.start_of(desk), p["cell"], price) for price in prices]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if "price" not in s.notes:
            if move := s.arrive("Browser"):
                return move
            price = browser.price_of(s, p["item"])
            if price is None:
                return s.click("Shop", kind="link") or s.click("Home", kind="tool", thought="Go to the home page.")
            s.notes["price"] = str(price)
        return (
            sheet.begin_work(s, p["name"], p["cell"])
            or sheet.write(s, p["cell"], s.notes["price"])
            or sheet.menu(s, "File", "Save")
        )


class FileToMail(Family):
    """Open a file to read it, then send its text."""

    name = "multi-filemail"
    judges = ("mails",)
    asks = "Mail the text of {name} in Documents to {to} with the subject '{subject}'."

    def random_params(self, rng: Random) -> Params:
        name, subject = nouns(rng, 2)
        return {"name": f"{name}.txt", "to": person(rng), "subject": subject}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        desk.stores["text"] = sentence(rng)
        add_files(desk, rng, DOCUMENTS, rng.randrange(1, 5), avoid=(p["name"],))
        desk.files.write(f"{DOCUMENTS}/{p['name']}", desk.stores["text"])
        fill(desk, rng, count=rng.randrange(1, 5))
        mail.remember(desk)
        place_some(desk, rng, ["Mail", "Files"], least=1)

    def check(self, desk: Desktop, p: Params) -> bool:
        letter = Letter(ME, p["to"], p["subject"], desk.stores["text"], "Sent")
        return ledger(letters(desk)) == ledger([*mail.remembered(desk), letter])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        page = editor.page_of(s, p["name"])
        if page and "text" not in s.notes:
            s.notes["text"] = page.value
        if "text" not in s.notes:
            return (
                s.switch(p["name"])
                or files.reach(s, "Documents", p["name"])
                or s.double_click(p["name"], kind="row", window="Files")
            )
        return mail.send(s, p, s.notes["text"])


class FileAttachment(Family):
    """Save a file from a mail, then put it where it belongs."""

    name = "multi-attachment"
    judges = ("files",)
    asks = "Save the file in the mail from {sender} and move it to {folder}."
    random_params = drawn(sender=person, folder=one_of(["Documents", "Pictures"]))

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        name, text = desk.stores["file"] = (text_file(rng), sentence(rng))
        for folder in PLACES:
            add_files(desk, rng, f"/{folder}", rng.randrange(1, 4), avoid=(name,))
        mail_from(desk, rng, p["sender"], sentence(rng), (name, text))
        place_some(desk, rng, ["Mail", "Files"])

    def check(self, desk: Desktop, p: Params) -> bool:
        name, text = desk.stores["file"]
        path = f"/{p['folder']}/{name}"
        return path in desk.files.files and desk.files.read(path) == text and others_kept(desk, path)

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if "file" not in s.notes:
            if move := read_from(s, p["sender"]):
                return move
            label = next((c.label for c in s.all(kind="text", window="Mail") if c.label.startswith("File ")), None)
            if label is None:
                return None
            s.notes["file"] = label.removeprefix("File ")
            return s.click("Save", kind="button", window="Mail", thought="Save the file.")
        row, target = files.row_of(s, s.notes["file"]), s.find(p["folder"], kind="row", window="Files")
        return files.reach(s, "Downloads", s.notes["file"]) or s.drag(row, target, f"Drag it to {p['folder']}.")


class Download(Family):
    """Download a file from a page, then open it."""

    name = "multi-download"
    judges = ("files",)
    asks = "Download {name} from the Files page of the Browser and open it in the Editor."
    random_params = drawn(name=text_file)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        desk.stores["browser"] = new_store(rng, files=(p["name"],))
        add_files(desk, rng, "/Downloads", rng.randrange(1, 5), avoid=(p["name"],))
        place_some(desk, rng, ["Browser", "Files"])

    def check(self, desk: Desktop, p: Params) -> bool:
        window = desk.window_with(f"/Downloads/{p['name']}")
        return window is not None and isinstance(window.app, Editor) and browser.downloaded(desk, p["name"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if "saved" not in s.notes:
            if move := s.arrive("Browser"):
                return move
            if move := s.click(p["name"], kind="link", window="Browser"):
                s.notes["saved"] = "yes"
                return move
            return s.click("Files", kind="link") or s.click("Home", kind="tool", thought="Go to the home page.")
        return files.reach(s, "Downloads", p["name"]) or s.double_click(p["name"], kind="row", window="Files")
