"""Keys and values of many sequences, kept between turns: a row a sequence, and attention straight on the rows.

A decode step reads every key and value of every active sequence once; that read is most of its cost, on a CPU and on a
GPU. So rows are never gathered into a batch: the step takes the span of rows from the first active one to the last as
it lies, masks what is beyond each row's length, and lets the few idle rows between compute in vain. Rows are handed out
lowest first, which keeps the span short.

All heads that share a key head ask together: they are the "queries" of one call, and keys are never repeated.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from arpo.errors import EngineError
from arpo.model.qwen import Attend, QwenVL

FIRST_CAPACITY = 1024  # tokens a row to begin with; doubled as contexts grow
ALIGN = 64  # lengths are rounded up to this: kernels for masked attention want aligned rows


class OutOfMemory(EngineError):
    """There is no room for a larger cache. What it holds is as it was."""


class Cache:
    """One tensor a layer, keys and values x rows x kv_heads x capacity x dim, grown when needed."""

    def __init__(self, model: QwenVL, most_rows: int, most_tokens: int) -> None:
        text, weight = model.config.text_config, model.lm_head.weight
        self._shape: tuple[int, int] = (text.num_key_value_heads, text.hidden_size // text.num_attention_heads)
        self._dtype, self._device = weight.dtype, weight.device
        self._most_rows, self._most_tokens = most_rows, most_tokens
        self._layers = [self._empty(0, 0) for _ in range(text.num_hidden_layers)]

    @property
    def rows(self) -> int:
        return self._layers[0].shape[1]

    @property
    def capacity(self) -> int:
        """Tokens that a row has room for."""
        return self._layers[0].shape[3]

    def reserve(self, rows: int, length: int) -> None:
        """Make room for so many rows of so many tokens; at least double what there is, up to the most allowed.

        Where memory is too short for that, just what is asked for. OutOfMemory, and everything is as before, where that
        does not fit either.
        """
        have_rows, have_tokens = self.rows, self.capacity
        if rows <= have_rows and length <= have_tokens:
            return
        ample_rows = have_rows if rows <= have_rows else max(rows, min(2 * have_rows, self._most_rows))
        ample_tokens = min(max(2 * have_tokens, FIRST_CAPACITY), self._most_tokens)
        ample_tokens = have_tokens if length <= have_tokens else max(length, ample_tokens)
        try:
            self._grow(ample_rows, _aligned(ample_tokens))
        except OutOfMemory:
            rows, length = max(rows, have_rows), max(length, have_tokens)
            if (rows, length) == (ample_rows, ample_tokens):
                raise
            self._grow(rows, _aligned(length))

    def clear(self) -> None:
        """Give all of it back."""
        self._layers = [self._empty(0, 0) for _ in self._layers]

    def _grow(self, rows: int, length: int) -> None:
        have_rows, have_tokens = self.rows, self.capacity
        try:
            for i, old in enumerate(self._layers):  # one at a time: old and new never exist as a whole
                self._layers[i] = self._empty(rows, length)
                self._layers[i][:, :have_rows, :, :have_tokens] = old
        except (RuntimeError, MemoryError) as error:
            if not _no_memory(error):
                raise
            for i, grown in enumerate(self._layers):  # layers of two sizes would fail every later turn
                self._layers[i] = _smaller(grown, have_rows, have_tokens)
            raise OutOfMemory(f"no memory for a cache of {rows} x {length} tokens") from error

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a row the first tokens of another."""
        for layer in self._layers:
            layer[:, target, :, :length] = layer[:, source, :, :length]

    def extend(self, row: int, start: int, n: int) -> Attend:
        """Attention for n new tokens of one sequence that go to the places from `start` on.

        A single query, where there are more keys, is that of the last token: it sees all.
        """
        end = start + n
        mask: Tensor
        if self._device.type == "cuda":
            mask = causal_lower_right(n, end)  # flash attention knows this one by name
        else:
            mask = torch.full((n, end), float("-inf"), dtype=self._dtype, device=self._device).triu_(start + 1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._layers[layer][:, row]
            keys[:, start:end], values[:, start:end] = k.transpose(0, 1), v.transpose(0, 1)
            mixed = F.scaled_dot_product_attention(
                q.transpose(0, 1)[None],
                keys[None, :, :end],
                values[None, :, :end],
                attn_mask=mask if len(q) == n else None,
                enable_gqa=True,
            )
            return mixed[0].transpose(0, 1)

        return attend

    def step(self, rows: list[int], lengths: list[int]) -> Attend:
        """Attention for one new token in each of these rows (ascending), which hold `lengths` tokens already."""
        low, span = rows[0], rows[-1] + 1 - rows[0]
        longest = _aligned(max(lengths) + 1)
        row = torch.tensor(rows, device=self._device)
        place = torch.tensor(lengths, device=self._device)
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


def _aligned(length: int) -> int:
    return -(-length // ALIGN) * ALIGN


def _smaller(grown: Tensor, rows: int, tokens: int) -> Tensor:
    """The beginning of a tensor, so that the rest is given back where there is memory for the copy."""
    kept = grown[:, :rows, :, :tokens]
    try:
        return kept if kept.shape == grown.shape else kept.clone()
    except (RuntimeError, MemoryError) as error:
        if not _no_memory(error):
            raise
        return kept


def _no_memory(error: Exception) -> bool:
    """torch has a kind of its own for this on a GPU alone; on a CPU it is known by its words."""
    kinds = (torch.OutOfMemoryError, MemoryError)
    return isinstance(error, kinds) or "not enough memory" in str(error) or "can't allocate memory" in str(error)
