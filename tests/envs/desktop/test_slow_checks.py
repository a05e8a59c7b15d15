"""An agent that would fail makes the check last: it scores 0. A limit from outside would make it no score at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arpo.config import EnvConfig
from arpo.envs.desktop import env, sandbox, setup
from arpo.envs.desktop.checks import score
from arpo.envs.desktop.checks.judging import LIMITS
from arpo.envs.evaluators import METRIC_S
from arpo.types import Task

pytestmark = pytest.mark.attack("agent")


class Hanging:
    """A desktop on which no command ends before its limit; it has a clock of its own."""

    size = (1280, 720)

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def run(self, argv: Any, limit_s: float = 120.0, *_: Any, **__: Any) -> sandbox.Ran:
        self.now += limit_s
        return sandbox.Ran(status=-9, out="", err="", late=True)

    def ask(self, what: str, *_: Any, **__: Any) -> Any:
        return {}

    @contextlib.contextmanager
    def frozen(self, awake: tuple[str, ...] = ()) -> Iterator[None]:
        yield


def test_commands_of_a_check_that_an_agent_makes_hang_score_0_within_one_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `mkfifo answer.txt` does to each `cat answer.txt`."""
    desktop = Hanging()
    monkeypatch.setattr(setup.time, "monotonic", desktop.monotonic)
    command = {"type": "vm_command_line", "command": ["cat", "answer.txt"]}
    step = {"type": "execute", "parameters": {"command": ["cat", "answer.txt"]}}
    evaluator = {
        "func": ["exact_match"] * 8,
        "result": [command] * 8,
        "expected": [{"type": "rule", "rules": {"expected": "done"}}] * 8,
        "postconfig": [step] * 4,
    }
    task = Task("t-1", "os", "Do it.", "desktop", {"config": []}, evaluator, "train")
    monkeypatch.setattr("arpo.envs.desktop.checks._score", lambda *_: 0.0)
    began = desktop.now
    assert score(desktop, task, "") == 0.0  # type: ignore[arg-type]
    assert desktop.now - began < setup.CHECKING_S + 20  # 12 commands; each that is late has one second


def test_what_an_agent_can_make_last_ends_before_a_worker_is_given_up() -> None:
    usual = EnvConfig()
    typing = sandbox.CALL_S + env.LONGEST_TEXT / 100
    assert typing + 2 * sandbox.CALL_S < usual.step_s  # with the verdict after it
    checking = setup.CHECKING_S + sandbox.CALL_S + max(LIMITS.limit_s, 2 * METRIC_S)
    assert checking + sandbox.CALL_S < usual.score_s


def test_the_limits_of_presets_with_desktops_are_those() -> None:
    for preset in Path(setup.__file__).parents[2].joinpath("configs").glob("*desktop*.yaml"):
        assert "step_s" not in preset.read_text() and "score_s" not in preset.read_text()
