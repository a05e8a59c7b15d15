"""A run keeps its tasks: it is gone on with on these alone, whatever became of where they came from."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config
from arpo.envs.base import catalog
from arpo.errors import ConfigError
from arpo.runs.store import Run
from arpo.tasks.kept import first_difference, own_tasks, same_tasks
from arpo.tasks.load import load_tasks, parse_tasks, to_text
from arpo.types import Outcome, Provenance, Trajectory
from fake_env import TASKS, make_task

ONE, TWO, THREE = TASKS.values()

pytestmark = pytest.mark.usefixtures("fake_backend")


def config(folder: Path | None = None) -> Config:
    return Config.model_validate({"env": {"name": "fake"}, "run_dir": folder})


@pytest.mark.parametrize("env", ["pocket", "desktop"])
def test_every_task_that_comes_with_arpo_is_kept_as_it_is(env: str) -> None:
    tasks = {
        split: load_tasks(env, split, {"files": None, "osworld_python": "python"}) for split in catalog(env).SPLITS
    }
    assert parse_tasks(to_text(tasks), Path("tasks.json"), env) == tasks


def with_setup(**setup: Any) -> Any:
    return dataclasses.replace(ONE, setup=setup)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        ([ONE, TWO], [ONE], "press-2 is missing"),
        ([ONE], [ONE, TWO], "press-2 is new"),
        ([ONE, TWO], [ONE, dataclasses.replace(TWO, evaluator={"func": "other"})], "press-2 has another evaluator"),
        ([ONE], [dataclasses.replace(ONE, max_steps=6)], "press-1 has another max_steps"),
        ([ONE, TWO], [TWO, ONE], "press-2 stands where press-1 stood"),
        ([with_setup(family="a", n=1)], [with_setup(family="a", n=True)], "press-1 has another setup"),
        ([with_setup(family="a", n=1)], [with_setup(n=1, family="a")], None),
        ([ONE], [ONE], None),
    ],
)
def test_the_first_task_that_differs_is_named(
    before: list[Any], now: list[Any], what: str | None, tmp_path: Path
) -> None:
    assert first_difference({"train": before}, {"train": now}) == what
    assert first_difference({"train": [ONE], "heldout": before}, {"train": [ONE], "heldout": now}) == what
    with Run.write(tmp_path, "") as run:
        same_tasks(run, {"train": before}, config())
        if what is None:
            same_tasks(run, {"train": now}, config())
            return
        with pytest.raises(
            ConfigError, match=f"begun with other tasks than tasks.source=train has now: {what}; put it back"
        ):
            same_tasks(run, {"train": now}, config())


def test_a_run_that_has_kept_none_keeps_them_when_it_is_opened(tmp_path: Path) -> None:
    assert own_tasks(config(tmp_path)) is None
    with Run.write(tmp_path, "") as run:
        run.add(played("press-2"))
        with pytest.raises(ConfigError, match="press-2 is missing"):  # so much an old run knows
            same_tasks(run, {"train": [ONE]}, config())
        same_tasks(run, {"train": [ONE], "heldout": [TWO]}, config())
    assert own_tasks(config(tmp_path)) == {"train": [ONE], "heldout": [TWO]}


@pytest.mark.parametrize(
    ("starts", "fresh", "fits"),
    [("fixed", [ONE], True), ("fixed", [TWO], False), ("fixed", None, False), ("fresh", [ONE], False)],
)
def test_trained_tasks_with_fixed_starts_are_kept_a_second_time(
    starts: str, fresh: list[Any] | None, fits: bool, tmp_path: Path
) -> None:
    own = config(tmp_path).with_values({"env.starts": starts})
    tasks = {"train": [ONE]} | ({"fresh": fresh} if fresh else {})
    with Run.write(tmp_path, "") as run:
        same_tasks(run, tasks, own)
    if fits:
        assert own_tasks(own) == tasks
        return
    with pytest.raises(ConfigError, match="has no tasks of a training"):
        own_tasks(own)


def played(task_id: str) -> Trajectory:
    about = Provenance(source="evaluation", run="r", update=0)
    return Trajectory("t", task_id, 0, 0, "", (), (), Outcome.FINISHED, 1.0, 1.0, about)


def test_a_copy_of_a_run_has_its_tasks(tmp_path: Path) -> None:
    with Run.write(tmp_path / "one", "") as run:
        same_tasks(run, {"train": [ONE]}, config())
        run.copy(tmp_path / "two", "")
    assert own_tasks(config(tmp_path / "two")) == {"train": [ONE]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1, column 1: not JSON"),
        ("[]", "must be one object"),
        ('{"train": 3}', "must be one object"),
        ('{"train": [3]}', "Input should be"),
        ('{"train": [], "train": []}', "given twice"),
        ("{}", "has no tasks of a training"),
        (to_text({"tasks": [ONE]}), "has no tasks of a training"),
        (to_text({"train": [ONE, ONE]}), "the task 'press-1' is listed twice"),
        (to_text({"train": [make_task("../up")]}), "is not a name"),
        (to_text({"train": [make_task("a", max_steps=0)]}), "max_steps=0: must be from 1 to 10000"),
        (to_text({"train": [make_task("a", env="pocket")]}), "the task's env is 'pocket', not 'fake'"),
        ('{"train": ' + "[" * 100_000 + "]" * 100_000 + "}", "not JSON that can be read"),
        ('{"train": [{"setup": ' + '{"a":' * 400 + "1" + "}" * 400 + "}]}", "nested more than 100 deep"),
    ],
)
def test_kept_tasks_are_trusted_no_more_than_task_files(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.json").write_text(text)
    with pytest.raises(ConfigError) as refused:
        own_tasks(config(tmp_path))
    assert why in str(refused.value) and "\n" not in str(refused.value)


def test_a_task_that_could_not_be_read_again_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(400):
        deep = {"a": deep}
    with Run.write(tmp_path, "") as run, pytest.raises(ConfigError):
        same_tasks(run, {"train": [dataclasses.replace(ONE, setup=deep)]}, config())
    assert not (tmp_path / "tasks.json").exists()


def test_the_file_can_be_read_by_people(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        same_tasks(run, {"train": [THREE]}, config())
    (kept,) = json.loads((tmp_path / "tasks.json").read_text())["train"]
    assert (kept["id"], kept["evaluator"]) == ("never-1", {"func": "infeasible"})
