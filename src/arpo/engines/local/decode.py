"""One more token for each of many sequences: run the last one, draw the next.

`RowSteps` does it as it is said, for a CPU. `Replay` is for a GPU, where to start some 600 small pieces of work takes
longer than to do them: they are recorded once a batch size (a CUDA graph) and then started as one. So everything that a
step reads lies in tensors that stay where they are. The tokens that were drawn stay on the GPU as what the next step
runs, which can begin before they were read: then nobody waits for anybody. Where nothing can be recorded, the same code
runs piece by piece.
"""

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from arpo.engines.base import Sampling
from arpo.engines.local import sampling
from arpo.engines.local.blocks import Blocks
from arpo.engines.local.cache import Cache, Rows
from arpo.model.qwen import QwenVL

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # of batches that are recorded; above: multiples of 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Next:
    """A sequence and what is to be run of it."""

    sequence: Hashable
    token: int | None  # None: the one that the last step drew, which nobody has read yet
    place: int  # of the token in the cache
    position: int
    sampling: Sampling
    uniform: float  # that its successor is drawn with


class Drawn(Protocol):
    """The tokens of a step, and their log-probabilities."""

    @property
    def later(self) -> bool:
        """Whether the next step may begin before this one is read."""
        ...

    def done(self) -> bool: ...

    def result(self) -> tuple[list[int], list[float]]: ...


@dataclass(frozen=True, slots=True)
class Now:
    """Drawn already."""

    tokens: list[int]
    logprobs: list[float]
    later: bool = False

    def done(self) -> bool:
        return True

    def result(self) -> tuple[list[int], list[float]]:
        return self.tokens, self.logprobs


class Steps(Protocol):
    def step(self, batch: Sequence[Next]) -> Drawn: ...

    def reset(self) -> None:
        """The cache has given its memory back."""
        ...


def steps_for(model: QwenVL, cache: Cache, most: int) -> Steps:
    """For so many sequences at once, at most."""
    if isinstance(cache, Blocks):
        return Replay(model, cache, most)
    assert isinstance(cache, Rows)
    return RowSteps(model, cache)


class RowSteps:
    def __init__(self, model: QwenVL, cache: Rows) -> None:
        self._model, self._cache = model, cache
        self._device = model.lm_head.weight.device

    def reset(self) -> None:
        pass

    def step(self, batch: Sequence[Next]) -> Drawn:
        rows = [self._cache.row(one.sequence) for one in batch]
        order = sorted(range(len(batch)), key=rows.__getitem__)
        ordered = [batch[i] for i in order]
        last = torch.tensor([one.token for one in ordered], device=self._device)
        positions = torch.tensor([one.position for one in ordered], device=self._device)
        attend = self._cache.step([rows[i] for i in order], [one.place for one in ordered])
        hidden = self._model.model.language_model(last, positions.expand(3, -1), attend=attend)
        tokens, logprobs = sampling.sample(
            self._model.scores(hidden), [one.sampling for one in ordered], [one.uniform for one in ordered]
        )
        back = sorted(range(len(batch)), key=order.__getitem__)
        return Now([tokens[i] for i in back], [logprobs[i] for i in back])


