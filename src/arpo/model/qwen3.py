"""A Qwen3-VL: what differs from a Qwen2.5-VL. The pass itself, sampling and learning, is that of qwen.py.

Queries and keys have norms and no biases, a head's size is a number of its own, rotary frequencies go to the three axes
in turn, and the visual tokens have several levels (vision3.py): the first takes the places of the image tokens, the
others are added there after one of the first layers each.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from arpo.model.qwen import Attention, QwenVL, TextModel, speeds
from arpo.model.shapes import head_dim
from arpo.model.vision import RmsNorm
from arpo.model.vision3 import Tower3


class Qwen3VL(QwenVL):
    architecture = "Qwen3VLForConditionalGeneration"

    @staticmethod
    def halves(config: Any) -> tuple[Tower3, "TextModel3"]:
        if len(config.vision_config.deepstack_visual_indexes) >= config.text_config.num_hidden_layers:
            raise ValueError("the vision tower has tokens for more layers than there are")
        return Tower3(config.vision_config), TextModel3(config)


class TextModel3(TextModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.dim = head_dim(config.text_config)
        _, rows, columns = self.sections
        self.turns = (rows, columns)

    @staticmethod
    def attention(text: Any, layer: int) -> "NormedAttention":
        return NormedAttention(text, layer)

    def angles(self, positions: Tensor) -> Tensor:
        axes = _axes(self.dim // 2, *self.turns, positions.device)
        return positions.float()[axes].movedim(0, -1) * speeds(self.dim, self.theta, positions.device)


class NormedAttention(Attention):
    def __init__(self, text: Any, layer: int) -> None:
        super().__init__(text, layer, bias=False)
        self.q_norm = RmsNorm(self.dim, eps=text.rms_norm_eps)
        self.k_norm = RmsNorm(self.dim, eps=text.rms_norm_eps)

    def queries(self, x: Tensor) -> Tensor:
        normed: Tensor = self.q_norm(super().queries(x))
        return normed

    def keys(self, x: Tensor) -> Tensor:
        normed: Tensor = self.k_norm(super().keys(x))
        return normed


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _axes(n: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """The axis of each of n frequencies: time, height, width in turn, while height and width have some left."""
    left = (0, rows, columns)
    return torch.tensor([i % 3 if i // 3 < left[i % 3] else 0 for i in range(n)], device=device)
