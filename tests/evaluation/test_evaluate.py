"""An evaluation: what scripts score, the same numbers in any order and after any interruption, errors apart."""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from arpo.agent.actions import Action, Click
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import AgentFor, Player
from arpo.agent.random_actions import random_action
from arpo.config import EnvConfig, EvalConfig
from arpo.engines.base import Engine, Prompt, Sampling
from arpo.engines.scripted import ScriptedEngine, byte_vocabulary, scripted
from arpo.envs.base import Env, Lease, make
from arpo.envs.pocket import PocketEnv
from arpo.envs.pool import LocalPool
from arpo.errors import ConfigError, EngineError, EnvError, TaskError
from arpo.evaluation.run import Evaluation, evaluate
from arpo.runs.store import Run
from arpo.seeds import EVALUATION, evaluation_seed, start_seed, training_seed
from arpo.tasks.load import interleaved, load_tasks
from arpo.types import Completion, Observation, Outcome, Task, Trajectory
from fake_env import BUTTON, FakeEnv, make_task

pytestmark = pytest.mark.usefixtures("fake_backend")

VOCABULARY = byte_vocabulary()
DIALECT = UITars(VOCABULARY)
BUTTONS = [make_task(f"press-{i}") for i in range(6)]


def by(name: str) -> Callable[[Task, Lease], Engine]:
    return scripted(name, DIALECT, VOCABULARY)


def lucky(task: Task, lease: Lease) -> Engine:
    """Presses the button about every third time, by the seed of the turn."""
    return ScriptedEngine(
        lambda env, seed: ("So.", Click(*BUTTON) if seed % 6 == 0 else Click(1, seed % 60)),
        lease.env,
        DIALECT,
        VOCABULARY,
    )


def spoken(engine_for: Callable[[Task, Lease], Engine]) -> AgentFor:
    return lambda task, lease: Agent(engine_for(task, lease), DIALECT, Sampling())


def run_in(
    folder: Path,
    engine_for: Callable[[Task, Lease], Engine],
    tasks: list[Task],
    make_env: Callable[[], Env] = FakeEnv,
    workers: int = 0,
    trials: int = 1,
    n_envs: int = 1,
    **others: object,
) -> Evaluation:
    async def work(run: Run) -> Evaluation:
        async with LocalPool(make_env, 5, EnvConfig(workers=workers)) as pool:
            settings = EvalConfig(trials=trials, n_envs=n_envs)
            return await evaluate(spoken(engine_for), tasks, settings, Player(pool, run), run, **others)  # type: ignore[arg-type]

    with Run.write(folder, "") as run:
        return asyncio.run(work(run))


pocket = partial(make, "pocket")


def test_the_expert_does_everything(tmp_path: Path) -> None:
    tasks = load_tasks("pocket", "subset32")
    evaluation = run_in(tmp_path, by("expert"), tasks, pocket, n_envs=4)
    rate, interval = evaluation.success()
    assert (rate, evaluation.errors, evaluation.n_tasks) == (1.0, 0, 32)
    assert interval is not None and 0.85 < interval[0] < interval[1] == 1.0
    infeasible = sum(not task.feasible for task in tasks)
    assert evaluation.outcomes == {"finished": 32 - infeasible, "gave_up": infeasible}


def test_giving_up_scores_exactly_the_infeasible_share(tmp_path: Path) -> None:
    tasks = load_tasks("pocket", "subset32")
    evaluation = run_in(tmp_path, by("fail"), tasks, pocket, trials=2)
    assert evaluation.success()[0] == pytest.approx(sum(not task.feasible for task in tasks) / 32)
    assert (evaluation.outcomes, evaluation.mean_steps) == ({"gave_up": 64}, 1.0)


def test_chance_scores_next_to_nothing(tmp_path: Path) -> None:
    evaluation = run_in(tmp_path, by("random"), load_tasks("pocket", "subset32"), pocket)
    rate, _ = evaluation.success()
    assert rate is not None and rate <= 2 / 32
    assert evaluation.outcomes == {"step_limit": 32}


