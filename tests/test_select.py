"""`arpo select`: tasks that are sometimes solved are kept, and the list that is written loads again."""

import errno
import sys
from collections import Counter
from pathlib import Path

import pytest

from arpo import cli
from arpo.errors import TaskError
from arpo.evaluation.run import Evaluation, Trial
from arpo.runs.store import Run
from arpo.seeds import start_seed
from arpo.tasks.load import load_tasks
from arpo.tasks.select import print_counts, refuse_place, select, write_list
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
    assert (
        f" episodes, 0 without a score), in {path}" in (out := capsys.readouterr().out) and "1 of 4 tasks kept (" in out
    )


def test_a_place_that_cannot_be_written_is_said_before_anything_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder.json").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for out, why in (
        ("folder.json", "is a folder; a task list is a file"),
        ("list.txt", "must end in .json"),
        ("file/list.json", "cannot be written: Not a directory"),
        ("/proc/new/list.json", "cannot be written: No such file or directory"),
    ):
        monkeypatch.setattr(sys, "argv", ["arpo", "select", "expert", out, "tasks.source=shell-open-000"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert (ended.value.code, capsys.readouterr()) == (2, ("", f"error: out={out}: {why}\n"))
    refuse_place(Path("new/folder/list.json"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_protocol_that_counts_more_or_less_than_was_solved_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["arpo", "select", "expert", str(tmp_path / "a.json"), "eval.protocol=standard"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = "error: eval.protocol=standard: is for `arpo eval` and `arpo train`; arpo select has only plain\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, said)


@pytest.mark.usefixtures("fake_backend")
def test_what_will_be_trained_on_a_fixed_start_is_tried_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = ("env.name=fake", "env.size=96x64", "env.starts=fixed", "--run-dir", str(tmp_path / "run"))
    monkeypatch.setattr(sys, "argv", ["arpo", "select", "expert", str(tmp_path / "list.json"), *where])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    with Run.read(tmp_path / "run") as run:
        tried = Counter((one.task_id, one.env_seed) for one in run.summaries())
    assert tried == {(task, start_seed(task, 0)): 16 for task in ("press-1", "press-2", "never-1")}


def test_a_list_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_list(TASKS, path := tmp_path / "list.json")
    before = path.read_text()

    def full(place: str, flags: int) -> int:
        Path(place).write_bytes(b"{half of it")
        raise OSError(errno.ENOSPC, "No space left on device", place)

    monkeypatch.setattr("arpo.runs.store.no_link", full)
    with pytest.raises(OSError, match="No space"):
        write_list(TASKS[:2], path)
    assert path.read_text() == before


def test_nothing_kept_is_a_list_that_training_refuses(tmp_path: Path) -> None:
    write_list([], tmp_path / "none.json")
    with pytest.raises(TaskError, match="lists no task"):
        load_tasks("pocket", str(tmp_path / "none.json"))
