"""What a family of desktop tasks is.

Nothing in a family is random: it lists its instances, turns each into a task of OSWorld's form (`task`, of parts.py)
and plays each through public actions (`script`, of moves.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from arpo.envs.desktop.families.moves import Look, Moves
from arpo.envs.desktop.families.parts import task
from arpo.types import Json

Params: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DesktopFamily:
    """Tasks of one kind. `held_out` of the instances, the last ones, are not trained on."""

    name: str  # "editor-replace": its domain is the first part
    apps: tuple[str, ...]  # the programs that it needs, by their commands
    task: Callable[[Params], Json]  # instruction, config, evaluator
    script: Callable[[Look, Params], Moves]
    instances: tuple[Params, ...]
    held_out: int = 1

    @property
    def domain(self) -> str:
        return self.name.partition("-")[0]


def impossible(
    name: str, apps: tuple[str, ...], config: Callable[[Params], list[Json]], *instances: Params
) -> DesktopFamily:
    """Tasks that nobody can do, each with what it says; the expert says so at once. The last is not trained on."""

    def write(p: Params) -> Json:
        return task(p["say"], config(p), {"func": "infeasible"})

    return DesktopFamily(name, apps, write, _no_moves, instances, held_out=int(len(instances) > 1))


def _no_moves(look: Look, p: Params) -> Moves:
    yield from ()
