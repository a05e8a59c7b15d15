"""Run under the interpreter of OSWorld's client: plays task files against `arpo envs serve` and says the scores.

    python osworld_client_worker.py 127.0.0.1:5000:43101:0:43102 CACHE < jobs      one JSON line an episode
    {"task": {…}, "actions": ["pyautogui.click(9, 9)", "DONE"]}                    {"score": 1.0, "done": true, …}

The client is as it comes from PyPI; only its provider factory is replaced, as a user of `arpo envs serve` does.
"""

import json
import sys
import time

import requests
from desktop_env import desktop_env


class Provider:
    def __init__(self, address: str) -> None:
        self.address = address

    def start_emulator(self, path: str, headless: bool, os_type: str) -> None:
        """It runs."""

    def get_ip_address(self, path: str) -> str:
        return self.address

    def revert_to_snapshot(self, path: str, name: str) -> str:
        host, port, *_ = self.address.split(":")
        requests.post(f"http://{host}:{port}/reset").raise_for_status()
        return path

    def stop_emulator(self, path: str) -> None:
        """It goes on: it is not the client's."""


def until_still(env: desktop_env.DesktopEnv) -> None:
    """A busy machine draws late: an expert that knows where to click must not click before."""
    shown: list[bytes] = []
    while len(shown) < 60 and (len(shown) < 3 or len(set(shown[-3:])) > 1):
        time.sleep(0.5)
        shown.append(env.controller.get_screenshot())


def main(address: str, cache: str) -> None:
    desktop_env.create_vm_manager_and_provider = lambda *_, **__: (None, Provider(address))
    env = desktop_env.DesktopEnv("docker", path_to_vm="arpo", screen_size=(1280, 720), cache_dir=cache)
    for line in sys.stdin:
        job = json.loads(line)
        env.is_environment_used = True  # else the first episode would find what an earlier client has left
        observation, done, info = env.reset(job["task"]), False, {}
        for action in job["actions"]:
            until_still(env)
            observation, _, done, info = env.step(action, pause=1.0)
        found = {
            "score": float(env.evaluate()),
            "done": done,
            "info": info,
            "instruction": observation["instruction"],
            "screenshot": observation["screenshot"][:8].hex(),
            "tree": observation["accessibility_tree"][:14],
        }
        print("RESULT " + json.dumps(found), flush=True)  # getters print, too


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
