"""An algorithm from outside: REINFORCE without groups. A token is worth its discounted return, less a baseline."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import arpo
from arpo.algorithms.base import Credit, Loss, SampledTokens
from arpo.config import AlgorithmConfig


class Reinforce:
    def __init__(self, settings: AlgorithmConfig, seed: int) -> None:
        self.discount: float = settings.options["discount"]
        self.baseline = 0.0  # the mean reward of earlier updates

    def accept(self, group: arpo.Group) -> bool:
        return True

    def seeks(self, group: arpo.Group) -> bool:
        return False

    def fill(
        self, groups: Sequence[arpo.Group], update: int, load: Callable[[str], arpo.Trajectory]
    ) -> list[arpo.Group]:
        return list(groups)

    def advantages(self, group: arpo.Group) -> list[Credit]:
        return [self._credit(one) if one.reward is not None else Credit() for one in group.trajectories]

    def _credit(self, trajectory: arpo.Trajectory) -> Credit:
        n = sum(len(step.completion.tokens) for step in trajectory.steps)
        returns = [(trajectory.reward or 0.0) * self.discount ** (n - 1 - i) for i in range(n)]
        return Credit([value - self.baseline for value in returns], returns)

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        assert len(tokens.returns) == len(new)
        total = -(new * tokens.advantages / tokens.lengths).sum() / tokens.trajectories
        return Loss(total, torch.zeros_like(new, dtype=torch.bool), torch.ones_like(new))

    def remember(self, groups: Sequence[arpo.Group], update: int) -> None:
        rewards = [one.reward for group in groups for one in group.trajectories if one.reward is not None]
        self.baseline += (sum(rewards) / len(rewards) - self.baseline) / (update + 1)

    def state(self) -> dict[str, Any]:
        return {"baseline": self.baseline}

    def restore(self, state: dict[str, Any]) -> None:
        self.baseline = state["baseline"]


METHOD = arpo.register_algorithm("reinforce", Reinforce, settings={"group": 1}, options={"discount": 1.0})
