"""OSWorld's server protocol over a native desktop: `arpo envs serve desktop`.

    server = Server((1920, 1080), port=5000)
    server.address          "127.0.0.1:5000:43101:0:43102", as a provider of OSWorld's client gives it
    server.close()

It listens on this machine's loopback only, and whatever a request asks for happens inside the sandbox. With a token,
a request has to bring it: `Authorization: Bearer TOKEN`, or TOKEN as the password of basic authentication, which
OSWorld's client, unmodified, sends for a host that is in the file $NETRC. Pages in a browser are refused; since a site
may let its own name lead here, a server without a token is called by an address or as localhost and by no other name.
All of that is judged before any of a body is read, and what a client can make large, many or slow has limits (wire.py).

The calls and their answers are OSWorld's, but for two things: a program that is launched is waited for until it shows a
window (the client then sleeps for a fixed time anyway), and `POST /reset` gives a fresh desktop, which is what a
provider does to "revert to a snapshot". The second and fourth port lead to the ports 9222 (the browser's DevTools) and
8080 (VLC's) inside; there is no VNC. They are for programs, too, and not for pages.
"""

import base64
import contextlib
import hmac
import json
import os
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, Self

from arpo.envs.desktop.calls import CALLS, HttpReply, HttpRequest, answer
from arpo.envs.desktop.home import template
from arpo.envs.desktop.needs import refuse_size
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.desktop.wire import (
    HEAD_S,
    HOST,
    PIECE,
    Door,
    Guest,
    Head,
    Held,
    Refused,
    hang_up,
    readable,
    refuse_name,
    refuse_page,
    user_of,
)
from arpo.errors import ArpoError, ConfigError, EnvError

LARGEST_BODY = 256 << 20  # of an upload: no more would fit into the sandbox
LARGEST_TEXT = 4 << 20  # of any other
MOST_HELD = LARGEST_BODY + (64 << 20)  # bodies and replies of all connections
WEIGHT = 64  # bytes of memory that a byte of text takes at most when it is read: a list in a list, 44
MOST_FIELDS = 100  # of a form
LARGEST_PART_HEAD = 8 << 10
RELAY_IDLE_S = 600.0
DEVTOOLS, VLC = 9222, 8080  # ports inside that checkers look at
RESET = ("POST", "/reset")
ACCESSIBLE = {"NO_AT_BRIDGE": "0", "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1"}
FORM, FILES = "application/x-www-form-urlencoded", "multipart/form-data"


class Handler:
    """The requests of one connection, one after the other."""

    def __init__(self, server: "Server", guest: Guest) -> None:
        self._server, self._guest, self._wire = server, guest, guest.wire

    def handle(self) -> None:
        while self._one():
            self._guest.idle()
        self._wire.linger()

    def _one(self) -> bool:
        """A request and its reply. Whether another may follow."""
        whole = keeps = False  # until the body has come, what follows is not known to be another request
        with self._server.held.some() as take:
            try:
                head = self._wire.head()
                if head is None:
                    return False
                self._judge(head)
                self._guest.busy()
                body = self._wire.body(head, take)
                whole, keeps = True, head.keeps
                reply = self._reply(head, body, take)
                del body
                take(len(reply.data))
            except (Refused, ArpoError, ValueError, RecursionError) as error:
                said = str(error)
                reply = answer({"status": "error", "message": said, "error": said}, _status(error))
            more = {"WWW-Authenticate": 'Basic realm="arpo"'} if reply.status == 401 else {}
            self._wire.reply(reply.status, reply.kind, reply.data, more if keeps else more | {"Connection": "close"})
        return whole and keeps

    def _judge(self, head: Head) -> None:
        """By its head alone: of a body that is refused nothing is kept."""
        if not self._allowed(head):
            raise Refused(401, "the token is missing or wrong: send it as Authorization: Bearer TOKEN")
        refuse_page(head)
        if self._server.token is None:
            refuse_name(head)
        if (head.method, head.path) not in CALLS and (head.method, head.path) != RESET:
            raise Refused(404, f"{head.method} {head.path:.80}: is no call of OSWorld's server")
        largest = LARGEST_BODY if _kind(head) == FILES else LARGEST_TEXT
        if head.length > largest:
            raise Refused(413, f"a body of this kind has a Content-Length of at most {largest >> 20} MB")

    def _allowed(self, head: Head) -> bool:
        if self._server.token is None:
            return True
        kind, _, text = head.headers.get("authorization", "").partition(" ")
        value = text.encode("latin-1")
        if kind.lower() == "basic":
            with contextlib.suppress(ValueError):
                value = base64.b64decode(value).partition(b":")[2]
        return hmac.compare_digest(value, self._server.token.encode())

    def _reply(self, head: Head, body: bytearray, take: Callable[[int], None]) -> HttpReply:
        if (head.method, head.path) == RESET:
            self._server.reset()
            return answer({"status": "success"})
        if _kind(head) != FILES:
            take((WEIGHT - 1) * len(body))
        request = HttpRequest(_fields(head, body))
        try:
            return CALLS[head.method, head.path](self._server.sandbox, request)
        except (TypeError, AttributeError) as error:
            raise Refused(400, f"a field of the body is of the wrong kind ({error})") from error


