"""LoRA: small matrices beside the linear layers learn, the weights stay as they are. Only here is peft imported.

    add_adapters(model, rank=16, vision=False, seed=0)    # in place; only the adapters are trainable from now on
    save_model(model, folder, merged(model))              # an ordinary checkpoint, for the engine and `arpo eval`
    torch.save(adapters(model), file)                     # to resume: merged weights cannot be taken apart

peft's layers take the places of the model's own; there is no wrapper around the whole.
"""

import torch
from torch import Tensor, nn

from arpo.errors import ConfigError
from arpo.model.qwen import QwenVL
from arpo.seeds import derive


def add_adapters(model: QwenVL, rank: int, vision: bool, seed: int) -> None:
    """Beside every linear layer but the last; `vision`: in the tower too. At first they add nothing: B is zero."""
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError:
        raise ConfigError(f"train.lora_rank={rank}: needs peft: pip install 'peft>=0.18'") from None
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head" and (vision or ".visual." not in name)
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive("lora", seed))
        inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets), model)


def merged(model: QwenVL) -> dict[str, Tensor]:
    """All weights under the names that they have without adapters, with what the adapters add."""
    from peft.tuners.lora import Linear

    weights = {
        name.replace(".base_layer.", "."): weight for name, weight in model.state_dict().items() if ".lora_" not in name
    }
    with torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, Linear):
                weight = weights[f"{name}.weight"]
                weights[f"{name}.weight"] = (weight + layer.get_delta_weight("default")).to(weight.dtype)
    return weights


def adapters(model: QwenVL) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if ".lora_" in name}


def restore(model: QwenVL, kept: dict[str, Tensor]) -> None:
    """Put the adapters of another time into those of this model."""
    assert kept.keys() == adapters(model).keys(), "adapters of another model"
    model.load_state_dict(kept, strict=False)
