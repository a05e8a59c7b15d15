"""Tasks of the browser. All start on some page, so that the way leads over the home page or the address."""

from random import Random
from typing import Any

from arpo.agent.actions import Fail
from arpo.envs.pocket.apps.browser import Browser
from arpo.envs.pocket.apps.pages import COPY, HOME, SECTIONS, TOPICS, new_store
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Infeasible, Params, hide, open_perhaps, others_kept
from arpo.envs.pocket.screen import Control, Move, ParsedScreen
from arpo.envs.pocket.words import coin, drawn, noun, nouns, one_of, person


def begin(desk: Desktop, rng: Random, **named: Any) -> dict[str, Any]:
    """A web with the named things in it, and the browser open on one of its main pages or closed. Returns the store."""
    store = desk.stores["browser"] = new_store(rng, **named)
    if isinstance(app := open_perhaps(desk, rng, "Browser"), Browser):
        app.visit(rng.choice([HOME, *SECTIONS.values()]))
    return store


def shows(desk: Desktop, address: str) -> bool:
    """Whether the browser is open on this page."""
    window = desk.window_of("Browser")
    return bool(window and not window.minimised and isinstance(window.app, Browser) and window.app.address == address)


def sent(desk: Desktop) -> list[dict[str, Any]]:
    forms: list[dict[str, Any]] = desk.stores["browser"]["sent"]
    return forms


def downloaded(desk: Desktop, name: str) -> bool:
    """Whether a file of the Files page is in Downloads, and nothing else has changed."""
    saves = {block[1]: block[2] for block in desk.stores["browser"]["pages"]["files.web"] if block[0] == "save"}
    path = f"/Downloads/{name}"
    return path in desk.files.files and desk.files.read(path) == saves[name] and others_kept(desk, path)


# What the experts share.


def at(s: ParsedScreen) -> str:
    """The address of the page in sight; "" while another is being typed."""
    bar = s.find("Address", kind="field", window="Browser")
    return bar.value if bar and "focused" not in bar.state else ""


def go_to(s: ParsedScreen, section: str) -> Move | None:
    """To a main page, by the home page's links."""
    if at(s) == SECTIONS[section]:
        return None
    return follow(s, section) if at(s) == HOME else s.click("Home", kind="tool", thought="Go to the home page.")


def follow(s: ParsedScreen, label: str) -> Move | None:
    """Click a link of the page, with the wheel if it is further down."""
    page = s.find(kind="link", window="Browser") or s.find(kind="text", window="Browser")
    return s.click(label, kind="link") or s.scroll(page, "down", "Look further down.")


def price_of(s: ParsedScreen, item: str) -> int | None:
    """The price beside an item of the shop."""
    link = s.find(item, kind="link", window="Browser")
    beside = [c for c in s.all(kind="text", window="Browser") if link and c.box[1] == link.box[1]]
    return int(beside[0].label.lstrip("$")) if beside else None


def star(s: ParsedScreen) -> Control | None:
    return s.find("Bookmark", kind="tool", window="Browser")


def keep_star(s: ParsedScreen, target: str) -> Move | None:
    """Take back a bookmark that was added or removed by mistake."""
    button, address = star(s), at(s)
    if button is None or address in ("", target):
        return None
    now = "on" if "on" in button.state else "off"
    return s.click("Bookmark", kind="tool") if s.notes.setdefault(address, now) != now else None


