"""Runs to look at, made once for all tests of this folder, and servers that show them."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from viewer_runs import make_hostile, make_long, make_training

from arpo.viewer.serve import Server
from arpo.viewer.site import Site


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs that no test changes: training, hostile, long."""
    folder = tmp_path_factory.mktemp("runs")
    make_training(folder / "training")
    make_hostile(folder / "hostile")
    make_long(folder / "long", 120)
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Serves runs on a free port until the test is over."""
    started: list[tuple[Server, threading.Thread]] = []

    def start(*folders: Path) -> Server:
        server = Server(Site(folders), 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()
