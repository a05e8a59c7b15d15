"""The vision tower: screenshots of one size in, visual tokens out.

Only the order of work differs from transformers'. The reference computes positions and windows in Python for every
image and calls attention once a window; here both are worked out once a grid, and all windows of one shape go through
attention together.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.model.again import again, again_but_attention
from arpo.model.attention import Runs, each
from arpo.model.images import patches
from arpo.model.kernels import gate, rotate
from arpo.resize import MERGE, QWEN2_5

WIDE = 64  # on a GPU rows are a multiple of this long
TOGETHER = 13_000_000  # pixels at once of screenshots whose tower is trained: six of 1920x1080, which fill a large GPU


class RmsNorm(nn.RMSNorm):
    """The reference's RMS norm, to the bit, as one operation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class WideLinear(nn.Linear):
    """Products with rows of 3,420 numbers, which is no multiple of 8, are several times slower on a GPU than others.

    There rows are filled up with zeros: those that come in may be longer than `in_features`, those that go out are.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda:
            return F.linear(x, self.weight, self.bias)
        more = -self.out_features % WIDE
        weight = F.pad(self.weight, (0, x.shape[-1] - self.in_features, 0, more))
        return F.linear(x, weight, None if self.bias is None else F.pad(self.bias, (0, more)))


class Mlp(nn.Module):
    """A gated layer; those of the language model have no biases."""

    def __init__(self, config: Any, bias: bool) -> None:
        super().__init__()
        kind = WideLinear if config.intermediate_size % WIDE else nn.Linear
        self.gate_proj = kind(config.hidden_size, config.intermediate_size, bias)
        self.up_proj = kind(config.hidden_size, config.intermediate_size, bias)
        self.down_proj = kind(config.intermediate_size, config.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(gate(self.gate_proj(x), self.up_proj(x)))


class Tower(nn.Module):
    """uint8 B x H x W x 3, resized already, to B x tokens x hidden of the language model. Or images by name: `each`."""

    sight = QWEN2_5

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        width, side = config.hidden_size, self.sight.patch
        self.patch_embed = nn.Sequential(OrderedDict(proj=StillConv(3, width, (2, side, side), bias=False)))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.merger: nn.Module = Merger(width, config.out_hidden_size)

    def forward(self, images: Tensor | Mapping[str, Tensor], recompute: bool = False) -> Any:
        """`recompute`: keep less for the gradient, see `Block`."""
        return self.together(images, recompute) if isinstance(images, Tensor) else self.each(images, recompute)

    def together(self, images: Tensor, recompute: bool) -> Tensor:
        config, factor = self.config, self.sight.factor
        rows, columns = images.shape[1] // factor, images.shape[2] // factor
        window = config.window_size // factor
        g = grid(rows, columns, window, config.hidden_size // config.num_heads, str(images.device))
        x = self.patch_embed(patches(images, self.sight).flatten(2))
        whole = ((1, x.shape[1]),)
        # From here on all patches of all images lie in one row.
        x = x.unflatten(1, (-1, MERGE * MERGE))[:, g.order].flatten(0, 2)
        rope = (g.cos.repeat(len(images), 1, 1), g.signed_sin.repeat(len(images), 1, 1))
        for i, block in enumerate(self.blocks):
            windows = whole if i in config.fullatt_block_indexes else g.windows
            x = block(x, rope, len(images), windows, recompute)
        return self.merger(x).unflatten(0, (len(images), -1))[:, g.back]

    def each(self, images: Mapping[str, Tensor], recompute: bool) -> list[tuple[list[str], Tensor]]:
        """Names of images, H x W x 3, with their tokens. On a GPU several of one size go through the tower at once.

        On a CPU that is no gain, and the last digits would depend on what else is there. All of them are one pass: each
        rank of a learner makes one, however many images it has.
        """
        by_size: dict[torch.Size, list[str]] = {}
        for name, one in images.items():
            by_size.setdefault(one.shape, []).append(name)
        tokens: list[tuple[list[str], Tensor]] = []
        for (height, width, _), names in by_size.items():
            at_once = max(1, TOGETHER // (height * width)) if images[names[0]].is_cuda else 1
            for start in range(0, len(names), at_once):
                some = names[start : start + at_once]
                tokens.append((some, self.together(torch.stack([images[name] for name in some]), recompute)))
        return tokens


class StillConv(nn.Conv3d):
    """The tower was made for video and takes two frames a patch. Both are the same picture here, given once, so the
    weights of the frames are added."""

    def forward(self, x: Tensor) -> Tensor:
        both = self.weight.view(self.out_channels, 3, 2, -1).sum(2).flatten(1)
        seen = x.to(both.dtype) @ both.T
        return seen if self.bias is None else seen + self.bias


class Block(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.norm1: nn.Module = RmsNorm(config.hidden_size, eps=1e-6)
        self.norm2: nn.Module = RmsNorm(config.hidden_size, eps=1e-6)
        self.attn = WindowAttention(config.hidden_size, config.num_heads)
        self.mlp: nn.Module = Mlp(config, bias=True)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], images: int, windows: Runs, recompute: bool = False
    ) -> Tensor:
        """`recompute`: only the input is kept for the gradient, and attention's result where that takes time."""
        if not recompute:
            return self._inside(x, rope, images, windows)
        anew = again_but_attention if is_whole(windows) else again
        return anew(self._inside, x, rope, images, windows)

    def _inside(self, x: Tensor, rope: tuple[Tensor, Tensor], images: int, windows: Runs) -> Tensor:
        x = x + self.attn(self.norm1(x), rope, images, windows)
        return x + self.mlp(self.norm2(x))


