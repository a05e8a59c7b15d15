"""An agent that ends or breaks its computer scores 0: in every pool, in training and in evaluation."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from bad_env import BadEnv, bad_task
from test_pool import KINDS, children, no_worker_is_left, solve  # noqa: F401

from arpo.agent.actions import Action, Click, Finish, Wait
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player, well_formed
from arpo.algorithms.advantages import failed, group_advantages
from arpo.config import EnvConfig, EvalConfig
from arpo.engines.base import Sampling
from arpo.engines.scripted import ScriptedEngine, byte_vocabulary
from arpo.envs.base import Env, Lease
from arpo.envs.check import check
from arpo.envs.pool import LocalPool
from arpo.errors import EnvError, Ruined
from arpo.evaluation.run import Evaluation, evaluate
from arpo.runs.store import Run
from arpo.training.metrics import episode_metrics
from arpo.types import Group, Outcome, Summary, Task, Trajectory
from fake_env import BUTTON, TASKS, make_task

VOCABULARY = byte_vocabulary()
DIALECT = UITars(VOCABULARY)


def pressing(task: Task, lease: Lease) -> Agent:
    """Presses the button and finishes."""
    turns: Iterator[Action] = iter((Click(*BUTTON), Finish()))

    def act(env: object, seed: int) -> tuple[str, Action]:
        return "So.", next(turns)

    engine = ScriptedEngine(act, lease, DIALECT, VOCABULARY)
    return Agent(engine, DIALECT, Sampling(max_tokens=512))


def evaluated(tasks: list[Task], folder: Path, settings: EnvConfig) -> tuple[Evaluation, Player]:
    async def play() -> tuple[Evaluation, Player]:
        with Run.write(folder, "") as run:
            async with LocalPool(BadEnv, 1, settings) as pool:
                player = Player(pool, run)
                return await evaluate(pressing, tasks, EvalConfig(trials=12, n_envs=1), player, run), player

    return asyncio.run(play())


@KINDS
@pytest.mark.attack("agent")
@pytest.mark.parametrize(("call", "steps"), [("step", 1), ("score", 2)])
def test_who_breaks_its_computer_scores_0_each_time_and_its_task_is_not_given_up(
    settings: EnvConfig, call: str, steps: int, tmp_path: Path
) -> None:
    tasks = [bad_task("press-1", **{call: "ruin"}), make_task("press-2")]
    evaluation, player = evaluated(tasks, tmp_path, settings)
    assert (evaluation.errors, evaluation.crashed, player.given_up) == (0, [], set())
    assert evaluation.outcomes == {"finished": 12, "ruined": 12}
    assert evaluation.success()[0] == 0.5
    with Run.read(tmp_path) as run:
        ruined = list(run.trajectories(task_id="press-1"))
    assert {one.attempt for one in ruined} == {0}  # never played again
    assert {(one.outcome, one.score, one.reward) for one in ruined} == {(Outcome.RUINED, 0.0, 0.0)}
    assert {len(one.steps) for one in ruined} == {steps}
    assert {one.steps[0].action for one in ruined} == {Click(*BUTTON)}  # what did it is the last step, and is known


@KINDS
@pytest.mark.parametrize("call", ["step", "score"])
def test_a_ruined_computer_is_replaced(settings: EnvConfig, call: str) -> None:
    made: list[BadEnv] = []

    def make() -> Env:
        made.append(BadEnv())
        return made[-1]

    async def use() -> None:
        async with LocalPool(BadEnv if settings.workers else make, 1, settings) as pool:
            for _ in range(4):  # more than the starts that may fail
                async with pool.lease() as env:
                    with pytest.raises(Ruined, match=r"^the agent has ended its display$"):
                        await solve(env, bad_task(**{call: "ruin"}))
                    assert not env.alive
                    assert children(os.getpid()) == set()
            async with pool.lease() as env:
                assert await solve(env, make_task("press-2")) == 1.0

    asyncio.run(use())
    assert len(made) == (0 if settings.workers else 5)
    assert all(env.task is None for env in made)  # closed


@KINDS
def test_before_an_agent_has_acted_nothing_is_its_doing(settings: EnvConfig) -> None:
    async def use() -> None:
        async with LocalPool(BadEnv, 1, settings) as pool, pool.lease() as env:
            with pytest.raises(EnvError, match=r"^reset blames the agent: the agent has ended its display$"):
                await env.reset(bad_task(reset="ruin"), 0)

    asyncio.run(use())


def stillborn() -> Env:
    raise Ruined("the agent has ended its display")


def test_a_computer_that_is_ruined_as_it_starts_cannot_be_started() -> None:
    async def use() -> None:
        async with LocalPool(stillborn, 1) as pool:
            with pytest.raises(EnvError, match="there is no environment any more"):
                async with pool.lease():
                    pass

    asyncio.run(use())


class BreaksAtAnything(BadEnv):
    def step(self, action: Action) -> object:  # type: ignore[override]
        if isinstance(action, Wait):
            raise Ruined("the agent has ended its display")
        return super().step(action)


def test_a_backend_that_calls_ordinary_actions_ruin_does_not_keep_its_promises() -> None:
    results = check("fake", BreaksAtAnything, list(TASKS.values()), deterministic=True)  # type: ignore[arg-type]
    broken = [result.detail for result in results if not result.ok]
    assert "Ruined: the agent has ended its display" in broken


def stored(folder: Path, task: Task) -> list[Trajectory]:
    evaluated([task], folder, EnvConfig())
    with Run.read(folder) as run:
        return list(run.trajectories())


def test_training_counts_it_as_a_failure(tmp_path: Path) -> None:
    ruined, *_ = stored(tmp_path / "ruined", bad_task("press-1", step="ruin"))
    solved, *_ = stored(tmp_path / "solved", make_task("press-1"))
    assert failed(Group("press-1", (ruined, ruined)), 1.0)
    assert group_advantages(Group("press-1", (solved, ruined))) == [1.0, -1.0]
    played = [
        Summary("a", "press-1", 0, "rollout", 0, 1, one.outcome, one.score, one.reward, 1) for one in (solved, ruined)
    ]
    metrics = episode_metrics(played, [], [], 1.0)
    assert (metrics["success"], metrics["episodes"], metrics["errors"], metrics["ruined"]) == (0.5, 2, 0, 1)


@pytest.mark.attack("agent")
def test_breaking_the_computer_does_not_spare_the_penalty_for_a_reply_that_is_no_action(tmp_path: Path) -> None:
    ruined, *_ = stored(tmp_path, bad_task("press-1", score="ruin"))
    unreadable = dataclasses.replace(ruined.steps[-1], action=None, parse_error="the reply has no 'Action:'")
    mute = dataclasses.replace(ruined, steps=(*ruined.steps[:-1], unreadable))
    reward = partial(well_formed(-0.5), make_task("press-1"))
    assert (reward(ruined), reward(mute)) == (0.0, -0.5)
