"""From screenshots to the vision tower's input, and through the tower: whole batches of equal size at a time.

`patches` equals transformers' image processor for Qwen2.5-VL without needing torchvision. `encode` runs the weights of
transformers' own vision tower; only the order of work is ours. The reference computes positions and windows in Python
for every image and calls attention once a window; here both are worked out once a grid and all windows of one shape go
through attention together.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from arpo.agent.coordinates import FACTOR, smart_resize
from arpo.engines.qwen import image_grid, norm
from arpo.images import Pixels

PATCH = 14
MERGE = 2
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def resized(pixels: Pixels) -> Pixels:
    """The screenshot at the size that the model sees; the same array where that is its own."""
    height, width = smart_resize(*pixels.shape[:2])
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def image_tokens(width: int, height: int) -> int:
    """How many image tokens a screenshot of this size takes in a context."""
    return math.prod(image_grid(width, height))


def patches(images: Tensor) -> Tensor:
    """uint8 B x H x W x 3, resized already, to B x patches x 1176: what transformers' tower takes.

    The tower was made for video: it takes two frames a patch, so a still image is given twice.
    """
    still = _still(images)
    return still.unsqueeze(3).expand(-1, -1, -1, 2, -1).flatten(2)


def _still(images: Tensor) -> Tensor:
    """The same patches as one frame, B x patches x 3 x 196: normalised, in the order of the 2 x 2 merge."""
    batch, height, width, _ = images.shape
    rows, columns = height // (PATCH * MERGE), width // (PATCH * MERGE)
    mean = torch.tensor(MEAN, device=images.device, dtype=torch.float32) * 255
    std = torch.tensor(STD, device=images.device, dtype=torch.float32) * 255
    x = ((images.float() - mean) / std).view(batch, rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)  # batch, row, column, merge row, merge column, colour, y, x
    return x.reshape(batch, rows * columns * MERGE * MERGE, 3, PATCH * PATCH)


@dataclass(frozen=True, slots=True)
class Grid:
    """What one size of image needs of the tower: computed once, used by every image of that size."""

    tokens: int  # after the merge
    order: Tensor  # merged tokens in the order of the windows …
    back: Tensor  # … and the way back
    windows: tuple[tuple[int, int], ...]  # (how many, of how many patches), in the order of `order`
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
    return Grid(rows * columns, order.to(device), order.argsort().to(device), windows, angles.to(device))


def encode(tower: Any, images: Tensor) -> Tensor:
    """Screenshots of one size, uint8 B x H x W x 3, to the tower's merged tokens, B x tokens x hidden."""
    config = tower.config
    heads, dim = config.num_heads, config.hidden_size // config.num_heads
    window = config.window_size // config.patch_size // MERGE
    rows, columns = images.shape[1] // FACTOR, images.shape[2] // FACTOR
    g = grid(rows, columns, window, dim, str(images.device))
    weight = tower.patch_embed.proj.weight
    # Both frames are the same picture, so their weights are added instead of the picture doubled.
    both = weight.view(config.hidden_size, 3, 2, PATCH * PATCH).sum(2).flatten(1)
    x = _still(images).flatten(2).to(weight.dtype) @ both.T
    batch = x.shape[0]
    x = x.view(batch, g.tokens, MERGE * MERGE, -1)[:, g.order].flatten(1, 2)
    cos, sin = torch.cat([g.angles, g.angles], dim=-1).cos(), torch.cat([g.angles, g.angles], dim=-1).sin()
    for i, block in enumerate(tower.blocks):
        parts = ((1, x.shape[1]),) if i in config.fullatt_block_indexes else g.windows
        x = x + _attention(block.attn, norm(block.norm1, x), heads, cos, sin, parts)
        x = x + block.mlp(norm(block.norm2, x))
    merged: Tensor = tower.merger.mlp(norm(tower.merger.ln_q, x).view(batch, g.tokens, -1))
    return merged[:, g.back]


def _attention(
    attn: Any, x: Tensor, heads: int, cos: Tensor, sin: Tensor, parts: tuple[tuple[int, int], ...]
) -> Tensor:
    """Attention inside each window; `parts` says how many windows of which length follow each other."""
    batch, length, width = x.shape
    qkv = attn.qkv(x).view(batch, length, 3, heads, width // heads)
    (q, k), v = _rotate(qkv[:, :, :2], cos, sin).unbind(2), qkv[:, :, 2]
    done, start = [], 0
    for count, size in parts:
        piece = slice(start, start + count * size)
        inside = [t[:, piece].reshape(batch * count, size, heads, -1).transpose(1, 2) for t in (q, k, v)]
        out = F.scaled_dot_product_attention(inside[0], inside[1], inside[2])
        done.append(out.transpose(1, 2).reshape(batch, count * size, width))
        start = piece.stop
    return attn.proj(torch.cat(done, dim=1))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions of queries and keys together, in single precision as the reference does."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (wide * cos[:, None, None] + turned * sin[:, None, None]).to(x.dtype)
