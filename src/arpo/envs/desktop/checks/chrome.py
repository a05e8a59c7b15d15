"""What Chromium keeps in its profile: settings, bookmarks, history; and the tabs that it has open.

The profile is that of `google-chrome`, which OSWorld's tasks start, else of `chromium`.
"""

import json
from collections.abc import Callable
from itertools import product
from typing import Any

from arpo.envs.desktop.checks.getters import Machine
from arpo.envs.desktop.checks.reading import below, database, reader
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.desktop.setup import open_pages

PROFILES = ("~/.config/google-chrome/Default", "~/.config/chromium/Default")
SESSION_ONLY = 4  # how the profile writes that cookies go when the browser closes
CLOSE_S = 10.0  # what it is given to close


def chrome_file(machine: Machine, name: str) -> bytes | None:
    return next((data for profile in PROFILES if (data := machine.read(f"{profile}/{name}")) is not None), None)


@reader
def _json(data: bytes | None) -> Any:
    return {} if data is None else json.loads(data)


def _setting(machine: Machine, *keys: str) -> Any:
    """Of the file Preferences, which is not there yet where all settings have their first values."""
    return below(_json(chrome_file(machine, "Preferences")), *keys)


def _yes(value: Any) -> str:
    return "true" if value else "false"


def enable_do_not_track(machine: Machine) -> str:
    return _yes(_setting(machine, "enable_do_not_track"))


def enable_safe_browsing(machine: Machine) -> str:
    return _yes(_setting(machine, "safebrowsing", "enhanced") or _setting(machine, "safebrowsing", "enabled"))


def new_startup_page(machine: Machine) -> str:
    """Whether it starts with the new tab page."""
    session = _setting(machine, "session")
    return _yes(session is None or below(session, "restore_on_startup") == 5)


def data_delete_automacally(machine: Machine) -> str:
    """The name is OSWorld's. Whether sites' data go when the browser closes; other defaults may be there too."""
    return _yes(_setting(machine, "profile", "default_content_setting_values", "cookies") == SESSION_ONLY)


def profile_name(machine: Machine) -> Any:
    return _setting(machine, "profile", "name")


def default_search_engine(machine: Machine) -> Any:
    return _setting(machine, "default_search_provider_data", "template_url_data", "short_name") or "Google"


def chrome_font_size(machine: Machine) -> dict[str, Any]:
    sizes = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
    changed = _setting(machine, "webkit", "webprefs")
    return sizes | (changed if isinstance(changed, dict) else {})


def bookmarks(machine: Machine) -> Any:
    return below(_json(chrome_file(machine, "Bookmarks")), "roots")


def history(machine: Machine, dest: str = "history") -> list[Any] | None:
    """(address, title, time) of each page that was seen."""
    data = chrome_file(machine, "History")
    if data is None:
        return None
    return database(machine.keep(dest, data), "SELECT url, title, last_visit_time FROM urls")


def open_tabs_info(machine: Machine) -> list[dict[str, str]] | None:
    """Title and address of each tab; None where the browser cannot be asked."""
    try:
        return [{"title": tab["title"], "url": tab["url"]} for tab in open_pages(machine.sandbox)]
    except ValueError:
        return None


def close_browser(sandbox: Sandbox) -> None:
    """As a user would. Until then it keeps for many seconds what it will write, and loses some of that when killed."""
    for window in reversed(sandbox.ask("windows")):
        if any("chrom" in name.lower() for name in window["class"]):
            sandbox.ask("close_window", window=window["id"])
    sandbox.run("while pgrep -x 'chrome|chromium' >/dev/null; do sleep 0.05; done", CLOSE_S)


def check_font_size(sizes: dict[str, Any], rules: dict[str, Any]) -> float:
    size = sizes["default_font_size"]
    if rules["type"] == "value":
        return float(size == rules["value"])
    return float(rules["min"] < size < rules["max"])


def is_expected_bookmarks(roots: dict[str, Any], rules: dict[str, Any]) -> float:
    bar = below(roots, "bookmark_bar", "children") or []
    if rules["type"] == "bookmark_bar_folders_names":
        return float({below(one, "name") for one in bar if below(one, "type") == "folder"} == set(rules["names"]))
    if rules["type"] == "bookmark_bar_websites_urls":
        return float(_addresses(bar) == set(rules["urls"]))
    if rules["type"] == "liked_authors_websites_urls":
        liked = [one for one in bar if (below(one, "type"), below(one, "name")) == ("folder", "Liked Authors")]
        choices = product(*([one] if isinstance(one, str) else one for one in rules["urls"]))
        return float(bool(liked) and any(set(choice) == _addresses(liked[0].get("children", [])) for choice in choices))
    raise ValueError(f"is_expected_bookmarks has no {rules['type']!r}")


def _addresses(entries: list[dict[str, Any]]) -> set[str]:
    return {below(one, "url") for one in entries if below(one, "type") == "url"}


def is_expected_tabs(tabs: list[dict[str, str]], rules: dict[str, Any]) -> float:
    """Just these pages are open, whatever their order, but for the slash at the end of an address."""
    if rules["type"] != "url":
        raise ValueError(f"is_expected_tabs has no {rules['type']!r}")
    return float(sorted(tab["url"].rstrip("/") for tab in tabs) == sorted(url.rstrip("/") for url in rules["urls"]))


def check_history_deleted(pages: list[Any], rules: dict[str, Any]) -> float:
    """No page is left whose address has one of the keywords in it."""
    return float(not any(word in str(page[0]) for word in rules["keywords"] for page in pages))


PROFILE_GETTERS: dict[str, Callable[..., Any]] = {
    getter.__name__: getter
    for getter in (
        enable_do_not_track, enable_safe_browsing, new_startup_page, data_delete_automacally, profile_name,
        default_search_engine, chrome_font_size, bookmarks, history,
    )
}  # fmt: skip
# OSWorld's own that read it too, where its client is asked (evaluators.py).
THEIR_PROFILE_GETTERS = {"cookie_data", "find_installed_extension_name", "find_unpacked_extension_path"}
TAB_GETTERS: dict[str, Callable[..., Any]] = {"open_tabs_info": open_tabs_info}
CHROME_METRICS: dict[str, Callable[..., float]] = {
    metric.__name__: metric
    for metric in (check_font_size, is_expected_bookmarks, is_expected_tabs, check_history_deleted)
}
