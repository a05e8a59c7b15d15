"""How much better than its group each episode was.

    rewards 1 0 0 0 0 0 0 0    mean 1/8, population std 0.331    advantages +2.65 -0.38 -0.38 …

Only valid members count, at least two: an episode that a machine broke off says nothing about the agent. Where all
rewards are equal there is nothing to learn, and every advantage is 0: the gradient vanishes, which is what replay is
for.
"""

import statistics
from collections.abc import Sequence

from arpo.types import Group

EQUAL = 1e-9  # rewards closer than this differ by rounding (0.3 - 0.1 is not 0.2), which teaches nothing


def normalised(rewards: Sequence[float], std: str = "population") -> list[float]:
    """(reward - mean) / std for each; zeros where they are equal or fewer than two."""
    if len(rewards) < 2 or max(rewards) - min(rewards) < EQUAL:
        return [0.0] * len(rewards)
    mean = statistics.fmean(rewards)
    scale = statistics.pstdev(rewards) if std == "population" else statistics.stdev(rewards)
    return [(reward - mean) / scale for reward in rewards]


def group_advantages(group: Group, std: str = "population") -> list[float]:
    """One for each trajectory of the group; 0 for those that are not valid."""
    values = iter(normalised(rewards_of(group), std))
    return [next(values) if trajectory.outcome.valid else 0.0 for trajectory in group.trajectories]


def failed(group: Group, solved: float) -> bool:
    """Whether no valid member solved the task, by its score and not by its reward; False where no member is valid."""
    scores = [trajectory.score for trajectory in group.trajectories if trajectory.score is not None]
    return bool(scores) and max(scores) < solved


def rewards_of(group: Group) -> list[float]:
    """The rewards of its valid members."""
    return [trajectory.reward for trajectory in group.trajectories if trajectory.reward is not None]
