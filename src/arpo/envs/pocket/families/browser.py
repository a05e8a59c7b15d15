"""Tasks of the browser. All start on some page, so that the way leads over the home page or the address."""

from __future__ import annotations

import random
from typing import Any

from arpo.agent.actions import Fail
from arpo.envs.pocket.apps.browser import Browser
from arpo.envs.pocket.apps.pages import COPY, HOME, SECTIONS, TOPICS, headline, new_store
from arpo.envs.pocket.controls import Control
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import (
    Family,
    Infeasible,
    Params,
    add_files,
    hide,
    open_perhaps,
    others_kept,
)
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.words import PEOPLE, nouns


def begin(desk: Desktop, rng: random.Random, **named: Any) -> dict[str, Any]:
    """A web with the named things in it, and the browser open on one of its main pages or closed. Returns the store."""
    store = desk.stores["browser"] = new_store(rng, **named)
    if isinstance(app := open_perhaps(desk, rng, "Browser"), Browser):
        app.visit(rng.choice([HOME, *SECTIONS.values()]))
    return store


def page_of(desk: Desktop) -> tuple[str, str]:
    """The address and the title of the page that the browser shows; empty if it shows none."""
    window = desk.window_of("Browser")
    if window is None or window.minimised or not isinstance(window.app, Browser):
        return "", ""
    return window.app.address, window.app.rows[0][1]


def sent(desk: Desktop) -> list[dict[str, Any]]:
    forms: list[dict[str, Any]] = desk.stores["browser"]["sent"]
    return forms


def downloaded(desk: Desktop, name: str) -> bool:
    """Whether a file of the Files page is in Downloads, and nothing else has changed."""
    saves = {block[1]: block[2] for block in desk.stores["browser"]["pages"]["files.web"] if block[0] == "save"}
    path = f"/Downloads/{name}"
    return path in desk.files.files and desk.files.read(path) == saves[name] and others_kept(desk, path)


# What the experts share.


def at(s: Screen) -> str:
    """The address of the page in sight; "" while another is being typed."""
    bar = s.find("Address", kind="field", window="Browser")
    return bar.value if bar and "focused" not in bar.state else ""


def go_to(s: Screen, section: str) -> Move | None:
    """To a main page, by the home page's links."""
    if at(s) == SECTIONS[section]:
        return None
    return follow(s, section) if at(s) == HOME else s.click("Home", kind="tool", thought="Go to the home page.")


def follow(s: Screen, label: str) -> Move | None:
    """Click a link of the page, with the wheel if it is further down."""
    page = s.find(kind="link", window="Browser") or s.find(kind="text", window="Browser")
    return s.click(label, kind="link") or s.scroll(page, "down", "Look further down.")


def price_of(s: Screen, item: str) -> int | None:
    """The price beside an item of the shop."""
    link = s.find(item, kind="link", window="Browser")
    beside = [c for c in s.all(kind="text", window="Browser") if link and c.box[1] == link.box[1]]
    return int(beside[0].label.lstrip("$")) if beside else None


def star(s: Screen) -> Control | None:
    return s.find("Bookmark", kind="tool", window="Browser")


def keep_star(s: Screen, notes: dict[str, str], target: str) -> Move | None:
    """Take back a bookmark that was added or removed by mistake."""
    button, address = star(s), at(s)
    if button is None or address in ("", target):
        return None
    now = "on" if "on" in button.state else "off"
    return s.click("Bookmark", kind="tool") if notes.setdefault(address, now) != now else None


class Address(Family):
    """Type an address."""

    name = "browser-address"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        return {"address": f"{nouns(rng, 1)[0]}.web"}

    def instruction(self, p: Params) -> str:
        return f"Go to {p['address']} in the Browser."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, others=[p["address"]])

    def check(self, desk: Desktop, p: Params) -> bool:
        return page_of(desk)[0] == p["address"]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return s.arrive("Browser") or s.fill("Address", p["address"]) or s.click("Go", kind="button")


