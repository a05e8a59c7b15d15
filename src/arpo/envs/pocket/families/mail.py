"""Tasks of the mail program.

As with the files, a family says what it asks for as a change of the mails (`goal`), and a check compares: no other
mail may have been moved, starred, written or lost. Whether mails were read does not matter.
"""

from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import replace
from random import Random
from typing import ClassVar

from arpo.agent.actions import Click, Fail
from arpo.envs.pocket.apps.mail import FOLDERS, ME, Letter, Mail, add_message, fill, letters, new_subject
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Infeasible, Params, ledger, open_perhaps, way_made
from arpo.envs.pocket.screen import Control, Move, ParsedScreen
from arpo.envs.pocket.words import drawn, noun, nouns, one_of, person, sentence


def row_of(s: ParsedScreen, p: Params) -> Control | None:
    """The row of the mail that the instruction names."""
    rows = s.all(kind="row", label=p["sender"], window="Mail")
    return next((row for row in rows if row.value == p["subject"]), None)


def go(s: ParsedScreen) -> Move | None:
    """Bring the mail program to the front and go to the inbox. A half-written mail goes."""
    discard = s.click("Discard", kind="button", window="Discard mail")
    return discard or s.arrive("Mail") or s.select("Inbox", kind="row", window="Mail", thought="Go to Inbox.")


def is_selected(row: Control | None) -> bool:
    return row is not None and "selected" in row.state


def reach(s: ParsedScreen, row: Control | None) -> Move | None:
    """Go to the inbox, bring a mail's row in sight and read it."""
    if move := go(s) or s.seek(row, "Mail"):
        return move
    return (f"Click the mail from {row.label}.", Click(*row.centre)) if row and not is_selected(row) else None


def write(s: ParsedScreen, to: str, subject: str, text: str) -> Move | None:
    """Fill in and send the mail that is being written."""
    if s.dialog == "Discard mail":
        return s.click("Keep", kind="button")
    if s.dialog != "New mail":
        return None
    return (
        s.fill("To", to)
        or s.fill("Subject", subject)
        or s.fill("Text", text)
        or s.click("Send", kind="button", thought="Send the mail.")
    )


def send(s: ParsedScreen, p: Params, text: str) -> Move | None:
    """Write a new mail to the person and with the subject that the instruction names."""
    return (
        write(s, p["to"], p["subject"], text)
        or s.arrive("Mail")
        or s.click("New", kind="button", window="Mail", thought="Write a new mail.")
    )


def mix_in(desk: Desktop, rng: Random, letter: Letter) -> None:
    """Put a new mail somewhere among the others."""
    mails = letters(desk)
    mails.remove(letter)
    mails.insert(rng.randrange(len(mails) + 1), letter)


def remember(desk: Desktop) -> None:
    """Keep the mails as they are now for the check."""
    desk.stores["mails"] = [replace(mail) for mail in letters(desk)]


def remembered(desk: Desktop) -> list[Letter]:
    """The mails as they were, to be changed into what is wanted."""
    return [replace(mail) for mail in desk.stores["mails"]]


class MailFamily(Family):
    """A mail that the instruction names by sender and subject, among others."""

    judges = ("mails",)
    trash_counts: ClassVar[bool] = True  # whether the trash must be as the goal says, too
    random_params = drawn(sender=person, subject=new_subject)

    def named(self, desk: Desktop, p: Params, rng: Random) -> list[Letter]:
        """Add the mails that the instruction names and return them; the others are there already."""
        return [add_message(desk, p["sender"], p["subject"], sentence(rng), unread=rng.random() < 0.5)]

    @abstractmethod
    def goal(self, mails: list[Letter], p: Params) -> None:
        """Do to the mails what the instruction asks for."""

    def find(self, mails: list[Letter], p: Params) -> Letter:
        return next(mail for mail in mails if mail.sender == p["sender"] and mail.subject == p["subject"])

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        sender = p.get("sender", "")
        fill(desk, rng, (sender,))
        for letter in fill(desk, rng, (sender,), count=rng.randrange(2, 5)):
            letter.folder = rng.choice(["Archive", "Trash"])
        if sender and "subject" in p and rng.random() < 0.5:  # another mail from the same person
            other = " ".join(nouns(rng, 2, tuple(p["subject"].split())))
            add_message(desk, sender, other, sentence(rng))
        for letter in self.named(desk, p, rng):
            mix_in(desk, rng, letter)
        remember(desk)
        app = open_perhaps(desk, rng, "Mail")
        if isinstance(app, Mail):
            # A mail that does not exist must be looked for first, so the inbox is not in sight yet.
            app.go(rng.choice(["Inbox", *FOLDERS] if self.feasible else FOLDERS[1:]))

    def check(self, desk: Desktop, p: Params) -> bool:
        wanted = remembered(desk)
        self.goal(wanted, p)
        return ledger(letters(desk), self.trash_counts) == ledger(wanted, self.trash_counts)


