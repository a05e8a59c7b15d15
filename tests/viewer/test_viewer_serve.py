"""The server answers its own page, and nobody else, with what the run holds, and nothing else."""

import http.client
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from viewer_runs import EVIL

from arpo.errors import ConfigError
from arpo.viewer.serve import FILES, HOST, MOST, Server, page_file
from arpo.viewer.site import Site

Serve = Callable[..., Server]


def ask(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A request with these headers; `Host` is the server's own unless it is named."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True)
        for name, value in ({"Host": f"127.0.0.1:{server.port}"} | headers).items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def texts(value: Any) -> list[str]:
    """Every text in a JSON value."""
    if isinstance(value, dict):
        return [text for part in value.values() for text in texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []


def test_it_answers_that_it_is_well(runs: Path, serve: Serve) -> None:
    status, _, body = ask(serve(runs / "training"), "/healthz")
    assert (status, body) == (200, b"ok")


def test_more_connections_than_it_has_threads_for_are_closed_and_the_others_served(runs: Path, serve: Serve) -> None:
    server = serve(runs / "training")
    idle = [socket.create_connection((HOST, server.port), timeout=60) for _ in range(MOST)]
    try:
        with socket.create_connection((HOST, server.port), timeout=60) as one_more:
            assert one_more.recv(1) == b""
        idle[0].sendall(f"GET /healthz HTTP/1.1\r\nHost: {HOST}:{server.port}\r\n\r\n".encode())
        assert idle[0].recv(12) == b"HTTP/1.1 200"
    finally:
        for connection in idle:
            connection.close()
    deadline = time.monotonic() + 60
    while True:  # the threads of those that were closed end
        try:
            assert ask(server, "/healthz")[0] == 200
            break
        except (ConnectionError, http.client.HTTPException):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_it_serves_the_page_with_a_strict_policy(runs: Path, serve: Serve) -> None:
    server = serve(runs / "training")
    for path, name in FILES.items():
        status, headers, body = ask(server, f"/{path}")
        assert (status, body) == (200, page_file(name))
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    packed = {path.name for path in (Path(__file__).parents[2] / "src/arpo/viewer/page").iterdir()}
    assert packed == set(FILES.values())


def test_it_serves_data_and_screenshots(runs: Path, serve: Serve) -> None:
    server = serve(runs / "training", runs / "long")
    for path in ("overview", "state", "0/tasks", "1/episodes?score=solved", "0/episode/2/0", "1/group/1"):
        parts = path.split("?")
        status, headers, body = ask(server, "?".join([f"/api/{parts[0]}.json", *parts[1:]]))
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body)
    url = json.loads(ask(server, "/api/0/episode/2/0.json")[2])["moves"][0]["screen"]["url"]
    status, headers, body = ask(server, f"/{url}")
    assert status == 200 and headers["Content-Type"] in ("image/webp", "image/png")
    assert headers["Cache-Control"] == "private, no-cache" and body[:4] in (b"RIFF", b"\x89PNG")


@pytest.mark.attack("run folder")
def test_a_screenshot_that_a_browser_has_kept_is_not_shown_for_another_run(runs: Path, serve: Serve) -> None:
    """A forged one may have the name of another run's, and the next server the same address."""
    server, later = serve(runs / "training"), serve(runs / "training")
    url = json.loads(ask(server, "/api/0/episode/2/0.json")[2])["moves"][0]["screen"]["url"]
    _, headers, image = ask(server, f"/{url}")
    assert ask(server, f"/{url}", If_None_Match=headers["ETag"])[::2] == (304, b"")
    assert ask(later, f"/{url}", If_None_Match=headers["ETag"])[::2] == (200, image)


@pytest.mark.attack("web page")
@pytest.mark.parametrize("path", ["/", "/api/overview.json", "/healthz", "/app.js"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": "127.0.0.1:{port}@evil.example"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
def test_other_sites_get_nothing(runs: Path, serve: Serve, path: str, headers: dict[str, str]) -> None:
    server = serve(runs / "training")
    named = {name: value.format(port=server.port) for name, value in headers.items()}
    status, answered, body = ask(server, path, **named)
    assert status == 403 and b"arpo" not in body.lower() and "Access-Control-Allow-Origin" not in answered


@pytest.mark.attack("web page")
def test_a_page_elsewhere_may_link_here_and_load_nothing(runs: Path, serve: Serve) -> None:
    server = serve(runs / "training")
    assert ask(server, "/", Sec_Fetch_Site="cross-site")[0] == 200
    for path in ("/api/overview.json", "/style.css", "/image/0/00.png"):
        assert ask(server, path, Sec_Fetch_Site="cross-site")[0] == 403
        assert ask(server, path, Sec_Fetch_Site="same-site")[0] == 403
    assert ask(server, "/api/overview.json", Sec_Fetch_Site="same-origin")[0] == 200
    own = f"http://localhost:{server.port}"
    assert ask(server, "/api/overview.json", Host=f"localhost:{server.port}", Origin=own)[0] == 200


@pytest.mark.attack("web page")
@pytest.mark.parametrize(
    "path",
    [
        "/../run.sqlite", "/..%2frun.sqlite", "/run.sqlite", "/api/../../run.sqlite", "/image/0/../../config.yaml",
        "/image/0/%2e%2e.png", "/page/", "/config.yaml", "//etc/passwd", "/api/", "/api/9/tasks.json",
        "/api/0/episode/99/0.json", "/api/0/episode/2/99.json", "/api/-1/tasks.json", "/api/0/group/0.json",
        "/image/0/deadbeef.png", "/image/9/deadbeef.png", f"/image/0/{'a' * 65}.png", "/index.html%00", "/__init__.py",
    ],
)  # fmt: skip
def test_nothing_else_is_there(runs: Path, serve: Serve, path: str) -> None:
    status, headers, body = ask(serve(runs / "training"), path)
    assert status == 404 and headers["Content-Type"] == "application/json"
    assert set(json.loads(body)) == {"error"}


@pytest.mark.attack("web page")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/0/episodes.json?order=nonsense", 422),
        ("/api/0/episodes.json?task=" + "x" * 500, 422),
        ("/api/0/episodes.json?page=" + "9" * 400, 422),
        ("/api/0/episodes.json?page=-1", 422),
        ("/api/0/episodes.json?task=%27%20OR%201=1--", 200),
        ("/api/0/episodes.json?" + "&".join(f"a{i}=1" for i in range(50)), 400),
        ("/api/0/episodes.json?task=" + "x" * 5000, 414),
        ("/" + "x" * 70_000, 414),
    ],
    ids=range(8),
)
def test_a_query_has_bounds(runs: Path, serve: Serve, path: str, status: int) -> None:
    answered, _, body = ask(serve(runs / "training"), path)
    assert answered == status and len(body) < 1000
    if status == 200:
        assert json.loads(body)["total"] == 0


@pytest.mark.attack("web page")
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE", "<script>"])
def test_it_is_only_read(runs: Path, serve: Serve, method: str) -> None:
    status, headers, body = ask(serve(runs / "training"), "/", method)
    assert status == 405 and b"<script>" not in body and headers["Content-Type"].startswith("text/plain")


@pytest.mark.attack("web page")
def test_a_request_has_no_body(runs: Path, serve: Serve) -> None:
    assert ask(serve(runs / "training"), "/", Content_Length="5")[0] == 400


@pytest.mark.attack("run folder")
def test_hostile_text_leaves_as_data(runs: Path, serve: Serve) -> None:
    server = serve(runs / "hostile")
    for path in ("/api/0/episodes.json", "/api/0/episode/1/0.json", "/api/0/tasks.json"):
        status, headers, body = ask(server, path)
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert EVIL in "".join(texts(json.loads(body)))
    query = urllib.parse.urlencode({"task": EVIL})
    assert json.loads(ask(server, f"/api/0/episodes.json?{query}")[2])["total"] == 1


@pytest.mark.attack("run folder")
def test_what_is_no_picture_is_not_served_as_one(runs: Path, serve: Serve, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("INSERT INTO images VALUES ('abcd', 1, 1, CAST('<script>alert(1)</script>' AS BLOB))")
        db.execute("INSERT INTO images VALUES ('abce', 1, 1, '<svg onload=alert(1)>')")
    db.close()
    server = serve(folder)
    assert [ask(server, f"/image/0/{name}.png")[0] for name in ("abcd", "abce")] == [404, 404]


@pytest.mark.attack("run folder")
def test_a_link_in_a_run_is_not_followed(runs: Path, serve: Serve, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    (tmp_path / "secret.json").write_text('{"secret": []}')
    (folder / "tasks.json").unlink()
    (folder / "tasks.json").symlink_to(tmp_path / "secret.json")
    status, _, body = ask(serve(folder), "/api/0/tasks.json")
    assert status == 422 and b"is a link" in body and b"secret" not in body and str(tmp_path).encode() not in body


@pytest.mark.attack("run folder")
@pytest.mark.parametrize("path", ["overview", "state", "0/tasks", "0/episodes", "0/episode/2/0", "0/group/2"])
def test_a_pipe_in_a_run_is_not_waited_for(runs: Path, serve: Serve, tmp_path: Path, path: str) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    (folder / "tasks.json").unlink()
    os.mkfifo(folder / "tasks.json")
    status, _, body = ask(serve(folder), f"/api/{path}.json")
    assert status in (200, 422) and b"is a link, a pipe or a device" in body


@pytest.mark.attack("run folder")
def test_a_screenshot_has_the_type_of_its_bytes(runs: Path, serve: Serve, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    heads = {
        "aa": b"\x89PNG",
        "ab": b"RIFF\0\0\0\0WEBP",
        "ac": b"\xff\xd8\xff",
        "ad": b"RIFF\0\0\0\0WAVE",
        "ae": b"%PDF",
    }
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.executemany("INSERT INTO images VALUES (?, 1, 1, ?)", heads.items())
    db.close()
    server = serve(folder)
    answers = [ask(server, f"/image/0/{name}.gif")[:2] for name in heads]
    kinds = ["image/png", "image/webp", "image/jpeg", "application/json", "application/json"]
    assert [headers["Content-Type"] for _, headers in answers] == kinds
    assert [status for status, _ in answers] == [200] * 3 + [404] * 2
    assert {headers["X-Content-Type-Options"] for _, headers in answers} == {"nosniff"}


def test_a_damaged_run_is_said_and_the_other_still_shown(runs: Path, serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 2000)
    server = serve(tmp_path / "broken", runs / "training")
    broken, whole = json.loads(ask(server, "/api/overview.json")[2])["runs"]
    assert broken["problems"] and whole["episodes"] == 7
    assert ask(server, "/api/0/episodes.json")[0] == 422
    assert ask(server, "/api/state.json")[0] == 200


def test_a_port_in_use_is_one_clear_line(runs: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="is in use or not allowed; --port 0 takes any that is free"):
            Server(Site([runs / "training"]), taken.getsockname()[1])
    with pytest.raises(ConfigError, match="must be from 0 to 65535"):
        Server(Site([runs / "training"]), 10**6)


def test_the_command_prints_its_address_and_ends_when_asked(runs: Path) -> None:
    command = (sys.executable, "-m", "arpo.cli", "view", str(runs / "training"), "--port", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name, address, *_ = process.stdout.readline().split()
        assert name == "training:"
        port = urllib.parse.urlsplit(address).port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok"
        connection.close()
        process.terminate()
        assert process.wait(60) == 0
