"""One of two ranks that learn what one process learns. Run by test_fsdp.py.

    python ranked.py STORE RANK CHECKPOINT=KIND,KIND…     STORE: a file by which the two find each other

Prints, for each kind of learning and each batch, how far losses, log-probabilities and gradients lie from those of a
LocalLearner, and how many samples and screenshots this rank had.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from guesser import settings
from test_learner import FREE, Played, changed, play
from torch.distributed.tensor import DTensor

from arpo.algorithms.base import make_algorithm
from arpo.model.checkpoint import load_checkpoint
from arpo.training.base import Batch
from arpo.training.fsdp import RankLearner
from arpo.training.learner import LocalLearner
from arpo.types import Sample

KINDS: dict[str, dict[str, Any]] = {
    "trained": {"freeze_vision": False, "micro_tokens": 100, "checkpointing": True},
    "frozen": {"freeze_vision": True},
    "adapters": {"lora_rank": 4, "freeze_vision": False},
    "bfloat16": {"moments": "8bit", "freeze_vision": False},
    "pairs": {"freeze_vision": False, "micro_tokens": 100},
}
UPDATES = 2


def without_images(sample: Sample, pad: int) -> Sample:
    """The same text, nothing to look at."""
    kept = [row for row, token in enumerate(sample.ids) if token != pad]
    ids, sampled = tuple(sample.ids[row] for row in kept), tuple(sample.sampled[row] for row in kept)
    return dataclasses.replace(sample, ids=ids, sampled=sampled, images=())


def batches_of(played: Played, pad: int) -> dict[str, Batch]:
    """Batches of all kinds: where both ranks have much, where one has nothing, where one or both see nothing."""
    group, other = played.samples[:2]
    blind = [without_images(sample, pad) for sample in group]
    return {
        "many": Batch((*group, *other, blind[0]), 6),
        "for one rank": Batch((group[0],), 3),
        "one sees": Batch((group[0], blind[1]), 3),
        "nobody sees": Batch(tuple(blind), 3),
        "one without a screen": Batch((blind[0],), 3),
    }


def compare(folder: Path, played: Played, kind: str) -> list[dict[str, Any]]:
    config = changed(FREE, lr=1e-4, **KINDS[kind])
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    config = config.with_values({"agent.dtype": str(dtype).removeprefix("torch.")})
    if kind == "pairs":  # each rank must look at all episodes, and back at where they began
        config = config.with_values({"algorithm": settings({"name": "dpo"}).algorithm})
    one = LocalLearner(load_checkpoint(folder, "cpu", dtype), config, make_algorithm(config.algorithm, config.seed))
    rank = RankLearner(str(folder), config, make_algorithm(config.algorithm, config.seed), torch.device("cpu"))
    batches = batches_of(played, one.checkpoint.config.image_token_id)
    if kind != "trained":
        batches = {name: batches[name] for name in ("many", "nobody sees", "for one rank")}
    found = []
    for name, batch in batches.items():
        expected, mine = one.gradient(batch, played.screens), rank.gradient(batch, played.screens)
        whole = sum((part.loss for part in mine), torch.zeros(1))
        losses = [float(sum(part.loss for part in expected)), float(rank._summed(whole))]
        near = zip(
            one.logprobs(batch.samples, played.screens), rank.logprobs(batch.samples, played.screens), strict=True
        )
        off, compared = 0.0, 0
        for (weight, local), ours in zip(one.model.named_parameters(), rank.model.parameters(), strict=True):
            gradient, part = local.grad, rank._local[weight].grad
            assert (gradient is None) == (part is None), (kind, name, weight)
            if gradient is not None:
                assert isinstance(ours.grad, DTensor)
                scale = max(float(gradient.abs().max()), 1e-9)
                off = max(off, float((ours.grad.full_tensor() - gradient).abs().max()) / scale)
                compared += 1
        found.append(
            {
                "kind": kind,
                "batch": name,
                "losses": losses,
                "logprobs": max(float((a - b).abs().max()) for a, b in near),
                "gradients": off,
                "compared": compared,
                "samples": sum(len(part.rows) for part in mine),
                "images": sum(len(batch.samples[row].images) for part in mine for row in part.rows),
            }
        )
    steps = [batches["many"], batches["nobody sees"], batches["for one rank"]]
    one._tested = rank._tested = True
    samples = batches["many"].samples
    before = torch.cat(one.logprobs(samples, played.screens))
    for _ in range(UPDATES):
        norms = one.take_steps(steps, played.screens)[0], rank.take_steps(steps, played.screens)[0]
    now, theirs = (torch.cat(learner.logprobs(samples, played.screens)) for learner in (one, rank))
    moved = {"moved": float((now - before).abs().mean()), "apart": float((now - theirs).abs().mean())}
    largest = float((now - theirs).abs().max())
    held = sum(weight.grad is not None for weight in rank.model.parameters())  # gradients, when sampling is next
    return [
        *found,
        {"kind": kind, "batch": "after updates", "norms": norms, "logprobs": largest, "held": held, **moved},
    ]


if __name__ == "__main__":
    store, number = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=2)
    found = []
    for folder, _, kinds in (argument.partition("=") for argument in sys.argv[3:]):
        with tempfile.TemporaryDirectory() as run:
            played = play(load_checkpoint(folder, "cpu"), Path(run), changed(rollout_tasks=2))
        found += [one for kind in kinds.split(",") for one in compare(Path(folder), played, kind)]
    print(json.dumps(found))
    dist.destroy_process_group()
