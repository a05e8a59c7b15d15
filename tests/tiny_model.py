"""A checkpoint with random weights, as small as a test wants it, and the fixtures of those that are about one.

make_tiny(tmp_path, ["some words to learn from"], vocabulary=300)
make_decided(tmp_path, seed=0)

What imports `family` with the fixtures runs its tests with a checkpoint of every family.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3VLConfig

from arpo.model.checkpoint import FAMILIES, Checkpoint, load_checkpoint, load_model, save_model
from arpo.teaching.tiny import make_config, make_tokenizer, new_model, save_tokenizer

TEXT = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
TEXT |= {"intermediate_size": 96}
VISION = {"hidden_size": 64, "num_heads": 4, "intermediate_size": 96}


def make_tiny(
    folder: Path,
    corpus: Iterable[str],
    vision: dict[str, int] | None = None,
    text: dict[str, int] | None = None,
    vocabulary: int = 1024,
    seed: int = 0,
    family: str = "qwen2_5_vl",
) -> None:
    """Config, weights and tokenizer: a folder that loads like any other."""
    tokenizer = make_tokenizer(corpus, vocabulary)
    torch.manual_seed(seed)
    config = make_config(tokenizer, vision or {}, text or {})
    save_model(new_model(config if family == "qwen2_5_vl" else qwen3(config)), folder)
    save_tokenizer(tokenizer, folder)


def qwen3(config: Any) -> Qwen3VLConfig:
    """A Qwen3-VL of the same sizes but for its heads, which are larger than the width shared out."""
    text, vision = config.text_config, config.vision_config
    dim = 2 * text.hidden_size // text.num_attention_heads
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [dim // 2 - 2 * (dim // 6), dim // 6, dim // 6],
    }
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "tie_word_embeddings")
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    return Qwen3VLConfig(
        text_config={name: getattr(text, name) for name in (*sizes, "vocab_size", "max_position_embeddings")}
        | {"head_dim": dim, "rope_parameters": rope, "tie_word_embeddings": True},
        vision_config={name: getattr(vision, name) for name in ("depth", *sizes[:2], "num_heads", "out_hidden_size")}
        | {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2]},
        **{name: getattr(config, name) for name in names},
    )


def make_decided(folder: Path, seed: int, family: str = "qwen2_5_vl", text: dict[str, int] | None = None) -> Path:
    """Random weights, made so large that tokens and positions matter: else every distribution is nearly flat.

    Smaller than the default, since tests with it are about being right. `text`: other sizes of the language model.
    """
    corpus = ["some words to learn from", "click (12,3)"]
    make_tiny(folder, corpus, VISION, TEXT | (text or {}), vocabulary=300, seed=seed, family=family)
    model = load_model(folder, "cpu")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(8.0 if "embed_tokens" in name else 6.0)
    save_model(model, folder)
    return folder


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, family: str) -> Path:
    return make_decided(tmp_path_factory.mktemp("checkpoint"), 0, family)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory, family: str) -> Path:
    """The same shapes, other weights."""
    return make_decided(tmp_path_factory.mktemp("other"), 1, family)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Checkpoint:
    return load_checkpoint(tiny_folder, "cpu")
