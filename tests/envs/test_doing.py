"""Who waits is told what is being done: on a terminal in one line that goes, elsewhere in lines of their own."""

import io

import pytest
from rich.console import Console

from arpo.envs.progress import doing


def test_on_a_terminal_it_is_a_line_that_goes(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    with doing(Console(file=screen, force_terminal=True, width=80)) as now:
        now("one [thing] " + 80 * "-")
    assert "one [thing] ---" in screen.getvalue()
    assert screen.getvalue().count("\n") == 1  # it fits on the line, which is left once, at the end
    assert screen.getvalue().endswith("\x1b[2K")  # the line is empty again
    assert capsys.readouterr() == ("", "")


def test_elsewhere_it_is_a_line_each_on_standard_error_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    screen = io.StringIO()
    with doing(Console(file=screen)) as now:
        now("one [thing]")
        assert capsys.readouterr() == ("", "one [thing]\n")
        now("another")
        assert capsys.readouterr() == ("", "another\n")
    assert screen.getvalue() == ""
