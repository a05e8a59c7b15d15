"""Sampling tokens: each row by its own settings and its own random numbers, whatever else is in the batch.

A reply's random numbers come from a stream that is named by what was asked: the seed, the ids and the screenshots of
its prompt. So a turn is a function of (weights, prompt, sampling, seed) and of nothing else: not of the turns before,
not of the batch, not of whether a cache was there. A token is the point where the running sum of the probabilities
passes a number of the stream.

The log-probability is that of the distribution which was drawn from: banned ids out, temperature applied, cut to the
top-p nucleus and made to sum to one. At temperature 0 that distribution is a single token, so its log-probability is 0.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from arpo.engines.base import Prompt, Sampling


def check(sampling: Sampling) -> None:
    """ValueError for settings that mean nothing."""
    if not (sampling.temperature >= 0 and 0 < sampling.top_p <= 1 and sampling.max_tokens >= 1):
        raise ValueError(f"{sampling}: it takes temperature >= 0, 0 < top_p <= 1, max_tokens >= 1")


def stream(seed: int, prompt: Prompt, n: int) -> list[float]:
    """n uniform numbers in [0, 1): the random stream of this prompt under this seed."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=16)
    digest.update(np.asarray(prompt.ids, dtype=np.int64).tobytes())
    digest.update("".join(image.hash for image in prompt.images).encode())
    # 32 bits each, so that the product with a sum of probabilities stays below that sum.
    bits = np.random.Generator(np.random.Philox(key=int.from_bytes(digest.digest(), "big"))).integers(2**32, size=n)
    return (bits / 2**32).tolist()


def sample(scores: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """A token and its log-probability for each row of scores, B x vocabulary, minus infinity where banned."""
    if scores.device.type == "mps":
        scores = scores.cpu()  # a Mac's GPU has no doubles
    # Rows that are cut to a nucleus are drawn in sorted order. They go apart, so that a row's draw never depends on
    # whether another row needed the sorting.
    kinds: dict[str, list[int]] = {}
    for row, sampling in enumerate(samplings):
        kind = "greedy" if sampling.temperature == 0 else "plain" if sampling.top_p == 1 else "nucleus"
        kinds.setdefault(kind, []).append(row)
    tokens, logprobs = [0] * len(samplings), [0.0] * len(samplings)
    for kind, rows in kinds.items():
        part = scores if len(rows) == len(samplings) else scores[rows]
        if kind == "greedy":
            # A row of NaNs has an argmax too; carry the NaN on, so that the caller sees it.
            best = part.max(dim=-1)
            chosen = best.indices, best.values - best.values
        else:
            heat = part.new_tensor([[samplings[row].temperature] for row in rows])
            u = torch.tensor([[uniforms[row]] for row in rows], dtype=torch.float64, device=part.device)
            if kind == "plain":
                chosen = plain(part / heat, u)
            else:
                chosen = _nucleus(part / heat, u, part.new_tensor([[samplings[row].top_p] for row in rows]))
        for row, token, logprob in zip(rows, chosen[0].tolist(), chosen[1].tolist(), strict=True):
            tokens[row], logprobs[row] = token, logprob
    return tokens, logprobs


def plain(scores: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = scores.log_softmax(dim=-1)
    token = _pick(logprobs.exp().double(), u)
    return token[:, 0], logprobs.gather(-1, token)[:, 0]


def _nucleus(scores: Tensor, u: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Only the most probable tokens that reach `top_p` together, the one that reaches it included."""
    logprobs, order = torch.sort(scores.log_softmax(dim=-1), dim=-1, descending=True, stable=True)
    probabilities = logprobs.exp().double()
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = probabilities.masked_fill(before >= top_p, 0.0)
    place = _pick(kept, u)
    logprob = logprobs.gather(-1, place)[:, 0] - kept.sum(dim=-1).log()
    return order.gather(-1, place)[:, 0], logprob


def _pick(probabilities: Tensor, u: Tensor) -> Tensor:
    """The first place where the running sum passes u of the whole: B x 1. In doubles: a tail of 150,000 must add up."""
    sums = probabilities.cumsum(dim=-1)
    place = torch.searchsorted(sums, u * sums[:, -1:], right=True)
    return place.clamp_(max=probabilities.shape[-1] - 1)  # a row of NaNs has no such place
