"""What a family of desktop tasks is, and the pieces that most of them are made of.

A family draws nothing at random: it lists its instances, turns each into a task file of OSWorld's form (`task`) and
plays each through public actions (`script`). A script yields (thought, action) and between its actions looks at the
windows and files of the desktop by `Look`: it waits for what it needs to see and never for a time to pass.

    def _script(look: Look, p: Params) -> Moves:
        yield "Save the file under the name.", Hotkey(("ctrl", "s"))
        look.window("Save As")
        yield "Type the path.", Type(p["path"] + "\\n")
        look.gone("Save As")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from arpo.agent.actions import Action, Click, Hotkey, Type
from arpo.envs.desktop.sandbox import Sandbox
from arpo.errors import EnvError
from arpo.types import Json

Params: TypeAlias = dict[str, Any]
Moves: TypeAlias = Iterator[tuple[str, Action]]
PATIENCE_S = 60.0  # of an expert, for one thing to happen on a busy machine
SOON_S = 1.0
CONFIRMS = 3  # times that a dialog is answered
HOME = "/home/user"


class Look:
    """What an expert sees of a desktop: windows, files and what commands say, but no pixels."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def window(self, title: str) -> tuple[int, int, int, int]:
        """The box (x, y, width, height) of the active window whose title has these words, when there is one."""
        found = self.until(lambda: self.active(title), f"the window {title!r}")
        self.sandbox.ask("settle", limit_s=10.0, quiet_s=0.1, busy=0.1)  # mapped is not yet drawn
        x, y, width, height = self.active(title) or found
        return x, y, width, height

    def gone(self, title: str) -> None:
        """Until no window's title has these words."""
        self.until(lambda: not self.shows(title), f"the end of {title!r}")

    def soon_gone(self, title: str) -> bool:
        return self.soon(lambda: not self.shows(title))

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
        while not (found := happened()):
            if time.monotonic() > deadline:
                titles = ", ".join(window["title"] for window in self._windows())
                raise EnvError(f"the expert waited {PATIENCE_S:g} s for {what}; windows: {titles or 'none'}")
            time.sleep(0.05)
        return found

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


@dataclass(frozen=True, slots=True)
class Family:
    """Tasks of one kind. `held_out` of the instances, the last ones, are not trained on."""

    name: str  # "editor-replace": its domain is the first part
    apps: tuple[str, ...]  # the programs that it needs, by their commands
    task: Callable[[Params], Json]  # instruction, config, evaluator
    script: Callable[[Look, Params], Moves]
    instances: tuple[Params, ...]
    held_out: int = 1

    @property
    def domain(self) -> str:
        return self.name.partition("-")[0]


def impossible(name: str, apps: tuple[str, ...], config: Callable[[Params], list[Json]], *instances: Params) -> Family:
    """Tasks that nobody can do, each with what it says; the expert says so at once. The last is not trained on."""

    def write(p: Params) -> Json:
        return task(p["say"], config(p), {"func": "infeasible"})

    return Family(name, apps, write, _no_moves, instances, held_out=int(len(instances) > 1))


def _no_moves(look: Look, p: Params) -> Moves:
    yield from ()


def task(instruction: str, config: list[Json], evaluator: Json) -> Json:
    return {"instruction": instruction, "config": config, "evaluator": evaluator}


# Setup steps.


def write(path: str, text: str) -> Json:
    """A text file, with the folders that lead to it."""
    return run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"', "write", path, text)


def folder(*paths: str) -> Json:
    return run("mkdir", "-p", *paths)


def run(*command: str) -> Json:
    return {"type": "execute", "parameters": {"command": list(command)}}


def launch(*command: str) -> Json:
    return {"type": "launch", "parameters": {"command": list(command)}}


# Evaluators, of OSWorld's own getters and metrics.


def says(command: list[str], expected: str) -> Json:
    """A command prints exactly this."""
    return {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": command},
        "expected": {"type": "rule", "rules": {"expected": expected}},
    }


def shell_says(line: str, expected: str, *arguments: str) -> Json:
    return says(["sh", "-c", line, "check", *arguments], expected)


def file_is(path: str, text: str) -> Json:
    """A file has this text, whatever line ends follow it."""
    return shell_says('printf %s "$(cat "$1")"', text.rstrip("\n"), path)


def every(*evaluators: Json) -> Json:
    """All of them."""
    return {key: [one[key] for one in evaluators] for key in ("func", "result", "expected")}


# Moves that many scripts share.


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
        if look.soon_gone(dialog):
            return
    look.gone(dialog)
