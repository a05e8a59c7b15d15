"""OSWorld's own evaluators, where its client is installed: for the checkers that are not here (checks/).

    client("osworld/bin/python").metric("compare_pptx_files", [found, wanted], {})      0 … 1

`env.osworld_python` names the client's interpreter; one process of it (osworld_worker.py) serves all environments of
this one, so its dependencies never meet ours. It is started when a task first needs it.
"""

from __future__ import annotations

import base64
import os
import threading
from functools import cache
from importlib import resources
from typing import Any

from arpo.envs.conversation import Conversation
from arpo.envs.desktop.checks.getters import (
    Machine,
    list_directory,
    vm_screen_size,
    vm_terminal_output,
    vm_window_size,
)
from arpo.errors import ConfigError, EnvError

START_S, CALL_S = 120.0, 300.0  # limits; its imports take some five seconds


@cache
def client(python: str) -> Client:
    """The one of this process, not yet started."""
    return Client(python)


class Client:
    """See the module. Any thread may call; one call at a time is served."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._lock = threading.RLock()
        self._talk: Conversation | None = None
        self._names: dict[str, frozenset[str]] = {}

    def has_metric(self, name: str) -> bool:
        return name in self._known("metrics")

    def has_getter(self, name: str) -> bool:
        return name in self._known("getters")

    def metric(self, name: str, arguments: list[Any], options: dict[str, Any]) -> float:
        score: float = self._call({"metric": name, "arguments": arguments, "options": options}, None)
        return score

    def get(self, name: str, machine: Machine, config: dict[str, Any]) -> Any:
        return self._call({"getter": name, "config": config, "cache": str(machine.cache)}, machine)

    def close(self) -> None:
        with self._lock:
            if self._talk is not None:
                self._talk.close()
                self._talk = None

    def _known(self, what: str) -> frozenset[str]:
        with self._lock:
            if not self._names:
                self._start()
            return self._names[what]

    def _start(self) -> Conversation:
        worker = resources.files(__package__).joinpath("osworld_worker.py")
        try:
            # -P: in the worker's folder there is a pyautogui, a setup and others of the client's names
            command = [os.path.expanduser(self._python), "-P", str(worker)]
            self._talk = Conversation(command, "OSWorld's evaluators")
            said = self._talk.hear(START_S)
        except (OSError, EnvError) as error:
            self.close()
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"env.osworld_python={self._python}: {reason}") from None
        if "error" in said:
            self.close()
            raise ConfigError(f"env.osworld_python={self._python} has not got OSWorld's client: {said['error']}")
        self._names = {what: frozenset(names) for what, names in said.items()}
        return self._talk

    def _call(self, request: dict[str, Any], machine: Machine | None) -> Any:
        """EnvError where an evaluator raised, hangs or took the process with it; the next call has a new one."""
        with self._lock:
            try:
                talk = self._talk or self._start()
                talk.say(request)
                while "call" in (reply := talk.hear(CALL_S)):
                    assert machine is not None, reply
                    talk.say({"is": _answer(machine, reply["call"], reply["arguments"])})
            except BaseException:
                self.close()
                raise
        if "error" in reply:
            raise EnvError(f"OSWorld's evaluator {request.get('metric') or request['getter']} failed: {reply['error']}")
        return reply["is"]


def _answer(machine: Machine, call: str, arguments: list[Any]) -> Any:
    """What OSWorld's controller of the machine would say."""
    match call:
        case "get_file":
            data = machine.read(*arguments)
            return None if data is None else base64.b64encode(data).decode()
        case "execute_python_command":
            ran = machine.run(["python", "-c", *arguments])
            return None if ran is None else {"status": "success", "output": ran.out, "error": ran.err}
        case "get_vm_screen_size":
            return vm_screen_size(machine)
        case "get_vm_window_size":
            return vm_window_size(machine, *arguments)
        case "get_vm_directory_tree":
            return list_directory(machine, *arguments)
        case "get_vm_desktop_path":
            return "/home/user/Desktop"
        case "get_terminal_output":
            return vm_terminal_output(machine)
    raise AssertionError(call)
