"""The browser: addresses, links, history, bookmarks, forms, downloads, long pages."""

import random

import pytest
from machine import Machine

from arpo.agent.actions import Click, Scroll, Type
from arpo.envs.pocket.apps.browser import Browser
from arpo.envs.pocket.apps.pages import HOME, SECTIONS, new_store


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.desk.stores["browser"] = new_store(random.Random(1), items=["lamp"], files=["boat.txt"], topics=["tea"])
    machine.desk.stores["browser"]["bookmarks"] = []
    machine.desk.launch("Browser", (60, 5))
    return machine


def browser(machine: Machine) -> Browser:
    app = machine.desk.windows[-1].app
    assert isinstance(app, Browser)
    return app


def visit(machine: Machine, address: str) -> None:
    machine.keys("ctrl", "l")
    machine.do(Type(f"{address}\n"))


@pytest.mark.parametrize("label", SECTIONS)
def test_every_link_of_the_home_page_leads_somewhere(machine: Machine, label: str) -> None:
    machine.click(label, kind="link")
    assert machine.find("Address").value == SECTIONS[label]
    assert machine.shows(label, kind="text")


def test_every_link_of_the_web_has_a_page() -> None:
    pages = new_store(random.Random(3))["pages"]
    targets = {block[-1] for page in pages.values() for block in page if block[0] in ("link", "item", "submit")}
    assert targets <= pages.keys()


def test_the_same_seed_makes_the_same_web() -> None:
    assert new_store(random.Random(4)) == new_store(random.Random(4)) != new_store(random.Random(5))


def test_go_and_enter_visit_the_typed_address(machine: Machine) -> None:
    visit(machine, "https://www.shop.web/")
    assert browser(machine).address == "shop.web"
    machine.click("Address")
    machine.keys("ctrl", "a")
    machine.do(Type("Guide.web"))
    machine.click("Go")
    assert browser(machine).address == "guide.web"


def test_an_unknown_address_is_not_found(machine: Machine) -> None:
    visit(machine, "nowhere.web")
    assert machine.shows("Page not found", kind="text")
    machine.click("Home", kind="link")
    assert browser(machine).address == HOME


def test_back_and_forward_are_disabled_where_there_is_nothing_to_go_to(machine: Machine) -> None:
    assert "disabled" in machine.find("Back").state and "disabled" in machine.find("Forward").state
    machine.click("Shop", kind="link")
    machine.click("Back")
    assert browser(machine).address == HOME
    assert "disabled" in machine.find("Back").state
    machine.click("Forward")
    assert browser(machine).address == "shop.web"
    machine.click("Home", kind="tool")
    assert "disabled" in machine.find("Forward").state


def test_the_star_adds_and_removes_a_bookmark_that_the_menu_lists(machine: Machine) -> None:
    machine.click("Shop", kind="link")
    machine.click("Bookmark")
    assert "on" in machine.find("Bookmark").state
    machine.click("Home", kind="tool")
    machine.click("Bookmarks", kind="menu")
    machine.click("shop.web", kind="menuitem")
    assert browser(machine).address == "shop.web"
    machine.click("Bookmark")
    assert machine.desk.stores["browser"]["bookmarks"] == []


def test_a_form_is_sent_once_it_is_filled_in(machine: Machine) -> None:
    machine.click("Contact", kind="link")
    assert "disabled" in machine.find("Send").state
    machine.click("Name", kind="field")
    machine.do(Type("Ada"))
    machine.click("Order", kind="radio")
    machine.click("Send me a copy")
    machine.click("Send")
    assert machine.shows("Thank you", kind="text")
    sent = {"page": "contact.web", "fields": {"Name": "Ada"}, "choice": "Order", "checked": ["Send me a copy"]}
    assert machine.desk.stores["browser"]["sent"] == [sent]


def test_a_form_left_is_a_form_lost(machine: Machine) -> None:
    machine.click("Contact", kind="link")
    machine.click("Name", kind="field")
    machine.do(Type("Ada"))
    machine.keys("f5")
    assert machine.find("Name", kind="field").value == ""


def test_a_download_goes_to_its_folder_and_never_over_another_file(machine: Machine) -> None:
    machine.desk.files.write("/Downloads/boat.txt", "mine")
    before = set(machine.desk.files.names("/Downloads"))
    machine.click("Files", kind="link")
    machine.click("boat.txt", kind="link")
    assert machine.shows("Saved boat.txt in Downloads")
    assert set(machine.desk.files.names("/Downloads")) - before == {"boat 2.txt"}
    assert machine.desk.files.read("/Downloads/boat.txt") == "mine"


def test_the_wheel_the_keys_and_the_bar_scroll_a_long_page(machine: Machine) -> None:
    machine.click("Guide", kind="link")
    assert not machine.shows("tea", kind="link")
    page = machine.find("Chapter 1")
    for _ in range(12):
        machine.do(Scroll(*page.centre, "down"))
    assert machine.shows("tea", kind="link")
    machine.keys("home")
    assert machine.shows("Chapter 1") and not machine.shows("tea", kind="link")
    window = machine.desk.windows[-1]
    machine.do(Click(window.x + window.w - 7, window.y + window.h - 6))
    assert not machine.shows("Chapter 1")


def test_a_click_beside_the_address_gives_up_what_was_typed(machine: Machine) -> None:
    machine.keys("ctrl", "l")
    machine.do(Type("half"))
    window = machine.desk.windows[-1]
    machine.do(Click(window.x + window.w - 40, window.y + window.h - 10))
    assert machine.find("Address").value == HOME


def test_a_html_file_is_shown_as_text(machine: Machine) -> None:
    machine.desk.files.write("/Documents/My page.html", "first\nsecond line")
    machine.desk.open_file("/Documents/My page.html")
    assert machine.shows("My page.html", kind="text") and machine.shows("second line", kind="text")
    visit(machine, "/Documents/other.html")
    assert machine.shows("Page not found", kind="text")
