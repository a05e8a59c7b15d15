"""How fast an environment is: `arpo bench envs`.

Each environment plays a task with the expert and then as many steps with random actions on the same task, so half of
all steps are of either kind; several environments take turns on one thread. What is timed:

    a step      acting and drawing the screen as pixels; not the expert's thinking
    a reset     setting the task up and drawing the first screen
    encoding    from pixels to the stored image and its hash, apart from both
    the floor   copying a finished screen once: no drawing of whole screens can take less
    the loop    what a step of whole episodes takes of the event loop's thread (loop.py)

Nothing is timed before every environment has played once around. Memory is weighed before all that: a process that
has worked for a while holds freed memory in which further environments fit without its growing, and 0 MB would be read.
"""

import ctypes
import gc
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from arpo.agent.actions import Action
from arpo.agent.random_actions import random_action
from arpo.config import at_least
from arpo.envs.base import Drawn, catalog, make, make_expert
from arpo.errors import ConfigError
from arpo.images import Pixels, observe
from arpo.machine import peak_rss_mb
from arpo.tasks.load import interleaved, load_tasks
from arpo.types import Task

T = TypeVar("T")

MOST_ENVS = 1024  # more would only fill the memory
MORE_ENVS = 64  # made to see what each further one costs in memory: so many that their sum stands out of the noise
PARTS = 20  # of the timed steps, for the progress bar
COPIES = 200  # of a screen, for the floor


@dataclass(slots=True)
class Clock:
    """Seconds, one entry a call."""

    steps: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    encodes: list[float] = field(default_factory=list)


def bench_envs(
    env: str, n_envs: int | None, steps: int | None, size: tuple[int, int] | None, seed: int
) -> dict[str, Any]:
    """The numbers, under the names that `--json` prints. What is None is the usual for that environment."""
    usual = (16, 1600, (1280, 720)) if env == "desktop" else (4, 4000, (448, 280))
    n_envs = usual[0] if n_envs is None else n_envs
    steps = usual[1] if steps is None else steps
    size = size or usual[2]
    if not 1 <= n_envs <= MOST_ENVS:
        raise ConfigError(f"n-envs={n_envs}: must be from 1 to {MOST_ENVS}")
    at_least(1, steps=steps)
    at_least(0, seed=seed)
    if env == "desktop":
        from arpo.bench.desktop import bench_desktops  # it imports this module

        return bench_desktops(n_envs, steps, size, seed)
    _make(env, size).close()  # what cannot be made is said first
    tasks = interleaved(load_tasks(env, catalog(env).SPLITS[0]))
    mb_per_env = _mb_per_env(env, size, tasks, seed)
    clock = Clock()
    envs = [_make(env, size) for _ in range(n_envs)]
    # Each environment starts at another place of the list, so that they do not all do the same.
    players = [_play(env, one, tasks[i:] + tasks[:i], seed + i, clock) for i, one in enumerate(envs)]
    for player in bar("warming up", players):
        for _ in itertools.takewhile(lambda begun: begun < 3, player):  # one expert's and one random episode
            pass
    for warm_up in (clock.steps, clock.resets, clock.encodes):
        warm_up.clear()
    turns = itertools.cycle(players)
    for part in bar("timing", range(1, PARTS + 1)):
        while len(clock.steps) < steps * part // PARTS:
            next(next(turns))
    while not clock.resets:
        next(next(turns))
    floor_s = copying_s(envs[0].pixels())
    for one in envs:
        one.close()
    from arpo.bench.loop import loop_ms_a_step  # torch takes seconds: what is refused is said before

    reset_ms = sorted(1e3 * seconds for seconds in clock.resets)
    return {
        "env": env,
        "size": "{}x{}".format(*size),
        "n_envs": n_envs,
        "cores": 1,  # used, not present: everything runs on one thread
        "steps": len(clock.steps),
        "seed": seed,
        "steps_per_s": len(clock.steps) / sum(clock.steps),
        "floor_steps_per_s": 1 / floor_s,
        "reset_ms_p50": percentile(reset_ms, 50),
        "reset_ms_p95": percentile(reset_ms, 95),
        "resets_per_min": 6e4 / statistics.fmean(reset_ms),
        "encode_ms": 1e3 * statistics.fmean(clock.encodes),
        "mb_per_env": mb_per_env,
        "loop_ms_a_step": loop_ms_a_step(env, size, tasks, seed),
    }


