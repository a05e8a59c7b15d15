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
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
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
        if leads_out:  # no reward and no score: docs/sandbox.md says why
            with pytest.raises(EnvError, match=r"compare_archive failed: .*(Read-only|Permission|No such file)"):
                scored(client, machine, replace(TASK, evaluator=evaluator))
        else:
            assert scored(client, machine, replace(TASK, evaluator=evaluator)) == 1.0
    assert not Path(out).exists()


def test_a_metric_that_hangs_on_the_agents_file_is_no_score(
    client: Client, machine: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        pipe = tarfile.TarInfo("a.txt")
        pipe.type = tarfile.FIFOTYPE
        tar.addfile(pipe)
    file = {"type": "vm_file", "path": str(tmp_path / "a.tar"), "dest": "a.tar"}
    evaluator = {"func": "compare_archive", "result": file, "expected": {**file, "dest": "gold.tar"}}
    monkeypatch.setattr(evaluators, "METRIC_S", 5.0)
    with pytest.raises(EnvError, match="compare_archive failed: it did not answer within 5 s"):
        scored(client, machine, replace(TASK, evaluator=evaluator))


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
    assert metrics.score({"metric": "exact_match", "pickled": pickled, "files": {}}) == 1.0
