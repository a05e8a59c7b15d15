"""OSWorld's own client, in an interpreter and a sandbox of its own: prepares and scores a task on a machine."""

import base64
from typing import Any

from arpo.envs.client_process import ClientProcess, clipped, number
from arpo.envs.evaluators import Unreadable, evaluators
from arpo.envs.osworld.machine import PORTS
from arpo.errors import ConfigError, EnvError
from arpo.types import Task

SETUP_S = 600.0


class Client:
    """Started when it is first needed.

    It has the host's network, to reach the machine and to fetch what tasks need, and is held in a sandbox otherwise.
    Metrics are asked of another one without a network (evaluators.py).
    """

    def __init__(self, python: str) -> None:
        self._python, self._metrics = python, evaluators(python)
        self._process: ClientProcess | None = None

    def setup(self, ports: dict[str, int], size: tuple[int, int], task: Task) -> None:
        if self._process is None:
            try:
                self._process = ClientProcess(self._python, "osworld_setup", "OSWorld's client", network=True)
            except (OSError, EnvError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(f"env.osworld_python={self._python}: {reason}") from None
        address = ":".join(["127.0.0.1", *(str(ports[name]) for name in PORTS)])
        data = {"id": task.id, "instruction": task.instruction, "evaluator": task.evaluator, **task.setup}
        self._ask({"do": "setup", "address": address, "size": size, "task": data})

    def evaluate(self) -> float:
        """0 … 1, whatever number a metric finds in the agent's file."""
        return min(1.0, max(0.0, number(self._ask({"do": "evaluate"}), "OSWorld's client")))

    def close(self) -> None:
        """May be called twice."""
        if self._process is not None:
            process, self._process = self._process, None
            process.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process is not None
        try:
            reply = self._process.ask(request, SETUP_S, self._metric)
        except BaseException:
            self.close()
            raise
        if "is" not in reply:
            raise EnvError(f"OSWorld's client: {clipped(reply.get('error'))}")
        return reply["is"]

    def _metric(self, call: str, arguments: list[Any]) -> float:
        """What it asks back. What the agent's file took over the limits of its checker scores 0."""
        if call != "metric":
            raise ValueError(f"there is no {call!r:.80}")
        name, pickled, files = arguments
        try:
            data = {path: base64.b64decode(text) for path, text in files.items()}
            return self._metrics.score({"metric": name, "pickled": pickled}, data)
        except Unreadable:
            return 0.0
