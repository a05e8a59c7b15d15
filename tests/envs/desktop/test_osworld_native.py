"""OSWorld's own tasks that need no network, on the native desktop: untouched they score 0, a scripted expert scores 1.

The files are OSWorld's as they are (`../shared/osworld` beside the checkout). docs/osworld-tasks.md says which of its
offline tasks cannot be done here, and why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from arpo.agent.actions import Action, Click, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.envs.desktop.env import DesktopEnv
from arpo.tasks.load import load_tasks
from arpo.types import Task

OSWORLD = Path(__file__).parents[4] / "shared" / "osworld"
MOST_WAITS = 40

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.desktop,
    pytest.mark.skipif(not OSWORLD.is_dir(), reason="OSWorld's own files are not beside this checkout"),
]


@dataclass(frozen=True)
class Until:
    """Wait for a window of this title, or for it to go."""

    title: str
    there: bool = True


Moves = list[Action | Until]


def keys(*names: str) -> Moves:
    """One key after the other; "ctrl+l" are two at once."""
    return [Hotkey(tuple(name.split("+"))) for name in names]


def terminal(*lines: str) -> Moves:
    typed: Moves = [Type(f"{line}\n") for line in lines]
    return [*keys("ctrl+alt+t"), Until("Terminal"), Wait(), *typed, Wait()]


def page(address: str, title: str, *moves: Action | Until) -> Moves:
    """Keys reach what a page has whatever its layout is: Tab goes from one control to the next."""
    return [*keys("ctrl+l"), Type(f"{address}\n"), Until(title), Wait(), *moves, Wait()]


def preferences(*moves: Action | Until) -> Moves:
    """VLC's, saved."""
    save = Click(905, 699)
    return [*keys("ctrl+p"), Until("Simple Preferences"), *moves, save, Until("Preferences", there=False), Wait()]


def all_preferences(search: str, section: Click, *moves: Action | Until) -> Moves:
    everything: Moves = [Click(346, 694), Until("Advanced Preferences"), Click(400, 49), Type(search), Wait()]
    return preferences(*everything, section, Wait(), *moves)


QT, PLAYLIST = Click(330, 164), Click(337, 110)
DOWN = Scroll(770, 400, "down")
GIMP_PREFERENCES: Moves = [*keys("alt+e"), Wait(), Click(113, 624), Until("Preferences"), Wait()]
GIMP_OK: Moves = [Click(796, 687), Until("Preferences", there=False)]
SET = "gsettings set org.gnome"
VIDEO = "xdg-mime default vlc.desktop $(grep -o 'video/[^;]*' /usr/share/applications/vlc.desktop)"

EXPERTS: dict[str, Moves] = {
    # chrome
    "030eeff7": page("chrome://settings/cookies", "Third-party", *keys(*["tab"] * 6, "space"), Wait(), *keys("enter")),
    "2ad9387a": page(
        "chrome://bookmarks", "Bookmarks", *keys("tab", "enter"), Wait(), *keys("down", "enter"), Wait(),
        Type("Favorites\n"),
    ),
    "2ae9ba84": page("chrome://settings/manageProfile", "Customize", *keys("tab", "ctrl+a"), Type("Thomas\t")),
    "af630914": page("chrome://settings/fonts", "Customize fonts", *keys("tab", "end")),
    "bb5e4c0d": page(
        "chrome://settings/searchEngines", "Manage search", *keys(*["tab"] * 7, "enter"), Wait(), *keys("enter")
    ),
    "99146c54": page("chrome://settings/content/siteData", "site data", *keys("tab", "tab", "down")),
    "3299584d": page("chrome://settings/onStartup", "On startup", *keys("tab", "tab", "up", "up")),
    "9656a811": page("chrome://settings/security", "Security", *keys("tab", "tab", "up")),
    # gimp
    "d52d6308": [Click(640, 300), *keys("tab"), Wait()],
    "7b7617bd": [*GIMP_PREFERENCES, Click(562, 373), *keys("ctrl+a"), Type("100\t"), *GIMP_OK],
    "7767eef2": [*GIMP_PREFERENCES, Click(98, 482), Wait(), Click(303, 451), Wait(), *GIMP_OK],
    # libreoffice_impress
    "2cd43775": [
        *keys("esc"), Wait(), *keys("alt+f12"), Until("Options"), Wait(), Click(161, 390), Wait(), Click(216, 413),
        Wait(), Click(482, 208), Wait(), Click(779, 208), *keys("ctrl+a"), Type("3\t"), Click(1087, 683),
        Until("Options", there=False), Wait(),
    ],
    # multi_apps
    "937087b6": terminal(VIDEO),
    "2373b66a": [*terminal("sar -u 1 30 > Desktop/System_Resources_Report.txt"), *[Wait()] * 32],
    # os
    "bedcedc4": terminal(f"{SET}.settings-daemon.plugins.power idle-dim false"),
    "f9be0997": terminal(f"{SET}.desktop.notifications show-banners false"),
    "3ce045a0": terminal(f"{SET}.desktop.interface text-scaling-factor 1.5"),
    "a4d98375": terminal(f"{SET}.desktop.screensaver lock-enabled true"),
    "ec4e3f68": terminal(f"{SET}.shell favorite-apps \"['thunderbird.desktop', 'google-chrome.desktop']\""),
    "28cc3b7e": terminal("pulseaudio --start; pactl set-sink-volume 0 100%"),
    "e0df059f": terminal("mv Desktop/todo_list_Jan_1 Desktop/todo_list_Jan_2"),
    "13584542": terminal("echo 'XTerm*geometry: 132x43' >> .Xdefaults", "exit"),
    # vlc
    "8ba5ae7a": preferences(Click(686, 66), Wait(), Click(735, 522), Type("/home/user/Desktop")),
    "f3977615": preferences(Click(290, 538)),
    "a5bbbcd5": preferences(Click(418, 314)),
    "9195653c": all_preferences("maximum volume", QT, DOWN, Wait(), Click(983, 549), *keys("ctrl+a"), Type("200")),
    "215dfd39": all_preferences("cone", QT, DOWN, Wait(), Click(587, 460)),
    "d06f0d4d": all_preferences("slider", QT, DOWN, Wait(), Click(987, 370), *keys("ctrl+a"), Type("20;" * 11 + "20")),
    "5ac2891a": all_preferences("play and exit", PLAYLIST, Click(587, 201), Click(587, 201)),
}  # fmt: skip
INFEASIBLE = """480bcfea 3720f614 ae78f875 e19bd559 fbb548ca 5ca86c6f 6d72aad6 a462a795 b3d4a89c fe41f596 c288e301
4783cc41 cb130f0d 7882ed6e""".split()
PROGRAMS = {"chrome": "chromium socat", "gimp": "gimp", "libreoffice_impress": "libreoffice", "vlc": "vlc"}
OTHERS = {"937087b6": "xterm xdg-mime vlc chromium", "2373b66a": "xterm sar", "28cc3b7e": "xterm pulseaudio pactl"}
SCHEMAS = {"bedcedc4": "org.gnome.settings-daemon.plugins.power", "ec4e3f68": "org.gnome.shell"}  # and their packages
PACKAGES = {"bedcedc4": "gnome-settings-daemon-common", "ec4e3f68": "gnome-shell-common"}


