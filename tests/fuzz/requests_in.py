"""Requests to the server of desktops and to its relays: over real sockets, with nothing but a stand-in behind them."""

import contextlib
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from arpo.envs.desktop import calls, serve, setup, wire
from arpo.envs.desktop.calls import CALLS
from arpo.envs.desktop.sandbox import Ran
from arpo.envs.desktop.serve import Server
from fuzz import Target
from fuzz.values import as_text, changed, damaged

PATHS = [*CALLS, ("POST", "/reset"), ("GET", "/json/version"), ("PUT", "/json/new")]
FIELDS: dict[str, Any] = {
    "command": ["ls", "-l"], "shell": False, "verification": {"window_exists": "a"}, "max_wait_time": 0,
    "check_interval": 0, "code": "1", "script": "true", "timeout": 1, "working_dir": "~", "path": "~/a",
    "file_path": "/a", "window_name": "a", "strict": True, "by_class": False, "app_class_name": "XTerm",
}  # fmt: skip
HEADERS = [
    "Host: 127.0.0.1", "Host: localhost:9222", "Host: evil.example", "Origin: null", "Sec-Fetch-Site: none",
    "Sec-Fetch-Site: cross-site", "Authorization: Bearer s3cret", "Connection: close", "Connection: keep-alive",
    "Expect: 100-continue", "Transfer-Encoding: chunked", "Content-Length: 5", "Upgrade: websocket", "X: y",
]  # fmt: skip
PIECES = (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"\0",
    b": ",
    b" HTTP/1.1\r\n",
    b"Content-Length: 1\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
)
KINDS = ["application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=b", "text/plain", ""]
STATUSES = {100, 200, 400, 401, 403, 404, 408, 411, 413, 417, 431, 500, 503}


def make_body(rng: random.Random, kind: str) -> bytes:
    fields = {name: FIELDS[name] for name in rng.sample(sorted(FIELDS), rng.randrange(6))}
    if kind.startswith("multipart"):
        parts = (f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{fields[name]}\r\n' for name in fields)
        file = '--b\r\nContent-Disposition: form-data; name="file_data"; filename="x"\r\n\r\nabc\r\n--b--\r\n'
        return damaged(
            rng, ("".join(parts) + file).encode(), 3, (b"\r\n--b", b"--", b"\r\n\r\n", b'name="', b"filename")
        )
    if kind.endswith("urlencoded"):
        return damaged(rng, "&".join(f"{name}={fields[name]}" for name in fields).encode(), 3, (b"&", b"=", b"%", b"+"))
    return as_text(rng, changed(rng, fields))


def make_request(rng: random.Random) -> bytes:
    kind, (method, path) = rng.choice(KINDS), rng.choice(PATHS)
    body = make_body(rng, kind)
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {kind}", f"Content-Length: {len(body)}"]
    lines += rng.choices(HEADERS, k=rng.choice([0, 0, 1, 3]))
    head = "\r\n".join([*lines, "", ""]).encode()
    return (damaged(rng, head, 3, PIECES) if rng.random() < 0.5 else head) + body


def make_requests(rng: random.Random) -> list[bytes]:
    """One connection's, in pieces."""
    whole = b"".join(make_request(rng) for _ in range(rng.choice([1, 1, 1, 2, 3])))
    cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.choice([0, 0, 1, 2])))
    return [
        whole[a:b]
        for a, b in zip([0, *cuts], [*cuts, rng.choice([len(whole), len(whole), len(whole) // 2])], strict=True)
    ]


class StandIn:
    """A sandbox that answers all that calls ask, with nothing behind it."""

    size = (32, 24)

    def run(self, argv: Any, *_: Any, **__: Any) -> Ran:
        json.dumps(argv)
        return Ran(0, "'file:///a'", "", False)

    def ask(self, what: str, **arguments: Any) -> Any:
        json.dumps(arguments)
        window = {
            "id": 1,
            "title": "a",
            "active": True,
            "class": "XTerm",
            "name": "xterm",
            "x": 0,
            "y": 0,
            "width": 9,
            "height": 9,
            "pid": 1,
        }
        return [window] if what == "windows" else 0

    def launch(self, argv: Any, *_: Any, **__: Any) -> int:
        return 1

    def read(self, path: str) -> bytes:
        return path.encode()

    def write(self, path: str, data: bytes) -> None:
        assert isinstance(data, bytes)

    def screenshot(self) -> Any:
        return np.zeros((24, 32, 3), np.uint8)

    def connect(self, port: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        threading.Thread(target=_answer, args=(theirs,), daemon=True).start()
        return ours

    def close(self) -> None:
        pass


def _answer(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        while connection.recv(1 << 16):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@contextlib.contextmanager
def serving() -> Iterator[tuple[list[int], list[BaseException]]]:
    """The three ports, and what threads raised."""
    raised: list[BaseException] = []

    def note(arguments: Any) -> None:
        raised.append(arguments.exc_value)

    hours = partial(next, itertools.count(0, 3601))  # nothing is waited for: between two looks, all limits have passed
    with (
        patch.object(Server, "_fresh", lambda self: StandIn()),
        patch.object(threading, "excepthook", note),
        patch.multiple(wire, HEAD_S=5.0, BODY_S=5.0, LINGER_S=0.01),
        patch.multiple(setup, WINDOW_S=0.0, WAIT_S=0.0),
        patch.object(calls, "time", SimpleNamespace(monotonic=hours, monotonic_ns=time.monotonic_ns, sleep=float)),
        Server((640, 480), 0) as server,
    ):
        ports = server.address.split(":")
        yield [int(ports[at]) for at in (1, 2, 4)], raised


def _converse(port: int, pieces: list[bytes]) -> bytes:
    said = b""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        with contextlib.suppress(OSError):  # it may be refused and closed at any time
            for piece in pieces:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 16):
                said += data
    return said


def run_server(served: tuple[list[int], list[BaseException]], pieces: list[bytes]) -> None:
    ports, raised = served
    said = _converse(ports[0], pieces)
    while raised:
        raise raised.pop()
    while said:  # replies, one after the other, and nothing else
        head, _, said = said.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        status = int(lines[0].removeprefix("HTTP/1.1 ").split()[0])
        assert status in STATUSES, status
        if status != 100:
            length = next(int(line.split()[1]) for line in lines if line.startswith("Content-Length: "))
            body, said = said[:length], said[length:]
            assert len(body) == length and b"Traceback" not in body


def run_relay(served: tuple[list[int], list[BaseException]], pieces: list[bytes]) -> None:
    ports, raised = served
    _converse(ports[1], pieces)
    while raised:
        raise raised.pop()


def run_head(_: None, raw: bytes) -> None:
    head = wire.parse(raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
    wire.refuse_page(head)
    wire.refuse_name(head)
    assert 0 <= head.length < 10**15
    assert not any(char in value for value in head.headers.values() for char in "\r\n\0")


def make_fields(rng: random.Random) -> tuple[str, bytes]:
    kind = damaged(rng, rng.choice(KINDS).encode(), 1).decode("latin-1")
    return kind, make_body(rng, kind)


def run_fields(_: None, given: tuple[str, bytes]) -> None:
    kind, body = given
    fields = serve._fields(wire.Head("POST", "/", True, {"content-type": kind}, b""), bytearray(body))
    assert all(isinstance(name, str) for name in fields)


TARGETS = [
    Target("server", make_requests, run_server, serving, ()),
    Target("relay", make_requests, run_relay, serving, ()),
    Target("heads", make_request, run_head, allowed=(wire.Refused,)),
    Target("bodies", make_fields, run_fields, allowed=(wire.Refused, ValueError)),
]
