"""The loss of tokens: pure functions of tensors, one entry a token, whatever sequences they came from.

Three log-probabilities of the same token are kept apart:

    sampler   mu       what drew it, perhaps many updates ago
    old       pi_old   the policy before this update
    new       pi       the policy now, with gradient

    r    = exp(new - old)
    loss = sum of  weight * w * -min(r A, clip(r, 1 - low, 1 + high) A)

`weight` holds the normaliser and is passed in: the mean over trajectories of the mean over a trajectory's tokens, or a
constant in place of the latter. With dual clip the term of a negative advantage is at least c A.

Where the sampler was not the policy before this update, w = min(exp(old - sampler), C), truncated importance sampling:
for fresh tokens that an older policy sampled (`lag_truncate`), and for replayed ones (`replay_truncate`), where w is 0
for a whole sequence whose geometric mean of that ratio is off by more than a bound. For all others, and where nothing
is to be corrected, w = 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from arpo.config import AlgorithmConfig


@dataclass(frozen=True, slots=True)
class Tokens:
    """N tokens."""

    sampler: Tensor
    old: Tensor
    advantages: Tensor
    weights: Tensor
    replayed: Tensor  # bool
    stale: Tensor  # bool: drawn by an older policy than the one before this update
    sequence: Tensor  # which sequence a token belongs to, from 0 on


def policy_loss(new: Tensor, tokens: Tokens, config: AlgorithmConfig) -> tuple[Tensor, Tensor]:
    """The loss, and for each token whether clipping took its gradient away."""
    ratio = (new - tokens.old).exp()
    a = tokens.advantages
    free, bounded = ratio * a, ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * a
    term = torch.minimum(free, bounded)
    clipped = bounded < free
    if config.dual_clip is not None:
        floor = config.dual_clip * a
        clipped = clipped | ((a < 0) & (term < floor))
        term = torch.where(a < 0, torch.maximum(term, floor), term)
    return -(tokens.weights * importance(tokens, config) * term).sum(), clipped


def importance(tokens: Tokens, config: AlgorithmConfig) -> Tensor:
    """w of each token; 1 where nothing is to be corrected."""
    w = torch.ones_like(tokens.old)
    log_ratio = tokens.old - tokens.sampler
    for which, bound in (
        (tokens.stale & ~tokens.replayed, config.lag_truncate),
        (tokens.replayed, config.replay_truncate),
    ):
        if bound is not None:
            w = torch.where(which, log_ratio.exp().clamp(max=bound), w)
    if config.replay_reject is not None:
        n = int(tokens.sequence.max()) + 1 if len(tokens.sequence) else 0
        total = log_ratio.new_zeros(n).index_add(0, tokens.sequence, log_ratio)
        length = log_ratio.new_zeros(n).index_add(0, tokens.sequence, torch.ones_like(log_ratio))
        far = (total / length).abs() > torch.tensor(config.replay_reject).log()
        w = torch.where(tokens.replayed & far[tokens.sequence], torch.zeros_like(w), w)
    return w
