"""Rollouts: whose turn it is, groups that can be compared, machines that fail, and nothing played twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guesser import settings
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent.actions import Action, Click, Finish
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.algorithms.advantages import failed
from arpo.algorithms.base import Algorithm, make_algorithm
from arpo.config import Config
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.scripted import byte_vocabulary
from arpo.envs.base import Env
from arpo.envs.pool import LocalPool
from arpo.errors import EngineError, EnvError, TaskError
from arpo.runs.store import Run
from arpo.seeds import EVALUATION, start_seed, training_seed
from arpo.training.metrics import episode_metrics
from arpo.training.rollouts import Rollouts
from arpo.types import Completion, Group, Observation, Outcome, Provenance, Task, Trajectory
from fake_env import BUTTON, FakeEnv, make_task

VOCABULARY = byte_vocabulary()
DIALECT = UITars(VOCABULARY)
TASKS = [make_task(f"press-{i}") for i in range(6)]
PRESS, MISS = Click(*BUTTON), Click(1, 1)


def sometimes(session: str, seed: int) -> Action:
    return PRESS if seed % 2 else MISS


class Engine:
    """Clicks where a policy says, then says that it is done; remembers what it was asked."""

    def __init__(self, policy: Callable[[str, int], Action] = sometimes) -> None:
        self.policy = policy
        self.asked: list[tuple[str, int]] = []

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        await asyncio.sleep(0)
        self.asked.append((session, seed))
        action = self.policy(session, seed) if len(prompt.images) == 1 else Finish()
        tokens = DIALECT.format("So.", action, (96, 64))
        return Completion(tokens, (0.0,) * len(tokens), VOCABULARY.decode(tokens), 0, 1.0, 1.0, "stop")

    async def release(self, session: str) -> None:
        pass

    async def load(self, version: int, weights: Weights) -> None:
        raise EngineError("there are no weights")


def rollouts_in(tasks: list[Task], engine: Engine, config: Config, run: Run | None, pool: LocalPool) -> Rollouts:
    """None for a run: of those of which only the tasks are asked for."""
    agent = Agent(engine, DIALECT, Sampling(max_tokens=config.train.max_tokens))
    return Rollouts(tasks, agent, config, run, Player(pool, run))  # type: ignore[arg-type]


def play(
    run: Run,
    config: Config,
    engine: Engine | None = None,
    update: int = 0,
    algorithm: Algorithm | None = None,
    make_env: Callable[[], Env] = FakeEnv,
    tasks: list[Task] = TASKS,
) -> list[Group]:
    judge = algorithm or make_algorithm(config.algorithm, config.seed)

    async def work() -> list[Group]:
        async with LocalPool(make_env, 5) as pool:
            return await rollouts_in(tasks, engine or Engine(), config, run, pool).groups(update, judge)

    return asyncio.run(work())


def turns(n_tasks: int, updates: int, seed: int = 0, **train: Any) -> list[list[str]]:
    """The tasks of each update, by id."""
    config = settings(**train).model_copy(update={"seed": seed})
    tasks = [make_task(f"press-{i}") for i in range(n_tasks)]
    rollouts = rollouts_in(tasks, Engine(), config, None, LocalPool(FakeEnv, 5))
    return [[task.id for task in rollouts.tasks_of(update)] for update in range(updates)]


# Whose turn it is


@given(n=st.integers(1, 9), count=st.integers(1, 11), seed=st.integers(0, 5))
def test_every_task_has_its_turn_once_a_pass_and_none_comes_twice_in_an_update(n: int, count: int, seed: int) -> None:
    updates = turns(n, 12, seed, rollout_tasks=count)
    assert all(len(update) == len(set(update)) == min(n, count) for update in updates)
    stream = [task for update in updates for task in update]
    for start in range(0, len(stream) - n + 1, n):
        assert len(set(stream[start : start + n])) == n


@given(n=st.integers(1, 9), count=st.integers(1, 11), update=st.integers(0, 20))
def test_the_tasks_of_an_update_do_not_depend_on_what_was_asked_before(n: int, count: int, update: int) -> None:
    config = settings(rollout_tasks=count)
    tasks = [make_task(f"press-{i}") for i in range(n)]
    fresh = rollouts_in(tasks, Engine(), config, None, LocalPool(FakeEnv, 5))
    assert [task.id for task in fresh.tasks_of(update)] == turns(n, update + 1, rollout_tasks=count)[update]


def test_every_pass_and_every_seed_has_its_own_order() -> None:
    passes = [tuple(update) for seed in (0, 1) for update in turns(20, 3, seed, rollout_tasks=20)]
    assert len(set(passes)) == 6


def remember(run: Run, task_id: str, scores: list[float], update: int = 0) -> None:
    """Episodes of an earlier update."""
    for member, score in enumerate(scores):
        provenance = Provenance("rollout", "r", update)
        name = f"u{update}.0-{task_id}-{member}-0"
        run.add(Trajectory(name, task_id, 0, 1, "", (), (), Outcome.FINISHED, score, score, provenance))


def test_a_curriculum_prefers_tasks_that_sometimes_succeed(tmp_path: Path) -> None:
    config = settings({"group": 8}, rollout_tasks=2, curriculum=True)
    with Run.write(tmp_path, "") as run:
        for i in range(6):
            remember(run, f"press-{i}", [[1.0] * 8, [0.0] * 8, [1.0, 0.0] * 4][i % 3])
        rollouts = rollouts_in(TASKS, Engine(), config, run, LocalPool(FakeEnv, 5))
        drawn = [[task.id for task in rollouts.tasks_of(update)] for update in range(1, 301)]
    assert all(len(set(update)) == 2 for update in drawn)
    times = Counter(task for update in drawn for task in update)
    for mixed in ("press-2", "press-5"):
        for other in ("press-0", "press-1", "press-3", "press-4"):
            assert times[mixed] > 2 * times[other] > 0


def test_parts_of_tasks_are_no_successes_to_a_curriculum(tmp_path: Path) -> None:
    config = settings({"group": 8, "partial": 0.9}, rollout_tasks=1, curriculum=True)
    with Run.write(tmp_path, "") as run:
        remember(run, "press-0", [0.45] * 8)
        remember(run, "press-1", [0.0] * 8)
        rollouts = rollouts_in(TASKS[:2], Engine(), config, run, LocalPool(FakeEnv, 5))
        drawn = Counter(rollouts.tasks_of(update)[0].id for update in range(1, 401))
    assert 150 < drawn["press-0"] < 250


def test_a_curriculum_goes_by_the_latest_scores_and_not_by_those_to_come(tmp_path: Path) -> None:
    config = settings({"group": 8}, rollout_tasks=1, curriculum=True)
    with Run.write(tmp_path, "") as run:
        rollouts = rollouts_in(TASKS[:2], Engine(), config, run, LocalPool(FakeEnv, 5))
        remember(run, "press-0", [0.0, 1.0] * 4, update=0)
        for update in (1, 2):
            remember(run, "press-0", [1.0] * 8, update)
        remember(run, "press-1", [1.0] * 8, update=1)
        remember(run, "press-1", [0.0, 1.0] * 4, update=2)
        chosen = Counter(rollouts.tasks_of(3, draw)[0].id for draw in range(200))
        assert chosen["press-1"] > 2 * chosen["press-0"]  # now the second is the one that is undecided
        before = Counter(rollouts.tasks_of(1, draw)[0].id for draw in range(200))
        assert 50 < before["press-0"] < 150  # the one is undecided, the other unknown


# Groups


def test_a_group_starts_from_one_screen_and_draws_its_own_replies(tmp_path: Path) -> None:
    engine = Engine()
    config = settings({"group": 4}, rollout_tasks=3)
    with Run.write(tmp_path, "") as run:
        updates = [play(run, config, engine, update) for update in (0, 1)]
    for groups in updates:
        assert len(groups) == 3 and len({group.task_id for group in groups}) == 3
        for group in groups:
            assert {member.task_id for member in group.trajectories} == {group.task_id}
            assert len({member.id for member in group.trajectories}) == 4
            assert len({(member.env_seed, member.start) for member in group.trajectories}) == 1
    seeds = [group.trajectories[0].env_seed for groups in updates for group in groups]
    assert len(set(seeds)) == 6 and max(seeds) < EVALUATION
    assert seeds == [training_seed(0, group.task_id, update) for update in (0, 1) for group in updates[update]]
    assert len({seed for _, seed in engine.asked}) == len(engine.asked)


class Older:
    """A method of somebody's, from before there was `seeks`."""

    def accept(self, group: Group) -> bool:
        return True


