"""The pool: leases on environments here and in workers, and whatever environments do, nothing hangs or is left."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from bad_env import BadEnv, Noisy, Stillborn, Untidy, bad_task

from arpo.agent.actions import Click, Finish, Wait
from arpo.config import EnvConfig
from arpo.envs.base import Env
from arpo.envs.pocket import PocketEnv
from arpo.envs.pool import LocalPool, Slot, make_pool
from arpo.errors import ActionError, ArpoError, ConfigError, EnvError, TaskError
from arpo.types import Observation, Task
from fake_env import BUTTON, FakeEnv, make_task

APART = EnvConfig(workers=1)
KINDS = pytest.mark.parametrize("settings", [EnvConfig(), APART], ids=["here", "apart"])


def children(of: int) -> set[int]:
    """The process ids of the worker processes of a process."""
    listed = subprocess.run(["ps", "-axwwo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid) for pid, parent, args in rows if int(parent) == of and "pool.serve" in args}


def gone(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return state.strip()[:1] in ("", "Z")  # Z: it has ended, and nobody asked how


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    yield
    assert children(os.getpid()) == set()


def impatient(env: Slot, **limits: float) -> None:
    """Shorten limits of one that is running already: a start has the limit of a reset, and takes longer."""
    env._settings = env._settings.model_copy(update=limits)


async def solve(env: Slot, task: Task) -> float:
    await env.reset(task, 0)
    await env.step(Click(*BUTTON))
    await env.step(Finish())
    return await env.score()


# Calls


@KINDS
def test_a_lease_does_what_the_environment_does(settings: EnvConfig) -> None:
    async def use() -> tuple[list[Observation], float]:
        async with LocalPool(FakeEnv, 1, settings) as pool, pool.lease() as env:
            assert env.size == (96, 64)
            seen = [await env.reset(make_task("press-1"), 4), await env.step(Click(*BUTTON)), await env.step(Finish())]
            return seen, await env.score()

    here = FakeEnv()
    seen = [here.reset(make_task("press-1"), 4), here.step(Click(*BUTTON)), here.step(Finish())]
    assert asyncio.run(use()) == (seen, 1.0)


@KINDS
@pytest.mark.parametrize(
    ("task", "error"),
    [(make_task("press-1"), ActionError), (bad_task(step="refuse"), TaskError)],
)
def test_what_the_agent_or_the_task_did_wrong_comes_as_it_is_and_costs_no_environment(
    settings: EnvConfig, task: Task, error: type[ArpoError]
) -> None:
    async def use() -> None:
        async with LocalPool(BadEnv, 1, settings) as pool, pool.lease() as env:
            await env.reset(task, 0)
            workers = children(os.getpid())
            with pytest.raises(error, match=r"^\(500, 0\) is off the 96x64 screen$|^there is no such page$"):
                await env.step(Click(500, 0))
            assert env.alive
            assert await env.score() == 0.0
            assert await solve(env, make_task("press-2")) == 1.0
            assert children(os.getpid()) == workers and len(workers) == settings.workers

    asyncio.run(use())


@KINDS
@pytest.mark.parametrize(
    ("call", "manner", "reason"),
    [
        ("reset", "raise", "^ZeroDivisionError: no such number$"),
        ("step", "raise", "^ZeroDivisionError: no such number$"),
        ("score", "raise", "^ZeroDivisionError: no such number$"),
        ("step", "odd", "^RuntimeError: <function"),
        ("step", "fail", "^the display is gone$"),
    ],
)
def test_an_exception_of_the_backend_is_machinery_and_the_next_lease_has_another(
    settings: EnvConfig, call: str, manner: str, reason: str
) -> None:
    asyncio.run(break_and_go_on(settings, bad_task(**{call: manner}), reason))


@pytest.mark.parametrize(
    ("call", "manner", "reason"),
    [
        ("reset", "hang", "^reset took more than 0.3 s$"),
        ("step", "hang", "^step took more than 0.3 s$"),
        ("score", "hang", "^score took more than 0.3 s$"),
        ("step", "stop", "^step took more than 0.3 s$"),
        ("step", "crash", "^the worker process ended in step, status -11$"),
        ("score", "exit", "^the worker process ended in score, status 3$"),
    ],
)
def test_a_worker_that_hangs_or_dies_is_replaced(call: str, manner: str, reason: str) -> None:
    asyncio.run(break_and_go_on(APART, bad_task(**{call: manner}), reason))


async def break_and_go_on(settings: EnvConfig, task: Task, reason: str) -> None:
    made: list[FakeEnv] = []

    def make() -> Env:
        made.append(BadEnv())
        return made[-1]

    async with LocalPool(BadEnv if settings.workers else make, 1, settings) as pool:
        async with pool.lease() as env:
            assert await solve(env, make_task("press-2")) == 1.0
            before = children(os.getpid())
            limit = 0.3 if "took" in reason else 60.0
            impatient(env, reset_s=limit, step_s=limit, score_s=limit)
            with pytest.raises(EnvError, match=reason):
                await solve(env, task)
            assert not env.alive
            assert children(os.getpid()) == set()
            impatient(env, reset_s=60.0)
        async with pool.lease() as env:
            assert await solve(env, make_task("press-2")) == 1.0
        after = children(os.getpid())
        assert len(before) == len(after) == settings.workers and not before & after
    assert len(made) == (0 if settings.workers else 2)
    assert all(env.task is None for env in made)  # closed


def test_what_a_hanging_environment_started_ends_with_it() -> None:
    def sleepers() -> set[str]:
        listed = subprocess.run(["ps", "-axo", "sid=,args="], capture_output=True, text=True, check=True).stdout
        return {line.split()[0] for line in listed.splitlines() if "sleep 3600" in line}

    async def use() -> None:
        async with LocalPool(BadEnv, 1, APART) as pool, pool.lease() as env:
            await env.reset(bad_task(step="hang with a child"), 0)
            (worker,) = children(os.getpid())
            step = asyncio.create_task(env.step(Wait()))
            while str(worker) not in sleepers():
                await asyncio.sleep(0.02)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
            wait_until(lambda: str(worker) not in sleepers())

    asyncio.run(use())


def test_an_environment_that_failed_but_still_answers_is_closed_before_its_process_ends(tmp_path: Path) -> None:
    async def use() -> None:
        async with LocalPool(partial(Untidy, tmp_path / "told"), 1, APART) as pool, pool.lease() as env:
            await env.reset(make_task("press-1"), 0)
            with pytest.raises(EnvError, match="the display is gone"):
                await env.step(Wait())
            assert (tmp_path / "told").read_text() == "closed"

    asyncio.run(use())


def test_a_slow_environment_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    """The one goes on only when the other has."""

    async def use() -> None:
        async with LocalPool(BadEnv, 1, EnvConfig(workers=2)) as pool, pool.lease() as slow, pool.lease() as other:
            await slow.reset(bad_task(step=f"wait for:{tmp_path / 'file'}"), 0)
            step = asyncio.create_task(slow.step(Click(*BUTTON)))
            assert await solve(other, make_task("press-2")) == 1.0
            assert not step.done()
            (tmp_path / "file").touch()
            await step
            assert await slow.score() == 1.0

    asyncio.run(use())


def test_an_answer_that_came_while_this_process_was_busy_itself_is_in_time(tmp_path: Path) -> None:
    async def use() -> None:
        async with LocalPool(partial(Noisy, (1200, 900)), 1, APART) as pool, pool.lease() as env:
            await env.reset(bad_task(step=f"wait for:{tmp_path / 'file'}"), 0)
            impatient(env, step_s=0.3)
            step = asyncio.create_task(env.step(Click(*BUTTON)))
            await asyncio.sleep(0.1)
            (tmp_path / "file").touch()
            time.sleep(1)  # longer than the limit
            assert len((await step).image) > 3_000_000
            assert await env.score() == 1.0

    asyncio.run(use())


# Leases


@KINDS
def test_no_more_environments_than_places(settings: EnvConfig) -> None:
    held = 0
    most = 0

    async def user(pool: LocalPool) -> None:
        nonlocal held, most
        async with pool.lease() as env:
            held += 1
            most = max(most, held)
            assert await solve(env, make_task("press-1")) == 1.0
            await asyncio.sleep(0)
            held -= 1

    async def use() -> None:
        async with LocalPool(FakeEnv, 2, settings) as pool:
            await asyncio.gather(*(user(pool) for _ in range(7)))

    asyncio.run(use())
    assert most == (settings.workers or 2)


def test_a_lease_comes_back_when_its_user_is_cancelled_in_the_middle_of_a_call() -> None:
    async def use() -> None:
        async with LocalPool(BadEnv, 1, APART) as pool:

            async def hang() -> None:
                async with pool.lease() as env:
                    await env.reset(bad_task(step="hang"), 0)
                    stuck.set()
                    await env.step(Wait())

            stuck = asyncio.Event()
            user = asyncio.create_task(hang())
            await stuck.wait()
            before = children(os.getpid())
            user.cancel()
            with pytest.raises(asyncio.CancelledError):
                await user
            assert children(os.getpid()) == set()  # nobody knows what it was doing
            async with pool.lease() as env:
                assert await solve(env, make_task("press-1")) == 1.0
            after = children(os.getpid())
            assert len(before) == len(after) == 1 and before != after

    asyncio.run(use())


def test_a_lease_comes_back_when_its_user_is_cancelled_while_it_is_started() -> None:
    async def use() -> None:
        async with LocalPool(BadEnv, 1, APART) as pool:

            async def hold() -> None:
                async with pool.lease():
                    pass

            for wait in (0, 1, 5):
                user = asyncio.create_task(hold())
                for _ in range(wait):
                    await asyncio.sleep(0.01)
                user.cancel()
                await asyncio.wait([user])
                assert user.cancelled() and children(os.getpid()) == set()
            async with pool.lease() as env:
                assert await solve(env, make_task("press-1")) == 1.0

    asyncio.run(use())


def test_a_worker_that_dies_while_nobody_uses_it_is_replaced_unnoticed() -> None:
    async def use() -> None:
        async with LocalPool(BadEnv, 1, APART) as pool:
            async with pool.lease() as env:
                assert await solve(env, make_task("press-1")) == 1.0
            (worker,) = children(os.getpid())
            os.kill(worker, signal.SIGKILL)
            while env.alive:
                await asyncio.sleep(0.01)
            async with pool.lease() as env:
                assert await solve(env, make_task("press-1")) == 1.0

    asyncio.run(use())


# Starting


@KINDS
def test_a_setting_that_the_environment_refuses_is_the_users_error(settings: EnvConfig) -> None:
    async def use() -> None:
        async with make_pool(settings.model_copy(update={"size": (1, 1)}), 2) as pool:
            for _ in range(2):
                with pytest.raises(ConfigError, match="size 1x1: pocket draws screens from"):
                    async with pool.lease():
                        pass
            assert children(os.getpid()) == set()

    asyncio.run(use())


@pytest.mark.parametrize(
    ("settings", "error", "reason"),
    [
        (EnvConfig(), EnvError("no display"), "no display"),
        (EnvConfig(), KeyError("display"), "KeyError: 'display'"),
        (EnvConfig(workers=2), EnvError("no display"), "no display"),
        (EnvConfig(workers=2), KeyError("display"), "KeyError: 'display'"),
        (EnvConfig(workers=2), None, "the worker process ended in start, status 4"),
    ],
)
def test_where_no_environment_can_be_started_everybody_hears_so(
    settings: EnvConfig, error: Exception | None, reason: str
) -> None:
    async def use() -> list[BaseException | None]:
        async with LocalPool(partial(Stillborn, error), 2, settings) as pool:

            async def user() -> None:
                async with pool.lease():
                    raise AssertionError("leased what is not there")

            return await asyncio.gather(*(user() for _ in range(5)), return_exceptions=True)

    for found in asyncio.run(use()):
        assert isinstance(found, EnvError)
        assert str(found) == f"there is no environment any more: {reason}"


def test_a_place_is_closed_after_three_failed_starts_while_another_works(caplog: pytest.LogCaptureFixture) -> None:
    starts: list[bool] = []

    def make() -> Env:
        starts.append(len(starts) == 0)
        if not starts[-1]:
            raise EnvError("no memory")
        return FakeEnv()

    async def use() -> list[float]:
        async with LocalPool(make, 3) as pool:

            async def user() -> float:
                async with pool.lease() as env:
                    await asyncio.sleep(0)
                    return await solve(env, make_task("press-1"))

            return await asyncio.gather(*(user() for _ in range(6)))

    assert asyncio.run(use()) == [1.0] * 6
    assert starts == [True] + [False] * 6
    assert [record.message for record in caplog.records] == [
        f"an environment cannot be started: no memory; going on with {n} others" for n in (2, 1)
    ]


def test_failed_starts_close_a_place_only_where_they_come_in_a_row() -> None:
    failures = iter([True, True, False] * 4)

    def make() -> Env:
        if next(failures):
            raise EnvError("no memory")
        return BadEnv()

    async def use() -> None:
        async with LocalPool(make, 1) as pool:
            for _ in range(4):
                async with pool.lease() as env:
                    with pytest.raises(EnvError, match="display"):
                        await solve(env, bad_task(step="fail"))

    asyncio.run(use())


def test_who_still_has_a_lease_when_the_pool_is_closed_is_stopped() -> None:
    ends: list[str] = []

    async def use_for_ever(pool: LocalPool) -> None:
        async with pool.lease() as env:
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("stopped" if env.alive else "used what was closed")

    async def use() -> list[asyncio.Task[None]]:
        async with LocalPool(FakeEnv, 2) as pool:
            users = [asyncio.create_task(use_for_ever(pool)) for _ in range(3)]
            await asyncio.sleep(0.01)
        await asyncio.wait(users)
        return users

    first, second, third = asyncio.run(use())
    assert first.cancelled() and second.cancelled()
    assert str(third.exception()) == "there is no environment any more: the pool is closed"
    assert ends == ["stopped"] * 2


# The end


@pytest.mark.parametrize(
    ("doing", "ending", "sent"),
    [
        ("idle", "return", None),
        ("idle", "raise", None),
        ("hang", "raise", None),
        ("idle", "wait", signal.SIGINT),
        ("hang", "wait", signal.SIGINT),
        ("hang", "wait", signal.SIGTERM),
        ("idle", "wait", signal.SIGKILL),
        ("hang", "wait", signal.SIGKILL),
    ],
)
def test_no_worker_outlives_its_user(doing: str, ending: str, sent: signal.Signals | None, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("pool_user.py")), doing, ending]
    here = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        (tmp_path / "told").open("w") as told,
        subprocess.Popen(command, env=here, stdout=subprocess.PIPE, stderr=told, text=True) as user,
    ):
        assert user.stdout is not None
        assert user.stdout.readline() == "ready\n"
        workers = children(user.pid)
        if sent is not None:
            assert len(workers) == 2
            user.send_signal(sent)
        assert (user.wait() == 0) == (ending == "return")
    wait_until(lambda: all(map(gone, workers)))
    lines = (tmp_path / "told").read_text().splitlines()
    assert ("RuntimeError: this ends here" in lines) == (ending == "raise")  # and no other takes its place
    assert ("KeyboardInterrupt" in lines) == (sent == signal.SIGINT)


@KINDS
def test_a_closed_pool_starts_nothing(settings: EnvConfig) -> None:
    async def use() -> None:
        async with LocalPool(BadEnv, 1, settings) as pool:
            async with pool.lease() as env:
                await env.reset(bad_task(), 0)
                waiting = asyncio.create_task(pool.lease().__aenter__())
                await asyncio.sleep(0)
                await pool.__aexit__()
                assert not env.alive
            for late in (waiting, pool.lease().__aenter__()):
                with pytest.raises(EnvError, match="the pool is closed"):
                    await late

    asyncio.run(use())


def test_a_script_needs_the_environment_in_its_own_process() -> None:
    async def use() -> None:
        async with make_pool(EnvConfig(), 1) as pool, pool.lease() as env:
            assert isinstance(env.env, PocketEnv)
        async with LocalPool(FakeEnv, 1, APART) as pool, pool.lease() as env:
            with pytest.raises(ConfigError, match=r"env\.workers=0"):
                _ = env.env

    asyncio.run(use())


def test_an_exception_of_the_backend_is_told_in_full(caplog: pytest.LogCaptureFixture) -> None:
    async def use() -> None:
        async with LocalPool(BadEnv, 1).lease() as env:
            with pytest.raises(EnvError):
                await env.reset(bad_task(reset="raise"), 0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(use())
    assert "ZeroDivisionError: no such number" in caplog.text and "Traceback" in caplog.text
