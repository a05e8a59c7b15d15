"""Attention of one new token a sequence over keys and values in blocks, for a GPU.

The keys of a sequence are divided among programs, so that few sequences fill the GPU too; each takes all query heads of
a key head together and reads a key once for all of them. A second kernel puts the parts together. How the work is
divided follows from the size of the batch alone, never from lengths, which lie on the GPU: so it can be recorded.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1024  # about eight for each multiprocessor of a large GPU
MOST_SPLITS = 64


def decode(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tables: Tensor, places: Tensor) -> Tensor:
    """Queries B x heads x dim; the new keys and values B x kv_heads x dim, which are written to their `places`, B.

    `keys`, `values`: blocks x BLOCK x kv_heads x dim; `tables`, B x blocks: where those of a sequence are.
    """
    batch, heads, dim = q.shape
    block, kv_heads = keys.shape[1:3]
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    group = heads // kv_heads
    splits = min(MOST_SPLITS, triton.next_power_of_2(max(1, PROGRAMS // (batch * kv_heads))))
    parts = torch.empty(batch, heads, splits, dim, dtype=torch.float32, device=q.device)
    sums = torch.empty(2, batch, heads, splits, dtype=torch.float32, device=q.device)
    mixed = torch.empty_like(q)
    wide = max(16, triton.next_power_of_2(dim))
    _parts[(batch, kv_heads, splits)](
        q,
        k,
        v,
        keys,
        values,
        tables,
        places,
        parts,
        sums,
        tables.stride(0),
        batch * heads * splits,
        math.log2(math.e) / math.sqrt(dim),
        kv_heads,
        group,
        max(16, triton.next_power_of_2(group)),
        dim,
        wide,
        block,
        splits,
        num_warps=4,
        num_stages=3 if q.itemsize == 2 else 2,
    )
    _whole[(batch * heads,)](parts, sums, mixed, batch * heads * splits, dim, wide, splits, num_warps=4)
    return mixed


@triton.jit  # type: ignore[untyped-decorator]
def _parts(  # type: ignore[no-untyped-def]
    q_at,
    k_at,
    v_at,
    keys_at,
    values_at,
    tables_at,
    places_at,
    parts_at,
    sums_at,
    table_stride,
    sums_stride,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    QUERIES: tl.constexpr,  # the group, filled up to what a matrix product takes
    DIM: tl.constexpr,
    WIDE: tl.constexpr,  # the dim, likewise
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = tl.load(places_at + row).to(tl.int32)
    one, d, t = tl.arange(0, QUERIES), tl.arange(0, WIDE), tl.arange(0, BLOCK)
    inside = d < DIM
    real = (one < GROUP)[:, None] & inside[None, :]
    first_head = (row * KV_HEADS + head) * GROUP
    q = tl.load(q_at + (first_head + one)[:, None] * DIM + d[None, :], mask=real, other=0.0)
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    mixed = tl.zeros([QUERIES, WIDE], tl.float32)

    blocks = tl.cdiv(place, BLOCK)
    each = tl.cdiv(blocks, SPLITS)
    for i in range(split * each, tl.minimum(split * each + each, blocks)):
        block = tl.load(tables_at + row * table_stride + i).to(tl.int64)
        seen = i * BLOCK + t < place
        here = ((block * BLOCK + t) * KV_HEADS + head)[:, None] * DIM + d[None, :]
        read = seen[:, None] & inside[None, :]
        keys = tl.load(keys_at + here, mask=read, other=0.0)
        scores = tl.dot(q, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(seen[None, :], scores, float("-inf"))
        better = tl.maximum(best, tl.max(scores, 1))
        weights, fade = tl.exp2(scores - better[:, None]), tl.exp2(best - better)
        total = total * fade + tl.sum(weights, 1)
        values = tl.load(values_at + here, mask=read, other=0.0)
        mixed = tl.dot(weights.to(values.dtype), values, mixed * fade[:, None], input_precision="ieee")
        best = better

    if split == 0:  # the new token: nobody else reads its place
        new = (row * KV_HEADS + head) * DIM + d
        k, v = tl.load(k_at + new, mask=inside, other=0.0), tl.load(v_at + new, mask=inside, other=0.0)
        block = tl.load(tables_at + row * table_stride + place // BLOCK).to(tl.int64)
        here = ((block * BLOCK + place % BLOCK) * KV_HEADS + head) * DIM + d
        tl.store(keys_at + here, k, mask=inside)
        tl.store(values_at + here, v, mask=inside)
        score = tl.sum(q.to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
        better = tl.maximum(best, score)
        weight, fade = tl.exp2(score - better), tl.exp2(best - better)
        total = total * fade + weight
        mixed = mixed * fade[:, None] + weight[:, None] * v.to(tl.float32)[None, :]
        best = better

    part = (first_head + one) * SPLITS + split
    tl.store(parts_at + part[:, None] * DIM + d[None, :], mixed, mask=real)
    tl.store(sums_at + part, best, mask=one < GROUP)
    tl.store(sums_at + sums_stride + part, total, mask=one < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def _whole(  # type: ignore[no-untyped-def]
    parts_at,
    sums_at,
    mixed_at,
    sums_stride,
    DIM: tl.constexpr,
    WIDE: tl.constexpr,
    SPLITS: tl.constexpr,
):
    head = tl.program_id(0)
    s, d = tl.arange(0, SPLITS), tl.arange(0, WIDE)
    inside = d < DIM
    best = tl.load(sums_at + head * SPLITS + s)
    total = tl.load(sums_at + sums_stride + head * SPLITS + s)
    weights = tl.exp2(best - tl.max(best, 0))  # 0 for a part without keys
    parts = tl.load(parts_at + (head * SPLITS + s)[:, None] * DIM + d[None, :], mask=inside[None, :], other=0.0)
    mixed = tl.sum(parts * weights[:, None], 0) / tl.sum(total * weights, 0)
    tl.store(mixed_at + head * DIM + d, mixed.to(mixed_at.dtype.element_ty), mask=inside)
