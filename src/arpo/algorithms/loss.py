"""The clipped loss of tokens: pure functions of tensors, one entry a token, whatever sequences they came from.

    r    = exp(new - old)
    loss = sum of  weight * w * -min(r A, clip(r, 1 - low, 1 + high) A)

`weight` is the normaliser: the mean over trajectories of the mean over a trajectory's tokens, or a constant in place of
the latter. With dual clip the term of a negative advantage is at least c A.

Where an older policy sampled a fresh token, w = min(exp(old - sampler), `lag_truncate`), truncated importance sampling.
For all others w = 1: what is out of the store is trained as if it were fresh.

`algorithm.kl` pulls towards the policy that training began with, for all methods with this loss:

    loss += kl * sum of  weight * (exp(reference - new) - (reference - new) - 1)

whose mean over sampled tokens is the Kullback-Leibler divergence from it, and which is never negative. It holds for
every valid episode, also where the rewards of a group are equal.
"""

import torch
from torch import Tensor

from arpo.algorithms.base import Loss, SampledTokens
from arpo.config import AlgorithmConfig


def clipped_surrogate(new: Tensor, tokens: SampledTokens, settings: AlgorithmConfig) -> Loss:
    """See the module."""
    ratio = (new - tokens.old).exp()
    a = tokens.advantages
    free, bounded = ratio * a, ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high) * a
    term = torch.minimum(free, bounded)
    clipped = bounded < free
    if settings.dual_clip is not None:
        floor = settings.dual_clip * a
        clipped = clipped | ((a < 0) & (term < floor))
        term = torch.where(a < 0, torch.maximum(term, floor), term)
    w, weight = importance(tokens, settings), token_weights(tokens, settings)
    total = -(weight * w * term).sum()
    if settings.kl:
        apart = tokens.reference - new
        total = total + settings.kl * (weight * (apart.exp() - apart - 1)).sum()
    return Loss(total, clipped, w)


def linear(new: Tensor, tokens: SampledTokens) -> Loss:
    """The gradient of -A log-probability, and nothing else: of a loss whose slope the advantages are."""
    total = -(tokens.advantages * (new - new.detach())).sum()
    return Loss(total, torch.zeros_like(new, dtype=torch.bool), torch.ones_like(new))


def token_weights(tokens: SampledTokens, settings: AlgorithmConfig) -> Tensor:
    """What a token counts: trajectories alike, and in each its tokens alike; or all tokens alike."""
    lengths = tokens.lengths
    if settings.normaliser == "constant":
        lengths = torch.full_like(lengths, settings.length)
    return 1.0 / (lengths * tokens.trajectories).to(tokens.old.dtype)


def importance(tokens: SampledTokens, settings: AlgorithmConfig) -> Tensor:
    """w of each token; 1 where nothing is to be corrected."""
    w = torch.ones_like(tokens.old)
    if settings.lag_truncate is None:
        return w
    ratio = (tokens.old - tokens.sampler).exp().clamp(max=settings.lag_truncate)
    return torch.where(tokens.stale & ~tokens.replayed, ratio, w)
