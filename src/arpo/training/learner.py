"""The learner: Samples in, metrics out, the version one higher.

    learner = Learner(load_checkpoint("base"), config)
    learner.show(screens, visual)                             # the screenshots of the next samples
    metrics = learner.update([batch, batch])                  # one optimiser step each
    await run.keep_record(update, learner.record)             # what it saw of every token
    await engine.load(learner.version, learner.publish(folder))

The loss covers sampled tokens only, and log-probabilities are computed at their positions alone: never the whole
vocabulary for a whole sequence. Old log-probabilities are those of the policy before the update, computed here once:
for the first optimiser step its own forward pass has them, for the others there is a pass before it. The sampler's own
would do but for their rounding, which depends on what else was sampled at that moment; a run that is killed and goes on
would learn other last digits, and in bf16 rounding alone would clip tokens. (The self-test holds the two together.)

Weights and optimiser are fp32, for in bf16 small steps round away; a model that is sampled in bf16 computes in it here.
A frozen vision tower is not run at all: the engine has already computed the visual tokens, and `show` takes them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.algorithms.loss import Tokens, importance, policy_loss
from arpo.config import AlgorithmConfig, Config
from arpo.envs.images import decode
from arpo.errors import ArpoError
from arpo.model.checkpoint import Checkpoint, save_model
from arpo.model.images import image_grid, resized
from arpo.model.layout import lay_out
from arpo.runs.record import TokenRecord
from arpo.training import lora
from arpo.training.samples import Batch
from arpo.types import Observation, Sample

# How far, on average, log-probabilities that should be equal may lie apart; 19 of 20 within TAIL times that.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.02}
TAIL = 5.0


class LearnerError(ArpoError):
    """Learning cannot go on: numbers that are not finite, or a learner that is not the sampler's twin."""


class NotFinite(LearnerError):
    """A loss or a gradient that is no number. The optimiser step was not taken."""

    def __init__(self, text: str, batch: Batch, old: Mapping[int, Tensor]) -> None:
        super().__init__(text)
        self.batch = batch  # what the step was to learn
        self.old = [old[id(sample)] for sample in batch.samples if id(sample) in old]  # none in an update's first step


@dataclass(frozen=True, slots=True)
class _Part:
    """Sequences that go through the model together, and where their sampled tokens are."""

    samples: tuple[Sample, ...]
    ids: Tensor  # B x T
    positions: Tensor  # 3 x B x T
    before: Tensor  # B x Q: in each row the places that sampled tokens follow, then -1
    images: tuple[str, ...]  # in the order in which their tokens stand


Seen: TypeAlias = list[tuple[tuple[Sample, ...], dict[str, Tensor]]]
"""Of the samples of each part that was learned, by name, one value a token (the loss: one)."""


