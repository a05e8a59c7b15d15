"""The simulation: a clock that jumps, an engine as fast as the measured one, the paper's times, and names."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from arpo.bench import rollouts as bench
from arpo.bench.simulated import Latencies, SimulatedEngine, SimulatedSlot, VirtualLoop
from arpo.errors import ConfigError, EnvError
from fake_env import make_task

TIMES = Latencies()


def simulated(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def test_the_clock_jumps_to_the_next_timer() -> None:
    async def work() -> list[tuple[str, float]]:
        loop, seen = asyncio.get_running_loop(), []

        async def after(name: str, *seconds: float) -> None:
            for one in seconds:
                await asyncio.sleep(one)
                seen.append((name, loop.time()))

        await asyncio.gather(after("a", 86_400.0, 1.0), after("b", 1.0, 86_399.5), after("c", 0.0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        seen.append(("end", loop.time()))
        return seen

    assert simulated(work()) == [
        ("c", 0.0), ("b", 1.0), ("a", 86_400.0), ("b", 86_400.5), ("a", 86_401.0), ("end", 90_001.0),
    ]  # fmt: skip


def test_nobody_waits_for_ever_and_no_thread_works_unseen() -> None:
    async def nothing() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="nobody will do"):
        simulated(nothing())
    with pytest.raises(RuntimeError, match="a thread"):
        simulated(asyncio.to_thread(print))


def turns(engine: SimulatedEngine, episodes: int, images: int) -> Coroutine[Any, Any, float]:
    async def work() -> float:
        before = asyncio.get_running_loop().time()
        await asyncio.gather(*(engine.turn(str(i), images) for i in range(episodes)))
        return asyncio.get_running_loop().time() - before

    return work()


def test_the_engine_is_as_fast_as_the_one_that_was_measured() -> None:
    """16 episodes, each with a new screenshot, 120 tokens a reply: 4.0 s a turn on one H200."""

    async def work() -> list[float]:
        engine = SimulatedEngine(TIMES, gpus=1, caches=True, seed=0)
        return [await turns(engine, 16, images) for images in (1, 2, 3, 4, 5)]

    first, *later = simulated(work())
    assert later == pytest.approx([4.0] * 4, rel=0.15)
    assert first > 1.1 * later[0]  # the prompt, too


def test_what_is_kept_is_not_computed_again_until_there_are_new_weights() -> None:
    async def work(caches: bool) -> list[float]:
        engine = SimulatedEngine(TIMES, gpus=1, caches=caches, seed=0)
        before, kept = await turns(engine, 4, 9), await turns(engine, 4, 10)
        await engine.load(1)
        return [before, kept, await turns(engine, 4, 11)]

    before, kept, renewed = simulated(work(caches=True))
    assert kept < before / 4 and renewed > before
    _, again, _ = simulated(work(caches=False))
    assert again > before


def test_a_turn_never_spans_versions() -> None:
    async def work() -> tuple[list[int], float]:
        engine = SimulatedEngine(TIMES, gpus=2, caches=True, seed=0)
        early = [asyncio.create_task(engine.turn(f"early {i}", 3)) for i in range(5)]
        await asyncio.sleep(0.1)
        loading = asyncio.create_task(engine.load(7))
        await asyncio.sleep(0.1)
        late = asyncio.create_task(engine.turn("late", 1))
        versions = [version for _, version in await asyncio.gather(*early, late)]
        assert loading.done()
        return versions, engine.busy_s

    versions, busy = simulated(work())
    assert versions == [0] * 5 + [7]
    assert 0 < busy < 2 * 30


def test_a_machine_that_is_lost_has_to_be_started_again() -> None:
    async def work() -> int:
        slot, lost = SimulatedSlot(TIMES, seed=0), 0
        for _ in range(3000):
            if not slot.alive:
                await slot.start()
            try:
                await slot.reset(make_task("press-1"), 0)
            except EnvError:
                lost += 1
                assert not slot.alive
        return lost

    assert 0 < simulated(work()) < 12


def test_lock_step_takes_as_long_as_in_the_paper() -> None:
    for n, minutes in bench.PAPER_MINUTES.items():
        assert simulated(bench.lockstep(n, TIMES.gpus, TIMES, 0))["wave_minutes"] == pytest.approx(minutes, rel=0.25)


def test_both_ways_through_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "ROLLOUT_TASKS", 3)
    monkeypatch.setattr(bench, "WARM", 1)
    monkeypatch.setattr(bench, "MEASURED", 2)
    numbers = bench.bench_rollouts([8, 16], lag=3, stragglers=0, gpus=None, seed=0)
    for name in ("lockstep_utilisation", "decoupled_utilisation", "utilisation_ratio", "ratio_cap"):
        assert set(numbers[name]) == {"8", "16"}
    for name in ("trajectories_per_hour", "engine_utilisation"):
        assert set(numbers[name]["8"]) == {"lockstep", "decoupled"}
    assert set(numbers["wave_minutes"]) == {"8"}  # the paper tells of no 16
    assert numbers["driver_cores"] > 0
    for n in ("8", "16"):
        assert numbers["lockstep_utilisation"][n] < numbers["decoupled_utilisation"][n] <= 1.0
        assert numbers["utilisation_ratio"][n] <= numbers["ratio_cap"][n]
        assert sum(numbers["lag"][n].values()) == pytest.approx(1.0)
        assert max(map(int, numbers["lag"][n])) <= 3
    again = bench.bench_rollouts([8], lag=3, stragglers=0, gpus=None, seed=0)
    assert again["decoupled_utilisation"]["8"] == numbers["decoupled_utilisation"]["8"]  # by the seed, not by the clock
    bench.print_table(numbers)
    assert "lag bound 3" in capsys.readouterr().out
    bench.plot(numbers, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("envs", "lag", "gpus"), [([7], 1, None), ([], 1, None), ([8, 8], 1, 9), ([8], 0, 9), ([8], 1, 1)]
)
def test_what_cannot_be_simulated_is_refused(envs: list[int], lag: int, gpus: int | None) -> None:
    with pytest.raises(ConfigError):
        bench.bench_rollouts(envs, lag, 0, gpus, 0)
