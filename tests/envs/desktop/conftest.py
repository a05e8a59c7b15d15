"""Sandboxes for tests, of which nothing may be left.

A test marked `desktop` is skipped only where programs are missing: `@pytest.mark.desktop("xev")` names more of them.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from traces import SIZE, Traces, wait_until

from arpo.envs.desktop.sandbox import Sandbox, missing

_numbers = itertools.count()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("desktop"):
        lacking = [name for name in marker.args if shutil.which(name) is None]
        if missing() or lacking:
            pytest.skip(f"programs are missing: {missing() or ' '.join(lacking)}; `make test` as root installs all")


@pytest.fixture
def traces() -> Traces:
    return Traces(f"ARPO_TEST={os.getpid()}.{next(_numbers)}.")


@pytest.fixture
def start(traces: Traces) -> Iterator[Callable[..., Sandbox]]:
    """Makes sandboxes; when the test is over, nothing of them is left in the machine."""
    before, made = traces.things(), []

    def start(size: tuple[int, int] = SIZE) -> Sandbox:
        made.append(Sandbox(size, ARPO_TEST=traces.mark.partition("=")[2]))
        return made[-1]

    yield start
    for sandbox in made:
        sandbox.close()
    wait_until(lambda: not traces.processes(), lambda: f"left: {traces.processes()}")
    assert traces.things() == before


@pytest.fixture
def sandbox(start: Callable[..., Sandbox]) -> Sandbox:
    sandbox = start()
    sandbox.wait()
    return sandbox
