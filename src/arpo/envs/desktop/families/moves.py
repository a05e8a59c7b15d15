"""What the experts of desktop tasks are made of: a script yields (thought, action), and looks between its actions.

    def _script(look: Look, p: Params) -> Moves:
        yield from press("Save the file under the name.", "ctrl s")
        look.window("Save As")
        yield "Type the path.", Type(p["path"] + "\\n")
        look.gone("Save As")

It looks at windows and files, not at pixels; it waits for what it needs to see and never for a time to pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from arpo.agent.actions import Action, Click, Hotkey, Type
from arpo.errors import EnvError

if TYPE_CHECKING:
    from arpo.envs.desktop.sandbox import Sandbox  # which only Linux can import; tasks are listed everywhere

Moves: TypeAlias = Iterator[tuple[str, Action]]
PATIENCE_S = 60.0  # of an expert, for one thing to happen on a busy machine
SOON_S = 1.0
CONFIRMS = 3  # times that a dialog is answered


class Look:
    """What an expert sees of a desktop: windows, files and what commands say, but no pixels."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def window(self, title: str) -> tuple[int, int, int, int]:
        """The box (x, y, width, height) of the active window whose title has these words, when there is one."""
        box = self.until(lambda: self.active(title), f"the window {title!r}")
        self.sandbox.ask("settle", limit_s=10.0, quiet_s=0.1, busy=0.1)  # mapped is not yet drawn
        x, y, width, height = self.active(title) or box
        return x, y, width, height

    def gone(self, title: str) -> None:
        """Until no window's title has these words."""
        self.until(lambda: not self.shows(title), f"the end of {title!r}")

    def shows(self, title: str) -> bool:
        """Whether there is a window whose title has these words."""
        return any(title in window["title"] for window in self._windows())

    def soon(self, happened: Callable[[], Any], within_s: float = SOON_S) -> bool:
        """Whether it happens, now or a moment later."""
        deadline = time.monotonic() + within_s
        while not happened():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def file(self, path: str, has: str = "") -> None:
        """Until there is a file whose text has these words."""
        self.until(lambda: self._has(path, has), f"{has!r} in {path}" if has else path)

    def says(self, command: str, words: str) -> None:
        """Until a command's output has these words."""
        self.until(lambda: words in self.sandbox.run(command).out, f"{words!r} from `{command}`")

    def until(self, happened: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (result := happened()):
            if time.monotonic() > deadline:
                titles = ", ".join(window["title"] for window in self._windows())
                raise EnvError(f"the expert waited {PATIENCE_S:g} s for {what}; windows: {titles or 'none'}")
            time.sleep(0.05)
        return result

    def _windows(self) -> list[dict[str, Any]]:
        windows: list[dict[str, Any]] = self.sandbox.ask("windows")
        return windows

    def active(self, title: str) -> Any:
        """The box of the active window if its title has these words."""
        return next((w["box"] for w in self._windows() if w["active"] and title in w["title"]), None)

    def _has(self, path: str, words: str) -> bool:
        try:
            return words.encode() in self.sandbox.read(path)
        except ValueError:  # not there yet
            return False


def press(thought: str, *hotkeys: str) -> Moves:
    """Hotkeys one after the other: press("Go to the end.", "ctrl end", "enter")."""
    for keys in hotkeys:
        yield thought, Hotkey(tuple(keys.split()))


def click(thought: str, box: tuple[int, int, int, int], x: int, y: int, count: int = 1) -> Moves:
    """A point of a window, from its left upper corner, or from the right and the bottom where it is negative."""
    left, top, width, height = box
    at_x, at_y = left + x + (width if x < 0 else 0), top + y + (height if y < 0 else 0)
    yield thought, Click(at_x, at_y, count=2 if count == 2 else 1)


def switch(thought: str) -> Moves:
    """To the window that was active before: Alt is held until the list of windows has been seen."""
    yield thought, Hotkey(("alt",), "down")
    yield thought, Hotkey(("tab",))
    yield thought, Hotkey(("alt",), "up")


def save_as(look: Look, path: str, key: str = "ctrl s", dialog: str = "Save As") -> Moves:
    """GTK's file dialog takes a whole path for a name."""
    yield from press("Save the file.", key)
    look.window(dialog)
    yield "Give the path.", Type(path)
    for _ in range(CONFIRMS):  # the dialog takes a moment to read the name, and until then takes no answer
        yield from press("Confirm.", "enter")
        if look.soon(lambda: not look.shows(dialog)):
            return
    look.gone(dialog)