class Link(Family):
    """Follow two links."""

    name = "browser-link"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        if rng.random() < 0.5:
            return {"section": "News", "link": headline(rng)}
        return {"section": "Shop", "link": nouns(rng, 1)[0]}

    def instruction(self, p: Params) -> str:
        return f"In the Browser, open the {p['section']} and there the page '{p['link']}'."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, **{"headlines" if p["section"] == "News" else "items": [p["link"]]})

    def check(self, desk: Desktop, p: Params) -> bool:
        address, title = page_of(desk)
        if p["section"] == "News":
            return address.startswith("news.web/") and title == p["link"]
        return address == f"shop.web/{p['link']}"

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return s.arrive("Browser") or go_to(s, p["section"]) or follow(s, p["link"])


class Bookmark(Family):
    """Find a page and star it."""

    name = "browser-bookmark"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        return {"item": nouns(rng, 1)[0]}

    def instruction(self, p: Params) -> str:
        return f"Bookmark the page '{p['item']}' of the Shop in the Browser."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        desk.stores["before"] = list(begin(desk, rng, items=[p["item"]])["bookmarks"])

    def check(self, desk: Desktop, p: Params) -> bool:
        marks = [*desk.stores["before"], f"shop.web/{p['item']}"]
        return sorted(desk.stores["browser"]["bookmarks"]) == sorted(marks)

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        target = f"shop.web/{p['item']}"
        if move := s.arrive("Browser") or keep_star(s, notes, target):
            return move
        button = star(s)
        if at(s) == target and button and "on" not in button.state:
            return s.click("Bookmark", kind="tool", thought="Click the star.")
        return go_to(s, "Shop") or follow(s, p["item"])


class Unbookmark(Family):
    """Go to a bookmark by its menu and remove it by the same menu."""

    name = "browser-unbookmark"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        return {"address": f"{nouns(rng, 1)[0]}.web"}

    def instruction(self, p: Params) -> str:
        return f"Remove {p['address']} from the bookmarks of the Browser."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        marks = begin(desk, rng, others=[p["address"]])["bookmarks"]
        desk.stores["before"] = list(marks)
        marks.insert(rng.randrange(len(marks) + 1), p["address"])

    def check(self, desk: Desktop, p: Params) -> bool:
        return sorted(desk.stores["browser"]["bookmarks"]) == sorted(desk.stores["before"])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        notes["here"] = at(s) or notes.get("here", "")  # the open menu covers the address
        wanted = "Remove bookmark" if notes["here"] == p["address"] else p["address"]
        return (
            s.arrive("Browser", wanted)
            or (None if s.menu_open else keep_star(s, notes, p["address"]))
            or s.menu("Bookmarks", wanted, window="Browser")
        )


class Form(Family):
    """Fill in and send the contact form."""

    name = "browser-form"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        return {"name": rng.choice(PEOPLE), "topic": rng.choice(TOPICS), "copy": rng.random() < 0.5}

    def instruction(self, p: Params) -> str:
        copy = "with" if p["copy"] else "without"
        return f"Send the Contact form in the Browser: name {p['name']}, {p['topic']}, {copy} a copy."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng)

    def check(self, desk: Desktop, p: Params) -> bool:
        wanted = {
            "page": SECTIONS["Contact"],
            "fields": {"Name": p["name"]},
            "choice": p["topic"],
            "checked": [COPY] if p["copy"] else [],
        }
        return sent(desk) == [wanted]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := s.arrive("Browser") or go_to(s, "Contact"):
            return move
        topic = s.find(p["topic"], kind="radio", window="Browser")
        copy = s.find(COPY, kind="checkbox", window="Browser")
        return (
            s.fill("Name", p["name"], window="Browser")
            or (s.click(p["topic"], kind="radio") if topic and "checked" not in topic.state else None)
            or (s.click(COPY, kind="checkbox") if copy and ("checked" in copy.state) != p["copy"] else None)
            or s.click("Send", kind="button")
            or s.scroll(s.find(kind="text", window="Browser"), "down")
        )


class Download(Family):
    """Save a file from the web."""

    name = "browser-download"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        return {"file": f"{nouns(rng, 1)[0]}.txt"}

    def instruction(self, p: Params) -> str:
        return f"Download {p['file']} from the Files page in the Browser."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, files=[p["file"]])
        add_files(desk, rng, "/Downloads", rng.randrange(3), avoid=(p["file"],))

    def check(self, desk: Desktop, p: Params) -> bool:
        return downloaded(desk, p["file"])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := s.arrive("Browser"):
            return move
        if at(s) == SECTIONS["Files"]:
            return follow(s, p["file"])
        return s.fill("Address", SECTIONS["Files"]) or s.keys("enter", thought="Press Enter.")


