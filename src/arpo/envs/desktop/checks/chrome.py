"""What Chromium keeps in its profile: settings, bookmarks, history; and the tabs that it has open.

The profile is that of `google-chrome`, which OSWorld's tasks start, else of `chromium`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from typing import Any

from arpo.envs.desktop.checks.getters import Machine
from arpo.envs.desktop.checks.reading import Unreadable, database
from arpo.envs.desktop.sandbox import Sandbox

PROFILES = ("~/.config/google-chrome/Default", "~/.config/chromium/Default")
SESSION_ONLY = 4  # how the profile writes that cookies go when the browser closes
CLOSE_S = 10.0  # what it is given to close
TABS = "http://localhost:1337/json/list"


def chrome_file(machine: Machine, name: str) -> bytes | None:
    return next((data for profile in PROFILES if (data := machine.read(f"{profile}/{name}")) is not None), None)


def chrome_preferences(machine: Machine) -> dict[str, Any]:
    """The whole of Preferences; empty where there is none yet, as all settings then have their first values."""
    return _json(chrome_file(machine, "Preferences"))


def _json(data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        found = json.loads(data)
    except ValueError as error:
        raise Unreadable(str(error)) from error
    return found if isinstance(found, dict) else {}


def _yes(value: Any) -> str:
    return "true" if value else "false"


def enable_do_not_track(machine: Machine) -> str:
    return _yes(chrome_preferences(machine).get("enable_do_not_track"))


def enable_enhanced_safety_browsing(machine: Machine) -> str:
    return _yes(chrome_preferences(machine).get("safebrowsing", {}).get("enhanced"))


def enable_safe_browsing(machine: Machine) -> str:
    found = chrome_preferences(machine).get("safebrowsing", {})
    return _yes(found.get("enhanced") or found.get("enabled"))


def new_startup_page(machine: Machine) -> str:
    """Whether it starts with the new tab page."""
    found = chrome_preferences(machine)
    return _yes("session" not in found or found["session"].get("restore_on_startup") == 5)


def data_delete_automacally(machine: Machine) -> str:
    """The name is OSWorld's. Whether sites' data go when the browser closes; other defaults may be there too."""
    found = chrome_preferences(machine).get("profile", {}).get("default_content_setting_values", {})
    return _yes(found.get("cookies") == SESSION_ONLY)


def profile_name(machine: Machine) -> str | None:
    return chrome_preferences(machine).get("profile", {}).get("name")


def default_search_engine(machine: Machine) -> str:
    found = chrome_preferences(machine).get("default_search_provider_data", {})
    return found.get("template_url_data", {}).get("short_name", "Google")


def chrome_font_size(machine: Machine) -> dict[str, Any]:
    found = {"default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13}
    return found | chrome_preferences(machine).get("webkit", {}).get("webprefs", {})


def bookmarks(machine: Machine) -> dict[str, Any] | None:
    return _json(chrome_file(machine, "Bookmarks")).get("roots")


def history(machine: Machine, dest: str = "history") -> list[Any] | None:
    """(address, title, time) of each page that was seen."""
    data = chrome_file(machine, "History")
    if data is None:
        return None
    return database(machine.keep(dest, data), "SELECT url, title, last_visit_time FROM urls")


def open_tabs_info(machine: Machine) -> list[dict[str, str]] | None:
    """Title and address of each tab, by the debugging port that OSWorld's tasks open."""
    program = f"import urllib.request as r; print(r.urlopen({TABS!r}, timeout=5).read().decode())"
    ran = machine.run(["python3", "-c", program])
    if ran is None or ran.status:
        return None
    tabs = [tab for tab in json.loads(ran.out) if tab["type"] == "page"]
    return [{"title": tab["title"], "url": tab["url"]} for tab in tabs]


def close_browser(sandbox: Sandbox) -> None:
    """As a user would. Until then it keeps for many seconds what it will write, and loses some of that when killed."""
    for window in reversed(sandbox.ask("windows")):
        if any("chrom" in name.lower() for name in window["class"]):
            sandbox.ask("close_window", window=window["id"])
    sandbox.run("while pgrep -x 'chrome|chromium' >/dev/null; do sleep 0.05; done", CLOSE_S)


def check_font_size(found: dict[str, Any], rules: dict[str, Any]) -> float:
    size = found["default_font_size"]
    if rules["type"] == "value":
        return float(size == rules["value"])
    return float(rules["min"] < size < rules["max"])


def is_expected_bookmarks(roots: dict[str, Any], rules: dict[str, Any]) -> float:
    bar = roots["bookmark_bar"]["children"]
    if rules["type"] == "bookmark_bar_folders_names":
        return float({one["name"] for one in bar if one["type"] == "folder"} == set(rules["names"]))
    if rules["type"] == "bookmark_bar_websites_urls":
        return float(_addresses(bar) == set(rules["urls"]))
    if rules["type"] == "liked_authors_websites_urls":
        liked = [one for one in bar if one["type"] == "folder" and one["name"] == "Liked Authors"]
        choices = product(*([one] if isinstance(one, str) else one for one in rules["urls"]))
        return float(bool(liked) and any(set(choice) == _addresses(liked[0]["children"]) for choice in choices))
    raise ValueError(f"is_expected_bookmarks has no {rules['type']!r}")


def _addresses(entries: list[dict[str, Any]]) -> set[str]:
    return {one["url"] for one in entries if one["type"] == "url"}


def is_expected_tabs(tabs: list[dict[str, str]], rules: dict[str, Any]) -> float:
    """Just these pages are open, whatever their order, but for the slash at the end of an address."""
    if rules["type"] != "url":
        raise ValueError(f"is_expected_tabs has no {rules['type']!r}")
    return float(sorted(tab["url"].rstrip("/") for tab in tabs) == sorted(url.rstrip("/") for url in rules["urls"]))


def check_history_deleted(pages: list[Any], rules: dict[str, Any]) -> float:
    """No page is left whose address has one of the keywords in it."""
    return float(not any(word in page[0] for word in rules["keywords"] for page in pages))


PROFILE_GETTERS: dict[str, Callable[..., Any]] = {
    getter.__name__: getter
    for getter in (
        chrome_preferences, enable_do_not_track, enable_enhanced_safety_browsing, enable_safe_browsing,
        new_startup_page, data_delete_automacally, profile_name, default_search_engine, chrome_font_size, bookmarks,
        history,
    )
}  # fmt: skip
TAB_GETTERS: dict[str, Callable[..., Any]] = {"open_tabs_info": open_tabs_info}
CHROME_METRICS: dict[str, Callable[..., float]] = {
    metric.__name__: metric
    for metric in (check_font_size, is_expected_bookmarks, is_expected_tabs, check_history_deleted)
}
