"""`arpo eval`: numbers for scripts, a table for people, one line for mistakes, and a folder that goes on."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from arpo import cli
from arpo.config import load_config
from arpo.errors import EnvError
from arpo.evaluation.command import run_evaluation
from arpo.evaluation.run import Evaluation
from arpo.runs import progress
from arpo.runs.store import Run
from fake_env import FakeEnv, make_task, write_list

pytestmark = pytest.mark.usefixtures("fake_backend")
FAKE = ("env.name=fake", "env.size=96x64")


class Arpo:
    """Runs the real entry point in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["arpo", "eval", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err


@pytest.fixture
def arpo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Arpo:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    return Arpo(monkeypatch, capsys)


def test_json_has_the_names_that_others_rely_on(arpo: Arpo) -> None:
    status, out, err = arpo("fail", *FAKE, "--trials", "2", "--json", "--run-dir", "here")
    told = json.loads(out)
    assert (status, err) == (0, "")
    assert told["success"] == pytest.approx(1 / 3)
    low, high = told["ci95"]
    assert 0 < low < 1 / 3 < high < 1
    assert (told["n_tasks"], told["n_trials"], told["errors"]) == (3, 6, 0)
    assert told["outcomes"] == {"gave_up": 6} and told["crashed_tasks"] == []
    assert told["tasks"]["never-1"]["success"] == 1.0
    assert told["domains"]["buttons"]["success"] == pytest.approx(1 / 3)
    assert told["run_dir"] == "here"


def test_an_expert_cannot_look_into_a_worker(arpo: Arpo) -> None:
    line = "error: env.workers=1: the script expert looks behind the screen, for which it needs env.workers=0\n"
    assert arpo("expert", "env.workers=1", "--tasks", "subset32") == (2, "", line)
    assert not list(Path().iterdir())


@pytest.mark.parametrize("script", ["expert", "random", "fail"])
def test_scripts_run_with_settings_that_have_workers(script: str, arpo: Arpo) -> None:
    Path("mine.yaml").write_text("env: {workers: 2}\ntasks: {source: shell-open-000}\n")
    status, out, err = arpo(script, "mine.yaml", "--trials", "2", "--json")
    assert (status, err) == (0, "")
    told = json.loads(out)
    assert (told["n_trials"], told["errors"]) == (2, 0)
    with Run.read(Path(told["run_dir"])) as run:
        workers = load_config(str(run.folder / "config.yaml"), []).env.workers
    assert workers == (0 if script == "expert" else 2)


def test_scripts_that_do_not_look_behind_the_screen_do_the_same_in_workers(arpo: Arpo) -> None:
    settings = ("random", "--tasks", "shell-open-000", "--trials", "3", "--json")
    here, apart = (json.loads(arpo(*settings, f"env.workers={n}", "--run-dir", str(n))[1]) for n in (0, 2))
    assert here | {"run_dir": ""} == apart | {"run_dir": ""}


def test_pictures_show_a_success_and_a_failure(arpo: Arpo) -> None:
    arpo("fail", *FAKE, "--pictures", "shown")  # right where the task cannot be done, wrong elsewhere
    assert sorted(path.name for path in Path("shown").iterdir()) == ["failure.gif", "success.gif"]
    arpo("expert", *FAKE, "--pictures", "only", "--run-dir", "other")
    assert [path.name for path in Path("only").iterdir()] == ["success.gif"]


@pytest.mark.parametrize("where", ["a notebook", "a thread"])
def test_evaluation_can_be_called_from(where: str, tmp_path: Path) -> None:
    config = load_config(None, [*FAKE, "eval.trials=2"])
    if where == "a notebook":

        async def cell() -> Evaluation:
            return run_evaluation(config, "expert", tmp_path / "run")

        evaluation = asyncio.run(cell())
    else:
        with ThreadPoolExecutor(1) as threads:
            evaluation = threads.submit(run_evaluation, config, "expert", tmp_path / "run").result()
    assert evaluation.success()[0] == 1.0
    assert finished(tmp_path / "run") == 6


def test_people_get_a_table_and_are_told_where_to_look(arpo: Arpo) -> None:
    status, out, _ = arpo("expert", *FAKE)
    assert status == 0
    lines = out.splitlines()
    assert lines[1].split() == ["domain", "tasks", "trials", "success", "95", "%", "interval", "no", "score"]
    assert [line.split()[:4] for line in lines[2:4]] == [["buttons", "3", "3", "100.0%"], ["all", "3", "3", "100.0%"]]
    assert lines[4] == "success 100.0% (of 3 episodes, 0 without a score)"
    assert "finished 2, gave up 1" in lines[5]
    folder = Path(lines[6].rpartition(" ")[2])
    with Run.read(folder) as run:
        assert {trajectory.task_id for trajectory in run.trajectories()} == {"press-1", "press-2", "never-1"}
        assert all(run.image(trajectory.start) for trajectory in run.trajectories())


def test_a_begun_folder_goes_on_only_with_the_same_settings(arpo: Arpo) -> None:
    first = arpo("expert", *FAKE, "--run-dir", "here", "--json")
    assert arpo("expert", *FAKE, "--run-dir", "here", "--json", "--n-envs", "1") == first
    assert arpo("expert", *FAKE, "--run-dir", "here", "--json", "env.step_s=9") == first
    other = arpo("fail", *FAKE, "--run-dir", "other", "--json")
    assert arpo("fail", *FAKE, "--run-dir", "other", "--json", "env.workers=2") == other
    told = "error: here: was begun with {}, not {}; choose another folder\n"
    assert arpo("expert", *FAKE, "--run-dir", "here", "--trials", "2")[2] == told.format("trials: 1", "trials: 2")
    assert arpo("fail", *FAKE, "--run-dir", "here")[2] == told.format("model expert", "fail")


def test_a_begun_folder_does_not_keep_the_score_of_another_checker(arpo: Arpo) -> None:
    source = ("--tasks", write_list(Path(), make_task("press-1"), make_task("press-2")))
    first = arpo("expert", *FAKE, *source, "--run-dir", "here", "--json")
    assert json.loads(first[1])["success"] == 1.0
    assert arpo("expert", *FAKE, *source, "--run-dir", "here", "--json") == first
    write_list(Path(), make_task("press-1"), make_task("press-2", feasible=False))
    assert arpo("expert", *FAKE, *source, "--run-dir", "here", "--json") == (
        2,
        "",
        "error: here: was begun with other tasks than tasks.source=list.json has now: press-2 has another evaluator; "
        "put it back as it was, or choose another folder\n",
    )


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["expret"], "error: expret: neither a checkpoint nor one of base, expert, random, fail\n"),
        (["expert", "--trials", "0"], "error: eval.trials=0: must be at least 1\n"),
        (["expert", "--top-p", "1.5"], "error: eval.top_p=1.5: must be at most 1\n"),
        (["expert", "--top-p", "0"], "error: eval.top_p=0.0: must be more than 0\n"),
        (["expert", "--temperature", "-1"], "error: eval.temperature=-1.0: must be at least 0\n"),
        (["expert", "eval.temperature=warm"], "error: eval.temperature=warm: must be a number\n"),
        (["expert", "--tasks", "trian"], "error: unknown split or task 'trian': did you mean train?\n"),
        (["expert", "env.size=10x10"], "error: size 10x10: pocket draws screens from 336x224 to 1920x1080\n"),
    ],
)
def test_a_users_mistake_is_one_line_and_leaves_nothing_behind(arguments: list[str], line: str, arpo: Arpo) -> None:
    assert arpo(*arguments) == (2, "", line)
    assert not list(Path().iterdir())


