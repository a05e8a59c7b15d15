"""Attention of sequences that lie behind each other in one row, each on itself: no padding, no mask.

Which kernel is fastest is decided here alone. On a GPU in bf16 one call takes all sequences, of unlike lengths too;
elsewhere it is a call for each length.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

# cuDNN's attention works out a plan for each new shape, which takes a tenth of a second; here almost every batch and
# every prompt has a new one. Where a sequence is so long that a call takes about that, it is worth it: see `each`.
torch.backends.cuda.enable_cudnn_sdp(False)
LONG = 8192  # tokens

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries T x heads x dim, keys, values T x kv_heads x dim) to the mix, shaped as the queries."""

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""How many sequences of how many tokens follow each other."""


def runs_of(lengths: Sequence[int]) -> Runs:
    return tuple((len(list(same)), length) for length, same in groupby(lengths))


def packed(lengths: Sequence[int], wanted: Sequence[int] | None = None) -> Attend:
    """Of each token on those before it in its sequence. `wanted`: where the queries stand in a layer that has fewer."""
    runs = runs_of(lengths)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if wanted is not None and len(q) < len(k):
            return _some(q, k, v, lengths, wanted)
        return each(q[None], k[None], v[None], runs, causal=True)[0]

    return attend


def each(q: Tensor, k: Tensor, v: Tensor, runs: Runs, causal: bool) -> Tensor:
    """For B rows that are divided alike: queries B x T x heads x dim, keys and values B x T x kv_heads x dim."""
    length, batch = runs[0][1], len(q)
    if not (q.is_cuda and q.dtype == torch.bfloat16):
        return _one_by_one(q, k, v, runs, causal)
    if len(runs) == 1 and length >= LONG and _hopper(q.device):
        inside = [t.reshape(-1, length, *t.shape[2:]).transpose(1, 2) for t in (q, k, v)]
        mixed: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(*inside, None, True, 0.0, causal)[0]
        return mixed.transpose(1, 2).reshape(q.shape)
    ends, most = _ends(runs, batch, q.device), max(length for _, length in runs)
    flat = (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))
    return _flash(*flat, ends, ends, most, most, causal).view(q.shape)


def _one_by_one(q: Tensor, k: Tensor, v: Tensor, runs: Runs, causal: bool) -> Tensor:
    done, start = [], 0
    for count, length in runs:
        piece = slice(start, start + count * length)
        inside = [t[:, piece].reshape(-1, length, *t.shape[2:]).transpose(1, 2) for t in (q, k, v)]
        grouped = q.shape[2] != k.shape[2]
        out = F.scaled_dot_product_attention(inside[0], inside[1], inside[2], is_causal=causal, enable_gqa=grouped)
        done.append(out.transpose(1, 2).reshape(len(q), -1, *q.shape[2:]))
        start = piece.stop
    return done[0] if len(done) == 1 else torch.cat(done, dim=1)


def _some(q: Tensor, k: Tensor, v: Tensor, lengths: Sequence[int], wanted: Sequence[int]) -> Tensor:
    """Queries at some places only, ascending; each sees its sequence up to itself."""
    done, start, asked = [], 0, 0
    for length in lengths:
        mine = [place - start for place in wanted[asked:] if place < start + length]
        of_sequence = slice(start, start + length)
        if mine:
            queries = q[asked : asked + len(mine)]
            attend = _some_at_once if q.is_cuda and q.dtype == torch.bfloat16 else _some_masked
            done.append(attend(queries, k[of_sequence], v[of_sequence], mine))
        start, asked = start + length, asked + len(mine)
    return done[0] if len(done) == 1 else torch.cat(done)


def _some_masked(q: Tensor, k: Tensor, v: Tensor, places: Sequence[int]) -> Tensor:
    """All heads of a key head ask together, so that keys are not repeated."""
    kv_heads = k.shape[1]
    seen = torch.arange(len(k), device=k.device) <= torch.tensor(places, device=k.device)[:, None]
    asking = q.transpose(0, 1).reshape(kv_heads, -1, q.shape[2])
    mask = seen.repeat(q.shape[1] // kv_heads, 1)
    mixed = F.scaled_dot_product_attention(
        asking[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=mask
    )
    return mixed.reshape(q.shape[1], q.shape[0], -1).transpose(0, 1)


def _some_at_once(q: Tensor, k: Tensor, v: Tensor, places: Sequence[int]) -> Tensor:
    """Sampled tokens stand in replies: a call for each run of places that follow each other, without a mask."""
    done, start = [], 0
    for end in (i + 1 for i in range(len(places)) if i + 1 == len(places) or places[i + 1] != places[i] + 1):
        keys = places[end - 1] + 1
        part = q[None, start:end]
        done.append(_flash(part, k[None, :keys], v[None, :keys], None, None, end - start, keys, causal=True)[0])
        start = end
    return torch.cat(done)


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_ends: Tensor | None,
    k_ends: Tensor | None,
    most_q: int,
    most_k: int,
    causal: bool,
) -> Tensor:
    """Flash attention by its own name: that of F.scaled_dot_product_attention takes no sequences of unlike lengths.

    With fewer queries than keys, causal: they are the last.
    """
    mixed: Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, q_ends, k_ends, most_q, most_k, 0.0, causal, False
    )[0]
    return mixed


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _ends(runs: Runs, batch: int, device: torch.device) -> Tensor:
    """Where sequences begin, and the last ends."""
    lengths = [length for count, length in runs for _ in range(count)] * batch
    return torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


@lru_cache
def _hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (9, 0)
