"""Keys and values of many sequences, kept between turns: the contract, and one row a sequence, which a CPU likes best.

A decode step reads every key and value of every active sequence once; that read is most of its cost, on a CPU and on a
GPU. So rows are never gathered into a batch: the step takes the span of rows from the first active one to the last as
it lies, masks what is beyond each row's length, and lets the few idle rows between compute in vain. Rows are handed out
lowest first, which keeps the span short.

All heads that share a key head ask together: they are the "queries" of one call, and keys are never repeated.
"""

import bisect
import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from arpo.errors import EngineError
from arpo.model.qwen import Attend, QwenVL

FIRST_CAPACITY = 1024  # tokens a row to begin with; doubled as contexts grow
ALIGN = 64  # lengths are rounded up to this: kernels for masked attention want aligned rows
_log = logging.getLogger(__name__)


class OutOfMemory(EngineError):
    """There is no room for a turn, however many others give way. What the cache holds is as it was."""


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens of a sequence, from the place `start` up to `end`."""

    sequence: Hashable
    start: int
    end: int


class Cache(Protocol):
    """What the engine needs of a cache. A sequence is named by whatever the engine likes."""

    def room(self, sequence: Hashable, tokens: int, source: Hashable, kept: int) -> bool:
        """Room for so many tokens, the first `kept` of which are those of `source`, which may be the sequence itself.

        False, and nothing has changed: others must be dropped first. OutOfMemory where that would not help either.
        """
        ...

    def holds(self, sequence: Hashable) -> bool:
        """Whether it has room that others could have."""
        ...

    def drop(self, sequence: Hashable) -> None:
        """What it holds is needed no more."""
        ...

    def reset(self, give_back: bool = False) -> None:
        """Drop all. `give_back`: their memory too, until there is a turn again."""
        ...

    def extend(self, pieces: Sequence[Piece]) -> Attend:
        """Attention for new tokens of some sequences, one piece behind the other.

        A layer may ask for one query a piece: that is its last token, which sees all.
        """
        ...


class Rows:
    """A `Cache`: one tensor a layer, keys and values x rows x kv_heads x capacity x dim, grown when needed.

    Where memory is too short for all rows, there are fewer until the next reset.
    """

    def __init__(self, model: QwenVL, most_rows: int, most_tokens: int) -> None:
        layers, self._shape = shape_of(model)
        self._dtype, self._device = model.lm_head.weight.dtype, model.lm_head.weight.device
        self._most_rows, self._most_tokens = most_rows, most_tokens
        self._layers = [self._empty(0, 0) for _ in range(layers)]
        self._rows: dict[Hashable, int] = {}
        self._free = list(range(most_rows))
        self._limit = most_rows

    @property
    def rows(self) -> int:
        return self._layers[0].shape[1]

    @property
    def capacity(self) -> int:
        """Tokens that a row has room for."""
        return self._layers[0].shape[3]

    def room(self, sequence: Hashable, tokens: int, source: Hashable, kept: int) -> bool:
        if sequence not in self._rows and not self._free:
            return False
        row = self._rows.get(sequence, self._free[0] if self._free else 0)
        try:
            self._reserve(row + 1, tokens)
        except OutOfMemory as full:
            if self._rows:
                if row >= self.rows:
                    self._limit_rows(self.rows, full)
                return False
            if not self.rows:
                raise
            self._limit_rows(max(1, self.rows // 2), full)  # longer rows need the memory of others
            self._layers = [self._empty(0, 0) for _ in self._layers]
            return self.room(sequence, tokens, source, kept)
        if sequence not in self._rows:
            self._rows[sequence] = self._free.pop(0)
        if source is not sequence and kept:
            for layer in self._layers:
                layer[:, row, :, :kept] = layer[:, self._rows[source], :, :kept]
        return True

    def holds(self, sequence: Hashable) -> bool:
        return sequence in self._rows

    def drop(self, sequence: Hashable) -> None:
        row = self._rows.pop(sequence, self._limit)
        if row < self._limit:
            bisect.insort(self._free, row)

    def reset(self, give_back: bool = False) -> None:
        if give_back or self._limit < self._most_rows:  # there may be memory for all by now
            self._layers = [self._empty(0, 0) for _ in self._layers]
        self._rows, self._free, self._limit = {}, list(range(self._most_rows)), self._most_rows

    def _limit_rows(self, rows: int, full: OutOfMemory) -> None:
        # Its text alone: the error itself would keep tensors alive for as long as somebody keeps the record.
        _log.warning("%s: at most %d turns at a time until the next weights", str(full), rows)
        self._limit, self._free = rows, [row for row in self._free if row < rows]

    def _reserve(self, rows: int, length: int) -> None:
        """Make room for so many rows of so many tokens; at least double what there is, up to the most allowed.

        Where memory is too short for that, just what is asked for. OutOfMemory, and everything is as before, where that
        does not fit either.
        """
        have_rows, have_tokens = self.rows, self.capacity
        if rows <= have_rows and length <= have_tokens:
            return
        ample_rows = have_rows if rows <= have_rows else max(rows, min(2 * have_rows, self._limit))
        ample_tokens = min(max(2 * have_tokens, FIRST_CAPACITY), self._most_tokens)
        ample_tokens = have_tokens if length <= have_tokens else max(length, ample_tokens)
        try:
            self._grow(ample_rows, _aligned(ample_tokens))
        except OutOfMemory:
            rows, length = max(rows, have_rows), max(length, have_tokens)
            if (rows, length) == (ample_rows, ample_tokens):
                raise
            self._grow(rows, _aligned(length))

    def _grow(self, rows: int, length: int) -> None:
        have_rows, have_tokens = self.rows, self.capacity
        try:
            for i, old in enumerate(self._layers):  # one at a time: old and new never exist as a whole
                self._layers[i] = self._empty(rows, length)
                self._layers[i][:, :have_rows, :, :have_tokens] = old
        except (RuntimeError, MemoryError) as error:
            if not no_memory(error):
                raise
            for i, grown in enumerate(self._layers):  # layers of two sizes would fail every later turn
                self._layers[i] = _smaller(grown, have_rows, have_tokens)
            raise OutOfMemory(
                f"no memory for a cache of {rows} x {length} tokens; a smaller agent.context needs less"
            ) from error

    def extend(self, pieces: Sequence[Piece]) -> Attend:
        rows = [self._rows[piece.sequence] for piece in pieces]
        masks = [after(piece, self._dtype, self._device) for piece in pieces]
        lengths = [piece.end - piece.start for piece in pieces]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            mixed, whole = [], len(q) == len(k)
            asked = torch.split(q, lengths if whole else 1)
            new = zip(torch.split(k, lengths), torch.split(v, lengths), strict=True)
            for piece, row, mask, mine, (k_, v_) in zip(pieces, rows, masks, asked, new, strict=True):
                keys, values = self._layers[layer][:, row]
                here = slice(piece.start, piece.end)
                keys[:, here], values[:, here] = k_.transpose(0, 1), v_.transpose(0, 1)
                held = keys[:, : piece.end], values[:, : piece.end]
                mixed.append(look_back(mine, *held, mask if whole else None))
            return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

        return attend

    def row(self, sequence: Hashable) -> int:
        return self._rows[sequence]

    def step(self, rows: Sequence[int], places: Sequence[int]) -> Attend:
        """Attention for one new token in each of these rows (ascending), at these places."""
        low, span = rows[0], rows[-1] + 1 - rows[0]
        longest = _aligned(max(places) + 1)
        row = torch.tensor(rows, device=self._device)
        place = torch.tensor(places, device=self._device)
        last = torch.zeros(span, dtype=torch.long, device=self._device)  # idle rows look at their first token
        last[row - low] = place
        hidden = torch.arange(longest, device=self._device) > last[:, None]
        mask = torch.zeros(span, 1, 1, longest, dtype=self._dtype, device=self._device)
        mask.masked_fill_(hidden[:, None, None], float("-inf"))
        kv_heads, dim = self._shape
        dense = span == len(rows)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._layers[layer]
            keys[row, :, place], values[row, :, place] = k, v
            queries = q if dense else q.new_zeros(span, *q.shape[1:]).index_copy_(0, row - low, q)
            mixed = F.scaled_dot_product_attention(
                queries.view(span, kv_heads, -1, dim),
                keys[low : low + span, :, :longest],
                values[low : low + span, :, :longest],
                attn_mask=mask,
            ).reshape(span, -1, dim)
            return mixed if dense else mixed[row - low]

        return attend

    def _empty(self, rows: int, capacity: int) -> Tensor:
        # Zeros, not whatever lies there: a masked place still enters the sums, with weight 0, and 0 times NaN is NaN.
        kv_heads, dim = self._shape
        return torch.zeros(2, rows, kv_heads, capacity, dim, dtype=self._dtype, device=self._device)


def shape_of(model: QwenVL) -> tuple[int, tuple[int, int]]:
    """Layers; key heads and the size of each."""
    layers = model.model.language_model.layers
    attention: Any = layers[0].self_attn
    return len(layers), (attention.k_proj.out_features // attention.dim, attention.dim)


def after(piece: Piece, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The mask of new tokens over all that came before them, and over each other."""
    n = piece.end - piece.start
    if device.type == "cuda":
        return causal_lower_right(n, piece.end)  # flash attention knows this one by name
    return torch.full((n, piece.end), float("-inf"), dtype=dtype, device=device).triu_(piece.start + 1)


def look_back(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of n x heads x dim on kv_heads x tokens x dim."""
    mixed = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )
    return mixed[0].transpose(0, 1)


def no_memory(error: Exception) -> bool:
    """torch has a kind of its own for this on a GPU alone; on a CPU it is known by its words."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "not enough memory" in str(error) or "can't allocate memory" in str(error)


def _aligned(length: int) -> int:
    return -(-length // ALIGN) * ALIGN


def _smaller(grown: Tensor, rows: int, tokens: int) -> Tensor:
    """The beginning of a tensor, so that the rest is given back where there is memory for the copy."""
    kept = grown[:, :rows, :, :tokens]
    try:
        return kept if kept.shape == grown.shape else kept.clone()
    except (RuntimeError, MemoryError) as error:
        if not no_memory(error):
            raise
        return kept
