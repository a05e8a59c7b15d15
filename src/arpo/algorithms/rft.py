"""RFT, reject-sampling fine-tuning (Yuan et al. 2023, arXiv 2308.01825): imitate one's own successes, drop the rest.

    loss = mean over episodes of  [solved] * mean over tokens of  -new

The mean is over all valid episodes, so few successes make a small gradient; AdamW takes most of that back. In rounds it
is REINFORCE with rewards of 0 and 1 and no baseline: nothing is ever made less likely.
"""

import torch
from torch import Tensor

from arpo.algorithms.advantages import exemplary
from arpo.algorithms.base import Credit, Loss, SampledTokens
from arpo.algorithms.grpo import Grpo, for_every_token
from arpo.algorithms.loss import token_weights
from arpo.types import Group


class Rft(Grpo):
    """See the module."""

    def advantages(self, group: Group) -> list[Credit]:
        return for_every_token(group, [float(exemplary(one, self.settings.solved)) for one in group.trajectories])

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        total = -(token_weights(tokens, self.settings) * tokens.advantages * new).sum()
        return Loss(total, torch.zeros_like(new, dtype=torch.bool), torch.ones_like(new))
