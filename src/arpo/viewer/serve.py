"""`arpo view`: the page and its answers over HTTP, on this machine's loopback, to be read only.

Nothing is served but the page's own files, which are named here, and what Site answers: no path of a request ever
becomes the name of a file. Pages of other sites get nothing: a request must name this server as its Host (a site may
let its own name lead here), and where a browser says who asks, that must be this page. Whatever a run holds is text to
the page; a strict policy says so to the browser, too. Other users of this machine can look at what is shown.
"""

import errno
import json
import secrets
import signal
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from arpo.errors import ArpoError, ConfigError, printable
from arpo.viewer.episodes import TYPES, Missing
from arpo.viewer.site import Site

HOST = "127.0.0.1"
LONGEST = 2000  # letters of an address
SILENT_S = 30.0  # after which a connection without a request is closed
MOST = 128  # connections at once, each with a thread; a browser opens six
SCRIPTS = ("dom.js", "charts.js", "screen.js", "lists.js", "episode.js", "app.js")
FILES = {"": "index.html", **{name: name for name in ("index.html", "style.css", "icon.svg", *SCRIPTS)}}
KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
NEVER, ASKED = (
    "no-store",
    "private, no-cache",
)  # no-cache: kept, but used only where this server says that it is current


def page_file(name: str) -> bytes:
    """A file of the page, from the package."""
    return (resources.files("arpo") / "viewer" / "page" / name).read_bytes()


class Handler(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "arpo", ""
    timeout = SILENT_S
    server: "Server"

    def do_GET(self) -> None:
        try:
            if not self._refused():
                self._answer()
        except (BrokenPipeError, ConnectionResetError):  # the page has gone on to another step
            self.close_connection = True

    def _refused(self) -> bool:
        headers = self.headers
        hosts, origins = headers.get_all("Host") or [], headers.get_all("Origin") or []
        path = self.path.partition("?")[0]
        if len(hosts) != 1 or hosts[0].lower() not in self.server.names:
            self._text(403, "call this server by its address")
        elif any(origin.lower() not in self.server.origins for origin in origins):
            self._text(403, "other pages may not ask")
        elif path != "/" and headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            self._text(403, "other pages may not ask")  # but they may link to this one
        elif len(self.path) > LONGEST:
            self._text(414, "the address is too long")
        elif headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in headers:
            self._text(400, "a request has no body")
        else:
            return False
        return True

    def _answer(self) -> None:
        path, _, words = self.path.partition("?")
        path = path.removeprefix("/")
        if path == "healthz":
            self._text(200, "ok")
        elif path in FILES:
            name = FILES[path]
            self._send(200, KINDS[name.rpartition(".")[2]], page_file(name), NEVER)
        else:
            self._data(path, words)

    def _data(self, path: str, words: str) -> None:
        try:
            if path.startswith("image/"):
                image, kind = self.server.site.image(path)
                # Under the same address another run was perhaps shown before: what is kept of that is not ours.
                known = self.headers.get("If-None-Match") == self.server.tag
                return self._send(304 if known else 200, TYPES[kind], b"" if known else image, ASKED)
            query = dict(urllib.parse.parse_qsl(words, keep_blank_values=True, max_num_fields=20))
            status, answer = 200, self.server.site.answer(path, query)
        except Missing:
            status, answer = 404, {"error": "there is no such thing in the run"}
        except (ArpoError, OSError) as error:  # what is wrong with a run or a query
            status, answer = 422, {"error": _without_places(self.server.site, error)}
        except ValueError:  # too many words in the query
            status, answer = 400, {"error": "the query cannot be read"}
        self._send(status, "application/json", json.dumps(answer, allow_nan=False).encode(), NEVER)

    def _text(self, status: int, text: str) -> None:
        self._send(status, "text/plain; charset=utf-8", text.encode(), NEVER)

    def _send(self, status: int, kind: str, data: bytes, cache: str) -> None:
        if status not in (200, 304):
            self.close_connection = True
        self.send_response(status)
        for name, value in ALWAYS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        if status != 304:  # which has no body
            self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", cache)
        if cache == ASKED:
            self.send_header("ETag", self.server.tag)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What is no GET, or no HTTP: nothing of it is repeated."""
        self.close_connection = True
        self._text(405 if code == 501 else code, "only GET, and only in the usual form")

    def log_message(self, format: str, *args: Any) -> None:
        """What is asked for is nobody's news."""


class Server(ThreadingHTTPServer):
    """A site on a port of loopback; 0: any that is free."""

    daemon_threads = True

    def __init__(self, site: Site, port: int) -> None:
        self.site, self.tag = site, f'"{secrets.token_hex(8)}"'
        self._free = threading.BoundedSemaphore(MOST)
        try:
            super().__init__((HOST, port), Handler)
        except OverflowError:
            raise ConfigError(f"port={port}: must be from 0 to 65535") from None
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise ConfigError(f"port={port}: is in use or not allowed; --port 0 takes any that is free") from None
            raise
        self.port = self.server_address[1]
        self.names = {f"{name}:{self.port}" for name in (HOST, "localhost")}
        if self.port == 80:  # which browsers leave out
            self.names |= {HOST, "localhost"}
        self.origins = {f"http://{name}" for name in self.names}

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks the network for this machine's name

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def view(folders: Sequence[Path], port: int) -> None:
    """Serve these runs until Ctrl-C or a request to end."""
    with Server(Site(folders), port) as server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        names = ", ".join(look.name for look in server.site.looks)
        print(printable(f"{names}: {server.address} (Ctrl-C ends it)"), flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _without_places(site: Site, error: Exception) -> str:
    said = site.looks[0].said(error)
    for look in site.looks[1:]:
        said = said.replace(str(look.folder), look.name)
    return said
