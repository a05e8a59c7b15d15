"""What a family of tasks is, and how the desktop is set up that a task starts from.

A family draws an instance's parameters (what the instruction names), and from an environment seed all the rest: where
windows stand, which other files, mails and values there are, in which order. So one task looks different each time
and no place on the screen can be learned by heart.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from arpo.envs.pocket.apps.mail import fill
from arpo.envs.pocket.desktop import TASKBAR, App, Desktop
from arpo.envs.pocket.draw import COLORS
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.vfs import PLACES
from arpo.envs.pocket.words import nouns, sentence

Params: TypeAlias = dict[str, Any]
DOCUMENTS = "/Documents"


class Family(ABC):
    """Tasks that differ in names and values and share one way of solving them."""

    name: ClassVar[str]  # "files-rename": the domain (an application, or "multi"), and what is done; unique
    asks: ClassVar[str]  # "Rename {old} to {new} in {folder}.": what the agent is told, parameters in braces
    feasible: ClassVar[bool] = True

    @property
    def domain(self) -> str:
        return self.name.partition("-")[0]

    @abstractmethod
    def draw(self, rng: random.Random) -> Params:
        """The parameters of one instance: JSON values, always of the same keys and types."""

    def instruction(self, p: Params) -> str:
        """What the agent is told, for families in which that is more than `asks` with the parameters put in."""
        return self.asks.format(**p)

    @abstractmethod
    def setup(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        """Put in place what the task needs, on a furnished desktop."""

    @abstractmethod
    def check(self, desk: Desktop, p: Params) -> bool:
        """Whether the state of the machine is what the instruction asks for. False at the start."""

    @abstractmethod
    def expert(self, s: Screen, p: Params, notes: dict[str, str]) -> Move | None:
        """The next move; None: lost. `notes` carries what was read on an earlier screen. Done is decided by `check`."""

    def start(self, desk: Desktop, p: Params, rng: random.Random) -> None:
        furnish(desk, rng)
        self.setup(desk, p, rng)
        desk.stores["files"] = desk.files.twin()


class Infeasible(Family):
    """Tasks that cannot be done; the right answer is Fail, once the expert has seen why."""

    feasible = False

    def check(self, desk: Desktop, p: Params) -> bool:
        return False


def furnish(desk: Desktop, rng: random.Random) -> None:
    """Fill the machine with things that no instruction names, all drawn from the seed."""
    desk.clock = f"{rng.randrange(8, 20)}:{rng.randrange(60):02d}"
    rng.shuffle(desk.icons)
    desk.cascade = (rng.randrange(desk.w), rng.randrange(desk.h))
    desk.settings["wallpaper"] = rng.choice(list(COLORS))
    desk.settings["accent"] = rng.choice(["Blue", "Green", "Purple", "Gray"])


def add_files(
    desk: Desktop, rng: random.Random, folder: str, count: int, extensions: str = "txt", avoid: tuple[str, ...] = ()
) -> list[str]:
    """Some files with other names than those in `avoid` (with or without extension); returns their names."""
    taken = tuple(word.partition(".")[0] for word in (*avoid, *desk.files.names(folder)))
    names = [f"{word}.{rng.choice(extensions.split())}" for word in nouns(rng, count, taken)]
    for name in names:
        desk.files.write(f"{folder}/{name}", sentence(rng), kb=rng.randrange(1, 90))
    return names


def clutter(desk: Desktop, rng: random.Random) -> None:
    """Some files and mails, so that windows that have nothing to do with a task show something, too."""
    for name in PLACES:
        add_files(desk, rng, f"/{name}", rng.randrange(6), "txt csv png html")
    fill(desk, rng)


def place(desk: Desktop, rng: random.Random, app: str) -> App:
    """Open an application somewhere on the screen."""
    w, h = desk.window_size(desk.apps[app])
    opened = desk.launch(app, (rng.randint(0, desk.w - w), rng.randint(0, desk.h - TASKBAR - h)))
    assert opened is not None, "a setup opens too many windows"
    return opened


def place_some(desk: Desktop, rng: random.Random, apps: Sequence[str], least: int = 0) -> None:
    """Open some of these applications, or all, in any order."""
    for app in rng.sample(apps, rng.randint(least, len(apps))):
        place(desk, rng, app)


def open_perhaps(desk: Desktop, rng: random.Random, name: str) -> App | None:
    """The application, started or not, and perhaps another in front of it or behind. None: it must be launched."""
    other = None
    if rng.random() < 0.5:
        other = place(desk, rng, rng.choice([app for app in desk.apps if app != name]))
    app = place(desk, rng, name) if rng.random() < 0.6 else None
    if app and other and rng.random() < 0.5:
        desk.raise_window(other.window)
    return app


def hide(desk: Desktop, name: str) -> None:
    """Minimise an application that is in front, so that one has to go there to see what it shows."""
    if (window := desk.active) and window.app.name == name:
        desk.minimise(window)


def others_kept(desk: Desktop, *paths: str) -> bool:
    """Whether no other files than these, and no folders, have changed outside the trash since the start."""
    (before, folders), (now, folders_now) = desk.stores["files"].outside_trash(), desk.files.outside_trash()
    for path in paths:
        before.pop(path, None)
        now.pop(path, None)
    return bool(before == now and folders == folders_now)
