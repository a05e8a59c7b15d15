"""OSWorld's machines in containers, tried on a stand-in that speaks their protocol; none is ever left behind."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from standin import IMAGE, NOTES

from arpo.agent.actions import Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.config import EnvConfig
from arpo.envs import memory
from arpo.envs.base import BACKENDS
from arpo.envs.listing import try_out
from arpo.envs.osworld import machine
from arpo.envs.osworld.client import Client
from arpo.envs.osworld.env import OsworldEnv
from arpo.envs.osworld.machine import PORTS, Container, Docker
from arpo.envs.osworld.source import source
from arpo.errors import ActionError, ConfigError, EnvError, NoRoom, TaskError
from arpo.types import Task

pytestmark = pytest.mark.heavy
SIZE = (320, 200)
STANDIN = Docker(image=IMAGE, memory_gb=0.05, kvm=False, host_network=True)
CLIENT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arpo" / "osworld-client" / "bin" / "python"
CLICKED = {  # as OSWorld's own client understands it
    "func": "check_include_exclude",
    "result": {"type": "vm_command_line", "command": ["cat", NOTES]},
    "expected": {"type": "rule", "rules": {"include": ["click", "prepared"], "exclude": []}},
}
PREPARED = [{"type": "execute", "parameters": {"command": ["python", "-c", "import pyautogui; pyautogui.prepared()"]}}]
TASK = Task("t", "os", "click", "osworld", {"config": PREPARED, "proxy": False}, CLICKED, "osworld")
IMPOSSIBLE = Task("i", "os", "fly", "osworld", {"config": [], "proxy": False}, {"func": "infeasible"}, "osworld")


def notes(ports: dict[str, int]) -> list[list[object]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['server']}/notes") as answer:
        return [json.loads(note) for note in json.load(answer)]


def running() -> list[str]:
    ran = subprocess.run(["docker", "ps", "--quiet", "--filter", "label=arpo"], capture_output=True, text=True)
    return ran.stdout.split()


def gone() -> bool:
    deadline = time.monotonic() + 20
    while running() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not running()


@pytest.fixture
def env(engine: None) -> Iterator[OsworldEnv]:
    if not CLIENT.exists():
        pytest.skip("OSWorld's client is not installed: make osworld-client")
    env = OsworldEnv(SIZE, osworld_python=str(CLIENT), docker=STANDIN)
    try:
        yield env
    finally:
        env.close()


def test_an_episode_on_a_fresh_machine_and_nothing_is_left(env: OsworldEnv) -> None:
    first = env.reset(TASK, 0)
    assert (first.width, first.height) == SIZE
    assert env.score() == 0.0
    assert env.step(Click(10, 20)).hash != first.hash
    assert env.score() == 1.0
    env.step(Finish())
    assert env.ended
    assert env.reset(TASK, 0).hash == first.hash, "what was done before is gone"
    assert env.score() == 0.0
    env.close()
    assert gone()


def test_the_machine_does_what_is_said_and_text_arrives_as_it_is(env: OsworldEnv) -> None:
    env.reset(TASK, 0)
    text = 'it\'s "quoted"; import os\n'
    for action in (
        Type(text),
        Type("a<b"),
        Hotkey(("ctrl", "<")),
        Hotkey(("ctrl", "'")),
        Drag(1, 2, 3, 4),
        Scroll(5, 6, "down"),
        Hotkey(("shift",), "down"),
    ):
        env.step(action)
    assert env._machine is not None
    assert notes(env._machine.ports)[1:] == [
        ["write", [text], {"interval": 0.01}],
        ["write", ["a"], {"interval": 0.01}],
        ["hotkey", ["shift", ","], {}],
        ["write", ["b"], {"interval": 0.01}],
        ["hotkey", ["ctrl", "shift", ","], {}],
        ["hotkey", ["ctrl", "'"], {}],
        ["moveTo", [1, 2], {}],
        ["dragTo", [3, 4], {"duration": 0.5, "button": "left"}],
        ["scroll", [-5], {"x": 5, "y": 6}],
        ["keyDown", ["shift"], {}],
    ]


def test_only_fail_solves_what_cannot_be_done(env: OsworldEnv) -> None:
    env.reset(IMPOSSIBLE, 0)
    env.step(Click(1, 1))
    assert env.score() == 0.0
    env.step(Fail())
    assert env.score() == 1.0
    env.reset(TASK, 0)
    env.step(Click(1, 1))
    env.step(Fail())
    assert env.score() == 0.0


def test_refusals_change_nothing(env: OsworldEnv) -> None:
    env.reset(TASK, 0)
    for action in (Click(400, 1), Hotkey(("no such key",))):
        with pytest.raises(ActionError):
            env.step(action)
    assert env._machine is not None
    assert [name for name, *_ in notes(env._machine.ports)] == ["prepared"]


def test_a_machine_that_dies_is_machinery(env: OsworldEnv) -> None:
    env.reset(TASK, 0)
    assert env._machine is not None
    subprocess.run(["docker", "kill", env._machine.id], check=True, capture_output=True)
    with pytest.raises(EnvError):
        env.step(Click(1, 1))


@pytest.mark.parametrize("task", [TASK, IMPOSSIBLE], ids=lambda task: task.id)
def test_a_dead_machine_is_no_score(env: OsworldEnv, task: Task) -> None:
    env.reset(task, 0)
    env.step(Finish() if task.feasible else Fail())
    assert env._machine is not None
    subprocess.run(["docker", "kill", env._machine.id], check=True, capture_output=True)
    with pytest.raises(EnvError, match="screenshot"):
        env.score()


def test_nor_is_one_that_dies_while_it_is_scored(env: OsworldEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    def evaluate() -> float:
        assert env._machine is not None
        subprocess.run(["docker", "kill", env._machine.id], check=True, capture_output=True)
        return 0.0  # what OSWorld's client says of a file that it cannot fetch

    env.reset(TASK, 0)
    monkeypatch.setattr(env._client, "evaluate", evaluate)
    with pytest.raises(EnvError, match="screenshot"):
        env.score()


@pytest.mark.parametrize("metric", ["compare_audios", "compare_image_text", "check_python_file_by_test_suite"])
def test_metrics_that_cannot_be_trusted_are_refused(env: OsworldEnv, metric: str) -> None:
    """The first two are constants without their packages, the third would run the agent's Python on this machine."""
    getters = {"result": [CLICKED["result"]] * 2, "expected": [CLICKED["expected"]] * 2}
    with pytest.raises(TaskError, match=f"the metric {metric} is not used here"):
        env.reset(replace(TASK, evaluator={"func": ["exact_match", metric], **getters}), 0)
    assert env._machine is None, "no machine was waited for"


