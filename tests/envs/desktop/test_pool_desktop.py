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
from arpo.envs.pool import Job, Lease, Pool
from arpo.errors import EnvError
from arpo.types import Outcome

pytestmark = pytest.mark.desktop("mousepad", "xterm")
SETTINGS = EnvConfig(name="desktop", size=(1280, 720), workers=2)


class Episode:
    def __init__(self, outcome: Outcome, score: float | None = None) -> None:
        self.outcome, self.score = outcome, score


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


def play(*jobs: Job, broken: str) -> list[tuple[Job, Episode | None]]:
    """Play episodes in each of whose first attempts something is killed."""
    done: list[tuple[Job, Episode | None]] = []
    before = len(below(os.getpid()))

    async def attempt(env: Lease, job: Job) -> Episode:
        try:
            await env.reset(job.task, 0)
            await env.step(Type("echo yes > done\n"))
            if job.attempt == 0:
                kill(env, broken)
            await env.step(Click(640, 700))
            await env.step(Finish())
            return Episode(Outcome.FINISHED, await env.score())
        except EnvError:
            return Episode(Outcome.ENV_ERROR)

    async def run() -> None:
        async with Pool(patient, 2, SETTINGS) as pool:
            collect = lambda job, played: done.append((job, played))  # noqa: E731
            await pool.play(jobs, 2, stored=lambda job: None, attempt=attempt, done=collect)

    asyncio.run(run())
    wait_until(lambda: len(below(os.getpid())) == before, lambda: below(os.getpid()))
    return done


@pytest.mark.parametrize("broken", ["Xvfb", "worker"])
def test_an_episode_whose_machine_died_is_tried_again_and_then_scored(broken: str) -> None:
    done = play(*(Job(make_task("xterm", name=f"task-{i}"), i) for i in range(3)), broken=broken)
    assert sorted(job.index for job, _ in done) == [0, 1, 2]
    assert all(job.attempt == 1 and played is not None and played.score == 1 for job, played in done)


def test_an_application_that_died_is_the_agents_world() -> None:
    ((job, played),) = play(Job(make_task("xterm"), 0), broken="xterm")
    assert played is not None
    assert (job.attempt, played.outcome, played.score) == (0, Outcome.FINISHED, 1)
