"""What is registered here is taken back after each test. The tiny agent is that of the training's tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from arpo.agent.dialects.base import DIALECTS
from arpo.algorithms.base import METHODS
from arpo.envs.base import BACKENDS

sys.path.append(str(Path(__file__).parents[1] / "training"))


@pytest.fixture(autouse=True)
def taken_back() -> Iterator[None]:
    before = [(registry, dict(registry)) for registry in (BACKENDS, METHODS, DIALECTS)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def guesser_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from guesser import make_guesser

    return make_guesser(tmp_path_factory.mktemp("guesser"))
