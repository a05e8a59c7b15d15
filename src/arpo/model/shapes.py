"""The published sizes of the model families, by name: what a plan or a bench needs of a model that is not there.

    config = config_of("qwen2.5-vl-7b")    # as its config.json gives it, as transformers' class

Source: config.json of Qwen/Qwen2.5-VL-*-Instruct and Qwen/Qwen3-VL-*-Instruct on the Hugging Face hub. Fine-tuned
models have the numbers of what they began as: UI-TARS-1.5-7B is a "qwen2.5-vl-7b".
"""

from dataclasses import dataclass
from typing import Any

from arpo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Size:
    """What differs between the sizes. A head has 128 numbers in all of them."""

    family: str  # model_type of its config.json
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int
    tied: bool  # the head is the embeddings
    tower: tuple[int, int, int]  # the vision tower's blocks, width, MLP; its 16 heads are those of every size
    deep: tuple[int, ...] = ()  # the tower's blocks whose results are added after the first layers (DeepStack)


_SMALL, _LARGE = (24, 1024, 4096), (27, 1152, 4304)  # the two towers of Qwen3-VL
SHAPES = {
    "qwen2.5-vl-3b": Size("qwen2_5_vl", 2048, 36, 16, 2, 11008, 151936, True, (32, 1280, 3420)),
    "qwen2.5-vl-7b": Size("qwen2_5_vl", 3584, 28, 28, 4, 18944, 152064, False, (32, 1280, 3420)),
    "qwen2.5-vl-32b": Size("qwen2_5_vl", 5120, 64, 40, 8, 27648, 152064, False, (32, 1280, 3456)),
    "qwen2.5-vl-72b": Size("qwen2_5_vl", 8192, 80, 64, 8, 29568, 152064, False, (32, 1280, 3456)),
    "qwen3-vl-2b": Size("qwen3_vl", 2048, 28, 16, 8, 6144, 151936, True, _SMALL, (5, 11, 17)),
    "qwen3-vl-4b": Size("qwen3_vl", 2560, 36, 32, 8, 9728, 151936, True, _SMALL, (5, 11, 17)),
    "qwen3-vl-8b": Size("qwen3_vl", 4096, 36, 32, 8, 12288, 151936, False, _LARGE, (8, 16, 24)),
    "qwen3-vl-32b": Size("qwen3_vl", 5120, 64, 64, 8, 25600, 151936, False, _LARGE, (8, 16, 24)),
}


def config_of(name: str) -> Any:
    """transformers' config of a published size. ConfigError for a name that is not in the table."""
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig  # not at the top: a plan needs only the numbers

    numbers = numbers_of(name)
    return (Qwen3VLConfig if numbers.pop("model_type") == "qwen3_vl" else Qwen2_5_VLConfig)(**numbers)


def numbers_of(name: str) -> dict[str, Any]:
    """What its config.json says."""
    if name not in SHAPES:
        raise ConfigError(f"no model is known as {name}; these are: {', '.join(SHAPES)}")
    shape = SHAPES[name]
    depth, width, mlp = shape.tower
    text: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.mlp,
        "vocab_size": shape.vocabulary,
        "rms_norm_eps": 1e-6,
    }
    vision: dict[str, Any] = {
        "depth": depth,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_heads": 16,
        "out_hidden_size": shape.hidden,
    }
    if shape.family == "qwen3_vl":
        rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
        text |= {"head_dim": 128, "max_position_embeddings": 262144, "rope_parameters": rope}
        vision |= {"deepstack_visual_indexes": list(shape.deep)}
    else:
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
        text |= {"max_position_embeddings": 128000, "rope_parameters": rope}
    return {"model_type": shape.family, "text_config": text, "vision_config": vision, "tie_word_embeddings": shape.tied}


def head_dim(text: Any) -> int:
    """Numbers in a head, by a text_config: a Qwen3-VL's says them, in a Qwen2.5-VL the heads share the width."""
    dim: int = text.head_dim if text.model_type == "qwen3_vl_text" else text.hidden_size // text.num_attention_heads
    return dim
