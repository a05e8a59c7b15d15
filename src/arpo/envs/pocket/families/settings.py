"""Tasks of the settings. Each asks for one or a few changes and for nothing else to change."""

from __future__ import annotations

import random
from abc import abstractmethod
from typing import Any

from arpo.agent.actions import Drag, Fail
from arpo.envs.pocket.apps.settings import CHECKS, CHOICES, DEFAULTS, SLIDERS, TABS, VALUES, Settings, randomise
from arpo.envs.pocket.controls import Control
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.draw import COLORS
from arpo.envs.pocket.families.base import Family, Infeasible, Params, clutter, open_perhaps
from arpo.envs.pocket.screen import Move, Screen

SWITCHES = {label: (key, tab) for tab, keys in CHECKS.items() for key, label in keys.items()}
LEVELS = {label: (key, tab) for key, (tab, label) in SLIDERS.items()}
LISTS = {label: (key, tab, offered) for key, (tab, label, offered) in CHOICES.items()}
DISABLED_BY = {"volume": "mute", **{key: "quiet" for key in CHECKS["Alerts"] if key != "quiet"}}
MISSING = {
    "Language": "Arabic Finnish Hindi Irish Korean Latin Malay Thai Turkish Welsh".split(),
    "Time zone": "Athens Baku Dubai Havana Lagos Manila Mumbai Quito Seoul Vienna".split(),
    "Alert sound": "Banjo Cello Duck Flute Gong Oboe Piano Train Tuba Violin".split(),
}


def other_than(rng: random.Random, values: Any, avoid: object) -> Any:
    return rng.choice([value for value in values if value != avoid])


def begin(desk: Desktop, rng: random.Random, **start: object) -> None:
    """Random settings but for these, remembered for the check, and the window open or not."""
    clutter(desk, rng)
    randomise(desk, rng)
    desk.settings.update(start)
    desk.stores["before"] = dict(desk.settings)
    if isinstance(app := open_perhaps(desk, rng, "Settings"), Settings):
        app.show(rng.choice(TABS))


# What the experts share: to look at a tab, to operate its controls, to take a foreign change back.


def to_tab(s: Screen, tab: str) -> Move | None:
    found = s.find(tab, kind="tab", window="Settings")
    return None if found and "selected" in found.state else s.click(tab, kind="tab", thought=f"Go to {tab}.")


def patrol(s: Screen) -> Move | None:
    """To the next tab: what was asked for is done here, so that something else must be wrong elsewhere."""
    at = next((TABS.index(c.label) for c in s.all(kind="tab", window="Settings") if "selected" in c.state), 0)
    return s.escape() or to_tab(s, TABS[(at + 1) % len(TABS)])


def seen(control: Control) -> str:
    """What a control says."""
    return ("on" if "checked" in control.state else "off") if control.kind == "checkbox" else control.value


def slide(control: Control, level: int) -> Move:
    """Drag a slider's handle from where it is to a level."""
    x0, y0, x1, y1 = control.box
    edge = 6 * (y1 - y0) / 17  # the rail begins so far from the control's ends

    def at(value: int) -> int:
        return round(x0 + edge + (x1 - x0 - 2 * edge) * value / 100)

    y = control.centre[1]
    return f"Drag {control.label} to {level}.", Drag(at(int(control.value)), y, at(level), y)


def choose(s: Screen, label: str, value: str) -> Move | None:
    """Make a drop-down hold a value. Its list, once open, may cover it."""
    if s.find(value, kind="menuitem", window=label):
        return s.menuitem(value)
    control = s.find(label, kind="dropdown", window="Settings")
    if control is None or control.value == value:
        return None
    return s.click(label, kind="dropdown", thought=f"Open the {label} list.")


def operate(s: Screen, label: str, wanted: str) -> Move | None:
    """Bring the control of that label to what is wanted; None if it is there already or not in sight."""
    if s.find(wanted, kind="menuitem", window=label):
        return s.menuitem(wanted)
    if label == "Accent":
        radio = s.find(wanted, kind="radio", window="Settings")
        return s.click(wanted, kind="radio") if radio and "checked" not in radio.state else None
    control = next((c for c in s.all(label=label, window="Settings") if c.kind != "text"), None)
    if control is None or seen(control) == wanted or "disabled" in control.state:
        return None
    if control.kind == "slider":
        return slide(control, int(wanted))
    return choose(s, label, wanted) if control.kind == "dropdown" else s.click(label, kind="checkbox")


