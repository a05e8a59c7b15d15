"""What Chromium keeps in its profile: settings, bookmarks, history; and the tabs that it has open.

The profile is that of `google-chrome`, which OSWorld's tasks start, else of `chromium`. Its files and the browser's
answer are fetched as they are; what is in them is read in a process with limits (judge.py).
"""

import contextlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from arpo.envs.desktop.checks.getters import Machine
from arpo.envs.desktop.checks.reading import below, database, json_of, reader
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.desktop.setup import DEBUGGING, ask_browser, pages_of
from arpo.envs.desktop.shims import AS, CHROMIUM

PROFILES = ("~/.config/google-chrome/Default", "~/.config/chromium/Default")
BROWSERS = (f"{CHROMIUM}/chromium", f"{AS}/chrome")
SESSION_ONLY = 4  # how the profile writes that cookies go when the browser closes
CLOSE_S = 10.0  # what it is given to close


# Fetching.


def _file(machine: Machine, name: str, keep_as: str) -> str | None:
    found = (data for profile in PROFILES if (data := machine.read(f"{profile}/{name}")) is not None)
    data = next(found, None)
    return None if data is None else machine.keep(keep_as, data)


def _preferences(machine: Machine) -> str | None:
    return _file(machine, "Preferences", "preferences")


def _bookmarks(machine: Machine) -> str | None:
    return _file(machine, "Bookmarks", "bookmarks")


def _history(machine: Machine, dest: str = "history") -> str | None:
    return _file(machine, "History", dest)


def _open_tabs(machine: Machine) -> str | None:
    """None where the browser cannot be asked."""
    try:
        if not browser_listens(machine.sandbox):
            return None
        said = ask_browser(machine.sandbox, "list")
        return machine.keep("tabs", said) if browser_listens(machine.sandbox) else None
    except ValueError:
        return None


def browser_listens(sandbox: Sandbox) -> bool:
    """Whether it is the browser itself that answers on its debugging port, and not a program in its place."""
    who = sandbox.ask("listener", port=DEBUGGING)
    return who is not None and who["genuine"] and who["program"] in BROWSERS


def close_browser(sandbox: Sandbox) -> None:
    """As a user would. Until then it keeps for many seconds what it will write, and loses some of that when killed."""
    with contextlib.suppress(ValueError):  # windows and programs are the agent's: what it spoiled is not closed
        for window in reversed(sandbox.ask("windows")):
            if any("chrom" in name.lower() for name in window["class"]):
                sandbox.ask("close_window", window=window["id"])
        sandbox.run("while pgrep -x 'chrome|chromium' >/dev/null; do sleep 0.05; done", CLOSE_S)


# Reading.


def _setting(place: str | None, *keys: str) -> Any:
    """Of the file Preferences, which is not there yet where all settings have their first values."""
    return below({} if place is None else json_of(place), *keys)


def _yes(value: Any) -> str:
    return "true" if value else "false"


def enable_do_not_track(place: str | None) -> str:
    return _yes(_setting(place, "enable_do_not_track"))


def enable_safe_browsing(place: str | None) -> str:
    return _yes(_setting(place, "safebrowsing", "enhanced") or _setting(place, "safebrowsing", "enabled"))


def new_startup_page(place: str | None) -> str:
    """Whether it starts with the new tab page."""
    session = _setting(place, "session")
    return _yes(session is None or below(session, "restore_on_startup") == 5)


def data_delete_automacally(place: str | None) -> str:
    """The name is OSWorld's. Whether sites' data go when the browser closes; other defaults may be there too."""
    return _yes(_setting(place, "profile", "default_content_setting_values", "cookies") == SESSION_ONLY)


def profile_name(place: str | None) -> Any:
    return _setting(place, "profile", "name")


def default_search_engine(place: str | None) -> Any:
    return _setting(place, "default_search_provider_data", "template_url_data", "short_name") or "Google"


