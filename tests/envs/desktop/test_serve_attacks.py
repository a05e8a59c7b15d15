"""What clients that mean no good can do to the server's ports. There is no desktop behind them: none is needed."""

import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from arpo.envs.desktop import serve, wire
from arpo.envs.desktop.sandbox import Ran
from arpo.envs.desktop.serve import Server

TOKEN = "s3cret"
WAIT_S = 30.0
RUN = b'{"command": ["true"]}'


class FakeSandbox:
    """Does nothing, and remembers what it was asked. Its ports echo what comes, after a line of their own."""

    size = (1280, 720)

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ports: list[socket.socket] = []

    def run(self, argv: Any, *_: Any, **__: Any) -> Ran:
        self.asked.append(argv)
        return Ran(0, "", "", False)

    def write(self, path: str, data: bytes) -> None:
        self.asked.append((path, bytes(data)))

    def connect(self, port: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.ports.append(theirs)
        return ours

    def close(self) -> None:
        for port in self.ports:
            port.close()


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, token: str | None) -> Iterator[Server]:
    monkeypatch.setattr(Server, "_fresh", lambda self: FakeSandbox())
    with Server((1280, 720), 0, token) as server:
        yield server


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(monkeypatch, None) as server:
        yield server


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One that wants a token."""
    with serving(monkeypatch, TOKEN) as server:
        yield server


def fake(server: Server) -> FakeSandbox:
    assert isinstance(server.sandbox, FakeSandbox)
    return server.sandbox


def reached(server: Server, which: int = 0) -> socket.socket:
    """A connection to one of its three ports."""
    ports = server.address.split(":")
    return socket.create_connection(("127.0.0.1", int(ports[(1, 2, 4)[which]])), timeout=WAIT_S)


def said(server: Server, sent: bytes, which: int = 0) -> bytes:
    """All that it answers until it closes."""
    with reached(server, which) as connection:
        with contextlib.suppress(OSError):
            connection.sendall(sent)
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                data += piece
        return data


def request(body: bytes = RUN, path: str = "/execute", close: bool = True, **headers: str) -> bytes:
    named = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **({"Connection": "close"} if close else {})}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def status(reply: bytes) -> int:
    return int(reply.split()[1])


def bearer(token: str = TOKEN) -> str:
    return f"Bearer {token}"


def test_a_plain_request_gets_through(server: Server, locked: Server) -> None:
    assert status(said(server, request())) == 200 and fake(server).asked == [["true"]]
    assert status(said(locked, request(Authorization=bearer()))) == 200


def test_a_connection_is_kept_for_another_request(server: Server) -> None:
    both = said(server, request(close=False) + request())
    assert both.count(b"HTTP/1.1 200 OK") == 2 and len(fake(server).asked) == 2


# ---- bodies


@pytest.mark.attack("local user")
def test_a_body_without_the_token_is_refused_before_any_of_it_is_sent(locked: Server) -> None:
    head = request(b"", path="/setup/upload", Content_Length=str(200 << 20))
    assert status(said(locked, head)) == 401
    assert locked.held.now == 0


@pytest.mark.attack("local user")
def test_half_sent_bodies_hold_no_more_than_the_limit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.held, "most", 8 << 20)
    head = request(b"", path="/setup/upload", Content_Length=str(200 << 20), Content_Type="multipart/form-data")
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(reached(server)) for _ in range(16)]
        for one in many:
            one.sendall(head)
            with contextlib.suppress(OSError):
                one.sendall(bytes(2 << 20))
        wait_until(lambda: sum(wire.readable(one, 0) for one in many) >= 12)  # those that are not can hold 2 MB each
        replies = [one.recv(1 << 16) for one in many if wire.readable(one, 0)]
        assert {status(reply) for reply in replies} == {503} and server.held.now <= 8 << 20
    wait_until(lambda: server.held.now == 0)


def wait_until(holds: Any) -> None:
    deadline = threading.Event()
    for _ in range(int(WAIT_S * 100)):
        if holds():
            return
        deadline.wait(0.01)
    raise AssertionError("it did not come to hold")


@pytest.mark.attack("local user")
def test_a_body_that_is_too_long_is_refused_by_its_length_alone(server: Server) -> None:
    for kind, largest in (("multipart/form-data; boundary=b", serve.LARGEST_BODY), ("", serve.LARGEST_TEXT)):
        head = request(b"", path="/setup/upload", Content_Length=str(largest + 1), Content_Type=kind)
        assert status(said(server, head)) == 413


@pytest.mark.attack("local user")
def test_a_body_that_trickles_is_not_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BODY_S", 0.3)
    with reached(server) as connection:
        connection.sendall(request(b"", Content_Length="100000"))
        trickle(connection)
        assert status(connection.recv(1 << 16)) == 408
    assert not fake(server).asked


def trickle(connection: socket.socket) -> None:
    """A byte now and then, until there is an answer."""
    with contextlib.suppress(OSError):
        while not wire.readable(connection, 0.02):
            connection.sendall(b"x")


@pytest.mark.attack("local user")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_head_that_trickles_is_not_waited_for(server: Server, which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HEAD_S", 0.3)
    with reached(server, which) as connection:
        connection.sendall(b"GET /screenshot HTTP/1.1\r\nX: ")
        trickle(connection)
        assert status(connection.recv(1 << 16)) == 408


@pytest.mark.attack("local user")
def test_a_client_that_says_nothing_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.Wire.head, "__defaults__", (0.1,))
    with reached(server) as connection:
        assert connection.recv(1) == b""


@pytest.mark.attack("local user")
def test_json_that_grows_in_memory_counts_for_what_it_may_become(server: Server) -> None:
    small = b'{"a": [' + b"[]," * 1000 + b"[]]}"
    assert status(said(server, request(small))) == 400  # command: must be a text
    server.held.most = 1 << 20
    large = b'{"a": [' + b"[]," * 30_000 + b"[]]}"
    assert status(said(server, request(large))) == 503


# ---- connections


@pytest.mark.attack("local user")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_strangers_give_way_to_who_comes_after_them(server: Server, which: int) -> None:
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(reached(server, which)) for _ in range(wire.MOST_STRANGERS + 20)]
        assert all(one.recv(1) == b"" for one in many[:20]), "the first that came are left"
        door = server._doors[which]
        wait_until(lambda: len(door.strangers) == wire.MOST_STRANGERS and not door.leaving)
        if which == 0:
            assert status(said(server, request())) == 200


@pytest.mark.attack("local user")
def test_where_all_are_at_work_one_more_is_turned_away(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_GUESTS", 4)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(reached(server)).sendall(request(b"", Content_Length="9"))
        wait_until(lambda: len(server._doors[0].busy) == 4)
        assert status(said(server, request())) == 503
    wait_until(lambda: not server._doors[0].busy)
    assert status(said(server, request())) == 200


@pytest.mark.attack("local user")
def test_connections_that_idle_give_way(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_GUESTS", 4)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            kept = stack.enter_context(reached(server))
            kept.sendall(request(close=False))
            assert status(kept.recv(1 << 16)) == 200
        wait_until(lambda: len(server._doors[0].idle) == 4)
        assert status(said(server, request())) == 200


@pytest.mark.attack("local user")
def test_no_open_files_left_for_a_while_does_not_close_the_port(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = server._doors[0]
    listening, failed = door._listening, threading.Event()

    def accept() -> Any:
        if not failed.is_set():
            failed.set()
            raise OSError(24, "Too many open files")
        return listening.accept()

    door._listening = SimpleNamespace(accept=accept, shutdown=listening.shutdown, close=listening.close)  # type: ignore
    said(server, request())  # taken by the accept that waits already
    assert status(said(server, request())) == 200 and failed.is_set()


# ---- heads


@pytest.mark.attack("local user")
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    ("head", "refused"),
    [
        (b"GET /screenshot\r\n", 400),  # HTTP/0.9
        (b"GET /screenshot HTTP/0.9\r\n\r\n", 400),
        (b"GET /screenshot HTTP/2.0\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET http://127.0.0.1/screenshot HTTP/1.1\r\n\r\n", 400),  # a whole address
        (b"GET  /screenshot HTTP/1.1\r\n\r\n", 400),
        (b"GET /a b HTTP/1.1\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01", 400),  # TLS
        (b"GET / HTTP/1.1\nHost: 127.0.0.1\n\n\r\n\r\n", 400),  # bare line feeds
        (b"GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nName : x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nhost: evil.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 40_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n", 431),
    ],
)
def test_a_head_that_is_not_plain_http_is_refused(server: Server, head: bytes, refused: int, which: int) -> None:
    assert status(said(server, head, which)) == refused
    assert not fake(server).asked and not fake(server).ports


SMUGGLED = b"POST /execute HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.attack("local user")
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        (["Content-Length: 0", "Content-Length: 47"], 400),
        (["Content-Length: 0", "content-length: 0"], 400),
        (["Content-Length: 0, 47"], 400),
        (["Content-Length: +1"], 400),
        (["Content-Length: -1"], 400),
        (["Content-Length: 0x10"], 400),
        (["Content-Length: 1_0"], 400),
        (["Content-Length: \xb2"], 400),
        (["Content-Length: " + "9" * 5000], 400),
        (["Content-Length: "], 400),
        (["Transfer-Encoding: chunked"], 411),
        (["Transfer-Encoding: chunked", "Content-Length: 47"], 411),
        (["Transfer-Encoding: xchunked"], 411),
        (["Transfer-Encoding : chunked"], 400),
        (["Transfer-Encoding: chunked", "Transfer-Encoding: identity"], 400),
    ],
)
def test_a_request_is_not_smuggled_in_another(server: Server, which: int, headers: list[str], refused: int) -> None:
    head = "\r\n".join(["POST /execute HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode("latin-1")
    reply = said(server, head + SMUGGLED, which)
    assert status(reply) == refused and reply.count(b"HTTP/1.1 ") == 1 and b"Connection: close" in reply
    assert not fake(server).asked and not fake(server).ports


@pytest.mark.attack("local user")
@pytest.mark.parametrize(
    "path", ["/%zz", "/%", "/execute%00", "/%65xecute", "//execute", "/execute/", "/../execute", "/;"]
)
def test_a_path_is_taken_as_it_is(server: Server, path: str) -> None:
    assert status(said(server, request(path=path))) == 404 and not fake(server).asked


def test_whoever_expects_to_be_told_to_continue_is_told(server: Server) -> None:
    with reached(server) as connection:
        connection.sendall(request(b"", Content_Length=str(len(RUN)), Expect="100-continue"))
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(RUN)
        assert status(connection.recv(1 << 16)) == 200


@pytest.mark.attack("local user")
def test_whoever_is_refused_is_not_told_to_continue(locked: Server, server: Server) -> None:
    assert status(said(locked, request(b"", Content_Length="9", Expect="100-continue"))) == 401
    assert status(said(server, request(b"", Content_Length=str(1 << 40), Expect="100-continue"))) == 413
    assert status(said(server, request(Expect="a miracle"))) == 417


@pytest.mark.attack("local user")
@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer s3crets",
        "Bearer s3cre",
        "bearer",
        "Basic",
        "Basic !",
        "Basic czNjcmV0",
        "s3cret",
    ]
    + [
        f"Basic {base64.b64encode(text).decode()}" for text in (b"s3cret:", b":", b":s3cre", b"\xff:\xff", b":s3cret\0")
    ],
)
def test_a_token_that_is_not_quite_right_is_refused(locked: Server, value: str) -> None:
    assert status(said(locked, request(Authorization=value))) == 401 and not fake(locked).asked


# ---- bodies that are hard to read


@pytest.mark.attack("local user")
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'{"command": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"command": ' + b"9" * 5000 + b"}",
        b'{"command": NaN}',
        b'{"command": 1e999}',
        b'{"command": ["\\ud800"], "shell": {}}'[:30],
        b'{"command": {"a": "b"}}',
        b'{"command": "unclosed \'"}',
        b"\xff\xfe\x00",
        b"\xef\xbb\xbf{}",
        b"null",
        b'"x"',
        b"{}" * 2,
    ],
)
def test_json_that_is_deep_wrong_or_of_another_kind_is_one_line(server: Server, body: bytes) -> None:
    reply = said(server, request(body))
    line = json.loads(reply.partition(b"\r\n\r\n")[2])["message"]
    assert status(reply) == 400 and line and "\n" not in line
    assert not fake(server).asked


def form(*parts: bytes, boundary: bytes = b"b") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


FIELD = b'Content-Disposition: form-data; name="%s"\r\n\r\n%s'
FILE = b'Content-Disposition: form-data; name="file_data"; filename="x"\r\n\r\n%s'


def upload(server: Server, body: bytes, kind: str = "multipart/form-data; boundary=b") -> int:
    return status(said(server, request(body, path="/setup/upload", Content_Type=kind)))


def test_a_form_with_a_file_is_read(server: Server) -> None:
    data = b"x--b\r\nnot a line of its own\r\n--c\r\n\r\n" + bytes(range(256))
    assert upload(server, form(FIELD % (b"file_path", b"/tmp/x"), FILE % data)) == 200
    assert upload(server, b"preamble\r\n" + form(FIELD % (b"file_path", b"/tmp/x"), FILE % data)) == 200
    assert fake(server).asked == [("/tmp/x", data)] * 2


@pytest.mark.attack("local user")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\r\n--b" * 200_000, "boundary=b"),  # parts without end
        (form(*[FIELD % (b"a", b"")] * 200), "boundary=b"),
        (form(FIELD % (b"file_path", b"/tmp/x")), "boundary=b"),
        (form(FIELD % (b"file_data", b"no file"), FIELD % (b"file_path", b"x")), "boundary=b"),
        (form(b"no head"), "boundary=b"),
        (form(FILE % b"x"), "boundary=b"),
        (b"--b", "boundary=b"),
        (b"", "boundary=b"),
        (form(FILE % b"x"), "boundary="),
        (form(FILE % b"x"), 'boundary=""'),
        (form(FILE % b"x"), ""),
        (form(FILE % b"x"), "boundary=" + "b" * 5000),
        (b"--\r\n--\r\n", "boundary=;"),
    ],
)
def test_a_form_that_is_none_is_refused(server: Server, body: bytes, kind: str) -> None:
    assert upload(server, body, f"multipart/form-data; {kind}") == 400 and not fake(server).asked


@pytest.mark.attack("local user")
def test_a_form_of_a_million_fields_is_refused(server: Server) -> None:
    body, kind = b"&".join([b"a=1"] * 500_000), "application/x-www-form-urlencoded"
    server.held.most = 1 << 40
    assert status(said(server, request(body, path="/file", Content_Type=kind))) == 400


# ---- pages in a browser

PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Host": "evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "localhost.evil.example:9222"},
    {"Host": "evil.example@localhost"},
    {"Host": "localhost@evil.example"},
    {"Host": "evil.example/localhost"},
    {"Host": "[::1"},
    {"Host": "0.0.0.0:9222"},
    {"Host": "[::]:9222"},
    {"Host": ""},
]


def asking(headers: dict[str, str], path: str = "/json/version") -> bytes:
    named = {"Host": "127.0.0.1", **headers}
    return "\r\n".join([f"GET {path} HTTP/1.1", *(f"{key}: {named[key]}" for key in named), "", ""]).encode()


@pytest.mark.attack("web page")
@pytest.mark.parametrize("headers", PAGES, ids=str)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_page_in_a_browser_reaches_no_port(server: Server, which: int, headers: dict[str, str]) -> None:
    assert status(said(server, asking(headers), which)) == 403
    assert not fake(server).asked and not fake(server).ports


@pytest.mark.attack("web page")
def test_a_page_that_opens_a_web_socket_to_devtools_is_refused(server: Server) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": "https://evil.example"}
    assert status(said(server, asking(headers, "/devtools/browser/1"), 1)) == 403 and not fake(server).ports


@pytest.mark.attack("web page")
def test_a_page_gets_nothing_through_a_connection_that_a_program_has_opened(server: Server) -> None:
    """Browsers use connections again: each request on one is judged."""
    with reached(server, 1) as connection:
        connection.sendall(asking({}))
        wait_until(lambda: fake(server).ports)
        (inside,) = fake(server).ports
        inside.settimeout(WAIT_S)
        assert inside.recv(1 << 16) == asking({})
        connection.sendall(asking({"Origin": "http://evil.example"}))
        assert inside.recv(1 << 16) == b"", "nothing of the second request has come"


# ---- relays


def received(connection: socket.socket, n: int) -> bytes:
    """At least n bytes, in as many pieces as they come."""
    data = b""
    while len(data) < n and (piece := connection.recv(1 << 16)):
        data += piece
    return data


def test_a_program_is_led_inside_and_back(server: Server) -> None:
    with reached(server, 1) as connection:
        put = b"PUT /json/new HTTP/1.1\r\nHost: localhost:9222\r\nContent-Length: 3\r\n\r\nabc"
        connection.sendall(put)
        wait_until(lambda: fake(server).ports)
        (inside,) = fake(server).ports
        inside.settimeout(WAIT_S)
        assert received(inside, len(put)) == put
        inside.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        assert connection.recv(1 << 16) == b"HTTP/1.1 200 OK\r\n\r\n"
        upgrade = asking({"Upgrade": "websocket", "Connection": "Upgrade"})
        connection.sendall(upgrade + b"\x81\x00not http")
        assert received(inside, len(upgrade) + 10) == upgrade + b"\x81\x00not http"
        connection.sendall(b"\x00\xff")
        assert inside.recv(1 << 16) == b"\x00\xff"
        inside.close()
        assert connection.recv(1) == b""


@pytest.mark.attack("local user")
def test_a_relayed_connection_on_which_nothing_moves_is_left(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "RELAY_IDLE_S", 0.2)
    for headers in ({}, {"Upgrade": "websocket"}):
        with reached(server, 1) as connection:
            connection.sendall(asking(headers))
            assert connection.recv(1) == b""
    wait_until(lambda: not server._doors[1].busy)


ASK = """
import socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=30)
connection.sendall(b"GET /json HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n\\r\\n")
print(connection.recv(99).split()[1].decode())
"""


@pytest.mark.attack("local user")
def test_with_a_token_a_relay_is_closed_to_other_users(locked: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    port = locked.address.split(":")[2]
    other: dict[str, Any] = {"user": 54321, "group": 54321, "extra_groups": []} if os.geteuid() == 0 else {}
    if not other:  # then this process is the other user
        monkeypatch.setattr(serve.os, "geteuid", lambda: 54321)
    python = Path("/usr/bin/python3") if other else Path(sys.executable)
    ran = subprocess.run([python, "-c", ASK, port], cwd="/", capture_output=True, text=True, **other)
    assert ran.stdout == "403\n" and not fake(locked).ports, ran.stderr


def test_with_a_token_a_relay_is_open_to_the_same_user(locked: Server) -> None:
    with reached(locked, 1) as connection:
        assert wire.user_of(connection) == os.geteuid()
        connection.sendall(asking({}))
        wait_until(lambda: fake(locked).ports)


@pytest.mark.attack("local user")
def test_who_has_closed_its_end_is_not_taken_for_root(locked: Server) -> None:
    """The kernel lists sockets that are closed as root's."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = socket.create_connection(listening.getsockname())
        here, _ = listening.accept()
        with here:
            assert wire.user_of(here) == os.geteuid()
            there.close()
            assert wire.user_of(here) is None
