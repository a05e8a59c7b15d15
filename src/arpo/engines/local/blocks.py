"""Keys and values in blocks of one pool, for a GPU: memory follows the tokens in use, common beginnings are held once.

    pool      layers x keys and values x blocks x BLOCK x kv_heads x dim, made once
    table     of a sequence: its blocks, in order
    uses      how many tables name a block

What two sequences have in common are whole blocks, which both name, and the beginning of a block, which is copied: what
is written to is named by one table alone. The first block belongs to nobody: a batch that is filled up to a fixed size
writes its empty rows there. On a GPU decoding is a kernel of ours (`kernels`); without it, as in tests, plain torch.
"""

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from arpo.engines.local.cache import OutOfMemory, Piece, after, look_back, no_memory, shape_of
from arpo.model.qwen import Attend, QwenVL

try:
    from arpo.engines.local import kernels
except ImportError:  # torch comes with triton for GPUs alone
    kernels = None  # type: ignore[assignment]

BLOCK = 64  # tokens
NO_MEMORY = "no memory for a cache; fewer train.n_envs or a smaller model need less"
SHARE = 0.8  # of the free memory of a GPU: the rest is for what is computed


class Blocks:
    """A `Cache`. `most_tokens`: of a sequence; `blocks`: as many, where it is not what fits and can be of use."""

    def __init__(self, model: QwenVL, most_sequences: int, most_tokens: int, blocks: int | None = None) -> None:
        layers, (heads, dim) = shape_of(model)
        self._dtype, self._device = model.lm_head.weight.dtype, model.lm_head.weight.device
        self._shape = (layers, 2, BLOCK, heads, dim)
        self.width = -(-most_tokens // BLOCK)  # of the longest table
        self._most = most_sequences * self.width + 1
        self._given = blocks
        self.kernel = kernels is not None and self._device.type == "cuda"
        self._pool: Tensor | None = None
        self._uses: list[int] = []
        self._free: list[int] = []
        self._tables: dict[Hashable, list[int]] = {}

    def reset(self, give_back: bool = False) -> None:
        self._pool = None if give_back else self._pool
        self._forget(0 if give_back else len(self._uses))

    def _forget(self, blocks: int) -> None:
        self._tables, self._uses = {}, [0] * blocks
        self._free = list(range(blocks - 1, 0, -1))  # but for the first

    def room(self, sequence: Hashable, tokens: int, source: Hashable, kept: int) -> bool:
        self._make_pool()
        count = -(-tokens // BLOCK)
        if count >= len(self._uses):
            fits = (len(self._uses) - 1) * BLOCK
            raise OutOfMemory(
                f"a turn of up to {tokens} tokens, and the cache has memory for {fits}: agent.context={fits} would fit"
            )
        old, given = self._tables.get(sequence, []), self._tables.get(source, [])
        whole, rest = divmod(kept, BLOCK)
        table, begun = given[:whole], given[whole : whole + bool(rest)]
        if begun and source is sequence and self._uses[begun[0]] == 1:
            table, begun = table + begun, []  # nobody else reads it: it can be written to as it is
        again = set(table)
        spare = sum(self._uses[block] == 1 and block not in again for block in old)
        if count - len(table) > len(self._free) + spare:
            return False
        for block in table:
            self._uses[block] += 1
        self._release(old)
        new = [self._free.pop() for _ in range(count - len(table))]
        for block in new:
            self._uses[block] = 1
        if begun:
            assert self._pool is not None
            self._pool[:, :, new[0]] = self._pool[:, :, begun[0]]
        self._tables[sequence] = table + new
        return True

    def holds(self, sequence: Hashable) -> bool:
        return sequence in self._tables

    def drop(self, sequence: Hashable) -> None:
        self._release(self._tables.pop(sequence, []))

    @property
    def size(self) -> int:
        return 0 if self._pool is None else self._pool.nbytes

    @property
    def used(self) -> int:
        """Blocks that some sequence names."""
        return sum(uses > 0 for uses in self._uses)

    def table(self, sequence: Hashable) -> list[int]:
        """Another list whenever it has changed."""
        return self._tables[sequence]

    def extend(self, pieces: Sequence[Piece]) -> Attend:
        # Keys and values of one layer are gathered: 16 MB for 8,000 tokens of a 7B, 1 % of what the layer takes.
        tables = [
            torch.tensor(self._tables[piece.sequence][: -(-piece.end // BLOCK)], device=self._device)
            for piece in pieces
        ]
        inside = torch.arange(BLOCK, device=self._device)
        slots = torch.cat(
            [
                (table[:, None] * BLOCK + inside).flatten()[piece.start : piece.end]
                for table, piece in zip(tables, pieces, strict=True)
            ]
        )
        masks = [after(piece, self._dtype, self._device) for piece in pieces]
        lengths = [piece.end - piece.start for piece in pieces]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._layer(layer)
            keys.flatten(0, 1).index_copy_(0, slots, k)
            values.flatten(0, 1).index_copy_(0, slots, v)
            mixed, whole = [], len(q) == len(k)
            asked = torch.split(q, lengths if whole else 1)
            for piece, table, mask, mine in zip(pieces, tables, masks, asked, strict=True):
                held = [part[table].flatten(0, 1)[: piece.end].transpose(0, 1) for part in (keys, values)]
                mixed.append(look_back(mine, held[0], held[1], mask if whole else None))
            return torch.cat(mixed)

        return attend

    def look(self, tables: Tensor, places: Tensor) -> Attend:
        """Attention for one new token in each of B sequences: their tables, B x blocks, and its places, B."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._layer(layer)
            if self.kernel:
                return kernels.decode(q, k, v, keys, values, tables, places)
            slots = tables.gather(1, places[:, None] // BLOCK)[:, 0] * BLOCK + places % BLOCK
            keys.flatten(0, 1)[slots], values.flatten(0, 1)[slots] = k, v
            held = [
                part[tables].flatten(1, 2).transpose(1, 2) for part in (keys, values)
            ]  # B x kv_heads x tokens x dim
            seen = torch.arange(held[0].shape[2], device=self._device) <= places[:, None]
            queries = q.view(len(q), k.shape[1], -1, q.shape[2])
            mixed = F.scaled_dot_product_attention(queries, held[0], held[1], attn_mask=seen[:, None, None])
            return mixed.reshape(q.shape)

        return attend

    def _layer(self, layer: int) -> Tensor:
        assert self._pool is not None, "a turn was run before it had room"
        return self._pool[layer]

    def _release(self, table: list[int]) -> None:
        for block in table:
            self._uses[block] -= 1
            if not self._uses[block]:
                self._free.append(block)

    def _make_pool(self) -> None:
        if self._pool is not None:
            return
        layers, two, tokens, heads, dim = self._shape
        count = self._most if self._given is None else self._given + 1
        if self._device.type == "cuda":
            size = layers * two * tokens * heads * dim * self._dtype.itemsize
            count = min(count, int(SHARE * _free_memory(self._device)) // size)
        if count < 2:
            raise OutOfMemory(NO_MEMORY)
        while True:
            try:
                # Zeros, not whatever lies there: a masked place enters the sums with weight 0, and 0 times NaN is NaN.
                shape = (layers, two, count, tokens, heads, dim)
                self._pool = torch.zeros(shape, dtype=self._dtype, device=self._device)
                break
            except (RuntimeError, MemoryError) as error:
                if not no_memory(error):
                    raise
                if count < 2:
                    raise OutOfMemory(NO_MEMORY) from error
                count //= 2
        self._forget(count)


def _free_memory(device: torch.device) -> int:
    """Of a GPU; what torch keeps for later is free too."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept
