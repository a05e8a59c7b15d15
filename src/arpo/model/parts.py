"""What the vision tower and the language model are both made of."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class RmsNorm(nn.RMSNorm):
    """The reference's RMS norm, to the bit, as one operation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Mlp(nn.Module):
    """A gated layer, of a part of the model with this config."""

    def __init__(self, config: Any, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
