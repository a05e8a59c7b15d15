"""What `arpo bench rollouts` simulates: how busy many slow computers are in lock-step, and when nothing waits.

Lock-step is the paper's way. Every turn of a wave waits for its slowest, the wave for its slowest episode, all of them
for the learner, and each turn computes its whole context again. Decoupled is ours: the project's own pool, player and
rollouts with a lag bound, on the same machines (simulated.py), prefixes kept. Both have the same GPUs: in lock-step all
of them sample, then all learn; decoupled some sample and the others learn, at once.

An environment is busy while it is leased and waits neither for another episode nor for the learner. It cannot be busy
more than all of the time: the cap of the ratio is 1 / lock-step's utilisation, or less where the learner, which never
waits, cannot keep up with the episodes.
"""

import asyncio
import contextlib
import dataclasses
import logging
import math
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from arpo.agent.actions import Wait
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.algorithms.base import make_algorithm
from arpo.bench.envs import bar
from arpo.bench.simulated import Latencies, SimulatedEngine, SimulatedSlot, VirtualLoop, replies_of
from arpo.config import Config, at_least
from arpo.engines.base import Sampling
from arpo.engines.scripted import byte_vocabulary
from arpo.envs.pool import Slot, SlotPool
from arpo.errors import ConfigError, EnvError
from arpo.runs.plot import Series, save_plot
from arpo.runs.store import Run
from arpo.seeds import derive
from arpo.training.rollouts import Rollouts
from arpo.types import Observation, Task

PAPER_MINUTES = {8: 3.0, 32: 7.0, 128: 15.0, 256: 19.0}  # of a wave, by number of environments
GROUP, TASKS, ROLLOUT_TASKS = 8, 128, 32  # of the paper: 256 episodes an update
SAMPLING = 3 / 8  # of decoupled GPUs: a trajectory takes about 3 GPU-seconds of sampling and 6 of learning
WAVES = 8  # of lock-step, at least
WARM, MEASURED = 2, 4  # updates

T = TypeVar("T")


