"""Nodes that stop without a word, as behind a network that stalls, and a cluster that has none left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
from ray_nodes import SETTINGS, Nodes, actors, below, nodes, wait_until
from test_ray_pool import impatient, pool_of, solve
from test_ray_train import ARPO, GROUP, TASKS, UPDATES, ended, played, start

from arpo.agent.actions import Wait
from arpo.errors import EnvError
from arpo.runs.store import Run
from audit import audit
from fake_env import FakeEnv, make_task

__all__ = ["nodes"]
pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.heavy, pytest.mark.skipif(os.name == "nt", reason="signals")]


def test_what_ran_on_a_node_that_stalls_goes_on_elsewhere(nodes: Nodes) -> None:
    """Nothing of it answers, and no connection is closed: its processes are stopped."""

    async def use() -> None:
        async with pool_of(nodes, FakeEnv) as pool:
            try:
                async with pool.lease() as env:
                    await env.reset(make_task("press-1"), 0)
                    (stalled,) = [node for node in nodes.started[1:] if below(node.pid).keys() & actors(nodes)]
                    await asyncio.to_thread(nodes.start, desktop=2)
                    still = [*below(stalled.pid), stalled.pid]
                    for pid in still:
                        os.kill(pid, signal.SIGSTOP)
                    impatient(env, step_s=2.0)
                    with pytest.raises(EnvError, match=r"^step took more than 2 s$|ended in step"):
                        await env.step(Wait())
                    assert not env.alive
                async with asyncio.timeout(300), pool.lease() as env:
                    assert await solve(env) == 1.0
            finally:
                for pid in still:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    asyncio.run(use())
    wait_until(lambda: not actors(nodes))  # also there, where it goes on


def test_a_lost_node_costs_no_place_though_it_is_still_listed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It seems to have the most room; a place that fails to start there again and again would be given up."""
    import ray

    from arpo.envs import ray_pool

    async def use() -> None:
        async with pool_of(nodes, FakeEnv) as pool:
            monkeypatch.setattr(ray_pool, "LOOK_S", 3600.0)  # the list is not read again by itself
            async with pool.lease() as env:
                assert await solve(env) == 1.0
                assert actors(nodes) <= below(large.pid).keys()
            nodes.lose(large)
            while env.alive or sum(node["Alive"] for node in ray.nodes()) > others:
                await asyncio.sleep(0.2)
            async with pool.lease() as env:
                assert await solve(env) == 1.0

    others = sum(node["Alive"] for node in ray.nodes())
    large = nodes.start(desktop=9)
    asyncio.run(use())
    wait_until(lambda: not actors(nodes))


def test_where_no_node_is_left_the_run_waits_then_ends_in_one_line_and_is_resumed(nodes: Nodes, tmp_path: Path) -> None:
    run = start(tmp_path, f"env.ray={nodes.address}", "env.resource=desktop", "env.reset_s=20")
    try:
        wait_until(lambda: played(tmp_path) >= 5 or run.poll() is not None, 300)
        for node in nodes.started[1:]:
            if node.poll() is None:
                nodes.lose(node)
        told = ended(tmp_path, run)
    finally:
        run.kill()
    assert run.returncode == 2, told
    last = told.strip().splitlines()[-1]
    assert last.startswith("error: there is no environment any more: the cluster has 0 desktop and no room for more;")
    resume = f"arpo train --resume {tmp_path / 'run'} env.ray={nodes.address}"
    assert last.endswith(f"start nodes (docs/scaling.md); stopped; to resume: {resume}")
    before = played(tmp_path)
    nodes.start(desktop=2)
    command = [*ARPO, "train", "--resume", str(tmp_path / "run"), f"env.ray={nodes.address}", "env.reset_s=120"]
    here = os.environ | SETTINGS | {"OMP_NUM_THREADS": "1"}
    again = subprocess.run(command, env=here, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    with Run.read(tmp_path / "run") as stored:
        counts = audit(stored, UPDATES, TASKS, GROUP)
    assert counts["episodes"] == UPDATES * TASKS * GROUP >= before > 0
