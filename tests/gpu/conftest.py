"""All tests on a GPU: single precision is single precision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """Convolutions too: transformers' patches go through one, which rounds to 10 bits unless told otherwise."""
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [kind.allow_tf32 for kind in kinds]
    for kind in kinds:
        kind.allow_tf32 = False
    yield
    for kind, allowed in zip(kinds, before, strict=True):
        kind.allow_tf32 = allowed
