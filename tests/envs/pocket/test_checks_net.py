"""What the checks of the mail and the browser accept and refuse (plays.py).

Other legitimate ways than the expert's score; half-done and overdone work does not.
"""

from machine import Machine
from plays import Cases, Params, start

from arpo.agent.actions import Type
from arpo.envs.pocket.apps.mail import letters

cases = Cases()


# The mail.


def mail(m: Machine, folder: str = "Inbox") -> None:
    start(m, "Mail")
    m.click(folder, "row")


def choose_mail(m: Machine, p: Params) -> None:
    """Select the mail that the instruction names, by the arrow keys."""
    m.keys("down")
    for _ in letters(m.desk):
        if m.shows(f"From {p['sender']}: {p['subject']}"):
            return
        m.keys("down")
    raise AssertionError("no such mail")


@cases.add("mail-star", 1)
def three_times_and_by_its_menu(m: Machine, p: Params) -> None:
    mail(m)
    choose_mail(m, p)
    m.click("Star", "button")
    m.click("Star", "button", count=2)
    m.keys("alt", "f4")


@cases.add("mail-delete", 1)
def forever(m: Machine, p: Params) -> None:
    mail(m)
    choose_mail(m, p)
    m.keys("delete")
    m.click("Trash", "row")
    choose_mail(m, p)
    m.keys("delete")
    m.keys("enter")


@cases.add("mail-delete", 0)
def archived_instead(m: Machine, p: Params) -> None:
    mail(m)
    choose_mail(m, p)
    m.click("Archive", "button")


@cases.add("mail-send", 1)
def to_a_small_letter_with_a_newline_at_the_end(m: Machine, p: Params) -> None:
    mail(m)
    m.keys("ctrl", "n")
    m.do(Type(f"{p['to'].lower()}\t{p['subject']}\t{p['text']}\n"))
    m.click("Send", "button")


@cases.add("mail-send", 0)
def twice(m: Machine, p: Params) -> None:
    to_a_small_letter_with_a_newline_at_the_end(m, p)
    to_a_small_letter_with_a_newline_at_the_end(m, p)


@cases.add("mail-send", 0)
def written_and_not_sent(m: Machine, p: Params) -> None:
    mail(m)
    m.keys("ctrl", "n")
    m.do(Type(f"{p['to']}\t{p['subject']}\t{p['text']}"))


@cases.add("mail-reply", 1)
def by_the_button(m: Machine, p: Params) -> None:
    mail(m)
    choose_mail(m, p)
    m.click("Reply", "button")
    m.do(Type(p["text"]))
    m.click("Send", "button")
    m.click("Sent", "row")


@cases.add("mail-reply", 0)
def as_a_mail_of_its_own(m: Machine, p: Params) -> None:
    mail(m)
    m.keys("ctrl", "n")
    m.do(Type(f"{p['sender']}\tanswer\t{p['text']}"))
    m.click("Send", "button")


@cases.add("mail-cleanup", 0)
def one_left(m: Machine, p: Params) -> None:
    mine = [letter for letter in letters(m.desk) if letter.sender == p["sender"]]
    for letter in mine[1:]:
        letter.folder = "Trash" if p["verb"] == "Delete" else "Archive"


# The browser.


def visit(m: Machine, address: str) -> None:
    if m.desk.window_of("Browser") is None:
        start(m, "Browser")
    else:
        m.desk.launch("Browser")
        m.refresh()
    m.keys("ctrl", "l")
    m.do(Type(f"{address}\n"))


@cases.add("browser-address", 1)
def as_people_write_addresses(m: Machine, p: Params) -> None:
    visit(m, f"https://www.{p['address'].upper()}/")


@cases.add("browser-address", 0)
def a_file_of_that_name(m: Machine, p: Params) -> None:
    m.desk.files.write(f"/Documents/{p['address']}", "here")
    visit(m, f"/Documents/{p['address']}")


@cases.add("browser-bookmark", 1)
def by_address_and_key_twice_undone(m: Machine, p: Params) -> None:
    visit(m, f"shop.web/{p['item']}")
    for _ in range(3):
        m.keys("ctrl", "d")
    m.keys("alt", "f4")


@cases.add("browser-bookmark", 0)
def the_wrong_page_too(m: Machine, p: Params) -> None:
    visit(m, "shop.web/ordered")
    m.keys("ctrl", "d")
    visit(m, f"shop.web/{p['item']}")
    m.keys("ctrl", "d")


def send_form(m: Machine, p: Params) -> None:
    visit(m, "contact.web")
    if p["copy"]:
        m.click("Send me a copy", "checkbox")
    m.click(p["topic"], "radio")
    m.click("Name", "field")
    m.do(Type(f"{p['name']}\n"))


@cases.add("browser-form", 1)
def from_below_and_by_enter(m: Machine, p: Params) -> None:
    send_form(m, p)


@cases.add("browser-form", 0)
def with_another_name_first(m: Machine, p: Params) -> None:
    send_form(m, {**p, "name": "Zoe"})
    send_form(m, p)


@cases.add("browser-scroll", 1)
def by_the_address(m: Machine, p: Params) -> None:
    visit(m, f"guide.web/{p['topic']}")


@cases.add("browser-cheaper", 0)
def both(m: Machine, p: Params) -> None:
    for item in (p["one"], p["two"]):
        visit(m, f"shop.web/{item}")
        m.click("Order", "button")


test_the_check_gives_the_score_that_is_due = cases.test()
