"""How much better than its group each episode was.

    rewards 1 0 0 0 0 0 0 0    mean 1/8, population std 0.331    advantages +2.65 -0.38 -0.38 …

Only valid members count, at least two: an episode that a machine broke off says nothing about the agent. Where all
rewards are equal there is nothing to learn, and every advantage is 0: the gradient vanishes, which is what replay is
for.
"""

import math
import statistics
from collections.abc import Sequence

from arpo.types import Group, Trajectory

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


def exemplary(trajectory: Trajectory, solved: float) -> bool:
    """Whether it solved its task and is to be repeated as it is.

    One whose reward is lower than its score, since its last reply was no action, is not: it would teach that reply.
    """
    score, reward = trajectory.score, trajectory.reward
    return score is not None and reward is not None and reward >= score >= solved


def solved_by_all(group: Group, solved: float) -> bool:
    """Whether every valid member solved the task; False where no member is valid."""
    scores = [trajectory.score for trajectory in group.trajectories if trajectory.score is not None]
    return bool(scores) and min(scores) >= solved


def surprising(group: Group, share: float) -> list[list[bool]]:
    """Which turns of each trajectory are among this share of the turns of valid members: the least expected replies.

    A reply's surprise is minus the mean of its tokens' log-probabilities, whose expectation is the policy's entropy.
    """
    surprise = [
        [-statistics.fmean(step.completion.logprobs or (0.0,)) for step in trajectory.steps]
        for trajectory in group.trajectories
    ]
    valid = (values for one, values in zip(group.trajectories, surprise, strict=True) if one.outcome.valid)
    every = sorted((value for values in valid for value in values), reverse=True)
    least = every[math.ceil(share * len(every)) - 1] if every else 0.0
    return [[value >= least for value in of_one] for of_one in surprise]


def rewards_of(group: Group) -> list[float]:
    """The rewards of its valid members."""
    return [trajectory.reward for trajectory in group.trajectories if trajectory.reward is not None]