def _status(error: Exception) -> int:
    match error:
        case Refused():
            return error.status
        case EnvError():  # the desktop is lost
            return 503
        case ArpoError():  # there can be none
            return 500
    return 400  # the desktop refused what it was asked


def _kind(head: Head) -> str:
    return head.headers.get("content-type", "").partition(";")[0].strip().lower()


def _fields(head: Head, body: bytearray) -> dict[str, Any]:
    if _kind(head) == FILES:
        return _parts(head.headers["content-type"], body)
    if _kind(head) == FORM:
        return dict(urllib.parse.parse_qsl(body.decode(errors="replace"), max_num_fields=MOST_FIELDS))
    if not body:
        return {}
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body must be a JSON object")
    return fields


def _parts(kind: str, body: bytearray) -> dict[str, Any]:
    """Of a form with files: texts, and the bytes of what has a file name."""
    boundary = re.search(r'boundary="?([^";]{1,70})', kind)  # 70: what the standard allows
    if boundary is None:
        raise Refused(400, "the form has no boundary")
    line = b"--" + boundary[1].encode("latin-1")
    fields: dict[str, Any] = {}
    begin = len(line) if body.startswith(line) else _after(body, b"\r\n" + line, 0)
    for _ in range(MOST_FIELDS):
        if begin < 0 or body.startswith(b"--", begin):
            return fields
        end = body.find(b"\r\n" + line, begin)
        data = _after(body, b"\r\n\r\n", begin, min(end if end >= 0 else len(body), begin + LARGEST_PART_HEAD))
        if data >= 0:
            head = bytes(body[begin:data])
            if name := re.search(rb'\bname="([^"]*)"', head):
                value = bytes(memoryview(body)[data : end if end >= 0 else len(body)])
                is_file = b"filename" in head
                fields[name[1].decode(errors="replace")] = value if is_file else value.decode(errors="replace")
        begin = end + 2 + len(line) if end >= 0 else -1
    raise Refused(400, f"a form has at most {MOST_FIELDS} parts")


def _after(body: bytearray, mark: bytes, begin: int, end: int | None = None) -> int:
    """Where what follows a mark begins; -1 where there is none."""
    found = body.find(mark, begin, end)
    return found if found < 0 else found + len(mark)


