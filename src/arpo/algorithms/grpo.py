"""GRPO, group-relative policy optimisation (Shao et al. 2024, "DeepSeekMath"): an episode is compared with its group.

    A    = (R - mean of the group's R) / std of the group's R        for every token of the episode
    r    = exp(new - old)                                            how much likelier the token is by now
    loss = mean over episodes of the mean over tokens of  -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)

w corrects for tokens that an older policy sampled (loss.py). There is no reference model and no penalty for leaving it.
Where all rewards of a group are equal, every A is 0, and the group teaches nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from arpo.algorithms.advantages import group_advantages
from arpo.algorithms.base import Credit, Loss, SampledTokens
from arpo.algorithms.loss import clipped_surrogate
from arpo.config import AlgorithmConfig
from arpo.types import Group, Trajectory


class Grpo:
    """The method of the module; the others that come with arpo change a part of it."""

    def __init__(self, settings: AlgorithmConfig, seed: int) -> None:
        self.settings, self.seed = settings, seed

    def accept(self, group: Group) -> bool:
        return any(credit.advantages for credit in self.advantages(group))

    def fill(self, groups: Sequence[Group], update: int, load: Callable[[str], Trajectory]) -> list[Group]:
        return list(groups)

    def advantages(self, group: Group) -> list[Credit]:
        return for_every_token(group, group_advantages(group, self.settings.std))

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        return clipped_surrogate(new, tokens, self.settings)

    def remember(self, groups: Sequence[Group], update: int) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def for_every_token(group: Group, advantages: Sequence[float]) -> list[Credit]:
    """Every sampled token has the advantage of its trajectory. One with 0 has no gradient and is left out."""
    return [
        Credit([advantage] * sum(len(step.completion.tokens) for step in trajectory.steps) if advantage else [])
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
    ]
