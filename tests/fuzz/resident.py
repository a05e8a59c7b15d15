"""The resident process of a desktop: what programs inside may send to its socket, and what the outside asks it.

The X server is a stand-in (no_x.py), and nothing is started, written or signalled: on this side of the sandbox's wall.
"""

import base64
import contextlib
import json
import os
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from fuzz import Target, no_x
from fuzz.values import NUMBERS, anything, as_text, changed, damaged

inside, screen, programs, starter = no_x.modules()
MOST_WORK = 2000  # requests to the X server for one of a program's
WAIT_S = 40.0
ASKED: list[dict[str, Any]] = [
    {"do": "click", "with": {"x": 3, "y": 4, "button": 1, "count": 2}},
    {"do": "scroll", "with": {"x": 3, "y": 4, "button": 5, "count": 9}},
    {"do": "drag", "with": {"x": 3, "y": 4, "to_x": 8, "to_y": 9}},
    {"do": "move", "with": {"x": 3, "y": 4}},
    {"do": "hold", "with": {"button": 1, "down": True}},
    {"do": "size", "with": {}},
    {"do": "pointer", "with": {}},
    {"do": "type", "with": {"keysyms": [97, 0x10000FC, 0xFF0D]}},
    {"do": "press", "with": {"keysyms": [0xFFE3, 99], "phase": "press"}},
    {"do": "windows", "with": {}},
    {"do": "activate", "with": {"window": 7}},
    {"do": "close_window", "with": {"window": 7}},
    {"do": "settle", "with": {"limit_s": 0.0, "quiet_s": 0.0, "busy": 0.1}},
]
COMMANDS: list[dict[str, Any]] = [
    {"do": "run", "with": {"argv": ["ls", "-l"], "shell": False, "limit_s": 5.0, "cwd": None, "more": {"A": "b"}}},
    {"do": "run", "with": {"argv": "ls", "shell": True, "limit_s": 5.0, "check": True}},
    {"do": "launch", "with": {"argv": ["ls"], "shell": False}},
    {"do": "status", "with": {"pid": 5}},
    {"do": "freeze", "with": {"but": ["/usr/bin/x"]}},
    {"do": "thaw", "with": {}},
    {"do": "write", "with": {"path": "a", "data": "YWJj", "more": False}},
]
WORDS = (b"\n", b"\n\n", b"[" * 3000, b'{"id":' * 600, b"\0", b"\xff", b"1e999", b"NaN", b'"do": "settle"', b"9" * 40)


def make_requests(rng: random.Random) -> list[bytes]:
    """Each is one connection's."""
    return [_request(rng) for _ in range(rng.choice([1, 1, 1, 2]))]


def _request(rng: random.Random) -> bytes:
    request = {"id": rng.choice([0, 1, "x", None]), **rng.choice(ASKED)}
    if rng.random() < 0.2:
        request = _large(rng, request)
    data = as_text(rng, changed(rng, request) if rng.random() < 0.95 else anything(rng)) + rng.choice(
        [b"\n", b"\n", b""]
    )
    return damaged(rng, data, 3, WORDS) if rng.random() < 0.25 else data


def _large(rng: random.Random, request: dict[str, Any]) -> dict[str, Any]:
    large = {"count": 10**9, "keysyms": [rng.randrange(1, 1 << 29) for _ in range(rng.choice([99, 140, 3000]))]}
    large |= {"limit_s": 1e9, "quiet_s": 1e9, "button": rng.choice(NUMBERS), "x": rng.choice(NUMBERS)}
    return {**request, "with": {name: large.get(name, value) for name, value in request["with"].items()}}


class Process:
    """In place of a program: it ends at once."""

    def __init__(self, argv: Any, env: Any, cwd: Any, shell: bool, **_: Any) -> None:
        words = [argv] if isinstance(argv, str) else list(argv)
        for word in [*words, *env, *env.values(), cwd]:
            if b"\0" in os.fsencode(word):
                raise ValueError("embedded null byte")
        self.pid, self.returncode = 1000 + len(words), 0


