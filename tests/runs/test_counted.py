"""Progress without a terminal: lines now and then, neither silence nor one for each step."""

import io

from rich.console import Console

from arpo.runs.progress import counted


def lines(total: int, seconds: float) -> list[str]:
    """What is said over so many steps that take so long each."""
    now, said = 0.0, io.StringIO()
    with counted(Console(file=said, width=40), "evaluating", total, clock=lambda: now) as advance:
        for step in range(total):
            now += seconds
            advance(f"success so far {step}%")
    return said.getvalue().splitlines()


def test_every_further_tenth_is_said() -> None:
    said = lines(total=100, seconds=2.0)
    assert [line.split(",")[0] for line in said] == [f"evaluating: {done} of 100" for done in range(10, 100, 10)]
    assert said[0].startswith("evaluating: 10 of 100, success so far 9%")


def test_slow_work_is_not_silent_until_its_next_tenth() -> None:
    assert [line.split(",")[0] for line in lines(total=1000, seconds=15.0)][:2] == [
        "evaluating: 2 of 1000",
        "evaluating: 4 of 1000",
    ]


def test_what_is_soon_done_says_nothing() -> None:
    assert lines(total=6, seconds=1.0) == []
    assert lines(total=100, seconds=0.05) == []  # stored trials of a begun evaluation, say


def test_on_a_terminal_there_is_a_bar_instead() -> None:
    said = io.StringIO()
    now = 0.0
    with counted(Console(file=said, force_terminal=True), "evaluating", 4, clock=lambda: now) as advance:
        for _ in range(3):
            now += 100.0
            advance("success so far 9%")
    assert "evaluating: " not in said.getvalue() and "evaluating" in said.getvalue()
