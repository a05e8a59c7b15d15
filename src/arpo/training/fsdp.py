"""The learner of one rank: the learner of one process, on a share of the samples and with a share of every weight.

    learner = RankLearner("base", config, algorithm, torch.device("cpu"))    # in each of the processes of a group

torch's FSDP2 shards the model: one unit is the vision tower, one each decoder layer, one the embeddings, the head and
the last norm, which stay whole from forward to backward. A unit's weights are put together before it is called and
taken apart after it. That is work for all ranks together: whoever does not take part stops all others for ever. So

- every rank makes as many passes as the one with most to do, the last of them on two tokens that count nothing;
- where the tower learns it is called once in each pass, also where a pass has no screenshot, with one that counts
  nothing. A tower that does not learn is whole on every rank, and called for its own new screenshots alone;
- what ends an update (a loss that is not finite) is known to all before any of them raises it.

Every rank is told all samples, so lengths and means are those of the whole batch. It has screenshots of its own share
alone. Gradients are added up, never averaged.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from arpo.algorithms.base import Algorithm
from arpo.config import Config
from arpo.model.checkpoint import Checkpoint, empty_model, fill_weights, load_vocabulary, refuse_unfit, save_model
from arpo.model.qwen import QwenVL
from arpo.training import lora
from arpo.training.base import Batch, LearnerError
from arpo.training.learner import Before, LocalLearner, Part
from arpo.training.metrics import Seen
from arpo.training.optimizer import Bf16AdamW
from arpo.training.packing import lengths_of, packed, shared_out
from arpo.training.shards import load_tensors, read_shards, write_shard
from arpo.types import Observation, Sample

DTYPES = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}


def shard(model: QwenVL, device: torch.device, ranks: int, whole_tower: bool) -> None:
    """See the module. `whole_tower`: one that does not learn."""
    mesh, tower = init_device_mesh(device.type, (ranks,)), model.model.visual
    exact = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # sums of gradients; their precision is the weights'
    units: list[tuple[Any, bool]] = [(layer, True) for layer in model.model.language_model.layers]
    units += [(model, False)] if whole_tower else [(tower, True), (model, False)]
    for unit, take_apart in units:
        spared = set(tower.parameters()) if whole_tower and unit is model else None
        fully_shard(unit, mesh=mesh, mp_policy=exact, reshard_after_forward=take_apart, ignored_params=spared)
        assert isinstance(unit, FSDPModule)
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)  # what gloo can do


class RankLearner(LocalLearner):
    """See the module. `beat`: called when something has been done, so that somebody else can tell work from a hang."""

    def __init__(
        self,
        place: str,
        config: Config,
        algorithm: Algorithm,
        device: torch.device,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        self.rank, self.ranks, self._beat = dist.get_rank(), dist.get_world_size(), beat
        self._place, self._target = place, device
        self._owners: dict[int, int] = {}
        model = empty_model(place, device, DTYPES[config.agent.dtype])
        super().__init__(Checkpoint(place, model, load_vocabulary(place, model.config)), config, algorithm)
        self._passing = _unsharded_bytes(self.model)

    def _trained(self) -> list[Tensor]:
        """Shard the model and read what this rank has of it. Returns its part of each trained weight."""
        model = self.model
        adapters = {name: weight.detach() for name, weight in model.named_parameters() if not weight.is_meta}
        shard(model, self._target, self.ranks, self.config.train.freeze_vision)
        model.to_empty(device=self._target)
        model.tie()
        self._weights = dict(model.named_parameters())
        # Plain tensors over the same memory: for the optimiser, which knows nothing of ranks.
        self._local = {name: _part_of(weight).detach() for name, weight in self._weights.items()}
        self._read(self._place)
        for name, whole in adapters.items():
            self._local[name].copy_(whole[self._rows(len(whole))])
        trained = [name for name, weight in self._weights.items() if weight.requires_grad]
        return [self._local[name].requires_grad_(True) for name in trained]

    def _read(self, place: str | Path) -> None:
        local = {name.replace(".base_layer.", "."): part.detach() for name, part in self._local.items()}
        sharded = [name for name, weight in self._weights.items() if isinstance(weight, DTensor)]
        rows = {name.replace(".base_layer.", "."): self._rows(len(self._weights[name])) for name in sharded}
        fill_weights(place, local, rows)

    def _rows(self, count: int) -> slice:
        """Which rows of a weight this rank has: as FSDP2 shares them out."""
        share = -(-count // self.ranks)
        return slice(min(share * self.rank, count), min(share * (self.rank + 1), count))

    def take_steps(
        self, batches: Sequence[Batch], screens: Mapping[str, Observation]
    ) -> tuple[list[float], list[list[Seen]]]:
        self._owners = shared_out(batches, screens, self.model.sight, self.ranks)
        done = super().take_steps(batches, screens)
        self.model.zero_grad(set_to_none=True)  # the optimiser has parts of its own of the same memory
        return done

    def gradient(self, batch: Batch, screens: Mapping[str, Observation], old: Sequence[Tensor] = ()) -> list[Seen]:
        self.model.zero_grad(set_to_none=True)
        seen = super().gradient(batch, screens, old)
        looked = any(sample.images for sample in batch.samples)
        for name, weight in self._weights.items():
            if weight.requires_grad:  # a tower that saw nothing has no gradient, as in one process: not one of zeros
                known = weight.grad is not None and (looked or ".visual." not in name)
                self._local[name].grad = _part_of(weight.grad) if known and weight.grad is not None else None
        return seen

    def _packed(self, samples: Sequence[Sample], screens: Mapping[str, Observation]) -> list[list[int]]:
        if any(id(sample) not in self._owners for sample in samples):
            self._owners = shared_out([Batch(tuple(samples), 0)], screens, self.model.sight, self.ranks)
        lengths = lengths_of(samples, screens, self.model.sight)
        shares: list[list[int]] = [[] for _ in range(self.ranks)]
        for row, sample in enumerate(samples):
            shares[self._owners[id(sample)]].append(row)
        parts = [packed(lengths, share, self.config.train.micro_tokens) for share in shares]
        mine, most = parts[self.rank], max(map(len, parts))
        return mine + [[] for _ in range(most - len(mine))]

    def _part(self, rows: Sequence[int], samples: Sequence[Sample], screens: Mapping[str, Observation]) -> Part:
        self._beat()
        if rows:
            return super()._part(rows, samples, screens)
        text = torch.full((2,), int(self._pad == 0), device=self._device)
        positions = torch.arange(2, device=self._device).expand(3, 2)
        return Part((), (), text, positions, (2,), torch.tensor([0]), (), screens)

    def _shown(self, part: Part, altered: bool) -> dict[str, Any]:
        shown = super()._shown(part, altered)
        if shown or self.config.train.freeze_vision:
            return shown
        side = self.model.sight.factor
        return {"images": {"": torch.zeros(side, side, 3, dtype=torch.uint8, device=self._device)}, "shown": ()}

    def _forward(self, part: Part, altered: bool = False) -> Tensor:
        logprobs = super()._forward(part, altered)
        return logprobs if part.samples else logprobs[:0]

    def _learn(self, part: Part, batch: Batch, lengths: Mapping[str, int], before: Before) -> Seen | None:
        if part.samples:
            return super()._learn(part, batch, lengths, before)
        self._forward(part).sum().backward()  # type: ignore[no-untyped-call]
        return None

    def _summed(self, value: Tensor) -> Tensor:
        dist.all_reduce(value := value.clone())
        return value

    def _joined(self, norm: Tensor) -> Tensor:
        return self._summed(norm.square()).sqrt()

    def _exchanged(self, values: Mapping[int, Tensor], samples: Sequence[Sample]) -> list[Tensor]:
        self.model.reshard()  # type: ignore[operator]  # after a pass without a gradient its own unit would stay whole
        lengths = [len(sample.logprobs) for sample in samples]
        nothing = (torch.zeros(length, device=self._device) for length in lengths)
        mine = [values.get(row, zeros) for row, zeros in enumerate(nothing)]
        return list(torch.split(self._summed(torch.cat(mine)), lengths)) if mine else []

    def _free(self) -> float:
        """Less what is whole for a while; on a CPU ranks share what is free."""
        free = super()._free() - self._passing
        return free if self._device.type == "cuda" else free / int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks))

    # ---- files

    def save(self, folder: Path) -> Callable[[], dict[str, Any]]:
        """See the contract. Written now, by all: weights as one process writes them, of the optimiser what each has."""
        if self._midway:
            raise LearnerError("some of an update's optimiser steps are made and others are not")
        self.save_weights(folder)
        if self.config.train.lora_rank:
            trained = {name: self._whole(weight) for name, weight in self._weights.items() if ".lora_" in name}
            if self.rank == 0:
                torch.save(lora.adapters(self.model, trained), folder / "adapters.pt")
        write_shard(folder, self.optimizer, self.rank)
        state = {"version": self.version, "steps": self._steps, "ranks": self.ranks}
        return lambda: state

    def save_weights(self, folder: Path) -> None:
        save_model(self.model, folder, lora.merged(self.model, None, self._whole), self.rank, self.ranks)

    def _whole(self, weight: Tensor) -> Tensor:
        self._beat()
        return weight.full_tensor().detach() if isinstance(weight, DTensor) else weight.detach()

    def _restore_weights(self, folder: Path) -> None:
        if not self.config.train.lora_rank:
            refuse_unfit(self.model, folder)
            return self._read(folder)
        kept, mine = load_tensors(folder / "adapters.pt"), lora.adapters(self.model, self._local)
        assert kept.keys() == mine.keys(), "adapters of another model"
        for name, local in mine.items():
            local.copy_(kept[name][self._rows(len(kept[name]))])

    def _restore_moments(self, folder: Path, state: dict[str, Any]) -> None:
        if isinstance(self.optimizer, Bf16AdamW):
            self.optimizer.steps = state["steps"]
        spans = []
        for weight in (weight for weight in self._weights.values() if weight.requires_grad):
            rows, row = self._rows(len(weight)), math.prod(weight.shape[1:])
            spans.append((rows.start * row, rows.stop * row))
        read_shards(folder, state.get("ranks", 1), self.optimizer, spans, self.rank, self.ranks)


def _part_of(weight: Tensor) -> Tensor:
    return weight.to_local() if isinstance(weight, DTensor) else weight


def _unsharded_bytes(model: QwenVL) -> float:
    """What is whole at once of sharded weights: the outer unit and two layers with gradients, and these in fp32."""
    layers = [sum(weight.nbytes for weight in layer.parameters()) for layer in model.model.language_model.layers]
    outer = sum(weight.nbytes for weight in (model.lm_head.weight, model.model.language_model.embed_tokens.weight))
    sums = 2 + 4 / model.lm_head.weight.dtype.itemsize
    return sums * (outer + 2 * max(layers))
