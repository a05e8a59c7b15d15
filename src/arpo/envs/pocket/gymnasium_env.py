"""The embedded desktop as a Gymnasium environment.

    import gymnasium
    import arpo.envs.pocket.gymnasium_env              # registers the name below

    env = gymnasium.make("arpo/Pocket-v0", split="train")
    screen, info = env.reset(seed=7)                   # reset(options={"task": ID}) for one task
    info["instruction"], info["parse"]                 # what to do; what is on the screen
    screen, reward, terminated, truncated, info = env.step(
        env.action_space.sample() | {"kind": KINDS.index("click"), "point": [120, 44]})

`gymnasium.make("arpo.envs.pocket.gymnasium_env:arpo/Pocket-v0")` needs no import.

An action is a dictionary whose `kind` says which of the other entries count:

    click, double_click, right_click, scroll_*      point
    drag                                            point, to
    type, finish, fail                              text (what to type, the answer, the reason)
    press                                           key, an index into KEYS, with the modifiers that are 1
    wait                                            none

The reward is the task's score on the step that ends the episode and 0 before. `finish` and `fail` terminate it, the
task's step limit truncates it. An action that the desktop refuses costs a step, changes nothing and leaves the reason
in info["error"].
"""

import string
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from arpo.agent.actions import Action, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.envs.pocket import keys
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.env import PocketEnv
from arpo.errors import ActionError, ConfigError
from arpo.images import Pixels
from arpo.types import Task

KINDS = tuple(
    "click double_click right_click drag scroll_up scroll_down scroll_left scroll_right "
    "type press wait finish fail".split()
)
KEYS = (*sorted(keys.NAMED), *string.ascii_lowercase, *string.digits)
LONGEST_TEXT = 200

ActionDict = dict[str, Any]


class PocketGym(gymnasium.Env[Pixels, ActionDict]):
    """`arpo/Pocket-v0`. Each reset takes a task of the split at random, or the one named in the options."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 2}  # noqa: RUF012 (Gymnasium's own form)

    def __init__(
        self, split: str = "train", size: tuple[int, int] = (448, 280), render_mode: str | None = None
    ) -> None:
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"render_mode={render_mode}: must be rgb_array or None")
        self.render_mode = render_mode
        self._tasks = [get_task(task_id) for ids in task_list(split).values() for task_id in ids]
        self._task: Task | None = None
        self._steps = 0
        self._env = PocketEnv(size=size)
        width, height = size
        self.observation_space = spaces.Box(0, 255, (height, width, 3), np.uint8)
        self.action_space = spaces.Dict(
            {
                "kind": spaces.Discrete(len(KINDS)),
                "point": spaces.MultiDiscrete([width, height]),
                "to": spaces.MultiDiscrete([width, height]),
                "text": spaces.Text(LONGEST_TEXT, min_length=0, charset=string.printable),
                "key": spaces.Discrete(len(KEYS)),
                "modifiers": spaces.MultiBinary(len(keys.MODIFIERS)),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        super().reset(seed=seed)
        choice, env_seed = (int(number) for number in self.np_random.integers((len(self._tasks), 2**31)))
        self._task = get_task(options["task"]) if options and "task" in options else self._tasks[choice]
        self._env.load(self._task, env_seed)
        self._steps = 0
        return self._env.pixels(), self._info(self._task)

    def step(self, action: ActionDict) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        if self._task is None:
            raise ActionError("no episode has begun: reset first")
        info: dict[str, Any] = {}
        try:
            self._env.perform(to_action(action))
        except ActionError as error:
            info["error"] = str(error)
        self._steps += 1
        terminated = self._env.ended
        truncated = not terminated and self._steps >= self._task.max_steps
        reward = self._env.score() if terminated or truncated else 0.0
        return self._env.pixels(), reward, terminated, truncated, self._info(self._task) | info

    def render(self) -> Pixels | None:
        return self._env.pixels() if self.render_mode == "rgb_array" else None

    def close(self) -> None:
        self._env.close()

    def _info(self, task: Task) -> dict[str, Any]:
        return {"task": task.id, "instruction": task.instruction, "parse": self._env.parse()}


def to_action(action: ActionDict) -> Action:
    """The Action that a dictionary of the action space stands for."""
    (x, y), (to_x, to_y) = ((int(a), int(b)) for a, b in (action["point"], action["to"]))
    text = str(action["text"])
    match KINDS[int(action["kind"])]:
        case "click":
            return Click(x, y)
        case "double_click":
            return Click(x, y, count=2)
        case "right_click":
            return Click(x, y, button="right")
        case "drag":
            return Drag(x, y, to_x, to_y)
        case "scroll_up" | "scroll_down" | "scroll_left" | "scroll_right" as kind:
            return Scroll(x, y, kind.removeprefix("scroll_"))  # type: ignore[arg-type]
        case "type":
            return Type(text)
        case "press":
            held = [name for name, on in zip(keys.MODIFIERS, action["modifiers"], strict=True) if on]
            return Hotkey((*held, KEYS[int(action["key"])]))
        case "finish":
            return Finish(text)
        case "fail":
            return Fail(text)
    return Wait()


gymnasium.register("arpo/Pocket-v0", entry_point="arpo.envs.pocket.gymnasium_env:PocketGym")
