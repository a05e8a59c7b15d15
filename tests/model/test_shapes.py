"""Published sizes: they have the parameters of the published files, and what is odd about each loads and runs."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import plain
from arpo.errors import ConfigError
from arpo.model.checkpoint import load_model, make_model
from arpo.model.layout import lay_out
from arpo.model.shapes import SHAPES, config_of

PUBLISHED = {  # parameters, as the hub counts them in the files of the Instruct models
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "qwen3-vl-32b": 33_357_390_064,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_of_a_published_size_has_the_weights_of_transformers(name: str) -> None:
    config = config_of(name)
    with torch.device("meta"):
        ours = make_model(config)
        theirs: Any = getattr(transformers, ours.architecture)(config)
    assert [(key, one.shape) for key, one in ours.named_parameters()] == [
        (key, one.shape) for key, one in theirs.named_parameters()
    ]
    assert sum(weight.numel() for weight in ours.parameters()) == PUBLISHED[name]


def test_a_size_that_nobody_published_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no model is known as qwen2.5-vl-4b; these are: qwen2.5-vl-3b, "):
        config_of("qwen2.5-vl-4b")


def shrunk(name: str) -> Any:
    """The same model with everything divided: as many heads for a key head, as wide a tower, tied or not."""
    config = config_of(name)
    text, vision = config.text_config, config.vision_config
    share = text.num_attention_heads // text.num_key_value_heads
    text.num_key_value_heads, text.num_attention_heads = (2, 2 * share) if share < 8 else (1, share)
    text.hidden_size = 16 * text.num_attention_heads
    text.update({"num_hidden_layers": 4, "intermediate_size": 64, "vocab_size": 400, "max_position_embeddings": 512})
    vision.update({"depth": 4, "hidden_size": 64, "num_heads": 4, "intermediate_size": vision.intermediate_size // 36})
    vision.out_hidden_size = text.hidden_size
    if config.model_type == "qwen3_vl":
        text.head_dim, text.rope_parameters["mrope_section"] = 32, [6, 5, 5]
        vision.update({"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1, 2]})
    else:
        text.rope_parameters["mrope_section"] = [2, 3, 3]
        text.layer_types, vision.fullatt_block_indexes = text.layer_types[:4], [1, 3]
    for i, token in enumerate(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")):
        setattr(config, token, 390 + i)
    text.update({"bos_token_id": 1, "eos_token_id": 2})
    return config


@pytest.mark.parametrize("name", SHAPES)
def test_a_checkpoint_that_transformers_saved_loads_and_gives_what_transformers_gives(
    name: str, tmp_path: Path
) -> None:
    config = shrunk(name)
    torch.manual_seed(0)
    make: Any = getattr(transformers, make_model(config).architecture)
    theirs = make(config).eval()
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path, "cpu", torch.float32)
    tied = ours.lm_head.weight is ours.model.language_model.embed_tokens.weight
    assert tied == SHAPES[name].tied
    ids, pad, factor = [3, 4, 392, 390, 393, 5, 6], 390, ours.sight.factor
    layout = lay_out(ids, [(2, 3)], pad)
    image = torch.randint(0, 256, (2 * factor, 3 * factor, 3), dtype=torch.uint8)
    with torch.no_grad():
        found = ours(layout.ids, layout.positions, images={"it": image}, shown=["it"])
        given = {"input_ids": layout.ids[None], "mm_token_type_ids": (layout.ids == pad).int()[None]}
        given |= {
            "pixel_values": plain.doubled(image[None], ours.sight)[0],
            "image_grid_thw": torch.tensor([[1, 4, 6]]),
        }
        expected = theirs(**given).logits[0]
    allowed = torch.isfinite(found)
    assert allowed.sum(-1).eq(396).all()
    assert torch.allclose(found[allowed], expected[allowed], atol=1e-5)
