"""The tiny checkpoints, made once; those of another family for a test that is marked so."""

import pytest

from tiny_model import other_folder, tiny, tiny_folder

__all__ = ["other_folder", "tiny", "tiny_folder"]


@pytest.fixture(scope="session")
def family(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "qwen2_5_vl"))
