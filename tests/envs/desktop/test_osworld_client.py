"""OSWorld's own client, as it comes from PyPI, plays OSWorld's own task files against `arpo envs serve desktop`."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arpo"
CLIENT = CACHE / "osworld-client"
EXAMPLES = HERE.parents[3] / "shared" / "osworld" / "examples"
TOKEN = "of-the-test"

pytestmark = [
    pytest.mark.desktop,
    pytest.mark.heavy,
    pytest.mark.skipif(
        not (CLIENT / "installed").exists(), reason="OSWorld's client is not installed: make osworld-client"
    ),
    pytest.mark.skipif(not EXAMPLES.is_dir(), reason="OSWorld's task files are not in ../shared/osworld"),
]


def by_terminal(line: str) -> list[str]:
    """The desktop's menu has a terminal."""
    return [
        "pyautogui.rightClick(1000, 650)",
        "pyautogui.press(['down', 'enter'])",
        f"pyautogui.write({line!r}); pyautogui.press('enter')",
        "WAIT",
        "DONE",
    ]


def by_vlc_preferences(x: int, y: int) -> list[str]:
    return ["pyautogui.hotkey('ctrl', 'p')", f"pyautogui.click({x}, {y})", "pyautogui.hotkey('alt', 's')", "DONE"]


EXPERTS = {
    "os/bedcedc4": by_terminal("gsettings set org.gnome.desktop.session idle-delay 0"),
    "os/f9be0997": by_terminal("gsettings set org.gnome.desktop.notifications show-banners false"),
    "os/a4d98375": by_terminal("gsettings set org.gnome.desktop.screensaver lock-enabled true"),
    "os/e0df059f": by_terminal("mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2"),
    "vlc/f3977615": by_vlc_preferences(280, 537),  # one instance when started from file manager
    "vlc/a5bbbcd5": by_vlc_preferences(418, 313),  # start in minimal view
    "chrome/2ae9ba84": [
        "pyautogui.hotkey('ctrl', 'l')",
        "pyautogui.write('chrome://settings/manageProfile')",
        "pyautogui.press('enter')",
        "pyautogui.press('tab')",
        "pyautogui.write('Thomas')",
        "pyautogui.press('tab')",
        "DONE",
    ],
    "os/a462a795": ["FAIL"],  # there is no user Charles
}
NEEDED = {"os": ["xterm", "gsettings"], "vlc": ["vlc"], "chrome": ["chromium", "socat"]}
Play = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """Plays one episode: the client in its interpreter, the server as a user starts it, a token between them."""
    folder = tmp_path_factory.mktemp("osworld")
    netrc = folder / "netrc"
    netrc.write_text(f"machine 127.0.0.1 login arpo password {TOKEN}\n")
    serve = [sys.executable, "-m", "arpo.cli", "envs", "serve", "desktop", "--port", "0", "--size", "1280x720"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as started:
        server = started.enter_context(subprocess.Popen(serve, **pipes, env={**os.environ, "ARPO_TOKEN": TOKEN}))
        started.callback(server.terminate)
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        worker = [CLIENT / "bin" / "python", HERE / "osworld_client_worker.py", address, folder / "cache"]
        surroundings = {**os.environ, "NETRC": str(netrc)}
        client = started.enter_context(subprocess.Popen(worker, **pipes, cwd=folder, env=surroundings))
        yield partial(played, client)


def played(client: subprocess.Popen[str], task: dict[str, Any], actions: list[str]) -> dict[str, Any]:
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write(json.dumps({"task": task, "actions": actions}) + "\n")
    client.stdin.flush()
    for line in client.stdout:  # the client prints, too
        if line.startswith("RESULT "):
            result: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
            return result
    raise AssertionError(f"the client ended with status {client.wait()}")


def task_of(name: str) -> dict[str, Any]:
    (path,) = EXAMPLES.glob(f"{name}*.json")
    task: dict[str, Any] = json.loads(path.read_text())
    return task


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.desktop(*NEEDED[name.partition("/")[0]])) for name in EXPERTS]
)
def test_osworld_client_scores_an_untouched_start_0_and_an_expert_1(play: Play, name: str) -> None:
    task = task_of(name)
    untouched = play(task, [])
    assert (untouched["score"], untouched["done"], untouched["info"]) == (0.0, False, {})
    assert untouched["instruction"] == task["instruction"]
    assert untouched["screenshot"] == b"\x89PNG\r\n\x1a\n".hex() and untouched["tree"] == "<desktop-frame"
    expert = play(task, EXPERTS[name])
    ended = {"fail": True} if EXPERTS[name] == ["FAIL"] else {"done": True}
    assert (expert["score"], expert["done"], expert["info"]) == (1.0, True, ended)


@pytest.mark.desktop("xterm")
def test_osworld_client_counts_fail_on_a_feasible_task_as_failed(play: Play) -> None:
    assert play(task_of("os/e0df059f"), [*EXPERTS["os/e0df059f"][:-1], "FAIL"])["score"] == 0.0


@pytest.mark.desktop("chromium")
def test_osworld_client_opens_and_sees_tabs_through_devtools(play: Play) -> None:
    """By its own Playwright, through the relayed port; the page is one of the browser's, since there is no network."""
    start = [{"type": "launch", "parameters": {"command": ["google-chrome", "--remote-debugging-port=9222"]}}]
    opened = [{"type": "chrome_open_tabs", "parameters": {"urls_to_open": ["chrome://version/"]}}]
    rules = {"type": "url", "urls": ["chrome://version/"]}
    evaluator = {
        "func": "is_expected_tabs",
        "result": {"type": "open_tabs_info"},
        "expected": {"type": "rule", "rules": rules},
    }
    task = {"id": "tabs", "instruction": "Open the page.", "config": start, "evaluator": evaluator}
    assert play(task, [])["score"] == 0.0
    assert play({**task, "config": start + opened}, ["DONE"])["score"] == 1.0
