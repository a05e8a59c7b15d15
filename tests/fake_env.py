"""The smallest environment that keeps the whole contract: a screen with one button to be pressed once.

With its three tasks and its expert it is a backend, so that the tools around environments are tested without one of
the real ones. Tests of the contract checker break it on purpose, one method at a time.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from arpo.agent.actions import ENDING, Action, Click, Fail, Finish, Hotkey, points
from arpo.envs.base import Backend, refuse_bad_action
from arpo.errors import ActionError, TaskError
from arpo.images import Pixels, observe
from arpo.types import Observation, Task, to_json

BACKEND = Backend(
    name="fake",
    description="one button, for tests",
    factory="fake_env:FakeEnv",
    deterministic=True,
    catalog="fake_env",
    expert="fake_env:Expert",
)
SPLITS = ("train", "heldout")
BUTTON = (40, 30)
KEYS = {"esc", "enter", "ctrl", "a", "v", "tab", "delete"}


def make_task(task_id: str, feasible: bool = True, **changes: object) -> Task:
    fields = {
        "id": task_id,
        "domain": "buttons",
        "instruction": "Press the button [once].",
        "env": "fake",
        "setup": {"family": task_id.rpartition("-")[0]},
        "evaluator": {"func": "fake" if feasible else "infeasible"},
        "split": "train",
        "max_steps": 5,
    }
    return Task(**(fields | changes))  # type: ignore[arg-type]


TASKS = {task.id: task for task in (make_task("press-1"), make_task("press-2"), make_task("never-1", feasible=False))}


def write_list(folder: Path, *tasks: Task) -> str:
    """These tasks as a list file with the tasks beside it; its name, for tasks.source."""
    (folder / "examples" / "buttons").mkdir(parents=True, exist_ok=True)
    for task in tasks:
        (folder / "examples" / "buttons" / f"{task.id}.json").write_bytes(to_json(task))
    (folder / "list.json").write_text(json.dumps({"buttons": [task.id for task in tasks]}))
    return str(folder / "list.json")


def task_list(split: str) -> dict[str, list[str]]:
    return {"train": {"buttons": ["press-1", "press-2", "never-1"]}, "heldout": {"buttons": ["press-2"]}}[split]


def get_task(task_id: str) -> Task:
    if task_id not in TASKS:
        raise TaskError(f"unknown task {task_id!r}: did you mean press-1?")
    return TASKS[task_id]


class FakeEnv:
    def __init__(self, size: tuple[int, int] = (96, 64)) -> None:
        self.size = size
        self.task: Task | None = None
        self.last: Action | None = None
        self.pressed = 0
        self.touched = (0, 0)
        self.seed = 0

    @property
    def ended(self) -> bool:
        return self.task is None or self.last is not None

    def load(self, task: Task, seed: int) -> None:
        if "family" not in task.setup:
            raise TaskError(f"{task.id}: its setup names no family")
        self.task, self.last, self.pressed, self.touched, self.seed = task, None, 0, (0, 0), seed

    def reset(self, task: Task, seed: int) -> Observation:
        self.load(task, seed)
        return self.observe()

    def refuse(self, action: Action) -> None:
        refuse_bad_action(action, self.size, self.ended)
        if isinstance(action, Hotkey) and not KEYS.issuperset(action.keys):
            raise ActionError("there is no such key")

    def perform(self, action: Action) -> None:
        self.refuse(action)
        if isinstance(action, ENDING):
            self.last = action
        self.touched = (points(action) or (self.touched,))[-1]
        if isinstance(action, Click) and (action.x, action.y) == BUTTON:
            self.pressed += 1

    def step(self, action: Action) -> Observation:
        self.perform(action)
        return self.observe()

    def pixels(self) -> Pixels:
        width, height = self.size
        pixels = np.full((height, width, 3), 40 + 20 * (self.seed % 3), np.uint8)
        pixels[BUTTON[1], BUTTON[0]] = (200, 60 * self.pressed % 256, 0)
        pixels[self.touched[1], self.touched[0], 2] = 255
        return pixels

    def observe(self) -> Observation:
        return observe(self.pixels())

    def score(self) -> float:
        assert self.task is not None
        if isinstance(self.last, Fail) or not self.task.feasible:
            return float(isinstance(self.last, Fail) and not self.task.feasible)
        return float(self.pressed == 1)

    def close(self) -> None:
        self.task = None


class Expert:
    def __init__(self, task: Task) -> None:
        self.task = task

    def act(self, env: FakeEnv) -> tuple[str, Action]:
        if not self.task.feasible:
            return "There is nothing to press.", Fail("nothing to press")
        if env.pressed:
            return "It is pressed.", Finish()
        return "There is the button.", Click(*BUTTON)