class Relay:
    """A port of this machine's loopback that leads to one inside, for programs and not for pages.

    Neither DevTools nor VLC's port knows a token, and OSWorld's client has no way to send one there. Where the server
    has a token, the relay is for programs of the same user instead.
    """

    def __init__(self, server: "Server", inside: int) -> None:
        self._server, self._inside = server, inside
        self.door = Door(0, self._handle)

    def _handle(self, guest: Guest) -> None:
        with contextlib.ExitStack() as ended:
            inside: Inside | None = None
            try:
                if self._server.token is not None and user_of(guest.wire.connection) not in (0, os.geteuid()):
                    raise Refused(403, "with a token, this port is for programs of the server's user")
                while (head := guest.wire.head(HEAD_S if inside is None else RELAY_IDLE_S)) is not None:
                    refuse_page(head)
                    refuse_name(head)
                    length = head.length
                    guest.busy()
                    if inside is None:
                        connection = self._server.sandbox.connect(self._inside)
                        inside = ended.enter_context(Inside(connection, guest.wire.connection))
                    inside.send(head.raw)
                    for piece in guest.wire.pieces(length):
                        inside.send(piece)
                    if "upgrade" in head.headers:  # no HTTP any more, to its end
                        inside.send(guest.wire.rest())
                        inside.pump(guest.wire.connection, inside.connection)
                        break
                if inside is not None:
                    inside.wait()
            except Refused as error:
                if inside is None:  # else a reply may be under way
                    guest.wire.reply(error.status, "text/plain", f"{error}\n".encode(), {"Connection": "close"})
                    guest.wire.linger()
            except (ValueError, EnvError):
                pass  # nothing listens inside: the client sees a connection that closes


class Inside:
    """A connection to the inside, whose replies go out from its beginning on."""

    def __init__(self, connection: socket.socket, outer: socket.socket) -> None:
        connection.settimeout(RELAY_IDLE_S)
        self.connection, self._outer = connection, outer
        self._moved = time.monotonic()  # when something last went either way
        self._back = threading.Thread(target=self._bring_back, daemon=True)
        self._back.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        hang_up(self.connection)
        self._back.join()
        self.connection.close()

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)
        self._moved = time.monotonic()

    def wait(self) -> None:
        """The client sends no more: until the last reply has gone out."""
        self.connection.shutdown(socket.SHUT_WR)
        self._back.join()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Until one of them ends, or nothing has gone either way for too long."""
        with contextlib.suppress(OSError):  # either side may go at any time
            while (left_s := self._moved + RELAY_IDLE_S - time.monotonic()) > 0:
                if readable(source, left_s):
                    if not (data := source.recv(PIECE)):
                        return
                    sink.sendall(data)
                    self._moved = time.monotonic()

    def _bring_back(self) -> None:
        self.pump(self.connection, self._outer)
        hang_up(self._outer)  # wakes who waits for another request


class Server:
    """See the module. Used as a context, it is closed at the end."""

    def __init__(self, size: tuple[int, int], port: int, token: str | None = None, weaker: bool = False) -> None:
        if token is not None and not token.strip():
            raise ConfigError("token=: must not be empty")
        refuse_size(size)
        self.size, self.token, self._weaker = size, token, weaker
        self.held = Held(MOST_HELD)
        self._changing = threading.Lock()
        self._closed = False
        self._doors: list[Door] = []
        self.sandbox = self._fresh()
        try:
            self._doors.append(Door(port, lambda guest: Handler(self, guest).handle()))
            self._doors += [Relay(self, inside).door for inside in (DEVTOOLS, VLC)]
        except OSError as error:
            self.close()
            raise ConfigError(f"port={port}: cannot be used ({error.strerror}); 0 is any that is free") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        server, chromium, vlc = (door.port for door in self._doors)
        return f"{HOST}:{server}:{chromium}:0:{vlc}"

    def reset(self) -> None:
        with self._changing:
            if self._closed:
                raise EnvError("the server is being closed")
            self.sandbox.close()
            self.sandbox = self._fresh()

    def close(self) -> None:
        for door in self._doors:
            door.close()
        with self._changing:
            self._closed = True
            self.sandbox.close()

    def _fresh(self) -> Sandbox:
        sandbox = Sandbox(self.size, template(self.size), self._weaker, "bubblewrap", **ACCESSIBLE)
        sandbox.wait()
        return sandbox


def serve(name: str, size: tuple[int, int], port: int, token: str | None, allow_weaker_sandbox: bool) -> None:
    """The command, until Ctrl-C."""
    if name != "desktop":
        raise ConfigError(f"{name}: cannot be served; only desktop can")
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"port={port}: must be from 0 to 65535")
    with Server(size, port, token, allow_weaker_sandbox) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"a desktop of {size[0]}x{size[1]} for OSWorld's client: {server.address}", flush=True)
        threading.Event().wait()
