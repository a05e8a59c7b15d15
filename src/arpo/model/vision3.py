"""The vision tower of a Qwen3-VL: screenshots of one size in, visual tokens of several depths out.

It differs from a Qwen2.5-VL's: attention sees the whole picture in every block, patches have learned positions (a
square grid of them, stretched over the picture) beside the rotary ones, and what some blocks in the middle give goes
through mergers of their own, for the first layers of the language model ("DeepStack").
"""

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.model.images import patches
from arpo.model.vision import Block, StillConv, Tower, grid
from arpo.resize import MERGE, QWEN3


class Tower3(Tower):
    """uint8 B x H x W x 3, resized already, to B x tokens x levels x hidden: the last block's first, then the deep."""

    sight = QWEN3

    def __init__(self, config: Any) -> None:
        nn.Module.__init__(self)
        self.config = config
        width, side = config.hidden_size, self.sight.patch
        self.deep: list[int] = list(config.deepstack_visual_indexes)  # the blocks that are merged on their own
        if self.deep != sorted(set(self.deep) & set(range(config.depth))):
            raise ValueError(f"deepstack_visual_indexes={self.deep} are not blocks of the tower, in order")
        self.patch_embed = nn.Sequential()
        self.patch_embed.proj = StillConv(3, width, (2, side, side))
        self.pos_embed = nn.Embedding(config.num_position_embeddings, width)
        self.blocks = nn.ModuleList(Block3(config) for _ in range(config.depth))
        self.merger = Merger3(width, config.out_hidden_size, deep=False)
        self.deepstack_merger_list = nn.ModuleList(Merger3(width, config.out_hidden_size, deep=True) for _ in self.deep)

    def together(self, images: Tensor, recompute: bool) -> Tensor:
        config, factor, device = self.config, self.sight.factor, str(images.device)
        rows, columns = images.shape[1] // factor, images.shape[2] // factor
        # One window that holds everything: the order of the patches stays.
        g = grid(rows, columns, max(rows, columns), config.hidden_size // config.num_heads, device)
        near, shares = corners(rows * MERGE, columns * MERGE, math.isqrt(config.num_position_embeddings), device)
        x = self.patch_embed(patches(images, self.sight).flatten(2))
        x = (x + (self.pos_embed(near) * shares.unsqueeze(-1)).sum(1).to(x.dtype)).flatten(0, 1)
        rope = (g.cos.repeat(len(images), 1, 1), g.signed_sin.repeat(len(images), 1, 1))
        deep: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            x = block(x, rope, len(images), g.windows, recompute)
            if i in self.deep:
                deep.append(self.deepstack_merger_list[len(deep)](x))
        levels = (level.view(len(images), rows * columns, -1) for level in (self.merger(x), *deep))
        return torch.stack(list(levels), dim=2)


class Block3(Block):
    """The same block with other norms and without a gate."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.norm1 = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.norm2 = nn.LayerNorm(config.hidden_size, eps=1e-6)
        self.mlp = Mlp3(config)


class Mlp3(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear_fc2 = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class Merger3(nn.Module):
    """Four patches become one token of the language model. A deep one takes the norm of the four together."""

    def __init__(self, width: int, out: int, deep: bool) -> None:
        super().__init__()
        merged = width * MERGE * MERGE
        self.norm = nn.LayerNorm(merged if deep else width, eps=1e-6)
        self.linear_fc1 = nn.Linear(merged, merged)
        self.linear_fc2 = nn.Linear(merged, out)
        self.deep = deep

    def forward(self, x: Tensor) -> Tensor:
        four = x.view(-1, MERGE * MERGE, x.shape[-1])
        x = self.norm(four.flatten(1)) if self.deep else self.norm(four).flatten(1)
        merged: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x)))
        return merged


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it is kept, and a learner may need it later
def corners(rows: int, columns: int, side: int, device: str) -> tuple[Tensor, Tensor]:
    """For each patch of a picture, in the order of the merge, the four nearest of side x side positions and their
    shares (patches x 4 each): the square is stretched over the picture, corner on corner."""

    def along(n: int) -> tuple[Tensor, Tensor]:
        at = torch.arange(n).float() * (side - 1) / max(n - 1, 1)
        low = at.floor()
        near = torch.stack([low, (low + 1).clamp(max=side - 1)], dim=1).long()
        return near, torch.stack([1 - (at - low), at - low], dim=1)

    def merge_order(x: Tensor) -> Tensor:  # rows x columns x 2 x 2
        return x.view(rows // MERGE, MERGE, columns // MERGE, MERGE, 4).transpose(1, 2).reshape(-1, 4).to(device)

    (down, down_shares), (across, across_shares) = along(rows), along(columns)
    near = down[:, None, :, None] * side + across[None, :, None, :]
    shares = down_shares[:, None, :, None] * across_shares[None, :, None, :]
    return merge_order(near), merge_order(shares)
