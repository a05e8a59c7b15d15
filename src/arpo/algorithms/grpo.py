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

from arpo.algorithms.advantages import failed, group_advantages, surprising
from arpo.algorithms.base import Credit, Loss, SampledTokens
from arpo.algorithms.loss import clipped_surrogate
from arpo.config import AlgorithmConfig
from arpo.types import Group, Trajectory


class Grpo:
    """The method of the module; the others that come with arpo change a part of it."""

    def __init__(self, settings: AlgorithmConfig, seed: int) -> None:
        self.settings, self.seed = settings, seed

    def accept(self, group: Group) -> bool:
        return any(any(credit.advantages) for credit in self.advantages(group))

    def seeks(self, group: Group) -> bool:
        return failed(group, self.settings.solved)

    def fill(self, groups: Sequence[Group], update: int, load: Callable[[str], Trajectory]) -> list[Group]:
        return list(groups)

    def advantages(self, group: Group) -> list[Credit]:
        return self.credits(group, group_advantages(group, self.settings.std))

    def credits(self, group: Group, advantages: Sequence[float]) -> list[Credit]:
        """Of the tokens of trajectories with these advantages."""
        return for_every_token(group, advantages, self.settings.surprising, every=self.settings.kl > 0)

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        return clipped_surrogate(new, tokens, self.settings)

    def remember(self, groups: Sequence[Group], update: int) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def for_every_token(group: Group, advantages: Sequence[float], share: float = 1.0, every: bool = False) -> list[Credit]:
    """Every sampled token has the advantage of its trajectory. One with 0 has no gradient and is left out.

    `share`: of the group's turns, those with the most surprising replies; the tokens of others have 0. `every`: none
    of the valid ones is left out, since something else than their advantage (`algorithm.kl`) gives them a gradient.
    """
    return [
        Credit([advantage * kept for step, kept in zip(one.steps, turns, strict=True) for _ in step.completion.tokens])
        if advantage or (every and one.outcome.valid)
        else Credit()
        for one, advantage, turns in zip(group.trajectories, advantages, surprising(group, share), strict=True)
    ]