class Replay:
    """A row of the batch belongs to a sequence for as long as each step has it.

    Empty rows run token 0 at place 0 of the block that belongs to nobody.
    """

    def __init__(self, model: QwenVL, cache: Blocks, most: int) -> None:
        self._model, self._cache = model, cache
        self._device = model.lm_head.weight.device
        sizes = [size for size in SIZES if size < most] + list(range(64, most, 64))
        self._sizes = sorted({*sizes, next((size for size in SIZES if size >= most), -(-most // 64) * 64)})
        most = self._sizes[-1]
        self._on_gpu = self._device.type == "cuda"
        self._record = self._on_gpu and cache.kernel
        # What a step is given, eight bytes each: token (or -1), position, place; temperature, uniform.
        self._given = torch.zeros(5, most, dtype=torch.float64, device=self._device)
        self._last = torch.zeros(most, dtype=torch.long, device=self._device)
        self._drawn = torch.zeros(2, most, dtype=torch.float64, device=self._device)
        self._tables = torch.zeros(most, cache.width, dtype=torch.int32, device=self._device)
        # Two of each: while one is being copied the other is filled.
        self._out = [torch.zeros(5, most, dtype=torch.float64, pin_memory=self._on_gpu) for _ in range(2)]
        self._back = [torch.zeros(2, most, dtype=torch.float64, pin_memory=self._on_gpu) for _ in range(2)]
        self._turn = 0
        self.reset()

    def reset(self) -> None:
        self._runs: dict[int, Callable[[], object]] = {}
        self._scores: dict[int, Tensor] = {}
        self._memory = torch.cuda.graph_pool_handle() if self._record else None
        self._rows: dict[Hashable, int] = {}
        self._shown: dict[int, list[int]] = {}
        self._tables.zero_()  # an empty row writes to the first block of its table

    def step(self, batch: Sequence[Next]) -> Drawn:
        rows = self._place(batch)
        size = next(size for size in self._sizes if size > max(rows))
        self._turn = 1 - self._turn
        self._give(batch, rows, self._out[self._turn])
        if size not in self._runs:
            self._runs[size] = self._recorded(size)
        self._runs[size]()
        if not all(one.sampling.temperature > 0 and one.sampling.top_p == 1 for one in batch):
            drawn = sampling.sample(
                self._scores[size][rows], [one.sampling for one in batch], [one.uniform for one in batch]
            )
            return Now(*drawn)
        back = self._back[self._turn].copy_(self._drawn, non_blocking=True)
        event = None
        if self._on_gpu:
            event = torch.Event(self._device)
            event.record()
        return Later(back, rows, event)

    def _place(self, batch: Sequence[Next]) -> list[int]:
        """The rows of these sequences; their tables are on the device then."""
        wanted = {one.sequence for one in batch}
        self._rows = {sequence: row for sequence, row in self._rows.items() if sequence in wanted}
        free = iter(sorted(set(range(len(self._last))) - set(self._rows.values())))
        for one in batch:
            if one.sequence not in self._rows:
                self._rows[one.sequence] = next(free)
        named = {row: self._cache.table(sequence) for sequence, row in self._rows.items()}
        for row in self._shown.keys() | named.keys():
            table = named.get(row, [])
            if self._shown.get(row) is not table:
                padded = table + [0] * (self._tables.shape[1] - len(table))
                self._tables[row] = torch.tensor(padded, dtype=torch.int32).to(self._device)
        self._shown = named
        return [self._rows[one.sequence] for one in batch]

    def _give(self, batch: Sequence[Next], rows: list[int], out: Tensor) -> None:
        whole = out.view(torch.int64)
        out.zero_()
        out[3] = 1.0
        whole[:3, rows] = torch.tensor(
            [[-1 if one.token is None else one.token, one.position, one.place] for one in batch]
        ).T
        heat = [[one.sampling.temperature or 1.0, one.uniform] for one in batch]
        out[3:, rows] = torch.tensor(heat, dtype=torch.float64).T
        self._given.copy_(out, non_blocking=True)

    def _recorded(self, size: int) -> Callable[[], object]:
        """A step of that many rows, to be called; recorded where that is possible."""

        def run() -> None:
            self._run(size)

        if not self._record:
            return run
        before = self._last.clone()
        try:
            run()  # once for all that is made at a first time
            graph = torch.cuda.CUDAGraph()
            # Others may use the GPU meanwhile: a learner, in a thread.
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                run()
            return graph.replay
        except RuntimeError as error:
            _log.warning("decoding is not recorded, and slower: %s", str(error).partition("\n")[0])
            self._record = False
            return run
        finally:
            self._last.copy_(before)

    def _run(self, size: int) -> None:
        given = self._given[:, :size]
        token, position, place = given[:3].view(torch.int64)
        ids = torch.where(token < 0, self._last[:size], token)
        attend = self._cache.look(self._tables[:size], place)
        hidden = self._model.model.language_model(ids, position.expand(3, -1), attend=attend)
        scores = self._scores[size] = self._model.scores(hidden)
        tokens, logprobs = sampling.plain(scores / given[3, :, None].float(), given[4, :, None])
        self._last[:size] = tokens
        self._drawn[0, :size], self._drawn[1, :size] = tokens.double(), logprobs.double()


@dataclass(frozen=True, slots=True)
class Later:
    """Being drawn by the GPU."""

    numbers: Tensor  # tokens and log-probabilities of all rows, once it is done
    rows: list[int]
    event: torch.Event | None
    later: bool = True

    def done(self) -> bool:
        return self.event is None or self.event.query()

    def result(self) -> tuple[list[int], list[float]]:
        if self.event is not None:
            self.event.synchronize()
        tokens, logprobs = self.numbers[:, self.rows].tolist()
        return [int(token) for token in tokens], logprobs
