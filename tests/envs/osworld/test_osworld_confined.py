"""OSWorld's client for `osworld`: what it may reach, and tasks that it could never score, without a container.

The machine is the stand-in's program, started on this machine's loopback.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import pickle
import socket
import sqlite3
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arpo.config import load_config
from arpo.envs import evaluators
from arpo.envs.base import settings_of
from arpo.envs.desktop.sandbox import missing
from arpo.envs.osworld.client import Client
from arpo.envs.osworld.env import refuse
from arpo.envs.osworld.machine import PORTS
from arpo.errors import EnvError, TaskError
from arpo.types import Task

HERE = Path(__file__).parent
CLIENT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arpo" / "osworld-client" / "bin" / "python"
SIZE = (320, 200)
RESULT = {"type": "vm_command_line", "command": ["echo", "yes"]}
RULE = {"type": "rule", "rules": {"include": ["yes"], "exclude": []}}
TASK = Task(
    "t",
    "os",
    "say it",
    "osworld",
    {"config": [], "proxy": False},
    {"func": "check_include_exclude", "result": RESULT, "expected": RULE},
    "osworld",
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=f"programs are missing: {missing()}"),
    pytest.mark.skipif(not CLIENT.exists(), reason="OSWorld's client is not installed: make osworld-client"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with contextlib.closing(Client(str(CLIENT))) as client:
        yield client


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[int]:
    """The port of a machine's server; it gives files, too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    program = f"""
import os, standin, sys, urllib.parse
standin.NOTES, run = {str(tmp_path / "notes")!r}, standin.Server.do_POST
def post(self):
    if self.path != "/file":
        return run(self)
    asked = urllib.parse.parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
    self.answer(open(asked["file_path"][0], "rb").read())
standin.Server.do_POST = post
standin.http.server.ThreadingHTTPServer(("127.0.0.1", {port}), standin.Server).serve_forever()
"""
    server = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(HERE)})
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/screenshot").close()
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        yield port
    finally:
        server.terminate()
        server.wait()


def scored(client: Client, port: int, task: Task) -> float:
    client.setup(dict.fromkeys(PORTS, port), SIZE, task)
    return client.evaluate()


def test_a_task_is_prepared_and_scored(client: Client, machine: int) -> None:
    assert scored(client, machine, TASK) == 1.0
    no = {**TASK.evaluator, "result": {**RESULT, "command": ["echo", "no"]}}
    assert scored(client, machine, replace(TASK, evaluator=no)) == 0.0
    several = {"func": ["check_include_exclude"] * 2, "result": [no["result"], RESULT], "expected": [RULE] * 2}
    assert scored(client, machine, replace(TASK, evaluator={**several, "conj": "or"})) == 1.0
    assert scored(client, machine, replace(TASK, evaluator={**several, "conj": "and"})) == 0.0


def test_an_archive_that_leads_out_writes_nothing_to_the_host(client: Client, machine: int, tmp_path: Path) -> None:
    (files := tmp_path / "files").mkdir()
    out = str(tmp_path / "out")

    def pack(name: str, member: str) -> str:
        with tarfile.open(files / name, "w") as tar:
            info = tarfile.TarInfo(member)
            info.size, info.mode = 4, 0o6755
            tar.addfile(info, io.BytesIO(b"same"))
        return str(files / name)

    gold = {"type": "vm_file", "path": pack("gold.tar", "a.txt"), "dest": "gold.tar"}
    for member, leads_out in (("a.txt", False), (out, True), ("../" * 20 + out.lstrip("/"), True), ("a.txt", False)):
        result = {"type": "vm_file", "path": pack("found.tar", member), "dest": "found.tar"}
        evaluator = {"func": "compare_archive", "result": result, "expected": gold}
        assert scored(client, machine, replace(TASK, evaluator=evaluator)) == float(not leads_out)
    assert not Path(out).exists()


def member(name: str, data: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info, data


def no_file(name: str, kind: bytes, to: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info, b""


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> dict[str, str]:
    """A file of the machine, and how it is asked for."""
    with tarfile.open(path, "w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return {"type": "vm_file", "path": str(path), "dest": path.name}


@pytest.mark.attack("agent")
@pytest.mark.parametrize("attack", ["a link to it", "a link to where it is", "written over", "a pipe"])
def test_an_archive_that_leads_to_the_expected_one_scores_0(
    client: Client, machine: int, tmp_path: Path, attack: str
) -> None:
    """Its place beside the agent's own file is known to everybody who reads OSWorld's code."""
    bad = b"what the agent has"
    tar_of(tmp_path / "inner.tar", member("a.txt", bad))
    members = {
        "a link to it": [no_file("a.txt", tarfile.SYMTYPE, "../gold_gold/a.txt")],
        "a link to where it is": [no_file("a.txt", tarfile.SYMTYPE, "/arpo/tmp/files/t/gold_gold/a.txt")],
        "written over": [member("a.txt", bad), member("../gold.tar", (tmp_path / "inner.tar").read_bytes())],
        "a pipe": [no_file("a.txt", tarfile.FIFOTYPE)],
    }[attack]
    gold = tar_of(tmp_path / "gold.tar", member("a.txt", b"what is wanted"))
    found = tar_of(tmp_path / "found.tar", *members)
    evaluator = {"func": "compare_archive", "result": found, "expected": gold}
    assert scored(client, machine, replace(TASK, evaluator=evaluator)) == 0.0
    right = tar_of(tmp_path / "found.tar", member("a.txt", b"what is wanted"))
    assert scored(client, machine, replace(TASK, evaluator={**evaluator, "result": right})) == 1.0


@pytest.mark.attack("agent")
def test_a_book_whose_pages_are_the_expected_ones_does_not_score(client: Client, machine: int, tmp_path: Path) -> None:
    def book(name: str, page: str) -> dict[str, str]:
        with zipfile.ZipFile(tmp_path / name, "w") as packed:
            packed.writestr(page, "<p>wanted</p>")
        return {"type": "vm_file", "path": str(tmp_path / name), "dest": name}

    gold = book("gold.epub", "page.html")
    evaluator = {"func": "compare_epub", "result": book("found.epub", "../gold.epub.dir/page.html"), "expected": gold}
    with pytest.raises(EnvError, match=r"compare_epub failed: .*No such file"):  # no reward and no score
        scored(client, machine, replace(TASK, evaluator=evaluator))
    evaluator["result"] = book("found.epub", "page.html")
    assert scored(client, machine, replace(TASK, evaluator=evaluator)) == 1.0


@pytest.mark.attack("agent")
def test_a_number_in_the_agents_table_is_no_reward_above_1(client: Client, machine: int, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite")) as table:
        table.execute("CREATE TABLE t AS SELECT 1000 AS n")
        table.commit()
    file = {"type": "vm_file", "path": str(tmp_path / "a.sqlite"), "dest": "a.sqlite"}
    rules = {"type": "rule", "rules": {"sql": "SELECT n FROM t"}}
    evaluator = {"func": "run_sqlite3", "result": file, "expected": rules}
    assert scored(client, machine, replace(TASK, evaluator=evaluator)) == 1.0


def test_a_getter_cannot_write_to_the_host_either(client: Client, machine: int, tmp_path: Path) -> None:
    """A getter of OSWorld's writes a file where the task says, in its cache folder or not."""
    (tmp_path / "a").write_text("a")
    evaluator = {
        "func": "check_include_exclude",
        "result": {"type": "vm_file", "path": str(tmp_path / "a"), "dest": str(tmp_path / "out")},
        "expected": RULE,
    }
    with contextlib.suppress(EnvError):
        assert scored(client, machine, replace(TASK, evaluator=evaluator)) == 0.0
    assert not (tmp_path / "out").exists()