class LongPage(Family):
    """A link at the end of a long page."""

    name = "browser-scroll"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        return {"topic": nouns(rng, 1)[0]}

    def instruction(self, p: Params) -> str:
        return f"In the Browser, open the link '{p['topic']}' at the end of the Guide."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, topics=[p["topic"]])

    def check(self, desk: Desktop, p: Params) -> bool:
        return page_of(desk)[0] == f"guide.web/{p['topic']}"

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return s.arrive("Browser") or go_to(s, "Guide") or follow(s, p["topic"])


class Order(Family):
    """Find an item of the shop by its address and order it."""

    name = "browser-order"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        return {"item": nouns(rng, 1)[0]}

    def instruction(self, p: Params) -> str:
        return f"Order one {p['item']} in the Shop of the Browser."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, items=[p["item"]])

    def check(self, desk: Desktop, p: Params) -> bool:
        return [form["page"] for form in sent(desk)] == [f"shop.web/{p['item']}"]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := s.arrive("Browser"):
            return move
        if at(s) == f"shop.web/{p['item']}":
            return s.click("Order", kind="button") or s.scroll(s.find(kind="text", window="Browser"), "down")
        if at(s) == SECTIONS["Shop"]:
            return follow(s, p["item"])
        return s.fill("Address", SECTIONS["Shop"]) or s.click("Go", kind="button")


class Cheaper(Family):
    """Compare two prices and order."""

    name = "browser-cheaper"
    domain = "browser"

    def draw(self, rng: random.Random) -> Params:
        one, two = nouns(rng, 2)
        return {"one": one, "two": two, "cheaper": rng.random() < 0.5}

    def instruction(self, p: Params) -> str:
        which = "cheaper" if p["cheaper"] else "dearer"
        return f"Order the {which} one in the Shop of the Browser: {p['one']} or {p['two']}."

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        pages = begin(desk, rng, items=[p["one"], p["two"]])["pages"]
        prices = {item: int(price[1:]) for kind, item, price, _ in pages["shop.web"][1:] if kind == "item"}
        pick = min if p["cheaper"] else max
        desk.stores["before"] = pick(p["one"], p["two"], key=prices.__getitem__)

    def check(self, desk: Desktop, p: Params) -> bool:
        return [form["page"] for form in sent(desk)] == [f"shop.web/{desk.stores['before']}"]

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := s.arrive("Browser"):
            return move
        if notes.get("item") and at(s) == f"shop.web/{notes['item']}":
            return s.click("Order", kind="button") or s.scroll(s.find(kind="text", window="Browser"), "down")
        if move := go_to(s, "Shop"):
            return move
        prices = {item: price for item in (p["one"], p["two"]) if (price := price_of(s, item)) is not None}
        if len(prices) < 2:  # scrolled away by someone
            return s.scroll(s.find(kind="text", window="Browser"), "up")
        pick = min if p["cheaper"] else max
        notes["item"] = pick(prices, key=prices.__getitem__)
        return s.click(notes["item"], kind="link")


class MissingItem(Infeasible):
    """Order what the shop does not have."""

    name = "browser-missing"
    domain = "browser"
    draw = Order.draw
    instruction = Order.instruction

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, avoid=[p["item"]])
        hide(desk, "Browser")

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return s.arrive("Browser") or go_to(s, "Shop") or (f"The shop has no {p['item']}.", Fail())


class SoldOut(Infeasible):
    """Order what is sold out."""

    name = "browser-soldout"
    domain = "browser"
    draw = Order.draw
    instruction = Order.instruction

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, items=[p["item"]], sold_out=[p["item"]])

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if move := s.arrive("Browser"):
            return move
        if at(s) == f"shop.web/{p['item']}":
            return "It is sold out.", Fail()
        return go_to(s, "Shop") or follow(s, p["item"])


FAMILIES = (
    Address(),
    Link(),
    Bookmark(),
    Unbookmark(),
    Form(),
    Download(),
    LongPage(),
    Order(),
    Cheaper(),
    MissingItem(),
    SoldOut(),
)
