"""DPO, direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290): success over failure, pair by pair.

    loss = mean over groups of the mean over pairs (success, failure) of  -log sigmoid(beta (r_success - r_failure))

r: how much likelier an episode became since training began (preference.py). A pair is of one task; every success of a
group is paired with every failure of it. A group without both teaches nothing. beta: the larger, the less it pays to go
on where a pair is told apart already, so the nearer the policy stays to where it began.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from arpo.algorithms.base import Credit, Look, Loss, SampledTokens, Weighed
from arpo.algorithms.grpo import Grpo, for_every_token
from arpo.algorithms.loss import linear
from arpo.algorithms.preference import Moved, signs, weighed
from arpo.types import Group, Sample


class Dpo(Grpo):
    """See the module."""

    def advantages(self, group: Group) -> list[Credit]:
        values = signs(group, self.settings.solved)
        return for_every_token(group, values if {1.0, -1.0} <= {*values} else [0.0] * len(values))

    def weigh(self, samples: Sequence[Sample], look: Look) -> Weighed:
        return weighed(samples, look, self._pairs)

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        return linear(new, tokens)

    def _pairs(self, moved: Moved) -> tuple[Tensor, dict[str, float]]:
        margins = []  # of each group, successes x failures
        for task in dict.fromkeys(moved.tasks):
            mine = torch.tensor([one == task for one in moved.tasks])
            margins.append(moved.r[mine & moved.good][:, None] - moved.r[mine & ~moved.good])
        margins = [pairs for pairs in margins if len(pairs.flatten())]  # an episode may have no token to learn
        if not margins:
            return 0.0 * moved.r.sum(), {}
        beta = self.settings.beta
        loss = torch.stack([-F.logsigmoid(beta * pairs).mean() for pairs in margins]).mean()
        every = torch.cat([pairs.detach().flatten() for pairs in margins])
        return loss, {"margin": float(every.mean()), "accuracy": float((every > 0).double().mean())}
