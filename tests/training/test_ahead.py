"""With a lag, groups come as they are finished: never too old, none lost, none twice, also where a run is killed."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from guesser import settings

from arpo.agent.actions import Action, Click, Finish
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.agent.random_actions import random_action
from arpo.algorithms.base import Algorithm, make_algorithm
from arpo.bench.simulated import VirtualLoop
from arpo.config import Config
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.scripted import byte_vocabulary
from arpo.envs.base import catalog, make
from arpo.envs.pool import HERE, LocalPool, Slot, SlotPool
from arpo.errors import ConfigError, EnvError
from arpo.runs.store import Run
from arpo.training.ahead import Ahead
from arpo.training.rollouts import Rollout, Rollouts
from arpo.types import Completion, Observation, Task
from fake_env import BUTTON, FakeEnv, make_task

VOCABULARY = byte_vocabulary()
DIALECT = UITars(VOCABULARY)
TASKS = [make_task(f"press-{i}") for i in range(7)]
SMALL = {"updates": 6, "rollout_tasks": 3, "n_envs": 8}


class Slow(Slot):
    """A machine whose steps take long, some of them very long; some are lost. By a clock that jumps."""

    fails = 0.02

    def __init__(self, seed: int) -> None:
        super().__init__(FakeEnv, HERE)
        self.rng = random.Random(seed)
        self.inner: FakeEnv | None = None
        self.size = (96, 64)

    @property
    def env(self) -> FakeEnv:
        assert self.inner is not None
        return self.inner

    @property
    def alive(self) -> bool:
        return self.inner is not None

    async def start(self) -> None:
        self.inner = FakeEnv()

    async def close(self) -> None:
        self.inner = None

    async def _ask(self, limit: float, method: str, *arguments: Any) -> Any:
        await asyncio.sleep(self.rng.paretovariate(1.1))
        if self.rng.random() < self.fails:
            raise EnvError("lost")
        return getattr(self.env, method)(*arguments)


class Engine:
    """Presses the button or not, by the seed; the version is what was loaded."""

    size = (96, 64)

    def __init__(self, policy: Callable[[str, int], Action] | None = None) -> None:
        self.version = 0
        self.asked: list[str] = []
        self.policy = policy or (lambda session, seed: Click(*BUTTON) if seed % 2 else Click(1, 1))

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        version = self.version
        self.asked.append(session)
        await asyncio.sleep(0.1)
        action = self.policy(session, seed) if len(prompt.images) == 1 else Finish()
        tokens = DIALECT.format("So.", action, self.size)
        return Completion(tokens, (0.0,) * len(tokens), VOCABULARY.decode(tokens), version, 1.0, 1.0, "stop")

    async def release(self, session: str) -> None:
        pass

    async def load(self, version: int, weights: Weights | None = None) -> None:
        self.version = version


def learn(
    run: Run,
    config: Config,
    engine: Engine,
    first: int = 0,
    stop: int | None = None,
    seed: int = 0,
    learn_s: float = 9.0,
    tasks: Sequence[Task] = TASKS,
    algorithm: Algorithm | None = None,
    after: Callable[[Rollout], object] = lambda rollout: None,
) -> list[Rollout]:
    """Updates by a learner that takes its time. `stop`: the run is killed while it makes that update.

    `after` is called when an update has been made.
    """
    method = algorithm or make_algorithm(config.algorithm, 0)

    async def work() -> list[Rollout]:
        seen = []
        await engine.load(first)
        pool = SlotPool([Slow(seed + i) for i in range(config.train.n_envs)])
        rollouts = Rollouts(tasks, Agent(engine, DIALECT, Sampling()), config, run, Player(pool, run))
        async with pool, aclosing(rollouts.batches(first, method)) as played:
            async for rollout in played:
                seen.append(rollout)
                await asyncio.sleep(learn_s)
                if rollout.update == stop:
                    break
                after(rollout)
                await engine.load(rollout.update + 1)
                run.log({"update": rollout.update, "env_steps": sum(one.n_steps for one in rollout.played)})
        return seen

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(asyncio.wait_for(work(), 1e8))  # of the clock that jumps


def ids(rollouts: list[Rollout]) -> list[str]:
    return [one.id for rollout in rollouts for group in rollout.groups for one in group.trajectories]


def lags(rollouts: list[Rollout]) -> list[int]:
    return [
        rollout.update - min(step.completion.version for one in group.trajectories for step in one.steps)
        for rollout in rollouts
        for group in rollout.groups
    ]


def rows(rollouts: list[Rollout]) -> Iterator[tuple[int, int]]:
    """Of each group: the update that learned it, and the one that would have, had it come in its turn."""
    for rollout in rollouts:
        for group in rollout.groups:
            yield rollout.update, group.trajectories[0].provenance.update


@pytest.mark.parametrize(("lag", "learn_s"), [(1, 9.0), (2, 60.0), (3, 0.0)])
def test_groups_come_out_of_order_and_never_older_than_the_bound(lag: int, learn_s: float, tmp_path: Path) -> None:
    overtaken = 0
    for seed in range(2):
        with Run.write(tmp_path / str(seed), "") as run:
            config = settings({"group": 4}, **SMALL, lag=lag)
            done = learn(run, config, Engine(), seed=1000 * seed, learn_s=learn_s)
            assert [rollout.update for rollout in done] == list(range(6)) and done[-1].last
            assert all(len(rollout.groups) == 3 for rollout in done)
            assert min(lags(done)) >= 0 and max(lags(done)) <= lag
            assert max(Counter(ids(done)).values()) == 1
            stored = {summary.id for summary in run.summaries()}
            assert sorted(one.id for rollout in done for one in rollout.played) == sorted(stored)  # each counted once
            overtaken += sum(row > update for update, row in rows(done))
    assert overtaken > 0


def test_environments_do_not_wait_for_the_learner(tmp_path: Path) -> None:
    """While it learns, more is played than what one update takes."""
    config = settings({"group": 4}, **SMALL, lag=3)
    with Run.write(tmp_path, "") as run:
        done = learn(run, config, Engine(), stop=0, learn_s=10_000.0)
        assert len(ids(done)) == 12
        played = {summary.id.rpartition("-")[0] for summary in run.summaries() if summary.outcome.valid}
    assert len(played) == 4 * 12  # all that the bound allows


@pytest.mark.parametrize("redraw", [0, 2])
def test_a_killed_run_learns_the_same_groups_again_and_none_twice(redraw: int, tmp_path: Path) -> None:
    config = settings({"name": "dapo", "group": 4, "redraw": redraw}, **SMALL, lag=2)

    with Run.write(tmp_path, "") as run:
        learned: dict[int, list[str]] = {}
        played: dict[str, int] = {}
        made = 0
        for kill, saved in ((0, 0), (2, 1), (2, 2), (4, 3), (5, 5), (None, None)):
            finished = {summary.id for summary in run.summaries() if summary.outcome.valid}
            engine = Engine()
            done = learn(run, config, engine, made, kill, seed=100 * (kill or 9))
            assert not finished & set(engine.asked)  # what was finished is not played again
            assert max(lags(done)) <= 2
            for rollout in done:
                names = sorted(ids([rollout]))
                assert learned.setdefault(rollout.update, names) == names  # an update that is made again is the same
                for one in rollout.played:
                    assert played.setdefault(one.id, rollout.update) == rollout.update
            made = made if saved is None else saved  # what a checkpoint has
        assert sorted(learned) == list(range(6))
        names = [name for update in learned.values() for name in update]
        assert len(names) == len(set(names)) == 6 * 3 * 4
        assert set(played) == {summary.id for summary in run.summaries()}


def seldom(session: str, seed: int) -> Action:
    return Click(*BUTTON) if seed % 5 == 0 else Click(1, 1)


def repeated(run: Run, config: Config, seed: int) -> int:
    """How many updates were made again, each from the same groups, of a run that is killed again and again."""
    learned: dict[int, list[str]] = {}
    states: dict[int, dict[str, Any]] = {}
    made = again = 0
    for kill, saved in ((2, 1), (3, 2), (4, 3), (5, 3), (None, None)):
        algorithm = make_algorithm(config.algorithm, 0)
        algorithm.restore(json.loads(json.dumps(states.get(made, {}))))

        def after(rollout: Rollout, algorithm: Algorithm = algorithm) -> None:
            algorithm.remember(rollout.groups, rollout.update)
            states[rollout.update + 1] = algorithm.state()

        drawn = 100 * (kill or 9) + seed
        for rollout in learn(run, config, Engine(seldom), made, kill, drawn, algorithm=algorithm, after=after):
            names = sorted(ids([rollout]))
            again += rollout.update in learned
            assert learned.setdefault(rollout.update, names) == names
        made = made if saved is None else saved
    return again


def test_what_was_accepted_for_a_success_that_a_checkpoint_lacks_is_not_drawn_again(tmp_path: Path) -> None:
    """Replay keeps a failed group that a stored success will join; a killed run has the replay of its checkpoint."""
    config = settings({"name": "arpo:redraw=2", "group": 3}, **SMALL, lag=2)
    for seed in range(6):
        with Run.write(tmp_path / str(seed), "") as run:
            assert repeated(run, config, seed) > 2


@pytest.mark.parametrize("stragglers", [0, 1])
def test_an_update_that_waits_goes_without_stragglers(
    stragglers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Slow, "fails", 0.0)

    class Stuck(Engine):
        async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
            if session.startswith("u0.0-") and session.endswith("-2-0"):  # the third member of each first group
                await asyncio.sleep(1e6)
            return await super().generate(session, prompt, sampling, seed)

    config = settings({"group": 4}, **SMALL, lag=1, stragglers=stragglers)
    with Run.write(tmp_path, "") as run:
        done = learn(run, config, Stuck())
        members = Counter(len(group.trajectories) for rollout in done for group in rollout.groups)
        if stragglers:
            assert members[3] >= 3 and set(members) == {3, 4}
            assert not {name for name in ids(done) if name.startswith("u0.0-") and name.endswith("-2-0")}
        else:
            assert set(members) == {4}
        assert all(len(rollout.groups) == 3 for rollout in done) and max(lags(done)) <= 1
        assert max(Counter(ids(done)).values()) == 1


def test_a_group_is_not_cut_down_to_one(tmp_path: Path) -> None:
    """One alone cannot be compared with anything."""
    config = settings({"group": 2}, **SMALL, lag=1, stragglers=2)
    with Run.write(tmp_path, "") as run:
        done = learn(run, config, Engine())
    assert {len(group.trajectories) for rollout in done for group in rollout.groups} == {2}


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """No machine starts with press-1."""
    ask = Slow._ask

    async def never(self: Slow, limit: float, method: str, *arguments: Any) -> Any:
        if method == "reset" and arguments[0].id == "press-1":
            raise EnvError("it never starts")
        return await ask(self, limit, method, *arguments)

    monkeypatch.setattr(Slow, "_ask", never)
    monkeypatch.setattr(Slow, "fails", 0.0)


@pytest.mark.usefixtures("broken")
def test_groups_that_fail_at_once_do_not_make_an_update_alone(tmp_path: Path) -> None:
    """They are finished before all others, and nothing can be learned from them."""
    config = settings({"group": 4}, updates=9, rollout_tasks=2, n_envs=16, lag=1)
    with Run.write(tmp_path, "") as run:
        done = learn(run, config, Engine(), tasks=TASKS[:2])
    assert len(done) == 9
    assert all(any(one.outcome.valid for group in rollout.groups for one in group.trajectories) for rollout in done)


@pytest.mark.parametrize("redraw", [0, 2])
def test_a_run_that_is_stopped_while_a_straggler_ends_begins_nothing(redraw: int, tmp_path: Path) -> None:
    class Stuck(Engine):
        async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
            if session.startswith("u0.0-") and session.endswith("-2-0"):
                await asyncio.sleep(1e6)
            return await super().generate(session, prompt, sampling, seed)

        async def release(self, session: str) -> None:  # a server takes a moment
            await asyncio.sleep(1.0)

    config = settings({"name": "dapo", "group": 4, "redraw": redraw}, **SMALL, lag=1, stragglers=1)
    engine = Stuck()

    async def work() -> None:
        pool = SlotPool([Slow(i) for i in range(config.train.n_envs)])
        rollouts = Rollouts(TASKS, Agent(engine, DIALECT, Sampling()), config, run, Player(pool, run))
        async with pool:
            ahead = Ahead(rollouts, 0, lambda group: redraw == 0)
            taking = asyncio.create_task(ahead.take(0))
            while not any(place.cut for place in ahead._places.values()):
                await asyncio.sleep(0.05)
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
            asked, begun = len(engine.asked), ahead._begun
            await ahead.close()
            assert (len(engine.asked), ahead._begun) == (asked, begun)
            assert all(place.finished for place in ahead._places.values())

    with Run.write(tmp_path, "") as run, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.wait_for(work(), 1e5))


@pytest.mark.usefixtures("broken")
def test_tasks_that_always_fail_give_way(tmp_path: Path) -> None:
    config = settings({"group": 4}, **SMALL | {"updates": 9}, lag=2)
    with Run.write(tmp_path, "") as run:
        done = learn(run, config, Engine())
    assert len(done) == 9 and all(len(rollout.groups) == 3 for rollout in done)
    late = [group.task_id for rollout in done[6:] for group in rollout.groups]
    assert "press-1" not in late and len(set(late)) >= 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("group 0", "{}"),
        ("group 0", '[0, "no-task"]'),
        ("group 0", "[" * 9999),
        ("group 0", '["x"]'),
        ("update 0", "[999]"),
        ("update 0", '["0", "0"]'),
        ("update 0", "[[]]"),
        ("update 0", "7"),
        ("update 0", '["0", "1", "2"]'),
        ("update 1", '["3", "4", "5"]'),
        ("update 1", "[0, 1, 2]"),
        ("group 3", '[1000000000, "press-1"]'),
        ("group 3", '[0, ["a"]]'),
        ("group 3", "[0, {}]"),
        ("group 3", '[0, "press-1", "press-2"]'),
    ],
)
def test_notes_of_another_run_are_refused_in_one_line(name: str, value: str, tmp_path: Path) -> None:
    config = settings({"group": 4}, **SMALL, lag=1)
    with Run.write(tmp_path, "") as run:
        learn(run, config, Engine(), stop=1)
        assert json.loads(run.fact("update 0") or "") != []
        run.note(name, value)
        with pytest.raises(ConfigError, match=r"run\.sqlite: cannot be read: what is noted of"):
            learn(run, config, Engine(), first=1)


def test_real_environments_under_a_lag(tmp_path: Path) -> None:
    """The embedded desktop, by the real clock."""
    pocket = catalog("pocket")
    tasks = [pocket.get_task(name) for names in pocket.task_list("train").values() for name in names[:1]][:4]
    engine = Engine(lambda session, seed: random_action(random.Random(seed), (448, 280)))
    engine.size = (448, 280)
    config = settings({"group": 3}, updates=4, rollout_tasks=2, n_envs=4, lag=1)

    async def work(run: Run, tasks: list[Task]) -> list[Rollout]:
        seen = []
        async with LocalPool(lambda: make("pocket"), 4) as pool:
            rollouts = Rollouts(tasks, Agent(engine, DIALECT, Sampling()), config, run, Player(pool, run))
            async with aclosing(rollouts.batches(0, make_algorithm(config.algorithm, 0))) as played:
                async for rollout in played:
                    seen.append(rollout)
                    await asyncio.sleep(0.05)
                    await engine.load(rollout.update + 1)
        return seen

    with Run.write(tmp_path, "") as run:
        done = asyncio.run(work(run, tasks))
        assert [len(rollout.groups) for rollout in done] == [2] * 4 and max(lags(done)) <= 1
        assert sorted(ids(done)) == sorted(summary.id for summary in run.summaries())
        for name in itertools.islice(ids(done), 3):
            assert isinstance(run.image(run.trajectory(name).start), Observation)
