"""`arpo select`: tasks that are sometimes solved are kept, and the list that is written loads again."""

from pathlib import Path

import pytest

from arpo.errors import TaskError
from arpo.evaluation.run import Evaluation, Trial
from arpo.tasks.load import load_tasks
from arpo.tasks.select import print_counts, select, write_list
from arpo.types import Outcome, Task

TASKS = load_tasks("pocket", "subset32")[:4]


def tried(task: Task, *scores: float) -> tuple[Trial, ...]:
    return tuple(Trial(task, i, Outcome.FINISHED, score, 3) for i, score in enumerate(scores))


EVALUATION = Evaluation(
    (*tried(TASKS[0], 0, 0), *tried(TASKS[1], 0, 1), *tried(TASKS[2], 1, 1), *tried(TASKS[3], 0.5, 0.5))
)


def test_a_task_needs_successes_and_half_a_score_is_none() -> None:
    assert select(EVALUATION, 1, drop_solved=False, solved=1.0) == [TASKS[1], TASKS[2]]
    assert select(EVALUATION, 2, drop_solved=False, solved=1.0) == [TASKS[2]]


def test_from_which_score_on_a_trial_counts_is_a_setting() -> None:
    assert select(EVALUATION, 2, drop_solved=False, solved=0.5) == [TASKS[2], TASKS[3]]
    assert select(EVALUATION, 1, drop_solved=True, solved=0.5) == [TASKS[1]]


def test_what_is_always_solved_can_be_left_out() -> None:
    assert select(EVALUATION, 1, drop_solved=True, solved=1.0) == [TASKS[1]]


def test_the_list_loads_again_as_a_source_of_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "list.json"
    write_list(TASKS, path)
    assert {task.id for task in load_tasks("pocket", str(path))} == {task.id for task in TASKS}
    print_counts(EVALUATION, [TASKS[1]], path, solved=1.0)
    assert f"1 of 4 tasks kept, in {path}" in capsys.readouterr().out


def test_nothing_kept_is_a_list_that_training_refuses(tmp_path: Path) -> None:
    write_list([], tmp_path / "none.json")
    with pytest.raises(TaskError, match="lists no task"):
        load_tasks("pocket", str(tmp_path / "none.json"))
