"""The settings: four tabs of switches, choices and sliders. All take effect at once, but for the computer's name.

Everything is kept in `desk.settings` under the keys of `DEFAULTS`; "dark", "accent" and "wallpaper" change the looks
of the whole desktop.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from arpo.envs.pocket.desktop import App, Desktop, Window
from arpo.envs.pocket.dialogs import Choice, Message
from arpo.envs.pocket.draw import COLORS
from arpo.envs.pocket.textbox import TextBox
from arpo.envs.pocket.ui import ROW, Ui
from arpo.envs.pocket.words import nouns

CHECKS: dict[str, dict[str, str]] = {  # tab -> key -> label, in the order of the screen
    "Display": {"dark": "Dark mode", "night": "Night light"},
    "Sound": {"mute": "Mute", "clicks": "Key clicks", "startup": "Startup sound"},
    "System": {"updates": "Auto update", "bluetooth": "Bluetooth", "wifi": "Wi-Fi"},
    "Alerts": {
        "quiet": "Do not disturb",
        "alert_mail": "Mail alerts",
        "alert_chat": "Chat alerts",
        "alert_news": "News alerts",
        "alert_battery": "Battery alerts",
        "alert_call": "Call alerts",
        "alert_game": "Game alerts",
    },
}
TABS = tuple(CHECKS)
LANGUAGES = ("Czech", "Danish", "Dutch", "English", "French", "German", "Greek", "Italian", "Polish", "Spanish")
ZONES = ("Berlin", "Cairo", "Delhi", "Lima", "London", "Oslo", "Paris", "Rome", "Sydney", "Tokyo")
SOUNDS = ("Bell", "Chime", "Drum", "Harp", "Horn")
CHOICES: dict[str, tuple[str, str, tuple[str, ...]]] = {  # key -> tab, label, what is offered
    "wallpaper": ("Display", "Wallpaper", tuple(COLORS)),
    "sound": ("Sound", "Alert sound", SOUNDS),
    "language": ("System", "Language", LANGUAGES),
    "zone": ("System", "Time zone", ZONES),
}
SLIDERS: dict[str, tuple[str, str]] = {  # key -> tab, label
    "brightness": ("Display", "Brightness"),
    "volume": ("Sound", "Volume"),
    "microphone": ("Sound", "Microphone"),
}
DEFAULTS: dict[str, Any] = {
    **{key: False for keys in CHECKS.values() for key in keys},
    "updates": True,
    "wifi": True,
    "alert_mail": True,
    "alert_battery": True,
    "accent": "Blue",
    "wallpaper": "Blue",
    "sound": "Bell",
    "language": "English",
    "zone": "London",
    "brightness": 70,
    "volume": 50,
    "microphone": 50,
    "name": "pocket",
}


def randomise(desk: Desktop, rng: random.Random) -> None:
    """Draw every setting anew."""
    settings = desk.settings
    settings.update({key: rng.random() < 0.5 for keys in CHECKS.values() for key in keys})
    settings["dark"] = rng.random() < 0.25
    settings.update({key: rng.choice(offered) for key, (_, _, offered) in CHOICES.items()})
    settings.update({key: 10 * rng.randrange(11) for key in SLIDERS})
    settings["accent"] = rng.choice(list(COLORS))
    settings["name"] = f"{nouns(rng, 1)[0]}{rng.randrange(1, 10)}"


class Settings(App):
    """The tab in front and the name as it is being edited; the rest is in `desk.settings`."""

    name = "Settings"
    size = (280, 190)

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        for key, value in DEFAULTS.items():
            desk.settings.setdefault(key, value)
        self.tab = TABS[0]
        self.box = TextBox(desk.settings["name"])

    def view(self, ui: Ui) -> None:
        x = 4
        for name in TABS:
            x = ui.tab(x, 2, name, name == self.tab, lambda name=name: self.show(name))  # type: ignore[misc]
        ui.panel(4, 18, ui.w - 8, 1, "line")
        step = max(ROW, min(24, (ui.h - 22) // 6))
        {"Display": self._display, "Sound": self._sound, "System": self._system, "Alerts": self._alerts}[self.tab](
            ui, 22, step
        )

    def _display(self, ui: Ui, y: int, step: int) -> None:
        self._check(ui, 8, y, "dark")
        self._check(ui, ui.w // 2, y, "night")
        ui.text(10, y + step + 2, "Accent colour")
        for i, name in enumerate(COLORS):
            at = (8 + i % 3 * ((ui.w - 12) // 3), y + (2 + i // 3) * step)
            picked = name == self.desk.settings["accent"]
            ui.radio(*at, name, picked, lambda name=name: self.set("accent", name))  # type: ignore[misc]
        self._choice(ui, y + 4 * step, "wallpaper", self._set_wallpaper)
        self._slider(ui, y + 5 * step, "brightness")

    def _sound(self, ui: Ui, y: int, step: int) -> None:
        self._slider(ui, y, "volume", enabled=not self.desk.settings["mute"])
        self._check(ui, 8, y + step, "mute")
        self._slider(ui, y + 2 * step, "microphone")
        self._choice(ui, y + 3 * step, "sound", self._set_sound)
        self._check(ui, 8, y + 4 * step, "clicks")
        self._check(ui, ui.w // 2, y + 4 * step, "startup")

    def _system(self, ui: Ui, y: int, step: int) -> None:
        ui.text(10, y + 1, "PC name")
        ui.field(84, y, ui.w - 146, "PC name", self.box, enter=self.apply)
        ui.button(ui.w - 58, y, 50, "Apply", self.apply if self.changed else None)
        self._choice(ui, y + step, "language", self._set_language)
        self._choice(ui, y + 2 * step, "zone", self._set_zone)
        self._check(ui, 8, y + 3 * step, "updates")
        self._check(ui, 8, y + 4 * step, "bluetooth")
        self._check(ui, ui.w // 2, y + 3 * step, "wifi")
        ui.button(ui.w - 78, ui.h - ROW - 5, 70, "Reset all", self.ask_reset)

    def _alerts(self, ui: Ui, y: int, step: int) -> None:
        first, *others = CHECKS["Alerts"]
        self._check(ui, 8, y, first)
        for i, key in enumerate(others):
            x, enabled = 8 + i % 2 * (ui.w // 2), not self.desk.settings[first]
            self._check(ui, x, y + (1 + i // 2) * step, key, enabled)

    def _check(self, ui: Ui, x: int, y: int, key: str, enabled: bool = True) -> None:
        on = self.desk.settings[key]
        ui.checkbox(x, y, CHECKS[self.tab][key], on, (lambda: self.set(key, not on)) if enabled else None)

    def _choice(self, ui: Ui, y: int, key: str, do: Callable[[str], object]) -> None:
        _, label, offered = CHOICES[key]
        ui.text(10, y + 1, label)
        ui.dropdown(84, y, min(110, ui.w - 92), label, self.desk.settings[key], offered, do)

    def _slider(self, ui: Ui, y: int, key: str, enabled: bool = True) -> None:
        label, value = SLIDERS[key][1], self.desk.settings[key]
        ui.text(10, y + 1, label, style="" if enabled else "faint")
        ui.slider(84, y, ui.w - 118, label, value, (lambda to: self.set(key, to)) if enabled else None)
        ui.text(ui.w - 30, y + 1, str(value), style="" if enabled else "faint")

    @property
    def changed(self) -> bool:
        """Whether the name field holds a name that is not applied yet."""
        return self.box.text.strip() not in ("", self.desk.settings["name"])

    def show(self, tab: str) -> None:
        self.tab = tab
        self.window.focus = None  # the name field may be out of sight now

    def set(self, key: str, value: Any) -> None:
        self.desk.settings[key] = value

    # A drop-down's list outlives the frame, so that what it calls must be a method.

    def _set_wallpaper(self, value: str) -> None:
        self.set("wallpaper", value)

    def _set_sound(self, value: str) -> None:
        self.set("sound", value)

    def _set_language(self, value: str) -> None:
        self.set("language", value)

    def _set_zone(self, value: str) -> None:
        self.set("zone", value)

    def apply(self) -> None:
        if self.changed:
            self.set("name", self.box.text.strip())
            self.box.set(self.desk.settings["name"])

    def ask_reset(self) -> None:
        choices: list[Choice] = [("Reset", self._reset, ()), ("Cancel", None, ())]
        text = "Set everything back to what it was on the first day?"
        self.window.dialogs.append(Message(self.desk, self.window, "Reset settings", text, choices))

    def _reset(self) -> None:
        self.desk.settings.update(DEFAULTS)
        self.box.set(self.desk.settings["name"])
