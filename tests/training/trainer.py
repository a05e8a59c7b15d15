"""Trains in folders, each time until it is killed at some moment, and at last to the end. Run by test_loop.py.

    python trainer.py CHECKPOINT WORK.json      [{"folder": …, "settings": {…}, "moments": ["add3", …], "rough": …}, …]

A moment is a name and a number: `add3` is after the third stored episode. Each try is a process of its own, forked
before torch has done anything. Prints for each folder the tries: how they ended and what the store held then.
A rough one computes as some processors do, where last digits depend on how much is computed at once.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import sys
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from guesser import train_in

from arpo.config import Config
from arpo.engines.local import LocalEngine
from arpo.model.qwen import QwenVL
from arpo.model.vision import Tower
from arpo.runs.store import Run
from arpo.types import to_json

MOMENTS: dict[str, tuple[Any, str]] = {
    "image": (Run, "add_image"),  # in the middle of an episode
    "add": (Run, "add"),  # an episode is stored
    "step": (torch.optim.AdamW, "step"),  # in the middle of an update
    "write": (torch, "save"),  # in the middle of a checkpoint
    "load": (LocalEngine, "load"),  # the checkpoint is there, the line of metrics not yet
    "log": (Run, "log"),  # between two updates
}


def kill_at(moment: str) -> None:
    """Let this process die right after the nth call of a function (`load`, a coroutine, has then not begun)."""
    match = re.fullmatch(r"([a-z]+)(\d+)", moment)
    assert match is not None, moment
    owner, name = MOMENTS[match[1]]
    function: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count(1)

    def deadly(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if next(calls) == int(match[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, deadly)


def roughen() -> None:
    """Let results of the tower and of the last layer depend on how many rows there are, more than rounding does."""

    def rough(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda model, rows: function(model, rows) * (1 + 2e-6 * len(rows))

    Tower.forward = rough(Tower.forward)  # type: ignore[method-assign]
    QwenVL.scores = rough(QwenVL.scores)  # type: ignore[method-assign]


def attempt(model: Path, config: Config, folder: Path, moment: str | None, rough: bool) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if rough:
                roughen()
            if moment is not None:
                kill_at(moment)
            train_in(folder, model, config)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with Run.read(folder) as run:
        stored = {one.id: [one.score, zlib.crc32(to_json(one))] for one in run.trajectories()}
    return {"moment": moment, "status": status, "stored": stored}


if __name__ == "__main__":
    model, work = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    tries = {
        job["folder"]: [
            attempt(model, Config.model_validate(job["settings"]), Path(job["folder"]), moment, job["rough"])
            for moment in (*job["moments"], None)
        ]
        for job in work
    }
    print(json.dumps(tries))
