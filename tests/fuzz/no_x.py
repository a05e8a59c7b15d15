"""The resident process's modules without an X server: a stand-in for Xlib, which this interpreter has not got.

It takes what the real one takes: numbers that fit into X's requests, and nothing else.
"""

import importlib
import os
import struct
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

done = [0]  # how much was asked of the X server


class ConnectionClosedError(Exception):
    pass


def _counted(*numbers: Any) -> None:
    """As a request is packed: struct.error where it cannot be."""
    struct.pack(f"={len(numbers)}I", *(number & 0xFFFFFFFF for number in numbers))
    done[0] += 1


class Window:
    def __init__(self, number: int = 1) -> None:
        self.id = number

    def create_window(self, *_: Any) -> "Window":
        return Window(2)

    def get_full_property(self, *_: Any) -> bool:
        return True

    def get_property(self, *_: Any) -> None:
        return None

    def query_pointer(self) -> Any:
        return SimpleNamespace(root_x=1, root_y=2)

    def damage_create(self, *_: Any) -> int:
        return 1

    def send_event(self, event: Any, event_mask: int) -> None:
        _counted(event)

    def delete_property(self, *_: Any) -> None:
        _counted()


class Display:
    def __init__(self, name: str) -> None:
        self.display = SimpleNamespace(info=SimpleNamespace(min_keycode=8, max_keycode=255))
        self.map = {code: (code + 24, 0) for code in range(8, 120)}
        self.root, self.pipe = Window(), os.pipe()

    def screen(self) -> Any:
        return SimpleNamespace(root=self.root, width_in_pixels=640, height_in_pixels=480)

    def get_keyboard_mapping(self, low: int, count: int) -> list[tuple[int, ...]]:
        return [self.map.get(low + i, (0, 0)) for i in range(count)]

    def keysym_to_keycodes(self, keysym: int) -> list[tuple[int, int]]:
        hash(keysym)
        return [(code, row.index(keysym)) for code, row in self.map.items() if keysym in row]

    def keysym_to_keycode(self, keysym: int) -> int:
        return 50

    def change_keyboard_mapping(self, code: int, rows: list[list[int]]) -> None:
        _counted(code, *rows[0])
        self.map[code] = (rows[0][0], rows[0][1])

    def create_resource_object(self, kind: str, number: int) -> Window:
        _counted(number)
        return Window(number)

    def fileno(self) -> int:
        return self.pipe[0]

    def pending_events(self) -> int:
        return 0

    def intern_atom(self, name: str) -> int:
        return 1

    def nothing(self, *_: Any) -> None:
        return None

    sync = set_error_handler = damage_query_version = damage_subtract = refresh_keyboard_mapping = nothing


def _fake_input(display: Display, event: int, detail: int = 0, x: int = 0, y: int = 0) -> None:
    struct.pack("=BBhh", event, detail, x, y)
    _counted()


def _client_message(window: Window, client_type: int, data: tuple[int, list[int]]) -> int:
    struct.pack("=I5i", window.id, *data[1])
    return 0


def modules() -> tuple[Any, Any, Any, Any]:
    """inside.py, screen.py, programs.py and starter.py."""
    names = ["Xlib", "Xlib.ext", "Xlib.X", "Xlib.XK", "Xlib.Xatom", "Xlib.display", "Xlib.error", "Xlib.protocol"]
    names += ["Xlib.ext.damage", "Xlib.ext.xtest"]
    fake: dict[str, Any] = {name: ModuleType(name) for name in names}
    for name in names[1:]:
        parent, _, own = name.rpartition(".")
        setattr(fake[parent], own, fake[name])
    numbers = "CopyFromParent CurrentTime AnyPropertyType SubstructureRedirectMask SubstructureNotifyMask MappingNotify"
    for number, name in enumerate(
        ["KeyPress", "KeyRelease", "ButtonPress", "ButtonRelease", "MotionNotify", *numbers.split()]
    ):
        setattr(fake["Xlib.X"], name, number + 2)
    fake["Xlib.XK"].XK_Shift_L, fake["Xlib.XK"].XK_Shift_R = 0xFFE1, 0xFFE2
    fake["Xlib.Xatom"].ATOM = fake["Xlib.Xatom"].WINDOW = 4
    fake["Xlib.display"].Display = Display
    fake["Xlib.error"].ConnectionClosedError = ConnectionClosedError
    fake["Xlib.error"].BadWindow = fake["Xlib.error"].BadDrawable = type("Bad", (Exception,), {})
    fake["Xlib.protocol"].event = SimpleNamespace(ClientMessage=_client_message)
    fake["Xlib.ext.damage"].DamageReportNonEmpty = 1
    fake["Xlib.ext.xtest"].fake_input = _fake_input
    sys.modules.update(fake)
    try:
        guest = "arpo.envs.desktop.guest"
        inside, screen, programs, starter = (
            importlib.import_module(f"{guest}.{name}") for name in ("inside", "screen", "programs", "starter")
        )
    finally:
        for name in fake:
            del sys.modules[name]
    return inside, screen, programs, starter
