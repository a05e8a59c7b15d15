"""LoRA: small matrices beside the linear layers learn, the weights stay as they are.

    add_adapters(model, rank=16, vision=False, seed=0)    # in place; only the adapters are trainable from now on
    save_model(model, folder, merged(model))              # an ordinary checkpoint, for the engine and `arpo eval`
    torch.save(adapters(model), file)                     # to resume: merged weights cannot be taken apart

The adapters are fp32 whatever the weights are, since bf16 rounds small steps away; their products are computed as those
of the weights.
"""

import math
from collections.abc import Callable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.model.qwen import QwenVL
from arpo.seeds import derive

SCALE = 2.0  # alpha over rank
_NAMES = {".lora_A": ".lora_A.default.weight", ".lora_B": ".lora_B.default.weight"}  # those that peft gives them


class LoraLinear(nn.Module):
    """A linear layer and what is added to its weights: SCALE * B A."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        device = None if base.weight.is_meta else base.weight.device  # None: of a model that is filled later
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.lora_A.data = self.lora_A.data.to(device) if device else self.lora_A.data
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base_layer(x)
        # Rows may be filled up with zeros, in and out: see WideLinear.
        a = F.pad(self.lora_A, (0, x.shape[-1] - self.base_layer.in_features)).to(x.dtype)
        b = F.pad(self.lora_B, (0, 0, 0, y.shape[-1] - self.base_layer.out_features)).to(x.dtype)
        # Added in place, in the product itself: another pass over a large result would take as long as the product.
        return y.addmm_(F.linear(x, a), b.T, alpha=SCALE)


def add_adapters(model: QwenVL, rank: int, vision: bool, seed: int) -> None:
    """Beside every linear layer but the last; `vision`: in the tower too. At first they add nothing: B is zero."""
    model.requires_grad_(False)
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head" and (vision or ".visual." not in name)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive("lora", seed))
        for name in targets:
            base = model.get_submodule(name)
            assert isinstance(base, nn.Linear)
            model.set_submodule(name, LoraLinear(base, rank))


def merged(
    model: QwenVL, trained: Mapping[str, Tensor] | None = None, whole: Callable[[Tensor], Tensor] = Tensor.detach
) -> Iterator[tuple[str, Tensor]]:
    """Each weight under the name that it has without adapters, with what they add: one by one, never a copy of all.

    `trained`: what to take for the trained weights of the model, or adapters, by name. `whole`: puts one together.
    """
    every = dict(model.named_parameters())
    for name, weight in every.items():
        if ".lora_" in name:
            continue
        own = whole((trained or every).get(name, weight))
        if (layer := name.removesuffix(".base_layer.weight")) != name:
            a, b = (whole((trained or every)[f"{layer}.lora_{one}"]).to(own.device) for one in "AB")
            own = (own + SCALE * b @ a).to(own.dtype)
        yield name.replace(".base_layer.", "."), own


def adapters(model: QwenVL, trained: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Under the names that they have in files."""
    every = trained or dict(model.named_parameters())
    return {_kept_name(name): weight.detach() for name, weight in every.items() if ".lora_" in name}


def restore(model: QwenVL, kept: dict[str, Tensor]) -> None:
    """Put the adapters of another time into those of this model."""
    mine = {_kept_name(name): name for name, _ in model.named_parameters() if ".lora_" in name}
    assert kept.keys() == mine.keys(), "adapters of another model"
    model.load_state_dict({mine[name]: weight for name, weight in kept.items()}, strict=False)


def _kept_name(name: str) -> str:
    path, dot, matrix = name.rpartition(".")
    return path + _NAMES[dot + matrix]
