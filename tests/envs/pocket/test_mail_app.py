"""The mail program, used as a person does: what is clicked, what is then on the screen and in the store of mails."""

import random

import pytest
from machine import Machine

from arpo.agent.actions import Drag, Scroll, Type
from arpo.envs.pocket.apps.mail import MOST_MAILS, Letter, add_message, fill, letters


@pytest.fixture
def machine() -> Machine:
    """Mail shows an inbox with three mails: the newest from Cleo with a file, then Ben's, then Ada's."""
    machine = Machine()
    machine.desk.stores.clear()
    machine.desk.files.files.clear()
    add_message(machine.desk, "Ada", "train ticket", "bring tea")
    add_message(machine.desk, "Ben", "garden party", "buy cake", unread=False)
    add_message(machine.desk, "Cleo", "music list", "see the file", attachment=("songs.txt", "la la"))
    machine.desk.launch("Mail", (80, 10))
    return machine


def letter_of(machine: Machine, other: str) -> Letter:
    return next(letter for letter in letters(machine.desk) if letter.other == other)


def inbox(machine: Machine) -> list[str]:
    return [c.label for c in machine.env.parse() if c.kind == "row" and c.value]


def drag(machine: Machine, source: str, target: str) -> None:
    machine.do(Drag(*machine.find(source, "row").centre, *machine.find(target, "row").centre))


def context(machine: Machine, row: str, entry: str) -> None:
    machine.click(row, kind="row", button="right")
    machine.click(entry, kind="menuitem")


def test_the_newest_mail_is_first_and_a_mail_is_unread_until_it_is_clicked(machine: Machine) -> None:
    assert inbox(machine) == ["Cleo", "Ben", "Ada"]
    assert "bold" in machine.find("Ada", "row").state and "bold" not in machine.find("Ben", "row").state
    machine.click("Ada", kind="row")
    assert "bold" not in machine.find("Ada", "row").state
    assert machine.shows("From Ada: train ticket", "text") and machine.shows("bring tea", "text")


def test_without_a_selected_mail_only_new_can_be_clicked(machine: Machine) -> None:
    states = {label: machine.find(label, "button").state for label in ("New", "Reply", "Archive", "Delete", "Star")}
    assert states.pop("New") == () and set(states.values()) == {("disabled",)}
    machine.keys("delete")
    machine.keys("ctrl", "r")
    assert inbox(machine) == ["Cleo", "Ben", "Ada"] and not machine.shows("New mail", "title")


def test_star_is_set_and_removed_by_the_same_button(machine: Machine) -> None:
    machine.click("Ada", kind="row")
    machine.click("Star", kind="button")
    assert letter_of(machine, "Ada").starred and "starred" in machine.find("Ada", "row").state
    assert "on" in machine.find("Star", "button").state
    machine.click("Star", kind="button")
    assert not letter_of(machine, "Ada").starred


def test_archive_and_delete_move_a_mail_and_undo_brings_it_back(machine: Machine) -> None:
    machine.click("Ada", kind="row")
    machine.click("Archive", kind="button")
    machine.click("Ben", kind="row")
    machine.keys("delete")
    assert inbox(machine) == ["Cleo"]
    assert (letter_of(machine, "Ada").folder, letter_of(machine, "Ben").folder) == ("Archive", "Trash")
    machine.click("Archive", kind="row")
    assert inbox(machine) == ["Ada"]
    machine.click("Inbox", kind="row")
    machine.keys("ctrl", "z")
    machine.keys("ctrl", "z")
    assert inbox(machine) == ["Cleo", "Ben", "Ada"]


def test_a_mail_can_be_dragged_to_a_folder_but_not_to_sent(machine: Machine) -> None:
    drag(machine, "Ben", "Sent")
    drag(machine, "Ben", "Inbox")
    assert inbox(machine) == ["Cleo", "Ben", "Ada"]
    drag(machine, "Ben", "Archive")
    assert inbox(machine) == ["Cleo", "Ada"] and letter_of(machine, "Ben").folder == "Archive"


