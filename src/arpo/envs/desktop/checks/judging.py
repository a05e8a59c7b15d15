"""The processes in which checkers of ours run: each in a sandbox (envs/confined.py), a question at a time.

    judges().judge("t-1: its checker", evaluator, fetched, theirs, folder)

All environments of this process share them. One is enough for many, and there are up to MOST: an agent whose file keeps
one busy to the end of its limits does not keep the others waiting.
"""

import contextlib
import queue
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy
import PIL
import pydantic
import yaml

from arpo.envs.client_process import ClientProcess
from arpo.envs.evaluators import FOLDER, files_of, moved
from arpo.envs.worker import Limits, Worker
from arpo.errors import EnvError

MOST = 4
# Where arpo is and what it reads with, which may be known to this process alone (PYTHONPATH).
PACKAGES = [
    Path(__file__).parents[4],
    *sorted({Path(str(one.__file__)).parents[1] for one in (PIL, numpy, pydantic, yaml)}),
]
START_S, WAIT_S, PATIENCE_S = 60.0, 300.0, 0.5
LIMITS = Limits(cpu_s=30, limit_s=200.0, memory=1 << 30, longest=1 << 20)


@cache
def judges() -> "Judges":
    """The ones of this process, not yet started."""
    return Judges()


class Judges:
    """See the module. Any thread may call."""

    def __init__(self) -> None:
        self._lock, self._made = threading.Lock(), 0
        self._free: queue.LifoQueue[Worker] = queue.LifoQueue()

    def judge(
        self, who: str, evaluator: dict[str, Any], fetched: dict[str, list[Any]], theirs: list[bool], folder: Path
    ) -> list[Any]:
        """See judge.py; `folder`: where the files are. Unreadable where they take it over its limits."""
        request = {"evaluator": evaluator, "fetched": _inside(fetched, folder), "theirs": theirs}
        files = files_of(folder)
        worker = self._take()
        try:
            verdicts = worker.call(who, request, WAIT_S, LIMITS, files=files)["is"]
        finally:
            self._free.put(worker)
        if not isinstance(verdicts, list) or len(verdicts) != len(theirs):
            raise EnvError(f"{who} says something else than was asked")
        return verdicts

    def start(self) -> None:
        """Before it is needed."""
        self._free.put(self._take())

    def close(self) -> None:
        """Those that nobody uses now."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait().close()
                self._made -= 1

    def _take(self) -> Worker:
        """A free one; a new one where there is none for a while, since to start it takes longer than most questions."""
        for patience_s in (PATIENCE_S, WAIT_S):
            with self._lock:
                first = not self._made
                self._made += first
            with contextlib.suppress(queue.Empty):
                return self._new() if first else self._free.get(timeout=patience_s)
            with self._lock:
                more = self._made < MOST
                self._made += more
            if more:
                return self._new()
        raise EnvError(f"the {MOST} processes of checkers are all at work for {WAIT_S:g} s")

    def _new(self) -> Worker:
        try:
            return Worker(_start)
        except BaseException:
            with self._lock:
                self._made -= 1
            raise


def _inside(fetched: dict[str, list[Any]], folder: Path) -> dict[str, list[Any]]:
    return {key: moved(values, str(folder), FOLDER) for key, values in fetched.items()}


def _start() -> ClientProcess:
    process: ClientProcess | None = None
    try:
        process = ClientProcess(sys.executable, "judge_worker", "checkers", packages=PACKAGES)
        process.hear(START_S)
    except (OSError, EnvError) as error:
        if process is not None:
            process.close()
        raise EnvError(f"checkers cannot be run in their sandbox: {error}") from error
    return process
