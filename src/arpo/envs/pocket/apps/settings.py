"""The settings: four tabs of switches, choices and sliders. All take effect at once.

Everything is kept in `desk.settings` under the keys of `DEFAULTS`; "dark", "accent" and "wallpaper" change the looks
of the whole desktop.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from arpo.envs.pocket.desktop import App, Desktop, Window
from arpo.envs.pocket.dialogs import confirm
from arpo.envs.pocket.draw import COLORS
from arpo.envs.pocket.ui import ROW, Ui

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
VALUES: dict[str, Sequence[Any]] = {  # key -> what it may be
    **{key: (False, True) for keys in CHECKS.values() for key in keys},
    **{key: offered for key, (_, _, offered) in CHOICES.items()},
    **{key: range(0, 101, 10) for key in SLIDERS},
    "accent": tuple(COLORS),
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
}


def randomise(desk: Desktop, rng: random.Random) -> None:
    """Draw every setting anew."""
    desk.settings.update({key: rng.choice(values) for key, values in VALUES.items()})
    desk.settings["dark"] = rng.random() < 0.25


class Settings(App):
    """The tab in front; the rest is in `desk.settings`."""

    name = "Settings"
    size = (280, 190)

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        for key, value in DEFAULTS.items():
            desk.settings.setdefault(key, value)
        self.tab = TABS[0]

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
        self._choice(ui, y + 4 * step, "wallpaper")
        self._slider(ui, y + 5 * step, "brightness")

    def _sound(self, ui: Ui, y: int, step: int) -> None:
        self._slider(ui, y, "volume", enabled=not self.desk.settings["mute"])
        self._check(ui, 8, y + step, "mute")
        self._slider(ui, y + 2 * step, "microphone")
        self._choice(ui, y + 3 * step, "sound")
        self._check(ui, 8, y + 4 * step, "clicks")
        self._check(ui, ui.w // 2, y + 4 * step, "startup")

    def _system(self, ui: Ui, y: int, step: int) -> None:
        self._choice(ui, y, "language")
        self._choice(ui, y + step, "zone")
        self._check(ui, 8, y + 2 * step, "updates")
        self._check(ui, ui.w // 2, y + 2 * step, "wifi")
        self._check(ui, 8, y + 3 * step, "bluetooth")
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

    def _choice(self, ui: Ui, y: int, key: str) -> None:
        _, label, offered = CHOICES[key]
        ui.text(10, y + 1, label)
        ui.dropdown(84, y, min(110, ui.w - 92), label, self.desk.settings[key], offered, self.set, key)

    def _slider(self, ui: Ui, y: int, key: str, enabled: bool = True) -> None:
        label, value = SLIDERS[key][1], self.desk.settings[key]
        ui.text(10, y + 1, label, style="" if enabled else "faint")
        ui.slider(84, y, ui.w - 118, label, value, (lambda to: self.set(key, to)) if enabled else None)
        ui.text(ui.w - 30, y + 1, str(value), style="" if enabled else "faint")

    def show(self, tab: str) -> None:
        self.tab = tab

    def set(self, key: str, value: Any) -> None:
        self.desk.settings[key] = value

    def ask_reset(self) -> None:
        text = "Set everything back to what it was on the first day?"
        confirm(self, "Reset settings", text, "Reset", self._reset)

    def _reset(self) -> None:
        self.desk.settings.update(DEFAULTS)
