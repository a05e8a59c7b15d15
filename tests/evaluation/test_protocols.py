"""The paper's two ways to judge, beside the plain one: what the step limit and infeasible tasks count."""

import asyncio
import json
from pathlib import Path

import pytest

from arpo.agent.actions import Action, Click, Fail, Finish, Wait
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.config import EvalConfig, load_config
from arpo.engines.scripted import ScriptedEngine, byte_vocabulary
from arpo.envs.base import Lease
from arpo.envs.pool import LocalPool
from arpo.errors import ConfigError
from arpo.evaluation.command import run_evaluation, to_json
from arpo.evaluation.run import Evaluation, evaluate, judged_agent
from arpo.runs.store import Run
from arpo.types import Outcome, Task, Trajectory
from fake_env import BUTTON, FakeEnv, make_task

pytestmark = pytest.mark.usefixtures("fake_backend")
VOCABULARY = byte_vocabulary()
DIALECT = UITars(VOCABULARY)
PRESS, NEVER = make_task("press-1", max_steps=3), make_task("never-1", feasible=False, max_steps=3)


def judged(folder: Path, protocol: str, *actions: Action) -> tuple[Evaluation, dict[str, Trajectory]]:
    """Both tasks, by an agent that does these in turn."""
    settings = EvalConfig(protocol=protocol, n_envs=1)  # type: ignore[arg-type]

    def agent_for(task: Task, lease: Lease) -> Agent:
        left = list(actions)
        return judged_agent(
            ScriptedEngine(lambda env, seed: ("So.", left.pop(0)), lease, DIALECT, VOCABULARY), DIALECT, settings
        )

    async def work(run: Run) -> Evaluation:
        async with LocalPool(FakeEnv, 1) as pool:
            return await evaluate(agent_for, [PRESS, NEVER], settings, Player(pool, run), run)

    with Run.write(folder, "") as run:
        return asyncio.run(work(run)), {trajectory.task_id: trajectory for trajectory in run.trajectories()}


def scores(evaluation: Evaluation) -> dict[str, float | None]:
    return {trial.task.id: trial.score for trial in (*evaluation.trials, *evaluation.infeasible)}


PRESSED_AND_LATE = (Click(*BUTTON), Wait(), Wait())


def test_plain_scores_the_screen_at_the_step_limit_and_counts_every_task(tmp_path: Path) -> None:
    evaluation, played = judged(tmp_path, "plain", *PRESSED_AND_LATE)
    assert scores(evaluation) == {"press-1": 1.0, "never-1": 0.0}
    assert evaluation.success()[0] == 0.5 and evaluation.infeasible == ()
    assert played["never-1"].steps[-1].action == Wait()


def test_standard_says_fail_in_place_of_the_last_action(tmp_path: Path) -> None:
    evaluation, played = judged(tmp_path, "standard", *PRESSED_AND_LATE)
    assert scores(evaluation) == {"press-1": 0.0, "never-1": 1.0}
    assert evaluation.success()[0] == 0.5
    for trajectory in played.values():  # that it was not the agent who said so is kept
        assert trajectory.outcome is Outcome.STEP_LIMIT and len(trajectory.steps) == 3
        assert trajectory.steps[-1].action == Fail("the step limit")
        assert "wait()" in trajectory.steps[-1].completion.text
        assert trajectory.steps[-1].observation is None
        assert trajectory.steps[0].action == Click(*BUTTON)


@pytest.mark.parametrize("protocol", ["plain", "standard", "hard"])
def test_who_ends_with_the_last_action_ends_the_same_in_every_protocol(protocol: str, tmp_path: Path) -> None:
    evaluation, played = judged(tmp_path / "done", protocol, Click(*BUTTON), Wait(), Finish())
    assert scores(evaluation) == {"press-1": 1.0, "never-1": 0.0}
    assert {trajectory.outcome for trajectory in played.values()} == {Outcome.FINISHED}
    evaluation, played = judged(tmp_path / "failed", protocol, Wait(), Wait(), Fail())
    assert scores(evaluation) == {"press-1": 0.0, "never-1": 1.0}
    assert {trajectory.outcome for trajectory in played.values()} == {Outcome.GAVE_UP}


def test_hard_scores_the_screen_and_has_infeasible_tasks_in_no_rate(tmp_path: Path) -> None:
    evaluation, _ = judged(tmp_path, "hard", *PRESSED_AND_LATE)
    assert scores(evaluation) == {"press-1": 1.0, "never-1": 0.0}
    assert evaluation.success()[0] == 1.0 and evaluation.n_tasks == 1
    assert list(evaluation.by_domain()["buttons"].by_task()) == ["press-1"]
    assert [trial.task.id for trial in evaluation.infeasible] == ["never-1"]


def test_json_has_infeasible_tasks_on_their_own_with_their_own_interval(tmp_path: Path) -> None:
    config = load_config(None, ["env.name=fake", "env.size=96x64", "eval.protocol=hard", "eval.trials=2"])
    evaluation = run_evaluation(config, "fail", tmp_path / "run")
    told = json.loads(json.dumps(to_json(evaluation, "fail", tmp_path / "run", config)))
    assert (told["protocol"], told["success"], told["n_tasks"], told["n_trials"]) == ("hard", 0.0, 2, 4)
    assert told["tasks"].keys() == {"press-1", "press-2"}
    apart = told["infeasible"]
    assert (apart["success"], apart["n_trials"], apart["tasks"]) == (1.0, 2, ["never-1"])
    assert 0 < apart["ci95"][0] < apart["ci95"][1] == 1.0


@pytest.mark.parametrize(("begun", "other"), [("standard", "hard"), ("hard", "plain"), ("plain", "standard")])
def test_a_run_begun_with_one_protocol_refuses_another(begun: str, other: str, tmp_path: Path) -> None:
    settings = ["env.name=fake", "env.size=96x64"]
    run_evaluation(load_config(None, [*settings, f"eval.protocol={begun}"]), "fail", tmp_path / "run")
    with pytest.raises(ConfigError, match=f"was begun with protocol: {begun}, not protocol: {other}"):
        run_evaluation(load_config(None, [*settings, f"eval.protocol={other}"]), "fail", tmp_path / "run")
