"""The learner of one process: one model and its optimiser.

    learner = LocalLearner(load_checkpoint("base"), config, algorithm)
    update = learner.update([batch, batch], screens)           # one optimiser step each

The loss covers sampled tokens only, and log-probabilities are computed at their positions alone: never the whole
vocabulary for a whole sequence. Old log-probabilities are those of the policy before the update, computed here once:
for the first optimiser step its own forward pass has them, for the others there is a pass before it. The sampler's own
are not used because of rounding, which depends on what else was sampled at the same time: a resumed run would learn
other last digits, and in bf16 rounding alone would clip tokens. (The self-test compares the two.)

Samples lie behind each other in one row, without padding; what does not fit into memory of a pass is computed again for
the gradient. The precision of the weights is that of all that is computed with them.
The visual tokens that a frozen vision tower makes of a screenshot never change: `Screens` keeps them, and an engine in
the same process can share its own.

Some methods look before each optimiser step: at what the policy gives the step's tokens now, at what the one that
training began with gave them (a copy of the trained weights takes the place of the present ones for a pass), and at
the values of a linear head on the last hidden states (critic.py).
"""

import dataclasses
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from arpo.algorithms.base import METHODS, Algorithm, Look, SampledTokens, Weighed, Weighs
from arpo.config import Config
from arpo.engines.base import Weights
from arpo.engines.local.screens import Screens
from arpo.machine import free_memory
from arpo.model.checkpoint import FILES, Checkpoint, fill_model, save_model
from arpo.model.layout import lay_out
from arpo.model.recompute import NOTHING, Recompute, choose
from arpo.model.tensorfiles import write_tensors
from arpo.resize import MERGE
from arpo.training import lora
from arpo.training.base import Batch, LearnerError, NotFinite, Update
from arpo.training.critic import Critic
from arpo.training.metrics import Seen, update_of
from arpo.training.optimizer import Bf16AdamW, clip_gradients, make_optimizer, named_tensors
from arpo.training.packing import lengths_of, packed
from arpo.training.shards import load_tensors, read_shards
from arpo.types import Observation, Sample

# How far, on average, log-probabilities that should be equal may lie apart; 19 of 20 within TAIL times that. In bf16 a
# random 7B after 42,801 tokens has 0.033: sampler and learner round alike but not in the same order.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05}
TAIL = 5.0
ROOM = 0.9  # of free memory; the rest is lost between blocks
STAGE = 2**26  # numbers that are copied to the host at once


@dataclass(frozen=True, slots=True)
class Part:
    """Sequences that go through the model together, and where their sampled tokens are."""

    rows: tuple[int, ...]  # which of the given samples they are
    samples: tuple[Sample, ...]
    ids: Tensor  # T, of all of them behind each other
    positions: Tensor  # 3 x T
    lengths: tuple[int, ...]  # of the sequences
    before: Tensor  # Q: the places that sampled tokens follow, on the CPU
    images: tuple[str, ...]  # in the order in which their tokens stand
    screens: Mapping[str, Observation]


@dataclass(frozen=True, slots=True)
class Before:
    """What is known of the samples of an optimiser step before it, a tensor of tokens for each."""

    old: Sequence[Tensor]  # log-probabilities before the update; empty: those of now are
    reference: Sequence[Tensor]  # of the policy that training began with; empty where nobody needs them
    weighed: Weighed | None  # advantages that only now are known


