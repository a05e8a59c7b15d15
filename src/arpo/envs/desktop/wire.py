"""Requests of HTTP as they come over a connection, with a limit for all that a stranger can make large, many or slow.

    door = Door(5000, handle)           a port of this machine's loopback; each connection is a Guest, in a thread
    head = guest.wire.head(60.0)        the next request's head, read within its limits; None: the connection is over
    refuse_page(head)                   Refused, before any of its body is read
    guest.wire.body(head, held.take)    the body; `held` counts what all connections hold

The form of a request is taken strictly. Whatever two programs might read in two ways is refused and not mended: lines
that end otherwise than in CR LF, folded lines, a length that is given twice, a body in chunks, a whole address in the
place of a path.
"""

import contextlib
import ipaddress
import re
import select
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

HOST = "127.0.0.1"
LARGEST_HEAD = 32 << 10
MOST_HEADERS = 100
HEAD_S, BODY_S = 10.0, 60.0  # within so long all of it must have come, by however small pieces
SILENT_S = 60.0  # a client that begins no other request, or takes nothing of a reply, for so long is left
LINGER_S = 1.0  # who is still sending when it is refused would else miss the reply
MOST_GUESTS, MOST_STRANGERS = 64, 32  # of one port at once; strangers: nothing of them has been let in yet
PIECE = 1 << 16

LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
ONCE = frozenset(
    "authorization connection content-length content-type expect host origin sec-fetch-site transfer-encoding "
    "upgrade".split()
)


class Refused(Exception):
    """What the client asked for cannot be had: an HTTP status and a line."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """All of a request but its body. Names of headers are in small letters."""

    method: str
    path: str
    keeps: bool  # the connection, for another request
    headers: dict[str, str]
    raw: bytes

    @property
    def length(self) -> int:
        """Of its body. Refused where it cannot be known for certain."""
        if "transfer-encoding" in self.headers:
            raise Refused(411, "a body comes with a Content-Length and not in chunks")
        length = self.headers.get("content-length", "0")
        if not re.fullmatch(r"[0-9]{1,15}", length):
            raise Refused(400, f"Content-Length: {length:.40} is no length")
        return int(length)


def parse(raw: bytes) -> Head:
    """From the bytes up to the empty line, that line with them."""
    first, *lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    if (request := LINE.fullmatch(first)) is None:
        raise Refused(400, "the first line must be METHOD /PATH HTTP/1.1")
    if len(lines) > MOST_HEADERS:
        raise Refused(431, f"a request has at most {MOST_HEADERS} headers")
    headers: dict[str, str] = {}
    for line in lines:
        if (header := HEADER.fullmatch(line)) is None:
            raise Refused(400, "a header must be NAME: VALUE")
        name, value = header[1].decode().lower(), header[2].decode("latin-1").rstrip()
        if name in headers and name in ONCE:
            raise Refused(400, f"{name}: is given twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    keeps = request[3] == b"1" and headers.get("connection", "").lower() != "close"
    return Head(request[1].decode(), request[2].decode().partition("?")[0], keeps, headers, raw)


def refuse_page(head: Head) -> None:
    """Pages in a browser may not ask for anything. Programs send neither of these headers."""
    if "origin" in head.headers or head.headers.get("sec-fetch-site", "none") != "none":
        raise Refused(403, "pages in a browser may not use this port")


def refuse_name(head: Head) -> None:
    """A Host that is neither localhost nor an address: a site may let its own name lead its pages here."""
    host = head.headers.get("host", HOST)
    with contextlib.suppress(ValueError):
        name = "" if re.search(r"[@/?#\\\s]", host) else urllib.parse.urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or not ipaddress.ip_address(name).is_unspecified:  # browsers tell less of 0.0.0.0
            return
    raise Refused(403, "call this port by its address or as localhost, and by no other name")


class Wire:
    """A connection, read with deadlines. A thread that only writes to it may do so at the same time."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._rest = bytearray()  # that has come and is not used yet

    def head(self, silent_s: float = SILENT_S) -> Head | None:
        """The next request's; None where none begins within so long."""
        if not self._rest and not self._more(time.monotonic() + silent_s):
            return None
        deadline = time.monotonic() + HEAD_S
        looked = 0
        while (end := self._rest.find(b"\r\n\r\n", max(0, looked - 3), LARGEST_HEAD)) < 0:
            looked = len(self._rest)
            self._refuse_beginning()
            if looked > LARGEST_HEAD:
                raise Refused(431, f"a request's head is at most {LARGEST_HEAD >> 10} kB")
            if not self._more(deadline):
                raise Refused(408, f"the head has not come within {HEAD_S:g} s")
        raw = bytes(self._rest[: end + 4])
        del self._rest[: end + 4]
        return parse(raw)

    def _refuse_beginning(self) -> None:
        """What is no HTTP/1 at all, before it is waited for."""
        end = self._rest.find(b"\n")
        if not self._rest[:1].isupper() or (end >= 0 and not LINE.fullmatch(self._rest[:end].removesuffix(b"\r"))):
            raise Refused(400, "the first line must be METHOD /PATH HTTP/1.1")

    def pieces(self, length: int) -> Iterator[bytes]:
        """A body of so many bytes, as they come."""
        deadline = time.monotonic() + BODY_S
        while length:
            if not self._rest and not self._more(deadline):
                raise Refused(408, f"the body has not come within {BODY_S:g} s")
            piece = bytes(self._rest[:length])
            del self._rest[:length]
            length -= len(piece)
            yield piece

    def body(self, head: Head, take: Callable[[int], None]) -> bytearray:
        """All of it; `take` hears of every byte before it is kept, and may refuse."""
        expected = head.headers.get("expect", "")
        if expected.lower() == "100-continue" and head.length:
            self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif expected:
            raise Refused(417, "Expect: nothing but 100-continue can be expected")
        body = bytearray()
        for piece in self.pieces(head.length):
            take(len(piece))
            body += piece
        return body

    def rest(self) -> bytes:
        """What has come already after the last request."""
        rest = bytes(self._rest)
        self._rest.clear()
        return rest

    def reply(self, status: int, kind: str, data: bytes, more: dict[str, str]) -> None:
        head = {"Content-Type": kind, "Content-Length": str(len(data)), **more}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {head[name]}" for name in head)]
        self.connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        self.connection.sendall(data)

    def linger(self) -> None:
        """After the last reply. What still comes is thrown away for a moment: closed at once, a connection is reset."""
        self.connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + LINGER_S
        while self._more(deadline):
            self._rest.clear()

    def _more(self, deadline: float) -> bool:
        """Whether something has come in time."""
        if not readable(self.connection, deadline - time.monotonic()):
            return False
        data = self.connection.recv(PIECE)
        self._rest += data
        return bool(data)


