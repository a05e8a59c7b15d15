"""OSWorld's server protocol over a native desktop: `arpo envs serve desktop`.

    server = Server((1920, 1080), port=5000)
    server.address          "127.0.0.1:5000:43101:0:43102", as a provider of OSWorld's client gives it
    server.serve_forever()  until it is shut down

It listens on this machine's loopback only, and whatever a request asks for happens inside the sandbox. With a token,
a request has to bring it: `Authorization: Bearer TOKEN`, or TOKEN as the password of basic authentication, which
OSWorld's client, unmodified, sends for a host that is in the file $NETRC. Pages in a browser are refused; since a site
may let its own name lead here, a server without a token is called by an address or as localhost and by no other name.

The calls and their answers are OSWorld's, but for two things: a program that is launched is waited for until it shows a
window (the client then sleeps for a fixed time anyway), and `POST /reset` gives a fresh desktop, which is what a
provider does to "revert to a snapshot". The second and fourth port lead to the ports 9222 (the browser's DevTools) and
8080 (VLC's) inside; there is no VNC.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import ipaddress
import json
import re
import socket
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NoReturn

from arpo.envs.desktop.calls import CALLS, HttpReply, HttpRequest, Refused, answer
from arpo.envs.desktop.home import template
from arpo.envs.desktop.needs import refuse_size
from arpo.envs.desktop.sandbox import Sandbox
from arpo.errors import ArpoError, ConfigError, EnvError

HOST = "127.0.0.1"
LARGEST_BODY = 256 << 20  # no more would fit into the sandbox
LITTLE = 1 << 16  # bytes
SILENT_S = 60.0  # a client that neither sends nor takes anything for so long is left
DEVTOOLS, VLC = 9222, 8080  # ports inside that checkers look at
ACCESSIBLE = {"NO_AT_BRIDGE": "0", "QT_LINUX_ACCESSIBILITY_ALWAYS_ON": "1"}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = SILENT_S

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_GET

    def _answer(self) -> None:
        try:
            reply = self._reply()
        except (Refused, ArpoError, ValueError) as error:
            reply = answer({"status": "error", "message": str(error), "error": str(error)}, _status(error))
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.data)))
        if reply.status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="arpo"')
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.data)

    def _reply(self) -> HttpReply:
        if not self._allowed():
            self._refuse(401, "the token is missing or wrong: send it as Authorization: Bearer TOKEN")
        if "Origin" in self.headers or self.headers.get("Sec-Fetch-Site", "none") != "none":
            self._refuse(403, "pages in a browser may not use this server")
        if self.server.token is None and not _is_here(self.headers.get("Host", HOST)):
            self._refuse(403, "call this server by its address or as localhost; with a token any name will do")
        body = self._body()
        path = urllib.parse.urlsplit(self.path).path
        if (self.command, path) == ("POST", "/reset"):
            self.server.reset()
            return answer({"status": "success"})
        call = CALLS.get((self.command, path))
        if call is None:
            raise Refused(404, f"{self.command} {path}: is no call of OSWorld's server")
        request = HttpRequest(_fields(self.headers.get("Content-Type", ""), body))
        try:
            return call(self.server.sandbox, request)
        except (TypeError, AttributeError) as error:
            raise Refused(400, f"a field of the body is of the wrong kind ({error})") from error

    def _refuse(self, status: int, message: str) -> NoReturn:
        """Before a body is kept. A little of it is read: who is still sending would miss the reply."""
        self.close_connection = True
        length = self.headers.get("Content-Length", "0")
        self.rfile.read(min(int(length), LITTLE) if length.isdigit() else 0)
        raise Refused(status, message)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdigit() or int(length) > LARGEST_BODY:
            self.close_connection = True  # what follows is not read
            raise Refused(413, f"a request's body has a Content-Length of at most {LARGEST_BODY >> 20} MB")
        return self.rfile.read(int(length))

    def _allowed(self) -> bool:
        if self.server.token is None:
            return True
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind == "Basic":
            with contextlib.suppress(ValueError):
                value = base64.b64decode(value).decode().partition(":")[2]
        return hmac.compare_digest(value.encode(), self.server.token.encode())

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: screenshots come several times a second."""


