"""The settings: four tabs of switches, choices and sliders. All take effect at once.

Everything is kept in `desk.settings` under the keys of `DEFAULTS`; "dark", "accent" and "wallpaper" change the looks
of the whole desktop.
"""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from arpo.envs.pocket.canvas import COLORS
from arpo.envs.pocket.desktop import App, Desktop, Window
from arpo.envs.pocket.dialogs import confirm
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
LAYOUT = {  # tab -> what stands in its rows; the colours take three
    "Display": ("dark night", "accent", "", "", "wallpaper", "brightness"),
    "Sound": ("volume", "mute", "microphone", "sound", "clicks startup"),
    "System": ("language", "zone", "updates wifi", "bluetooth"),
    "Alerts": ("quiet", "alert_mail alert_chat", "alert_news alert_battery", "alert_call alert_game"),
}
DISABLED_BY = {"volume": "mute", **{key: "quiet" for key in CHECKS["Alerts"] if key != "quiet"}}
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


def randomise(desk: Desktop, rng: Random) -> None:
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
            x = ui.tab(x, 2, name, name == self.tab, partial(self.show, name))
        ui.panel(4, 18, ui.w - 8, 1, "line")
        step = max(ROW, min(24, (ui.h - 22) // 6))
        for row, keys in enumerate(LAYOUT[self.tab]):
            for column, key in enumerate(keys.split()):
                right = ui.w // 2 + (8 if self.tab == "Alerts" else 0)
                self._control(ui, right if column else 8, 22 + row * step, key, step)
        if self.tab == "System":
            ui.button(ui.w - 78, ui.h - ROW - 5, 70, "Reset all", self.ask_reset)

    def _control(self, ui: Ui, x: int, y: int, key: str, step: int) -> None:
        value = self.desk.settings[key]
        enabled = key not in DISABLED_BY or not self.desk.settings[DISABLED_BY[key]]
        if key == "accent":
            ui.text(10, y + 2, "Accent colour")
            for i, name in enumerate(COLORS):
                at = (8 + i % 3 * ((ui.w - 12) // 3), y + (1 + i // 3) * step)
                ui.mark("radio", *at, name, name == value, partial(self.set, key, name))
        elif key in CHOICES:
            _, label, offered = CHOICES[key]
            ui.text(10, y + 1, label)
            ui.dropdown(84, y, min(110, ui.w - 92), label, value, offered, self.set, key)
        elif key in SLIDERS:
            label, style = SLIDERS[key][1], "" if enabled else "faint"
            ui.text(10, y + 1, label, style=style)
            ui.slider(84, y, ui.w - 118, label, value, partial(self.set, key) if enabled else None)
            ui.text(ui.w - 30, y + 1, str(value), style=style)
        else:
            toggle = partial(self.set, key, not value) if enabled else None
            ui.mark("checkbox", x, y, CHECKS[self.tab][key], value, toggle)

    def show(self, tab: str) -> None:
        self.tab = tab

    def set(self, key: str, value: Any) -> None:
        self.desk.settings[key] = value

    def ask_reset(self) -> None:
        text = "Set everything back to what it was on the first day?"
        confirm(self, "Reset settings", text, "Reset", self._reset)

    def _reset(self) -> None:
        self.desk.settings.update(DEFAULTS)