def test_a_device_that_is_not_there_is_one_line_and_leaves_nothing_behind(arpo: Arpo) -> None:
    status, out, err = arpo("base", *FAKE, "agent.device=cuda:99")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: agent.device=cuda:99: not on this machine, which has cpu")
    assert list(Path().iterdir()) == []


def test_status_1_where_nothing_could_be_scored(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: object) -> float:
        raise EnvError("the display is gone")

    monkeypatch.setattr(FakeEnv, "score", die)
    status, out, _ = arpo("expert", *FAKE, "--json")
    assert (status, json.loads(out)["success"], json.loads(out)["errors"]) == (1, None, 3)


def test_tasks_that_always_crash_are_counted_and_named(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeEnv.score

    def score(self: FakeEnv) -> float:
        if self.task is not None and self.task.id == "press-2":
            raise EnvError("the display is gone")
        return real(self)

    monkeypatch.setattr(FakeEnv, "score", score)
    status, out, _ = arpo("expert", *FAKE, "--trials", "2", "--json")
    told = json.loads(out)
    assert (status, told["success"], told["errors"], told["crashed_tasks"]) == (0, 1.0, 2, ["press-2"])
    line = "tasks without any score, since a machine failed in all of their trials: 1 (press-2)"
    lines = arpo("expert", *FAKE, "--trials", "2")[1].splitlines()
    assert line in lines
    assert "success 100.0% (of 6 episodes, 2 without a score)" in lines
    assert any(line.startswith("warning: 33% of the episodes have no score") for line in lines)
    assert told["unscored"] == pytest.approx(1 / 3) and told["tasks"]["press-2"]["unscored"] == 1.0


def test_a_long_evaluation_is_not_silent_without_a_terminal(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)  # as if every trial took that long
    status, out, err = arpo("expert", *FAKE, "--json", "--n-envs", "1")
    assert (status, json.loads(out)["success"]) == (0, 1.0)
    said = [line.split(",")[:2] for line in err.splitlines()]
    assert said == [[f"evaluating: {done} of 3", f" success so far 100% (of {done} episodes"] for done in (1, 2)]


def test_killed_and_started_again_it_comes_to_the_same_numbers(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "arpo.cli", "eval", "random", "--tasks", "subset32", "--json", "--n-envs", "3"]

    def numbers(folder: Path) -> object:
        done = subprocess.run([*arguments, "--run-dir", folder], capture_output=True, check=True)
        return json.loads(done.stdout) | {"run_dir": ""}

    killed = tmp_path / "killed"
    with subprocess.Popen([*arguments, "--run-dir", killed], stdout=subprocess.PIPE) as child:
        while child.poll() is None and finished(killed) < 5:
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
    assert 5 <= finished(killed) < 32
    assert numbers(killed) == numbers(tmp_path / "whole")


def finished(folder: Path) -> int:
    if not (folder / "run.lock").exists():
        return 0
    from arpo.errors import ConfigError

    try:
        with Run.read(folder) as run:
            return len(list(run.summaries()))
    except ConfigError:  # it has only just begun
        return 0
