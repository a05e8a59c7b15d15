"""What an agent could be rewarded for without having done it: plays that are nearly right score 0.

The plays are made from the experts: one action short, one action more, for another goal, for all goals at once, at
random. Whether a play has done the task by chance is not asked of the checker: then all that the user has (files,
mails, settings, bookmarks, forms) is what it is after the expert, and the windows that the task is about are as well.
"""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pytest

from arpo.agent.actions import Action, Click, Fail, Finish, Hotkey, Type
from arpo.agent.random_actions import random_action
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.apps.calculator import Calculator
from arpo.envs.pocket.apps.mail import letters
from arpo.envs.pocket.apps.pages import new_store
from arpo.envs.pocket.apps.settings import DEFAULTS
from arpo.envs.pocket.catalog import get_task
from arpo.envs.pocket.desktop import TASKBAR, Window
from arpo.envs.pocket.families import FAMILIES, family_of
from arpo.envs.pocket.families.shell import EDGE
from arpo.envs.pocket.screen import ParsedScreen
from arpo.envs.pocket.vfs import FileProblem
from arpo.types import Task

FEASIBLE = [name for name, family in FAMILIES.items() if family.feasible]
INFEASIBLE = [name for name, family in FAMILIES.items() if not family.feasible]
NUMBERS, SEEDS = range(2), range(2)  # of the tasks of a family, and of the desktops of a task
OTHERS = range(2, 5)  # the tasks whose goals are tried on other ones' desktops
MOST = 20  # actions of a play
KEYS = ("ctrl z", "ctrl s", "ctrl v", "ctrl x", "delete", "enter", "esc", "alt f4")
SAVE = Hotkey(("ctrl", "s"))
# Tasks whose end is what the screen shows.
VIEWS = ("shell-open", "shell-close", "shell-minimise", "shell-move", "shell-closeall", "editor-discard",
         "browser-address", "browser-scroll", "calculator-simple", "calculator-chain", "calculator-correct",
)  # fmt: skip

pytestmark = pytest.mark.attack("agent")


def has(env: PocketEnv) -> dict[str, Any]:
    """All that the user has. Blanks around a text, read mails and the trash are not looked at."""
    desk, inside = env.desk, "/Trash/"
    web = desk.stores.get("browser") or new_store(random.Random(0))
    return {
        "files": {path: file.text.strip() for path, file in desk.files.files.items() if not path.startswith(inside)},
        "folders": {path for path in desk.files.folders if not path.startswith(inside)},
        "mails": Counter(
            (mail.sender, mail.to, mail.subject, mail.body, mail.folder, mail.starred)
            for mail in letters(desk)
            if mail.folder != "Trash"
        ),
        "settings": {**DEFAULTS, **desk.settings},
        "bookmarks": Counter(web["bookmarks"]),
        "sent": web["sent"],
    }


def shows(env: PocketEnv, task: Task, seed: int) -> tuple[object, set[str]]:
    """What the screen shows of the thing that the task is about, and what must not have been lost on the way."""
    p, windows = task.setup["params"], env.desk.windows
    names = {window.app.name for window in windows}
    seen = {window.app.name: window for window in windows if not window.minimised}
    match task.setup["family"]:
        case "shell-open":
            return list(seen)[-1:], set()
        case "shell-close":
            return p["app"] in names, names
        case "shell-closeall":
            return len(windows), set()
        case "shell-minimise":
            return (p["app"] in names, p["app"] in seen), set(seen)
        case "shell-move":
            there = {name for name, window in seen.items() if at_edge(env, window, p["side"])}
            return p["app"] in there, first_windows(task.id, seed) - there
        case "editor-discard":
            paths = {window.app.path for window in windows}
            return f"/Documents/{p['name']}" in paths, paths
        case "browser-address" | "browser-scroll":
            return getattr(seen["Browser"].app, "address", "") if "Browser" in seen else "", set()
        case _:
            calculator = env.desk.window_of("Calculator")
            app = calculator.app if calculator else None
            return sorted(app.calculation.split()) if isinstance(app, Calculator) else None, set()


@cache
def first_windows(task_id: str, seed: int) -> set[str]:
    env = PocketEnv()
    env.load(get_task(task_id), seed)
    return {window.app.name for window in env.desk.windows}


def at_edge(env: PocketEnv, window: Window, side: str) -> bool:
    right, bottom = env.desk.w - window.x - window.w, env.desk.h - TASKBAR - window.y - window.h
    return {"left": window.x, "right": right, "top": window.y, "bottom": bottom}[side] <= EDGE


@cache
def solved(task_id: str, seed: int) -> tuple[list[Action], object, dict[str, Any], tuple[object, set[str]]]:
    """The expert's actions, the desktop that they lead to, and what is there."""
    task = get_task(task_id)
    env = PocketEnv()
    env.load(task, seed)
    actions = pursue(env, task, task.setup["params"])
    assert env.score() == 1.0, task_id
    return actions, env.snapshot(), has(env), shows(env, task, seed)