class Learner:
    """One process, one model, its optimiser."""

    def __init__(self, checkpoint: Checkpoint, config: Config) -> None:
        self.checkpoint, self.config, self.version = checkpoint, config, 0
        self.model = checkpoint.model
        self._compute: torch.dtype = self.model.lm_head.weight.dtype
        self.model.float()
        self.screens: Mapping[str, Observation] = {}
        self._visual: Mapping[str, Tensor] | None = None
        self.model.requires_grad_(True)
        if config.train.freeze_vision:
            self.model.model.visual.requires_grad_(False)
        if config.train.lora_rank:
            lora.add_adapters(self.model, config.train.lora_rank, not config.train.freeze_vision, config.seed)
        self.parameters = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, config.train.lr, weight_decay=config.train.weight_decay)
        self.steps = 0  # of the optimiser, in all
        self.midway = False  # whether some, but not all, steps of an update were taken
        self.record: list[TokenRecord] = []  # of the last update
        self._pad: int = checkpoint.config.image_token_id
        self._device = self.parameters[0].device

    def show(self, screens: Mapping[str, Observation], visual: Mapping[str, Tensor] | None = None) -> None:
        """The screenshots that the next samples need, by hash; and their visual tokens, where the tower is frozen."""
        self.screens, self._visual = screens, visual

    def update(self, batches: Sequence[Batch]) -> dict[str, float]:
        """One optimiser step for each batch; batches without samples are skipped."""
        batches = [batch for batch in batches if batch.samples]
        later = [sample for batch in batches[1:] for sample in batch.samples]
        old = {id(sample): values for sample, values in zip(later, self.logprobs(later), strict=True)}
        seen: Seen = []
        norms = [self.step(batch, old, seen) for batch in batches]
        self.version, self.midway = self.version + 1, False
        self.record = _record(batches, seen)
        return _metrics(seen, norms)

    def step(self, batch: Batch, old: Mapping[int, Tensor], seen: Seen) -> float:
        """One step of the optimiser; returns the norm of the gradient and adds to `seen`.

        `old`: the log-probabilities before the update, by the `id` of a sample; where there are none, those of now.
        NotFinite, and everything is as before, where the loss or the gradient is no number.
        """
        self.optimizer.zero_grad(set_to_none=True)
        weights = _weights(batch, self.config.algorithm)
        for part in self._parts(batch.samples):
            seen.append((part.samples, self._learn(part, old, weights)))
            if not torch.isfinite(loss := seen[-1][1]["loss"]):
                raise NotFinite(f"after {self.version} updates: the loss is {loss.item()}", batch, old)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.config.train.grad_clip))
        if not math.isfinite(norm):
            raise NotFinite(f"after {self.version} updates: the gradient is not finite", batch, old)
        self.steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.train.lr * min(1.0, self.steps / max(1, self.config.train.warmup))
        self.midway = True
        self.optimizer.step()
        return norm

    def logprobs(self, samples: Sequence[Sample], altered: bool = False) -> list[Tensor]:
        """Of the sampled tokens of each sample, under the present weights. `altered`: as if the screens were others."""
        found: dict[int, Tensor] = {}
        with torch.no_grad():
            for part in self._parts(samples):
                lengths = [sum(sample.sampled) for sample in part.samples]
                values = torch.split(self._forward(part, altered), lengths)
                found |= {id(sample): value for sample, value in zip(part.samples, values, strict=True)}
        return [found[id(sample)] for sample in samples]

    def self_test(self, samples: Sequence[Sample]) -> None:
        """LearnerError unless fresh samples have the sampler's log-probabilities here, and others on other screens.

        Judged by mean and quantile: in bf16 a token here and there is far off, in other weights they all are.
        """
        sample = max(samples, key=lambda one: len(one.logprobs))
        (here,) = self.logprobs([sample])
        off = (here - torch.tensor(sample.logprobs, device=self._device)).abs()
        mean, tail = float(off.mean()), float(off.quantile(0.95))
        limit = self.config.train.self_test or TOLERANCE[self._compute]
        if not (mean <= limit and tail <= TAIL * limit):  # so, since NaN is never more than anything
            raise LearnerError(
                f"the learner gives sampled tokens other log-probabilities than the sampler (off by {mean:.3g} on "
                f"average, one in twenty by {tail:.3g}; train.self_test allows {limit:g} and {TAIL * limit:g}): "
                "they do not run the same weights, prompt or temperature"
            )
        if torch.equal(self.logprobs([sample], altered=True)[0], here):
            raise LearnerError("the learner does not look at screenshots: altered ones change no log-probability")

    def publish(self, folder: Path) -> Path:
        """Write the weights where an engine can fetch them."""
        save_model(self.model, folder, lora.merged(self.model) if self.config.train.lora_rank else None)
        return folder

    # One part.

    def _learn(self, part: _Part, old: Mapping[int, Tensor], weights: dict[int, float]) -> dict[str, Tensor]:
        """Add the part's gradient; returns what was seen of each token. Samples that `old` lacks come first of all."""
        samples, new = part.samples, self._forward(part)
        lengths = torch.tensor([sum(sample.sampled) for sample in samples], device=self._device)

        def each(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), device=self._device).repeat_interleave(lengths)

        tokens = Tokens(
            sampler=torch.tensor([v for sample in samples for v in sample.logprobs], device=self._device),
            old=torch.cat([old[id(sample)] for sample in samples]) if id(samples[0]) in old else new.detach(),
            advantages=torch.tensor([v for sample in samples for v in sample.advantages], device=self._device),
            weights=each(weights[id(sample)] for sample in samples),
            replayed=each(sample.replayed for sample in samples).bool(),
            stale=each(sample.version < self.version for sample in samples).bool(),
            sequence=each(range(len(samples))).long(),
        )
        loss, clipped = policy_loss(new, tokens, self.config.algorithm)
        loss.backward()  # type: ignore[no-untyped-call]
        return {
            "loss": loss.detach()[None],
            "advantages": tokens.advantages,
            "sampler": tokens.sampler,
            "old": tokens.old,
            "new": new.detach(),
            "clipped": clipped,
            "replayed": tokens.replayed,
            "stale": tokens.stale,
            "importance": importance(tokens, self.config.algorithm),
            "age": each(self.version - sample.version for sample in samples),
        }

    def _forward(self, part: _Part, altered: bool = False) -> Tensor:
        """The log-probability of every sampled token, at the temperature of sampling."""
        with torch.autocast(self._device.type, self._compute, enabled=self._compute != torch.float32):
            scores = self.model(
                part.ids,
                part.positions,
                wanted=part.before,
                recompute=self.config.train.checkpointing,
                dtype=self._compute,  # so the sum of all layers is as exact as the sampler's
                **self._seen(part.images, altered),
            )
            scores = scores / self.config.train.temperature
        return -F.cross_entropy(scores, part.ids.gather(1, part.before + 1)[part.before >= 0], reduction="none")

    def _seen(self, names: Iterable[str], altered: bool) -> dict[str, Any]:
        """What the model is shown: visual tokens, or where there are none the screenshots for its own tower."""
        if self._visual is not None:
            visual = torch.cat([self._visual[name] for name in names])
            # Other tokens in other places: also where a screen is all one colour.
            return {"features": visual.flip(0, 1) if altered else visual}
        arrays = {name: np.array(resized(decode(self.screens[name].image))) for name in dict.fromkeys(names)}
        pixels = {name: torch.from_numpy(array).to(self._device) + 128 * altered for name, array in arrays.items()}
        return {"images": [pixels[name] for name in names]}

    def _parts(self, samples: Sequence[Sample]) -> Iterator[_Part]:
        """Samples of like length together, up to the limit of tokens; padded at the right, which nothing sees."""
        sizes = {name: image_grid(one.width, one.height) for name, one in self.screens.items()}
        rows = [(sample, lay_out(sample.ids, [sizes[name] for name in sample.images], self._pad)) for sample in samples]
        rows.sort(key=lambda row: len(row[1].ids))
        while rows:
            taken = 1
            while taken < len(rows) and (taken + 1) * len(rows[taken][1].ids) <= self.config.train.micro_tokens:
                taken += 1
            part, rows = rows[:taken], rows[taken:]
            length = len(part[-1][1].ids)
            ids = torch.zeros(taken, length, dtype=torch.int64)
            positions = torch.zeros(3, taken, length, dtype=torch.int64)
            before = []
            for row, (sample, layout) in enumerate(part):
                n = len(layout.ids)
                ids[row, :n], positions[:, row, :n] = layout.ids, layout.positions
                before.append(torch.from_numpy(layout.starts[:-1])[torch.tensor(sample.sampled)] - 1)
            yield _Part(
                samples=tuple(sample for sample, _ in part),
                ids=ids.to(self._device),
                positions=positions.to(self._device),
                before=nn.utils.rnn.pad_sequence(before, batch_first=True, padding_value=-1).to(self._device),
                images=tuple(name for sample, _ in part for name in sample.images),
            )