def test_only_groups_that_may_go_on_are_asked_whether_they_do(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        older: Any = Older()
        groups = play(run, settings({"group": 2}, rollout_tasks=3), algorithm=older)
    assert [len(group.trajectories) for group in groups] == [2] * 3


class Graded(FakeEnv):
    """Done in part by whoever misses the button, where the task pays for that."""

    def score(self) -> float:
        assert self.task is not None
        return super().score() or self.task.partial * 0.5


def test_a_setting_says_what_attempts_earn_that_did_a_part_and_the_tasks_stay_as_they_were(tmp_path: Path) -> None:
    for partial in (0.0, 0.4):
        config = settings({"group": 6, "partial": partial}, rollout_tasks=6)
        with Run.write(tmp_path / str(partial), "") as run:
            groups = play(run, config, make_env=Graded)
            played = list(run.summaries(source="rollout"))
        scores = Counter(member.score for group in groups for member in group.trajectories)
        assert set(scores) == {partial * 0.5, 1.0}
        assert episode_metrics(played, groups, groups, 1.0)["success"] == scores[1.0] / 36
        assert {group.task_id for group in groups if failed(group, 1.0)} == {
            group.task_id for group in groups if all(member.score != 1 for member in group.trajectories)
        }
    assert not any(task.partial for task in TASKS)


def with_starts(config: Config, n_starts: int, seed: int = 0) -> Config:
    return config.with_values({"env.starts": "fixed", "env.n_starts": n_starts, "seed": seed})


def test_a_fixed_start_is_the_same_in_every_update_attempt_and_run(tmp_path: Path) -> None:
    few = settings({"group": 3}, rollout_tasks=6)
    played: list[Trajectory] = []
    for seed in (0, 1):
        engine = Engine()
        with Run.write(tmp_path / str(seed), "") as run:
            for update in (0, 1):
                groups = play(run, with_starts(few, 1, seed), engine, update)
                played += [member for group in groups for member in group.trajectories]
        assert len({drawn for _, drawn in engine.asked}) == len(engine.asked)  # replies differ all the same
    assert len(played) == 2 * 2 * 6 * 3
    for task in TASKS:
        mine = [one for one in played if one.task_id == task.id]
        assert {one.env_seed for one in mine} == {start_seed(task.id, 0)}
        assert len({one.start for one in mine}) == 1
    assert len({one.env_seed for one in played}) == len(TASKS)


def test_a_group_has_one_of_its_tasks_starts_and_all_of_them_have_their_turn(tmp_path: Path) -> None:
    few = with_starts(settings({"group": 2}, rollout_tasks=6), 3)
    seeds: dict[str, list[int]] = {task.id: [] for task in TASKS}
    with Run.write(tmp_path, "") as run:
        for update in range(20):
            for group in play(run, few, update=update):
                (seed,) = {member.env_seed for member in group.trajectories}
                seeds[group.task_id].append(seed)
    for name, used in seeds.items():
        assert set(used) == {start_seed(name, start) for start in range(3)}
    firsts = {tuple(start_seed(name, start) == used[0] for start in range(3)) for name, used in seeds.items()}
    assert len(firsts) > 1  # not the first of each in the same update


def test_how_many_environments_work_changes_nothing(tmp_path: Path) -> None:
    found = []
    for n_envs in (1, 5):
        with Run.write(tmp_path / str(n_envs), "") as run:
            groups = play(run, settings({"group": 4}, rollout_tasks=3, n_envs=n_envs))
        replies = [
            (member.id, member.score, [step.completion.tokens for step in member.steps])
            for group in groups
            for member in group.trajectories
        ]
        found.append(replies)
    assert found[0] == found[1]
    assert {score for _, score, _ in found[0]} == {0.0, 1.0}


def test_what_is_in_the_store_is_not_played_again(tmp_path: Path) -> None:
    config = settings({"group": 3}, rollout_tasks=2)

    class Stopped(Exception):
        pass

    class Tired(Engine):
        """Gives up in the middle of the work."""

        async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
            if len(self.asked) == 7:
                raise Stopped
            return await super().generate(session, prompt, sampling, seed)

    with Run.write(tmp_path / "whole", "") as run:
        whole = play(run, config)
    with Run.write(tmp_path / "parts", "") as run:
        with pytest.raises(Stopped):  # itself, not a group of exceptions around it
            play(run, config, Tired())
        finished = {summary.id: summary for summary in run.summaries()}
        assert 0 < len(finished) < 6
        engine = Engine()
        groups = play(run, config, engine)
        assert not {session for session, _ in engine.asked} & set(finished)
        assert len(engine.asked) == 2 * (6 - len(finished))  # two turns each
        kept = {summary.id: summary for summary in run.summaries()}
        assert finished.items() <= kept.items()
        assert play(run, config, silent := Engine()) == groups
        assert silent.asked == []
    for one, other in zip(whole, groups, strict=True):
        assert [(t.id, t.score) for t in one.trajectories] == [(t.id, t.score) for t in other.trajectories]


# Machines that fail


class Flaky(FakeEnv):
    """Dies in its first step at press-1, as often as it is told."""

    deaths = 0
    made: list[Flaky] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.lost = False
        Flaky.made.append(self)

    def reset(self, task: Task, seed: int) -> Observation:
        assert not self.lost, "a lost machine was used again"
        return super().reset(task, seed)

    def step(self, action: Action) -> Observation:
        if Flaky.deaths and self.task is not None and self.task.id == "press-1":
            Flaky.deaths -= 1
            self.lost = True
            raise EnvError("the display is gone")
        return super().step(action)


@pytest.mark.parametrize(("deaths", "masked"), [(1, 0), (4, 0), (5, 1), (6, 2)])  # of two members
def test_a_failed_machine_is_replaced_three_times_and_then_the_episode_is_masked(
    deaths: int, masked: int, tmp_path: Path
) -> None:
    Flaky.deaths, Flaky.made = deaths, []
    config = settings({"group": 2}, rollout_tasks=2, n_envs=1)
    with Run.write(tmp_path, "") as run:
        groups = play(run, config, make_env=Flaky, tasks=TASKS[:2])
        members = [member for group in groups for member in group.trajectories]
        assert len(members) == 4
        lost = [member for member in members if not member.outcome.valid]
        assert len(lost) == masked
        for member in lost:
            assert (member.outcome, member.score, member.reward) == (Outcome.ENV_ERROR, None, None)
            assert (member.task_id, member.attempt) == ("press-1", 2)
        assert all(member.score is not None for member in members if member not in lost)
        assert len(list(run.summaries())) == 4 + deaths - masked  # the last attempt of a masked one is its own
        assert all((summary.score is None) == (not summary.outcome.valid) for summary in run.summaries())
        assert [env.task for env in Flaky.made] == [None] * len(Flaky.made)  # all closed
        assert sum(env.lost for env in Flaky.made) == deaths
        again = play(run, config, engine := Engine(), make_env=Flaky, tasks=TASKS[:2])
        assert {session for session, _ in engine.asked} == {f"{member.id[:-1]}3" for member in lost}
        assert all(member.outcome.valid for group in again for member in group.trajectories)


class Broken(FakeEnv):
    """Cannot set some tasks up."""

    def __init__(self, *broken: str) -> None:
        super().__init__()
        self.broken = broken

    def reset(self, task: Task, seed: int) -> Observation:
        if task.id in self.broken:
            raise EnvError("the display is gone")
        return super().reset(task, seed)


@pytest.mark.parametrize("curriculum", [False, True])
def test_a_task_that_is_given_up_is_drawn_no_more_and_others_take_its_place(curriculum: bool, tmp_path: Path) -> None:
    config = settings({"group": 3}, rollout_tasks=4, n_envs=3, curriculum=curriculum)

    async def work(run: Run) -> list[list[Group]]:
        pool = LocalPool(lambda: Broken("press-1", "press-4"), 3)
        rollouts = rollouts_in(TASKS, Engine(), config, run, pool)
        algorithm = make_algorithm(config.algorithm, 0)
        return [await rollouts.groups(update, algorithm) for update in range(6)]

    with Run.write(tmp_path, "") as run:
        updates = asyncio.run(work(run))
    broken = [group for groups in updates for group in groups if group.task_id in ("press-1", "press-4")]
    assert [len(group.trajectories) for group in broken] == [3, 3]  # each once, and never again
    assert all(member.outcome is Outcome.ENV_ERROR for group in broken for member in group.trajectories)
    for groups in updates:
        assert len(groups) == len({group.task_id for group in groups}) == 4
        assert all(member.outcome.valid for g in groups if g not in broken for member in g.trajectories)


def test_a_group_whose_task_is_given_up_meanwhile_has_nothing_to_teach(tmp_path: Path) -> None:
    config = settings({"group": 6}, rollout_tasks=2, n_envs=1)
    with Run.write(tmp_path, "") as run:
        groups = play(run, config, make_env=lambda: Broken("press-1"), tasks=TASKS[:2])
        assert len(list(run.summaries(task_id="press-1"))) == 9  # of 18
    assert {group.task_id: len(group.trajectories) for group in groups} == {"press-0": 6, "press-1": 0}
    judge = make_algorithm(config.algorithm, 0)
    assert not any(judge.accept(group) for group in groups if group.task_id == "press-1")


def test_where_every_task_is_given_up_the_run_stops(tmp_path: Path) -> None:
    config = settings({"group": 3}, rollout_tasks=2)

    async def work(run: Run) -> None:
        algorithm = make_algorithm(config.algorithm, 0)
        pool = LocalPool(lambda: Broken("press-0", "press-1"), 3)
        rollouts = rollouts_in(TASKS[:2], Engine(), config, run, pool)
        with pytest.raises(EnvError, match="update 1: machines failed in every episode"):
            await rollouts.groups(0, algorithm)
        await rollouts.groups(1, algorithm)

    with Run.write(tmp_path, "") as run, pytest.raises(EnvError, match="failed in each of the 2 tasks"):
        asyncio.run(work(run))


class Dying(Engine):
    """Fails in its first calls, so many of them."""

    deaths = 10**9

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        if self.deaths:
            self.deaths -= 1
            raise EngineError("out of memory")
        return await super().generate(session, prompt, sampling, seed)


def test_a_dead_engine_is_no_agents_failure_and_stops_the_run_until_it_works_again(tmp_path: Path) -> None:
    with Run.write(tmp_path / "dead", "") as run:
        with pytest.raises(EnvError, match="update 1: machines failed in every episode"):
            play(run, settings(), Dying())
        assert {summary.outcome for summary in run.summaries()} == {Outcome.ENGINE_ERROR}
        assert {(summary.score, summary.reward) for summary in run.summaries()} == {(None, None)}
        again = play(run, settings())
    with Run.write(tmp_path / "alive", "") as run:
        whole = play(run, settings())
    assert [group.task_id for group in again] == [group.task_id for group in whole]
    assert all(member.outcome.valid for group in again for member in group.trajectories)


def test_an_engine_that_fails_everybody_once_costs_no_episode(tmp_path: Path) -> None:
    (dying := Dying()).deaths = 4
    with Run.write(tmp_path, "") as run:
        groups = play(run, settings(n_envs=4), dying)
    assert [member.attempt for group in groups for member in group.trajectories] == [1, 1, 1, 1]


def test_a_task_that_cannot_be_set_up_is_the_users_error(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run, pytest.raises(TaskError, match="names no family"):
        play(run, settings(), tasks=[make_task("press-1", setup={})])


# Redrawing


@pytest.mark.parametrize("redraw", [0, 1, 3])
def test_groups_with_equal_rewards_give_way_at_most_so_often(redraw: int, tmp_path: Path) -> None:
    """Of 12 tasks two can teach something; they are found sooner or later, and kept once found."""
    teaching = {"press-3", "press-7"}
    tasks = [make_task(f"press-{i}") for i in range(12)]

    def policy(session: str, seed: int) -> Action:
        task, member = session.split("-")[2:4]
        return PRESS if f"press-{task}" in teaching and int(member) % 2 else MISS

    config = settings({"name": "dapo", "group": 2, "redraw": redraw}, rollout_tasks=3)
    found = 0
    for update in range(6):
        with Run.write(tmp_path / str(update), "") as run:
            groups = play(run, config, Engine(policy), update, tasks=tasks)
            played = [summary.task_id for summary in run.summaries()]
        assert len(groups) == 3 and len({group.task_id for group in groups}) == 3
        tried = Counter(played)
        assert set(tried.values()) == {2}  # no task twice, while there are others
        assert teaching & set(tried) <= {group.task_id for group in groups}
        assert 3 + redraw <= len(tried) <= 3 + 3 * redraw  # one at least is always missing
        found += len(teaching & set(tried))
    assert found >= {0: 2, 1: 4, 3: 8}[redraw]


def test_nothing_is_redrawn_where_every_group_teaches(tmp_path: Path) -> None:
    config = settings({"name": "dapo", "group": 2}, rollout_tasks=6)
    with Run.write(tmp_path, "") as run:
        groups = play(run, config, Engine(lambda session, seed: PRESS if session.split("-")[3] == "0" else MISS))
        assert len(groups) == 6 and len(list(run.summaries())) == 12


def test_more_wanted_tasks_than_there_are_is_all_of_them_once(tmp_path: Path) -> None:
    config = settings({"name": "dapo", "group": 2, "redraw": 2}, rollout_tasks=50)
    with Run.write(tmp_path, "") as run:
        groups = play(run, config, Engine(lambda session, seed: PRESS if session.endswith("press-4-0-0") else MISS))
        assert sorted(group.task_id for group in groups) == [task.id for task in TASKS]
        played = Counter(summary.task_id for summary in run.summaries())
    # Refused ones are tried again where there are no others, those that were taken are not.
    assert played == {task.id: 2 if task.id == "press-4" else 6 for task in TASKS}


# Groups of changing size


def test_hard_tasks_get_more_attempts_and_easy_ones_fewer(tmp_path: Path) -> None:
    def policy(session: str, seed: int) -> Action:
        task = next(number for number in range(6) if f"press-{number}-" in session)
        member = int(session.rsplit("-", 2)[1])
        return PRESS if task == 0 or (task == 1 and member == 3) else MISS

    config = settings({"group": 4, "group_least": 2, "group_most": 6}, rollout_tasks=3)
    with Run.write(tmp_path, "") as run:
        groups = play(run, config, Engine(policy), tasks=TASKS[:3])
        sizes = {group.task_id: len(group.trajectories) for group in groups}
        assert sizes == {"press-0": 2, "press-1": 4, "press-2": 6}
        played = len(list(run.summaries()))
        assert play(run, config, Engine(policy), tasks=TASKS[:3]) == groups  # nothing is played again
        assert len(list(run.summaries())) == played == 12


def test_the_first_success_of_a_task_ends_the_search_for_it(tmp_path: Path) -> None:
    """A few attempts more at a time. With replay, a task with a stored success is not searched again."""

    def policy(session: str, seed: int) -> Action:
        return PRESS if session.rsplit("-", 2)[1] == "5" else MISS  # the sixth attempt of every group

    config = settings({"name": "arpo", "group": 2, "group_most": 9}, rollout_tasks=2)
    never = Engine(lambda session, seed: MISS)
    with Run.write(tmp_path, "") as run:
        arpo = make_algorithm(config.algorithm, 0)
        sizes = []
        for update, engine in enumerate((never, Engine(policy), never)):
            groups = play(run, config, engine, update, arpo, tasks=TASKS[:2])
            sizes.append([len(group.trajectories) for group in groups])
            arpo.remember(groups, update)
        assert sizes == [[9, 9], [6, 6], [2, 2]]
        grpo = make_algorithm(settings({"name": "grpo", "group": 2, "group_most": 9}).algorithm, 0)
        assert [len(group.trajectories) for group in play(run, config, never, 3, grpo, tasks=TASKS[:2])] == [9, 9]