def bench_rollouts(envs: Sequence[int], lag: int, stragglers: int, gpus: int | None, seed: int) -> dict[str, Any]:
    """Simulate both ways for each number of environments.

    `gpus`: for all of them; None: the paper's 16, and one for 8 environments where that is more: then they are not what
    everything waits for.
    """
    at_least(1, lag=lag)
    at_least(0, seed=seed, stragglers=stragglers)
    if not envs or any(n % GROUP for n in envs) or min(envs) < GROUP or len(set(envs)) < len(envs):
        raise ConfigError(f"envs={','.join(map(str, envs))}: each number must be a multiple of {GROUP}, and other ones")
    if gpus is not None:
        at_least(2, gpus=gpus)
    times = Latencies()
    rows = []
    with _silent():
        for n in bar("simulating", envs):
            n_gpus = gpus or max(times.gpus, n // 8)
            alone = _simulated(lockstep(n, times.gpus, times, seed)) if n in PAPER_MINUTES else {}
            waiting = _simulated(lockstep(n, n_gpus, times, seed))
            began = time.process_time()
            never = _simulated(decoupled(n, n_gpus, lag, stragglers, times, seed))
            rows.append(_row(n, n_gpus, waiting, never, alone, time.process_time() - began))
    most = max(rows, key=lambda row: int(row["envs"]))

    def by_envs(name: str) -> dict[str, Any]:
        return {str(row["envs"]): row[name] for row in rows if row.get(name) is not None}

    return {
        "lag_bound": lag,
        "stragglers": stragglers,
        "seed": seed,
        **{name: by_envs(name) for name in rows[0] if name not in ("envs", "driver_cores", "wave_minutes")},
        "wave_minutes": by_envs("wave_minutes"),
        "paper_wave_minutes": {str(n): minutes for n, minutes in PAPER_MINUTES.items()},
        "driver_cores": most["driver_cores"],
        "driver_envs": most["envs"],
        "latencies": dataclasses.asdict(times),
    }


def _row(
    n: int, gpus: int, waiting: dict[str, Any], never: dict[str, Any], alone: dict[str, Any], cpu_s: float
) -> dict[str, Any]:
    """What is said of one number of environments."""
    busy, most = waiting["utilisation"], min(1.0, never["learner_limit"])
    return {
        "envs": n,
        "gpus": gpus,
        "lockstep_utilisation": busy,
        "decoupled_utilisation": never["utilisation"],
        "utilisation_ratio": never["utilisation"] / busy,
        "ratio_cap": most / busy,
        "trajectories_per_hour": {"lockstep": waiting["per_hour"], "decoupled": never["per_hour"]},
        "engine_utilisation": {"lockstep": waiting["engine"], "decoupled": never["engine"]},
        "learner_utilisation": {"lockstep": waiting["learner"], "decoupled": never["learner"]},
        "episode_s": {"lockstep": waiting["episode_s"], "decoupled": never["episode_s"]},
        "lag": never["lag"],
        "wave_minutes": alone.get("wave_minutes"),
        "driver_cores": cpu_s / never["simulated_s"],
    }


def _simulated(work: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Machines that fail are part of it, and nothing to warn of."""
    log = logging.getLogger("arpo")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _batch(n: int) -> int:
    """Episodes of an update: the paper's, or one for each environment where these are more."""
    return max(GROUP * ROLLOUT_TASKS, n)


# Lock-step


async def lockstep(n: int, gpus: int, times: Latencies, seed: int) -> dict[str, Any]:
    """Waves of n episodes; after every batch all environments wait for the learner. A lost episode is not played again
    and holds up nobody: kinder than the release, where it ends the run."""
    engine = SimulatedEngine(times, gpus, caches=False, seed=derive("engine", seed))
    slots = [SimulatedSlot(times, derive("slot", seed, i)) for i in range(n)]
    a_batch = math.ceil(_batch(n) / n)
    waves: list[float] = []
    busy, learned, episodes = 0.0, 0.0, 0
    loop = asyncio.get_running_loop()
    while len(waves) < WAVES:
        screens = 0
        for _ in range(a_batch):
            before = loop.time()
            own, seen, whole = await _wave(slots, engine, times, len(waves))
            waves.append(loop.time() - before)
            busy, screens, episodes = busy + own, screens + seen, episodes + whole
        before = loop.time()
        await asyncio.sleep(screens * times.learn / gpus)
        await engine.load(engine.version + 1)
        learned += loop.time() - before
    took = loop.time()
    return {
        "utilisation": busy / (n * took),
        "wave_minutes": fmean(waves) / 60,
        "per_hour": 3600 * episodes / took,
        "engine": engine.busy_s / (gpus * took),
        "learner": learned / took,
        "episode_s": busy / episodes,
    }


async def _wave(
    slots: Sequence[Slot], engine: SimulatedEngine, times: Latencies, number: int
) -> tuple[float, int, int]:
    """One episode in each. Returns how long each was busy with its own, summed; screenshots; episodes with a score."""
    loop = asyncio.get_running_loop()
    own = 0.0

    async def timed(work: Coroutine[Any, Any, T]) -> T | None:
        """Its result; None where the machine was lost."""
        nonlocal own
        before = loop.time()
        try:
            return await work
        except EnvError:
            return None
        finally:
            own += loop.time() - before

    async def begin(slot: Slot) -> Observation:
        if not slot.alive:
            await slot.start()
        return await slot.reset(TASK, 0)

    began = await asyncio.gather(*(timed(begin(slot)) for slot in slots))
    playing = {i: slot for i, slot in enumerate(slots) if began[i] is not None}
    to_score: dict[int, Slot] = {}
    screens = 0
    for turn in range(1, times.max_steps + 1):
        screens += len(playing)
        said = await asyncio.gather(*(timed(engine.turn(f"{number}-{i}", turn)) for i in playing))
        seen = await asyncio.gather(*(timed(slot.step(Wait())) for slot in playing.values()))
        for i, reply, observation in zip(list(playing), said, seen, strict=True):
            assert reply is not None
            if observation is None:
                del playing[i]
            elif reply[0] or turn == times.max_steps:
                to_score[i] = playing.pop(i)
        if not playing:
            break
    scores = await asyncio.gather(*(timed(slot.score()) for slot in to_score.values()))
    for i in range(len(slots)):
        await engine.release(f"{number}-{i}")
    return own, screens, sum(score is not None for score in scores)


# Decoupled


class _Metered(SlotPool):
    """Knows for how long its environments were leased or started, summed."""

    def __init__(self, places: Sequence[Slot]) -> None:
        super().__init__(places)
        self._leased, self._then, self._so_far = 0, 0.0, 0.0

    @property
    def leased_s(self) -> float:
        now = asyncio.get_running_loop().time()
        self._so_far, self._then = self._so_far + self._leased * (now - self._then), now
        return self._so_far

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Slot]:
        async with super().lease() as slot:
            _ = self.leased_s
            self._leased += 1
            try:
                yield slot
            finally:
                _ = self.leased_s
                self._leased -= 1


class _WithoutScreens(Run):
    """A run whose screenshots are stored where they arise, and not by the driver."""

    async def keep_image(self, observation: Observation) -> None:
        pass


async def decoupled(n: int, gpus: int, lag: int, stragglers: int, times: Latencies, seed: int) -> dict[str, Any]:
    """Updates with a lag bound; what is measured begins after the first few, when all is in motion."""
    sampling = min(gpus - 1, max(1, round(gpus * SAMPLING)))
    vocabulary = byte_vocabulary()
    dialect = UITars(vocabulary)
    engine = SimulatedEngine(
        times, sampling, caches=True, seed=derive("engine", seed), replies=replies_of(dialect, vocabulary)
    )
    pool = _Metered([SimulatedSlot(times, derive("slot", seed, i)) for i in range(n)])
    train = {"updates": 10**6, "rollout_tasks": _batch(n) // GROUP, "n_envs": n, "lag": lag, "stragglers": stragglers}
    config = Config.model_validate({"algorithm": {"name": "grpo", "group": GROUP}, "train": train, "seed": seed})
    tasks = [dataclasses.replace(TASK, id=f"task-{i}") for i in range(max(TASKS, _batch(n) // GROUP))]
    loop = asyncio.get_running_loop()
    lags: Counter[int] = Counter()
    learned, episodes, turns = 0.0, 0, 0
    start: tuple[float, float, float] | None = None
    with tempfile.TemporaryDirectory() as folder, _WithoutScreens.write(Path(folder), "") as run:
        rollouts = Rollouts(tasks, Agent(engine, dialect, Sampling()), config, run, Player(pool, run))
        async with pool, aclosing(rollouts.batches(0, make_algorithm(config.algorithm, seed))) as played:
            async for rollout in played:
                whole = [one for group in rollout.groups for one in group.trajectories if one.outcome.valid]
                screens = sum(len(one.steps) for one in whole)
                if rollout.update == WARM:
                    start = (loop.time(), pool.leased_s, engine.busy_s)
                if start is not None and rollout.update < WARM + MEASURED:
                    episodes, turns = episodes + len(whole), turns + screens
                    oldest = (
                        min(s.completion.version for t in g.trajectories for s in t.steps) for g in rollout.groups
                    )
                    lags.update(rollout.update - version for version in oldest)
                    learned += screens * times.learn / (gpus - sampling)
                elif start is not None:
                    break
                await asyncio.sleep(screens * times.learn / (gpus - sampling))
                await engine.load(rollout.update + 1)
            assert start is not None
            took, leased, sampled = loop.time() - start[0], pool.leased_s - start[1], engine.busy_s - start[2]
    per_update = _batch(n) * turns / episodes * times.learn / (gpus - sampling) + times.load
    return {
        "simulated_s": loop.time(),
        "utilisation": leased / (n * took),
        "per_hour": 3600 * episodes / took,
        "engine": sampled / (sampling * took),
        "learner": learned / took,
        "episode_s": leased / episodes,
        "learner_limit": _batch(n)
        / per_update
        * leased
        / episodes
        / n,  # how busy a learner that never waits keeps them
        "lag": {str(old): count / sum(lags.values()) for old, count in sorted(lags.items())},
    }


TASK = Task(
    "task-0", "simulated", "Put the numbers in the right cells.", "simulated", {}, {"func": "simulated"}, "train"
)


# What is shown


COLUMNS = ("envs", "GPUs", "wave, min (paper)", "busy", "ratio (cap)", "episodes/h", "engine", "learner", "lag 0, 1, …")


def print_table(numbers: dict[str, Any]) -> None:
    """The same numbers for people."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=column != COLUMNS[2])
    for row in table_rows(numbers):
        table.add_row(*row)
    told = "lag bound {lag_bound}, stragglers {stragglers}; of pairs the first is lock-step".format(**numbers)
    console.print(told, soft_wrap=True)
    console.print(table)
    cores = f"{numbers['driver_cores']:.2f} cores at {numbers['driver_envs']} environments"
    console.print(f"the driver itself takes {cores}, the simulation of machines and engine included", soft_wrap=True)


def table_rows(numbers: dict[str, Any]) -> Iterator[list[str]]:
    """One for each number of environments, by COLUMNS."""
    for n, gpus in numbers["gpus"].items():

        def both(name: str, form: str, n: str = n) -> str:
            return "/".join(form.format(value) for value in numbers[name][n].values())

        wave, paper = numbers["wave_minutes"].get(n), numbers["paper_wave_minutes"].get(n)
        shares = [numbers["lag"][n].get(str(old), 0.0) for old in range(numbers["lag_bound"] + 1)]
        yield [
            n,
            str(gpus),
            f"{wave:.1f} ({paper:g})" if wave is not None else "",
            f"{numbers['lockstep_utilisation'][n]:.0%}/{numbers['decoupled_utilisation'][n]:.1%}",
            f"{numbers['utilisation_ratio'][n]:.1f} ({numbers['ratio_cap'][n]:.1f})",
            both("trajectories_per_hour", "{:,.0f}"),
            both("engine_utilisation", "{:.0%}"),
            both("learner_utilisation", "{:.0%}"),
            " ".join(f"{100 * share:.0f}" for share in shares) + " %",
        ]


def plot(numbers: dict[str, Any], path: Path) -> None:
    """Utilisation by number of environments, both ways."""
    x = [math.log2(int(n)) for n in numbers["gpus"]]
    lines = [
        Series(name, x, list(numbers[f"{key}_utilisation"].values()))
        for name, key in (("decoupled", "decoupled"), ("lock-step", "lockstep"))
    ]
    save_plot(path, lines, "environments, as a power of 2", "share of the time that they are busy", share=True)
