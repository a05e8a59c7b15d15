"""The environment keeps its contract, every episode starts anew, and lost machinery is no score."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from traces import kill, patient, wait_until

from arpo.agent.actions import Click, Fail, Finish, Hotkey, Type
from arpo.envs.base import make
from arpo.envs.check import check
from arpo.envs.desktop import env as module
from arpo.envs.desktop.env import DesktopEnv
from arpo.errors import ActionError, ConfigError, EnvError, Ruined, TaskError
from arpo.images import decode
from arpo.types import Task

pytestmark = pytest.mark.desktop("mousepad", "xterm")


def make_task(program: str = "mousepad", *before: str, name: str = "one") -> Task:
    """Solved by a file `done` with the word yes; `before`: shell lines that prepare the machine."""
    steps = [{"type": "execute", "parameters": {"command": line, "shell": True}} for line in before]
    evaluator = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "cat done || true", "shell": True},
        "expected": {"type": "rule", "rules": {"expected": "yes\n"}},
    }
    setup = {"config": [*steps, {"type": "launch", "parameters": {"command": [program]}}]}
    return Task(name, "tests", "Do it.", "desktop", setup, evaluator, "test")


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Iterator[DesktopEnv]:
    for name in ("SETTLE_S", "START_SETTLE_S"):
        monkeypatch.setattr(module, name, getattr(module, name))  # as it was before, when the test is over
    env = patient()
    yield env
    env.close()


@pytest.mark.slow
def test_it_keeps_every_promise_of_the_contract() -> None:
    infeasible = Task("never", "tests", "Fly.", "desktop", make_task().setup, {"func": "infeasible"}, "test")
    results = check("desktop", partial(make, "desktop", size=(1280, 720)), [make_task(), infeasible], False)
    assert {result.promise: result.detail for result in results if not result.ok} == {}


def test_an_episode_is_scored_by_what_the_agent_did(env: DesktopEnv) -> None:
    env.reset(make_task("xterm"), 0)
    assert env.score() == 0
    env.step(Type("echo yes > done\n"))
    assert env.score() == 1
    env.step(Finish())
    assert env.score() == 1


def test_the_record_says_how_long_the_screen_took(env: DesktopEnv) -> None:
    start = env.reset(make_task(), 0)
    typed = env.step(Type("hello"))
    assert start.hash != typed.hash
    assert typed.settle_s > 0
    assert env.step(Finish()).settle_s == 0  # nothing was waited for
    assert decode(typed.image).shape == (720, 1280, 3)


def test_a_screen_that_never_rests_is_looked_at_in_the_end(env: DesktopEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env.reset(make_task("xterm"), 0)
    monkeypatch.setattr(module, "SETTLE_S", 2.0)
    assert env.step(Type("while true; do date +%N; done\n")).settle_s >= module.SETTLE_S


def test_each_episode_starts_anew_also_from_a_spare_that_was_set_up_before(env: DesktopEnv) -> None:
    task = make_task("xterm", "echo set up >> log")
    for _ in range(4):
        env.reset(task, 0)
        assert env.sandbox.run(["cat", "log"]).out == "set up\n"  # once, and here
        assert env.score() == 0
        env.step(Type("echo yes > done\n"))
        assert env.score() == 1
        env.wait_for_spare()


def test_a_spare_that_was_set_up_for_another_task_is_not_used(env: DesktopEnv) -> None:
    for _ in range(2):
        env.reset(make_task(), 0)
    env.wait_for_spare()
    env.reset(make_task("xterm", name="other"), 0)
    assert [window["class"][0] for window in env.sandbox.ask("windows")] == ["xterm"]


def with_spares_that(do: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares are set up by threads of their own; there something else happens."""
    real = module.prepare

    def prepare(*given: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            real(*given)
        else:
            do()

    monkeypatch.setattr(module, "prepare", prepare)


def test_a_spare_that_is_being_set_up_for_another_task_is_not_waited_for(
    env: DesktopEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, waited = threading.Event(), list[bool]()
    with_spares_that(lambda: waited.append(over.wait(120)), monkeypatch)
    for task in (make_task(), make_task(), make_task("xterm", name="other")):
        env.reset(task, 0)
    assert waited == []
    over.set()


def test_nothing_is_left_of_a_spare_that_failed_in_an_unknown_way(
    env: DesktopEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("settle: refused")

    with_spares_that(fail, monkeypatch)
    for _ in range(2):
        env.reset(make_task(), 0)
    assert env._spare is not None
    spare = env._spare.sandbox
    with pytest.raises(ValueError, match="refused"):
        env.reset(make_task(), 0)
    assert not spare.alive and env.sandboxes == [env.sandbox]
    assert env.reset(make_task(), 0)


def test_without_memory_for_a_spare_a_reset_makes_its_own(env: DesktopEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    env.reset(make_task(), 0)
    monkeypatch.setattr(module, "_room", lambda mb: False)
    started: list[object] = []
    monkeypatch.setattr(module, "Ready", lambda *given: started.append(given))
    env.step(Hotkey(("esc",)))  # the spare is given up
    assert env._spare is None and started == []
    monkeypatch.undo()
    assert env.reset(make_task(), 0)


def test_a_spare_that_died_is_replaced(env: DesktopEnv) -> None:
    env.reset(make_task(), 0)
    env.wait_for_spare()
    assert env._spare is not None
    env._spare.sandbox.close()
    env.reset(make_task(), 0)
    assert env.sandbox.ask("windows")


def test_an_application_that_ends_is_the_world(env: DesktopEnv) -> None:
    env.reset(make_task(), 0)
    env.sandbox.run("pkill -KILL mousepad")
    assert env.step(Click(10, 10))
    assert env.score() == 0


@pytest.mark.parametrize("program", ["Xvfb", "/usr/bin/python3", "sh"])
def test_lost_machinery_is_an_error_and_never_a_score(program: str, env: DesktopEnv) -> None:
    env.reset(make_task(), 0)
    kill(env.sandbox, program)
    with pytest.raises(EnvError):
        env.step(Click(10, 10))
    with pytest.raises(EnvError):
        env.score()
    assert env.reset(make_task(), 0)  # this one is lost, the environment is not


@pytest.mark.attack("agent")
def test_an_agent_that_breaks_its_desktop_where_it_would_fail_scores_0(
    env: DesktopEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.reset(make_task(), 0)
    hold = "d = display.Display(); d.grab_server(); d.sync(); print(1, flush=True); time.sleep(1000)"
    env.sandbox.launch(f'python3 -c "import time; from Xlib import display; {hold}" > /tmp/held')
    wait_until(lambda: env.sandbox.run(["cat", "/tmp/held"]).out)
    ask = env.sandbox.ask
    quick = partial(ask, within_s=2.0)  # what the environment waits for half a minute
    monkeypatch.setattr(env.sandbox, "ask", lambda do, **more: (ask if do == "verdict" else quick)(do, **more))
    with pytest.raises(Ruined, match="a program has kept the X server for itself"):
        env.score()
    monkeypatch.undo()
    assert env.reset(make_task(), 0)


def test_a_setup_step_that_fails_is_machinery(env: DesktopEnv) -> None:
    with pytest.raises(EnvError, match="one: the setup step execute failed"):
        env.reset(make_task("xterm", "false"), 0)
    assert env.ended
    assert env.reset(make_task(), 0)


def test_refusals_come_before_anything_is_done(env: DesktopEnv) -> None:
    before = env.reset(make_task(), 0)
    for action in (Click(1280, 0), Hotkey(("ctrl", "hyperspace")), Type("x" * (module.LONGEST_TEXT + 1))):
        with pytest.raises(ActionError):
            env.step(action)
    unknown = {"config": [{"type": "teleport", "parameters": {}}]}
    with pytest.raises(TaskError, match="teleport"):
        env.reset(replace(make_task(), setup=unknown), 0)
    assert env.step(Hotkey(("shift",))).hash == before.hash
    env.step(Fail())
    assert env.score() == 0


def test_a_size_that_no_screen_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.size=10x10: a desktop's sides are from 200 to 8192"):
        DesktopEnv((10, 10))


def test_nothing_is_left_of_an_environment_that_was_closed_while_its_spare_came_up() -> None:
    env = DesktopEnv()
    env.reset(make_task(), 0)
    env.reset(make_task(), 0)
    processes = [env.sandbox._process.pid, env._spare.sandbox._process.pid]  # type: ignore[union-attr]
    env.close()
    time.sleep(0.1)
    for pid in processes:
        with pytest.raises(FileNotFoundError), open(f"/proc/{pid}/stat"):
            pass
