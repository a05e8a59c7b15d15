"""The scripted expert: one for every task, through public actions only."""

from arpo.agent.actions import Action, Finish
from arpo.envs.pocket.env import PocketEnv
from arpo.envs.pocket.families import family_of
from arpo.envs.pocket.screen import ParsedScreen
from arpo.errors import ArpoError
from arpo.types import Task


class ExpertLost(ArpoError):
    """The expert knows no move on this screen: a bug of its script, or a screen that nobody foresaw."""


class PocketExpert:
    """Solves one episode of a task. It looks at the screen parse and, to know that it is done, at the score."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.family, self.params = family_of(task)
        self.notes: dict[str, str] = {}

    def act(self, env: PocketEnv) -> tuple[str, Action]:
        """A short thought and the next action."""
        if self.task.feasible and env.score() == 1.0:
            return "The task is done.", Finish()
        move = self.family.expert(ParsedScreen(env.parse(), self.notes), self.params)
        if move is None:
            raise ExpertLost(f"task {self.task.id}: the expert knows no move here")
        return move