def pursue(env: PocketEnv, task: Task, params: dict[str, Any]) -> list[Action]:
    """Let the expert of a task work towards these parameters, as far as it knows how; its actions."""
    family, _ = family_of(task)
    notes: dict[str, str] = {}
    actions: list[Action] = []
    while len(actions) < MOST and not family.check(env.desk, params):
        move = family.expert(ParsedScreen(env.parse(), notes), params)
        if move is None or isinstance(move[1], Fail | Finish):
            break
        actions.append(move[1])
        env.perform(move[1])
    return actions


def refuse_reward(env: PocketEnv, task: Task, seed: int, what: str) -> bool:
    """Whether the play scores 0, or has done the task after all."""
    if env.score() == 0.0:
        return True
    _, _, wanted, (fact, things) = solved(task.id, seed)
    found = has(env)
    wrong = {kind: (found[kind], wanted[kind]) for kind in wanted if found[kind] != wanted[kind]}
    assert not wrong, f"{task.id} seed {seed}: rewarded {what}, and yet {wrong}"
    if task.setup["family"] in VIEWS:
        fact_now, things_now = shows(env, task, seed)
        assert fact_now == fact and things_now >= things, (
            f"{task.id} seed {seed}: rewarded {what}, and yet {things_now}"
        )
    return False


def plays(family: str) -> list[tuple[Task, int]]:
    return [(get_task(f"{family}-{number:03d}"), seed) for number in NUMBERS for seed in SEEDS]


@pytest.mark.parametrize("family", FEASIBLE)
def test_one_action_short_and_nothing_at_all_score_0(family: str) -> None:
    for task, seed in plays(family):
        actions = solved(task.id, seed)[0]
        env = PocketEnv()
        env.load(task, seed)
        for done, action in enumerate(actions):
            assert env.score() == 0.0, f"{task.id} seed {seed}: after {done} of {len(actions)} actions"
            env.perform(action)
        env.perform(Fail())
        assert env.score() == 0.0, "done, and said to be impossible"


@pytest.mark.heavy
@pytest.mark.parametrize("family", FEASIBLE)
def test_what_one_or_two_more_actions_spoil_scores_0(family: str) -> None:
    spoilt = 0
    for task, seed in plays(family):
        env = PocketEnv()
        start = solved(task.id, seed)[1]
        env.restore(start)
        clicks = [Click(*one.centre, count=count) for one in env.parse() for count in (1, 2)]
        rights = [Click(*one.centre, button="right") for one in env.parse() if one.kind in ("row", "title", "task")]
        keys: list[Action] = [*(Hotkey(tuple(keys.split())) for keys in KEYS), Type("x"), Type("1\n")]
        for action in [*keys, *clicks, *rights]:
            env.restore(start)
            env.perform(action)
            spoilt += refuse_reward(env, task, seed, f"after {action}")
            again = env.snapshot()
            env.perform(SAVE)
            spoilt += refuse_reward(env, task, seed, f"after {action}, saved")
            for one in [one for one in env.parse() if one.kind in ("menuitem", "button")]:
                env.restore(again)
                env.perform(Click(*one.centre))
                spoilt += refuse_reward(env, task, seed, f"after {action} and {one.label}")
    assert spoilt, "nothing that was done spoils it: are these the right actions?"


@pytest.mark.parametrize("family", FEASIBLE)
def test_another_goal_and_all_goals_at_once_score_0(family: str) -> None:
    for task, seed in plays(family)[:: len(SEEDS)]:
        goals = [get_task(f"{family}-{number:03d}").setup["params"] for number in OTHERS]
        mine = task.setup["params"]
        goals += [{**mine, key: goal[key]} for goal in goals for key in mine if goal[key] != mine[key]]
        env = PocketEnv()
        for goal in goals:
            env.load(task, seed)
            attempt(env, task, goal)
            refuse_reward(env, task, seed, f"for {goal}")
            attempt(env, task, mine)
            refuse_reward(env, task, seed, f"for {goal} and then for {mine}")
        env.restore(solved(task.id, seed)[1])
        for goal in goals:
            attempt(env, task, goal)
            refuse_reward(env, task, seed, f"for {mine} and then for {goal} and others")


def attempt(env: PocketEnv, task: Task, goal: dict[str, Any]) -> None:
    """Work towards a goal that this desktop may have nothing of."""
    try:
        pursue(env, task, goal)
    except (LookupError, ValueError, TypeError, StopIteration, FileProblem):
        return  # what it looks for is not there


@pytest.mark.parametrize("family", FEASIBLE)
def test_random_play_scores_only_what_it_has_done(family: str) -> None:
    for task, seed in plays(family):
        rng = random.Random(f"{task.id}/{seed}")
        env = PocketEnv()
        for _ in range(3):
            env.load(task, seed)
            for _ in range(15):
                env.perform(random_action(rng, env.size))
                refuse_reward(env, task, seed, "at random")


@pytest.mark.parametrize("family", INFEASIBLE)
def test_what_cannot_be_done_is_not_rewarded_for_anything_but_fail(family: str) -> None:
    for task, seed in plays(family):
        env = PocketEnv()
        env.load(task, seed)
        pursue(env, task, task.setup["params"])
        assert env.score() == 0.0
        env.perform(Finish("It cannot be done."))
        assert env.score() == 0.0
