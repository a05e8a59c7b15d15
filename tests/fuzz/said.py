"""What the inside of a sandbox says, as the outside hears it: the resident process, and the processes of checkers."""

import contextlib
import io
import itertools
import json
import os
import random
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from arpo.envs import client_process
from arpo.envs.client_process import ClientProcess, number
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.evaluators import _keep, moved
from arpo.envs.worker import Limits, Unreadable, Worker
from arpo.errors import EnvError
from fuzz import Target
from fuzz.values import anything, as_text, changed, damaged

LONGEST = 60_000  # bytes of one input: what a socket takes before anybody reads
NUMBER = "1f"  # of a question
REPLIES: list[dict[str, Any]] = [
    {"id": 0, "is": None},
    {"id": 0, "is": [640, 480]},
    {"id": 0, "is": None, "passed": True},
    {"id": 0, "error": "ValueError: no", "fatal": False},
    {"id": 0, "error": "the X server is gone", "fatal": True},
    {"id": 7, "is": {"status": 0, "out": "", "err": "", "late": False}},
]
ANSWERS: list[dict[str, Any]] = [
    {"id": NUMBER, "is": [1.0]},
    {"id": NUMBER, "is": [0.5, ["a", "/arpo/tmp/files/a"]], "last": True},
    {"id": NUMBER, "over": "it wants more memory than it may have"},
    {"id": NUMBER, "error": "OSError: no"},
    {"id": NUMBER, "call": "get_file", "arguments": ["/home/user/a.txt"]},
    {"id": NUMBER, "is": "/arpo/tmp/files/a", "files": {"a": "YWJj", "b/c": ""}},
]
WORDS = (
    b"\n",
    b"\n\n",
    b'"id": 0',
    b'{"id": 0, "passed": true}\n',
    b"[" * 2000,
    b'{"a":' * 500,
    b"NaN",
    b"null\n",
    b"[]\n",
)


def _lines(rng: random.Random, honest: list[dict[str, Any]]) -> bytes:
    lines = []
    for _ in range(rng.choice([1, 1, 2, 4])):
        said = changed(rng, rng.choice(honest))
        if rng.random() < 0.05:
            for _ in range(rng.choice([90, 300, 470, 900])):
                said = [said]
            said = {"id": rng.choice([0, NUMBER]), rng.choice(["is", "over", "error", "files"]): said}
        lines.append(as_text(rng, said) if rng.random() < 0.95 else as_text(rng, anything(rng)))
    data = b"\n".join(lines) + b"\n"
    return (damaged(rng, data, 2, WORDS) if rng.random() < 0.3 else data)[:LONGEST]


def make_replies(rng: random.Random) -> tuple[bytes, int]:
    return _lines(rng, REPLIES), rng.choice([0, 0, 1, 1, 3])


class _Hearing:
    """In place of the lock of who sends: when the request is sent, what is there to hear is heard."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.sandbox._listen()


def run_replies(nothing: int, given: tuple[bytes, int]) -> None:
    data, files = given
    sandbox = object.__new__(Sandbox)
    sandbox._connection, theirs = socket.socketpair()
    with sandbox._connection, theirs:
        socket.send_fds(theirs, [data or b"\n"], [nothing] * files)
        theirs.shutdown(socket.SHUT_WR)
        sandbox._numbers, sandbox._pending, sandbox._lost = itertools.count(), {}, False
        sandbox._starting, sandbox._listener = threading.RLock(), threading.main_thread()
        sandbox._was_full, sandbox.group = False, None
        sandbox._sending = _Hearing(sandbox)  # type: ignore[assignment]
        before = len(os.listdir("/proc/self/fd"))
        passed = None
        try:
            passed = sandbox.ask("size", within_s=0.001)
        except ValueError as refused:
            assert str(refused).startswith("size: ")
        assert sandbox._lost and not sandbox._pending
        if isinstance(passed, int) and not isinstance(passed, bool) and len(os.listdir("/proc/self/fd")) > before:
            os.close(passed)
        assert len(os.listdir("/proc/self/fd")) == before, "a file that came with it is left open"


def make_answers(rng: random.Random) -> bytes:
    return _lines(rng, ANSWERS)


@contextlib.contextmanager
def devnull() -> Iterator[int]:
    fd = os.open(os.devnull, os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with (
        tempfile.TemporaryDirectory() as made,
        patch.object(client_process, "end", lambda *_: None),
        patch.object(client_process, "secrets", SimpleNamespace(token_hex=lambda _: NUMBER)),
    ):
        Path(made, "outside.txt").write_text("mine")
        Path(made, "files").mkdir()
        yield Path(made)


def _answer(call: str, arguments: list[Any]) -> Any:
    return {"get_file": "YWJj"}[call] if arguments[0] else None


def run_answers(made: Path, data: bytes) -> None:
    process = object.__new__(ClientProcess)
    process._socket, theirs = socket.socketpair()
    with process._socket, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        process._name, process._rest, process._group = "checkers", bytearray(), None
        process._process = SimpleNamespace(poll=lambda: None, stderr=io.BytesIO())  # type: ignore[assignment]
        process._ours = contextlib.ExitStack()
        worker = Worker(lambda: process)
        try:
            reply = worker.call("its checker", {"metric": "x"}, 5.0, Limits(1, 1.0, 1 << 30, 1 << 15), _answer)
        except Unreadable:
            return  # it scores 0
        _keep(reply.get("files", {}), made / "files")
        values = reply["is"]
        with contextlib.suppress(EnvError):
            number(values, "its checker")
        for value in values if isinstance(values, list) else []:
            assert isinstance(number(value, "its checker"), float)
        json.dumps(moved(values, "/arpo/tmp/files", str(made)))
    assert Path(made, "outside.txt").read_text() == "mine" and len(os.listdir(made)) == 2


TARGETS = [
    Target("resident-says", make_replies, run_replies, devnull, (EnvError,)),
    Target("checkers-say", make_answers, run_answers, folder, (EnvError,)),
]