def test_a_mail_leaves_the_trash_by_its_context_menu(machine: Machine) -> None:
    context(machine, "Ada", "Delete")
    machine.click("Trash", kind="row")
    context(machine, "Ada", "Move to Inbox")
    assert inbox(machine) == [] and letter_of(machine, "Ada").folder == "Inbox"


def test_deleting_from_the_trash_asks_first(machine: Machine) -> None:
    context(machine, "Ada", "Delete")
    machine.click("Trash", kind="row")
    machine.click("Ada", kind="row")
    machine.click("Delete", kind="button")
    machine.keys("esc")
    assert inbox(machine) == ["Ada"]
    machine.click("Delete", kind="button", window="Mail")
    machine.click("Delete", kind="button", window="Delete forever")
    assert inbox(machine) == [] and len(letters(machine.desk)) == 2
    machine.keys("ctrl", "z")  # the move to the trash can no longer be undone
    assert len(letters(machine.desk)) == 2


def test_marking_as_unread_makes_a_mail_bold_again(machine: Machine) -> None:
    context(machine, "Ben", "Mark as unread")
    assert letter_of(machine, "Ben").unread and "bold" in machine.find("Ben", "row").state


def test_a_new_mail_is_sent_once_it_has_an_address(machine: Machine) -> None:
    machine.click("New", kind="button")
    assert "disabled" in machine.find("Send", "button").state
    machine.do(Type("dan"), Type("\n"), Type("lunch\n"), Type("see you\nat noon"))
    machine.click("Send", kind="button")
    assert machine.shows("Sent to Dan") and not machine.shows("New mail", "title")
    letter = letters(machine.desk)[0]
    assert (letter.to, letter.subject, letter.body, letter.folder) == ("Dan", "lunch", "see you\nat noon", "Sent")
    machine.click("Sent", kind="row")
    assert inbox(machine) == ["Dan"]


def test_an_unknown_address_is_a_problem_and_the_mail_stays(machine: Machine) -> None:
    machine.keys("ctrl", "n")
    machine.do(Type("Zorro"))
    machine.click("Send", kind="button")
    assert machine.shows("Unknown address", "text") and machine.find("To", "field").value == "Zorro"
    assert len(letters(machine.desk)) == 3


def test_a_full_mailbox_sends_nothing_more(machine: Machine) -> None:
    for _ in range(MOST_MAILS):
        add_message(machine.desk, "Ada", "hello", "again")
    machine.keys("ctrl", "n")
    machine.do(Type("Ada\thi\tthere"))
    machine.click("Send", "button")
    assert machine.shows("The mailbox is full") and all(letter.sender == "Ada" for letter in letters(machine.desk)[:9])


def test_an_empty_folder_of_mails_says_so(machine: Machine) -> None:
    machine.click("Sent", "row")
    assert machine.shows("No mails.", kind="text")


def test_enter_never_sends_a_mail(machine: Machine) -> None:
    machine.click("New", kind="button")
    machine.do(Type("Dan\n\n\n"))
    assert machine.shows("New mail", "title") and len(letters(machine.desk)) == 3


def test_closing_a_written_mail_asks_and_an_empty_one_does_not(machine: Machine) -> None:
    machine.click("New", kind="button")
    machine.keys("esc")
    assert not machine.shows("New mail", "title")
    machine.click("New", kind="button")
    machine.do(Type("Dan"))
    machine.click("Cancel", kind="button")
    machine.click("Keep", kind="button")
    assert machine.find("To", "field").value == "Dan"
    machine.keys("alt", "f4")
    machine.click("Discard", kind="button")
    assert not machine.shows("New mail", "title") and machine.titles == ["Mail"]


