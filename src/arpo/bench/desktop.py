"""How fast real desktops are: `arpo bench envs --env desktop`.

Many desktops at once, a thread for each, a quarter each of an editor, a calculator, a spreadsheet and a browser with a
local page. Actions are random ones (without Wait, which only waits). In this order:

    memory      of a desktop and of its spare, which is set up for the same task as in a group of episodes
    steps       act, settle, take the pixels; all at once, against the clock
    late        as before, and every third time another look half a second later: has the screen changed?
    reset       one at a time, its spare being up: set up for the same task, or bare, the task being another
    episodes    reset, 15 steps as the agent gets them (encoded), score; all at once, the spares coming up beside
    resets      all at once, one after the other as fast as they come, spares included
    calls       one at a time: a screenshot, a click on nothing, encoding
    pacing      an episode with the sleeps of OSWorld's reference runner: 60 s after a reset, 2 s after each step, 20 s
                before the score. Nothing is booted, so the real benchmark takes longer
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from arpo.agent.actions import Action, Wait
from arpo.agent.random_actions import random_action
from arpo.bench.envs import bar, copying_s, percentile
from arpo.envs.desktop.env import DesktopEnv
from arpo.envs.memory import free_mb, taken_mb
from arpo.images import observe
from arpo.types import Task

T = TypeVar("T")

EPISODE = 15  # steps
EPISODES = 3  # of each desktop
RESET = 8  # desktops whose resets are timed one at a time
LATER_S, SAMPLES = 0.5, 12  # a second look, so many of each desktop
RESETS_S = 20.0
CALLS = 20  # of each kind
SLEEP_START_S, SLEEP_STEP_S, SLEEP_SCORE_S = 60.0, 2.0, 20.0  # OSWorld's reference runner
PAGE = (
    """<h1>Notes</h1><p><input value="first"> <button onclick="this.textContent='Kept'">Keep</button>
