"""The Gymnasium adapter passes Gymnasium's own checker and pays what the task's score says."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from arpo.agent.actions import Action, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.envs.base import make_expert
from arpo.envs.pocket import keys
from arpo.envs.pocket.gymnasium_env import KEYS, KINDS, PocketGym, to_action
from arpo.errors import ActionError, ConfigError, TaskError
from arpo.tasks.load import interleaved, load_tasks


def as_dict(kind: str, point: tuple[int, int] = (0, 0), to: tuple[int, int] = (0, 0), **more: Any) -> dict[str, Any]:
    places = {"point": np.array(point), "to": np.array(to)}
    return {"kind": KINDS.index(kind), **places, "text": "", "key": 0, "modifiers": [0, 0, 0]} | more


def from_action(action: Action) -> dict[str, Any]:
    match action:
        case Click(x, y, button, count):
            kind = "right_click" if button == "right" else "double_click" if count == 2 else "click"
            return as_dict(kind, (x, y))
        case Drag(x, y, to_x, to_y):
            return as_dict("drag", (x, y), (to_x, to_y))
        case Scroll(x, y, direction):
            return as_dict(f"scroll_{direction}", (x, y))
        case Type(text):
            return as_dict("type", text=text)
        case Hotkey((*held, key)):
            return as_dict("press", key=KEYS.index(key), modifiers=[name in held for name in keys.MODIFIERS])
        case Finish(answer):
            return as_dict("finish", text=answer)
        case Fail(reason):
            return as_dict("fail", text=reason)
    return as_dict("wait")


def test_gymnasiums_own_checker_passes_without_a_warning() -> None:
    check_env(gymnasium.make("arpo/Pocket-v0").unwrapped)


def test_the_module_can_be_named_in_the_id_instead_of_being_imported() -> None:
    env = gymnasium.make(
        "arpo.envs.pocket.gymnasium_env:arpo/Pocket-v0", split="heldout", size=(640, 400), render_mode="rgb_array"
    )
    screen, info = env.reset(seed=1)
    assert screen.shape == (400, 640, 3)
    assert info["task"] in {task.id for task in load_tasks("pocket", "heldout")}
    rendered: Any = env.render()
    assert np.array_equal(rendered, screen)
    env.close()


def test_the_experts_actions_solve_tasks_through_the_adapter() -> None:
    env = PocketGym()
    for task in interleaved(load_tasks("pocket", "subset32"))[:6]:
        _, info = env.reset(seed=0, options={"task": task.id})
        assert info["instruction"] == task.instruction
        expert = make_expert("pocket", task)
        rewards, terminated = [], False
        while not terminated:
            _, action = expert.act(env._env)
            _, reward, terminated, truncated, info = env.step(from_action(action))
            assert "error" not in info and not truncated
            rewards.append(reward)
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]


def test_the_step_limit_truncates_with_the_score_of_the_moment() -> None:
    env = PocketGym()
    env.reset(seed=0)
    task = env._task
    assert task is not None
    ends = [env.step(as_dict("wait"))[1:4] for _ in range(task.max_steps)]
    assert ends == [(0.0, False, False)] * (task.max_steps - 1) + [(0.0, False, True)]


def test_a_refused_action_costs_a_step_and_says_why() -> None:
    env = PocketGym()
    before, _ = env.reset(seed=0)
    after, reward, terminated, truncated, info = env.step(as_dict("click", (9999, 0)))
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "(9999, 0) is off the 448x280 screen" in info["error"]
    assert np.array_equal(before, after)


def test_a_screen_stays_as_it_was_seen() -> None:
    env = PocketGym()
    env.reset(seed=0, options={"task": "shell-open-000"})
    screen = env.step(as_dict("wait"))[0]
    seen = screen.copy()
    after = env.step(as_dict("click", (25, 269)))[0]
    assert not np.array_equal(after, screen)
    assert np.array_equal(screen, seen)


def test_the_same_seed_gives_the_same_task_and_screen() -> None:
    one, two = PocketGym(), PocketGym()
    for seed in (3, None, None):  # without a seed the same generator goes on
        (screen, info), (other_screen, other_info) = one.reset(seed=seed), two.reset(seed=seed)
        assert info == other_info
        assert np.array_equal(screen, other_screen)


def test_another_seed_gives_the_same_task_another_screen() -> None:
    env = PocketGym()
    one, other = (env.reset(seed=seed, options={"task": "shell-open-000"})[0] for seed in (1, 2))
    assert not np.array_equal(one, other)


def test_every_key_of_the_action_space_exists() -> None:
    assert all(keys.known(key) for key in KEYS)
    assert len(set(KEYS)) == len(KEYS)
    press = as_dict("press", key=KEYS.index("s"), modifiers=[1, 0, 1])
    assert to_action(press) == Hotkey(("ctrl", "shift", "s"))


def test_every_kind_means_an_action() -> None:
    meant = [to_action(as_dict(kind, (1, 2), (3, 4), text="x", key=1)) for kind in KINDS]
    assert len(set(meant)) == len(KINDS)
    assert [to_action(from_action(action)) for action in meant] == meant
    assert meant[KINDS.index("wait")] == Wait()


def test_wrong_wishes_are_refused() -> None:
    with pytest.raises(ConfigError, match="render_mode=human"):
        PocketGym(render_mode="human")
    with pytest.raises(TaskError, match="'trian': did you mean train"):
        PocketGym(split="trian")
    with pytest.raises(ActionError, match="reset first"):
        PocketGym().step(as_dict("wait"))
    with pytest.raises(TaskError):
        PocketGym().reset(options={"task": "no-such-001"})
