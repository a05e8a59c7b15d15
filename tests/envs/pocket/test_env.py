"""The pocket environment: determinism, snapshots, sizes, and what it makes of strange input."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import actions

from arpo.agent.actions import Action, Click, Drag, Fail, Finish, Hotkey, Scroll, Type
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.env import LARGEST, SMALLEST
from arpo.envs.pocket.expert import PocketExpert
from arpo.errors import ActionError, ConfigError, TaskError
from arpo.images import decode, pixel_hash
from arpo.types import Task

TRAIN = [task for tasks in task_list("train").values() for task in tasks]
task_ids = st.sampled_from(TRAIN)
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def play(env: PocketEnv, todo: list[Action]) -> None:
    for action in todo:
        env.perform(action)


@few
@given(task_ids, st.integers(0, 9), st.lists(actions(), max_size=25))
def test_equal_task_seed_and_actions_give_equal_screens_scores_and_parses(
    task_id: str, seed: int, todo: list[Action]
) -> None:
    seen = []
    for _ in range(2):
        env = PocketEnv()
        env.load(get_task(task_id), seed)
        play(env, todo)
        seen.append((pixel_hash(env.pixels()), env.parse(), env.score()))
    assert seen[0] == seen[1]


@few
@given(task_ids, st.lists(actions(), max_size=12), st.lists(actions(), max_size=12), st.lists(actions(), max_size=12))
def test_restoring_a_snapshot_equals_replaying_the_actions(
    task_id: str, first: list[Action], wrong: list[Action], second: list[Action]
) -> None:
    env, replayed = PocketEnv(), PocketEnv()
    env.load(get_task(task_id), 3)
    play(env, first)
    snapshot = env.snapshot()
    play(env, wrong)
    env.restore(snapshot)
    play(env, second)
    replayed.load(get_task(task_id), 3)
    play(replayed, first + second)
    assert pixel_hash(env.pixels()) == pixel_hash(replayed.pixels())
    assert env.parse() == replayed.parse() and env.score() == replayed.score()


@few
@given(task_ids, st.lists(actions(), min_size=20, max_size=60))
def test_no_sequence_of_actions_breaks_the_desktop(task_id: str, todo: list[Action]) -> None:
    env = PocketEnv()
    env.load(get_task(task_id), 1)
    for action in todo:
        env.perform(action)
        for window in env.desk.windows:
            assert 0 <= window.x <= env.desk.w - window.w and 0 <= window.y <= env.desk.h - window.h
        for control in env.parse():
            x0, y0, x1, y1 = control.box
            assert 0 <= x0 < x1 <= 448 and 0 <= y0 < y1 <= 280
    assert env.pixels().shape == (280, 448, 3)


def aimed(rng: random.Random, env: PocketEnv) -> Action:
    """An action of somebody who sees the controls and has no idea what they are for."""
    controls = env.parse()
    x, y = rng.choice(controls).centre
    keys = rng.choice(
        ["enter", "esc", "tab", "delete", "ctrl c", "ctrl v", "ctrl x", "ctrl z", "ctrl s", "ctrl n", "f2"]
    )
    text = rng.choice(
        ["a", "plan.txt", "=SUM(A1:E12)", "12+3=", "Ada", "one\ttwo\n", "\n", "x" * 999, "שלום e\u0301 👩‍👩‍👧"]
    )
    possible: list[Action] = [
        Click(x, y),
        Click(x, y),
        Click(x, y, count=2),
        Click(x, y, "right"),
        Drag(x, y, *rng.choice(controls).centre),
        Scroll(x, y, rng.choice(["up", "down"])),
        Hotkey(tuple(keys.split())),
        Type(text),
    ]
    return rng.choice(possible)


@pytest.mark.parametrize("size", [SMALLEST, (448, 280), LARGEST])
def test_aimed_actions_find_no_state_that_breaks_the_desktop(size: tuple[int, int]) -> None:
    env, rng = PocketEnv(size), random.Random(f"{size}")
    for task_id in TRAIN[::10]:
        env.load(get_task(task_id), 0)
        for _ in range(60):
            env.perform(aimed(rng, env))
            for layer in env.frame():
                assert 0 <= layer.x <= env.desk.w - layer.w and 0 <= layer.y <= env.desk.h - layer.h, layer.title
            for control in env.parse():
                x0, y0, x1, y1 = control.box
                assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1], control
        other = PocketEnv(size)
        other.restore(env.snapshot())
        assert pixel_hash(other.pixels()) == pixel_hash(env.pixels()) and other.parse() == env.parse()
        assert env.score() in (0.0, 1.0)


def test_a_snapshot_can_be_restored_many_times_and_by_another_environment() -> None:
    env, other = PocketEnv(), PocketEnv()
    env.load(get_task(TRAIN[0]), 0)
    snapshot, start = env.snapshot(), pixel_hash(env.pixels())
    for restored in (env, other, other):
        restored.restore(snapshot)
        assert pixel_hash(restored.pixels()) == start
        play(restored, [Click(20, 20, count=2), Hotkey(("win",))])
        assert pixel_hash(restored.pixels()) != start


def test_two_environments_do_not_touch_each_other() -> None:
    env, other = PocketEnv(), PocketEnv()
    for e in (env, other):
        e.load(get_task("editor-new-000"), 0)
    before = pixel_hash(other.pixels())
    play(env, [Hotkey(("win",)), Type("abc"), Click(20, 20, count=2)])
    assert pixel_hash(other.pixels()) == before


def test_the_observation_holds_the_pixels() -> None:
    env = PocketEnv()
    observation = env.reset(get_task("editor-new-000"), 0)
    assert (observation.width, observation.height) == env.size
    assert (decode(observation.image) == env.pixels()).all()


@pytest.mark.parametrize("size", [(335, 280), (448, 223), (1921, 1080), (1920, 1081), (0, 0), (-448, 280)])
def test_sizes_out_of_range_are_refused_in_one_line(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="336x224 to 1920x1080"):
        PocketEnv(size)


@pytest.mark.parametrize("size", [SMALLEST, (448, 280), (641, 367), (1000, 811), (1280, 720), LARGEST])
def test_every_window_dialog_and_menu_fits_on_the_screen_at_every_size(size: tuple[int, int]) -> None:
    env = PocketEnv(size)
    for task_id in TRAIN[::5]:
        task = get_task(task_id)
        env.load(task, 0)
        expert = PocketExpert(task)
        for _ in range(task.max_steps):
            for layer in env.frame():
                assert layer.x >= 0 and layer.y >= 0, layer.title
                assert layer.x + layer.w <= env.desk.w and layer.y + layer.h <= env.desk.h, (task_id, layer.title)
            env.perform(expert.act(env)[1])
            if env.ended:
                break
        assert env.score() == 1.0, task_id


def test_an_action_off_the_screen_or_after_the_end_is_refused_and_the_environment_goes_on() -> None:
    env = PocketEnv()
    with pytest.raises(ActionError, match="reset first"):
        env.step(Click(1, 1))
    env.load(get_task("editor-new-000"), 0)
    for action in (Click(448, 10), Click(10, -1), Scroll(9999, 9999, "up")):
        with pytest.raises(ActionError, match="off the 448x280 screen"):
            env.step(action)
    env.step(Click(447, 279))
    env.step(Finish())
    with pytest.raises(ActionError, match="ended"):
        env.step(Click(1, 1))
    env.reset(get_task("editor-new-000"), 0)
    env.step(Click(1, 1))


def test_a_hundred_thousand_characters_can_be_typed_anywhere() -> None:
    env = PocketEnv()
    env.load(get_task("editor-new-000"), 0)
    text = "x" * 50_000 + "\n\t" * 25_000
    env.step(Type(text))
    env.desk.launch("Editor")
    env.restore(env.snapshot())
    env.step(Type(text))
    env.step(Hotkey(("ctrl", "h")))
    env.step(Type(text))
    assert env.score() == 0.0


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ({}, "family is None"),
        ({"family": "files-fly"}, "family is 'files-fly'"),
        ({"family": "editor-new"}, "must have the keys name, text"),
        ({"family": "editor-new", "params": {"name": "a.txt"}}, "must have the keys name, text"),
        ({"family": "editor-new", "params": {"name": 7, "text": "x"}}, "params.name is 7"),
    ],
)
def test_a_task_with_a_broken_setup_is_refused_by_name(setup: dict, message: str) -> None:
    env = PocketEnv()
    task = Task("mine", "editor", "Do it.", "pocket", setup, {"func": "state"}, "mine")
    with pytest.raises(TaskError, match=f"task mine: setup.*{message}"):
        env.reset(task, 0)


def test_fail_scores_on_an_infeasible_task_alone_and_nothing_else_scores_there() -> None:
    env = PocketEnv()
    for task_id, ending, score in (
        ("shell-missing-000", Fail(), 1.0),
        ("shell-missing-000", Finish(), 0.0),
        ("shell-open-000", Fail(), 0.0),
    ):
        env.load(get_task(task_id), 0)
        env.step(ending)
        assert env.score() == score


def test_screens_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    """Python orders sets of strings differently in every process; nothing that is drawn may follow that order."""
    script = """
