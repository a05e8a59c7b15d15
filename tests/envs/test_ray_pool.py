"""Environments on the nodes of a Ray cluster, a real one: whatever its processes do, nothing hangs, is lost or left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bad_env import BadEnv, Noisy, Stillborn, Untidy, bad_task
from ray_nodes import SETTINGS, Nodes, actors, below, nodes, wait_until

from arpo.agent.actions import Click, Finish, Wait
from arpo.config import EnvConfig
from arpo.envs import pool as pools
from arpo.envs.base import Env
from arpo.envs.pool import Slot, SlotPool, make_pool
from arpo.errors import ActionError, ConfigError, EnvError, Ruined, TaskError
from arpo.types import Observation, Task
from fake_env import BUTTON, FakeEnv, make_task

__all__ = ["nodes"]  # the cluster of these tests
ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.skipif(os.name == "nt", reason="signals")]


@pytest.fixture(autouse=True)
def no_actor_is_left(nodes: Nodes) -> Iterator[None]:
    yield
    wait_until(lambda: not actors(nodes))


def pool_of(nodes: Nodes, make_env: Callable[[], Env] = BadEnv, workers: int = 1, **settings: Any) -> SlotPool:
    from arpo.envs.ray_pool import RayPool

    return RayPool(make_env, 1, EnvConfig(ray=nodes.address, workers=workers, **{"resource": "desktop"} | settings))


def impatient(env: Slot, **limits: float) -> None:
    env._settings = env._settings.model_copy(update=limits)


async def solve(env: Slot, task: Task | None = None) -> float:
    await env.reset(task or make_task("press-2"), 0)
    await env.step(Click(*BUTTON))
    await env.step(Finish())
    return await env.score()


# Calls


def test_a_lease_does_what_the_environment_does(nodes: Nodes) -> None:
    async def use() -> tuple[list[Observation], float]:
        async with pool_of(nodes, FakeEnv) as pool, pool.lease() as env:
            assert env.size == (96, 64)
            seen = [await env.reset(make_task("press-1"), 4), await env.step(Click(*BUTTON)), await env.step(Finish())]
            return seen, await env.score()

    here = FakeEnv()
    seen = [here.reset(make_task("press-1"), 4), here.step(Click(*BUTTON)), here.step(Finish())]
    assert asyncio.run(use()) == (seen, 1.0)


def test_what_is_not_the_machinerys_fault_comes_as_it_is(nodes: Nodes) -> None:
    async def use() -> None:
        async with pool_of(nodes) as pool:
            async with pool.lease() as env:
                await env.reset(make_task("press-1"), 0)
                before = actors(nodes)
                with pytest.raises(ActionError, match=r"^\(500, 0\) is off the 96x64 screen$"):
                    await env.step(Click(500, 0))
                await env.reset(bad_task(step="refuse"), 0)
                with pytest.raises(TaskError, match=r"^there is no such page$"):
                    await env.step(Wait())
                assert await solve(env) == 1.0
                assert actors(nodes) == before and len(before) == 1
            async with pool.lease() as env:
                await env.reset(bad_task(step="ruin"), 0)
                with pytest.raises(Ruined, match=r"^the agent has ended its display$"):
                    await env.step(Wait())
                assert not env.alive
            with pytest.raises(ConfigError, match="looks behind the screen"):
                _ = env.env

    asyncio.run(use())


FAILURES = (
    ("reset", "raise", "^ZeroDivisionError: no such number$"),
    ("step", "odd", "^RuntimeError: <function"),
    ("step", "fail", "^the display is gone$"),
    ("step", "hang with a child", "^step took more than 0.5 s$"),
    ("score", "stop", "^score took more than 0.5 s$"),
    ("step", "crash", "^its process on node [0-9.]+ ended in step: The actor is dead because"),
    ("score", "exit", "^its process on node [0-9.]+ ended in score: "),
)


def test_what_fails_is_machinery_and_the_next_lease_has_another(nodes: Nodes) -> None:
    async def use() -> None:
        async with pool_of(nodes) as pool:
            for call, manner, reason in FAILURES:
                async with pool.lease() as env:
                    impatient(env, reset_s=60.0, step_s=60.0, score_s=60.0)
                    assert await solve(env) == 1.0
                    before = actors(nodes)
                    if "took" in reason:
                        impatient(env, step_s=0.5, score_s=0.5)
                    with pytest.raises(EnvError, match=reason):
                        await solve(env, bad_task(**{call: manner}))
                    assert not env.alive
                wait_until(lambda gone=before: not gone & actors(nodes))  # type: ignore[misc]
            async with pool.lease() as env:
                assert await solve(env) == 1.0
            assert not any("sleep 3600" in args for node in nodes.started for args in below(node.pid).values())

    asyncio.run(use())


def test_an_environment_that_still_answers_is_closed_before_its_process_ends(nodes: Nodes, tmp_path: Path) -> None:
    async def use() -> None:
        async with pool_of(nodes, partial(Untidy, tmp_path / "told")) as pool, pool.lease() as env:
            await env.reset(make_task("press-1"), 0)
            with pytest.raises(EnvError, match="the display is gone"):
                await env.step(Wait())
            assert (tmp_path / "told").read_text() == "closed"

    asyncio.run(use())


def test_large_screens_travel_too(nodes: Nodes) -> None:
    async def use() -> None:
        async with pool_of(nodes, partial(Noisy, (1200, 900))) as pool, pool.lease() as env:
            for seed in range(5):
                assert len((await env.reset(bad_task(), seed)).image) > 3_000_000

    asyncio.run(use())


def test_a_user_that_is_cancelled_in_the_middle_of_a_call_leaves_nothing(nodes: Nodes) -> None:
    async def use() -> None:
        async with pool_of(nodes) as pool:

            async def hang() -> None:
                async with pool.lease() as env:
                    await env.reset(bad_task(step="hang"), 0)
                    stuck.set()
                    await env.step(Wait())

            stuck = asyncio.Event()
            user = asyncio.create_task(hang())
            await stuck.wait()
            before = actors(nodes)
            user.cancel()
            with pytest.raises(asyncio.CancelledError):
                await user
            async with pool.lease() as env:
                assert await solve(env) == 1.0
                wait_until(lambda: not before & actors(nodes))

    asyncio.run(use())


# Places


def test_a_setting_that_the_environment_refuses_is_the_users_error(nodes: Nodes) -> None:
    async def use() -> None:
        async with make_pool(EnvConfig(ray=nodes.address, size=(1, 1)), 2) as pool:
            with pytest.raises(ConfigError, match="size 1x1: pocket draws screens from"):
                async with pool.lease():
                    pass

    asyncio.run(use())


def test_where_no_environment_can_be_started_everybody_hears_so(nodes: Nodes) -> None:
    async def use() -> list[BaseException | None]:
        async with pool_of(nodes, partial(Stillborn, EnvError("no display")), workers=2) as pool:

            async def user() -> None:
                async with pool.lease():
                    raise AssertionError("leased what is not there")

            return await asyncio.gather(*(user() for _ in range(3)), return_exceptions=True)

    for found in asyncio.run(use()):
        assert isinstance(found, EnvError) and str(found) == "there is no environment any more: no display"


def test_an_actor_that_is_killed_is_replaced(nodes: Nodes, tmp_path: Path) -> None:
    async def use() -> None:
        async with pool_of(nodes) as pool:
            async with pool.lease() as env:
                assert await solve(env) == 1.0
            (idle,) = actors(nodes)
            os.kill(idle, signal.SIGKILL)
            while env.alive:
                await asyncio.sleep(0.02)
            async with pool.lease() as env:
                assert await solve(env) == 1.0  # unnoticed
                await env.reset(bad_task(step=f"wait for:{tmp_path / 'never'}"), 0)
                step = asyncio.create_task(env.step(Wait()))
                await asyncio.sleep(0.2)
                (busy,) = actors(nodes)
                os.kill(busy, signal.SIGKILL)
                with pytest.raises(EnvError, match="ended in step"):
                    await step
            async with pool.lease() as env:
                assert await solve(env) == 1.0
            assert not {idle, busy} & actors(nodes)

    asyncio.run(use())


@pytest.mark.heavy
def test_places_are_what_nodes_offer_and_nodes_join_and_leave(
    nodes: Nodes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four are asked for where two fit; a node of the release's form joins; another goes with its environments."""
    from arpo.envs import ray_pool

    monkeypatch.setattr(ray_pool._Remote, "room_s", 0.5)
    held: set[int] = set()
    most = 0

    async def user(pool: SlotPool, rounds: int) -> list[float]:
        nonlocal most
        scores: list[float] = []
        while len(scores) < rounds:
            try:
                async with pool.lease() as env:
                    held.add(id(env))
                    most = max(most, len(held))
                    scores.append(await solve(env))
                    await asyncio.sleep(0.05)
                    held.discard(id(env))
            except EnvError as error:
                held.clear()
                assert "ended in" in str(error)
        return scores

    async def use() -> None:
        async with pool_of(nodes, FakeEnv, workers=4) as pool:
            assert await asyncio.gather(*(user(pool, 3) for _ in range(4))) == [[1.0] * 3] * 4
            assert most <= len(actors(nodes)) == 2
            joined = await asyncio.to_thread(nodes.start, **{"desktop:10.0.0.7": 2})
            users = [asyncio.create_task(user(pool, 10**6)) for _ in range(4)]
            while most < 4:
                await asyncio.sleep(0.05)
            assert len(actors(nodes)) == 4
            nodes.lose(joined)
            await asyncio.sleep(3)
            while len(actors(nodes)) != 2:
                await asyncio.sleep(0.2)
            for one in users:
                one.cancel()
            await asyncio.wait(users)
            assert all(one.cancelled() for one in users)
            assert await asyncio.gather(*(user(pool, 3) for _ in range(4))) == [[1.0] * 3] * 4

    asyncio.run(use())
    first = caplog.records[0].message
    assert first == "the cluster has room for 2 of 4 environments; the others start when nodes with desktop join"


