"""Small plays on a family's first task, for the tests of what checks accept and refuse.

cases = Cases()

@cases.add("editor-new", 0)                      # the family, and the score that is due at the end
def typed_and_not_saved(m, p):                   # the task's own desktop, and the task's parameters
    start(m, "Editor")
    m.do(Type(p["text"]))

test_… = cases.test()
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from machine import Machine

from arpo.agent.actions import Drag, Type
from arpo.envs.pocket.catalog import get_task

Params: TypeAlias = dict[str, Any]
Play: TypeAlias = Callable[[Machine, Params], object]


class Cases:
    """Plays, and the test that runs them."""

    def __init__(self) -> None:
        self.plays: list[tuple[str, int, Play]] = []

    def add(self, family: str, score: int) -> Callable[[Play], Play]:
        def add(play: Play) -> Play:
            self.plays.append((family, score, play))
            return play

        return add

    def test(self) -> Callable[..., None]:
        names = [f"{family}: {play.__name__}" for family, _, play in self.plays]

        @pytest.mark.parametrize(("family", "score", "play"), self.plays, ids=names)
        @pytest.mark.parametrize("seed", [0, 1])
        def test(family: str, score: int, play: Play, seed: int) -> None:
            task = get_task(f"{family}-000")
            machine = Machine(task.id, seed)
            play(machine, task.setup["params"])
            assert machine.env.score() == score

        return test


def start(m: Machine, app: str) -> None:
    """Only this application is open."""
    m.desk.windows.clear()
    m.desk.launch(app, (20, 0))
    m.refresh()


def files(m: Machine, folder: str) -> None:
    start(m, "Files")
    m.click(folder, "row", "Files")


def edit(m: Machine, name: str) -> None:
    """Open a file of the Documents folder by its row."""
    files(m, "Documents")
    m.do(Type(name.partition(".")[0]), Type("\n"))


def drag_row(m: Machine, name: str, to: str) -> None:
    m.do(Drag(*m.find(name, "row").centre, *m.find(to, "row").centre))
