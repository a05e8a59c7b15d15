"""The scripted solver of a task of the desktop's own suite: it plays what the task's family has written down."""

from arpo.agent.actions import Action, Fail, Finish
from arpo.envs.desktop.env import DesktopEnv
from arpo.envs.desktop.families import INSTANCES
from arpo.envs.desktop.families.moves import Look, Moves
from arpo.errors import ConfigError
from arpo.types import Task


class DesktopExpert:
    """Acts through public actions and looks at windows and files; says Fail where the task cannot be done."""

    def __init__(self, task: Task) -> None:
        if task.id not in INSTANCES:
            raise ConfigError(
                f"{task.id}: there is no expert for it; `arpo envs list --json` has the tasks that have one"
            )
        self._task = task
        self._family, self._params = INSTANCES[task.id]
        self._moves: Moves | None = None

    def act(self, env: DesktopEnv) -> tuple[str, Action]:
        if not self._task.feasible:
            return "There is no way to do this here.", Fail("It cannot be done here.")
        if self._moves is None:
            self._moves = self._family.script(Look(env.sandbox), self._params)
        return next(self._moves, ("All is done.", Finish()))