def _weights(batch: Batch, config: AlgorithmConfig) -> dict[int, float]:
    """What a token of each sample counts: trajectories alike, and in each its tokens alike; or all tokens alike."""
    tokens: Counter[str] = Counter()
    for sample in batch.samples:
        tokens[sample.trajectory_id] += sum(sample.sampled)
    constant = config.length if config.normaliser == "constant" else None
    return {
        id(sample): 1.0 / ((constant or tokens[sample.trajectory_id]) * batch.trajectories) for sample in batch.samples
    }


def _record(batches: Sequence[Batch], seen: Seen) -> list[TokenRecord]:
    """What was seen, put together again trajectory by trajectory."""
    columns = ("advantages", "sampler", "old", "new", "clipped")
    rows: dict[int, Tensor] = {}  # of each sample, the columns of its tokens
    for samples, values in seen:
        table = torch.stack([values[name].float() for name in columns]).cpu()
        parts = torch.split(table, [len(sample.logprobs) for sample in samples], dim=1)
        rows |= {id(sample): part for sample, part in zip(samples, parts, strict=True)}
    trajectories: defaultdict[str, list[Sample]] = defaultdict(list)
    for sample in chain(*(batch.samples for batch in batches)):
        trajectories[sample.trajectory_id].append(sample)
    found = []
    for name, mine in trajectories.items():
        a, sampler, old, new, clipped = torch.cat([rows[id(sample)] for sample in mine], dim=1).numpy()
        found.append(TokenRecord(name, mine[0].replayed_from, a, sampler, old, new, clipped.astype(bool)))
    return found


def _metrics(seen: Seen, norms: list[float]) -> dict[str, float]:
    if not seen:
        return {"optimizer_steps": 0, "learned_tokens": 0}
    every: dict[str, Any] = {name: torch.cat([values[name] for _, values in seen]) for name in seen[0][1]}
    found = {
        "optimizer_steps": len(norms),
        "learned_tokens": len(every["new"]),
        "loss": every["loss"].sum().item() / len(norms),
        "grad_norm": sum(norms) / len(norms),
        "clipped": every["clipped"].float().mean().item(),
        "kl": (every["old"] - every["new"]).mean().item(),
    }
    replayed, stale = every["replayed"], every["stale"] & ~every["replayed"]
    if not replayed.all():
        found |= {
            "lag": every["age"][~replayed].float().mean().item(),
            "sampler_gap": (every["old"] - every["sampler"])[~replayed].abs().mean().item(),
        }
    if stale.any():
        found["lag_weight"] = every["importance"][stale].mean().item()
    if replayed.any():
        w = every["importance"][replayed]
        found |= {
            "replay_weight": w.mean().item(),
            "replay_rejected": (w == 0).float().mean().item(),
            "replay_clipped": every["clipped"][replayed].float().mean().item(),
            "replay_age": every["age"][replayed].float().mean().item(),
        }
    return found
