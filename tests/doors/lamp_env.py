"""An environment from outside: a lamp that a click turns on. It is one call, or one entry point."""

import numpy as np

import arpo
from arpo.envs.base import refuse_bad_action
from arpo.errors import ActionError, TaskError
from arpo.images import observe


class Lamp:
    size = (56, 56)  # it takes no size from outside

    def __init__(self, colour: int) -> None:
        self.colour, self.on = colour, False
        self.task: arpo.Task | None = None
        self.end: arpo.Action | None = None

    @property
    def ended(self) -> bool:
        return self.task is None or self.end is not None

    def reset(self, task: arpo.Task, seed: int) -> arpo.Observation:
        if task.setup:
            raise TaskError(f"{task.id}: a lamp has no setup")
        self.task, self.end, self.on = task, None, False
        return self._look()

    def step(self, action: arpo.Action) -> arpo.Observation:
        refuse_bad_action(action, self.size, self.ended)
        if isinstance(action, arpo.Hotkey) and action.keys != ("esc",):
            raise ActionError("a lamp has one key")
        self.end = action if isinstance(action, arpo.Finish | arpo.Fail | arpo.CallUser) else None
        self.on |= isinstance(action, arpo.Click)
        return self._look()

    def score(self) -> float:
        return float(self.on and not isinstance(self.end, arpo.Fail))

    def close(self) -> None:
        self.task = None

    def _look(self) -> arpo.Observation:
        return observe(np.full((56, 56, 3), self.colour if self.on else 0, np.uint8))


class Expert:
    def __init__(self, task: arpo.Task) -> None: ...

    def act(self, env: Lamp) -> tuple[str, arpo.Action]:
        return "Light.", arpo.Finish() if env.on else arpo.Click(3, 4)


TASKS = [arpo.Task(f"light-{i}", "lamps", "Turn it on.", "lamp", {}, {"func": "lamp"}, "train", 3) for i in range(2)]
BACKEND = arpo.register_environment(
    "lamp", Lamp, TASKS, expert=Expert, deterministic=True, settings=(), options={"colour": 200}
)
