"""The checkpoint of these tests' agent, made once."""

from pathlib import Path

import pytest
from guesser import make_guesser

from tiny_model import family

__all__ = ["family"]


@pytest.fixture(scope="session")
def guesser_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_guesser(tmp_path_factory.mktemp("guesser"))
