"""A checkpoint with random weights, as small as a test wants it, and the fixtures of those that are about one.

make_tiny(tmp_path, ["some words to learn from"], vocabulary=300)
make_decided(tmp_path, seed=0)
"""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from arpo.model.checkpoint import Checkpoint, load_checkpoint, load_model, save_model
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
) -> None:
    """Config, weights and tokenizer: a folder that loads like any other."""
    tokenizer = make_tokenizer(corpus, vocabulary)
    torch.manual_seed(seed)
    save_model(new_model(make_config(tokenizer, vision or {}, text or {})), folder)
    save_tokenizer(tokenizer, folder)


def make_decided(folder: Path, seed: int) -> Path:
    """Random weights, made so large that tokens and positions matter: else every distribution is nearly flat.

    Smaller than the default, since tests with it are about being right.
    """
    make_tiny(folder, ["some words to learn from", "click (12,3)"], VISION, TEXT, vocabulary=300, seed=seed)
    model = load_model(folder, "cpu")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.mul_(8.0 if "embed_tokens" in name else 6.0)
    save_model(model, folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decided(tmp_path_factory.mktemp("checkpoint"), seed=0)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shapes, other weights."""
    return make_decided(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Checkpoint:
    return load_checkpoint(tiny_folder, "cpu")