def test_an_environment_that_takes_nothing_runs_on_every_node(nodes: Nodes) -> None:
    async def use() -> None:
        async with make_pool(EnvConfig(ray=nodes.address, workers=4), 1) as pool:

            async def user() -> None:
                async with pool.lease() as env:
                    together.add(id(env))
                    while len(together) < 4:
                        await asyncio.sleep(0.02)

            together: set[int] = set()
            await asyncio.gather(*(user() for _ in range(4)))
            running = [node for node in nodes.started if node.poll() is None]
            has = [sum(args.startswith("ray::Place") for args in below(node.pid).values()) for node in running]
            assert sum(has) == 4 and min(has) > 0

    asyncio.run(use())


# What a user can do wrong


def test_no_node_with_the_resource(nodes: Nodes) -> None:
    with pytest.raises(ConfigError, match=r"no node offers docker, .* they offer CPU, desktop, memory, object_store"):
        make_pool(EnvConfig(ray=nodes.address, name="osworld", osworld_python="python"), 1)


def test_another_version_on_a_node(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    from arpo.envs import ray_pool

    monkeypatch.setattr(ray_pool, "HERE", "arpo 99.0, Python 3.99")

    async def use() -> None:
        async with pool_of(nodes) as pool, pool.lease():
            pass

    with pytest.raises(ConfigError, match=r"^env.ray=.*: node [0-9.]+ cannot be used: it has arpo .*, and this mach"):
        asyncio.run(use())


def test_ray_is_not_installed_or_not_to_be_reached_like_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"^env.ray=ray://here:1: run arpo on a node of the cluster"):
        pools.try_settings(EnvConfig(ray="ray://here:1"))
    with pytest.raises(ConfigError, match=r"^env.ray=127.0.0.1:1: no cluster: .*refused; on its head: ray start"):
        pools.try_settings(EnvConfig(ray="127.0.0.1:1"))
    monkeypatch.delattr("arpo.envs.ray_pool")
    monkeypatch.delitem(sys.modules, "arpo.envs.ray_pool")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"^env.ray: Ray is not installed; .* -m pip install 'arpo\[ray\]'$"):
        pools.try_settings(EnvConfig(ray="auto"))