class LocalLearner:
    """See the module. `visual`: an engine's, shared, for the visual tokens of a frozen tower; None: one of its own."""

    def __init__(
        self, checkpoint: Checkpoint, config: Config, algorithm: Algorithm, visual: Screens | None = None
    ) -> None:
        self.checkpoint, self.config, self.algorithm, self.version = checkpoint, config, algorithm, 0
        self.model = checkpoint.model
        self._compute: torch.dtype = self.model.lm_head.weight.dtype
        self.model.requires_grad_(True)
        if config.train.freeze_vision:
            self.model.model.visual.requires_grad_(False)
        if config.train.lora_rank:
            lora.add_adapters(self.model, config.train.lora_rank, not config.train.freeze_vision, config.seed)
        self.parameters = self._trained()
        method = METHODS.find(config.algorithm.method)
        self._weighs = method.reference or method.critic
        needed = method.reference or config.algorithm.kl > 0
        self._start = [weight.detach().clone() for weight in self.parameters] if needed else []
        self._critic: Critic | None = None
        if method.critic:
            self._critic = Critic(self.model, config.algorithm.rewards, self.parameters[0].dtype)
            self.parameters = [*self.parameters, *self._critic.parameters()]
        self.optimizer = make_optimizer(self.parameters, config.train, config.seed)
        self._steps = 0  # of the optimiser, in all
        self._midway = False  # whether some, but not all, steps of an update were taken
        self._tested = False  # whether its log-probabilities were compared with the sampler's
        self._pad: int = checkpoint.config.image_token_id
        self._device = self.parameters[0].device
        self._visual = visual or Screens(self.model.model.visual)

    def _trained(self) -> list[Tensor]:
        return [weight for weight in self.model.parameters() if weight.requires_grad]

    def update(self, batches: Sequence[Batch], screens: Mapping[str, Observation]) -> Update:
        """See the contract. The first update compares the log-probabilities of fresh samples with the sampler's."""
        batches = [batch for batch in batches if batch.samples]
        norms, seen = self.take_steps(batches, screens)
        return update_of(batches, seen, norms, self.version - 1)

    def take_steps(
        self, batches: Sequence[Batch], screens: Mapping[str, Observation]
    ) -> tuple[list[float], list[list[Seen]]]:
        """The work of an update. Returns the norm of each step's gradient, and what was seen of its tokens."""
        known = range(self.checkpoint.config.text_config.vocab_size)
        for one in (sample for batch in batches for sample in batch.samples):
            if not all(token in known for token in one.ids) or one.ids.count(self._pad) != len(one.images):
                raise LearnerError(f"{one.trajectory_id}: has tokens that no episode of this model can have")
        fresh = [one for batch in batches for one in batch.samples if one.version == self.version and not one.stored]
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
        self.optimizer.zero_grad(set_to_none=True)  # of a 7B 15 GiB, which sampling needs
        self.version, self._midway = self.version + 1, False
        return norms, seen

    def step(
        self, batch: Batch, screens: Mapping[str, Observation], old: Sequence[Tensor] = ()
    ) -> tuple[float, list[Seen]]:
        """One step of the optimiser; returns the norm of the gradient and what was seen of the tokens.

        `old`: of each sample the log-probabilities before the update; empty: those of now are. NotFinite where the loss
        or the gradient is not finite; then nothing has changed.
        """
        seen = self.gradient(batch, screens, old)
        norm = clip_gradients(self.parameters, self.config.train.grad_clip, self._joined)
        if not math.isfinite(norm):
            raise self._not_finite("the gradient is not finite", batch, old)
        self._steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.train.lr * min(1.0, self._steps / max(1, self.config.train.warmup))
        self._midway = True
        self.optimizer.step()
        return norm, seen

    def gradient(self, batch: Batch, screens: Mapping[str, Observation], old: Sequence[Tensor] = ()) -> list[Seen]:
        """The gradient of a step, in place of what the weights have of it; for the rest see `step`."""
        self.optimizer.zero_grad(set_to_none=True)
        lengths: Counter[str] = Counter()  # of trajectories, in sampled tokens
        for sample in batch.samples:
            lengths[sample.trajectory_id] += len(sample.logprobs)
        before = self._look(batch, screens, old)
        learned = (self._learn(part, batch, lengths, before) for part in self._parts(batch.samples, screens))
        seen = [part for part in learned if part is not None]
        loss = float(self._summed(sum((part.loss for part in seen), torch.zeros(1, device=self._device))))
        if not math.isfinite(loss):
            raise self._not_finite(f"the loss is {loss}", batch, old)
        return seen

    def _not_finite(self, what: str, batch: Batch, old: Sequence[Tensor]) -> NotFinite:
        critic = self._critic.state() if self._critic else ()
        return NotFinite(f"after {self.version} updates: {what}", batch, old, critic)

    def _look(self, batch: Batch, screens: Mapping[str, Observation], old: Sequence[Tensor]) -> Before:
        """What the method has to know of a step before it."""
        reference = self._reference(batch.samples, screens) if self._start else []
        if not self._weighs:
            return Before(old, reference, None)
        values: list[Tensor] = []
        now = self.logprobs(batch.samples, screens, values=values)
        weighed = cast(Weighs, self.algorithm).weigh(batch.samples, Look(now, reference, values))
        if [len(one) for one in weighed.advantages] != [len(one.logprobs) for one in batch.samples]:
            raise LearnerError("the algorithm weighed other tokens than those that were sampled")
        return Before(old, reference, weighed)

    def _reference(self, samples: Sequence[Sample], screens: Mapping[str, Observation]) -> list[Tensor]:
        """Log-probabilities by the policy that training began with, whose weights change places with the present."""
        midway, self._midway = self._midway, True  # where memory ends in a swap, weights of both are never saved
        self._swap()
        try:
            return self.logprobs(samples, screens)
        finally:
            self._swap()
            self._midway = midway

    @torch.no_grad()
    def _swap(self) -> None:
        for weight, start in zip(self.parameters, self._start, strict=False):  # a value head has none
            here = weight.clone()
            weight.copy_(start)
            start.copy_(here)

    def _summed(self, value: Tensor) -> Tensor:
        """Over all processes that learn together."""
        return value

    def _joined(self, norm: Tensor) -> Tensor:
        """The norm of a gradient of which this process has the norm of a part."""
        return norm

    def logprobs(
        self,
        samples: Sequence[Sample],
        screens: Mapping[str, Observation],
        altered: bool = False,
        values: list[Tensor] | None = None,
    ) -> list[Tensor]:
        """Of the sampled tokens of each sample, under the present weights.

        `altered`: on other screens. `values`: is filled with what the value head says of them, where there is one.
        """
        logprobs: dict[int, Tensor] = {}
        expected: dict[int, Tensor] = {}
        with torch.no_grad():
            for part in self._parts(samples, screens):
                lengths = [len(sample.logprobs) for sample in part.samples]
                logprobs |= zip(part.rows, torch.split(self._forward(part, altered), lengths), strict=True)
                if self._critic is not None:
                    expected |= zip(part.rows, torch.split(self._critic.values(), lengths), strict=True)
        if values is not None and self._critic is not None:
            values += self._exchanged(expected, samples)
        return self._exchanged(logprobs, samples)

    def _exchanged(self, values: Mapping[int, Tensor], samples: Sequence[Sample]) -> list[Tensor]:
        """Of each sample the values that this process, or another one, has of it."""
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

    def publish(self, folder: Path) -> Weights:
        return Weights(folder, partial(lora.merged, self.model), self._save_weights)

    def save(self, folder: Path) -> Callable[[], dict[str, Any]]:
        """See the contract. What is trained is copied to the host's memory; where that is too short, written now."""
        if self._midway:
            raise LearnerError("some of an update's optimiser steps are made and others are not")
        trained = {name: weight.detach() for name, weight in self.model.named_parameters() if weight.requires_grad}
        moments: dict[int, dict[str, Tensor]] = self.optimizer.state_dict()["state"]
        state: dict[str, Any] = {"version": self.version, "steps": self._steps}
        if self._critic is not None:
            state["critic"] = self._critic.state()
        size = sum(tensor.nbytes for kept in (trained, *moments.values()) for tensor in kept.values())
        if size > ROOM * free_memory():
            self._write(folder, trained, moments)
            return lambda: state
        trained, moments = _copied(trained), {number: _copied(kept) for number, kept in moments.items()}

        def write() -> dict[str, Any]:
            self._write(folder, trained, moments)
            return state

        return write

    def _write(self, folder: Path, trained: dict[str, Tensor], moments: dict[int, dict[str, Tensor]]) -> None:
        self._save_weights(folder, trained)
        if self.config.train.lora_rank:  # merged weights cannot be taken apart
            torch.save(lora.adapters(self.model, trained), folder / "adapters.pt")
        if isinstance(self.optimizer, Bf16AdamW):
            write_tensors(folder, "optimizer", named_tensors(moments), FILES[1])
        else:
            torch.save({"state": moments}, folder / "optimizer.pt")

    def _save_weights(self, folder: Path, trained: Mapping[str, Tensor] | None = None) -> None:
        save_model(self.model, folder, lora.merged(self.model, trained))

    def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """See the contract. What a machine with a GPU wrote can be read on one without, and the reverse."""
        self._restore_weights(folder)
        if not 0 <= operator.index(state["steps"]) < 2**40:  # the learning rate follows from it
            raise ValueError("no number of steps")
        if self._critic is not None:
            self._critic.restore(state["critic"])
        self._restore_moments(folder, state)
        self.version, self._steps = state["version"], state["steps"]

    def _restore_weights(self, folder: Path) -> None:
        if self.config.train.lora_rank:
            lora.restore(self.model, load_tensors(folder / "adapters.pt"))
        else:
            fill_model(self.model, folder)

    def _restore_moments(self, folder: Path, state: dict[str, Any]) -> None:
        if isinstance(self.optimizer, Bf16AdamW):
            self.optimizer.steps = state["steps"]
        if state.get("ranks", 1) > 1:
            read_shards(
                folder, state["ranks"], self.optimizer, [(0, weight.numel()) for weight in self.parameters], 0, 1
            )
        elif isinstance(self.optimizer, Bf16AdamW):
            if (folder / "optimizer.pt").is_file():
                then = f"its weights are of use: a new run with train.model={folder} begins with them"
                raise LearnerError(f"{folder}: begun in bfloat16 by an older arpo, and cannot be resumed; {then}")
            self.optimizer.read(sorted(folder.glob("optimizer*.safetensors")))
        else:
            moments: dict[int, dict[str, Tensor]] = load_tensors(folder / "optimizer.pt")["state"]
            for number, kept in moments.items():
                if any(value.numel() > 1 and value.shape != self.parameters[number].shape for value in kept.values()):
                    raise ValueError(f"{folder / 'optimizer.pt'}: of a model of another shape")
            groups = self.optimizer.state_dict()["param_groups"]  # what they say is in the settings
            self.optimizer.load_state_dict({"state": moments, "param_groups": groups})

    def _learn(self, part: Part, batch: Batch, lengths: Mapping[str, int], before: Before) -> Seen | None:
        """Add the part's gradient; returns what was seen of each token."""
        samples, new = part.samples, self._forward(part)
        counts = torch.tensor([len(sample.logprobs) for sample in samples], device=self._device)

        def each(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), device=self._device).repeat_interleave(counts)

        def every(values: Iterable[Iterable[float]]) -> Tensor:
            return torch.tensor([value for of_sample in values for value in of_sample], device=self._device)

        def mine(tensors: Sequence[Tensor]) -> Tensor:
            """Of this part's samples, out of those of the whole step."""
            return torch.cat([tensors[row] for row in part.rows if tensors] or [new.new_empty(0)]).to(self._device)

        weighed = before.weighed
        tokens = SampledTokens(
            sampler=every(sample.logprobs for sample in samples),
            old=mine(before.old) if before.old else new.detach(),
            advantages=mine(weighed.advantages) if weighed else every(sample.advantages for sample in samples),
            returns=every(sample.returns for sample in samples),
            lengths=each(lengths[sample.trajectory_id] for sample in samples),
            trajectories=batch.trajectories,
            replayed=each(sample.stored for sample in samples).bool(),
            stale=each(sample.version < self.version for sample in samples).bool(),
            reference=mine(before.reference),
            values=self._critic.values() if self._critic else new.new_empty(0),
        )
        loss = self.algorithm.loss(new, tokens)
        loss.total.backward()  # type: ignore[no-untyped-call]
        age = each(self.version - sample.version for sample in samples)
        total = loss.total.detach()[None]
        if weighed and weighed.loss is not None:  # the part's share of it
            total = torch.full_like(total, weighed.loss * len(new) / sum(len(one.logprobs) for one in batch.samples))
        told = dict(weighed.metrics) if weighed else {}
        tokens = dataclasses.replace(tokens, values=tokens.values.detach())  # else the part's whole pass is kept
        return Seen(part.rows, total, tokens, new.detach(), loss.clipped, loss.importance, age, told)

    def _forward(self, part: Part, altered: bool = False) -> Tensor:
        """The log-probability of every sampled token, at the temperature of sampling."""
        logprobs: Tensor = self.model(
            part.ids,
            part.positions,
            lengths=part.lengths,
            wanted=part.before,
            temperature=self.config.train.temperature,
            recompute=self._plan(part),
            **self._shown(part, altered),
        )
        return logprobs

    def _plan(self, part: Part) -> Recompute:
        """What of the part's pass is computed again for the gradient."""
        count = self.checkpoint.config.text_config.num_hidden_layers
        forced = {True: Recompute(count, count, tower=True), False: NOTHING}
        if not torch.is_grad_enabled():
            return NOTHING
        if (setting := self.config.train.checkpointing) is not None:
            return forced[setting]
        seen = 0 if self.config.train.freeze_vision else int((part.ids == self._pad).sum()) * MERGE**2
        gradients = sum(weight.nbytes for weight in self.parameters if weight.grad is None)  # that are yet to come
        free = self._free() - gradients
        return choose(self.checkpoint.config, len(part.ids), seen, self._compute.itemsize, free)

    def _shown(self, part: Part, altered: bool) -> dict[str, Any]:
        """What the model is shown: visual tokens of a frozen tower, or screenshots where the tower is trained."""
        if not (names := dict.fromkeys(part.images)):
            return {}
        if self.config.train.freeze_vision:
            tokens = self._visual.features(part.screens[name] for name in names)
            features = torch.cat([tokens[name] for name in part.images])
            # Flipped along both axes: so they are others also where a screen has one colour only.
            return {"features": features.flip(0, -1) if altered else features}
        arrays = self._visual.pixels(part.screens[name] for name in names)
        if lost := names.keys() - arrays.keys():
            raise LearnerError(f"the screenshot {min(lost)} cannot be decoded to its size")
        pixels = {name: torch.from_numpy(array).to(self._device) + 128 * altered for name, array in arrays.items()}
        return {"images": pixels, "shown": part.images}

    def _parts(self, samples: Sequence[Sample], screens: Mapping[str, Observation]) -> Iterator[Part]:
        packs = self._packed(samples, screens)
        coming: list[Any] = []
        for rows, following in zip_longest(packs, packs[1:], fillvalue=()):
            # The next one's screenshots are decoded while a part is worked on, and are there while somebody keeps them.
            mine = coming
            coming = self._visual.prepare(screens[name] for row in following for name in samples[row].images)
            yield self._part(rows, samples, screens)
            del mine

    def _packed(self, samples: Sequence[Sample], screens: Mapping[str, Observation]) -> list[list[int]]:
        """Which samples go through the model together: those of similar length, up to `train.micro_tokens`."""
        return packed(
            lengths_of(samples, screens, self.model.sight), range(len(samples)), self.config.train.micro_tokens
        )

    def _part(self, rows: Sequence[int], samples: Sequence[Sample], screens: Mapping[str, Observation]) -> Part:
        shown = ([screens[name] for name in samples[row].images] for row in rows)
        sizes = ([self.model.sight.grid(one.width, one.height) for one in screens] for screens in shown)
        layouts = [lay_out(samples[row].ids, size, self._pad) for row, size in zip(rows, sizes, strict=True)]
        lengths = tuple(len(layout.ids) for layout in layouts)
        before = [
            torch.from_numpy(layout.starts[:-1])[torch.tensor(samples[row].sampled)] - 1 + start
            for row, layout, start in zip(rows, layouts, (0, *accumulate(lengths)), strict=False)
        ]
        return Part(
            rows=tuple(rows),
            samples=tuple(samples[row] for row in rows),
            ids=torch.cat([layout.ids for layout in layouts]).to(self._device),
            positions=torch.cat([layout.positions for layout in layouts], dim=1).to(self._device),
            lengths=lengths,
            before=torch.cat(before),
            images=tuple(name for row in rows for name in samples[row].images),
            screens=screens,
        )

    def _free(self) -> float:
        """Bytes for what a pass keeps. On a GPU what this process holds and does not use is free too."""
        if self._device.type != "cuda":
            return free_memory()
        held = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        return ROOM * (torch.cuda.mem_get_info(self._device)[0] + held)


def _copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """In the host's memory; from a GPU piece by piece through page-locked memory, which it fills much faster."""
    copies = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        flat = (tensor.reshape(-1), copies[name].view(-1))
        for piece, copy in zip(*(torch.split(one, STAGE) for one in flat), strict=True):
            copy.copy_(torch.empty_like(piece, device="cpu", pin_memory=True).copy_(piece) if piece.is_cuda else piece)
    return copies
