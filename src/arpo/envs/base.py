"""The contract of every environment, and the table of those that exist.

    env = make("pocket")
    observation = env.reset(task, seed=7)
    while …:
        observation = env.step(Click(120, 44))
    env.score()     # 0.0 … 1.0, by the state of the machine
    env.close()

An environment is one computer. It knows nothing of tokens, models or rewards, and counts no steps: the step limit
belongs to the episode. `arpo envs check NAME` (check.py) holds a backend to all that is promised here.
"""

from __future__ import annotations

import difflib
import platform
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from arpo.agent.actions import Action, points
from arpo.errors import ActionError, ConfigError, TaskError
from arpo.images import Pixels
from arpo.registry import Registry, imported, made
from arpo.types import Observation, Task

if TYPE_CHECKING:
    from arpo.config import EnvConfig


class Env(Protocol):
    """One computer.

    A call that is refused (`ActionError`, `TaskError`) changes nothing, and the environment can still be used.
    `EnvError` means that the machine is lost: close it and take another. So does `Ruined`, which only `step` and
    `score` may raise, and only where nothing but the agent can have done it: the episode is over and scores 0.
    """

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the screen in pixels, fixed for the life of the environment."""
        ...

    @property
    def ended(self) -> bool:
        """True before the first reset, after an ending action (Finish, Fail, CallUser) and after close."""
        ...

    def reset(self, task: Task, seed: int) -> Observation:
        """Set the machine up for a task. Equal (task, seed) give equal starts where `deterministic` is promised."""
        ...

    def step(self, action: Action) -> Observation:
        """Act, and look. ActionError for an action off the screen, an unknown key, or after the end."""
        ...

    def score(self) -> float:
        """How well the task is done in the state that the machine is in now, from 0 to 1. Changes nothing.

        A Fail scores 1 on an infeasible task and 0 on any other; on an infeasible task nothing but Fail scores.
        """
        ...

    def close(self) -> None:
        """Give everything back. May be called twice."""
        ...


@runtime_checkable
class Drawn(Env, Protocol):
    """An environment that sets up, acts and draws in separate calls, so that each can be timed."""

    def load(self, task: Task, seed: int) -> None: ...

    def perform(self, action: Action) -> None: ...

    def pixels(self) -> Pixels: ...


@runtime_checkable
class SeenApart(Drawn, Protocol):
    """One whose `reset` and `step` are nothing but `observed` after these: on large screens a pool does that, which
    takes longest, in a thread."""

    def observed(self, pixels: Pixels) -> Observation:
        """What is seen of the screen. It depends on nothing else, and any thread may ask."""
        ...


class Lease(Protocol):
    """One computer of a pool as its user sees it: the calls of an Env, to be awaited. EnvError, Ruined: it is lost."""

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def env(self) -> Env:
        """The environment itself, for scripts that look behind its screen. ConfigError where it is elsewhere."""
        ...

    async def reset(self, task: Task, seed: int) -> Observation: ...

    async def step(self, action: Action) -> Observation: ...

    async def score(self) -> float: ...


class Pool(Protocol):
    """Many computers. It gives them out and takes them back, replaces those that failed, and does nothing else."""

    def lease(self) -> AbstractAsyncContextManager[Lease]:
        """A running computer for the time of the block; waits for a free one. EnvError where none is left."""
        ...


class Catalog(Protocol):
    """The tasks that come with an environment: a module, or anything else with these three names."""

    @property
    def SPLITS(self) -> tuple[str, ...]: ...

    def task_list(self, split: str) -> dict[str, list[str]]:
        """The ids of a split, by domain: OSWorld's form of a task list."""
        ...

    def get_task(self, task_id: str) -> Task:
        """The named task, or a TaskError that names the nearest ids."""
        ...


