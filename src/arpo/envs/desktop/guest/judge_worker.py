"""Run under arpo's own interpreter, in a sandbox (envs/confined.py): the checkers of ours, asked by JSON lines.

    in  {"evaluator": {…}, "fetched": {"result": […], "expected": […]}, "theirs": [false], "files": {…}, …}
    out {"is": [1.0], …}

checks/judge.py says what is asked and answered; what is around that is in serving.py.
"""

import sys
from typing import Any

from PIL import Image

from arpo.envs.desktop.checks.judge import judge

from .serving import Lines, attend

MOST_PROCESSES = 8  # it starts none, and none of its parsers does


def main() -> None:
    Image.init()  # or every child would load what reads pictures anew

    def answer(own: Lines, request: dict[str, Any]) -> dict[str, Any]:
        return {"is": judge(request["evaluator"], request["fetched"], request["theirs"])}

    attend(Lines(int(sys.argv[1])), answer, MOST_PROCESSES)
