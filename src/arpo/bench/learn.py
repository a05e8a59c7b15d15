"""How fast an update is, sampling and learning: `arpo bench train`.

An update is made as in training: episodes are played all at once (see `sample`), then learned in several optimiser
steps, and the new weights are handed to the engine. The vision tower is frozen, which is the default. Where TRL is
installed, its GRPOTrainer does the same work on the same screenshots (see `peer`), each update right after ours, so
that a machine that others use too slows both. Of several updates the median is reported:

    sample_tokens_per_s    sampled tokens over the time in which they are sampled
    learn_tokens_per_s     the same tokens over the time in which they are learned: old log-probabilities, forward and
                           backward passes, optimiser steps, the weights written and loaded by the engine
    update_tokens_per_s    over both
    learn_floor_…          what the machine would reach if learning were nothing but its multiplications, at the rate of
                           large matrices: `matmul_gflops`, measured between the updates
    speedup_vs_trl         TRL's time for an update, sampling and learning, over ours; `_least`: in the worst repeat
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from arpo.agent.dialects.base import flatten
from arpo.algorithms.base import make_algorithm
from arpo.bench import sample
from arpo.bench.envs import bar
from arpo.bench.sample import Episode, Work
from arpo.config import load_config
from arpo.errors import ConfigError
from arpo.model.layout import lay_out
from arpo.training.base import Batch
from arpo.training.learner import LocalLearner
from arpo.types import Sample

if TYPE_CHECKING:
    from arpo.bench.peer import Peer

OPTIMIZER_STEPS = 4  # of an update, as in the paper
REPEATS = 3
MATRIX = 1024  # rows and columns of what the machine's rate is taken with


@dataclass(frozen=True, slots=True)
class Round:
    """One update of ours, and one of TRL's on the same episodes; seconds."""

    sample_s: float
    learn_s: float
    trl_sample_s: float
    trl_learn_s: float
    matmul_s: float

    @property
    def speedup(self) -> float:
        return (self.trl_sample_s + self.trl_learn_s) / (self.sample_s + self.learn_s)


def bench_learn(
    model: str, size: tuple[int, int], episodes: int, turns: int, tokens: int, seed: int, trl: bool
) -> dict[str, Any]:
    """The numbers, under the names that `--json` prints."""
    if episodes < 2:
        raise ConfigError(f"episodes={episodes}: must be at least 2, since learning compares them")
    trl = trl and importlib.util.find_spec("trl") is not None
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(model, size, episodes, turns, tokens, seed, trl, Path(folder))
        rounds = [bench.round() for _ in bar("updates", range(REPEATS))]
    n = episodes * turns * tokens

    def rate(*parts: str) -> float:
        return n / statistics.median(sum(getattr(one, part) for part in parts) for one in rounds)

    gflops = 2e-9 * MATRIX**3 / statistics.median(one.matmul_s for one in rounds)
    gflop = 2e-9 * bench.multiplications() / n
    numbers = {
        "optimizer_steps": bench.steps,
        "episode_tokens": bench.length,
        "sample_tokens_per_s": rate("sample_s"),
        "learn_tokens_per_s": rate("learn_s"),
        "update_tokens_per_s": rate("sample_s", "learn_s"),
        "matmul_gflops": gflops,
        "learn_gflop_per_token": gflop,
        "learn_floor_tokens_per_s": gflops / gflop,
    }
    if trl:
        numbers |= {
            "trl_sample_tokens_per_s": rate("trl_sample_s"),
            "trl_learn_tokens_per_s": rate("trl_learn_s"),
            "sample_speedup_vs_trl": statistics.median(one.trl_sample_s / one.sample_s for one in rounds),
            "learn_speedup_vs_trl": statistics.median(one.trl_learn_s / one.learn_s for one in rounds),
            "speedup_vs_trl": statistics.median(one.speedup for one in rounds),
            "speedup_vs_trl_least": min(one.speedup for one in rounds),
        }
    return numbers


def print_table(numbers: dict[str, Any]) -> None:
    """The same numbers for people, those of sampling alone before them."""
    sample.print_table(numbers)
    table = Table("an update: tokens a second", "arpo", box=None)
    rows = [[what, f"{numbers[f'{what}_tokens_per_s']:,.0f}"] for what in ("sample", "learn", "update")]
    if "speedup_vs_trl" in numbers:
        table.add_column("TRL")
        table.add_column("times faster")
        rows[0] += [f"{numbers['trl_sample_tokens_per_s']:,.0f}", f"{numbers['sample_speedup_vs_trl']:.1f}"]
        rows[1] += [f"{numbers['trl_learn_tokens_per_s']:,.0f}", f"{numbers['learn_speedup_vs_trl']:.1f}"]
        rows[2] += ["", f"{numbers['speedup_vs_trl']:.1f} (at least {numbers['speedup_vs_trl_least']:.1f})"]
    for row in rows:
        table.add_row(*row)
    floor = (
        "learning at the speed of bare multiplication, {matmul_gflops:,.0f} Gflop/s: {learn_floor_tokens_per_s:,.0f}"
    )
    console = Console(highlight=False)
    console.print(table)
    console.print(floor.format(**numbers), soft_wrap=True)


