"""What a training shows while it learns."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from guesser import settings
from rich.console import Console

from arpo.tasks.load import JUDGED
from arpo.training import progress
from arpo.training.command import print_summary
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
    assert any(
        re.search(r"a score\)  ends [\d: -]+  0:01:00 left  update   2  episodes 1 of 4", line)
        for line in said(console)
    )


NUMBERS = {
    "success": 0.25,
    "episodes": 12_000,
    "errors": 288,
    "reward": -0.25,
    "failed_groups": 0.5,
    "replayed_groups": 0.125,
    "lag": 1.25,
    "sampler_gap": 0.00123,
    "sampled_tokens": 12_000,
    "env_steps": 150,
}


@pytest.mark.parametrize("width", [60, 80, 200])
def test_an_update_fits_the_terminal_and_shows_every_number_that_matters(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=True)
    with Learning(settings(updates=12_000), console, []) as learning:
        learning.update(metrics(0) | NUMBERS)
        learning.episode(1)
    lines = [re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", line) for line in said(console)]
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for shown in (
        *("update 1", "success 25% (of 12,288 episodes, 288 without a score)", "reward -0.25", "all failed 50%"),
        *("replayed 12%", "lag 1.2", "gap 1.2e-03", "2.5 steps/s", "200 tokens/s", "8 days, 7:59:00 left"),
        *("update 2 episodes 1 of 4", "learning", "1/12000"),
    ):
        assert shown in text, shown
    assert re.search(r"ends \d{4}-\d\d-\d\d \d\d:\d\d ", text)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_at_the_end_fits_the_terminal_and_nothing_of_it_is_cut(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers: dict[str, Any] = {}
    for split in JUDGED:
        numbers |= {f"crashed_{split}": [], f"gain_{split}": 0.25, f"gain_{split}_ci95": [0.125, 0.375]}
        for when, rate in (("base", 0.25), ("final", 0.5)):
            numbers |= {f"{when}_{split}": rate, f"{when}_{split}_ci95": [0.1, 0.9]}
            numbers[f"{when}_{split}_counts"] = [12_288, 512]
    monkeypatch.setenv("COLUMNS", str(width))
    print_summary(numbers, Path("run"))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    for split in JUDGED:
        assert split in text
    assert text.count("25.0% (10% to 90%; of 12,288 episodes, 512 without a score)") == len(JUDGED)
    assert text.count("50.0% (10% to 90%; of 12,288 episodes, 512 without a score)") == len(JUDGED)
    assert text.count("+25.0 points (+12 to +38)") == len(JUDGED)


def test_in_a_file_an_update_is_one_line() -> None:
    console = Console(file=io.StringIO(), width=60)
    with Learning(settings(updates=2), console, []) as learning:
        learning.update(metrics(0) | NUMBERS)
    first, line = said(console)
    assert first.startswith("learning; updates to make: 2")
    assert re.search(r"^update   1  success  25% .*  200 tokens/s  ends [\d: -]+  0:01:00 left$", line)


def test_what_a_learner_does_not_tell_is_left_out() -> None:
    with Learning(settings(updates=1), console := plain(), []) as learning:
        learning.update(metrics(0, env_steps=0))
    assert not re.search("lag|gap|steps/s", said(console)[-1])


def test_where_nothing_is_left_to_do_nothing_is_said() -> None:
    with Learning(settings(updates=1), console := plain(), [metrics(0)]):
        pass
    assert said(console) == []
