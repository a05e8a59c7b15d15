"""Run under the interpreter of OSWorld's client: it prepares tasks on machines that run already, and looks at them.

    in  {"do": "setup", "address": "127.0.0.1:5000:9222:8006:8080", "size": [1920, 1080], "task": {…}}
    in  {"do": "evaluate"}
        out {"call": "metric", "arguments": ["compare_archive", "base64…", {"t/a.zip": "base64…"}]}  in {"is": 0.5}
    out {"is": null}   {"is": 1.0}   {"error": "…"}

Standard library and client only. The sandbox that it runs in has the host's network (confined.py). The client is as it
comes, but for two things: its provider factory is replaced, since the machine is not its to start or to stop; and its
metrics, which read what the agent made, are not called here: the outside asks another process for them, which has no
network (osworld_worker.py).
"""

import base64
import pickle
import sys
from collections.abc import Callable
from typing import Any

from desktop_env import desktop_env  # type: ignore[import-not-found]

from .serving import FOLDER, Lines, confine, empty, kept, text_of

MOST_PROCESSES = 256  # Playwright brings a program of its own, with threads


class Provider:
    """A machine that is there."""

    def __init__(self, address: str) -> None:
        self.address = address

    def start_emulator(self, *_: object) -> None:
        pass

    def get_ip_address(self, *_: object) -> str:
        return self.address


def setup(lines: Lines, address: str, size: list[int], task: dict[str, Any]) -> Any:
    empty()  # there are files of the last agent in it
    desktop_env.create_vm_manager_and_provider = lambda *_, **__: (None, Provider(address))
    env = desktop_env.DesktopEnv(
        "docker", path_to_vm="arpo", screen_size=tuple(size), cache_dir=str(FOLDER), require_a11y_tree=False
    )
    # What its reset does, but that it goes on where the setup failed.
    env._set_task_info(task)

    def outside(name: str) -> Callable[..., float]:
        def metric(*arguments: Any, **options: Any) -> float:
            pickled = base64.b64encode(pickle.dumps((arguments, options))).decode()
            score: float = lines.ask("metric", name, pickled, kept())
            return score

        return metric

    wanted = task["evaluator"]["func"]
    env.metric = outside(wanted) if isinstance(wanted, str) else [outside(name) for name in wanted]
    env.setup_controller.reset_cache_dir(env.cache_dir)
    if not env.setup_controller.setup(env.config, False):
        raise RuntimeError("a setup step failed")
    return env


def main() -> None:
    lines = Lines(int(sys.argv[1]))
    confine(MOST_PROCESSES)
    env: Any = None
    while True:
        request = lines.hear()
        try:
            if request["do"] == "setup":
                details = {name: request[name] for name in ("address", "size", "task")}
                env, result = setup(lines, **details), None
            else:
                result = float(env.evaluate())
            lines.say(**{"is": result})
        except Exception as error:  # the outside decides what it means
            lines.say(error=text_of(error))
