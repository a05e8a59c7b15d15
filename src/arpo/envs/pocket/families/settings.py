"""Tasks of the settings. Each asks for one or a few changes and for nothing else to change."""

from abc import abstractmethod
from random import Random
from typing import Any

from arpo.agent.actions import Drag, Fail
from arpo.envs.pocket.apps.settings import CHECKS, CHOICES, DEFAULTS, DISABLED_BY, SLIDERS, VALUES, Settings, randomise
from arpo.envs.pocket.canvas import COLORS
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Infeasible, Params, clutter, open_perhaps, way_made
from arpo.envs.pocket.screen import Control, Move, ParsedScreen
from arpo.envs.pocket.words import coin, drawn, one_of

SWITCHES = {label: (key, tab) for tab, keys in CHECKS.items() for key, label in keys.items()}
LEVELS = {label: (key, tab) for key, (tab, label) in SLIDERS.items()}
LISTS = {label: (key, tab) for key, (tab, label, _) in CHOICES.items()}
CONTROLS = {**SWITCHES, **LEVELS, **LISTS, "Accent": ("accent", "Display")}  # label -> key, tab
MISSING = {
    "Language": "Arabic Finnish Hindi Irish Korean Latin Malay Thai Turkish Welsh".split(),
    "Time zone": "Athens Baku Dubai Havana Lagos Manila Mumbai Quito Seoul Vienna".split(),
    "Alert sound": "Banjo Cello Duck Flute Gong Oboe Piano Train Tuba Violin".split(),
}


def other_than(rng: Random, values: Any, avoid: object) -> Any:
    return rng.choice([value for value in values if value != avoid])


def begin(desk: Desktop, rng: Random, **start: object) -> None:
    """Random settings but for these, remembered for the check, and the window open or not."""
    clutter(desk, rng)
    randomise(desk, rng)
    desk.settings.update(start)
    desk.stores["before"] = dict(desk.settings)
    if isinstance(app := open_perhaps(desk, rng, "Settings"), Settings):
        app.show(rng.choice(list(CHECKS)))


# What the experts share: to look at a tab, to operate its controls, to take a foreign change back.


def to_tab(s: ParsedScreen, tab: str) -> Move | None:
    return s.select(tab, kind="tab", window="Settings", thought=f"Go to {tab}.")


def patrol(s: ParsedScreen) -> Move | None:
    """To the next tab. What was asked for is done here, so something must be wrong on another tab."""
    tabs = list(CHECKS)
    at = next((tabs.index(c.label) for c in s.all(kind="tab", window="Settings") if "selected" in c.state), 0)
    return s.escape() or to_tab(s, tabs[(at + 1) % len(tabs)])


def seen(control: Control) -> str:
    """What a control says."""
    return said("checked" in control.state) if control.kind == "checkbox" else control.value


def said(value: object) -> str:
    """How a control says a value."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def slide(control: Control, level: int) -> Move:
    """Drag a slider's handle from where it is to a level."""
    x0, y0, x1, y1 = control.box
    edge = 6 * (y1 - y0) / 17  # the rail begins so far from the control's ends

    def at(value: int) -> int:
        return round(x0 + edge + (x1 - x0 - 2 * edge) * value / 100)

    y = control.centre[1]
    return f"Drag {control.label} to {level}.", Drag(at(int(control.value)), y, at(level), y)


def operate(s: ParsedScreen, label: str, wanted: str) -> Move | None:
    """Bring the control of that label to what is wanted; None if it is there already or not in sight.

    The list of a drop-down, once open, may cover it.
    """
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
    return s.click(label, kind=control.kind, thought=f"Open the {label} list." if control.kind == "dropdown" else "")


def look(s: ParsedScreen) -> dict[str, str]:
    """What the controls of the tab in sight say, by label."""
    shown = {c.label: seen(c) for c in s.all(window="Settings") if c.kind in ("checkbox", "dropdown", "slider")}
    for radio in s.all(kind="radio", window="Settings"):
        if "checked" in radio.state:
            shown["Accent"] = radio.label
    return shown


def keep(s: ParsedScreen, *targets: str) -> Move | None:
    """Set everything but the targets back to what was seen first."""
    for label, value in look(s).items():
        was = s.notes.setdefault(label, value)
        if was != value and label not in targets and (move := operate(s, label, was)):
            return move
    return None


def go(s: ParsedScreen, tab: str, *targets: str) -> Move | None:
    """To a tab of the settings, foreign changes taken back on the way. An open list of a wanted value stays open."""
    if s.is_front("Settings") and any(c.window in LISTS for c in s.all(kind="menuitem")):
        return keep(s, *targets)
    return s.arrive("Settings") or keep(s, *targets) or to_tab(s, tab)


def bring(s: ParsedScreen, label: str, wanted: str, *targets: str) -> Move | None:
    """Go to a control and operate it; the targets are what else may change."""
    wrong_list = s.menu_open and not s.find(kind="menuitem", window=label)
    return (
        go(s, CONTROLS[label][1], label, *targets)
        or (s.escape() if wrong_list else None)
        or operate(s, label, wanted)
        or patrol(s)
    )


