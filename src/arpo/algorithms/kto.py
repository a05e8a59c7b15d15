"""KTO, Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv 2402.01306): each episode is good or bad by itself.

    z    = max(0, mean of r over the episodes of the optimiser step), without a gradient
    loss = mean over episodes of  1 - sigmoid(beta (r - z))  of a success,  1 - sigmoid(beta (z - r))  of a failure

r: how much likelier an episode became since training began (preference.py). z stands for the divergence from that
policy. The paper estimates it with replies to other prompts; here episodes are the policy's own, so their mean r is
that divergence, but for what was learned since they were played. Neither pairs nor groups are needed.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from arpo.algorithms.base import Credit, Look, Loss, SampledTokens, Weighed
from arpo.algorithms.grpo import Grpo, for_every_token
from arpo.algorithms.loss import linear
from arpo.algorithms.preference import Moved, signs, weighed
from arpo.types import Group, Sample


class Kto(Grpo):
    """See the module."""

    def advantages(self, group: Group) -> list[Credit]:
        return for_every_token(group, signs(group, self.settings.solved))

    def weigh(self, samples: Sequence[Sample], look: Look) -> Weighed:
        return weighed(samples, look, self._apart)

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        return linear(new, tokens)

    def _apart(self, moved: Moved) -> tuple[Tensor, dict[str, float]]:
        z = moved.r.detach().mean().clamp(min=0)
        gain = torch.where(moved.good, moved.r - z, z - moved.r)
        return (1 - torch.sigmoid(self.settings.beta * gain)).mean(), {"divergence": float(z)}
