"""A learner in another process: the calls go through a pipe to a child that holds a LocalLearner."""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from arpo.algorithms.base import make_algorithm
from arpo.config import Config
from arpo.engines.base import Weights
from arpo.model.checkpoint import load_checkpoint
from arpo.training.base import Batch, Update
from arpo.training.learner import LocalLearner
from arpo.types import Observation


def serve(pipe: Connection, model: str, config: Config) -> None:
    learner = LocalLearner(load_checkpoint(model, "cpu"), config, make_algorithm(config.algorithm, config.seed))
    while (call := pipe.recv()) is not None:
        try:
            result = getattr(learner, call[0])(*call[1])
            if call[0] in ("publish", "save"):  # what is returned cannot travel, what it writes can
                result = result.path() if call[0] == "publish" else result()
            pipe.send((True, result, learner.version))
        except Exception as error:
            pipe.send((False, error, learner.version))


class ProcessLearner:
    def __init__(self, model: str, config: Config) -> None:
        self.version = 0
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._child = context.Process(target=serve, args=(theirs, model, config))
        self._child.start()

    def update(self, batches: Sequence[Batch], screens: Mapping[str, Observation]) -> Update:
        return self._ask("update", batches, screens)

    def publish(self, folder: Path) -> Weights:
        return Weights(self._ask("publish", folder))

    def save(self, folder: Path) -> Callable[[], dict[str, Any]]:
        state = self._ask("save", folder)
        return lambda: state

    def restore(self, folder: Path, state: dict[str, Any]) -> None:
        self._ask("restore", folder, state)

    def close(self) -> None:
        self._pipe.send(None)
        self._child.join()

    def _ask(self, method: str, *arguments: Any) -> Any:
        self._pipe.send((method, arguments))
        good, value, self.version = self._pipe.recv()
        if good:
            return value
        raise value
