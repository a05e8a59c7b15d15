"""ARPO, agentic replay policy optimisation (Lu et al. 2025, arXiv 2505.16282): GRPO with success replay.

    where no member of a group solved its task, a random one is replaced by one of the agent's own stored successes of
    that task, if there is one: so rewards differ, and the gradient does not vanish

The replayed tokens are trained as if they were fresh: `old` is of the policy before the update. In the paper one random
success joins a group; `replay_count` and `replay_shortest` change that.

`arpo+` is this with groups of changing size: `group_least`, `group_most`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from arpo.algorithms.grpo import Grpo
from arpo.algorithms.replay import Replay
from arpo.config import AlgorithmConfig
from arpo.types import Group, Trajectory


class Arpo(Grpo):
    """GRPO with success replay; the loss is GRPO's."""

    def __init__(self, settings: AlgorithmConfig, seed: int) -> None:
        super().__init__(settings, seed)
        self.replay = Replay(settings, seed)

    def accept(self, group: Group) -> bool:
        """A failed group that a stored success will join teaches something, too."""
        return super().accept(group) or (self.settings.replay and self.replay.fills(group))

    def seeks(self, group: Group) -> bool:
        """A stored success costs nothing; only the first one has to be found."""
        return super().seeks(group) and not (self.settings.replay and self.replay.fills(group))

    def fill(self, groups: Sequence[Group], update: int, load: Callable[[str], Trajectory]) -> list[Group]:
        return self.replay.fill(groups, update, load) if self.settings.replay else list(groups)

    def remember(self, groups: Sequence[Group], update: int) -> None:
        self.replay.add(groups, update)

    def state(self) -> dict[str, Any]:
        return self.replay.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.replay.restore(state)
