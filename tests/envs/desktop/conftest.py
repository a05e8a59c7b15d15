"""Sandboxes for tests, of which nothing may be left.

A test marked `desktop` is skipped only where programs are missing: `@pytest.mark.desktop("xev")` names more of them.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from traces import SIZE, Traces, wait_until

from arpo.envs.desktop.checks.judging import judges
from arpo.envs.desktop.gvisor import Wall
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
    judges().start()  # the process of checkers is this process's, and stays
    before, made = traces.things(), []

    def start(size: tuple[int, int] = SIZE, template: Path | None = None, wall: Wall = "bubblewrap") -> Sandbox:
        made.append(Sandbox(size, template, wall=wall, ARPO_TEST=traces.mark.partition("=")[2]))
        return made[-1]

    yield start
    for sandbox in made:
        sandbox.close()
    wait_until(lambda: not traces.processes(), lambda: f"left: {traces.processes()}")
    after = traces.things()
    assert {**after, "threads": 0} == {**before, "threads": 0}
    assert int(str(after["threads"])) <= int(str(before["threads"]))  # one of an earlier test may have ended meanwhile


@pytest.fixture
def sandbox(start: Callable[..., Sandbox]) -> Sandbox:
    sandbox = start()
    sandbox.wait()
    return sandbox


@pytest.fixture(scope="module")
def desk() -> Iterator[Sandbox]:
    """One for all tests of a file that change nothing."""
    with Sandbox(SIZE) as sandbox:
        yield sandbox
