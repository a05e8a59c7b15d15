"""OSWorld's folder layout: its own rules read our numbers from it, and no name leads out of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo import cli
from arpo.config import Config, load_config
from arpo.errors import ConfigError, EnvError
from arpo.evaluation import osworld_results
from arpo.evaluation.command import run_evaluation, to_json
from arpo.evaluation.osworld_results import Results, as_name
from arpo.evaluation.run import Evaluation, Trial
from arpo.images import decode, pixel_hash
from arpo.runs.store import Run
from arpo.types import Outcome
from fake_env import FakeEnv, make_task
from show_result import shown

pytestmark = pytest.mark.usefixtures("fake_backend")


def evaluated(folder: Path, model: str, *settings: str) -> tuple[dict[str, Any], Evaluation, Config]:
    config = load_config(None, list(settings))
    results = Results(folder / "osworld", model)
    evaluation = run_evaluation(config, model, folder / "run", results=results)
    return json.loads(json.dumps(to_json(evaluation, model, folder / "run", config, results))), evaluation, config


POCKET = ("tasks.source=subset32", "eval.trials=2", "tasks.max_steps=6")


@pytest.mark.parametrize("protocol", ["plain", "standard"])
def test_osworlds_rules_find_the_numbers_that_we_print(protocol: str, tmp_path: Path) -> None:
    told, _, _ = evaluated(tmp_path, "expert", *POCKET, f"eval.protocol={protocol}")
    trials = [shown(tmp_path / "osworld", f"expert/{trial}") for trial in "01"]
    assert 0 < told["success"] < 1  # six steps do for some
    for number, found in enumerate(trials):
        assert found is not None
        assert found["run"] == told["trials"][str(number)]["n_trials"] == 32
        assert found["success"] == pytest.approx(told["trials"][str(number)]["success"])
    for domain, numbers in told["domains"].items():
        both = [found["domains"][domain] for found in trials if found is not None]
        assert sum(both) / 2 == pytest.approx(numbers["success"])
    assert sum(found["success"] for found in trials if found is not None) / 2 == pytest.approx(told["success"])


def test_under_hard_infeasible_tasks_are_a_trial_of_their_own(tmp_path: Path) -> None:
    told, _, _ = evaluated(tmp_path, "expert", *POCKET, "eval.protocol=hard", "eval.trials=1")
    found, apart = (shown(tmp_path / "osworld", f"expert/0{kind}") for kind in ("", "-infeasible"))
    assert found is not None and apart is not None
    assert (found["run"], found["success"]) == (told["n_trials"], pytest.approx(told["success"]))
    assert (apart["run"], apart["success"]) == (told["infeasible"]["n_trials"], 1.0)
    assert found["run"] + apart["run"] == 32


def test_a_trial_without_a_score_has_no_result_and_is_in_neither_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeEnv.score

    def score(self: FakeEnv) -> float:
        if self.task is not None and self.task.id == "press-2":
            raise EnvError("the display is gone")
        return real(self)

    monkeypatch.setattr(FakeEnv, "score", score)
    told, _, _ = evaluated(tmp_path, "fail", "env.name=fake", "env.size=96x64")
    found = shown(tmp_path / "osworld", "fail/0")
    assert found is not None
    assert (told["errors"], told["n_trials"], told["success"]) == (1, 3, 0.5)
    assert (found["run"], found["success"]) == (2, told["success"])
    broken = tmp_path / "osworld" / "pyautogui" / "screenshot" / "fail" / "0" / "buttons" / "press-2"
    assert sorted(path.name for path in broken.iterdir()) == ["step_0.png", "step_1.png", "traj.jsonl"]
    assert "Error" in json.loads((broken / "traj.jsonl").read_text().splitlines()[-1])


def test_each_step_has_a_line_and_a_screen(tmp_path: Path) -> None:
    evaluated(tmp_path, "expert", "env.name=fake", "env.size=96x64")
    place = tmp_path / "osworld" / "pyautogui" / "screenshot" / "expert" / "0" / "buttons" / "press-1"
    lines = [json.loads(line) for line in (place / "traj.jsonl").read_text().splitlines()]
    assert [(line["step_num"], line["done"], line["reward"]) for line in lines] == [(1, False, 0), (2, True, 0)]
    assert lines[0]["action"]["kind"] == "click" and lines[1]["action"] == "DONE"
    assert lines[0]["response"].startswith("Thought: There is the button.")
    assert (place / "result.txt").read_text() == "1.0\n"
    with Run.read(tmp_path / "run") as run:
        trajectory = run.trajectory("eval0-press-1-0-0")
    pictures = [pixel_hash(decode((place / f"step_{i}.png").read_bytes())) for i in range(3)]
    left = trajectory.steps[0].observation
    assert pictures == [trajectory.start, left, left]  # the last action ends the episode and changes nothing
    assert [line["screenshot_file"] for line in lines] == ["step_1.png", "step_2.png"]
    assert (place / "step_0.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_there_and_is_the_same_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated(tmp_path, "expert", "env.name=fake", "env.size=96x64")

    def keep(path: Path, data: bytes) -> None:
        raise AssertionError(f"{path} was written again")

    monkeypatch.setattr(osworld_results, "_keep", keep)
    evaluated(tmp_path, "expert", "env.name=fake", "env.size=96x64")


def test_another_evaluations_results_are_replaced_and_nothing_of_them_stays(tmp_path: Path) -> None:
    place = tmp_path / "osworld" / "pyautogui" / "screenshot" / "expert" / "0" / "buttons" / "press-1"
    place.mkdir(parents=True)
    for name in ("step_9.png", "step_1.png.part", "result.txt", "traj.jsonl", "notes.md"):
        (place / name).write_text("0.25\n")
    evaluated(tmp_path, "expert", "env.name=fake", "env.size=96x64")
    assert sorted(path.name for path in place.iterdir()) == [
        *("notes.md", "result.txt", "step_0.png", "step_1.png", "step_2.png", "traj.jsonl"),
    ]
    assert (place / "result.txt").read_text() == "1.0\n" and (place / "notes.md").read_text() == "0.25\n"


NAMES = ["..", ".", "", "/", "../../etc", "a/b", "a\\b", "C:x", "\0", "x" * 500, "\x1b[2J", "-rf", ".git", "ä\ud800"]


def test_hostile_names_stay_below_the_folder(tmp_path: Path) -> None:
    config = load_config(None, ["env.name=fake", "env.size=96x64"])
    run_evaluation(config, "expert", tmp_path / "run")
    results = [Results(tmp_path / "out", name, trial=name) for name in NAMES]
    with Run.read(tmp_path / "run") as run:
        for name, place in zip(NAMES, results, strict=True):
            task = replace(make_task(name), domain=name)
            place.prepare()
            place.write(run, Evaluation((Trial(task, 0, Outcome.FINISHED, 1.0, 2, "eval0-press-1-0-0"),)))
    written = [path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("result.txt")]
    assert len(written) == len(NAMES) and {len(path.parts) for path in written} == {7}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


@given(st.text(), st.text())
def test_two_names_never_share_a_folder(one: str, other: str) -> None:
    assert (as_name(one) == as_name(other)) == (one == other)
    assert as_name(one).isascii() and 0 < len(as_name(one)) <= 100
    assert "/" not in as_name(one) and as_name(one).strip(".") and not as_name(one).startswith(("-", "."))


def test_no_name_is_that_of_anothers_folder() -> None:
    for name in NAMES:
        assert as_name(as_name(name)) != as_name(name)


def test_broken_off_while_it_clears_a_folder_it_leaves_no_result_of_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "osworld" / "pyautogui" / "screenshot" / "expert" / "0" / "buttons" / "press-1"
    place.mkdir(parents=True)
    for name in ("step_9.png", "result.txt", "traj.jsonl"):
        (place / name).write_text("0.25\n")
    listed = Path.iterdir

    class Killed(BaseException): ...

    def unlink(path: Path) -> None:
        path.rename(tmp_path / path.name)
        raise Killed

    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(listed(path), reverse=True)))  # as some disks do
    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(Killed):
        evaluated(tmp_path, "expert", "env.name=fake", "env.size=96x64")
    assert not (place / "result.txt").exists() and (place / "step_9.png").exists()


def test_ids_and_domains_of_osworld_are_used_as_they_are() -> None:
    for name in ("bb5e4c0d-f964-439c-97b6-bdb9747de3f4", "libreoffice_calc", "multi_apps", "ui-tars-1.5-7b", "0"):
        assert as_name(name) == name


@pytest.mark.parametrize("level", range(4))
def test_no_link_in_the_folder_is_followed(level: int, tmp_path: Path) -> None:
    parts = ("pyautogui", "screenshot", "expert", "0")
    (tmp_path / "elsewhere").mkdir()
    above = (tmp_path / "osworld").joinpath(*parts[:level])
    above.mkdir(parents=True)
    (above / parts[level]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link or a file; put a folder in its place"):
        evaluated(tmp_path, "expert", "env.name=fake", "env.size=96x64")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    place = tmp_path / "osworld" / "pyautogui" / "screenshot" / "expert" / "0" / "buttons" / "press-1"
    place.mkdir(parents=True)
    (tmp_path / "mine").write_text("mine")
    for name in ("result.txt", "traj.jsonl.part", "step_1.png"):
        (place / name).symlink_to(tmp_path / "mine")
    evaluated(tmp_path, "expert", "env.name=fake", "env.size=96x64")
    assert (tmp_path / "mine").read_text() == "mine"
    assert not any(path.is_symlink() for path in place.iterdir())


def test_a_place_that_is_a_file_is_said_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    words = ["eval", "expert", "env.name=fake", "env.size=96x64", "--osworld-results", str(tmp_path / "taken")]
    monkeypatch.setattr("sys.argv", ["arpo", *words, "--run-dir", str(tmp_path / "run")])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == f"error: {tmp_path / 'taken'}: is not a folder\n"
    assert not (tmp_path / "run").exists()


def test_a_screen_that_the_store_lacks_is_one_line(tmp_path: Path) -> None:
    config = load_config(None, ["env.name=fake", "env.size=96x64"])
    run_evaluation(config, "expert", tmp_path / "run")
    with Run.write(tmp_path / "run", "") as run:
        run._db.execute("DELETE FROM images")
    with pytest.raises(ConfigError, match="it lacks the screenshot"):
        run_evaluation(config, "expert", tmp_path / "run", results=Results(tmp_path / "osworld", "expert"))