from arpo.images import pixel_hash
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import PocketExpert
env = PocketEnv()
for task_id in [task for tasks in task_list("train").values() for task in tasks][::9]:
    task = get_task(task_id)
    env.load(task, 5)
    expert = PocketExpert(task)
    while not env.ended:
        env.perform(expert.act(env)[1])
        print(task_id, pixel_hash(env.pixels()))
"""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1 and len(outputs.pop().splitlines()) > 100


def test_the_words_on_the_screen_are_those_that_are_drawn_and_not_covered() -> None:
    env = PocketEnv()
    env.load(get_task("editor-new-000"), 0)
    env.desk.windows.clear()
    env.desk.launch("Editor", (150, 40))
    env.perform(Type("zebra island"))
    boxes = dict(env.words())
    assert {"zebra", "island", "File", "Edit", "Menu", "*Untitled"} <= boxes.keys()
    x0, y0, x1, y1 = boxes["island"]
    ink = env.pixels()[y0:y1, x0:x1].min(axis=(1, 2))
    assert ink.min() < 100 and 25 < x1 - x0 < 60
    env.desk.launch("Settings", (140, 30))
    env.restore(env.snapshot())
    assert "zebra" not in dict(env.words())


def test_a_task_whose_parameters_cannot_be_set_up_is_refused_in_one_line() -> None:
    given = get_task("files-rename-000")
    task = Task(
        "mine",
        "files",
        "Do it.",
        "pocket",
        {"family": "files-rename", "params": {**given.setup["params"], "folder": "Nowhere"}},
        {"func": "state"},
        "mine",
    )
    with pytest.raises(TaskError, match="task mine: cannot be set up"):
        PocketEnv().reset(task, 0)