def test_the_numbers_do_not_depend_on_how_many_environments_work(tmp_path: Path) -> None:
    one, many, other = (
        run_in(tmp_path / f"{n_envs}-{seed}", lucky, BUTTONS, trials=4, n_envs=n_envs, seed=seed)
        for n_envs, seed in ((1, 0), (5, 0), (5, 1))
    )
    assert one == many != other
    rate, _ = one.success()
    assert rate is not None and 0.0 < rate < 1.0
    with Run.read(tmp_path / "1-0") as first, Run.read(tmp_path / "5-0") as second:
        for run in (first, second):
            assert len({t.env_seed for t in run.trajectories()}) == len(BUTTONS) * 4
        tokens = [
            {t.id: [step.completion.tokens for step in t.steps] for t in run.trajectories()} for run in (first, second)
        ]
    assert tokens[0] == tokens[1]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 7, 23])
def test_an_interrupted_evaluation_goes_on_to_the_same_result(after: int, tmp_path: Path) -> None:
    whole = run_in(tmp_path / "whole", lucky, BUTTONS, trials=4, n_envs=3)
    seen: list[object] = []

    def interrupt(trial: object) -> None:
        seen.append(trial)
        if len(seen) > after:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_in(tmp_path / "parts", lucky, BUTTONS, trials=4, n_envs=3, on_trial=interrupt)
    with Run.read(tmp_path / "parts") as run:
        before = {summary.id for summary in run.summaries()}
    assert after < len(before) < 24 or after == 23
    asked: list[str] = []

    def counting(task: Task, lease: Lease) -> Engine:
        asked.append(task.id)
        return lucky(task, lease)

    assert run_in(tmp_path / "parts", counting, BUTTONS, trials=4, n_envs=2) == whole
    assert len(asked) == 24 - len(before)
    assert run_in(tmp_path / "parts", counting, BUTTONS, trials=4) == whole  # nothing is left to do
    assert len(asked) == 24 - len(before)


def test_stored_figures_can_be_made_again_since_no_seed_ever_changes() -> None:
    """By the third the list `seldom` was chosen."""
    assert training_seed(0, "press-1", 3) == 112545311
    assert evaluation_seed(0, "press-1", 1) == 4019565025
    assert start_seed("shell-open-000", 0) == 1414846578


def test_every_trial_of_a_fixed_start_is_there_and_says_something_else(tmp_path: Path) -> None:
    evaluations = [run_in(tmp_path / str(seed), lucky, BUTTONS, trials=4, seed=seed, starts=1) for seed in (0, 1)]
    assert evaluations[0] != evaluations[1]  # what is sampled has the run's seed
    for seed in (0, 1):
        with Run.read(tmp_path / str(seed)) as run:
            found = [(one.task_id, one.env_seed) for one in run.summaries()]
        assert sorted(found) == sorted((task.id, start_seed(task.id, 0)) for task in BUTTONS for _ in range(4))
    assert len({trial.score for trial in evaluations[0].trials}) == 2


def test_trials_go_through_the_starts_of_a_task_in_turn(tmp_path: Path) -> None:
    run_in(tmp_path, lucky, BUTTONS[:1], trials=5, starts=2)
    with Run.read(tmp_path) as run:
        seeds = {one.id: one.env_seed for one in run.summaries()}
    assert seeds == {f"fixed0-press-0-{trial}-0": start_seed("press-0", trial % 2) for trial in range(5)}
    assert start_seed("press-0", 0) != start_seed("press-0", 1)


def test_one_store_holds_fixed_and_fresh_starts_of_the_same_tasks_apart(tmp_path: Path) -> None:
    alone = [run_in(tmp_path / str(starts), lucky, BUTTONS, trials=2, starts=starts) for starts in (0, 1)]
    both = [run_in(tmp_path / "both", lucky, BUTTONS, trials=2, starts=starts) for starts in (0, 1)]
    assert both == alone
    with Run.read(tmp_path / "both") as run:
        seeds = [one.env_seed for one in run.summaries()]
    assert len(seeds) == 2 * 2 * len(BUTTONS)
    assert sum(seed >= EVALUATION for seed in seeds) == 2 * len(BUTTONS)


