"""The environment: a Desktop behind the contract of `envs/base.py`, drawn to pixels, with a parse beside them."""

import copy
from random import Random

from arpo.agent.actions import ENDING, Action, Click, Drag, Fail, Hotkey, Scroll
from arpo.envs.base import refuse_bad_action
from arpo.envs.pocket import keys
from arpo.envs.pocket.apps import APPS
from arpo.envs.pocket.canvas import Theme, render, words
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.events import perform
from arpo.envs.pocket.families import family_of
from arpo.envs.pocket.screen import Control, parse
from arpo.envs.pocket.ui import Item, Layer
from arpo.envs.pocket.vfs import FileProblem
from arpo.errors import ActionError, ConfigError, TaskError
from arpo.images import Pixels, observe
from arpo.types import Observation, Task

DEFAULT_SIZE = (448, 280)  # multiples of 28: no resize and no blur in a Qwen2.5-VL; 16 x 10 image tokens
SMALLEST = (336, 224)  # below this, dialogs would not fit
LARGEST = (1920, 1080)


def scale_of(size: tuple[int, int]) -> int:
    """Screen pixels per logical pixel: text is 12 pixels high up to 809 rows and 24 above."""
    return 2 if size[1] >= 810 and size[0] >= 2 * SMALLEST[0] else 1


def refuse_size(size: tuple[int, int]) -> None:
    width, height = size
    if not (SMALLEST[0] <= width <= LARGEST[0] and SMALLEST[1] <= height <= LARGEST[1]):
        allowed = f"{SMALLEST[0]}x{SMALLEST[1]} to {LARGEST[0]}x{LARGEST[1]}"
        raise ConfigError(f"size {width}x{height}: pocket draws screens from {allowed}")


class PocketEnv:
    """One pocket desktop. No threads, no files, nothing shared with another but caches of tiles and measured text."""

    def __init__(self, size: tuple[int, int] = DEFAULT_SIZE) -> None:
        refuse_size(size)
        self._size = (size[0], size[1])
        self._scale = scale_of(self._size)
        self._desk: Desktop | None = None
        self._task: Task | None = None
        self._last: Action | None = None  # the ending action, once there is one
        self._frame: list[Layer] | None = None  # what is on the screen; None after each change

    @property
    def size(self) -> tuple[int, int]:
        return self._size

    @property
    def ended(self) -> bool:
        return self._desk is None or self._last is not None

    @property
    def desk(self) -> Desktop:
        """The machine behind the screen, for checks and setups."""
        if self._desk is None:
            raise ActionError("no task is loaded: reset first")
        return self._desk

    def reset(self, task: Task, seed: int) -> Observation:
        self.load(task, seed)
        return self.observed(self.pixels())

    def load(self, task: Task, seed: int) -> None:
        """Set up a task without looking at the screen."""
        family, params = family_of(task)
        desk = Desktop((self._size[0] // self._scale, self._size[1] // self._scale), APPS)
        try:
            family.start(desk, params, Random(f"{task.id}/{seed}"))
        except (FileProblem, LookupError, ValueError) as problem:  # a user's own task may name what is not there
            raise TaskError(f"task {task.id}: cannot be set up with {params}: {problem}") from problem
        self._desk, self._task, self._last, self._frame = desk, task, None, None

    def step(self, action: Action) -> Observation:
        self.perform(action)
        return self.observed(self.pixels())

    def perform(self, action: Action) -> None:
        """Act without looking at the screen."""
        refuse_bad_action(action, self._size, self.ended)
        if isinstance(action, Hotkey) and (unknown := [key for key in action.keys if not keys.known(key)]):
            raise ActionError(f"unknown key {unknown[0]!r}")
        if isinstance(action, ENDING):
            self._last = action
            return
        perform(self.desk, self._logical(action), self.frame())
        self._frame = None

    def score(self) -> float:
        if self._task is None:
            raise ActionError("no task is loaded: reset first")
        if isinstance(self._last, Fail) or not self._task.feasible:
            return float(isinstance(self._last, Fail) and not self._task.feasible)
        family, params = family_of(self._task)
        if family.done(self.desk, params):
            return 1.0
        return self._task.partial * family.done_in_part(self.desk, params)

    def close(self) -> None:
        self._desk = self._task = self._frame = None

    def frame(self) -> list[Layer]:
        """The items that are on the screen."""
        if self._frame is None:
            self._frame = self.desk.frame()
        return self._frame

    def _theme(self) -> Theme:
        settings = self.desk.settings
        return Theme(settings.get("dark", False), settings.get("accent", "Blue"))

    def pixels(self) -> Pixels:
        """The screen, drawn: height x width x 3."""
        return render(self.frame(), self._size, self._scale, self._theme())

    def observed(self, pixels: Pixels) -> Observation:
        return observe(pixels)

    def parse(self) -> tuple[Control, ...]:
        """Every control whose middle can be seen (of a page of text: whose beginning can), back to front."""
        return parse(self.frame(), self._scale)

    def reached(self, x: int, y: int) -> Item | None:
        """What a click there would reach; the same object for two points on the same thing."""
        x, y = x // self._scale, y // self._scale
        front = next((layer for layer in reversed(self.frame()) if layer.contains(x, y)), None)
        return front.item_at(x, y) if front else None

    def words(self) -> list[tuple[str, tuple[int, int, int, int]]]:
        """Every word that can be read on the screen, with its box in screen pixels."""
        s = self._scale
        return [
            (word, (x0 * s, y0 * s, x1 * s, y1 * s)) for word, (x0, y0, x1, y1) in words(self.frame(), s, self._theme())
        ]

    def snapshot(self) -> object:
        """The whole state, to go back to with `restore`; it may be restored many times and by another environment."""
        return copy.deepcopy((self._desk, self._task, self._last))

    def restore(self, snapshot: object) -> None:
        self._desk, self._task, self._last = copy.deepcopy(snapshot)  # type: ignore[misc]
        self._frame = None

    def _logical(self, action: Action) -> Action:
        s, width, height = self._scale, self.desk.w, self.desk.h

        def point(x: int, y: int) -> tuple[int, int]:
            return min(x // s, width - 1), min(y // s, height - 1)

        match action:
            case Click(x=x, y=y, button=button, count=count):
                return Click(*point(x, y), button, count)
            case Drag(x=x, y=y, to_x=to_x, to_y=to_y):
                return Drag(*point(x, y), *point(to_x, to_y))
            case Scroll(x=x, y=y, direction=direction):
                return Scroll(*point(x, y), direction)
        return action
