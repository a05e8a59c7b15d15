"""The metrics of an update, from its episodes and from every learned token, and the record of these tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pstdev

import torch
from torch import Tensor

from arpo.algorithms.advantages import failed, rewards_of
from arpo.algorithms.base import SampledTokens
from arpo.runs.record import TokenRecord
from arpo.training.base import Batch
from arpo.types import Group, Sample, Summary


def episode_metrics(
    played: Sequence[Summary], groups: Sequence[Group], filled: Sequence[Group], solved: float
) -> dict[str, float]:
    """Metrics of the episodes of an update: of all that were played, also in groups that were refused."""
    valid = [episode for episode in played if episode.outcome.valid]
    replayed = sum(t.provenance.source == "replay" for group in filled for t in group.trajectories)
    steps = [step for group in groups for trajectory in group.trajectories for step in trajectory.steps]
    n_valid, n_groups = max(1, len(valid)), max(1, len(groups))
    return {
        "success": math.fsum(episode.score or 0.0 for episode in valid) / n_valid,  # fsum: their order does not matter
        "reward": math.fsum(episode.reward or 0.0 for episode in valid) / n_valid,
        "spread": math.fsum(pstdev(rewards) for group in groups if (rewards := rewards_of(group))) / n_groups,
        "failed_groups": sum(failed(group, solved) for group in groups) / n_groups,
        "replayed_groups": replayed / n_groups,
        "episodes": len(valid),
        "errors": len(played) - len(valid),
        "env_steps": sum(episode.n_steps for episode in played),
        "sampled_tokens": sum(len(step.completion.tokens) for step in steps),
    }


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the tokens of samples that were learned together."""

    rows: tuple[int, ...]  # which samples of their batch they are
    loss: Tensor  # one number
    tokens: SampledTokens
    new: Tensor  # log-probabilities before the optimiser step
    clipped: Tensor
    importance: Tensor
    age: Tensor  # how many updates old the policy was that sampled


def metrics_of(seen: Sequence[Seen], norms: Sequence[float]) -> dict[str, float]:
    """Means over the tokens of all optimiser steps of an update; `norms`: of their gradients."""
    if not seen:
        return {"optimizer_steps": 0, "learned_tokens": 0}
    old, sampler, replayed, stale = (
        torch.cat([getattr(part.tokens, name) for part in seen]) for name in ("old", "sampler", "replayed", "stale")
    )
    new, clipped, importance, age = (
        torch.cat([getattr(part, name) for part in seen]) for name in ("new", "clipped", "importance", "age")
    )
    metrics = {
        "optimizer_steps": len(norms),
        "learned_tokens": len(new),
        "loss": torch.cat([part.loss for part in seen]).sum().item() / len(norms),
        "grad_norm": sum(norms) / len(norms),
        "clipped": clipped.float().mean().item(),
        "kl": (old - new).mean().item(),
    }
    if not replayed.all():
        metrics |= {
            "lag": age[~replayed].float().mean().item(),
            "sampler_gap": (old - sampler)[~replayed].abs().mean().item(),
        }
    if (stale := stale & ~replayed).any():
        metrics["lag_weight"] = importance[stale].mean().item()
    if replayed.any():
        w = importance[replayed]
        metrics |= {
            "replay_weight": w.mean().item(),
            "replay_rejected": (w == 0).float().mean().item(),
            "replay_clipped": clipped[replayed].float().mean().item(),
            "replay_age": age[replayed].float().mean().item(),
        }
    return metrics


def record_of(batches: Sequence[Batch], seen: Sequence[Sequence[Seen]]) -> list[TokenRecord]:
    """What was seen in the optimiser step of each batch, sorted by trajectory."""
    trajectories: dict[str, tuple[Sample, list[Tensor]]] = {}
    for batch, parts in zip(batches, seen, strict=True):
        tables: dict[int, Tensor] = {}  # of each sample, five numbers a token
        for part in parts:
            t = part.tokens
            table = torch.stack([t.advantages, t.sampler, t.old, part.new, part.clipped.float()]).cpu()
            lengths = [len(batch.samples[row].logprobs) for row in part.rows]
            tables |= zip(part.rows, torch.split(table, lengths, dim=1), strict=True)
        for row, sample in enumerate(batch.samples):
            trajectories.setdefault(sample.trajectory_id, (sample, []))[1].append(tables[row])
    records = []
    for name, (first, of_trajectory) in trajectories.items():
        a, sampler, old, new, clipped = torch.cat(of_trajectory, dim=1).numpy()
        records.append(TokenRecord(name, first.replayed_from, a, sampler, old, new, clipped.astype(bool)))
    return records