def is_whole(windows: Runs) -> bool:
    """Whether all patches of an image look at each other."""
    return len(windows) == 1 and windows[0][0] == 1


class WindowAttention(nn.Module):
    """Attention inside each window."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], images: int, windows: Runs) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(1)
        q, k, v = (t.unflatten(0, (images, -1)) for t in (rotate(q, *rope), rotate(k, *rope), v))
        return self.proj(each(q, k, v, windows, causal=False).flatten(0, 1).flatten(1))


class Merger(nn.Module):
    """Four patches become one token of the language model."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        merged = width * MERGE * MERGE
        self.ln_q = RmsNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(merged, merged), nn.GELU(), nn.Linear(merged, out))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.ln_q(x).unflatten(0, (-1, MERGE * MERGE)).flatten(1))


@dataclass(frozen=True, slots=True)
class Grid:
    """What one size of image needs of the tower: computed once, used by every image of that size."""

    order: Tensor  # merged tokens in the order of the windows …
    back: Tensor  # … and the way back
    windows: Runs  # in the order of `order`
    cos: Tensor  # patches x 1 x head_dim, in the order of `order`, in single precision as the reference has them …
    signed_sin: Tensor  # … minus for the first half of a head


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
    # Runs at the border are smaller. Attention does not mix windows, so they may be sorted by size.
    cells.sort(key=len, reverse=True)
    order = torch.cat(cells)
    sizes = [len(cell) * MERGE * MERGE for cell in cells]
    windows = tuple((sizes.count(size), size) for size in dict.fromkeys(sizes))
    y, x = torch.meshgrid(torch.arange(rows * MERGE), torch.arange(columns * MERGE), indexing="ij")
    merged = [p.view(rows, MERGE, columns, MERGE).permute(0, 2, 1, 3).reshape(rows * columns, -1) for p in (y, x)]
    frequencies = 1.0 / (10000.0 ** (torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2)))
    angles = torch.cat([p[order].reshape(-1, 1).float() * frequencies for p in merged], dim=1)
    cos, sin = angles.cos(), angles.sin()
    factors = (torch.cat(halves, dim=1)[:, None].to(device) for halves in ([cos, cos], [-sin, sin]))
    return Grid(order.to(device), order.argsort().to(device), windows, *factors)
