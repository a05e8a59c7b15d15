"""The mail program: folders at the left, their mails, and the one that is being read; writing is a dialog.

The mails lie in `desk.stores["mail"]`, newest first, so that they outlive the window and other code can read them:

    add_message(desk, "Ada", "train ticket", "bring tea and bread", attachment=("plan.txt", "buy milk"))
    [letter.subject for letter in letters(desk) if letter.folder == "Sent"]
"""

from dataclasses import dataclass
from functools import partial
from random import Random
from typing import cast

from arpo.envs.pocket.desktop import TITLE, App, Desktop, Dialog, Keys, Window
from arpo.envs.pocket.dialogs import confirm
from arpo.envs.pocket.text_layout import LINE, width
from arpo.envs.pocket.textbox import UNDO_LIMIT, TextBox, rows_of
from arpo.envs.pocket.ui import ROW, SCROLL_ROWS, MenuItem, On, Ui, states
from arpo.envs.pocket.words import PEOPLE, nouns, person, sentence

ME = "Me"
FOLDERS = ("Inbox", "Archive", "Sent", "Trash")
SIDE = 50  # the width of the list of folders
TOP = 21  # the height of the tool bar
MOST_MAILS = 200
LEAST_PANE = 58  # a heading, a line of text and an attachment


@dataclass(slots=True, eq=False)  # two mails with equal words are still two mails
class Letter:
    """One mail. `attachment` is a file's name ("": none) and `content` its text."""

    sender: str
    to: str
    subject: str
    body: str
    folder: str = "Inbox"
    unread: bool = True
    starred: bool = False
    attachment: str = ""
    content: str = ""

    @property
    def other(self) -> str:
        """Who is at the other end."""
        return self.to if self.sender == ME else self.sender


def letters(desk: Desktop) -> list[Letter]:
    """All mails of the machine, newest first."""
    return cast("list[Letter]", desk.stores.setdefault("mail", []))


def add_message(
    desk: Desktop, sender: str, subject: str, body: str, attachment: tuple[str, str] | None = None, unread: bool = True
) -> Letter:
    """A mail from somebody comes in. `attachment` is a file's name and text."""
    name, content = attachment or ("", "")
    letter = Letter(sender, ME, subject, body, unread=unread, attachment=name, content=content)
    letters(desk).insert(0, letter)
    return letter


def new_subject(rng: Random) -> str:
    """Two nouns, such as "train ticket"."""
    return " ".join(nouns(rng, 2))


def fill(desk: Desktop, rng: Random, avoid_people: tuple[str, ...] = (), count: int | None = None) -> list[Letter]:
    """Put 4 to 7 (or `count`) mails from other people than those in `avoid_people` into the inbox."""
    added = []
    for _ in range(rng.randint(4, 7) if count is None else count):
        attachment = (f"{nouns(rng, 1)[0]}.txt", sentence(rng)) if rng.random() < 0.25 else None
        letter = add_message(desk, person(rng, avoid_people), new_subject(rng), sentence(rng), attachment)
        letter.unread, letter.starred = rng.random() < 0.4, rng.random() < 0.2
        added.append(letter)
    return added