class Bench:
    """An engine, a learner and perhaps the peer, each warmed up by a small update."""

    def __init__(
        self,
        model: str,
        size: tuple[int, int],
        episodes: int,
        turns: int,
        tokens: int,
        seed: int,
        trl: bool,
        folder: Path,
    ) -> None:
        self.episodes, self.turns, self.folder = episodes, turns, folder
        self.steps = math.gcd(OPTIMIZER_STEPS, episodes)
        self.work = Work(model, size, episodes, turns, tokens, seed)
        config = load_config(None, ["algorithm.name=grpo"])
        algorithm = make_algorithm(config.algorithm, config.seed)
        self.learner = LocalLearner(self.work.engine.checkpoint, config, algorithm, self.work.engine.screens)
        self.length = 0  # of an episode as one sequence, images spread out
        self.peer: Peer | None = None
        played = self.work.episodes(2, turns)
        asyncio.run(self.work.play(played))
        self._learn(played, steps=1)  # the first one sees that what is learned is what was sampled
        if trl:
            from arpo.bench.peer import Peer

            train = self.learner.config.train
            Peer(model, self.work, 2, turns, 1, train, folder).update(played)
            self.peer = Peer(model, self.work, episodes, turns, self.steps, train, folder)

    def round(self) -> Round:
        played = self.work.episodes(self.episodes, self.turns)
        sample_s, _ = asyncio.run(self.work.play(played))
        began = time.perf_counter()
        self._learn(played, self.steps)
        learn_s = time.perf_counter() - began
        matmul_s = _matmul_s(self.learner.parameters[0])
        trl_sample_s, trl_learn_s = self.peer.update(played) if self.peer else (0.0, 0.0)
        return Round(sample_s, learn_s, trl_sample_s, trl_learn_s, matmul_s)

    def multiplications(self) -> float:
        """That an update's learning cannot do without: a forward pass, a backward pass of twice that, and one more
        forward pass for the old log-probabilities of all steps but the first.

        Every token goes through every layer, since what is sampled later looks at it; but in the last layer only its
        keys and values are looked at, unless it leads to a sampled token.
        """
        text = self.learner.checkpoint.config.text_config
        layers, hidden, heads = text.num_hidden_layers, text.hidden_size, text.num_attention_heads
        n, t = self.turns * self.work.sampling.max_tokens, self.length
        keys = 2 * hidden * hidden * text.num_key_value_heads // heads
        others = 2 * hidden * hidden + 3 * hidden * text.intermediate_size
        whole = (keys + others) * t + hidden * t * t  # queries times keys and weights times values, each over half of t
        last = keys * t + others * n + hidden * n * t
        forward = (layers - 1) * whole + last + hidden * text.vocab_size * n
        return forward * self.episodes * (3 + (self.steps - 1) / self.steps)

    def _learn(self, played: list[Episode], steps: int) -> None:
        samples = self._samples(played)
        screens = {screen.hash: screen for episode in played for screen in episode.screens}
        n = len(samples) // steps
        self.learner.update([Batch(tuple(samples[i : i + n]), n) for i in range(0, len(samples), n)], screens)
        weights = self.learner.publish(self.folder / "weights")
        asyncio.run(self.work.engine.load(self.learner.version, weights))

    def _samples(self, played: list[Episode]) -> list[Sample]:
        samples = [
            to_sample(self.work, episode, 1.0 if i % 2 else -1.0, self.learner.version)
            for i, episode in enumerate(played)
        ]
        grids = [self.work.engine.checkpoint.model.sight.grid(*self.work.size)] * self.turns
        longest = max(samples, key=lambda one: len(one.ids))
        self.length = len(lay_out(longest.ids, grids[: len(longest.images)], self.work.dialect.image_pad).ids)
        return samples


def to_sample(work: Work, episode: Episode, advantage: float, version: int = 0) -> Sample:
    """A played episode as it is learned."""
    segments = episode.conversation.segments
    flat = flatten(segments, episode.replies, range(len(segments)), work.dialect.image_pad)
    return Sample(
        trajectory_id=episode.name,
        ids=flat.ids,
        images=flat.images,
        sampled=_without_ends(flat.sampled, work.sampling.max_tokens),
        logprobs=tuple(episode.logprobs),
        advantages=(advantage,) * len(episode.logprobs),
        version=version,
    )


def _without_ends(sampled: Sequence[bool], tokens: int) -> tuple[bool, ...]:
    """The end of each reply was put there and not sampled."""
    place = count()
    return tuple(yes and next(place) % (tokens + 1) < tokens for yes in sampled)


def _matmul_s(like: torch.Tensor) -> float:
    """The time of one large product in the type and place of the weights, the median of several."""
    a, b = torch.randn(2, MATRIX, MATRIX, device=like.device, dtype=like.dtype)
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for it, also on a GPU
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
