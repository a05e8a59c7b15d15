"""What a model writes: whatever it is, it is an action or a reason, soon, and it speaks to no terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from arpo.agent.dialects.uitars import UITars
from arpo.agent.grammar import parse
from arpo.engines.scripted import byte_vocabulary
from arpo.envs.pictures import describe
from arpo.errors import ParseError

pytestmark = pytest.mark.attack("model output")

MEGABYTE = 2**20
LONG = {
    "spaces before the colon": "Action" + " " * MEGABYTE,
    "lines that nearly open": "Action \n" * (MEGABYTE // 8),
    "a name": "Action: " + "a" * MEGABYTE,
    "spaces after a name": "Action: click" + " " * MEGABYTE,
    "backslashes": "Action: type(content='" + "\\" * MEGABYTE,
    "quotes": "Action: type(content='" + "'" * MEGABYTE,
    "quotes and spaces": "Action: type(content='" + "' " * (MEGABYTE // 2),
    "quotes and commas": "Action: type(content='" + "', a " * (MEGABYTE // 5),
    "quotes and names": "Action: type(content='" + "', " + "a" * MEGABYTE,
    "brackets": "Action: click(start_box='" + "(" * MEGABYTE + "')",
    "wrappers": "Action: click(start_box='" + "[(" * 90 + ")]" * 10 + "')",
    "digits": "Action: click(start_box='(" + "9" * MEGABYTE + ",1)')",
    "arguments": "Action: click(" + "start_box='(1,2)'," * (MEGABYTE // 20),
    "keys": "Action: hotkey(key='" + "ctrl+" * (MEGABYTE // 5) + "')",
    "fences": "Action: " + "`" * MEGABYTE,
    "thoughts": "Thought: " * (MEGABYTE // 9) + "\nAction: wait()",
    "what follows": "Action: wait()" + "`" * MEGABYTE,
}


@pytest.mark.parametrize("what", LONG)
def test_a_megabyte_is_read_within_a_minute_of_processor_time(what: str) -> None:
    """In a process of its own with a limit: a pattern that tries all ways would take longer than anybody waits."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\n"
        "from arpo.agent.grammar import parse\nfrom arpo.errors import ParseError\n"
        "try:\n    parse(sys.stdin.read(), lambda x, y: (round(x), round(y)))\n"
        "except ParseError as error:\n    assert str(error).isprintable() and len(str(error)) < 300\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=LONG[what], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


NUMBERS = [
    "1e999",
    "10**5000",
    "9" * 150,
    "-" + "9" * 150,
    "nan",
    "inf",
    "0x10",
    "1_000",
    "١٢",
    "1.",
    ".5",
    "--1",
    "1e5",
]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("size", [(448, 280), (1, 1), (1920, 1080)])
def test_a_number_of_any_kind_is_a_point_on_the_screen_or_refused(number: str, size: tuple[int, int]) -> None:
    dialect = UITars(byte_vocabulary())
    for box in (f"({number},{number})", f"({number},1)", f"(1,{number},3,{number})"):
        try:
            action = dialect.parse(f"Action: click(start_box='{box}')", size).action
        except ParseError as error:
            assert str(error).isprintable()
        else:
            assert all(isinstance(value, int) for value in (action.x, action.y))  # type: ignore[union-attr]


ODD = ["\x1b]0;mine\x07", "\x1b[2J", "\x9b2J", "\x00", "\ud800", "\u202e", "\r", "\x7f", "[red]x[/]", "\n" * 50]


@pytest.mark.parametrize("odd", ODD)
def test_no_reason_and_no_caption_speaks_to_the_terminal(odd: str) -> None:
    for reply in (odd, f"Action: {odd}", f"Action: {odd}(", f"Action: click({odd}", f"Action: click(start_box='{odd}')",
                  f"Action: hotkey(key='{odd}')", f"Action: scroll(start_box='(1,2)', direction='{odd}')",
                  f"Action: type(content='{odd}')", f"Action: finished(content='{odd}')"):  # fmt: skip
        try:
            said = describe(parse(reply, lambda x, y: (round(x), round(y))).action)
        except ParseError as error:
            said = str(error)
        assert said.isprintable(), said