def look(s: Screen) -> dict[str, str]:
    """What the controls of the tab in sight say, by label."""
    found = {c.label: seen(c) for c in s.all(window="Settings") if c.kind in ("checkbox", "dropdown", "slider")}
    for radio in s.all(kind="radio", window="Settings"):
        if "checked" in radio.state:
            found["Accent"] = radio.label
    return found


def keep(s: Screen, notes: dict[str, str], *targets: str) -> Move | None:
    """Set everything but the targets back to what was seen first."""
    for label, value in look(s).items():
        was = notes.setdefault(label, value)
        if was != value and label not in targets and (move := operate(s, label, was)):
            return move
    return None


def go(s: Screen, notes: dict[str, str], tab: str, *targets: str) -> Move | None:
    """To a tab of the settings, foreign changes taken back on the way. An open list of a wanted value stays open."""
    if s.is_front("Settings") and any(c.window in LISTS for c in s.all(kind="menuitem")):
        return keep(s, notes, *targets)
    return s.arrive("Settings") or keep(s, notes, *targets) or to_tab(s, tab)


class SettingsFamily(Family):
    """Settings that are to be changed, and no others."""

    @abstractmethod
    def wanted(self, p: Params) -> dict[str, Any]:
        """What the instruction asks for, by the settings' keys."""

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        wanted = self.wanted(p)
        start: Params = {DISABLED_BY[key]: False for key in wanted if key in DISABLED_BY}
        start.update({key: other_than(rng, VALUES[key], value) for key, value in wanted.items()})
        begin(desk, rng, **start)

    def check(self, desk: Desktop, p: Params) -> bool:
        return desk.settings == {**desk.stores["before"], **self.wanted(p)}


class Toggle(SettingsFamily):
    """Switch something on or off."""

    name = "settings-toggle"

    def draw(self, rng: random.Random) -> Params:
        return {"what": rng.choice(list(SWITCHES)), "on": rng.random() < 0.5}

    def instruction(self, p: Params) -> str:
        return f"Turn {'on' if p['on'] else 'off'} {p['what']}."

    def wanted(self, p: Params) -> dict[str, Any]:
        return {SWITCHES[p["what"]][0]: p["on"]}

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        what, wanted = p["what"], "on" if p["on"] else "off"
        return go(s, notes, SWITCHES[what][1], what) or s.escape() or operate(s, what, wanted) or patrol(s)


class Accent(SettingsFamily):
    """Two colours: radio buttons and a list."""

    name = "settings-colours"
    asks = "Set the accent colour to {accent} and the Wallpaper to {wallpaper}."

    def draw(self, rng: random.Random) -> Params:
        return {"accent": rng.choice(list(COLORS)), "wallpaper": rng.choice(list(COLORS))}

    def wanted(self, p: Params) -> dict[str, Any]:
        return p

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        return (
            go(s, notes, "Display", "Accent", "Wallpaper")
            or (None if s.menu_open else operate(s, "Accent", p["accent"]))
            or choose(s, "Wallpaper", p["wallpaper"])
            or patrol(s)
        )


class Dropdown(SettingsFamily):
    """Choose from a list."""

    name = "settings-dropdown"
    asks = "Set the {what} to {value}."

    def draw(self, rng: random.Random) -> Params:
        what = rng.choice(list(LISTS))
        return {"what": what, "value": rng.choice(LISTS[what][2])}

    def wanted(self, p: Params) -> dict[str, Any]:
        return {LISTS[p["what"]][0]: p["value"]}

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        what = p["what"]
        wrong_list = s.menu_open and not s.find(kind="menuitem", window=what)
        return (
            go(s, notes, LISTS[what][1], what)
            or (s.escape() if wrong_list else None)
            or choose(s, what, p["value"])
            or patrol(s)
        )