class Star(MailFamily):
    """Star a mail by the button."""

    name = "mail-star"
    asks = "Star the mail '{subject}' from {sender}."

    def goal(self, mails: list[Letter], p: Params) -> None:
        self.find(mails, p).starred = True

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return reach(s, row_of(s, p)) or s.click("Star", kind="button")


class DeleteMail(MailFamily):
    """Select a mail and press the Delete key."""

    name = "mail-delete"
    asks = "Delete the mail '{subject}' from {sender}."
    trash_counts = False  # gone for good is deleted, too

    def goal(self, mails: list[Letter], p: Params) -> None:
        self.find(mails, p).folder = "Trash"

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return reach(s, row_of(s, p)) or s.keys("delete", thought="Press Delete.")


class Send(MailFamily):
    """Write a mail: three fields and a button."""

    name = "mail-send"
    asks = "Send a mail to {to} with the subject '{subject}' and the text '{text}'."
    random_params = drawn(to=person, subject=noun, text=sentence)

    def named(self, desk: Desktop, p: Params, rng: Random) -> list[Letter]:
        return []

    def goal(self, mails: list[Letter], p: Params) -> None:
        mails.append(Letter(ME, p["to"], p["subject"], p["text"], "Sent"))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return send(s, p, p["text"])


class ReplyToMail(MailFamily):
    """Answer a mail, by the keyboard."""

    name = "mail-reply"
    asks = "Answer the mail '{subject}' from {sender} with '{text}'."
    random_params = drawn(sender=person, subject=new_subject, text=sentence)

    def goal(self, mails: list[Letter], p: Params) -> None:
        mails.append(Letter(ME, p["sender"], f"Re: {p['subject']}", p["text"], "Sent"))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return (
            write(s, p["sender"], f"Re: {p['subject']}", p["text"])
            or reach(s, row_of(s, p))
            or s.keys("ctrl", "r", thought="Answer it.")
        )


class Forward(MailFamily):
    """Send a mail on to somebody else, by its context menu."""

    name = "mail-forward"
    asks = "Forward the mail '{subject}' from {sender} to {to}."

    def random_params(self, rng: Random) -> Params:
        sender = person(rng)
        return {"sender": sender, "subject": new_subject(rng), "to": person(rng, (sender,))}

    def goal(self, mails: list[Letter], p: Params) -> None:
        mails.append(Letter(ME, p["to"], f"Fwd: {p['subject']}", self.find(mails, p).body, "Sent"))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        text, subject = s.find("Text", kind="area", window="New mail"), s.find("Subject", kind="field")
        if s.dialog == "New mail" and text and subject and subject.value == f"Fwd: {p['subject']}":
            return write(s, p["to"], subject.value, s.notes.setdefault("text", text.value))
        row = row_of(s, p)
        move = s.context_entry(f"{p['sender']} {p['subject']}", "Forward") or go(s) or s.seek(row, "Mail")
        if move or not row:
            return move
        return f"Right-click the mail from {row.label}.", Click(*row.centre, button="right")


class ArchiveAll(MailFamily):
    """Archive or delete all mails from one person, by the button."""

    name = "mail-cleanup"
    asks = "{verb} all mails from {sender} in the Inbox."
    trash_counts = False
    random_params = drawn(sender=person, verb=one_of(["Archive", "Delete"]))

    def named(self, desk: Desktop, p: Params, rng: Random) -> list[Letter]:
        return [add_message(desk, p["sender"], new_subject(rng), sentence(rng)) for _ in range(rng.randint(2, 3))]

    def goal(self, mails: list[Letter], p: Params) -> None:
        for mail in mails:
            if mail.sender == p["sender"]:
                mail.folder = "Archive" if p["verb"] == "Archive" else "Trash"

    def progress(self, desk: Desktop, p: Params) -> float:
        """A mail in the trash, or gone for good, is in another place like one in a folder."""
        wanted = remembered(desk)
        self.goal(wanted, p)

        def places(mails: list[Letter]) -> list[Hashable]:
            kept: list[Hashable] = [*ledger(mails, with_trash=False).elements()]
            return kept + ["away"] * (len(wanted) - len(kept))

        return way_made(*map(places, (remembered(desk), wanted, letters(desk))))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        rows = s.all(kind="row", label=p["sender"], window="Mail")
        row = next((row for row in rows if is_selected(row)), rows[0] if rows else None)
        return reach(s, row) or s.click(p["verb"], kind="button", window="Mail")


class MissingMail(Infeasible, MailFamily):
    """Answer a mail that nobody has sent: look through the inbox, then give up."""

    name = "mail-missing"
    random_params = ReplyToMail.random_params
    asks = ReplyToMail.asks
    named = Send.named

    def goal(self, mails: list[Letter], p: Params) -> None:
        """There is none."""

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        move = go(s) or s.look_through("Mail", "Look at the other mails.")
        return move or (f"There is no mail '{p['subject']}' from {p['sender']}.", Fail())