class SettingsFamily(Family):
    """Settings that are to be changed, and no others."""

    judges = ("settings",)

    @abstractmethod
    def goals(self, p: Params) -> dict[str, Any]:
        """What the instruction asks for, by the controls' labels."""

    def wanted(self, p: Params) -> dict[str, Any]:
        return {CONTROLS[label][0]: value for label, value in self.goals(p).items()}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        wanted = self.wanted(p)
        start: Params = {DISABLED_BY[key]: False for key in wanted if key in DISABLED_BY}
        start.update({key: other_than(rng, VALUES[key], value) for key, value in wanted.items()})
        begin(desk, rng, **start)

    def check(self, desk: Desktop, p: Params) -> bool:
        return desk.settings == {**desk.stores["before"], **self.wanted(p)}

    def progress(self, desk: Desktop, p: Params) -> float:
        before = desk.stores["before"]
        return way_made(before.items(), {**before, **self.wanted(p)}.items(), desk.settings.items())


class Toggle(SettingsFamily):
    """Switch something on or off."""

    name = "settings-toggle"
    asks = "Turn {on:on|off} {what}."
    random_params = drawn(what=one_of(list(SWITCHES)), on=coin)

    def goals(self, p: Params) -> dict[str, Any]:
        return {p["what"]: p["on"]}

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return bring(s, p["what"], said(p["on"]))


class Accent(SettingsFamily):
    """Two colours: radio buttons and a list."""

    name = "settings-colours"
    asks = "Set the accent colour to {accent} and the Wallpaper to {wallpaper}."
    random_params = drawn(accent=one_of(list(COLORS)), wallpaper=one_of(list(COLORS)))

    def goals(self, p: Params) -> dict[str, Any]:
        return {"Accent": p["accent"], "Wallpaper": p["wallpaper"]}

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return (
            go(s, "Display", "Accent", "Wallpaper")
            or (None if s.menu_open else operate(s, "Accent", p["accent"]))
            or operate(s, "Wallpaper", p["wallpaper"])
            or patrol(s)
        )


class Dropdown(SettingsFamily):
    """Choose from a list."""

    name = "settings-dropdown"
    asks = "Set the {what} to {value}."

    def random_params(self, rng: Random) -> Params:
        what = rng.choice(list(LISTS))
        return {"what": what, "value": rng.choice(VALUES[LISTS[what][0]])}

    def goals(self, p: Params) -> dict[str, Any]:
        return {p["what"]: p["value"]}

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return bring(s, p["what"], p["value"])


class Slider(SettingsFamily):
    """Drag a slider to a value."""

    name = "settings-slider"
    asks = "Set the {what} to {level}."
    random_params = drawn(what=one_of(list(LEVELS)), level=one_of(VALUES["volume"]))

    def goals(self, p: Params) -> dict[str, Any]:
        return {p["what"]: p["level"]}

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return bring(s, p["what"], str(p["level"]))


class Reset(Family):
    """Reset everything, which a dialog asks about, then choose two things anew."""

    name = "settings-reset"
    judges = ("settings",)
    asks = "Reset all settings. Then set the Language to {language} and the Time zone to {zone}."

    def random_params(self, rng: Random) -> Params:
        return {key: other_than(rng, VALUES[key], DEFAULTS[key]) for key in ("language", "zone")}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng, volume=rng.choice([0, 10, 90, 100]))

    def check(self, desk: Desktop, p: Params) -> bool:
        return desk.settings == {**DEFAULTS, **p}

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.dialog == "Reset settings":
            s.notes["reset"] = "yes"
            return s.click("Reset", kind="button")
        opened = any(c.window in LISTS for c in s.all(kind="menuitem"))
        if not opened and (move := s.arrive("Settings") or to_tab(s, "System")):
            return move
        if "reset" in s.notes and (move := operate(s, "Language", p["language"]) or operate(s, "Time zone", p["zone"])):
            return move
        s.notes.clear()  # not yet reset, or something was changed since: begin again
        return s.escape() or s.click("Reset all", kind="button")


class Many(SettingsFamily):
    """A switch, a slider and a list, on one to three tabs."""

    name = "settings-many"
    asks = "Turn {on:on|off} {switch}, set the {slider} to {level} and the {list} to {value}."

    def random_params(self, rng: Random) -> Params:
        switches = [label for label in SWITCHES if label not in ("Mute", "Do not disturb")]  # they disable others
        what = rng.choice(["Language", "Time zone", "Alert sound"])
        return {
            "switch": rng.choice(switches),
            "on": coin(rng),
            "slider": rng.choice(list(LEVELS)),
            "level": rng.choice(VALUES["volume"]),
            "list": what,
            "value": rng.choice(VALUES[LISTS[what][0]]),
        }

    def goals(self, p: Params) -> dict[str, Any]:
        return {p["switch"]: p["on"], p["slider"]: p["level"], p["list"]: p["value"]}

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        goals = {label: said(value) for label, value in self.goals(p).items()}
        now = look(s) if s.is_front("Settings") else {}
        for label, wanted in goals.items():
            if label in now:
                s.notes[f"done {label}"] = "yes" if now[label] == wanted else ""
            if not s.notes.get(f"done {label}"):
                return bring(s, label, wanted, *goals)
        for label in goals:
            del s.notes[f"done {label}"]  # all seen done, and yet it is not: look at each again
        return s.arrive("Settings") or patrol(s)


class Missing(Infeasible):
    """Choose what the list does not offer."""

    name = "settings-missing"
    asks = Dropdown.asks

    def random_params(self, rng: Random) -> Params:
        what = rng.choice(list(MISSING))
        return {"what": what, "value": rng.choice(MISSING[what])}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        begin(desk, rng)

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        what = p["what"]
        if s.find(kind="menuitem", window=what):
            return f"There is no {p['value']} in the list.", Fail()
        return s.arrive("Settings") or to_tab(s, LISTS[what][1]) or s.click(what, kind="dropdown")
