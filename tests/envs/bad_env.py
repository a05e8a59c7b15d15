"""The fake environment with bad manners: a task's setup says which call goes wrong, and how.

task = bad_task(step="hang")
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from arpo.agent.actions import Action
from arpo.errors import EnvError, Ruined, TaskError
from arpo.images import Pixels
from arpo.types import Observation, Task
from fake_env import FakeEnv, make_task


def bad_task(task_id: str = "press-1", **manners: str) -> Task:
    return make_task(task_id, setup={"family": "press"} | manners)


class BadEnv(FakeEnv):
    def reset(self, task: Task, seed: int) -> Observation:
        self.misbehave(task, "reset")
        return super().reset(task, seed)

    def step(self, action: Action) -> Observation:
        self.misbehave(self.task, "step")
        return super().step(action)

    def score(self) -> float:
        self.misbehave(self.task, "score")
        return super().score()

    def misbehave(self, task: Task | None, call: str) -> None:
        assert task is not None
        match str(task.setup.get(call, "")).split(":"):
            case ["hang"]:
                time.sleep(3600)
            case ["hang with a child"]:
                subprocess.run(["sleep", "3600"])
            case ["stop"]:
                os.kill(os.getpid(), signal.SIGSTOP)
            case ["crash"]:
                os.kill(os.getpid(), signal.SIGSEGV)
            case ["exit"]:
                sys.exit(3)
            case ["raise"]:
                raise ZeroDivisionError("no such number")
            case ["odd"]:
                raise RuntimeError(lambda: None)  # cannot travel as it is
            case ["fail"]:
                raise EnvError("the display is gone")
            case ["ruin"]:
                raise Ruined("the agent has ended its display")
            case ["refuse"]:
                raise TaskError("there is no such page")
            case ["wait for", path]:
                while not Path(path).exists():
                    time.sleep(0.01)


class Noisy(BadEnv):
    """A screen of noise, which makes large files."""

    def pixels(self) -> Pixels:
        width, height = self.size
        return np.random.default_rng(self.seed).integers(0, 256, (height, width, 3), np.uint8)


class Stillborn(FakeEnv):
    """Cannot be started: raises, or takes its process with it."""

    def __init__(self, error: Exception | None) -> None:
        if error is None:
            os._exit(4)
        raise error


class Untidy(FakeEnv):
    """Tells in a file that it was closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def step(self, action: Action) -> Observation:
        raise EnvError("the display is gone")

    def close(self) -> None:
        self.path.write_text("closed")