class Slider(SettingsFamily):
    """Drag a slider to a value."""

    name = "settings-slider"
    asks = "Set the {what} to {level}."

    def draw(self, rng: random.Random) -> Params:
        return {"what": rng.choice(list(LEVELS)), "level": 10 * rng.randrange(11)}

    def wanted(self, p: Params) -> dict[str, Any]:
        return {LEVELS[p["what"]][0]: p["level"]}

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        what = p["what"]
        return go(s, notes, LEVELS[what][1], what) or s.escape() or operate(s, what, str(p["level"])) or patrol(s)


class Reset(Family):
    """Reset everything, which a dialog asks about, then choose two things anew."""

    name = "settings-reset"
    asks = "Reset all settings. Then set the Language to {language} and the Time zone to {zone}."

    def draw(self, rng: random.Random) -> Params:
        keys = {"Language": "language", "Time zone": "zone"}
        return {key: other_than(rng, LISTS[label][2], DEFAULTS[key]) for label, key in keys.items()}

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng, volume=rng.choice([0, 10, 90, 100]))

    def check(self, desk: Desktop, p: Params) -> bool:
        return desk.settings == {**DEFAULTS, **p}

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        if s.dialog == "Reset settings":
            notes["reset"] = "yes"
            return s.click("Reset", kind="button")
        opened = any(c.window in LISTS for c in s.all(kind="menuitem"))
        if not opened and (move := s.arrive("Settings") or to_tab(s, "System")):
            return move
        if "reset" in notes and (move := choose(s, "Language", p["language"]) or choose(s, "Time zone", p["zone"])):
            return move
        notes.clear()  # not yet reset, or something was changed since: begin again
        return s.escape() or s.click("Reset all", kind="button")


class Many(SettingsFamily):
    """A switch, a slider and a list, on one to three tabs."""

    name = "settings-many"

    def draw(self, rng: random.Random) -> Params:
        switches = [label for label in SWITCHES if label not in ("Mute", "Do not disturb")]  # they disable others
        what = rng.choice(["Language", "Time zone", "Alert sound"])
        return {
            "switch": rng.choice(switches),
            "on": rng.random() < 0.5,
            "slider": rng.choice(list(LEVELS)),
            "level": 10 * rng.randrange(11),
            "list": what,
            "value": rng.choice(LISTS[what][2]),
        }

    def instruction(self, p: Params) -> str:
        switch = f"Turn {'on' if p['on'] else 'off'} {p['switch']}"
        return f"{switch}, set the {p['slider']} to {p['level']} and the {p['list']} to {p['value']}."

    def wanted(self, p: Params) -> dict[str, Any]:
        keys = (SWITCHES[p["switch"]][0], LEVELS[p["slider"]][0], LISTS[p["list"]][0])
        return dict(zip(keys, (p["on"], p["level"], p["value"]), strict=True))

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        goals = {
            p["switch"]: ("on" if p["on"] else "off", SWITCHES[p["switch"]][1]),
            p["slider"]: (str(p["level"]), LEVELS[p["slider"]][1]),
            p["list"]: (p["value"], LISTS[p["list"]][1]),
        }
        now = look(s) if s.is_front("Settings") else {}
        for label, (wanted, tab) in goals.items():
            if label in now:
                notes[f"done {label}"] = "yes" if now[label] == wanted else ""
            if not notes.get(f"done {label}"):
                return (
                    go(s, notes, tab, *goals)
                    or (s.escape() if not s.find(kind="menuitem", window=label) else None)
                    or operate(s, label, wanted)
                    or patrol(s)
                )
        for label in goals:
            del notes[f"done {label}"]  # all seen done, and yet it is not: look at each again
        return s.arrive("Settings") or patrol(s)


class Missing(Infeasible):
    """Choose what the list does not offer."""

    name = "settings-missing"
    asks = "Set the {what} to {value}."

    def draw(self, rng: random.Random) -> Params:
        what = rng.choice(list(MISSING))
        return {"what": what, "value": rng.choice(MISSING[what])}

    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        begin(desk, rng)

    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        what = p["what"]
        if s.find(kind="menuitem", window=what):
            return f"There is no {p['value']} in the list.", Fail()
        return s.arrive("Settings") or to_tab(s, LISTS[what][1]) or s.click(what, kind="dropdown")
