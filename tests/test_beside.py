"""What takes long runs beside the event loop: while one works in a thread, all others go on.

Work that is held up until the loop has moved on would wait in vain if it ran on the loop itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import plain
from arpo import images as pixels
from arpo.agent.actions import Click, Finish, Hotkey
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.bench import loop
from arpo.beside import SMALL, beside
from arpo.config import EvalConfig
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.local import LocalEngine, screens
from arpo.engines.local import engine as local
from arpo.engines.scripted import byte_vocabulary, scripted
from arpo.envs.base import make
from arpo.envs.pool import LocalPool
from arpo.errors import ActionError
from arpo.evaluation.run import evaluate
from arpo.images import decode
from arpo.model import images
from arpo.model.checkpoint import load_checkpoint
from arpo.resize import QWEN2_5
from arpo.runs import store
from arpo.runs.store import Run
from arpo.tasks.load import load_tasks
from arpo.types import Observation
from fake_env import FakeEnv, make_task
from tiny_model import make_decided

LONG = 60.0  # seconds after which nobody waits any more
LARGE_SIZE, SMALL_SIZE = (644, 420), (448, 280)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decided(tmp_path_factory.mktemp("checkpoint"), seed=0)


def watch(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call of a function: whether it was on the main thread, where these tests' loops run."""
    function: Callable[..., Any] = getattr(owner, name)
    calls: list[bool] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        calls.append(threading.current_thread() is threading.main_thread())
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, watched)
    return calls


