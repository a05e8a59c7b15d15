"""A pocket desktop with shorthands for tests: find a control by its label and do something to it."""

from arpo.agent.actions import Action, Click, Hotkey
from arpo.envs.pocket import Control, PocketEnv
from arpo.envs.pocket.catalog import get_task
from arpo.envs.pocket.vfs import FileSystem


class Machine:
    """An environment that starts as a task does, or else without windows, files and mails."""

    def __init__(self, task: str = "", seed: int = 0, size: tuple[int, int] = (448, 280)) -> None:
        self.env = PocketEnv(size)
        self.env.load(get_task(task or "shell-open-000"), seed)
        self.desk = self.env.desk
        if not task:
            self.desk.windows.clear()
            self.desk.files = FileSystem()
            self.desk.stores.clear()

    def refresh(self) -> None:
        """Let the environment see what a test has changed behind its back."""
        self.env.restore(self.env.snapshot())
        self.desk = self.env.desk

    def find(self, label: str, kind: str = "", window: str = "") -> Control:
        found = [
            c
            for c in self.env.parse()
            if c.label == label and (not kind or c.kind == kind) and (not window or c.window == window)
        ]
        assert found, f"no {kind} {label!r} on the screen"
        return found[-1]

    def shows(self, label: str, kind: str = "") -> bool:
        return any(c.label == label and (not kind or c.kind == kind) for c in self.env.parse())

    def do(self, *actions: Action) -> None:
        for action in actions:
            self.env.perform(action)

    def click(self, label: str, kind: str = "", window: str = "", count: int = 1, button: str = "left") -> None:
        self.do(Click(*self.find(label, kind, window).centre, button, count))  # type: ignore[arg-type]

    def keys(self, *keys: str) -> None:
        self.do(Hotkey(keys))

    @property
    def titles(self) -> list[str]:
        """Titles of the visible windows, back to front."""
        return [window.app.title() for window in self.desk.windows if not window.minimised]