class TaskList:
    """The Catalog of an environment whose tasks are in a list."""

    def __init__(self, tasks: Iterable[Task], env: str) -> None:
        self._tasks: dict[str, Task] = {}
        for task in tasks:
            if not isinstance(task, Task) or not isinstance(task.max_steps, int) or task.max_steps < 1:
                raise TaskError(f"{task!r:.60}: is no Task, or one without a step")
            if task.env != env or self._tasks.setdefault(task.id, task) is not task:
                raise TaskError(f"{task.id}: is listed twice, or its env is {task.env!r} and not {env!r}")

    @property
    def SPLITS(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task.split for task in self._tasks.values()))

    def task_list(self, split: str) -> dict[str, list[str]]:
        listed: dict[str, list[str]] = {}
        for task in self._tasks.values():
            if task.split == split:
                listed.setdefault(task.domain, []).append(task.id)
        return listed

    def get_task(self, task_id: str) -> Task:
        if task_id not in self._tasks:
            near = difflib.get_close_matches(task_id, self._tasks, n=3)
            raise TaskError(f"unknown task {task_id!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
        return self._tasks[task_id]


class Expert(Protocol):
    """A scripted solver of one task that looks at the environment itself and not at its pixels."""

    def act(self, env: Any) -> tuple[str, Action]:
        """A thought and the next action; Finish or Fail when it is done."""
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """What is known of an environment without importing it."""

    name: str
    description: str
    factory: str | Callable[..., Env]  # "module:callable" is imported on first use; worker processes need that
    deterministic: bool  # equal (task, seed, actions) give equal pixels
    catalog: str | Catalog  # "module": a module that is a Catalog
    expert: str | Callable[[Task], Expert] | None  # makes the Expert of a task; None: nobody wrote one
    settings: tuple[str, ...] = ("size",)  # keys of the section `env` that its factory takes
    options: Mapping[str, Any] = field(default_factory=dict)  # `env.options`: what else it takes, with defaults
    refuse: str | None = None  # "module:callable" of a task and these settings: TaskError for one that it cannot do
    refuse_size: str | None = None  # "module:callable" of a size: ConfigError for a screen that it cannot have
    system: str | None = None  # the one that it works on, as `platform.system` calls it; None: any
    doctor: str | None = None  # "module:callable" of the section `env`: what this machine lacks, each with a remedy
    resource: str | None = None  # what a Ray node offers for one, as RESOURCE or RESOURCE:ANYTHING; None: any node does
    walls: str | None = None  # "module:callable": what holds an agent's programs here, as `arpo doctor` shows it

    def make(self, **settings: Any) -> Env:
        """A new environment. ConfigError on a system where it does not work."""
        self.refuse_system()
        env: Env = made(f"env.name={self.name}", self.factory, **{**self.options, **settings})
        return env

    @property
    def works_here(self) -> bool:
        """Whether this operating system is one that it works on."""
        return self.system in (None, platform.system())

    def refuse_system(self) -> None:
        """ConfigError where it is not."""
        if not self.works_here:
            raise ConfigError(f"env.name={self.name}: works on {self.system} only, and this is {platform.system()}")


BACKENDS = Registry(
    "environment",
    "arpo.environments",
    (
        Backend(
            name="pocket",
            description="a desktop in pure Python, embedded; no system packages",
            factory="arpo.envs.pocket:PocketEnv",
            deterministic=True,
            catalog="arpo.envs.pocket.catalog",
            expert="arpo.envs.pocket.expert:PocketExpert",
            refuse_size="arpo.envs.pocket.env:refuse_size",
        ),
        Backend(
            name="desktop",
            description="real Linux applications on private X servers, no virtual machine",
            factory="arpo.envs.desktop.env:DesktopEnv",
            deterministic=False,
            catalog="arpo.envs.desktop.catalog",
            expert="arpo.envs.desktop.expert:DesktopExpert",
            settings=("size", "files", "osworld_python", "wall", "allow_weaker_sandbox"),
            refuse="arpo.envs.desktop.needs:refuse",
            refuse_size="arpo.envs.desktop.needs:refuse_size",
            system="Linux",
            resource="desktop",
            doctor="arpo.envs.desktop.doctor:lacking",
            walls="arpo.envs.desktop.doctor:walls",
        ),
        Backend(
            name="osworld",
            description="the OSWorld benchmark through its own client",
            factory="arpo.envs.osworld.env:OsworldEnv",
            deterministic=False,
            catalog="arpo.envs.osworld.catalog",
            expert=None,
            settings=("size", "osworld_image", "osworld_disk", "osworld_python"),
            system="Linux",
            resource="docker",
            refuse="arpo.envs.osworld.env:refuse",
            doctor="arpo.envs.osworld.doctor:lacking",
        ),
    ),
)


def build(factory: str | Callable[..., Env], /, **settings: Any) -> Env:
    """A new environment, made by the factory of a backend: also where the backend is not registered, in a worker."""
    env: Env = imported(factory)(**settings)
    return env


def backend(name: str) -> Backend:
    """The named backend, or a ConfigError that lists them."""
    return BACKENDS.find(name)


def make(name: str, **settings: Any) -> Env:
    """A new environment of the named backend; `settings` are the backend's own (pocket: `size`)."""
    return backend(name).make(**settings)


def refuse_system(name: str) -> None:
    """ConfigError where the named backend does not work on this operating system."""
    backend(name).refuse_system()


def settings_of(config: EnvConfig) -> dict[str, Any]:
    """The settings that an environment is made with: `make(config.name, **settings_of(config))`."""
    names = backend(config.name).settings
    if strange := [name for name in names if not hasattr(config, name)]:
        raise ConfigError(f"env.name={config.name}: it is made with {strange[0]!r}, which is no key of the section env")
    return {name: getattr(config, name) for name in names} | config.options


def refuse_size(name: str, size: tuple[int, int]) -> None:
    """ConfigError for a screen that the named backend cannot have. Nothing is started."""
    refuse_system(name)
    if place := backend(name).refuse_size:
        imported(place)(size)


def refuse_unfit(name: str, tasks: Iterable[Task], settings: dict[str, Any]) -> None:
    """TaskError where the named backend, with these settings, cannot set up or score one: why, and which others.

    On a system where it does not work at all none is refused: there tasks can be listed, and `make` says why.
    """
    if (place := backend(name).refuse) and backend(name).works_here:
        refuse, refused = imported(place), {}
        for task in tasks:
            try:
                refuse(task, settings)
            except TaskError as error:
                refused[task.id] = error
        if refused:
            first, *others = refused
            also = "" if not others else f" (also refused: {', '.join(others[:8])}{', …' if others[8:] else ''})"
            raise TaskError(f"{refused[first]}{also}") from None


def catalog(name: str) -> Catalog:
    """The tasks of the named backend."""
    tasks: Catalog = imported(backend(name).catalog)
    return tasks


def make_expert(name: str, task: Task) -> Expert:
    """The named backend's scripted solver, for one task."""
    place = backend(name).expert
    if place is None:
        raise ConfigError(f"env.name={name}: there is no expert for it")
    refuse_system(name)
    expert: Expert = imported(place)(task)
    return expert


def refuse_bad_action(action: Action, size: tuple[int, int], ended: bool) -> None:
    """ActionError for what every backend refuses: an action after the end, or off the screen."""
    if ended:
        raise ActionError("the episode has ended: reset first")
    width, height = size
    for x, y in points(action):
        if not (0 <= x < width and 0 <= y < height):
            raise ActionError(f"({x}, {y}) is off the {width}x{height} screen")