class Mail(App):
    """A folder and the mail that is selected in it."""

    name = "Mail"
    size = (320, 200)

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        letters(desk)  # makes the store, so that a view need not
        self.folder = "Inbox"
        self.selected: Letter | None = None
        self.first = 0  # the topmost mail in sight …
        self.first_line = 0  # … and the topmost line of the one being read
        self.moves: list[tuple[Letter, str]] = []  # what can be undone: a mail and the folder it was in

    @property
    def letters(self) -> list[Letter]:
        return letters(self.desk)

    def shown(self) -> list[Letter]:
        return [letter for letter in self.letters if letter.folder == self.folder]

    @property
    def current(self) -> Letter | None:
        """The selected mail, as long as it is in the folder."""
        return self.selected if self.selected and self.selected.folder == self.folder else None

    # What is shown.

    def view(self, ui: Ui) -> None:
        letter = self.current
        x = 3
        for label, do, works in (
            ("New", self.compose, True),
            ("Reply", self.reply, letter),
            ("Archive", self.archive, letter and self.folder in ("Inbox", "Trash")),
            ("Delete", self.delete, letter),
            ("Star", self.star, letter),
        ):
            starred = label == "Star" and letter is not None and letter.starred
            ui.button(x, 2, width(label) + 10, label, do if works else None, on=starred)
            x += width(label) + 13
        ui.panel(2, TOP, SIDE, ui.h - TOP - 2)
        for i, folder in enumerate(FOLDERS):
            on = On(partial(self.go, folder), drop=partial(self._drop, folder))
            ui.row(3, TOP + 1 + i * ROW, SIDE - 2, folder, on, selected=folder == self.folder)
        bottom = TOP + self._visible() * ROW + 4
        self._list(ui, bottom - TOP - 2)
        if letter:
            self._read(ui, letter, SIDE + 8, bottom + 2, ui.w - SIDE - 14, ui.h - bottom - 6)
        else:
            ui.panel(SIDE + 4, bottom, ui.w - SIDE - 6, ui.h - bottom - 2)

    def _visible(self) -> int:
        """How many mails the list shows: about half of the window, and no fewer than one scroll gesture moves."""
        height = self.window.h - TITLE - TOP - 2
        return max(SCROLL_ROWS, min((height - LEAST_PANE) // ROW, height * 11 // 20 // ROW))

    def _list(self, ui: Ui, h: int) -> None:
        mails = self.shown()
        x, w = SIDE + 4, ui.w - SIDE - 6
        shown = ui.rows(x, TOP, w, h, len(mails), self.first, partial(setattr, self, "first"), On(self.unselect))
        wide = w - (2 if len(shown) == len(mails) else 10)  # a scroll bar takes the rest
        if not mails:
            ui.text(x + 8, TOP + 4, "No mails.", w - 12, style="page-faint")
        for i, n in enumerate(shown):
            letter = mails[n]
            payload = f"mail {self.letters.index(letter)}"
            on = On(partial(self.read, letter), menu=partial(self._letter_menu, letter), payload=payload)
            icon = "star" if letter.starred else "unread" if letter.unread else "mail"
            state = states(bold=letter.unread, starred=letter.starred)
            columns = ((60, letter.subject),)
            ui.row(x + 1, TOP + 1 + i * ROW, wide, letter.other, on, letter is self.current, columns, icon, state)

    def _read(self, ui: Ui, letter: Letter, x: int, y: int, w: int, h: int) -> None:
        visible = max(1, (h - LINE - (ROW if letter.attachment else 0)) // LINE)
        lines = rows_of(letter.body, w - 10)
        first = max(0, min(self.first_line, len(lines) - visible))

        def scroll(dx: int, dy: int) -> None:  # no line is passed over, however low the pane is
            self.first_line = max(0, min(first + max(-visible, min(dy, visible)), len(lines) - visible))

        ui.panel(x - 4, y - 2, w + 8, h + 4, on=On(scroll=scroll))
        heading = f"To {letter.to}" if letter.sender == ME else f"From {letter.sender}"
        ui.text(x, y, f"{heading}: {letter.subject}", w, style="page-title")
        for i, (start, end) in enumerate(lines[first : first + visible]):
            ui.text(x, y + (i + 1) * LINE, letter.body[start:end].rstrip(), w - 8, style="page")
        if len(lines) > visible:
            to_line = partial(setattr, self, "first_line")
            ui.scrollbar(x + w - 6, y + LINE, visible * LINE, first, visible, len(lines), to_line)
        if letter.attachment:
            bottom = y + h - ROW
            ui.text(x, bottom + 1, f"File {letter.attachment}", w - 46, style="page")
            ui.button(x + w - 42, bottom, 42, "Save", self.save_attachment)

    # Menus and keys.

    def _letter_menu(self, letter: Letter) -> list[MenuItem]:
        self.read(letter)
        return [
            MenuItem("Reply", self.reply, shortcut="Ctrl+R"),
            MenuItem("Forward", self.forward),
            MenuItem("Remove star" if letter.starred else "Star", self.star),
            MenuItem("Mark as unread", self.mark_unread),
            MenuItem("Move to Inbox", self.move if self.folder in ("Archive", "Trash") else None, (letter, "Inbox")),
            MenuItem("Archive", self.archive if self.folder in ("Inbox", "Trash") else None),
            MenuItem("Delete", self.delete, shortcut="Del"),
        ]

    def shortcuts(self) -> Keys:
        return {
            "ctrl+n": self.compose,
            "ctrl+r": self.reply,
            "ctrl+z": self.undo,
            "delete": self.delete,
            "up": partial(self.step, -1),
            "down": partial(self.step, 1),
        }

    # Looking around.

    def go(self, folder: str) -> None:
        self.folder, self.first = folder, 0
        self.unselect()

    def read(self, letter: Letter) -> None:
        """Select a mail: it is no longer unread, and its row is in sight."""
        self.selected, self.first_line = letter, 0
        letter.unread = False
        at = self.shown().index(letter)
        self.first = max(at - self._visible() + 1, min(self.first, at), 0)

    def unselect(self) -> None:
        self.selected = None

    def step(self, by: int) -> None:
        shown = self.shown()
        if shown:
            at = shown.index(self.current) + by if self.current else 0
            self.read(shown[max(0, min(at, len(shown) - 1))])

    # Doing something with a mail.

    def star(self) -> None:
        if self.current:
            self.current.starred = not self.current.starred

    def mark_unread(self) -> None:
        if self.current:
            self.current.unread = True
            self.unselect()  # a mail that is being read is not unread

    def archive(self) -> None:
        if self.current:
            self.move(self.current, "Archive")

    def delete(self) -> None:
        """Into the trash; from there for good, after a question."""
        letter = self.current
        if letter and self.folder == "Trash":
            text = f"Delete this mail of {letter.other} forever?"
            confirm(self, "Delete forever", text, "Delete", self._delete_forever, letter)
        elif letter:
            self.move(letter, "Trash")

    def _delete_forever(self, letter: Letter) -> None:
        self.letters.remove(letter)
        self.unselect()

    def _drop(self, folder: str, payload: str) -> None:
        """Something is dropped on a folder. Files are ignored, and only mails that the user wrote may go to Sent."""
        kind, _, index = payload.partition(" ")
        if kind == "mail" and (folder != "Sent" or self.letters[int(index)].sender == ME):
            self.move(self.letters[int(index)], folder)

    def move(self, letter: Letter, folder: str) -> None:
        if letter.folder != folder:
            self.moves.append((letter, letter.folder))
            del self.moves[:-UNDO_LIMIT]
            letter.folder = folder
            self.unselect()

    def undo(self) -> None:
        """Put the mail that was moved last back into its folder."""
        while self.moves:
            letter, folder = self.moves.pop()
            if letter in self.letters:  # not deleted forever since
                letter.folder = folder
                return

    def save_attachment(self) -> None:
        letter = self.current
        if letter and letter.attachment:
            path = self.desk.files.free_name(f"/Downloads/{letter.attachment}")
            self.desk.files.write(path, letter.content)
            self.desk.notice = f"Saved in Downloads: {path.rpartition('/')[2]}"

    # Writing.

    def reply(self) -> None:
        if letter := self.current:
            self.compose(letter.other, _prefixed("Re: ", letter.subject))

    def forward(self) -> None:
        if letter := self.current:
            self.compose(subject=_prefixed("Fwd: ", letter.subject), text=letter.body)

    def compose(self, to: str = "", subject: str = "", text: str = "") -> None:
        Compose(self, to, subject, text)


def _prefixed(prefix: str, subject: str) -> str:
    return subject if subject.startswith(prefix) else prefix + subject


class Compose(Dialog):
    """A mail being written. Only the button sends it: the Enter key goes on to the next field."""

    title = "New mail"
    size = (240, 168)

    def __init__(self, asker: Mail, to: str, subject: str, text: str) -> None:
        super().__init__(asker)
        self.to, self.subject, self.text = TextBox(), TextBox(), TextBox(multiline=True)
        for box, words in ((self.to, to), (self.subject, subject), (self.text, text)):
            box.set(words)
        self.start = (to, subject, text)
        self.focus = self.text if to else self.to
        self.problem = ""

    def view(self, ui: Ui) -> None:
        x = 14 + width("Subject")
        ui.text(8, 5, "To")
        ui.field(x, 4, ui.w - x - 8, "To", self.to, enter=partial(setattr, self, "focus", self.subject))
        ui.text(8, 25, "Subject")
        ui.field(x, 24, ui.w - x - 8, "Subject", self.subject, enter=partial(setattr, self, "focus", self.text))
        bottom = ui.h - ROW - 6
        ui.area(8, 44, ui.w - 16, bottom - 48, "Text", self.text)
        if self.problem:
            ui.text(8, bottom + 1, self.problem, ui.w - 140, style="wrong")
        ui.button(ui.w - 128, bottom, 58, "Send", self.send if self.to.text.strip() else None, default=True)
        ui.button(ui.w - 66, bottom, 58, "Cancel", self.cancel)

    def accept(self) -> None:
        """Enter sends nothing."""

    def send(self) -> None:
        name = self.to.text.strip().capitalize()
        if name not in PEOPLE:
            self.problem = "Unknown address"
            return
        if len(letters(self.desk)) >= MOST_MAILS:
            self.problem = "The mailbox is full"
            return
        letter = Letter(ME, name, self.subject.text.strip(), self.text.text.strip(), "Sent", unread=False)
        letters(self.desk).insert(0, letter)
        self.dismiss()
        self.desk.notice = f"Sent to {name}"

    def cancel(self) -> None:
        if (self.to.text, self.subject.text, self.text.text) == self.start:
            self.dismiss()
        else:
            confirm(self, "Discard mail", "Discard this mail?", "Discard", self.dismiss, no="Keep")