<ul><li><a href="%23one">one</a><li>two<li>three</ul>"""
    + "<p>A line of text to scroll by." * 60
)
COMMANDS = {
    "mousepad": ["mousepad"],
    "galculator": ["galculator"],
    "calc": ["libreoffice", "--calc", "--norestore"],
    "chromium": ["chromium", f"data:text/html,{PAGE}"],
}
LIGHT = ("mousepad", "galculator")


make_env = partial(DesktopEnv, allow_weaker_sandbox=True)  # no agent is there


class Seat:
    """A desktop and the thread that it lives in."""

    def __init__(self, kind: str, size: tuple[int, int], seed: int) -> None:
        self.kind, self.task = kind, _task(kind)
        self.actions = _actions(seed, size)
        self.steps, self.settles = 0, list[float]()
        self.late, self.looks = 0, 0
        self._thread = ThreadPoolExecutor(1)
        self.env = self._thread.submit(make_env, size).result()

    def begin(self, work: Callable[[Seat], T]) -> Callable[[], T]:
        return self._thread.submit(work, self).result

    def reset(self) -> None:
        self.env.reset(self.task, 0)

    def step(self) -> None:
        self.env.perform(next(self.actions))
        self.env.pixels()
        self.settles.append(self.env.settle_s)
        self.steps += 1

    def close(self) -> None:
        self._thread.submit(self.env.close).result()
        self._thread.shutdown()


def bench_desktops(n_envs: int, steps: int, size: tuple[int, int], seed: int) -> dict[str, Any]:
    """The numbers, under the names that `--json` prints."""
    make_env(size).close()  # what cannot be made is said first; and the home folder is made before memory is weighed
    free = free_mb()
    kinds = itertools.cycle(COMMANDS)
    seats = [Seat(next(kinds), size, seed + i) for i in bar("starting", range(n_envs))]
    try:
        return _numbers(seats, steps, size, seed, free)
    finally:
        for seat in seats:
            seat.close()


def _numbers(seats: list[Seat], steps: int, size: tuple[int, int], seed: int, free: float) -> dict[str, Any]:
    _say("memory")
    own_mb, spare_mb = _memory(seats, free)
    _say("steps")
    wall_s = _stepping(seats, steps)
    taken = sum(seat.steps for seat in seats)
    settles = sorted(1e3 * one for seat in seats for one in seat.settles)
    windows = _all(seats, lambda seat: bool(seat.env.sandbox.ask("windows")))
    _say("late changes")
    _all(seats, _look_later)
    _say("reset")
    resets = [(seat.kind in LIGHT, *seat.begin(_timed_resets)()) for seat in seats[:RESET]]
    _say("episodes")
    _all(seats, Seat.reset)  # they have their spares again
    before = time.perf_counter()
    _all(seats, lambda seat: all(_episode(seat) for _ in range(EPISODES)))
    episodes_s = time.perf_counter() - before
    _say("resets")
    per_min = sum(_all(seats, _reset_on)) / RESETS_S * 60
    _all(seats, lambda seat: seat.env.wait_for_spare())
    screenshot_s, input_s, encode_s = (statistics.median(times) for times in zip(*map(_calls, seats), strict=True))
    floor_s = copying_s(seats[0].begin(lambda seat: seat.env.pixels())())
    _say("OSWorld's pacing: two minutes")
    before = time.perf_counter()
    _all(seats, _paced)
    paced = EPISODE * len(seats) / (time.perf_counter() - before)
    ours = EPISODE * EPISODES * len(seats) / episodes_s
    all_resets = sorted(1e3 * one for _, *times in resets for one in times)
    return {
        "env": "desktop",
        "size": "{}x{}".format(*size),
        "n_envs": len(seats),
        "cores": len(os.sched_getaffinity(0)),
        "steps": taken,
        "seed": seed,
        "steps_per_s": taken / wall_s,
        "floor_steps_per_s": 1 / floor_s,
        "reset_ms_p50": percentile(all_resets, 50),
        "reset_ms_p95": percentile(all_resets, 95),
        "resets_per_min": per_min,
        "encode_ms": 1e3 * encode_s,
        "mb_per_env": own_mb,
        "settle_ms_p50": percentile(settles, 50),
        "late_change_share": sum(seat.late for seat in seats) / sum(seat.looks for seat in seats),
        "osworld_pacing_steps_per_s": paced,
        "speedup_vs_osworld_pacing": ours / paced,
        "episode_steps_per_s": ours,
        "reset_light_ms_p50": _median_ms(same for light, same, _ in resets if light),
        "reset_heavy_ms_p50": _median_ms(same for light, same, _ in resets if not light),
        "reset_light_bare_ms_p50": _median_ms(bare for light, _, bare in resets if light),
        "reset_heavy_bare_ms_p50": _median_ms(bare for light, _, bare in resets if not light),
        "mb_per_spare": spare_mb,
        "screenshot_ms": 1e3 * screenshot_s,
        "input_ms": 1e3 * input_s,
        "open_share": sum(windows) / len(seats),
    }


def print_table(numbers: dict[str, Any]) -> None:
    """The same numbers for people."""
    title = "{env} at {size}: {n_envs} desktops at once on {cores} cores, {steps} steps".format(**numbers)
    table = Table("", "", show_header=False, box=None)
    for what, value in (
        ("steps a second, settled", "{steps_per_s:.1f}"),
        ("settling, median", "{settle_ms_p50:.0f} ms"),
        ("screens that changed later", "{late_change_share:.1%}"),
        ("reset to the same, to another task: editor", "{reset_light_ms_p50:.0f}, {reset_light_bare_ms_p50:.0f} ms"),
        ("the same: spreadsheet, browser", "{reset_heavy_ms_p50:.0f}, {reset_heavy_bare_ms_p50:.0f} ms"),
        ("resets a minute", "{resets_per_min:.0f}"),
        ("screenshot, click, encoding", "{screenshot_ms:.2f}, {input_ms:.2f}, {encode_ms:.2f} ms"),
        ("memory of a desktop, of its spare", "{mb_per_env:.0f}, {mb_per_spare:.0f} MB"),
        ("steps a second in whole episodes", "{episode_steps_per_s:.1f}"),
        ("the same with OSWorld's sleeps", "{osworld_pacing_steps_per_s:.2f}"),
        ("times as fast", "{speedup_vs_osworld_pacing:.0f}"),
    ):
        table.add_row(what, value.format(**numbers))
    console = Console(highlight=False)
    console.print(title, soft_wrap=True)
    console.print(table)


def _say(phase: str) -> None:
    console = Console(stderr=True)
    if console.is_terminal:
        console.print(f"[dim]{phase} …[/]")


def _all(seats: list[Seat], work: Callable[[Seat], T]) -> list[T]:
    """Do the same on all desktops at once."""
    return [result() for result in [seat.begin(work) for seat in seats]]


def _memory(seats: list[Seat], free: float) -> tuple[float, float]:
    """MB of a desktop and of its spare. Without control groups: what is no longer free, if the machine is idle else."""
    for _ in range(2):  # after the second the spare is set up, too
        _all(seats, Seat.reset)
    _all(seats, lambda seat: seat.env.wait_for_spare())
    with_spares = (free - free_mb()) / len(seats)
    groups = [[sandbox.group for sandbox in seat.env.sandboxes] for seat in seats]
    taken = [[taken_mb(group) for group in pair if group is not None] for pair in groups]
    _all(seats, lambda seat: seat.env.give_up_spare())
    if all(len(pair) == 2 for pair in taken):
        own, spare = (statistics.mean(column) for column in zip(*taken, strict=True))
        return own, spare
    time.sleep(1.0)  # the kernel takes a moment to give memory back
    without = (free - free_mb()) / len(seats)
    return without, with_spares - without


def _stepping(seats: list[Seat], steps: int) -> float:
    """Step on until so many were taken by all together: the fast do not wait for the slow. Returns the seconds."""
    enough = threading.Event()

    def on(seat: Seat) -> None:
        while not enough.is_set():
            seat.step()
            if sum(other.steps for other in seats) >= steps:
                enough.set()

    before = time.perf_counter()
    _all(seats, on)
    return time.perf_counter() - before


def _look_later(seat: Seat) -> None:
    for _ in range(SAMPLES):
        seat.step()
        seat.step()
        seat.env.perform(next(seat.actions))
        seen = seat.env.pixels()
        time.sleep(LATER_S)
        seat.looks += 1
        seat.late += not np.array_equal(seen, seat.env.pixels())


def _timed_resets(seat: Seat) -> tuple[float, float]:
    """From a spare that is set up for the task, and from a bare one."""
    taken = []
    for before in (seat.task, replace(seat.task, id="another")):
        seat.reset()
        seat.env.reset(before, 0)
        seat.env.wait_for_spare()
        taken.append(_seconds(seat.reset))
    return taken[0], taken[1]


def _episode(seat: Seat) -> bool:
    seat.reset()
    for action in itertools.islice(seat.actions, EPISODE):
        seat.env.step(action)
    return seat.env.score() <= 1


def _paced(seat: Seat) -> None:
    seat.env.reset(seat.task, 0)
    time.sleep(SLEEP_START_S)
    for action in itertools.islice(seat.actions, EPISODE):
        seat.env.step(action)
        time.sleep(max(0.0, SLEEP_STEP_S - seat.env.settle_s))  # it would not have settled beside
    time.sleep(SLEEP_SCORE_S)
    seat.env.score()


def _reset_on(seat: Seat) -> float:
    """How many resets it makes in the time; the last counts by its part."""
    began = time.perf_counter()
    for done in itertools.count():
        before = time.perf_counter()
        seat.env.reset(seat.task, 0)
        over_s = time.perf_counter() - began - RESETS_S
        if over_s >= 0:
            return done + 1 - over_s / (time.perf_counter() - before)
    raise AssertionError


def _calls(seat: Seat) -> tuple[float, float, float]:
    """Median seconds of a screenshot, of a click in the corner and of encoding a screen."""

    def timed(seat: Seat) -> tuple[float, float, float]:
        width, height = seat.env.size
        corner: dict[str, Any] = {"x": width - 1, "y": height - 1, "button": 1, "count": 1}
        pixels = seat.env.pixels()
        calls = (seat.env.pixels, lambda: seat.env.sandbox.ask("click", **corner), lambda: observe(pixels))
        screenshot, click, encode = (statistics.median(_seconds(call) for _ in range(CALLS)) for call in calls)
        return screenshot, click, encode

    return seat.begin(timed)()


def _seconds(call: Callable[[], object]) -> float:
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def _median_ms(seconds: Iterable[float]) -> float:
    """0 where there are none."""
    times = list(seconds)
    return 1e3 * statistics.median(times) if times else 0.0


def _actions(seed: int, size: tuple[int, int]) -> Iterator[Action]:
    rng = random.Random(seed)
    while True:
        action = random_action(rng, size)
        if not isinstance(action, Wait):
            yield action


def _task(kind: str) -> Task:
    launch = {"type": "launch", "parameters": {"command": COMMANDS[kind]}}
    evaluator = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": ["pgrep", "-c", "."]},
        "expected": {"type": "rule", "rules": {"expected": "0"}},
    }
    return Task(f"bench-{kind}", kind, "Do anything.", "desktop", {"config": [launch]}, evaluator, "bench", EPISODE)
