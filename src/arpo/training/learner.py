"""The learner of one process: one model and its optimiser.

    learner = LocalLearner(load_checkpoint("base"), config, algorithm)
    update = learner.update([batch, batch], screens)           # one optimiser step each

The loss covers sampled tokens only, and log-probabilities are computed at their positions alone: never the whole
vocabulary for a whole sequence. Old log-probabilities are those of the policy before the update, computed here once:
for the first optimiser step its own forward pass has them, for the others there is a pass before it. The sampler's own
are not used because of rounding, which depends on what else was sampled at the same time: a resumed run would learn
other last digits, and in bf16 rounding alone would clip tokens. (The self-test compares the two.)

Weights and optimiser are fp32, since bf16 rounds small steps away; a model that is sampled in bf16 computes in it here.
The visual tokens that a frozen vision tower makes of a screenshot never change: `Screens` keeps them, and an engine in
the same process can share its own.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.algorithms.base import Algorithm, SampledTokens
from arpo.config import Config
from arpo.engines.local.screens import Screens
from arpo.images import decode
from arpo.model.checkpoint import Checkpoint, load_model, save_model
from arpo.model.images import image_grid, resized
from arpo.model.layout import lay_out
from arpo.training import lora
from arpo.training.base import Batch, LearnerError, NotFinite, Update
from arpo.training.metrics import Seen, metrics_of, record_of
from arpo.types import Observation, Sample

# How far, on average, log-probabilities that should be equal may lie apart; 19 of 20 within TAIL times that.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.02}
TAIL = 5.0


@dataclass(frozen=True, slots=True)
class _Part:
    """Sequences that go through the model together, and where their sampled tokens are."""

    rows: tuple[int, ...]  # which of the given samples they are
    samples: tuple[Sample, ...]
    ids: Tensor  # B x T
    positions: Tensor  # 3 x B x T
    before: Tensor  # B x Q: in each row the places that sampled tokens follow, then -1
    images: tuple[str, ...]  # in the order in which their tokens stand
    screens: Mapping[str, Observation]


class LocalLearner:
    """See the module. `visual`: an engine's, shared, for the visual tokens of a frozen tower; None: one of its own."""

    def __init__(
        self, checkpoint: Checkpoint, config: Config, algorithm: Algorithm, visual: Screens | None = None
    ) -> None:
        self.checkpoint, self.config, self.algorithm, self.version = checkpoint, config, algorithm, 0
        self.model = checkpoint.model
        self._compute: torch.dtype = self.model.lm_head.weight.dtype
        self.model.float()
        self.model.requires_grad_(True)
        if config.train.freeze_vision:
            self.model.model.visual.requires_grad_(False)
        if config.train.lora_rank:
            lora.add_adapters(self.model, config.train.lora_rank, not config.train.freeze_vision, config.seed)
        self.parameters = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, config.train.lr, weight_decay=config.train.weight_decay)
        self._steps = 0  # of the optimiser, in all
        self._midway = False  # whether some, but not all, steps of an update were taken
        self._tested = False  # whether its log-probabilities were compared with the sampler's
        self._pad: int = checkpoint.config.image_token_id
        self._device = self.parameters[0].device
        self._visual = visual or Screens(self.model.model.visual)

    def update(self, batches: Sequence[Batch], screens: Mapping[str, Observation]) -> Update:
        """See the contract. The first update compares the log-probabilities of fresh samples with the sampler's."""
        batches = [batch for batch in batches if batch.samples]
        fresh = [one for batch in batches for one in batch.samples if one.version == self.version and not one.replayed]
        if fresh and not self._tested:
            self.self_test(fresh, screens)
            self._tested = True
        later = iter(self.logprobs([sample for batch in batches[1:] for sample in batch.samples], screens))
        norms: list[float] = []
        seen: list[list[Seen]] = []
        for batch in batches:
            old = [next(later) for _ in batch.samples] if seen else []
            norm, of_batch = self.step(batch, screens, old)
            norms.append(norm)
            seen.append(of_batch)
        self.version, self._midway = self.version + 1, False
        return Update(metrics_of(list(chain(*seen)), norms), record_of(batches, seen))

    def step(
        self, batch: Batch, screens: Mapping[str, Observation], old: Sequence[Tensor] = ()
    ) -> tuple[float, list[Seen]]:
        """One step of the optimiser; returns the norm of the gradient and what was seen of the tokens.

        `old`: of each sample the log-probabilities before the update; empty: those of now are. NotFinite where the loss
        or the gradient is not finite; then nothing has changed.
        """
        self.optimizer.zero_grad(set_to_none=True)
        lengths: Counter[str] = Counter()  # of trajectories, in sampled tokens
        for sample in batch.samples:
            lengths[sample.trajectory_id] += len(sample.logprobs)
        seen = []
        for part in self._parts(batch.samples, screens):
            seen.append(self._learn(part, batch.trajectories, lengths, old))
            if not torch.isfinite(loss := seen[-1].loss):
                raise NotFinite(f"after {self.version} updates: the loss is {loss.item()}", batch, old)
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.config.train.grad_clip))
        if not math.isfinite(norm):
            raise NotFinite(f"after {self.version} updates: the gradient is not finite", batch, old)
        self._steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.train.lr * min(1.0, self._steps / max(1, self.config.train.warmup))
        self._midway = True
        self.optimizer.step()
        return norm, seen

    def logprobs(
        self, samples: Sequence[Sample], screens: Mapping[str, Observation], altered: bool = False
    ) -> list[Tensor]:
        """Of the sampled tokens of each sample, under the present weights. `altered`: on other screens."""
        values: dict[int, Tensor] = {}
        with torch.no_grad():
            for part in self._parts(samples, screens):
                lengths = [len(sample.logprobs) for sample in part.samples]
                values |= zip(part.rows, torch.split(self._forward(part, altered), lengths), strict=True)
        return [values[row] for row in range(len(samples))]

    def self_test(self, samples: Sequence[Sample], screens: Mapping[str, Observation]) -> None:
        """LearnerError unless fresh samples have the sampler's log-probabilities here, and others on other screens.

        Judged by mean and quantile: in bf16 a token here and there is far off, in other weights they all are.
        """
        sample = max(samples, key=lambda one: len(one.logprobs))
        (here,) = self.logprobs([sample], screens)
        off = (here - torch.tensor(sample.logprobs, device=self._device)).abs()
        mean, tail = float(off.mean()), float(off.quantile(0.95))
        limit = self.config.train.self_test or TOLERANCE[self._compute]
        if not (mean <= limit and tail <= TAIL * limit):  # written so that NaN fails too
            raise LearnerError(
                f"the learner gives sampled tokens other log-probabilities than the sampler (off by {mean:.3g} on "
                f"average, one in twenty by {tail:.3g}; train.self_test allows {limit:g} and {TAIL * limit:g}): "
                "they do not run the same weights, prompt or temperature"
            )
        if torch.equal(self.logprobs([sample], screens, altered=True)[0], here):
            raise LearnerError("the learner does not look at screenshots: altered ones change no log-probability")

    def publish(self, folder: Path) -> Path:
        save_model(self.model, folder, lora.merged(self.model) if self.config.train.lora_rank else None)
        return folder

    def state(self, folder: Path) -> dict[str, Any]:
        if self._midway:
            raise LearnerError("some of an update's optimiser steps are made and others are not")
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        if self.config.train.lora_rank:  # merged weights cannot be taken apart
            torch.save(lora.adapters(self.model), folder / "adapters.pt")
        return {"version": self.version, "steps": self._steps}

    def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """See the contract. What a machine with a GPU wrote can be read on one without, and the reverse."""
        if self.config.train.lora_rank:
            lora.restore(self.model, torch.load(folder / "adapters.pt", "cpu", weights_only=True))
        else:
            self.model.load_state_dict(load_model(folder, "cpu", self.parameters[0].dtype).state_dict())
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", "cpu", weights_only=True))
        self.version, self._steps = state["version"], state["steps"]

    def _learn(self, part: _Part, trajectories: int, lengths: Mapping[str, int], old: Sequence[Tensor]) -> Seen:
        """Add the part's gradient; returns what was seen of each token."""
        samples, new = part.samples, self._forward(part)
        counts = torch.tensor([len(sample.logprobs) for sample in samples], device=self._device)

        def each(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), device=self._device).repeat_interleave(counts)

        def every(values: Iterable[Iterable[float]]) -> Tensor:
            return torch.tensor([value for of_sample in values for value in of_sample], device=self._device)

        tokens = SampledTokens(
            sampler=every(sample.logprobs for sample in samples),
            old=torch.cat([old[row] for row in part.rows]) if old else new.detach(),
            advantages=every(sample.advantages for sample in samples),
            returns=every(sample.returns for sample in samples),
            lengths=each(lengths[sample.trajectory_id] for sample in samples),
            trajectories=trajectories,
            replayed=each(sample.replayed for sample in samples).bool(),
            stale=each(sample.version < self.version for sample in samples).bool(),
            sequence=each(range(len(samples))).long(),
        )
        loss = self.algorithm.loss(new, tokens)
        loss.total.backward()  # type: ignore[no-untyped-call]
        age = each(self.version - sample.version for sample in samples)
        return Seen(part.rows, loss.total.detach()[None], tokens, new.detach(), loss.clipped, loss.importance, age)

    def _forward(self, part: _Part, altered: bool = False) -> Tensor:
        """The log-probability of every sampled token, at the temperature of sampling."""
        with torch.autocast(self._device.type, self._compute, enabled=self._compute != torch.float32):
            scores = self.model(
                part.ids,
                part.positions,
                wanted=part.before,
                recompute=self.config.train.checkpointing,
                dtype=self._compute,  # so that the sum of all layers is rounded as the sampler's is
                **self._shown(part, altered),
            )
            scores = scores / self.config.train.temperature
        return -F.cross_entropy(scores, part.ids.gather(1, part.before + 1)[part.before >= 0], reduction="none")

    def _shown(self, part: _Part, altered: bool) -> dict[str, Any]:
        """What the model is shown: visual tokens of a frozen tower, or screenshots where the tower is trained."""
        names = dict.fromkeys(part.images)
        if self.config.train.freeze_vision:
            with torch.autocast(self._device.type, enabled=False):  # as the sampler's tower sees them
                tokens = self._visual.features(part.screens[name] for name in names)
            features = torch.cat([tokens[name] for name in part.images])
            # Flipped along both axes: so they are others also where a screen has one colour only.
            return {"features": features.flip(0, 1) if altered else features}
        arrays = {name: np.array(resized(decode(part.screens[name].image))) for name in names}
        pixels = {name: torch.from_numpy(array).to(self._device) + 128 * altered for name, array in arrays.items()}
        return {"images": pixels, "shown": part.images}

    def _parts(self, samples: Sequence[Sample], screens: Mapping[str, Observation]) -> Iterator[_Part]:
        """Samples of similar length together, up to `train.micro_tokens`; padded at the right, where nothing looks."""
        sizes = {name: image_grid(one.width, one.height) for name, one in screens.items()}
        layouts = [lay_out(sample.ids, [sizes[name] for name in sample.images], self._pad) for sample in samples]
        rows = sorted(range(len(samples)), key=lambda row: len(layouts[row].ids))
        while rows:
            taken = 1
            while taken < len(rows) and (taken + 1) * len(layouts[rows[taken]].ids) <= self.config.train.micro_tokens:
                taken += 1
            part, rows = rows[:taken], rows[taken:]
            length = len(layouts[part[-1]].ids)
            ids = torch.zeros(taken, length, dtype=torch.int64)
            positions = torch.zeros(3, taken, length, dtype=torch.int64)
            before = []
            for place, row in enumerate(part):
                layout, sampled = layouts[row], torch.tensor(samples[row].sampled)
                n = len(layout.ids)
                ids[place, :n], positions[:, place, :n] = layout.ids, layout.positions
                before.append(torch.from_numpy(layout.starts[:-1])[sampled] - 1)
            yield _Part(
                rows=tuple(part),
                samples=tuple(samples[row] for row in part),
                ids=ids.to(self._device),
                positions=positions.to(self._device),
                before=nn.utils.rnn.pad_sequence(before, batch_first=True, padding_value=-1).to(self._device),
                images=tuple(name for row in part for name in samples[row].images),
                screens=screens,
            )
