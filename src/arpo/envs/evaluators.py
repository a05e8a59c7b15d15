"""OSWorld's own evaluators, its metrics and getters, where its client is installed.

    evaluators("osworld/bin/python").metric("compare_pptx_files", [result, expected], {}, folder)      0 … 1

`env.osworld_python` names the client's interpreter; one process of it (desktop/guest/osworld_worker.py) serves all
environments of this process, so its dependencies never meet ours. It is started when a task first needs it, in its own
sandbox (confined.py): files go to it and come from it as part of what is asked and answered. worker.py says what its
limits mean.
"""

from __future__ import annotations

import base64
import threading
from functools import cache
from pathlib import Path
from typing import Any

from arpo.envs.client_process import Answer, ClientProcess, Files, number
from arpo.envs.confined import SCRATCH, SCRATCH_MB
from arpo.envs.worker import Limits, Unreadable, Worker
from arpo.errors import ConfigError, EnvError

__all__ = ["Evaluators", "Unreadable", "evaluators", "files_of", "moved"]

START_S, CALL_S = 120.0, 300.0  # limits; its imports take some five seconds
CPU_S = 60  # of processor time: what takes longer was made to
METRIC_S = 300.0  # by the clock, which runs for a busy machine, too
METRIC_BYTES, GETTER_BYTES = 1 << 16, 128 << 20  # of a reply: a number, or files as text
MEMORY = 3 << 30  # bytes of one process
FOLDER = f"{SCRATCH}/files"  # where the worker has the files of a question
PAGE = 4096  # what a file takes at least


@cache
def evaluators(python: str) -> Evaluators:
    """The ones of this process, not yet started."""
    return Evaluators(python)


class Evaluators:
    """See the module. Any thread may call; one call at a time is served."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._lock = threading.RLock()
        self._worker: Worker | None = None
        self._names: dict[str, frozenset[str]] = {}

    def has_metric(self, name: str) -> bool:
        return name in self.known("metrics")

    def has_getter(self, name: str) -> bool:
        return name in self.known("getters")

    def known(self, what: str) -> frozenset[str]:
        """Names: of its `metrics` and `getters` that are asked here, of `every_getter`, of the metrics `refused`."""
        with self._lock:
            if not self._names:
                self._started()
            return self._names[what]

    def metric(self, name: str, arguments: list[Any], options: dict[str, Any], folder: Path | None = None) -> float:
        """`folder`: where the files are whose paths are among the arguments."""
        files = {} if folder is None else files_of(folder)
        arguments = arguments if folder is None else moved(arguments, str(folder), FOLDER)
        return self.score({"metric": name, "arguments": arguments, "options": options}, files)

    def score(self, request: dict[str, Any], files: Files) -> float:
        """A metric, as the worker is asked for it."""
        value = self._call(request, METRIC_S + CALL_S, METRIC_S, METRIC_BYTES, None, files)["is"]
        return number(value, f"OSWorld's evaluator {request['metric']}")

    def get(self, name: str, config: dict[str, Any], folder: Path, answer: Answer) -> Any:
        """`folder`: where to keep the files that it brings. `answer`: what OSWorld's controller of the machine says."""
        request = {"getter": name, "config": config}
        reply = self._call(request, CALL_S, 2 * CALL_S, GETTER_BYTES, answer)  # the machine's time is not the agent's
        _keep(reply.get("files"), folder)
        try:
            return moved(reply["is"], FOLDER, str(folder))
        except RecursionError:
            raise EnvError(f"OSWorld's evaluator {name} gives lists in lists without end") from None

    def close(self) -> None:
        with self._lock:
            if self._worker is not None:
                worker, self._worker = self._worker, None
                worker.close()

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._start)
        return self._worker

    def _start(self) -> ClientProcess:
        process: ClientProcess | None = None
        try:
            process = ClientProcess(self._python, "osworld_worker", "OSWorld's evaluators")
            said = process.hear(START_S)
        except (OSError, EnvError) as error:
            if process is not None:
                process.close()
            if self._names:  # it has run before: the setting is right
                raise EnvError(f"OSWorld's evaluators cannot be started again: {error}") from error
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"env.osworld_python={self._python}: {reason}") from None
        if "error" in said:
            process.close()
            raise ConfigError(f"env.osworld_python={self._python} has not got OSWorld's client: {said['error']}")
        self._names = {what: frozenset(names) for what, names in said.items() if isinstance(names, list)}
        return process

    def _call(
        self,
        request: dict[str, Any],
        within_s: float,
        limit_s: float,
        longest: int,
        answer: Answer | None = None,
        files: Files | None = None,
    ) -> dict[str, Any]:
        what = f"OSWorld's evaluator {request.get('metric') or request['getter']}"
        with self._lock:
            return self._started().call(what, request, within_s, Limits(CPU_S, limit_s, MEMORY, longest), answer, files)


def files_of(folder: Path) -> dict[str, Path]:
    """All files of a folder, to be sent. Unreadable where they are more than the sandbox holds."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    if sum(path.stat().st_size + PAGE for path in paths) > SCRATCH_MB << 20:
        raise Unreadable(f"files of more than {SCRATCH_MB} MB")
    return {str(path.relative_to(folder)): path for path in paths}


def _keep(files: Any, folder: Path) -> None:
    """Keep files that came with a reply. What reads an agent's files names them, so none may lead elsewhere."""
    try:
        for name, data in files.items():
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{name!r:.80} is no name of a file")
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(base64.b64decode(data))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise EnvError(f"what OSWorld's evaluators give cannot be kept: {error}") from error


def moved(value: Any, old: str, new: str) -> Any:
    """The same, with the paths in one folder become those in another."""
    if isinstance(value, list):
        return [moved(one, old, new) for one in value]
    if isinstance(value, str) and value.startswith(f"{old}/") and ".." not in value.split("/"):
        return new + value[len(old) :]
    return value
