"""A tiny checkpoint with a prompt of its own, made once."""

from pathlib import Path

import pytest

from tiny_model import make_tiny

TEXT = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
VISION = {"hidden_size": 64, "num_heads": 4, "intermediate_size": 96}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    make_tiny(folder, ["some words to learn from", "click (12,3)"], VISION, TEXT | {"intermediate_size": 96}, 300, 0)
    (folder / "prompt.txt").write_text("Do this: {instruction}")
    return folder
