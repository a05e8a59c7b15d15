"""Desktops in the pool's workers: a lost one is tried again, what the agent breaks is scored, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from test_desktop_env import make_task
from traces import patient, wait_until

from arpo.agent.actions import Click, Finish, Type
from arpo.config import EnvConfig
from arpo.envs.base import Lease
from arpo.envs.pool import LocalPool
from arpo.errors import EnvError

pytestmark = pytest.mark.desktop("mousepad", "xterm")
SETTINGS = EnvConfig(name="desktop", size=(1280, 720), workers=2)


def below(pid: int) -> list[tuple[int, str]]:
    """Every process that one has started, with its name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(") ")
        except OSError:
            continue  # it has ended
        if int(rest.split()[1]) == pid:
            found += [(int(folder.name), name), *below(int(folder.name))]
    return found


def kill(lease: Lease, name: str) -> None:
    (worker,) = {lease._process.pid}  # type: ignore[attr-defined]
    victims = [worker] if name == "worker" else [pid for pid, called in below(worker) if called == name]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert victims


async def attempt(env: Lease, broken: str | None) -> float:
    await env.reset(make_task("xterm"), 0)
    await env.step(Type("echo yes > done\n"))
    if broken:
        kill(env, broken)
    await env.step(Click(640, 700))
    await env.step(Finish())
    return await env.score()


def play(episodes: int, broken: str) -> list[float | None]:
    """The scores of episodes, each in a lease, in each of which something is killed; then of as many without."""
    before = len(below(os.getpid()))

    async def leased(pool: LocalPool, broken: str | None) -> float | None:
        async with pool.lease() as env:
            try:
                return await attempt(env, broken)
            except EnvError:
                return None

    async def run() -> list[float | None]:
        async with LocalPool(patient, 2, SETTINGS) as pool:
            killed = await asyncio.gather(*(leased(pool, broken) for _ in range(episodes)))
            return [*killed, *await asyncio.gather(*(leased(pool, None) for _ in range(episodes)))]

    scores = asyncio.run(run())
    wait_until(lambda: len(below(os.getpid())) == before, lambda: below(os.getpid()))
    return scores


@pytest.mark.parametrize("broken", ["Xvfb", "worker"])
def test_an_episode_whose_machine_died_has_no_score_and_the_next_has_a_new_machine(broken: str) -> None:
    assert play(3, broken) == [None, None, None, 1, 1, 1]


def test_an_application_that_died_is_the_agents_world() -> None:
    assert play(1, "xterm") == [1, 1]
