"""Run under the interpreter of OSWorld's client: it prepares tasks on machines that run already, and scores them there.

    in  {"do": "setup", "address": "127.0.0.1:5000:9222:8006:8080", "size": [1920, 1080], "cache": "…", "task": {…}}
    in  {"do": "evaluate"}
    out {"is": null}   {"is": 1.0}   {"error": "…"}

Standard library and client only. The client is as it comes; only its provider factory is replaced, since the machine is
not its to start or to stop, and some metrics are refused (desktop/osworld_worker.py says which and why).
"""

import json
import os
import sys
from importlib import util
from pathlib import Path
from typing import Any

from desktop_env import desktop_env  # type: ignore[import-not-found]


class Provider:
    """A machine that is there."""

    def __init__(self, address: str) -> None:
        self.address = address

    def start_emulator(self, *_: object) -> None:
        pass

    def get_ip_address(self, *_: object) -> str:
        return self.address


def worker() -> Any:
    """That file, as a module. Not by its folder in `sys.path`: there are files of ours with names of packages."""
    spec = util.spec_from_file_location("osworld_worker", Path(__file__).parent / "desktop" / "osworld_worker.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def setup(address: str, size: list[int], cache: str, task: dict[str, Any]) -> Any:
    wanted, offered = task["evaluator"]["func"], worker().usable(desktop_env.metrics)
    if refused := [name for name in ([wanted] if isinstance(wanted, str) else wanted) if name not in offered]:
        raise RuntimeError(f"the metric {', '.join(refused)} is not used here: docs/osworld-tasks.md says why")
    desktop_env.create_vm_manager_and_provider = lambda *_, **__: (None, Provider(address))
    env = desktop_env.DesktopEnv(
        "docker", path_to_vm="arpo", screen_size=tuple(size), cache_dir=cache, require_a11y_tree=False
    )
    # What its reset does, but that it goes on where the setup failed.
    env._set_task_info(task)
    env.setup_controller.reset_cache_dir(env.cache_dir)
    if not env.setup_controller.setup(env.config, False):
        raise RuntimeError("a setup step failed")
    return env


def main() -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # getters print
    env: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request.pop("do") == "setup":
                env, found = setup(**request), None
            else:
                found = float(env.evaluate())
            reply: dict[str, Any] = {"is": found}
        except Exception as error:  # the outside decides what it means
            reply = {"error": f"{type(error).__name__}: {error}"}
        output.write(json.dumps(reply) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
