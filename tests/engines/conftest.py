"""A tiny checkpoint for these tests, made once; smaller than the default, since they are about being right."""

from pathlib import Path

import pytest
import torch

from arpo.model.checkpoint import Checkpoint, load_checkpoint, load_model, save_model
from tiny_model import make_tiny

TEXT = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
TEXT |= {"intermediate_size": 96}
VISION = {"hidden_size": 64, "num_heads": 4, "intermediate_size": 96}


def make(folder: Path, seed: int) -> Path:
    """Random weights, made so large that tokens and positions matter: else every distribution is nearly flat."""
    make_tiny(folder, ["some words to learn from", "click (12,3)"], VISION, TEXT, vocabulary=300, seed=seed)
    model = load_model(folder, "cpu")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight *= 8.0 if "embed_tokens" in name else 6.0
    save_model(model, folder)
    return folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("checkpoint"), seed=0)


@pytest.fixture(scope="session")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shapes, other weights."""
    return make(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> Checkpoint:
    return load_checkpoint(tiny_folder, "cpu")
