"""The metrics of an update, from its episodes and from every learned token, and the record of these tokens."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from arpo.algorithms.advantages import failed, rewards_of
from arpo.algorithms.base import SampledTokens
from arpo.runs.record import TokenRecord
from arpo.training.base import Batch, Update
from arpo.types import Group, Outcome, Sample, Summary

TURNS = 16  # told apart; later ones count as the last of these


def episode_metrics(
    played: Sequence[Summary], groups: Sequence[Group], filled: Sequence[Group], solved: float
) -> dict[str, float]:
    """Metrics of the episodes of an update: of all that were played, also in groups that were refused.

    Of an offline training all are of stored episodes: `stored_episodes` says how many, and there are no `env_steps`.
    """
    valid = [episode for episode in played if episode.outcome.valid]
    replayed = sum(t.provenance.source == "replay" for group in filled for t in group.trajectories)
    steps = [step for group in groups for trajectory in group.trajectories for step in trajectory.steps]
    stored = sum(episode.source == "offline" for episode in played)
    n_valid, n_groups = max(1, len(valid)), max(1, len(groups))
    return {
        "success": sum((episode.score or 0.0) >= solved for episode in valid) / n_valid,
        "reward": math.fsum(episode.reward or 0.0 for episode in valid) / n_valid,  # fsum: order does not matter
        "spread": math.fsum(statistics.pstdev(rewards) for group in groups if (rewards := rewards_of(group)))
        / n_groups,
        "failed_groups": sum(failed(group, solved) for group in groups) / n_groups,
        "replayed_groups": replayed / n_groups,
        "episodes": len(valid),
        "errors": len(played) - len(valid),
        "ruined": sum(episode.outcome is Outcome.RUINED for episode in played),
        "env_steps": sum(episode.n_steps for episode in played if episode.source != "offline"),
        "sampled_tokens": sum(len(step.completion.tokens) for step in steps),
    } | ({"stored_episodes": stored} if stored else {})


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
    told: Mapping[str, float] = field(default_factory=dict)  # by the method, of the whole optimiser step


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
        metrics |= {
            "replay_clipped": clipped[replayed].float().mean().item(),
            "replay_age": age[replayed].float().mean().item(),
        }
    return metrics


def update_of(batches: Sequence[Batch], seen: Sequence[Sequence[Seen]], norms: Sequence[float], version: int) -> Update:
    """What an update has to tell: of the optimiser step of each batch what was seen, and the norm of its gradient."""
    record = record_of(batches, seen)
    metrics = metrics_of([part for parts in seen for part in parts], norms) | by_turn(batches, record, version)
    told = [parts[0].told for parts in seen if parts]
    names = dict.fromkeys(name for one in told for name in one)
    own = {name: statistics.fmean(one[name] for one in told if name in one) for name in names}
    return Update(own | metrics, record)


def by_turn(batches: Sequence[Batch], record: Sequence[TokenRecord], version: int) -> dict[str, float]:
    """How old the policy was, and how far sampler and learner are apart, by turn of an episode: means over tokens.

    A key-value cache that is not what it should be, or a screenshot that was lost, shows from some turn on.
    """
    gaps = {one.trajectory_id: np.abs(one.old - one.sampler).tolist() for one in record if one.replayed_from is None}
    ages: dict[int, list[int]] = {}
    apart: dict[int, list[float]] = {}
    for sample in (sample for batch in batches for sample in batch.samples if not sample.stored):
        for number, sampled_by, tokens in sample.turns:
            turn = min(number, TURNS)
            ages.setdefault(turn, []).extend([version - sampled_by] * tokens)
            apart.setdefault(turn, []).extend(gaps[sample.trajectory_id][:tokens])
            del gaps[sample.trajectory_id][:tokens]
    kinds: tuple[tuple[str, Mapping[int, Sequence[float]]], ...] = (("lag", ages), ("sampler_gap", apart))
    return {f"{name}_turn_{turn}": math.fsum(of[turn]) / len(of[turn]) for name, of in kinds for turn in sorted(of)}


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