def print_table(numbers: dict[str, Any]) -> None:
    """The same numbers for people."""
    if numbers["env"] == "desktop":
        from arpo.bench import desktop

        return desktop.print_table(numbers)
    title = "{env} at {size}: {n_envs} environments in turn on {cores} core, {steps} steps".format(**numbers)
    rows = (
        ("steps a second, drawn", f"{numbers['steps_per_s']:,.0f}"),
        ("copies of a screen a second, the floor", f"{numbers['floor_steps_per_s']:,.0f}"),
        ("reset, median", f"{numbers['reset_ms_p50']:.2f} ms"),
        ("reset, 95th percentile", f"{numbers['reset_ms_p95']:.2f} ms"),
        ("resets a minute", f"{numbers['resets_per_min']:,.0f}"),
        ("encoding a screen", f"{numbers['encode_ms']:.2f} ms"),
        ("memory of each further environment", f"{numbers['mb_per_env']:.2f} MB"),
        ("a step takes of the event loop's thread", f"{numbers['loop_ms_a_step']:.1f} ms"),
    )
    print_rows(title, rows)


def print_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """A title, and below it what was measured and how much it is."""
    table = Table("", "", show_header=False, box=None)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(title, soft_wrap=True)
    console.print(table)


def bar(what: str, sequence: Sequence[T]) -> Iterable[T]:
    """A progress bar that is drawn between the items alone: a thread that draws it would be timed with them."""
    console = Console(stderr=True)
    return track(sequence, what, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal)


def copying_s(pixels: Pixels) -> float:
    """How long it takes to write a screen's bytes once, the median of many."""
    copy = np.empty_like(pixels)
    taken = []
    for _ in range(COPIES):
        before = time.perf_counter()
        np.copyto(copy, pixels)
        taken.append(time.perf_counter() - before)
    return statistics.median(taken)


def _make(env: str, size: tuple[int, int]) -> Drawn:
    made = make(env, size=size)
    if not isinstance(made, Drawn):
        raise ConfigError(f"env={env}: cannot be timed: it does not set up, act and draw in separate calls")
    return made


def _play(env_name: str, env: Drawn, tasks: list[Task], seed: int, clock: Clock) -> Iterator[int]:
    """Plays on for ever; yields after each step how many episodes it has begun."""
    rng = random.Random(seed)
    begun = 0
    for task in itertools.cycle(tasks):
        env_seed = rng.randrange(2**31)
        _reset(env, task, env_seed, clock)
        begun += 1
        expert = make_expert(env_name, task)
        taken = 0
        while not env.ended and taken < task.max_steps:
            _, action = expert.act(env)
            _step(env, action, clock)
            taken += 1
            yield begun
        _reset(env, task, env_seed, clock)
        begun += 1
        for _ in range(taken):
            _step(env, random_action(rng, env.size), clock)
            yield begun


def _reset(env: Drawn, task: Task, seed: int, clock: Clock) -> None:
    before = time.perf_counter()
    env.load(task, seed)
    env.pixels()
    clock.resets.append(time.perf_counter() - before)


def _step(env: Drawn, action: Action, clock: Clock) -> None:
    before = time.perf_counter()
    env.perform(action)
    pixels = env.pixels()
    drawn = time.perf_counter()
    observe(pixels)
    clock.steps.append(drawn - before)
    clock.encodes.append(time.perf_counter() - drawn)


def _mb_per_env(env: str, size: tuple[int, int], tasks: list[Task], seed: int) -> float:
    """What each further environment adds to the process once the expert has played an episode in it.

    What the environments share (fonts, painted tiles) and what grows with the first tasks is counted in: rather too
    much than too little.
    """
    unused = Clock()

    def played(task: Task) -> Drawn:
        one = _make(env, size)
        for _ in itertools.takewhile(lambda begun: begun < 2, _play(env, one, [task], seed, unused)):
            pass
        return one

    first = played(tasks[0])
    before = _resident_mb()
    more = [played(task) for task in bar("weighing", list(itertools.islice(itertools.cycle(tasks), MORE_ENVS)))]
    grown = _resident_mb() - before
    for one in (first, *more):
        one.close()
    return max(0.0, grown) / MORE_ENVS


def _resident_mb() -> float:
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc keeps freed memory, in which further environments would fit unseen
        libc.malloc_trim(0)
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return peak_rss_mb()  # macOS: the peak so far


def percentile(ascending: list[float], percent: int) -> float:
    return ascending[min(len(ascending) - 1, len(ascending) * percent // 100)]
