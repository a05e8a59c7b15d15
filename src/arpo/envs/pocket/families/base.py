"""What a family of tasks is, and the furnished desktop that every task starts from.

A family draws an instance's parameters (what the instruction names), and from an environment seed all the rest: where
windows stand, which other files, mails and values there are, in which order. So one task looks different each time
and no place on the screen can be learned by heart.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeAlias

from arpo.envs.pocket.desktop import TASKBAR, App, Desktop
from arpo.envs.pocket.draw import COLORS
from arpo.envs.pocket.screen import Move, Screen
from arpo.envs.pocket.vfs import PLACES
from arpo.envs.pocket.words import nouns, sentence

Params: TypeAlias = dict[str, Any]


class Family(ABC):
    """Tasks that differ in names and values and share one way of solving them."""

    name: ClassVar[str]  # "files-rename"; a task's id is this and a number
    domain: ClassVar[str]  # the application, or "multi"
    feasible: ClassVar[bool] = True

    @abstractmethod
    def draw(self, rng: random.Random) -> Params:
        """The parameters of one instance: JSON values, always of the same keys and types."""

    @abstractmethod
    def instruction(self, p: Params) -> str:
        """What the agent is told."""

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


def place(desk: Desktop, rng: random.Random, app: str) -> App:
    """Open an application somewhere on the screen."""
    w, h = desk.window_size(desk.apps[app])
    opened = desk.launch(app, (rng.randint(0, max(0, desk.w - w)), rng.randint(0, max(0, desk.h - TASKBAR - h))))
    assert opened is not None, "a setup opens too many windows"
    return opened


def some_folder(rng: random.Random) -> str:
    """The path of one of the places."""
    return f"/{rng.choice(PLACES)}"
