"""The web as the browser knows it: a few small sites, drawn from a seed. A page is a list of blocks.

("title", text)   ("text", text)   ("link", label, address)   ("item", label, price, address)
("save", file name, its text)   ("field", label)   ("radio", choice, choice, …)   ("check", label)
("submit", label, the address that follows)
"""

from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

from arpo.envs.pocket.vfs import FileSystem, split
from arpo.envs.pocket.words import nouns, sentence

Block: TypeAlias = tuple[str, ...]
Page: TypeAlias = list[Block]
Names: TypeAlias = Sequence[str]

HOME = "home.web"
SECTIONS = {"Shop": "shop.web", "Contact": "contact.web", "Files": "files.web", "Guide": "guide.web"}
TOPICS = ("Question", "Order", "Praise")
COPY = "Send me a copy"
COLOURS = ("black", "blue", "green", "red", "white")


def new_store(
    rng: Random, items: Names = (), files: Names = (), topics: Names = (), others: Names = ()
) -> dict[str, Any]:
    """What the browser keeps in `desk.stores["browser"]`: pages by address, bookmarks, and the forms sent so far.

    The named things are on their pages among others that are drawn.
    """
    named = (*items, *topics, *(name.partition(".")[0] for name in files), *(a.partition(".")[0] for a in others))
    words = nouns(rng, 16, named)
    shuffled = [("link", label, address) for label, address in SECTIONS.items()]
    rng.shuffle(shuffled)
    welcome: Page = [("title", "Home"), ("text", f"Good day. Today: {words[0]} and {words[1]}."), *shuffled]
    pages = {
        HOME: welcome,
        SECTIONS["Contact"]: _contact(rng),
        "contact.web/sent": _short("Thank you", "Your message is sent."),
    }
    _shop(pages, rng, _mix(rng, items, words[2:6]))
    _files(pages, rng, _mix(rng, files, [f"{word}.txt" for word in words[6:10]]))
    _guide(pages, rng, _mix(rng, topics, words[10:13]))
    for address in (*others, *(f"{word}.web" for word in words[13:16])):
        pages[address] = _short(address, f"Here you read about: {sentence(rng)}.")
    marks = rng.sample([address for address in pages if "/" not in address and address not in others], 3)
    return {"pages": pages, "bookmarks": marks, "sent": []}


def page_at(address: str, pages: dict[str, Page], files: FileSystem) -> Page:
    """The blocks of a page of the web or, for "file:/…", of a file."""
    if address in pages:
        return pages[address]
    path = address.removeprefix("file:")
    if path != address and path in files.files:
        return [("title", split(path)[1]), *(("text", line) for line in files.read(path).split("\n"))]
    return _short("Page not found", f"There is no page {address}")


def _mix(rng: Random, named: Names, others: Names) -> list[str]:
    mixed = [*named, *others]
    rng.shuffle(mixed)
    return mixed


def _short(title: str, text: str) -> Page:
    return [("title", title), ("text", text), ("link", "Home", HOME)]


def _contact(rng: Random) -> Page:
    return [
        ("title", "Contact"),
        ("text", f"Phone 555-{rng.randrange(1000, 10000)}, from {rng.randrange(7, 11)} o'clock."),
        ("field", "Name"),
        ("radio", *TOPICS),
        ("check", COPY),
        ("submit", "Send", "contact.web/sent"),
    ]


def _shop(pages: dict[str, Page], rng: Random, items: Names) -> None:
    prices = rng.sample(range(3, 99), len(items))  # no two alike, so that there is one cheapest
    rows: Page = [("item", item, f"${price}", f"shop.web/{item}") for item, price in zip(items, prices, strict=True)]
    pages["shop.web"] = [("title", "Shop"), *rows]
    pages["shop.web/ordered"] = _short("Thank you", "Your order is on its way.")
    for _, item, price, address in rows:
        pages[address] = [
            ("title", item.capitalize()),
            ("text", f"Colour: {rng.choice(COLOURS)}"),
            ("text", f"Price: {price}"),
            ("text", f"In stock: {rng.randrange(1, 30)}"),
            ("submit", "Order", "shop.web/ordered"),
            ("link", "Back to the shop", "shop.web"),
        ]


def _files(pages: dict[str, Page], rng: Random, names: Names) -> None:
    saves: Page = [("save", name, sentence(rng)) for name in names]
    pages["files.web"] = [("title", "Files"), ("text", "Click a file to save it."), *saves]


def _guide(pages: dict[str, Page], rng: Random, topics: Names) -> None:
    page: Page = [("title", "Guide")]
    for chapter in range(1, rng.randrange(7, 11)):
        page += [("title", f"Chapter {chapter}"), ("text", f"First {sentence(rng)}. Then {sentence(rng)}.")]
    pages["guide.web"] = [*page, ("title", "More"), *(("link", t, f"guide.web/{t}") for t in topics)]
    for topic in topics:
        pages[f"guide.web/{topic}"] = [
            ("title", topic.capitalize()),
            ("text", f"You need to {sentence(rng)}."),
            ("link", "Back to the guide", "guide.web"),
        ]
