"""OSWorld itself: its virtual machines in Docker containers, one fresh container an episode.

    make("osworld", size=(1920, 1080), osworld_disk="Ubuntu.qcow2", osworld_python="client/bin/python")

The machine is booted, removed and looked at here (machine.py); preparing a task and scoring it is left to OSWorld's own
client, in an interpreter of its own (client.py). The next machine boots while an episode is played. No fixed time is
waited: a machine is ready when its server shows a screen, a screen is settled when it stays the same.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from arpo.agent.actions import ENDING, Action, Fail
from arpo.envs.base import refuse_bad_action
from arpo.envs.evaluators import evaluators
from arpo.envs.osworld.client import Client
from arpo.envs.osworld.machine import IMAGE, Container, Docker
from arpo.envs.osworld.source import source
from arpo.envs.task_format import asked_for, did_you_mean, listed, refuse_malformed
from arpo.errors import ConfigError, NoRoom, TaskError
from arpo.images import decode, pixel_hash
from arpo.types import Observation, Task

SETTLE_S, LOOK_S = 2.0, 0.15  # at most so long after an action; two equal screens so far apart are settled


class OsworldEnv:
    """See the module."""

    def __init__(
        self,
        size: tuple[int, int] = (1920, 1080),
        osworld_image: str = IMAGE,
        osworld_disk: str | None = None,
        osworld_python: str | None = None,
        docker: Docker | None = None,
    ) -> None:
        docker = docker or Docker(osworld_image, Path(osworld_disk) if osworld_disk else None)
        if osworld_python is None:
            raise ConfigError("env.osworld_python is not set: the interpreter of OSWorld's client; make osworld-client")
        if lacking := docker.missing():
            what, how = lacking[0]
            raise ConfigError(f"env.name=osworld: {what} is missing; {how}")
        self.size, self._docker, self._client = size, docker, Client(osworld_python)
        self._settings = {"osworld_python": osworld_python}
        self.ended = True
        self._task: Task | None = None
        self._last: Action | None = None
        self._machine: Container | None = None
        self._spare: Container | None = Container(docker)
        self._leaving: list[Container] = []  # being removed while the next episode is played

    def reset(self, task: Task, seed: int) -> Observation:
        """A fresh machine, prepared for the task. The seed changes nothing."""
        refuse(task, self._settings)
        self.ended = True
        for machine in self._leaving:
            machine.close()
        self._leaving = [self._machine] if self._machine is not None else []
        for machine in self._leaving:
            machine.close(wait=self._spare is None)  # where there was no room for two it makes room for the next
        self._machine, self._spare = self._spare or Container(self._docker), None
        self._machine.wait()
        with contextlib.suppress(NoRoom):
            self._spare = Container(self._docker)
        self._client.setup(self._machine.ports, self.size, task)
        self._task, self._last, self.ended = task, None, False
        return self._settled()

    def step(self, action: Action) -> Observation:
        refuse_bad_action(action, self.size, self.ended)
        assert self._machine is not None
        self._last = action
        if isinstance(action, ENDING):
            self.ended = True
            return _observation(self._machine.screenshot())
        self._machine.python(source(action))
        return self._settled()

    def score(self) -> float:
        assert self._machine is not None and self._task is not None, "reset first"
        self._machine.screenshot()  # a dead machine is no score: to OSWorld's client it is one without files
        failed = isinstance(self._last, Fail)
        if failed or not self._task.feasible:
            return float(failed and not self._task.feasible)
        score = self._client.evaluate()
        self._machine.screenshot()
        return score

    def close(self) -> None:
        self.ended = True
        for machine in (self._machine, self._spare, *self._leaving):
            if machine is not None:
                machine.close()
        self._machine, self._spare, self._leaving = None, None, []
        self._client.close()

    def _settled(self) -> Observation:
        """The screen when it has not changed between two looks; after SETTLE_S as it is."""
        assert self._machine is not None
        deadline = time.monotonic() + SETTLE_S
        seen = _observation(self._machine.screenshot())
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            now = _observation(self._machine.screenshot())
            if now.hash == seen.hash:
                break
            seen = now
        return seen


def refuse(task: Task, settings: dict[str, Any]) -> None:
    """TaskError for one that could not be scored, before a machine boots. It takes a client to know that."""
    refuse_malformed(task)
    python = settings.get("osworld_python")
    if python is None or not task.feasible:
        return
    client = evaluators(python)
    wanted = {name: client.known("metrics") for name in listed(task.evaluator["func"])}
    if refused := sorted(wanted.keys() & client.known("refused")):
        raise TaskError(f"{task.id}: the metric {', '.join(refused)} is not used here: docs/osworld-tasks.md says why")
    wanted |= {what["type"]: client.known("every_getter") for what in asked_for(task.evaluator)}
    for name, known in wanted.items():
        if name not in known:
            raise TaskError(f"{task.id}: OSWorld's client has no checker {name}{did_you_mean([name], known)}")


def _observation(image: bytes) -> Observation:
    pixels = decode(image)
    height, width, _ = pixels.shape
    return Observation(image=image, width=width, height=height, hash=pixel_hash(pixels))
