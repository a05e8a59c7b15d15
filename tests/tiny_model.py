"""A checkpoint with random weights, as small as a test wants it.

make_tiny(tmp_path, ["some words to learn from"], vocabulary=300)
"""

from collections.abc import Iterable
from pathlib import Path

import torch

from arpo.model.checkpoint import save_model
from arpo.teaching.tiny import make_config, make_tokenizer, new_model, save_tokenizer


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
