"""`arpo eval --compare A B`: the same trials of two runs, paired and tested; what is not the same is refused."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arpo import cli
from arpo.agent.player import Player
from arpo.config import load_config, to_yaml
from arpo.errors import ConfigError, EnvError
from arpo.evaluation.command import run_evaluation
from arpo.evaluation.compare import difference
from arpo.evaluation.pairs import compare_runs, comparison_as_json
from arpo.runs.store import Run
from arpo.seeds import evaluation_seed
from fake_env import FakeEnv, make_task, write_list

pytestmark = pytest.mark.usefixtures("fake_backend")
FAKE = ("env.name=fake", "env.size=96x64")


def judged(folder: Path, model: str, *settings: str) -> Path:
    run_evaluation(load_config(None, [*FAKE, *settings]), model, folder)
    return folder


def compared(one: Path, other: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(comparison_as_json(compare_runs(one, other))))
    return told


def test_tasks_are_paired_and_the_difference_is_tested(tmp_path: Path) -> None:
    fail, expert = judged(tmp_path / "a", "fail", "eval.trials=2"), judged(tmp_path / "b", "expert", "eval.trials=2")
    told = compared(fail, expert)
    assert told["tasks"] == {"press-1": {"a": 0, "b": 1}, "press-2": {"a": 0, "b": 1}, "never-1": {"a": 1, "b": 1}}
    expected = difference(np.array([[1.0, 1.0, 1.0]]), np.array([[0.0, 0.0, 1.0]]))
    assert told["difference"] == expected.mean == pytest.approx(2 / 3)
    assert told["ci95"] == pytest.approx(expected.ci95)
    assert (told["p_value"], told["exact"]) == (0.5, True)  # two tasks differ: ++ and -- of ++, +-, -+, --
    assert (told["a"]["success"], told["b"]["success"]) == (pytest.approx(1 / 3), 1.0)
    assert (told["n_tasks"], told["n_trials"], told["a"]["left_out"], told["b"]["left_out"]) == (3, 6, 0, 0)
    back = compared(expert, fail)
    assert (back["difference"], back["p_value"]) == (-told["difference"], told["p_value"])


def test_it_plays_nothing_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = judged(tmp_path / "a", "fail"), judged(tmp_path / "b", "expert")

    def play(*_: object) -> None:
        raise AssertionError("it plays")

    monkeypatch.setattr(Player, "play", play)
    monkeypatch.setattr(Run, "write", play)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    compare_runs(one, other)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path: time for path, time in after.items() if not path.name.endswith(("-wal", "-shm"))} == {
        path: time for path, time in before.items() if not path.name.endswith(("-wal", "-shm"))
    }


def test_only_common_tasks_and_trials_count_and_the_others_are_told(tmp_path: Path) -> None:
    one = judged(tmp_path / "a", "fail", "eval.trials=3")
    other = judged(tmp_path / "b", "expert", "tasks.source=heldout", "eval.trials=2")
    told = compared(one, other)
    assert told["tasks"] == {"press-2": {"a": 0, "b": 1}}
    assert (told["n_trials"], told["a"]["left_out"], told["b"]["left_out"]) == (2, 2, 0)
    assert told["p_value"] == 0.5  # of one task its trials are compared, of which there are two


def test_a_trial_without_a_score_is_in_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = judged(tmp_path / "a", "expert", "eval.trials=2")
    real = FakeEnv.score

    def score(self: FakeEnv) -> float:
        if self.task is not None and (self.task.id == "press-2" or (self.task.id, self.seed) == ("press-1", first)):
            raise EnvError("the display is gone")
        return real(self)

    first = evaluation_seed(0, "press-1", 0)
    monkeypatch.setattr(FakeEnv, "score", score)
    told = compared(one, judged(tmp_path / "b", "fail", "eval.trials=2"))
    assert told["tasks"] == {"press-1": {"a": 1, "b": 0}, "never-1": {"a": 1, "b": 1}}
    assert (told["n_trials"], told["a"]["left_out"], told["b"]["left_out"]) == (3, 1, 0)


def test_a_task_that_changed_is_refused(tmp_path: Path) -> None:
    runs = []
    for name, limit in (("a", 5), ("b", 6)):
        (tmp_path / name).mkdir()
        source = write_list(tmp_path / name, make_task("press-1", max_steps=limit))
        runs.append(judged(tmp_path / f"run-{name}", "expert", f"tasks.source={source}"))
    with pytest.raises(ConfigError, match="were judged on other tasks: press-1 has another max_steps"):
        compare_runs(*runs)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["seed=1"], "press-1 does not begin alike in both; judge both with the same seed"),
        (["env.starts=fixed"], "one was judged on fixed starts, the other on fresh ones"),
        (["env.size=100x64"], "were judged with env.size=96x64 and env.size=100x64"),
        (["eval.protocol=hard"], "were judged with eval.protocol=plain and eval.protocol=hard"),
    ],
)
def test_other_starts_are_refused(settings: list[str], line: str, tmp_path: Path) -> None:
    one, other = judged(tmp_path / "a", "fail", "tasks.source=press-1"), judged(tmp_path / "b", "fail", *settings)
    with pytest.raises(ConfigError, match=re.escape(line)):
        compare_runs(one, other)


def test_runs_without_a_task_in_common_are_refused(tmp_path: Path) -> None:
    one, other = (judged(tmp_path / task, "fail", f"tasks.source={task}") for task in ("press-1", "never-1"))
    with pytest.raises(ConfigError, match="have no task in common"):
        compare_runs(one, other)


def test_under_hard_infeasible_tasks_are_in_no_difference(tmp_path: Path) -> None:
    one, other = (judged(tmp_path / model, model, "eval.protocol=hard") for model in ("fail", "expert"))
    assert compared(one, other)["tasks"].keys() == {"press-1", "press-2"}


def test_of_a_training_the_trials_after_its_last_update_count(tmp_path: Path) -> None:
    one, other = judged(tmp_path / "a", "fail"), judged(tmp_path / "b", "expert")
    with Run.write(one, "") as run, Run.read(other) as better:
        for found in list(better.trajectories()):
            name = found.id.replace("eval0-", "eval7-")
            run.add(replace(found, id=name, provenance=replace(found.provenance, update=7)))
    told = compared(other, one)
    assert (told["difference"], told["b"]["update"], told["a"]["update"]) == (0.0, 7, 0)


def test_the_order_in_which_trials_were_finished_changes_nothing(tmp_path: Path) -> None:
    one, other = judged(tmp_path / "a", "fail", "eval.trials=2"), judged(tmp_path / "b", "expert", "eval.trials=2")
    late = tmp_path / "late"
    with Run.read(one) as run, Run.write(late, (one / "config.yaml").read_text()) as reversed_run:
        for found in reversed(list(run.trajectories())):
            reversed_run.add(found)
    (late / "tasks.json").write_bytes((one / "tasks.json").read_bytes())
    told = compare_runs(one, other)
    assert replace(compare_runs(late, other), folders=told.folders, named=told.named) == told
    assert compare_runs(other, late).one == told.other


def test_a_training_that_was_judged_only_before_it_is_not_shown_as_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    judged(Path("a"), "fail"), judged(Path("b"), "fail")
    settings = Path("b/config.yaml")
    settings.write_text(to_yaml(load_config(None, [*FAKE, "run_dir=b"])))
    _, out, _ = spoken(monkeypatch, capsys, "--compare", "a", "b")
    assert out.splitlines()[:2] == ["A: a", "B: b, before any update"]


def spoken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["arpo", "eval", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_people_get_a_table_within_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    judged(Path("a"), "fail", "eval.trials=2"), judged(Path("b"), "expert", "tasks.source=press-1")
    status, out, err = spoken(monkeypatch, capsys, "--compare", "a", "b")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[:2] == ["A: a", "B: b"]
    assert lines[2].split() == ["domain", "tasks", "A", "B", "B", "-", "A", "95", "%", "interval"]
    assert lines[3].split()[:5] == ["buttons", "1", "0.0%", "100.0%", "+100.0"]
    assert lines[5:] == [
        "left out of A: 2 tasks, of which the other has no score on the same start",
        "p = 1 (paired permutation test over the trials of one task, every way)",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--compare", "a", "nowhere"], "error: nowhere: holds no run\n"),
        (["expert", "--compare", "a", "a"], "error: expert: --compare plays nothing; name no model beside it\n"),
        (
            ["--compare", "a", "a", "--protocol", "hard"],
            "error: --protocol: --compare plays nothing; it says how runs were judged\n",
        ),
        (
            ["--compare", "a", "a", "--max-steps", "3", "--json"],
            "error: --max-steps: --compare plays nothing; it says how runs were judged\n",
        ),
        (
            ["--compare", "a", "empty"],
            "error: empty: has kept no tasks, so nobody knows what was tried; evaluate it again\n",
        ),
        (["--compare", "a", "cut"], "error: cut: holds no trial with a score yet\n"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    judged(Path("a"), "fail")
    judged(Path("cut"), "fail")
    with Run.write(Path("cut"), "") as run:
        run._db.execute("DELETE FROM trajectories")
    with Run.write(Path("empty"), Path("a/config.yaml").read_text()):
        pass
    assert spoken(monkeypatch, capsys, *words) == (2, "", line)


def test_a_folder_of_somebody_elses_is_refused_in_one_line(tmp_path: Path) -> None:
    one, other = judged(tmp_path / "a", "fail"), judged(tmp_path / "b", "fail")
    (other / "tasks.json").write_text('{"tasks": [{}]}')
    with pytest.raises(ConfigError):
        compare_runs(one, other)
    (other / "tasks.json").unlink()
    (other / "tasks.json").symlink_to(one / "tasks.json")
    with pytest.raises(ConfigError, match="is a link"):
        compare_runs(one, other)
