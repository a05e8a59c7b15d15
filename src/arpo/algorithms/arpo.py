"""ARPO, agentic replay policy optimisation (Lu et al. 2025, arXiv 2505.16282): GRPO with success replay.

    where no member of a group solved its task, a random one is replaced by one of the agent's own stored successes of
    that task, if there is one: so rewards differ, and the gradient does not vanish

The replayed tokens are trained as if they were fresh: `old` is of the policy before the update. Each setting `replay_…`
changes one part of this; in the paper they are all off.

    replay_count       so many different successes join the group
    replay_shortest    those with the fewest steps, not random ones
    replay_tau         a success of age a, in updates, is chosen in proportion to exp(-a / tau)
    replay_spares      only the replayed success has an advantage, the failures beside it have none
    replay_truncate    replayed tokens have the weight w = min(exp(old - sampler), replay_truncate)
    replay_reject      w = 0 for a success that the present policy would hardly repeat, or far too gladly
"""

from collections.abc import Callable, Sequence
from typing import Any

from arpo.algorithms.advantages import group_advantages
from arpo.algorithms.base import Credit
from arpo.algorithms.grpo import Grpo
from arpo.algorithms.replay import Replay
from arpo.config import AlgorithmConfig
from arpo.types import Group, Trajectory


class Arpo(Grpo):
    """GRPO with success replay; the loss is GRPO's, which knows `replay_truncate` and `replay_reject`."""

    def __init__(self, settings: AlgorithmConfig, seed: int) -> None:
        super().__init__(settings, seed)
        self.replay = Replay(settings, seed)

    def fill(self, groups: Sequence[Group], update: int, load: Callable[[str], Trajectory]) -> list[Group]:
        return self.replay.fill(groups, update, load) if self.settings.replay else list(groups)

    def advantages(self, group: Group) -> list[Credit]:
        advantages = group_advantages(group, self.settings.std)
        replayed = [trajectory.provenance.source == "replay" for trajectory in group.trajectories]
        if self.settings.replay_spares and any(replayed):
            advantages = [value if injected else 0.0 for value, injected in zip(advantages, replayed, strict=True)]
        return self.credits(group, advantages)

    def remember(self, groups: Sequence[Group], update: int) -> None:
        self.replay.add(groups, update)

    def state(self) -> dict[str, Any]:
        return self.replay.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.replay.restore(state)