class Address(Family):
    """Type an address."""

    name = "browser-address"
    asks = "Go to {address} in the Browser."
    random_params = drawn(address=lambda rng: f"{noun(rng)}.web")

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng, others=[p["address"]])

    def check(self, desk: Desktop, p: Params) -> bool:
        return shows(desk, p["address"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return s.arrive("Browser") or s.fill("Address", p["address"]) or s.click("Go", kind="button")


class Bookmark(Family):
    """Find a page and star it."""

    name = "browser-bookmark"
    judges = ("bookmarks",)
    asks = "Bookmark the page '{item}' of the Shop in the Browser."
    random_params = drawn(item=noun)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        desk.stores["before"] = list(begin(desk, rng, items=[p["item"]])["bookmarks"])

    def check(self, desk: Desktop, p: Params) -> bool:
        marks = [*desk.stores["before"], f"shop.web/{p['item']}"]
        return sorted(desk.stores["browser"]["bookmarks"]) == sorted(marks)

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        target = f"shop.web/{p['item']}"
        if move := s.arrive("Browser") or keep_star(s, target):
            return move
        button = star(s)
        if at(s) == target and button and "on" not in button.state:
            return s.click("Bookmark", kind="tool", thought="Click the star.")
        return go_to(s, "Shop") or follow(s, p["item"])


class Form(Family):
    """Fill in and send the contact form."""

    name = "browser-form"
    judges = ("sent",)
    asks = "Send the Contact form in the Browser: name {name}, {topic}, {copy:with|without} a copy."
    random_params = drawn(name=person, topic=one_of(TOPICS), copy=coin)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng)

    def check(self, desk: Desktop, p: Params) -> bool:
        wanted = {
            "page": SECTIONS["Contact"],
            "fields": {"Name": p["name"]},
            "choice": p["topic"],
            "checked": [COPY] if p["copy"] else [],
        }
        return sent(desk) == [wanted]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
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


class LongPage(Family):
    """A link at the end of a long page."""

    name = "browser-scroll"
    asks = "In the Browser, open the link '{topic}' at the end of the Guide."
    random_params = drawn(topic=noun)

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng, topics=[p["topic"]])

    def check(self, desk: Desktop, p: Params) -> bool:
        return shows(desk, f"guide.web/{p['topic']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return s.arrive("Browser") or go_to(s, "Guide") or follow(s, p["topic"])


class Cheaper(Family):
    """Compare two prices and order."""

    name = "browser-cheaper"
    judges = ("sent",)
    asks = "Order the {cheaper:cheaper|dearer} one in the Shop of the Browser: {one} or {two}."

    def random_params(self, rng: Random) -> Params:
        one, two = nouns(rng, 2)
        return {"one": one, "two": two, "cheaper": coin(rng)}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        pages = begin(desk, rng, items=[p["one"], p["two"]])["pages"]
        prices = {item: int(price[1:]) for kind, item, price, _ in pages["shop.web"][1:] if kind == "item"}
        pick = min if p["cheaper"] else max
        desk.stores["before"] = pick(p["one"], p["two"], key=prices.__getitem__)

    def check(self, desk: Desktop, p: Params) -> bool:
        return [form["page"] for form in sent(desk)] == [f"shop.web/{desk.stores['before']}"]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := s.arrive("Browser"):
            return move
        if s.notes.get("item") and at(s) == f"shop.web/{s.notes['item']}":
            return s.click("Order", kind="button") or s.scroll(s.find(kind="text", window="Browser"), "down")
        if move := go_to(s, "Shop"):
            return move
        prices = {item: price for item in (p["one"], p["two"]) if (price := price_of(s, item)) is not None}
        if len(prices) < 2:  # scrolled away by someone
            return s.scroll(s.find(kind="text", window="Browser"), "up")
        pick = min if p["cheaper"] else max
        s.notes["item"] = pick(prices, key=prices.__getitem__)
        return s.click(s.notes["item"], kind="link")


class MissingTopic(Infeasible):
    """Send the contact form with a topic that it does not have."""

    name = "browser-missing"
    asks = Form.asks

    def random_params(self, rng: Random) -> Params:
        topic = rng.choice(["Complaint", "Invoice", "Refund", "Warranty"])
        return {"name": person(rng), "topic": topic, "copy": coin(rng)}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng)
        hide(desk, "Browser")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return s.arrive("Browser") or go_to(s, "Contact") or (f"The form has no {p['topic']}.", Fail())