def test_an_evaluation_on_fixed_starts_goes_on_to_the_same_result(tmp_path: Path) -> None:
    whole = [run_in(tmp_path / "whole", lucky, BUTTONS, trials=2, starts=starts) for starts in (2, 0)]
    seen: list[object] = []

    def interrupt(trial: object) -> None:
        seen.append(trial)
        if len(seen) > 7:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_in(tmp_path / "parts", lucky, BUTTONS, trials=2, starts=2, on_trial=interrupt)
    with pytest.raises(Interrupted):  # the first of the other kind is played, though fixed ones of the task are there
        run_in(tmp_path / "parts", lucky, BUTTONS, trials=2, starts=0, on_trial=interrupt)
    assert [run_in(tmp_path / "parts", lucky, BUTTONS, trials=2, starts=starts) for starts in (2, 0)] == whole
    with Run.read(tmp_path / "parts") as run:
        assert len(list(run.summaries())) == 2 * 2 * len(BUTTONS)


def test_a_cancelled_evaluation_keeps_what_was_finished_and_closes_its_environments(tmp_path: Path) -> None:
    made: list[FakeEnv] = []

    def make_env() -> FakeEnv:
        made.append(FakeEnv())
        return made[-1]

    async def cancel(run: Run) -> None:
        async with LocalPool(make_env, 5) as pool:
            settings = EvalConfig(trials=4, n_envs=3)
            work = asyncio.create_task(evaluate(spoken(lucky), BUTTONS, settings, Player(pool, run), run))
            while len(list(run.summaries())) < 5:
                await asyncio.sleep(0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work

    with Run.write(tmp_path, "") as run:
        asyncio.run(cancel(run))
        assert 5 <= len(list(run.summaries())) < 24
        assert all(summary.outcome.valid for summary in run.summaries())
    assert len(made) == 3 and all(env.task is None for env in made)
    assert run_in(tmp_path, lucky, BUTTONS, trials=4) == run_in(tmp_path / "whole", lucky, BUTTONS, trials=4)


class Flaky(FakeEnv):
    """Dies in its first steps, in as many environments as it is told."""

    deaths = 0

    def step(self, action: Action) -> Observation:
        if Flaky.deaths and self.task is not None and self.task.id == "press-1":
            Flaky.deaths -= 1
            raise EnvError("the display is gone")
        return super().step(action)


@pytest.mark.parametrize(("deaths", "errors"), [(1, 0), (2, 0), (3, 1)])
def test_a_failed_machine_gets_three_attempts_and_is_then_counted_apart(
    deaths: int, errors: int, tmp_path: Path
) -> None:
    Flaky.deaths = deaths
    made: list[Flaky] = []

    def make_env() -> Flaky:
        made.append(Flaky())
        return made[-1]

    tasks = [make_task("press-1"), make_task("press-2")]
    evaluation = run_in(tmp_path, by("expert"), tasks, make_env, n_envs=1)
    assert evaluation.errors == errors
    assert evaluation.success()[0] == 1.0
    assert evaluation.outcomes == {"finished": 2 - errors} | ({"env_error": 1} if errors else {})
    assert (evaluation.n_tasks, len(evaluation.trials)) == (2, 2)
    rate, interval = evaluation.by_task()["press-1"].success()
    assert ((rate, interval) == (None, None)) == bool(errors)
    assert len(made) == 1 + deaths - errors  # a lost machine is never used again; the last loss ends the work
    with Run.read(tmp_path) as run:
        attempts = [summary.attempt for summary in run.summaries(task_id="press-1")]
        assert attempts == list(range(deaths + 1 - errors))
    Flaky.deaths = 0
    again = run_in(tmp_path, by("expert"), tasks, make_env)
    assert again.errors == 0 and (errors or again == evaluation)  # whoever goes on tries once more what machines failed


def wander(task: Task, lease: Lease) -> ScriptedEngine:
    """Anything anywhere, without a look behind the screen."""
    return ScriptedEngine(
        lambda env, seed: ("So.", random_action(random.Random(seed), env.size)), PocketEnv(), DIALECT, VOCABULARY
    )


def without_times(folder: Path) -> dict[str, Trajectory]:
    with Run.read(folder) as run:
        return {
            t.id: replace(t, steps=tuple(replace(step, engine_s=0.0, env_s=0.0) for step in t.steps))
            for t in run.trajectories()
        }


def test_worker_processes_change_no_result(tmp_path: Path) -> None:
    tasks = interleaved(load_tasks("pocket", "subset32"))[:8]
    here, apart = (
        run_in(tmp_path / str(workers) / "run", wander, tasks, pocket, workers=workers, trials=2, n_envs=3)
        for workers in (0, 2)
    )
    assert here == apart
    first, second = (without_times(tmp_path / str(workers) / "run") for workers in (0, 2))
    assert first == second and len(first) == 16
    assert len({step.observation for trajectory in first.values() for step in trajectory.steps}) > 50


def test_a_worker_killed_in_the_middle_of_an_episode_costs_an_attempt_and_no_result(tmp_path: Path) -> None:
    killed: list[int] = []

    class Deadly(ScriptedEngine):
        lease: Any

        async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
            if len(prompt.images) == 3 and session.endswith("-0") and len(killed) < 3:
                killed.append(self.lease._process.pid)
                os.kill(killed[-1], signal.SIGKILL)
            return await super().generate(session, prompt, sampling, seed)

    def deadly(task: Task, lease: Lease) -> Engine:
        engine = wander(task, lease)
        engine.__class__ = Deadly
        engine.lease = lease  # type: ignore[attr-defined]
        return engine

    tasks = interleaved(load_tasks("pocket", "subset32"))[:5]
    whole = run_in(tmp_path / "whole" / "run", wander, tasks, pocket, n_envs=2)
    assert run_in(tmp_path / "parts" / "run", deadly, tasks, pocket, workers=2, n_envs=2) == whole
    assert len(set(killed)) == 3
    attempts = without_times(tmp_path / "parts" / "run").values()
    lost = [trajectory for trajectory in attempts if not trajectory.outcome.valid]
    assert [(trajectory.outcome, trajectory.attempt) for trajectory in lost] == [(Outcome.ENV_ERROR, 0)] * 3
    assert all(len(trajectory.steps) == 3 for trajectory in lost)
    assert len(attempts) == 8


def test_trials_of_a_task_that_is_given_up_are_errors_and_are_tried_when_it_is_started_again(tmp_path: Path) -> None:
    Flaky.deaths = 1000
    tasks = [make_task("press-1"), make_task("press-2")]
    evaluation = run_in(tmp_path, by("expert"), tasks, Flaky, trials=6)
    assert (evaluation.errors, evaluation.success()[0]) == (6, 1.0)
    with Run.read(tmp_path) as run:
        assert len(list(run.summaries(task_id="press-1"))) == 9  # of 18
    Flaky.deaths = 0
    assert run_in(tmp_path, by("expert"), tasks, Flaky, trials=6).errors == 0


def test_a_dead_engine_is_no_agents_failure(tmp_path: Path) -> None:
    class Dead(ScriptedEngine):
        async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
            raise EngineError("out of memory")

    def dead(task: Task, lease: Lease) -> Engine:
        return Dead(lambda env, seed: ("", Click(0, 0)), lease.env, DIALECT, VOCABULARY)

    evaluation = run_in(tmp_path, dead, BUTTONS)
    assert (evaluation.success(), evaluation.mean_steps) == ((None, None), None)
    assert evaluation.outcomes == {str(Outcome.ENGINE_ERROR): 6}


def test_an_expert_that_is_lost_is_an_engine_error(tmp_path: Path) -> None:
    def lost(task: Task, lease: Lease) -> Engine:
        def act(env: Env, seed: int) -> tuple[str, Action]:
            raise TaskError("no move")

        return ScriptedEngine(act, lease.env, DIALECT, VOCABULARY)

    assert run_in(tmp_path, lost, BUTTONS[:1]).errors == 1


def test_a_task_that_cannot_be_set_up_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="names no family"):
        run_in(tmp_path, by("expert"), [make_task("press-1", setup={})], n_envs=2)


def test_trials_of_another_seed_are_not_mixed_in(tmp_path: Path) -> None:
    run_in(tmp_path, lucky, BUTTONS, seed=1)
    with pytest.raises(ConfigError, match=r"seed=2: .* holds trials of press-0 with another seed"):
        run_in(tmp_path, lucky, BUTTONS, seed=2)


def test_evaluations_at_two_updates_of_a_run_are_kept_apart(tmp_path: Path) -> None:
    first = run_in(tmp_path, lucky, BUTTONS, update=0)
    second = run_in(tmp_path, by("expert"), BUTTONS, update=1)
    assert first != second
    with Run.read(tmp_path) as run:
        assert len(list(run.summaries(update=1, source="evaluation"))) == 6


def test_no_seed_of_evaluation_is_one_of_training() -> None:
    for number in range(1000):
        assert training_seed(0, "press-1", number) < EVALUATION <= evaluation_seed(0, "press-1", number)