def find(prefix: str, folder: Path) -> Task:
    (path,) = OSWORLD.glob(f"examples/*/{prefix}*.json")
    chosen = folder / "list.json"
    chosen.write_text(json.dumps({path.parent.name: [path.stem]}))
    (folder / "examples").symlink_to(OSWORLD / "examples")
    (task,) = load_tasks("desktop", str(chosen))
    return task


def cases(prefixes: list[str]) -> list[object]:
    """Each with the programs that it needs: where one is missing it is skipped."""
    if not OSWORLD.is_dir():
        return []
    domains = {prefix: next(OSWORLD.glob(f"examples/*/{prefix}*.json")).parent.name for prefix in prefixes}
    programs = {
        prefix: OTHERS.get(prefix, PROGRAMS.get(domain, "xterm gsettings")) for prefix, domain in domains.items()
    }
    return [
        pytest.param(one, id=f"{domains[one]}-{one}", marks=pytest.mark.desktop(*programs[one].split()))
        for one in prefixes
    ]


@pytest.fixture(scope="module")
def env() -> Iterator[DesktopEnv]:
    env = DesktopEnv((1280, 720))
    yield env
    env.close()


def play(env: DesktopEnv, moves: Moves) -> None:
    for move in moves:
        if isinstance(move, Until):
            wait_for(env, move)
        else:
            env.step(move)
    env.step(Finish())


def wait_for(env: DesktopEnv, wanted: Until) -> None:
    for _ in range(MOST_WAITS):
        titles = [window["title"] for window in env.sandbox.ask("windows")]
        if any(wanted.title in title for title in titles) == wanted.there:
            return
        env.step(Wait())
    pytest.fail(f"{wanted}: the windows are {titles}")


@pytest.mark.parametrize("prefix", cases(list(EXPERTS)))
def test_an_osworld_task_scores_0_untouched_and_1_by_its_expert(env: DesktopEnv, prefix: str, tmp_path: Path) -> None:
    task = find(prefix, tmp_path)
    need_schema(env, prefix)
    env.reset(task, 0)
    env.step(Finish())
    assert env.score() == 0.0
    env.reset(task, 0)
    play(env, EXPERTS[prefix])
    assert env.score() == 1.0


def need_schema(env: DesktopEnv, prefix: str) -> None:
    installed = Path("/usr/share/glib-2.0/schemas")
    if prefix in SCHEMAS and not any(installed.glob(f"{SCHEMAS[prefix]}*")):
        pytest.skip(f"the settings {SCHEMAS[prefix]} are missing: apt-get install {PACKAGES[prefix]}")


@pytest.mark.parametrize("prefix", cases(INFEASIBLE))
def test_an_infeasible_osworld_task_scores_1_by_fail_alone(env: DesktopEnv, prefix: str, tmp_path: Path) -> None:
    task = find(prefix, tmp_path)
    assert not task.feasible
    env.reset(task, 0)
    env.step(Finish())
    assert env.score() == 0.0
    env.reset(task, 0)
    env.step(Fail())
    assert env.score() == 1.0
