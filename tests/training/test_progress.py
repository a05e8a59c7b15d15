"""What a training shows while it learns."""

from __future__ import annotations

import io
from typing import Any

import pytest
from guesser import settings
from rich.console import Console

from arpo.training import progress
from arpo.training.progress import Learning


def metrics(update: int, env_steps: int = 50, seconds: float = 60.0) -> dict[str, Any]:
    names = ("success", "reward", "failed_groups", "replayed_groups", "sampled_tokens", "learn_s")
    return {"update": update, "env_steps": env_steps, "sample_s": seconds} | dict.fromkeys(names, 0.0)


def plain() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("updates", "env_steps", "left"),
    [
        (10, None, "0:08:00"),  # 8 more of a minute
        (10, 300, "0:04:00"),  # 200 steps, of which an update takes 50
        (10, 301, "0:05:00"),
        (3, 300, "0:01:00"),
        (10, 60, "0:00:00"),
    ],
)
def test_the_time_left_is_that_to_the_last_update_or_to_the_end_of_the_budget(
    updates: int, env_steps: int | None, left: str
) -> None:
    with Learning(settings(updates=updates, env_steps=env_steps), console := plain(), [metrics(0)]) as learning:
        learning.update(metrics(1))
    assert said(console)[-1].endswith(f"  {left} left")


def test_an_update_that_is_made_again_spends_nothing() -> None:
    with Learning(settings(updates=10, env_steps=300), console := plain(), [metrics(0), metrics(1)]) as learning:
        learning.update(metrics(1))
    assert said(console)[-1].endswith("  0:04:00 left")


@pytest.mark.parametrize(("algorithm", "of"), [({"name": "grpo"}, " of 4"), ({"name": "dapo"}, "")])
def test_without_a_terminal_there_is_a_line_at_the_beginning_and_now_and_then_inside_an_update(
    algorithm: dict[str, Any], of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Learning(settings(algorithm, updates=2), console := plain(), []) as learning:
        learning.episode(0)
        monkeypatch.setattr(progress, "QUIET_S", 0.0)
        learning.episode(0)
        learning.episode(1)
    assert said(console) == [
        "learning; updates to make: 2, each of 4 episodes",
        f"update   1  episodes 2{of}",
        f"update   2  episodes 1{of}",
    ]


def test_a_terminal_has_a_bar_that_counts_the_episodes_of_an_update() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with Learning(settings(updates=2), console, [metrics(0)]) as learning:
        learning.episode(1)
    assert any("0 without a score)  0:01:00 left  update   2  episodes 1 of 4" in line for line in said(console))


def test_where_nothing_is_left_to_do_nothing_is_said() -> None:
    with Learning(settings(updates=1), console := plain(), [metrics(0)]):
        pass
    assert said(console) == []