def test_files_of_one_task_are_gone_when_the_next_is_prepared(client: Client, machine: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("yes")
    file = {"type": "vm_file", "path": str(tmp_path / "a"), "dest": "kept"}
    first = {"func": "check_include_exclude", "result": RESULT, "expected": RULE}
    keeps = {"func": "exact_match", "result": file, "expected": {"type": "rule", "rules": {"expected": "x"}}}
    assert scored(client, machine, replace(TASK, evaluator=keeps)) == 0.0
    stale = {**first, "result": {"type": "cache_file", "path": "kept"}}
    with pytest.raises(EnvError, match="AssertionError"):  # there is no such file any more
        scored(client, machine, replace(TASK, evaluator=stale))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"func": "exact_mach"}, "t: OSWorld's client has no checker exact_mach; did you mean exact_match?"),
    ({"result": {"type": "vm_fil"}}, "t: OSWorld's client has no checker vm_fil; did you mean vm_file?"),
    ({"expected": {"type": "no_such"}}, "t: OSWorld's client has no checker no_such"),
    ({"func": "compare_audios"}, "t: the metric compare_audios is not used here: docs/osworld-tasks.md says why"),
    ({"func": "check_python_file_by_test_suite"}, "t: the metric check_python_file_by_test_suite is not used here"),
    ({"func": []}, "t: evaluator: Value error, func and result must be one each"),
]


@pytest.mark.parametrize(("change", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_a_task_that_could_never_be_scored_is_refused_at_load(change: dict[str, Any], reason: str) -> None:
    settings = settings_of(load_config(None, ["env.name=osworld", f"env.osworld_python={CLIENT}"]).env)
    refuse(TASK, settings)
    with pytest.raises(TaskError) as refused:
        refuse(replace(TASK, evaluator={**TASK.evaluator, **change}), settings)
    assert str(refused.value).startswith(reason) and "\n" not in str(refused.value)


def test_getters_that_connect_to_the_machine_by_themselves_are_taken_here() -> None:
    settings = {"osworld_python": str(CLIENT)}
    for getter in ("accessibility_tree", "open_tabs_info", "vlc_playing_info"):
        refuse(replace(TASK, evaluator={**TASK.evaluator, "result": {"type": getter}}), settings)


def test_it_may_ask_back_for_nothing_but_a_metric(client: Client) -> None:
    pickled = base64.b64encode(pickle.dumps((("a", {"expected": "a"}), {}))).decode()
    assert client._metric("metric", ["exact_match", pickled, {}]) == 1.0
    with pytest.raises(ValueError, match="there is no 'get_file'"):  # which a conversation makes an EnvError
        client._metric("get_file", ["exact_match", pickled, {}])


def test_pickled_values_reach_metrics_as_they_are() -> None:
    metrics = evaluators.evaluators(str(CLIENT))
    pickled = base64.b64encode(pickle.dumps((({"a": (1, 2)}, {"expected": {"a": (1, 2)}}), {}))).decode()
    assert metrics.score({"metric": "exact_match", "pickled": pickled}, {}) == 1.0
