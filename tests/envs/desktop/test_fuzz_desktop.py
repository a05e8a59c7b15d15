"""Random requests to the resident process of a real desktop, by a program inside; and what the fuzzer has found."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fuzz
from arpo.envs.desktop.checks.judge import judge
from arpo.envs.desktop.sandbox import LOST, Sandbox
from arpo.errors import EnvError
from fuzz import no_x
from fuzz.said import devnull, run_replies
from test_fuzz import SECONDS, TARGETS, no_failures

inside, screen, programs, starter = no_x.modules()


@pytest.mark.heavy
@pytest.mark.desktop
@pytest.mark.attack("agent")
def test_a_desktop_answers_whatever_its_programs_ask_of_it() -> None:
    (target,) = fuzz.targets(["desktop-requests"])
    no_failures(fuzz.fuzz(target, SECONDS / (len(TARGETS) + 1), "heavy"))


def ask(sandbox: Sandbox, text: str) -> str:
    """What a program inside is answered."""
    code = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect('/run/arpo/requests'); "
        "s.sendall(sys.argv[1].encode()); s.shutdown(1); print(s.makefile().read())"
    )
    return sandbox.run(["python3", "-c", code, text]).out.strip()


@pytest.mark.desktop
@pytest.mark.attack("agent")
@pytest.mark.parametrize(
    ("do", "arguments"),
    [
        ("settle", {"limit_s": 1e9, "quiet_s": 1e8, "busy": 0.1}),
        ("scroll", {"x": 1, "y": 1, "button": 5, "count": 10**9}),
        ("click", {"x": 1, "y": 1, "button": 1, "count": 10**9}),
        ("type", {"keysyms": [*range(0x1000100, 0x1000900)]}),
    ],
)
def test_no_program_keeps_the_screen_for_itself(do: str, arguments: dict[str, Any], sandbox: Sandbox) -> None:
    """Else an agent that fails would have no score: the outside would wait in vain, and call that machinery."""
    said = ask(sandbox, json.dumps({"id": 0, "do": do, "with": arguments}) + "\n")
    assert not said or "error" in json.loads(said)
    assert sandbox.ask("pointer")


@pytest.mark.desktop
@pytest.mark.attack("agent")
@pytest.mark.parametrize("text", ["[" * 100_000, '{"id": 0, "do": {}}\n', "\n", "3\n", '{"do": "size", "with": 1}\n'])
def test_no_text_ends_what_answers_programs(text: str, sandbox: Sandbox) -> None:
    ask(sandbox, text)
    assert json.loads(ask(sandbox, '{"id": 0, "do": "size", "with": {}}\n'))["is"] == [*sandbox.size]


@pytest.mark.desktop
def test_more_than_fits_into_one_request_is_typed_and_scrolled_all_the_same(sandbox: Sandbox) -> None:
    code = "import pyautogui; pyautogui.scroll(-250); pyautogui.write('ab' * 150)"
    assert sandbox.run(["python3", "-c", code]).status == 0


def test_a_request_that_comes_in_pieces_is_read_whole() -> None:
    """A program that ends interrupts the starter's wait; half a request would end it, and all programs with it."""
    request = json.dumps({"n": 1, "signal": 0}).encode()
    pieces = [request[:7], request[7:12], request[12:]]
    one = object.__new__(starter.Starter)
    one.connection = SimpleNamespace(recv=lambda size: pieces.pop(0))
    assert one.receive(len(request)) == request


def test_an_answer_that_nobody_waits_for_does_not_end_the_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    asking, starting = socket.socketpair()
    with asking, starting:
        started = programs.Programs(asking)
        started._waiting[3] = answer = Future[dict[str, Any]]()
        starting.sendall(b'{"n": null, "error": "x"}\n{"ended": 9, "status": 0}\n{"n": 3, "pid": 4}\n')
        starting.shutdown(socket.SHUT_WR)
        monkeypatch.setattr(programs.os, "_exit", lambda status: None)
        started._listen()
        os.close(started.nothing)
    assert answer.result(0)["pid"] == 4


@pytest.mark.parametrize(
    ("said", "files"),
    [
        (b'{"id": []}\n', 0),
        (b'{"is": null}\n', 0),
        (b'{"id": 0}\n', 1),
        (b'{"id": 0, "is": null, "passed": true}\n', 0),  # its file got lost: there were too many open
        (b'{"id": 0, "error": "x", "fatal": false, "passed": true}\n', 1),
        (b'{"id": 0, "is": 1}\n{"id": 0, "is": 2}\n', 0),
        (b"3\n", 0),
        (b"[" * 50_000 + b"\n", 0),
        (b'{"id": 9, "is": null, "passed": true}\n', 1),
    ],
)
def test_what_is_no_answer_leaves_nobody_waiting_and_no_file_open(said: bytes, files: int) -> None:
    with devnull() as nothing:
        try:
            run_replies(nothing, (said, files))
        except EnvError as error:
            assert str(LOST["error"]) in str(error)


def test_a_line_without_an_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.envs.desktop.sandbox.LONGEST_REPLY", 1000)
    with devnull() as nothing, pytest.raises(EnvError, match="has ended"):
        run_replies(nothing, (b"x" * 5000 + b'\n{"id": 0, "is": 1}\n', 0))


# Values that go on to OSWorld's metrics.


@pytest.mark.attack("agent")
def test_a_value_that_is_too_deep_scores_0(tmp_path: Path) -> None:
    """Outside it would end the run: whoever walks through it would go too deep."""
    (tmp_path / "p").write_text('{"profile": {"name": ' + "[" * 400 + "]" * 400 + "}}")
    evaluator = {"func": "theirs", "result": {"type": "profile_name"}}
    assert judge(evaluator, {"result": [str(tmp_path / "p")]}, [True]) == [0.0]


@pytest.mark.attack("agent")
def test_bytes_in_the_browsers_history_score_0(tmp_path: Path) -> None:
    """They cannot be sent as JSON: that was a failure of the machinery, and no score."""
    with sqlite3.connect(tmp_path / "h") as db:
        db.execute("CREATE TABLE urls (url, title, last_visit_time)")
        db.execute("INSERT INTO urls VALUES (x'ff', 'a', 1)")
    db.close()
    evaluator = {"func": "theirs", "result": {"type": "history"}}
    assert judge(evaluator, {"result": [str(tmp_path / "h")]}, [True]) == [0.0]


@pytest.mark.attack("agent")
def test_a_list_of_files_that_is_none_scores_0() -> None:
    evaluator = {
        "func": "exact_match",
        "result": {"type": "list_directory", "path": "~/x"},
        "expected": {"type": "rule"},
    }
    assert judge(evaluator, {"result": ["f/a/b\0"], "expected": [{"expected": {}}]}, [False]) == [0.0]