def test_what_the_machine_says_is_not_run_here(env: OsworldEnv, tmp_path: Path) -> None:
    bad = f"open('{tmp_path}/made', 'w') and ['a']"
    result = {"type": "vm_command_line", "command": ["printf", "%s", bad]}
    evaluator = {"func": "check_gnome_favorite_apps", "result": result}
    env.reset(replace(TASK, evaluator={**evaluator, "expected": {"type": "rule", "rules": {"expected": ["a"]}}}), 0)
    with pytest.raises(EnvError, match="malformed"):
        env.score()
    assert not list(tmp_path.iterdir())


def test_a_spare_is_kept_only_where_there_is_room(
    env: OsworldEnv, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    each_mb = 1024 * STANDIN.memory_gb
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # a machine of its own
    for free_mb in (0.5 * each_mb, 1.5 * each_mb):
        monkeypatch.setattr(memory, "free_mb", lambda free_mb=free_mb: free_mb)
        env.reset(TASK, 0)
        assert len(running()) == 1
    monkeypatch.setattr(memory, "free_mb", lambda: 0.0)
    with pytest.raises(NoRoom, match="no memory for one more machine"):
        env.reset(TASK, 0)


def test_a_machine_that_does_not_come_up_says_so(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_free_ports", lambda n: [99999] * n)  # there is no such port: it ends
    container = Container(STANDIN)
    try:
        with pytest.raises(EnvError, match=r"ended while it was starting|did not come up"):
            container.wait(5)
    finally:
        container.close()
    assert gone()


def test_no_machine_outlives_a_killed_process(engine: None) -> None:
    program = (
        "import sys; from arpo.envs.osworld.machine import Container, Docker\n"
        f"one = Container({STANDIN!r}); one.wait(); print('up', flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    with process.stdout, process.stdin:
        assert process.stdout.readline() == b"up\n"
        assert len(running()) == 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert gone()


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3])
def test_nor_one_that_is_killed_while_it_makes_it(engine: None, after_s: float) -> None:
    program = (
        "from arpo.envs.osworld import machine\n"
        "real = machine._docker\n"
        "machine._docker = lambda *words, **more: (print('now', flush=True), real(*words, **more))[1]\n"
        f"machine.Container(machine.{STANDIN!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"now\n"
        time.sleep(after_s)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    time.sleep(6)  # it may come up after its owner's end, and be removed then
    assert not running()


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a `docker` of these lines, for an engine that hangs or is late."""

    def make(lines: str) -> None:
        (tmp_path / "docker").write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / "docker").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def test_an_engine_that_hangs_is_not_waited_for_without_end(
    fake: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "DOCKER_S", 0.5)
    fake("[ $1 = run ] || exec sleep 600")
    container = Container(STANDIN)
    try:
        container.close()
        assert container._watch.poll() is None, "it tries on"
        with pytest.raises(EnvError, match=r"^docker info did not answer within 0\.5 s"):
            STANDIN.missing()
    finally:
        os.killpg(container._watch.pid, signal.SIGKILL)
        container._watch.wait()


def test_who_reads_our_output_does_not_wait_for_what_removes_a_machine(fake: Callable[[str], None]) -> None:
    fake("[ $1 = run ] || exec sleep 600")
    program = (
        "import os\n"
        "from arpo.envs.osworld import machine\n"
        f"print(machine.Container(machine.{STANDIN!r})._watch.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out.strip().isdigit()) == (0, True), out
    os.killpg(int(out), signal.SIGKILL)  # it was still there


def test_a_machine_that_comes_long_after_its_owners_end_is_removed(fake: Callable[[str], None], tmp_path: Path) -> None:
    fake(f'echo >>{tmp_path}/tries; [ $(wc -l <{tmp_path}/tries) -lt 15 ] || echo "$3"')
    subprocess.run(["sh", "-c", machine.REMOVE, "one"], stdin=subprocess.DEVNULL, check=True)
    assert (tmp_path / "tries").read_text() == "\n" * 15


def test_what_is_missing_is_said_with_what_to_do(engine: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the image nowhere is missing; docker pull nowhere"):
        OsworldEnv(SIZE, osworld_python="python", docker=Docker(image="nowhere", kvm=False))
    with pytest.raises(ConfigError, match="make osworld-client"):
        OsworldEnv(SIZE, docker=STANDIN)
    lacking = Docker(image=IMAGE, kvm=False, disk=tmp_path / "none.qcow2").missing()
    assert [what for what, _ in lacking] == [str(tmp_path / "none.qcow2")]
    assert "set env.osworld_disk to it" in Docker(kvm=False).missing()[-1][1]
    assert STANDIN.missing() == [], "another image may bring its disk"


def test_doctor_tries_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Docker, "missing", lambda self: [])  # the rest is there
    backend = BACKENDS["osworld"]
    works, detail, _ = try_out(backend, EnvConfig())
    assert not works and detail == "env.osworld_python is missing"
    works, detail, _ = try_out(backend, EnvConfig(osworld_python=sys.executable))
    assert not works and "has not got OSWorld's client" in detail
    if CLIENT.exists():
        assert try_out(backend, EnvConfig(osworld_python=str(CLIENT)))[0]


def test_files_of_ours_are_no_packages_of_the_clients(tmp_path: Path) -> None:
    (tmp_path / "lib" / "desktop_env").mkdir(parents=True)
    (tmp_path / "lib" / "gym.py").touch()
    (tmp_path / "lib" / "desktop_env/desktop_env.py").write_text(
        "import gym\nclass metrics:\n    def infeasible(): pass\ndef DesktopEnv(*_, **__): raise OSError(gym.__file__)"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/lib exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with contextlib.closing(Client(str(python))) as client, pytest.raises(EnvError, match=f"{tmp_path}/lib/gym.py"):
        client.setup(dict.fromkeys(PORTS, 1), SIZE, IMPOSSIBLE)


def test_source_never_holds_the_models_text() -> None:
    text = "'); import os; os.remove('x')  # é"
    made = source(Type(text))
    assert "import os;" not in made
    assert base64.b64encode(text.encode()).decode() in made
    assert compile(made, "made", "exec")
    assert source(Wait()) == "time.sleep(2)"
    assert compile(source(Hotkey(("ctrl", "\\"))), "made", "exec")