def test_a_reply_has_address_and_subject_filled_in_and_closes_without_a_question(machine: Machine) -> None:
    machine.click("Ada", kind="row")
    machine.click("Reply", kind="button")
    assert (machine.find("To", "field").value, machine.find("Subject", "field").value) == ("Ada", "Re: train ticket")
    assert "focused" in machine.find("Text", "area").state
    machine.keys("esc")
    machine.keys("ctrl", "r")
    machine.do(Type("yes"))
    machine.click("Send", kind="button")
    assert (letter_of(machine, "Ada").body, letter_of(machine, "Ada").subject) == ("yes", "Re: train ticket")


def test_a_forwarded_mail_takes_its_text_along_and_needs_an_address(machine: Machine) -> None:
    context(machine, "Ben", "Forward")
    assert machine.find("Subject", "field").value == "Fwd: garden party"
    assert machine.find("Text", "area").value == "buy cake"
    assert "disabled" in machine.find("Send", "button").state


def test_an_answer_to_a_mail_that_was_sent_goes_to_who_got_it(machine: Machine) -> None:
    machine.click("New", kind="button")
    machine.do(Type("Dan"))
    machine.click("Send", kind="button")
    machine.click("Sent", kind="row")
    context(machine, "Dan", "Reply")
    assert machine.find("To", "field").value == "Dan"


def test_an_attachment_is_saved_into_downloads_under_a_free_name(machine: Machine) -> None:
    machine.desk.files.write("/Downloads/songs.txt", "mine")
    machine.click("Ben", kind="row")
    assert not machine.shows("Save", "button")
    machine.click("Cleo", kind="row")
    machine.click("Save", kind="button")
    assert machine.shows("Saved in Downloads: songs 2.txt")
    files = machine.desk.files
    assert (files.read("/Downloads/songs.txt"), files.read("/Downloads/songs 2.txt")) == ("mine", "la la")


def test_mails_outlive_the_window(machine: Machine) -> None:
    machine.click("Ada", kind="row")
    machine.click("Star", kind="button")
    machine.keys("alt", "f4")
    assert machine.titles == []
    machine.click("Mail", kind="icon", count=2)
    assert "starred" in machine.find("Ada", "row").state


def test_a_restored_snapshot_keeps_the_selected_mail_one_with_the_stored_one(machine: Machine) -> None:
    machine.click("Ada", kind="row")
    machine.env.restore(machine.env.snapshot())
    machine.click("Star", kind="button")
    assert next(letter for letter in letters(machine.env.desk) if letter.sender == "Ada").starred


def test_a_long_mail_scrolls(machine: Machine) -> None:
    add_message(machine.desk, "Dan", "long", "\n".join(f"line {n}" for n in range(12)))
    machine.click("Dan", kind="row")
    assert machine.shows("line 0") and not machine.shows("line 11")
    machine.do(*[Scroll(*machine.find("line 1").centre, "down")] * 6)
    assert machine.shows("line 11") and not machine.shows("line 0")


def test_arrow_keys_go_through_the_mails_and_keep_them_in_sight(machine: Machine) -> None:
    for n in range(9):
        add_message(machine.desk, "Dan", f"number {n}", "")
    for _ in range(12):
        machine.keys("down")
    assert "selected" in machine.find("Ada", "row").state


@pytest.mark.parametrize("size", [(336, 224), (448, 280), (1920, 1080)])
def test_no_words_are_cut_on_any_screen(size: tuple[int, int]) -> None:
    machine = Machine(size=size)
    add_message(machine.desk, "Omar", "budget garden", "wash budget and garden", attachment=("garden.html", ""))
    machine.desk.launch("Mail")
    machine.click("Omar", kind="row")
    assert machine.shows("wash budget and garden", "text") and machine.shows("Save", "button")
    machine.click("Reply", kind="button")
    assert not [c.label for c in machine.env.parse() if "cut" in c.state and c.window in ("Mail", "New mail")]


def test_fill_adds_mails_from_nobody_who_is_to_be_avoided(machine: Machine) -> None:
    for seed in range(20):
        added = fill(machine.desk, random.Random(seed), avoid_people=("Ada", "Ben"))
        assert 4 <= len(added) <= 7 and not {letter.sender for letter in added} & {"Ada", "Ben"}