def chrome_font_size(place: str | None) -> dict[str, Any]:
    sizes = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
    changed = _setting(place, "webkit", "webprefs")
    return sizes | (changed if isinstance(changed, dict) else {})


def bookmarks(place: str | None) -> Any:
    return None if place is None else below(json_of(place), "roots")


def history(place: str | None, dest: str = "history") -> list[Any] | None:
    """(address, title, time) of each page that was seen."""
    return None if place is None else database(place, "SELECT url, title, last_visit_time FROM urls")


@reader
def open_tabs_info(place: str | None) -> list[dict[str, str]] | None:
    """Title and address of each tab."""
    if place is None:
        return None
    return [{"title": tab["title"], "url": tab["url"]} for tab in pages_of(Path(place).read_bytes())]


# Comparing.


def check_font_size(sizes: dict[str, Any], rules: dict[str, Any]) -> float:
    size = sizes["default_font_size"]
    if rules["type"] == "value":
        return float(size == rules["value"])
    return float(isinstance(size, int | float) and rules["min"] < size < rules["max"])


def is_expected_bookmarks(roots: dict[str, Any], rules: dict[str, Any]) -> float:
    bar = _entries(below(roots, "bookmark_bar"))
    if rules["type"] == "bookmark_bar_folders_names":
        return float({str(below(one, "name")) for one in bar if below(one, "type") == "folder"} == set(rules["names"]))
    if rules["type"] == "bookmark_bar_websites_urls":
        return float(_addresses(bar) == set(rules["urls"]))
    if rules["type"] == "liked_authors_websites_urls":
        liked = [one for one in bar if (below(one, "type"), below(one, "name")) == ("folder", "Liked Authors")]
        choices = product(*([one] if isinstance(one, str) else one for one in rules["urls"]))
        return float(bool(liked) and any(set(choice) == _addresses(_entries(liked[0])) for choice in choices))
    raise ValueError(f"is_expected_bookmarks has no {rules['type']!r}")


def _entries(folder: Any) -> list[Any]:
    entries = below(folder, "children")
    return entries if isinstance(entries, list) else []


def _addresses(entries: list[Any]) -> set[str]:
    return {str(below(one, "url")) for one in entries if below(one, "type") == "url"}


def is_expected_tabs(tabs: list[dict[str, str]], rules: dict[str, Any]) -> float:
    """Just these pages are open, whatever their order, but for the slash at the end of an address."""
    if rules["type"] != "url":
        raise ValueError(f"is_expected_tabs has no {rules['type']!r}")
    return float(sorted(tab["url"].rstrip("/") for tab in tabs) == sorted(url.rstrip("/") for url in rules["urls"]))


def check_history_deleted(pages: list[Any], rules: dict[str, Any]) -> float:
    """No page is left whose address has one of the keywords in it."""
    return float(not any(word in str(page[0]) for word in rules["keywords"] for page in pages))


PROFILE_READERS: dict[str, Callable[..., Any]] = {
    reads.__name__: reads
    for reads in (
        enable_do_not_track, enable_safe_browsing, new_startup_page, data_delete_automacally, profile_name,
        default_search_engine, chrome_font_size, bookmarks, history,
    )
}  # fmt: skip
PROFILE_GETTERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(PROFILE_READERS, _preferences),
    "bookmarks": _bookmarks,
    "history": _history,
}
# OSWorld's own that read it too, where its client is asked (evaluators.py).
THEIR_PROFILE_GETTERS = {"cookie_data", "find_installed_extension_name", "find_unpacked_extension_path"}
TAB_GETTERS: dict[str, Callable[..., Any]] = {"open_tabs_info": _open_tabs}
TAB_READERS: dict[str, Callable[..., Any]] = {"open_tabs_info": open_tabs_info}
CHROME_METRICS: dict[str, Callable[..., float]] = {
    metric.__name__: metric
    for metric in (check_font_size, is_expected_bookmarks, is_expected_tabs, check_history_deleted)
}
