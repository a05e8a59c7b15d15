"""The command line teaches, answers at once, and ends a user's mistake in one line."""

import importlib.metadata
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import arpo as arpo_package
from arpo import cli, doctor
from arpo.agent.actions import Fail
from arpo.config import presets
from arpo.envs.base import BACKENDS
from arpo.errors import TaskError
from arpo.training.memory import GIB, Device
from fake_env import TASKS, Expert, FakeEnv, make_task

pytestmark = pytest.mark.usefixtures("fake_backend")


class Arpo:
    """Runs the real entry point in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["arpo", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = self._capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err


@pytest.fixture
def arpo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Arpo:
    monkeypatch.setenv("COLUMNS", "200")
    return Arpo(monkeypatch, capsys)


def leave_only_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in reversed(BACKENDS) if name != "fake"]:  # backwards: they come back in their order
        monkeypatch.delitem(BACKENDS, name)


ENVS = "pocket, desktop, osworld, fake"
NO_CLIENT = "env.osworld_python is not set: the interpreter of OSWorld's client; make osworld-client"
COMMANDS = [
    [],
    ["envs"],
    ["envs", "list"],
    ["envs", "check"],
    ["envs", "play"],
    ["envs", "serve"],
    ["bench"],
    ["bench", "envs"],
    ["bench", "train"],
    ["eval"],
    ["osworld-eval"],
    ["compare"],
    ["pretrain"],
    ["doctor"],
    ["view"],
    ["report"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_is_there_for_every_command(command: list[str], arpo: Arpo) -> None:
    status, out, _ = arpo(*command, "--help")
    assert status == 0
    assert out.startswith(f"Usage: {' '.join(['arpo', *command])}")


@pytest.mark.parametrize("command", [command for command in COMMANDS if len(command) == 2], ids=" ".join)
def test_help_teaches_by_example(command: list[str], arpo: Arpo) -> None:
    _, out, _ = arpo(*command, "--help")
    assert f"Examples:\n    arpo {' '.join(command)}" in out


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; sys.argv = ['arpo', '--help']\n"
        "from arpo import cli\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pydantic', 'numpy', 'PIL', 'torch', 'yaml', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Usage: arpo" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_that_of_the_installed_package(arpo: Arpo) -> None:
    assert arpo("--version") == (0, f"arpo {arpo_package.__version__}\n", "")
    assert importlib.metadata.version("arpo") == arpo_package.__version__


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["envs", "check", "moon"], f"error: unknown environment 'moon': choose from {ENVS}\n"),
        (
            ["envs", "check", "fake", "--size", "big"],
            "error: size=big: must be WIDTHxHEIGHT in pixels, as in 448x280\n",
        ),
        (
            ["envs", "play", "nowhere.yaml"],
            f"error: nowhere.yaml: neither a preset nor a file; the presets are {', '.join(presets())}\n",
        ),
        (["envs", "play", "--seed", "-1"], "error: seed=-1: must be at least 0\n"),
        (["envs", "play", "--by", "me"], "error: by=me: must be expert or hand\n"),
        (["envs", "play", "--out", ""], "error: out=: must end in .gif or .png\n"),
        (["bench", "envs", "--steps", "0"], "error: steps=0: must be at least 1\n"),
        (["bench", "envs", "--env", "moon"], f"error: unknown environment 'moon': choose from {ENVS}\n"),
        (["bench", "envs", "--env", "osworld"], f"error: {NO_CLIENT}\n"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(arguments: list[str], line: str, arpo: Arpo) -> None:
    assert arpo(*arguments) == (2, "", line)


@pytest.mark.parametrize(
    "arguments", [["--bogus"], ["envs", "paly"], ["bench", "envs", "--steps", "many"]], ids=" ".join
)
def test_a_misspelt_option_or_command_is_status_2_and_ends_in_one_line(arguments: list[str], arpo: Arpo) -> None:
    status, out, err = arpo(*arguments)
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in err


def test_an_interrupt_ends_quietly_with_status_130(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(env: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "diagnose", interrupted)
    assert arpo("doctor") == (130, "", "")


def real_arpo(arguments: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "arpo.cli", *arguments]
    return subprocess.run(command, text=True, check=False, **({"stderr": subprocess.PIPE} | how))


def test_a_users_mistake_is_one_line_and_status_2_in_a_real_process() -> None:
    done = real_arpo(["envs", "play", "env.sise=448x280", "--dry-run"], stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: env.sise=448x280: unknown key; did you mean env.size?\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
@pytest.mark.parametrize("out", ["standard output", "file"])
def test_a_full_disk_is_one_line_and_status_2(out: str, tmp_path: Path) -> None:
    (tmp_path / "full.gif").symlink_to("/dev/full")
    with open("/dev/full" if out == "standard output" else os.devnull, "w") as stdout:
        where = tmp_path / ("play.gif" if out == "standard output" else "full.gif")
        done = real_arpo(["envs", "play", "--out", str(where)], stdout=stdout)
    assert (done.returncode, done.stderr) == (2, "error: cannot write: No space left on device\n")


def test_a_reader_that_stops_reading_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        done = real_arpo(["envs", "list"], stdout=closed)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_terminal_that_knows_only_ascii_gets_an_answer(tmp_path: Path) -> None:
    done = real_arpo(
        ["envs", "play", "--by", "hand"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "left_double(\\u2026)" in done.stdout


def test_a_dry_run_prints_the_resolved_config_and_does_nothing(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, _ = arpo("envs", "play", "pocket", "env.size=640x400", "--seed", "7", "--dry-run")
    assert status == 0
    assert "  size: 640x400  # " in out and "\nseed: 7  # " in out
    assert list(tmp_path.iterdir()) == []


def test_a_seed_of_its_own_option_counts_over_the_settings(arpo: Arpo) -> None:
    assert "\nseed: 0  # " in arpo("envs", "play", "seed=5", "--seed", "0", "--dry-run")[1]


def test_list_shows_every_split_with_its_counts(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_only_fake(monkeypatch)
    status, out, _ = arpo("envs", "list")
    assert status == 0
    assert out.splitlines()[0].startswith("fake  one button, for tests")
    assert [line.split() for line in out.splitlines()[1:-1]] == [
        ["split", "tasks", "domains", "families", "infeasible"],
        ["train", "3", "1", "2", "33%"],
        ["heldout", "1", "1", "1", "0%"],
    ]


def test_list_prints_json_alone(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_only_fake(monkeypatch)
    (env,) = json.loads(arpo("envs", "list", "--json")[1])["environments"]
    assert env["name"] == "fake" and env["splits"][0]["tasks"] == 3
    assert env["splits"][0]["ids"] == {"buttons": ["press-1", "press-2", "never-1"]}


def test_doctor_says_what_osworld_lacks(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    status, out, _ = arpo("doctor")
    assert status == 0
    assert "missing  environment osworld  docker is missing" in " ".join(out.split("\n")).replace("   ", "  ")
    assert "apt-get install docker.io" in out


def test_training_and_evaluation_there_are_refused_before_a_model_is_loaded(arpo: Arpo, tmp_path: Path) -> None:
    (tmp_path / "examples" / "os").mkdir(parents=True)
    task = {"id": "one", "instruction": "Do it.", "evaluator": {"func": "infeasible"}}
    (tmp_path / "examples" / "os" / "one.json").write_text(json.dumps(task))
    (tmp_path / "list.json").write_text('{"os": ["one"]}')
    where = (f"tasks.source={tmp_path}/list.json", "env.name=osworld")
    few = ("train.rollout_tasks=1", "train.optimizer_tasks=1", "train.model=no/such")
    for command in (("train", *where, *few), ("eval", "no/such", *where), ("eval", "expert", *where)):
        status, _, err = arpo(*command)
        assert status == 2 and err == f"error: {NO_CLIENT}\n"


def test_check_prints_a_line_for_each_promise(arpo: Arpo) -> None:
    status, out, _ = arpo("envs", "check", "fake", "--size", "96x64")
    assert status == 0
    lines = out.splitlines()
    assert all(line.startswith("ok     ") for line in lines[:-1])
    assert lines[-1] == "fake keeps 11 of 11 promises, tried on 2 tasks"


def test_check_shows_what_it_is_at_and_each_promise_when_it_is_settled(
    arpo: Arpo, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[tuple[str, str]] = []

    def late(subject: object) -> None:
        """it comes late"""
        said.append(capsys.readouterr())

    monkeypatch.setattr("arpo.envs.check.PROMISES", (late, late))
    arpo("envs", "check", "fake", "--size", "96x64")
    (first, _), (second, at) = said
    assert first.startswith("ok     equal task, seed and actions give equal screens") and first.count("\n") == 1
    assert (second, at) == ("ok     it comes late\n", "fake on 2 tasks, 3 of 3: it comes late\n")


def test_check_tries_feasible_and_infeasible_tasks_of_one_family(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "never-1", make_task("never-1", feasible=False, setup={"family": "press"}))
    _, out, _ = arpo("envs", "check", "fake", "--size", "96x64")
    assert "tried on 2 tasks" in out
    assert "only feasible tasks" not in out


def test_check_ends_with_status_1_where_a_promise_is_broken(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEnv, "score", lambda self: 2.0)
    status, out, _ = arpo("envs", "check", "fake", "--size", "96x64")
    assert status == 1
    failed = [line for line in out.splitlines() if line.startswith("FAILED ")]
    assert len(failed) == 2
    assert "the score is 2.0" in failed[0]


def test_play_writes_where_it_is_told_and_fails_where_the_expert_fails(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = ("envs", "play", "env.name=fake", "env.size=96x64", "--out", str(tmp_path / "play.gif"))
    assert arpo(*play)[0] == 0
    assert (tmp_path / "play.gif").stat().st_size > 0
    monkeypatch.setattr(Expert, "act", lambda self, env: ("", Fail()))
    assert arpo(*play)[0] == 1


def test_play_by_hand_reads_standard_input(arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = b"jump()\n\xff\xfe\nclick(start_box='(40,30)')\nfinished()\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), encoding="utf-8"))
    out = tmp_path / "play.gif"
    status, said, _ = arpo("envs", "play", "env.name=fake", "env.size=96x64", "--by", "hand", "--out", str(out))
    assert status == 0
    assert "error: unknown action 'jump'" in said and said.count("error: ") == 2
    assert "solved in 2 steps" in said


def test_play_by_hand_without_any_standard_input_is_an_episode_of_no_steps(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    out = str(tmp_path / "play.gif")
    status, said, _ = arpo("envs", "play", "env.name=fake", "env.size=96x64", "--by", "hand", "--out", out)
    assert status == 0
    assert "after 0 steps" in said


def test_bench_prints_one_json_object_and_nothing_else(arpo: Arpo) -> None:
    status, out, _ = arpo("bench", "envs", "--env", "fake", "--size", "96x64", "--steps", "20", "--json")
    assert status == 0
    assert json.loads(out)["env"] == "fake"


def test_bench_prints_a_table_for_people(arpo: Arpo) -> None:
    status, out, _ = arpo("bench", "envs", "--env", "fake", "--size", "96x64", "--steps", "20")
    assert status == 0
    assert "fake at 96x64" in out and "steps a second" in out and "MB" in out


def test_doctor_says_what_works_and_how_to_enable_the_rest(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_only_fake(monkeypatch)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    status, out, _ = arpo("doctor")
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    assert any(line.startswith("works") and "environment fake" in line for line in lines)
    assert any(line.startswith("missing") and "extra gym" in line for line in lines)
    assert f"{sys.executable} -m pip install 'gymnasium>=1.1'" in lines


def test_doctor_says_what_can_be_trained_here(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_only_fake(monkeypatch)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(doctor, "find_device", lambda name: Device("cuda", 139 * GIB))
    status, out, _ = arpo("doctor")
    said = dict(line.strip().rsplit("  ", 1)[-1].split(": ") for line in out.splitlines() if "B, " in line)
    assert status == 0 and len(said) == 6
    assert [key for key, value in said.items() if value.startswith("yes, ")] == [
        "3B, LoRA",
        "3B, all weights",
        "7B, LoRA",
        "7B, all weights",
    ]
    assert said["32B, LoRA"].endswith(" GiB; a GPU of 288 GB can") and said["32B, all weights"].startswith("no, ")
    monkeypatch.setattr(doctor, "find_device", Mock(side_effect=RuntimeError("CUDA driver\nis lost")))
    status, out, _ = arpo("doctor")
    assert status == 0 and "not known: CUDA driver" in out


def test_doctor_goes_on_where_a_backend_is_broken(arpo: Arpo, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_only_fake(monkeypatch)
    for broken in (RuntimeError("no fonts"), TaskError("no task")):
        monkeypatch.setattr(FakeEnv, "reset", Mock(side_effect=broken))
        status, out, _ = arpo("doctor")
        assert status == 0
        assert "missing  environment fake" in out and str(broken) in out
