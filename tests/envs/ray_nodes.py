"""A Ray cluster of the tests' own on this machine: `ray start` for each node, behind a token, ended by process id.

    nodes = Nodes(folder); nodes.start(desktop=2); nodes.start(desktop=2)
    nodes.lose(1)                       kill -9 of a raylet: the node is gone, as if its plug were pulled
    nodes.close()

A second or two pass until a lost node is missed: its health is asked for often here.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RAY = str(Path(sys.executable).with_name("ray"))
SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else whatever runs beside the tests starves environments
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "10000",
    "RAY_health_check_failure_threshold": "5",
    "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
}


def wait_until(true: Callable[[], object], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the command line of every process that has not ended."""
    listed = subprocess.run(["ps", "-axwwo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True)
    rows = [line.split(None, 3) for line in listed.stdout.splitlines()]
    return {int(row[0]): (int(row[1]), row[3]) for row in rows if len(row) == 4 and not row[2].startswith("Z")}


def below(pid: int) -> dict[int, str]:
    """The processes that a process has started, and those that they have, each with its command line."""
    listed, found = processes(), {pid}
    while more := {one for one, (parent, _) in listed.items() if parent in found} - found:
        found |= more
    return {one: listed[one][1] for one in found - {pid} if one in listed}


class Nodes:
    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="arpo-ray-"))  # short: sockets lie in it
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, **resources: int) -> subprocess.Popen[bytes]:
        """One more node, the head first; returns when it belongs to the cluster."""
        first = not self.started
        words = ["--head", f"--port={self.address.rpartition(':')[2]}", "--include-dashboard=false"]
        words += [f"--temp-dir={self.folder}"]
        words = words if first else [f"--address={self.address}"]
        words += ["--num-cpus=2", "--num-gpus=0", f"--object-store-memory={100 << 20}", "--disable-usage-stats"]
        words += [f"--resources={json.dumps(resources)}", "--block"]
        return self.run([RAY, "start", *words])

    def run(self, command: list[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        log = self.folder / f"node-{len(self.started)}.log"
        with log.open("wb") as file:
            env = env or os.environ | SETTINGS
            node = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # by which Linux shares out the processor: else all nodes have one part of it
            )
        self.started.append(node)
        wait_until(lambda: b"Ray runtime started" in log.read_bytes() or node.poll() is not None)
        assert node.poll() is None, log.read_text()
        return node

    def raylet(self, node: subprocess.Popen[bytes]) -> int:
        (pid,) = [pid for pid, args in below(node.pid).items() if "/raylet/raylet " in args]
        return pid

    def lose(self, node: subprocess.Popen[bytes]) -> None:
        os.kill(self.raylet(node), signal.SIGKILL)

    def close(self) -> None:
        everything = [pid for node in self.started for pid in below(node.pid)]
        for node in reversed(self.started):
            node.terminate()
        for node in self.started:
            try:
                node.wait(30)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
        listed = processes()
        for pid in everything:  # of a node that could not tidy up
            if pid in listed and "ray" in listed[pid][1]:
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


def actors(nodes: Nodes) -> set[int]:
    """The process ids of the environments."""
    return {pid for node in nodes.started for pid, args in below(node.pid).items() if args.startswith("ray::Place")}


@contextlib.contextmanager
def cluster(*offers: dict[str, int]) -> Iterator[Nodes]:
    """A cluster whose nodes, the head first, offer these resources; this process is connected to it."""
    import ray
    from ray._raylet import AuthenticationTokenLoader, Config

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
        made = Nodes()
        try:
            for offered in offers:
                made.start(**offered)
            ray.init(made.address, log_to_driver=False, configure_logging=False)  # once: each pool would do it
            yield made
        finally:
            ray.shutdown()
            made.close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """A head that offers nothing, and one node with two desktops."""
    with cluster({}, {"desktop": 2}) as made:
        yield made
