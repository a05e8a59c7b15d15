"""OSWorld's machines in containers, tried on a stand-in that speaks their protocol; none is ever left behind."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin import IMAGE, NOTES

from arpo.agent.actions import Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.envs import osworld
from arpo.envs.osworld import Container, Docker, OsworldEnv, source
from arpo.errors import ActionError, ConfigError, EnvError
from arpo.types import Task

pytestmark = pytest.mark.heavy
SIZE = (320, 200)
STANDIN = Docker(image=IMAGE, kvm=False, host_network=True)
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
        Hotkey(("ctrl", "'")),
        Drag(1, 2, 3, 4),
        Scroll(5, 6, "down"),
        Hotkey(("shift",), "down"),
    ):
        env.step(action)
    assert env._machine is not None
    assert notes(env._machine.ports)[1:] == [
        ["write", [text], {"interval": 0.01}],
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


def test_a_machine_that_does_not_come_up_says_so(engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(osworld, "_free_ports", lambda n: [99999] * n)  # there is no such port: it ends
    container = Container(Docker(image=IMAGE, kvm=False, host_network=True))
    try:
        with pytest.raises(EnvError, match=r"ended while it was starting|did not come up"):
            container.wait(5)
    finally:
        container.close()
    assert gone()


def test_no_machine_outlives_a_killed_process(engine: None) -> None:
    program = (
        "import sys; from arpo.envs.osworld import Container, Docker\n"
        f"one = Container(Docker(image={IMAGE!r}, kvm=False, host_network=True)); one.wait(); print('up', flush=True)\n"
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
        "from arpo.envs import osworld\n"
        "real = osworld._docker\n"
        "osworld._docker = lambda *words, **more: (print('now', flush=True), real(*words, **more))[1]\n"
        f"osworld.Container(osworld.Docker(image={IMAGE!r}, kvm=False, host_network=True))\n"
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


def test_what_is_missing_is_said_with_what_to_do(engine: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the image nowhere is missing; docker pull nowhere"):
        OsworldEnv(SIZE, osworld_python="python", docker=Docker(image="nowhere", kvm=False))
    with pytest.raises(ConfigError, match="make osworld-client"):
        OsworldEnv(SIZE, docker=STANDIN)
    lacking = Docker(image=IMAGE, kvm=False, disk=tmp_path / "none.qcow2").missing()
    assert [what for what, _ in lacking] == [str(tmp_path / "none.qcow2")]


def test_source_never_holds_the_models_text() -> None:
    text = "'); import os; os.remove('x')  # é"
    made = source(Type(text))
    assert "import os;" not in made
    assert base64.b64encode(text.encode()).decode() in made
    assert compile(made, "made", "exec")
    assert source(Wait()) == "time.sleep(2)"
    assert compile(source(Hotkey(("ctrl", "\\"))), "made", "exec")