def test_the_doctor_looks_at_every_node(nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    from arpo.envs.ray_doctor import check_cluster, print_cluster

    here = [node for node in nodes.started if node.poll() is None]
    checked = check_cluster(EnvConfig(ray=nodes.address))
    assert len(checked) == len(here) and {name for one in checked for name in one.offers} == {"CPU", "desktop"}
    assert [one.wrong for one in checked] == [[]] * len(here)
    assert all(abs(one.clock_s) < 1 and one.seen["memory_gb"] > 0 for one in checked)
    print_cluster(checked)
    assert "nothing is wrong" in capsys.readouterr().out
    first, *others = check_cluster(EnvConfig(ray=nodes.address, name="osworld"))
    assert [what for what, _ in first.wrong] == ["no node offers docker, which env.name=osworld needs"]
    assert not any(one.wrong for one in others)
    lacking = check_cluster(EnvConfig(ray=nodes.address, name="osworld", resource="desktop", osworld_image="no-such"))
    (told,) = [dict(one.wrong) for one in lacking if "desktop" in one.offers]
    assert told["env.osworld_python is missing"].startswith("make osworld-client")
    print_cluster(lacking)
    assert "env.osworld_python is missing; make osworld-client" in capsys.readouterr().out


# The end


@pytest.mark.heavy
@pytest.mark.parametrize(("doing", "sent"), [("hang", signal.SIGKILL), ("idle", signal.SIGINT)])
def test_no_actor_outlives_its_user(nodes: Nodes, doing: str, sent: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("pool_user.py")), doing, "wait", nodes.address]
    with (
        (tmp_path / "told").open("w") as told,
        subprocess.Popen(command, env=os.environ | SETTINGS, stdout=subprocess.PIPE, stderr=told, text=True) as user,
    ):
        assert user.stdout is not None
        assert user.stdout.readline() == "ready\n", (tmp_path / "told").read_text()
        assert len(actors(nodes)) == 2
        user.send_signal(sent)
        assert user.wait() != 0
    wait_until(lambda: not actors(nodes))
