"""What an agent could be rewarded for without having done it: wrong but plausible end states of every task score 0.

The states are made by files and commands (states.py), so that hundreds of them take a few minutes. The right one is
made in the same way and scores 1: so the others fail by what is wrong with them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import document_states
import family_states
import picture_states
import pytest
from states import Do

from arpo.agent.actions import Finish
from arpo.envs.desktop.catalog import get_task
from arpo.envs.desktop.env import DesktopEnv
from arpo.envs.desktop.families import FAMILIES, INSTANCES
from arpo.types import Task

STATES = family_states.STATES | document_states.STATES | picture_states.STATES
OPEN = ("chromium-open",)  # families whose end is in a program, not in files
# States that leave a program behind, or that a program of the setup must live through.
FRESH = (*OPEN, "editor-view", "calculator-result", "calculator-mode", "chromium-bar", "chromium-form")
KEEP = "tar -C /home/user -cf /tmp/.home.tar ."
RESTORE = """find /home/user -mindepth 1 -delete; tar -C /home/user -xf /tmp/.home.tar
find /tmp -mindepth 1 -maxdepth 1 ! -name '.*' -exec rm -rf {} +"""
LEAST = 3  # wrong states of a task

pytestmark = pytest.mark.attack("agent")


@pytest.fixture(scope="module")
def env() -> Iterator[DesktopEnv]:
    env = DesktopEnv()
    yield env
    env.close()


def bare(task: Task) -> Task:
    """Set up without the applications, where the end state is in files."""
    if task.setup["family"] in OPEN:
        return task
    config = [step for step in task.setup["config"] if step["type"] != "launch"]
    return replace(task, setup={**task.setup, "config": config})


def scores_of(env: DesktopEnv, task: Task, states: dict[str, Do]) -> dict[str, float]:
    """What each state scores: on one desktop, whose folders are put back between them, or on one each."""
    scores: dict[str, float] = {}
    fresh = task.setup["family"] in FRESH
    for name, do in states.items():
        if fresh or not scores:
            env.load(task, seed=0)
        if not fresh:
            put_back = env.sandbox.run(RESTORE if scores else KEEP)
            assert put_back.status == 0, put_back.err
        env.ended = False
        env.perform(do(env.sandbox) or Finish())
        scores[name] = env.score()
    return scores


def test_every_family_has_states_and_every_task_enough_of_them() -> None:
    assert STATES.keys() == FAMILIES.keys()
    for task_id, (family, params) in INSTANCES.items():
        assert len(STATES[family.name](params)[1]) >= LEAST, task_id


@pytest.mark.heavy
@pytest.mark.desktop
@pytest.mark.parametrize("task_id", INSTANCES)
def test_wrong_but_plausible_end_states_score_0(env: DesktopEnv, task_id: str) -> None:
    family, params = INSTANCES[task_id]
    missing = [app for app in family.apps if shutil.which(app) is None]
    if missing:
        pytest.skip(f"programs are missing: {' '.join(missing)}; `make test` as root installs all")
    task = bare(get_task(task_id))
    right, wrong = STATES[family.name](params)
    scores = scores_of(env, task, {**wrong, "right": right})
    assert {name: score for name, score in scores.items() if score} == {"right": 1.0}