class Starter(starter.Starter):  # type: ignore[name-defined]
    """Without signals, and with programs that have ended."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.first, self.second = connection, lambda: None, False
        self.running: dict[int, int] = {}
        self.starting: dict[int, tuple[int, int]] = {}
        self.woken, self.wake = socket.socketpair()

    def start(self, request: dict[str, Any], files: list[int]) -> None:
        program = Process(**{name: request[name] for name in ("argv", "env", "cwd", "shell")})
        self.running[program.pid] = request["n"]
        self.say(n=request["n"], pid=program.pid)
        self.wake.send(b"x")

    def signal(self, number: int, but: list[str]) -> list[int]:
        return []

    def reap(self) -> None:
        for number in self.running.values():
            self.say(ended=number, status=0)
        self.running.clear()

    def kill(self, number: int) -> None:
        pass


@contextlib.contextmanager
def desktop() -> Iterator[Any]:
    """A resident process with its socket, and what its threads raised."""
    raised: list[BaseException] = []
    ours, theirs = socket.socketpair()
    asking, starting = socket.socketpair()
    sleepless = SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic, clock_gettime_ns=time.clock_gettime_ns)
    stubs = (
        patch.object(threading, "excepthook", lambda arguments: raised.append(arguments.exc_value)),
        patch.object(screen, "time", sleepless),
        patch.object(screen, "work", lambda proc: (0.0, False, 0.0)),
        patch.object(screen, "POLL_S", 0.0),
        patch.object(programs, "HOME", "/nonexistent"),
    )
    with contextlib.ExitStack() as stack:
        for stub in stubs:
            stack.enter_context(stub)
        made = stack.enter_context(tempfile.TemporaryDirectory())
        threading.Thread(target=Starter(starting).serve, daemon=True).start()
        started = programs.Programs(asking)
        threading.Thread(target=_listen, args=(started,), daemon=True).start()
        server = SimpleNamespace(poll=lambda: None, pid=1)
        resident = inside.Resident(theirs, screen.Screen(server, -1), started, -1)
        resident.calls |= {
            "read": str,
            "write": lambda path, data, more=False: len(base64.b64decode(data)),
            "connect": int,
        }
        resident.calls |= {"listener": lambda port: None, "verdict": lambda full: ""}
        requests = stack.enter_context(socket.socket(socket.AF_UNIX))
        requests.bind(f"{made}/requests")
        requests.listen()
        threads = [threading.Thread(target=resident.converse, daemon=True)]
        threads.append(threading.Thread(target=_until_closed, args=(resident.accept, requests), daemon=True))
        for thread in threads:
            thread.start()
        stack.enter_context(ours)
        yield SimpleNamespace(
            address=f"{made}/requests", outside=ours, lines=ours.makefile("rb"), raised=raised, threads=threads
        )
        with contextlib.suppress(OSError):
            requests.shutdown(socket.SHUT_RDWR)


def _until_closed(accept: Callable[[socket.socket], None], requests: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the target is done, and its socket closed
        accept(requests)


def _listen(started: Any) -> None:
    with patch.object(programs.os, "_exit", lambda status: None):  # at the end of its starter it would end this process
        started._listen()


def _ask(desk: Any, data: bytes) -> bytes:
    said = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connection.connect(desk.address)
        with contextlib.suppress(OSError):  # what is too long is not heard to its end
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while more := connection.recv(1 << 16):
                said += more
    return said


def run_requests(desk: Any, requests: list[bytes]) -> None:
    for data in requests:
        before = no_x.done[0]
        said = _ask(desk, data)
        if said:
            reply = json.loads(said)
            assert "is" in reply and not reply.get("fatal"), reply
        assert no_x.done[0] - before < MOST_WORK, "a program keeps the screen for itself"
    _goes_on(desk)


def _goes_on(desk: Any) -> None:
    while desk.raised:
        raise desk.raised.pop()
    assert all(thread.is_alive() for thread in desk.threads)
    assert json.loads(_ask(desk, b'{"id": 0, "do": "size", "with": {}}\n'))["is"] == [640, 480]


def make_commands(rng: random.Random) -> dict[str, Any]:
    """What the outside asks: it writes JSON, and what is in it may be anybody's."""
    bounded = [one for one in ASKED if one["do"] != "settle"]
    request = rng.choice([*COMMANDS, *COMMANDS, *bounded])
    arguments = changed(rng, request["with"])
    return {"do": request["do"], "with": arguments if isinstance(arguments, dict) else {}}


def run_commands(desk: Any, request: dict[str, Any]) -> None:
    count = request["with"].get("count", 0)
    if isinstance(count, int | float) and count > 1000:
        return  # the outside's own, and it asks for no such thing
    limit_s = request["with"].get("limit_s", 0)
    if not isinstance(limit_s, int | float) or not limit_s < 100:
        return
    desk.outside.sendall(json.dumps({"id": 5, **request}).encode() + b"\n")
    reply = json.loads(desk.lines.readline())
    assert reply["id"] == 5 and not reply.get("fatal"), reply
    while desk.raised:
        raise desk.raised.pop()


TARGETS = [
    Target("screen-requests", make_requests, run_requests, desktop, ()),
    Target("resident", make_commands, run_commands, desktop, ()),
]
