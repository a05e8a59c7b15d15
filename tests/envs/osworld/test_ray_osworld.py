"""OSWorld's machines on the nodes of a Ray cluster, offered as ARPO's release does it; on the stand-in container."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # ray_nodes.py is there
from ray_nodes import SETTINGS, Nodes, below, wait_until
from test_osworld_docker import CLIENT, SIZE, STANDIN, TASK, gone, running

from arpo.agent.actions import Click, Finish
from arpo.config import EnvConfig
from arpo.envs.osworld.env import OsworldEnv
from arpo.errors import EnvError

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.heavy]


def make_env() -> OsworldEnv:
    return OsworldEnv(SIZE, osworld_python=str(CLIENT), docker=STANDIN)


@pytest.fixture(scope="module")
def nodes(engine: None) -> Iterator[Nodes]:
    """A head without machines, and two nodes with one each; they talk to the tests' Docker engine."""
    from ray._raylet import AuthenticationTokenLoader, Config

    if not CLIENT.exists():
        pytest.skip("OSWorld's client is not installed: make osworld-client")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (SETTINGS | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}).items():
            patch.setenv(name, value)
            patch.setitem(SETTINGS, name, value)
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
        cluster = Nodes()
        try:
            cluster.start()
            cluster.start(**{"docker:10.0.0.1": 1})
            cluster.start(**{"docker:10.0.0.2": 1})
            yield cluster
        finally:
            ray.shutdown()
            cluster.close()


def test_one_machine_a_unit_and_a_lost_nodes_machines_go_with_it(nodes: Nodes) -> None:
    from arpo.envs.ray_pool import RayPool

    async def play(pool: RayPool) -> float:
        async with pool.lease() as env:
            first = await env.reset(TASK, 0)
            assert (first.width, first.height) == SIZE
            assert (await env.step(Click(10, 20))).hash != first.hash
            await env.step(Finish())
            return await env.score()

    async def use() -> None:
        settings = EnvConfig(name="osworld", ray=nodes.address, workers=3)
        async with RayPool(partial(make_env), 1, settings) as pool:
            assert await asyncio.gather(*(play(pool) for _ in range(4))) == [1.0] * 4
            hosts = [sum(args.startswith("ray::Place") for args in below(node.pid).values()) for node in nodes.started]
            assert hosts == [0, 1, 1]
            async with pool.lease() as one, pool.lease() as other:
                for env in (one, other):
                    await env.reset(TASK, 0)
                nodes.lose(nodes.started[1])
                ends = await asyncio.gather(*(env.step(Click(1, 1)) for env in (one, other)), return_exceptions=True)
                lost = [end for end in ends if isinstance(end, BaseException)]
                assert len(lost) < 2 and all(isinstance(end, EnvError) for end in lost)
            with contextlib.suppress(EnvError):  # a process outlives its node for a moment, and may still be given out
                await play(pool)
            assert await play(pool) == 1.0

    asyncio.run(use())
    wait_until(lambda: not running())
    assert gone()
