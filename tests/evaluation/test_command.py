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
from arpo.types import to_json
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
    assert timeless(here) == timeless(apart)


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
    assert lines[6].endswith(" s in all") and lines[7].startswith("waiting in all episodes: ")
    folder = Path(lines[8].rpartition(" ")[2])
    with Run.read(folder) as run:
        assert {trajectory.task_id for trajectory in run.trajectories()} == {"press-1", "press-2", "never-1"}
        assert all(run.image(trajectory.start) for trajectory in run.trajectories())


def test_the_table_fits_80_columns_and_has_what_several_tries_come_to(
    arpo: Arpo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    domain = "libreoffice_impress"  # the longest of OSWorld's
    where = Path("examples", domain)
    where.mkdir(parents=True)
    (where / "never-1.json").write_bytes(to_json(make_task("never-1", feasible=False, domain=domain)))
    Path("list.json").write_text(json.dumps({domain: ["never-1"]}))
    _, out, _ = arpo("fail", *FAKE, "--tasks", "list.json", "--trials", "5", "--run-dir", "here")
    lines = out.splitlines()
    assert lines[2].split() == [domain, "1", "5", "100.0%", "57%", "to", "100%", "0"]
    assert [line for line in lines if "pass@" in line] == [
        "solved by one of 2 tries (pass@2): 100.0% (39% to 100%)",
        "solved by one of 4 tries (pass@4): 100.0% (25% to 100%)",
    ]


def test_json_says_what_it_took_and_the_same_after_a_resume(arpo: Arpo) -> None:
    first = arpo("expert", *FAKE, "--trials", "2", "--json", "--run-dir", "here")
    told = json.loads(first[1])
    assert told["tokens"] is told["prompt_tokens"] is told["cost"] is None  # a script has no tokens of a model
    assert told["time"].keys() == {"engine_s", "env_s", "whole_s"} and all(told["time"].values())
    assert told["mean_steps"] == pytest.approx(5 / 3) and told["tasks"]["never-1"]["mean_steps"] == 1.0
    assert [told["trials"][i]["success"] for i in "01"] == [1.0, 1.0]
    assert told["pass_at"].keys() == {"1", "2"} and told["pass_at"]["2"]["rate"] == 1.0
    assert arpo("expert", *FAKE, "--trials", "2", "--json", "--run-dir", "here") == first
    with Run.read(Path("here")) as run:
        engine_s = sum(step.engine_s for trajectory in run.trajectories() for step in trajectory.steps)
    assert told["time"]["engine_s"] == pytest.approx(engine_s)


def test_a_resume_unpacks_no_episode_again(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    first = arpo("expert", *FAKE, "--json", "--run-dir", "here")

    def unpack(self: Run, name: str) -> None:
        raise AssertionError(f"{name} was unpacked")

    monkeypatch.setattr(Run, "trajectory", unpack)
    assert arpo("expert", *FAKE, "--json", "--run-dir", "here") == first


def test_what_somebody_else_noted_in_the_folder_is_looked_up_again(arpo: Arpo) -> None:
    first = arpo("expert", *FAKE, "--json", "--run-dir", "here")
    with Run.write(Path("here"), "") as run:
        for task, text in (
            ("press-1", "[" * 100_000),
            ("press-2", '[1, "2", NaN]'),
            ("never-1", "[1, 2.0, 3.0]"),
        ):  # the last: an older arpo's
            assert run.fact(f"spent eval0-{task}-0-0") is not None
            run.note(f"spent eval0-{task}-0-0", text)
    assert arpo("expert", *FAKE, "--json", "--run-dir", "here") == first
    with Run.write(Path("here"), "") as run:
        run.note("evaluation seconds", "many")
    assert json.loads(arpo("expert", *FAKE, "--json", "--run-dir", "here")[1])["time"]["whole_s"] == 0.0


def test_a_begun_folder_goes_on_only_with_the_same_settings(arpo: Arpo) -> None:
    first = arpo("expert", *FAKE, "--run-dir", "here", "--json")
    assert arpo("expert", *FAKE, "--run-dir", "here", "--json", "--n-envs", "1") == first
    assert arpo("expert", *FAKE, "--run-dir", "here", "--json", "env.step_s=9") == first
    other = arpo("fail", *FAKE, "--run-dir", "other", "--json")
    assert arpo("fail", *FAKE, "--run-dir", "other", "--json", "env.workers=2") == other
    told = "error: here: was begun with {}, not {}; choose another folder\n"
    assert arpo("expert", *FAKE, "--run-dir", "here", "--trials", "2")[2] == told.format("trials: 1", "trials: 2")
    assert arpo("fail", *FAKE, "--run-dir", "here")[2] == told.format("model expert", "fail")
    line = told.format("protocol: plain", "protocol: hard")
    assert arpo("expert", *FAKE, "--run-dir", "here", "--protocol", "hard")[2] == line


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
        (["expert", "--max-steps", "0"], "error: tasks.max_steps=0: must be at least 1\n"),
        (
            ["expert", "--protocol", "easy"],
            "error: eval.protocol=easy: must be 'plain', 'standard' or 'hard'\n",
        ),
        (
            [],
            "error: name a model, as in `arpo eval base`, or two runs, as in `arpo eval --compare A B`\n",
        ),
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


def test_under_hard_infeasible_tasks_are_not_in_the_rate_so_far(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)  # as if every trial took that long
    _, _, err = arpo("fail", *FAKE, "--protocol", "hard", "--trials", "2", "--json", "--n-envs", "1")
    said = [line.split(", ")[:2] for line in err.splitlines()]
    counted = [1, 2, 2, 3, 4]  # the third try is of the task that cannot be done
    assert said == [
        [f"evaluating: {done} of 6", f"success so far 0% (of {n} episodes"] for done, n in enumerate(counted, start=1)
    ]


def test_killed_and_started_again_it_comes_to_the_same_numbers_and_the_same_osworld_folder(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "arpo.cli", "eval", "random", "--tasks", "subset32", "--json", "--n-envs", "3"]

    def command(folder: Path) -> list[str | Path]:
        return [*arguments, "--run-dir", folder, "--osworld-results", tmp_path / f"{folder.name}-osworld"]

    def numbers(folder: Path) -> object:
        done = subprocess.run(command(folder), capture_output=True, check=True)
        return timeless(json.loads(done.stdout))

    killed, whole = tmp_path / "killed", tmp_path / "whole"
    with subprocess.Popen(command(killed), stdout=subprocess.PIPE) as child:
        while child.poll() is None and finished(killed) < 5:
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
    assert 5 <= finished(killed) < 32
    assert numbers(killed) == numbers(whole)
    files = [contents(tmp_path / f"{folder.name}-osworld") for folder in (killed, whole)]
    assert files[0] == files[1] and sum(name.endswith("result.txt") for name in files[0]) == 32


def test_killed_while_it_writes_osworlds_folder_it_comes_to_the_same_folder(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "arpo.cli", "eval", "random", "--tasks", "subset32", "--json"]
    arguments += ["--max-steps", "3", "--run-dir", str(tmp_path / "run"), "--osworld-results"]
    subprocess.run([*arguments, tmp_path / "whole"], capture_output=True, check=True)
    killed = tmp_path / "killed"
    with subprocess.Popen([*arguments, killed], stdout=subprocess.PIPE) as child:
        while child.poll() is None and not any(killed.rglob("step_*")):
            time.sleep(0.001)
        os.kill(child.pid, signal.SIGKILL)
    subprocess.run([*arguments, killed], capture_output=True, check=True)
    assert contents(killed) == contents(tmp_path / "whole")


def timeless(told: dict[str, object]) -> dict[str, object]:
    """All but how long it took, and where it lies."""
    assert "time" in told
    return {key: value for key, value in told.items() if key not in ("time", "run_dir", "osworld_results")}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def finished(folder: Path) -> int:
    if not (folder / "run.lock").exists():
        return 0
    from arpo.errors import ConfigError

    try:
        with Run.read(folder) as run:
            return len(list(run.summaries()))
    except ConfigError:  # it has only just begun
        return 0