def hold_up(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """The first call of a function says that it has begun, and goes on when it is told that others have moved."""
    function: Callable[..., Any] = getattr(owner, name)
    begun, moved = threading.Event(), threading.Event()

    def held(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert moved.wait(LONG), f"{name} holds up the event loop"
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, held)
    return begun, moved


async def heard(event: threading.Event) -> None:
    async with asyncio.timeout(LONG):
        while not event.is_set():
            await asyncio.sleep(0.001)


async def move_on(work: Coroutine[Any, Any, Any], begun: threading.Event, moved: threading.Event) -> Any:
    """Let work run, and be the one that moves meanwhile."""
    working = asyncio.create_task(work)
    await heard(begun)
    moved.set()
    return await working


# A screenshot on its way into the store


async def trial(size: tuple[int, int], run: Run) -> None:
    vocabulary = byte_vocabulary()
    dialect = UITars(vocabulary)
    async with LocalPool(partial(FakeEnv, size), 1) as pool:
        expert = scripted("expert", dialect, vocabulary)
        task = make_task("press-1")
        await evaluate(
            lambda task, env: Agent(expert(task, env), dialect, Sampling()),
            [task],
            EvalConfig(trials=1, n_envs=1),
            Player(pool, run),
            run,
        )


@pytest.mark.usefixtures("fake_backend")
def test_others_go_on_while_a_large_screen_is_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = hold_up(store, "_smaller", monkeypatch)
    with Run.write(tmp_path, "") as run:
        asyncio.run(move_on(trial(LARGE_SIZE, run), *events))
        (played,) = run.trajectories()
        assert played.score == 1.0
        for name in (played.start, *(step.observation for step in played.steps if step.observation)):
            assert decode(run.image(name).image).shape == (420, 644, 3)


@pytest.mark.usefixtures("fake_backend")
def test_small_screens_are_encoded_in_the_order_of_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = watch(store, "_smaller", monkeypatch)
    with Run.write(tmp_path, "") as run:
        asyncio.run(trial(SMALL_SIZE, run))
    assert calls == [True] * 2


def test_a_large_screen_of_a_whole_group_is_encoded_once_even_if_the_first_member_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = watch(store, "_smaller", monkeypatch)
    begun, moved = hold_up(store, "_smaller", monkeypatch)
    screen = plain.screen(1, LARGE_SIZE)

    async def keep(run: Run) -> list[Any]:
        members = [asyncio.create_task(run.keep_image(screen)) for _ in range(3)]
        await heard(begun)
        members[0].cancel()
        await asyncio.sleep(0)
        moved.set()
        ends = await asyncio.gather(*members, return_exceptions=True)
        await run.keep_image(screen)
        return ends

    with Run.write(tmp_path, "") as run:
        first, *others = asyncio.run(keep(run))
        assert isinstance(first, asyncio.CancelledError) and others == [None, None]
        assert run.image(screen.hash).hash == screen.hash
    assert calls == [False]


@pytest.mark.parametrize(("size", "on_the_loop"), [((1920, 1080), False), (SMALL_SIZE, True)])
def test_a_full_hd_episode_leaves_the_loop_alone_and_a_small_one_stays_in_order(
    size: tuple[int, int], on_the_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From pocket's pixels into the store and to the model, in a whole episode without the model's layers."""
    monkeypatch.setattr(loop, "TASKS", 1)
    work = [
        (pixels, "encode_png"),
        (pixels, "pixel_hash"),
        (store, "_smaller"),
        (screens, "decode"),
        (screens, "resized"),
    ]
    calls = {f"{owner.__name__}.{name}": watch(owner, name, monkeypatch) for owner, name in work}
    loop.loop_ms_a_step("pocket", size, load_tasks("pocket", "demo"), 0)
    assert {name: set(where) for name, where in calls.items()} == {name: {on_the_loop} for name in calls}


def test_what_a_thread_observes_is_what_the_environment_gives() -> None:
    task = load_tasks("pocket", "demo")[0]
    env = make("pocket", size=(1280, 720))

    async def leased() -> list[Observation]:
        async with LocalPool(partial(make, "pocket", size=(1280, 720)), 1) as pool, pool.lease() as lease:
            seen = [await lease.reset(task, 3), await lease.step(Click(9, 9))]
            with pytest.raises(ActionError, match="unknown key"):
                await lease.step(Hotkey(("no such key",)))
            return [*seen, await lease.step(Finish())]

    assert asyncio.run(leased()) == [env.reset(task, 3), env.step(Click(9, 9)), env.step(Finish())]


# A screenshot on its way to the model


async def ask(engine: LocalEngine, session: str, screen: Observation) -> None:
    prompt = plain.add_screen(engine.checkpoint, Prompt((1, 2), ()), "", screen)
    await engine.generate(session, prompt, Sampling(max_tokens=3), 0)


def test_others_go_on_while_a_large_screen_is_decoded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(load_checkpoint(folder, "cpu"))
    decoding, (begun, moved) = watch(screens, "resized", monkeypatch), hold_up(screens, "decode", monkeypatch)

    async def work() -> None:
        one = asyncio.create_task(ask(engine, "a", plain.screen(1, LARGE_SIZE)))
        await heard(begun)
        moved.set()
        await asyncio.gather(one, ask(engine, "b", plain.screen(2, LARGE_SIZE)), ask(engine, "c", plain.screen(3)))

    asyncio.run(work())
    assert sorted(decoding) == [False, False, True]  # the small one on the loop


def test_a_turn_with_a_large_screen_does_not_hold_up_those_under_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(load_checkpoint(folder, "cpu"))
    begun, moved = hold_up(screens, "_pixels", monkeypatch)

    async def work() -> None:
        text = asyncio.create_task(engine.generate("a", Prompt((1, 2), ()), Sampling(max_tokens=50), 0))
        while not engine._active:
            await asyncio.sleep(0)
        late = asyncio.create_task(ask(engine, "b", plain.screen(1, LARGE_SIZE)))
        await text
        await heard(begun)
        assert not late.done()
        moved.set()
        await late

    asyncio.run(work())


def test_a_cancelled_turn_leaves_nothing_decoded_behind(folder: Path) -> None:
    engine = LocalEngine(load_checkpoint(folder, "cpu"))

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await ask(engine, "a", plain.screen(1, LARGE_SIZE))
        await ask(engine, "b", plain.screen(2, LARGE_SIZE))

    asyncio.run(work())
    engine.screens._threads.shutdown()
    assert not engine.screens._decoding


def test_the_limit_lies_between_pockets_screens_and_those_of_real_desktops() -> None:
    assert 448 * 280 < SMALL < 1280 * 720


# Weights


def test_turns_go_on_while_weights_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = LocalEngine(load_checkpoint(folder, "cpu"))
    begun, moved = hold_up(local, "load_model", monkeypatch)

    async def work() -> None:
        loading = asyncio.create_task(engine.load(1, Weights(folder)))
        await heard(begun)
        await ask(engine, "a", plain.screen(1))
        assert (engine.version, loading.done()) == (0, False)
        moved.set()
        await loading

    asyncio.run(work())
    assert engine.version == 1


def test_what_a_model_sees_does_not_depend_on_the_type_of_weights_that_are_read_meanwhile() -> None:
    """Who makes a model in bf16 changes torch's default type for all threads, for a moment."""
    pixels = torch.randint(0, 256, (1, 56, 56, 3), dtype=torch.uint8)
    expected = images.patches(pixels, QWEN2_5)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(images.patches(pixels, QWEN2_5), expected)
    finally:
        torch.set_default_dtype(before)


# Work that must not be left halfway


def test_who_cancels_has_to_wait_however_often_and_is_heard_at_the_next_pause() -> None:
    begun, moved = threading.Event(), threading.Event()
    reached: list[str] = []

    def work() -> str:
        begun.set()
        assert moved.wait(LONG)
        return "done"

    async def steps() -> None:
        reached.append(await beside(work))
        reached.append("no pause yet")
        await asyncio.sleep(0)
        reached.append("never")

    async def main() -> None:
        task = asyncio.create_task(steps())
        await heard(begun)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        moved.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert reached == ["done", "no pause yet"]


def test_what_goes_wrong_beside_is_told() -> None:
    with pytest.raises(ZeroDivisionError):
        asyncio.run(beside(lambda: 1 // 0))
