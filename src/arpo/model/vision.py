"""The vision tower: screenshots of one size in, visual tokens out.

Only the order of work differs from transformers'. The reference computes positions and windows in Python for every
image and calls attention once a window; here both are worked out once a grid, and all windows of one shape go through
attention together.
"""

from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.model.images import patches
from arpo.resize import FACTOR, MERGE, PATCH

Windows: TypeAlias = tuple[tuple[int, int], ...]
"""How many windows of how many patches follow each other."""


class RmsNorm(nn.RMSNorm):
    """The reference's RMS norm, to the bit, as one operation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Mlp(nn.Module):
    """A gated layer; those of the language model have no biases."""

    def __init__(self, config: Any, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Tower(nn.Module):
    """uint8 B x H x W x 3, resized already, to B x tokens x hidden of the language model."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.patch_embed = nn.Sequential(OrderedDict(proj=StillConv(3, width, (2, PATCH, PATCH), bias=False)))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.merger = Merger(width, config.out_hidden_size)

    def forward(self, images: Tensor) -> Tensor:
        config = self.config
        rows, columns = images.shape[1] // FACTOR, images.shape[2] // FACTOR
        window = config.window_size // FACTOR
        g = grid(rows, columns, window, config.hidden_size // config.num_heads, str(images.device))
        x = self.patch_embed(patches(images).flatten(2))
        x = x.unflatten(1, (-1, MERGE * MERGE))[:, g.order].flatten(1, 2)
        whole = ((1, x.shape[1]),)
        cos, sin = torch.cat([g.angles, g.angles], dim=-1).cos(), torch.cat([g.angles, g.angles], dim=-1).sin()
        for i, block in enumerate(self.blocks):
            x = block(x, cos, sin, whole if i in config.fullatt_block_indexes else g.windows)
        return self.merger(x)[:, g.back]


class StillConv(nn.Conv3d):
    """The tower was made for video and takes two frames a patch. Both are the same picture here, given once, so the
    weights of the frames are added."""

    def forward(self, x: Tensor) -> Tensor:
        both = self.weight.view(self.out_channels, 3, 2, PATCH * PATCH).sum(2).flatten(1)
        return x.to(both.dtype) @ both.T


class Block(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm1 = RmsNorm(config.hidden_size, eps=1e-6)
        self.norm2 = RmsNorm(config.hidden_size, eps=1e-6)
        self.attn = WindowAttention(config.hidden_size, config.num_heads)
        self.mlp = Mlp(config, bias=True)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, windows: Windows) -> Tensor:
        x = x + self.attn(self.norm1(x), cos, sin, windows)
        return x + self.mlp(self.norm2(x))


class WindowAttention(nn.Module):
    """Attention inside each window."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, windows: Windows) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        (q, k), v = _rotate(qkv[:, :, :2], cos, sin).unbind(2), qkv[:, :, 2]
        done, start = [], 0
        for count, size in windows:
            piece = slice(start, start + count * size)
            inside = [t[:, piece].reshape(batch * count, size, self.heads, -1).transpose(1, 2) for t in (q, k, v)]
            out = F.scaled_dot_product_attention(inside[0], inside[1], inside[2])
            done.append(out.transpose(1, 2).reshape(batch, count * size, width))
            start = piece.stop
        return self.proj(torch.cat(done, dim=1))


class Merger(nn.Module):
    """Four patches become one token of the language model."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        merged = width * MERGE * MERGE
        self.ln_q = RmsNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(merged, merged), nn.GELU(), nn.Linear(merged, out))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.ln_q(x).unflatten(1, (-1, MERGE * MERGE)).flatten(2))


@dataclass(frozen=True, slots=True)
class Grid:
    """What one size of image needs of the tower: computed once, used by every image of that size."""

    order: Tensor  # merged tokens in the order of the windows …
    back: Tensor  # … and the way back
    windows: Windows  # in the order of `order`
    angles: Tensor  # patches x head_dim / 2, in the order of `order`


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it is kept, and a learner may need it later
def grid(rows: int, columns: int, window: int, head_dim: int, device: str) -> Grid:
    """The grid of an image of so many merged tokens down and across; `window` in merged tokens."""
    index = torch.arange(rows * columns).view(rows, columns)
    cells = [
        index[y : y + window, x : x + window].reshape(-1)
        for y in range(0, rows, window)
        for x in range(0, columns, window)
    ]
    # Windows at the border are smaller. Attention does not mix windows, so they may be sorted by size.
    cells.sort(key=len, reverse=True)
    order = torch.cat(cells)
    sizes = [len(cell) * MERGE * MERGE for cell in cells]
    windows = tuple((sizes.count(size), size) for size in dict.fromkeys(sizes))
    y, x = torch.meshgrid(torch.arange(rows * MERGE), torch.arange(columns * MERGE), indexing="ij")
    merged = [p.view(rows, MERGE, columns, MERGE).permute(0, 2, 1, 3).reshape(rows * columns, -1) for p in (y, x)]
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2)))
    angles = torch.cat([p[order].reshape(-1, 1).float() * frequencies for p in merged], dim=1)
    return Grid(order.to(device), order.argsort().to(device), windows, angles.to(device))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of queries and keys together, in single precision as the reference does."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (wide * cos[:, None, None] + turned * sin[:, None, None]).to(x.dtype)