def readable(connection: socket.socket, seconds: float) -> bool:
    """Whether something, or the end, comes within so long."""
    poll = select.poll()  # not select, which knows the first 1,024 files of a process only
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class Held:
    """How many bytes all connections hold together."""

    def __init__(self, most: int) -> None:
        self.most, self.now = most, 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def some(self) -> Iterator[Callable[[int], None]]:
        """A function that counts more bytes in, until the end of the block; Refused where that would be too many."""
        taken = 0

        def take(size: int) -> None:
            nonlocal taken
            with self._lock:
                if self.now + size > self.most:
                    raise Refused(503, f"at most {self.most >> 20} MB are held at one time; try again")
                self.now += size
                taken += size

        try:
            yield take
        finally:
            with self._lock:
                self.now -= taken


class Guest:
    """One connection. A stranger until something of it is let in; then busy, or idle between requests."""

    def __init__(self, door: "Door", connection: socket.socket) -> None:
        connection.settimeout(SILENT_S)  # for all of what is sent in one go
        self.wire = Wire(connection)
        self._door = door

    def busy(self) -> None:
        self._door.move(self, self._door.busy)

    def idle(self) -> None:
        self._door.move(self, self._door.idle)


class Door:
    """A port, at most so many guests at once. One more takes the place of the stranger that has been there longest, or
    of the guest that has been idle longest; where all are busy, it is turned away.
    """

    def __init__(self, port: int, handle: Callable[[Guest], None]) -> None:
        self._listening = socket.create_server((HOST, port), backlog=MOST_GUESTS)
        self.port: int = self._listening.getsockname()[1]
        self._handle = handle
        self._lock = threading.Lock()
        self.strangers: dict[Guest, None] = {}  # in the order in which they came
        self.idle: dict[Guest, None] = {}
        self.busy: dict[Guest, None] = {}
        self.leaving: dict[Guest, None] = {}
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._listening.close()
        with self._lock:
            for guest in (*self.strangers, *self.idle, *self.busy):
                hang_up(guest.wire.connection)

    def move(self, guest: Guest, place: dict[Guest, None] | None) -> None:
        """To another state; None: it has gone. One that is leaving stays so."""
        with self._lock:
            if place is not None and guest in self.leaving:
                return
            for one in (self.strangers, self.idle, self.busy, self.leaving):
                one.pop(guest, None)
            if place is not None:
                place[guest] = None

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed; or no more open files, for now
                time.sleep(0.05)
                continue
            guest = Guest(self, connection)
            try:
                if not self._let_come(guest):
                    raise RuntimeError("full")
                threading.Thread(target=self._serve, args=(guest,), daemon=True).start()
            except RuntimeError:  # also: the system gives no thread
                self.move(guest, None)
                with contextlib.suppress(OSError):
                    guest.wire.reply(503, "text/plain", b"too many connections\n", {"Connection": "close"})
                connection.close()

    def _let_come(self, guest: Guest) -> bool:
        with self._lock:
            if len(self.leaving) >= MOST_GUESTS:
                return False
            if len(self.strangers) >= MOST_STRANGERS:
                self._send_away(self.strangers)
            elif len(self.strangers) + len(self.idle) + len(self.busy) >= MOST_GUESTS:
                if not self.strangers and not self.idle:
                    return False
                self._send_away(self.strangers or self.idle)
            self.strangers[guest] = None
            return True

    def _send_away(self, place: dict[Guest, None]) -> None:
        """The first of these. Its thread sees the connection end."""
        guest = next(iter(place))
        del place[guest]
        self.leaving[guest] = None
        hang_up(guest.wire.connection)

    def _serve(self, guest: Guest) -> None:
        try:
            with guest.wire.connection, contextlib.suppress(OSError):  # it may go at any time
                self._handle(guest)
        finally:
            self.move(guest, None)


def hang_up(connection: socket.socket) -> None:
    """Who waits for it, in whatever thread, sees its end."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def user_of(connection: socket.socket) -> int | None:
    """Whose program is at the other end of a connection on this machine, by the kernel's own list."""
    here, there = (_as_listed(*name[:2]) for name in (connection.getsockname(), connection.getpeername()))
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                _, local, remote, state, _, _, _, user, *_ = line.split()
                # Established and nothing else: what has been closed is listed as root's.
                if (local[-13:], remote[-13:], state) == (there, here, "01"):
                    return int(user)
    return None


def _as_listed(address: str, port: int) -> str:
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"