def _status(error: Exception) -> int:
    match error:
        case Refused():
            return error.status
        case EnvError():  # the desktop is lost
            return 503
        case ArpoError():  # there can be none
            return 500
    return 400  # the desktop refused what it was asked


def _is_here(host: str) -> bool:
    """Whether a request's Host is localhost or an address: to these no site can lead its pages."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return name == "localhost"


def _fields(kind: str, body: bytes) -> dict[str, Any]:
    if kind.startswith("multipart/form-data"):
        return _parts(kind, body)
    if kind.startswith("application/x-www-form-urlencoded"):
        return dict(urllib.parse.parse_qsl(body.decode(errors="replace")))
    if not body:
        return {}
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body must be a JSON object")
    return fields


def _parts(kind: str, body: bytes) -> dict[str, Any]:
    """Of a form with files: texts, and the bytes of what has a file name."""
    boundary = re.search(r'boundary="?([^";]+)', kind)
    if boundary is None:
        raise Refused(400, "the form has no boundary")
    fields: dict[str, Any] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary[1].encode())[1:]:
        head, _, data = part.partition(b"\r\n\r\n")
        name = re.search(rb'\bname="([^"]*)"', head)
        if name is not None:
            fields[name[1].decode()] = data if b"filename" in head else data.decode(errors="replace")
    return fields


class Relay:
    """A port of this machine's loopback that leads to one inside."""

    def __init__(self, server: Server, inside: int) -> None:
        self._server, self._inside = server, inside
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._join, args=(self._listening.accept()[0],), daemon=True).start()

    def _join(self, outer: socket.socket) -> None:
        with outer:
            try:
                inner = self._server.sandbox.connect(self._inside)
            except (ValueError, EnvError):
                return  # nothing listens inside: the client sees a connection that closes
            with inner:
                back = threading.Thread(target=_pump, args=(inner, outer), daemon=True)
                back.start()
                _pump(outer, inner)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):  # either side may go at any time
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


class Server(ThreadingHTTPServer):
    """See the module. Used as a context, it is closed at the end."""

    daemon_threads = True

    def __init__(self, size: tuple[int, int], port: int, token: str | None = None) -> None:
        if token is not None and not token.strip():
            raise ConfigError("token=: must not be empty")
        refuse_size(size)
        self.size, self.token = size, token
        self._changing = threading.Lock()
        self._relays: list[Relay] = []
        self.sandbox = self._fresh()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:  # it has closed itself
            raise ConfigError(f"port={port}: cannot be used ({error.strerror}); 0 is any that is free") from error
        self._relays += [Relay(self, inside) for inside in (DEVTOOLS, VLC)]

    @property
    def address(self) -> str:
        chromium, vlc = (relay.port for relay in self._relays)
        return f"{HOST}:{self.server_port}:{chromium}:0:{vlc}"

    def reset(self) -> None:
        with self._changing:
            self.sandbox.close()
            self.sandbox = self._fresh()

    def server_close(self) -> None:
        super().server_close()
        for relay in self._relays:
            relay.close()
        with self._changing:
            self.sandbox.close()

    def _fresh(self) -> Sandbox:
        sandbox = Sandbox(self.size, template(self.size), **ACCESSIBLE)
        sandbox.wait()
        return sandbox


def serve(name: str, size: tuple[int, int], port: int, token: str | None) -> None:
    """The command, until Ctrl-C."""
    if name != "desktop":
        raise ConfigError(f"{name}: cannot be served; only desktop can")
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"port={port}: must be from 0 to 65535")
    with Server(size, port, token) as server, contextlib.suppress(KeyboardInterrupt):
        print(f"a desktop of {size[0]}x{size[1]} for OSWorld's client: {server.address}", flush=True)
        server.serve_forever()
