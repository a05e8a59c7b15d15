"""What an agent's files and programs cannot do to the scorer: take its memory, keep it waiting, or have no score."""

from __future__ import annotations

import bz2
import io
import json
import os
import random
import resource
import sqlite3
import struct
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_checks import FILES, zip_of
from traces import wait_until

from arpo.envs.bubblewrap import NOBODY, USERS
from arpo.envs.desktop import checks, setup
from arpo.envs.desktop.checks import METRICS, chrome, getters, judging, score
from arpo.envs.desktop.checks.judge import LONGEST_VALUES, judge
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.evaluators import Unreadable
from arpo.envs.worker import Worker
from arpo.errors import EnvError
from arpo.types import Task

Start = Callable[..., Sandbox]
Json = dict[str, Any]
HOME = "/home/user"
MEMORY_MB = 200  # of a checker, in these tests
MOST_GROWTH_MB = 150  # of this process
pytestmark = [pytest.mark.desktop, pytest.mark.attack("agent")]


def task_of(func: Any, result: Any, expected: Any = None, **evaluator: Any) -> Task:
    evaluator = {"func": func, "result": result, "expected": expected, **evaluator}
    return Task("t-1", "os", "Do it.", "desktop", {"config": []}, evaluator, "mine")


def rule(rules: Any) -> Json:
    return {"type": "rule", "rules": rules}


def file(name: str) -> Json:
    return {"type": "vm_file", "path": f"{HOME}/{name}", "dest": name}


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test may use up."""
    monkeypatch.setattr(judging, "LIMITS", replace(judging.LIMITS, cpu_s=2, memory=MEMORY_MB << 20))


# Files that become large.


def false_size(name: str, unpacked: int) -> bytes:
    """An archive of one file that is packed by bz2 and said to be of ten bytes."""
    packer = bz2.BZ2Compressor()
    data = b"".join(packer.compress(bytes(1 << 20)) for _ in range(unpacked >> 20)) + packer.flush()
    local = b"PK\3\4" + struct.pack("<HHHHHIIIHH", 46, 0, 12, 0, 0, 0, len(data), 10, len(name), 0) + name.encode()
    entry = struct.pack("<HHHHHHIIIHHHHHII", 46, 46, 0, 12, 0, 0, 0, len(data), 10, len(name), 0, 0, 0, 0, 0, 0)
    central = b"PK\1\2" + entry + name.encode()
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local) + len(data), 0)
    return local + data + central + end


def view(sql: str, folder: Path) -> bytes:
    with sqlite3.connect(folder / "view") as connection:
        connection.execute(f"CREATE VIEW urls AS {sql}")
    connection.close()
    return (folder / "view").read_bytes()


BLOBS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 9000) SELECT zeroblob(1000000) AS url, n AS title, 0 AS last_visit_time FROM c"  # noqa: E501
SLOW = "a" * 40 + "b"
BOMBS: dict[str, tuple[str, Callable[[Path], bytes], Json, Any, Json]] = {
    "a small archive with a false size": (
        "check_paragraphs", lambda _: false_size("word/document.xml", 1 << 28), file("a.docx"), {"expected": ["a"]}, {},
    ),
    "a view of large values": (
        "run_sqlite3", lambda folder: view(BLOBS, folder), file("a.sqlite"), {"sql": "SELECT * FROM urls"}, {},
    ),
    "a history of large values": (
        "check_history_deleted", lambda folder: view(BLOBS, folder), {"type": "history"},
        {"type": "keywords", "keywords": ["x"]}, {},
    ),
    "a long literal": (
        "check_gnome_favorite_apps", lambda _: b"[" + b"'a'," * 1_500_000 + b"]",
        {"type": "vm_command_line", "command": ["cat", "a"]}, {"expected": ["a"]}, {},
    ),
    "a long YAML": (
        "check_json", lambda _: b"[" + b"[],"* 600_000 + b"]", file("a.yaml"),
        {"expect": [{"key": ["a"], "method": "eq", "ref": 1}]}, {"is_yaml": True},
    ),
    "a JSON of empty lists": (
        "check_json", lambda _: b"[" + b"[]," * 3_000_000 + b"0]", file("a.json"),
        {"expect": [{"key": ["a"], "method": "eq", "ref": 1}]}, {},
    ),
    "settings of empty lists": (
        "exact_match", lambda _: b"[" + b"[]," * 3_000_000 + b"0]", {"type": "profile_name"}, {"expected": "x"}, {},
    ),
    "bookmarks of empty lists": (
        "is_expected_bookmarks", lambda _: b"[" + b"[]," * 3_000_000 + b"0]", {"type": "bookmarks"},
        {"type": "bookmark_bar_websites_urls", "urls": ["a"]}, {},
    ),
    "a table of empty rows": (
        "check_csv", lambda _: b"a\n" * 5_000_000, file("a.csv"), {"expect": [{"a": "b"}]}, {},
    ),
    "a spreadsheet of empty cells": (
        "check_cells", lambda _: sheet(b"<c/>" * 2_000_000), file("a.xlsx"), {"A1": 1}, {},
    ),
    "a line for a slow pattern": (
        "check_list", lambda _: SLOW.encode(), file("a.txt"), {"expect": ["(a+)+$"]}, {},
    ),
    "lines that are slow to compare": (
        "diff_text_file", lambda _: b"\n".join(shuffled(2_000)), file("a.txt"), None, {},
    ),
}  # fmt: skip


def shuffled(times: int) -> list[bytes]:
    """Lines of which each occurs so often, one in a hundred: not so often that difflib leaves it out."""
    lines = [b"%d%d%d" % (n // 10, n % 10, n // 10) for n in range(100)]  # the same backwards
    return [line for number in range(times) for line in random.Random(number).sample(lines, 100)]


def sheet(cells: bytes) -> bytes:
    main = b'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    links = b'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
    with zipfile.ZipFile(made := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("xl/workbook.xml", b"<w %s %s><sheet name='a' r:id='a'/></w>" % (main, links))
        packed.writestr("xl/_rels/workbook.xml.rels", b'<a><b Id="a" Target="one.xml"/></a>')
        packed.writestr("xl/one.xml", b"<w %s>%s</w>" % (main, cells))
    return made.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_takes_memory_or_time_without_end_scores_0(
    start: Start, small: None, tmp_path: Path, bomb: str
) -> None:
    metric, make, result, wanted, options = BOMBS[bomb]
    sandbox, data = start(), make(tmp_path)
    sandbox.write(result.get("path", PLACES.get(result["type"], f"{HOME}/a")), data)
    expected = rule(wanted) if wanted is not None else file("a.txt")
    task = task_of(metric, result, expected, options=options)
    if wanted is None:
        sandbox.write(f"{HOME}/b.txt", data[::-1])
        task = task_of(metric, result, file("b.txt"))
    before = peak_mb()
    assert score(sandbox, task, "") == 0.0
    assert peak_mb() - before < MOST_GROWTH_MB, "it was not read here"
    assert score(sandbox, ANSWER, "42") == 1.0


PLACES = {
    getter: f"{HOME}/.config/chromium/Default/{name}"
    for getter, name in (("profile_name", "Preferences"), ("bookmarks", "Bookmarks"), ("history", "History"))
}


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Worker]]:
    """Those of processes that only this test uses."""
    fresh, made = judging.Judges(), []

    def make(start: Any) -> Worker:
        made.append(Worker(start))
        return made[-1]

    monkeypatch.setattr(judging, "Worker", make)
    monkeypatch.setattr(checks, "judges", lambda: fresh)
    yield made
    fresh.close()


ANSWER = task_of("exact_match", {"type": "answer"}, rule({"expected": "42"}))


def test_one_agents_file_does_not_keep_the_others_waiting(
    start: Start, workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds its process to the end of its limits; others have theirs."""
    (sandbox := start()).write(f"{HOME}/a.txt", SLOW.encode())
    slow = task_of("check_list", file("a.txt"), rule({"expect": ["(a+)+$"]}))
    monkeypatch.setattr(judging, "LIMITS", replace(judging.LIMITS, cpu_s=900, limit_s=900.0))
    monkeypatch.setattr(judging, "WAIT_S", 900.0)
    lost: list[BaseException] = []

    def hold() -> None:
        try:
            score(sandbox, slow, "")
        except EnvError as error:
            lost.append(error)

    holding = threading.Thread(target=hold)
    holding.start()
    wait_until(lambda: bool(workers))
    for _ in range(3):
        assert score(sandbox, ANSWER, "42") == 1.0
    workers[0].process.close()
    holding.join()
    assert len(lost) == 1 and len(workers) == 2
    assert score(sandbox, ANSWER, "42") == 1.0


def test_a_lost_process_is_replaced(start: Start, workers: list[Worker]) -> None:
    sandbox = start()
    assert score(sandbox, ANSWER, "42") == 1.0
    workers[0].process.close()
    assert score(sandbox, ANSWER, "42") == 1.0
    assert len(workers) == 1


def test_who_reads_an_agents_files_has_no_network_and_sees_nothing_of_the_host(
    start: Start, workers: list[Worker], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    assert score(start(), ANSWER, "42") == 1.0
    shell = workers[0].process._process.pid
    (inside,) = [pid for bwrap in children(shell) for pid in children(bwrap)]
    for name in ("net", "pid", "ipc", "mnt", "user"):
        assert os.readlink(f"/proc/{inside}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    for path in (tmp_path / "secret", Path("/etc/shadow"), Path(__file__), Path("/var/log")):
        assert not Path(f"/proc/{inside}/root{path}").exists()
    status = Path(f"/proc/{inside}/status").read_text()
    users = {int(user) for user in status.partition("\nUid:")[2].partition("\n")[0].split()}
    assert os.geteuid() != 0 or all(user in USERS or user == NOBODY for user in users)
    assert "\nCapEff:\t0000000000000000\n" in status and "\nNoNewPrivs:\t1\n" in status


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# What the scorer asks of a port.


def answering(sandbox: Sandbox, script: str) -> None:
    """A program in the place of the browser."""
    server = f"""import socket, time
server = socket.create_server(("127.0.0.1", 1337), backlog=0)
open("ready", "w")
def forever(connection):
{script}
while True:
    try: forever(server.accept()[0])
    except OSError: pass
"""
    sandbox.write(f"{HOME}/server.py", server.encode())
    sandbox.launch(["python3", "server.py"])
    assert sandbox.run("until [ -e ready ]; do sleep 0.02; done").status == 0


TABS = json.dumps([{"type": "page", "title": "", "url": "http://a", "id": "1"}])
ENDLESS = {
    "goes on for ever": """
    while True: connection.sendall(b"HTTP/1.1 100 Continue\\r\\n\\r\\n")""",
    "heads without end": """
    connection.sendall(b"HTTP/1.1 200 OK\\r\\n")
    while True: connection.sendall(b"X: y\\r\\n")""",
    "a byte at a time": """
    for byte in b"HTTP/1.1 200 OK\\r\\nContent-Length: 9999\\r\\n\\r\\n" + b"[" * 9999:
        connection.sendall(bytes([byte])); time.sleep(0.1)""",
    "a page without end": """
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 999999\\r\\n\\r\\n")
    while True: connection.sendall(bytes(65536))""",
    "silence": """
    time.sleep(1000)""",
    "a queue that is full": """
    for _ in range(3): socket.create_connection(("127.0.0.1", 1337), 0.2)
    time.sleep(1000)""",
}


@pytest.mark.parametrize("how", ENDLESS)
def test_a_program_in_the_browsers_place_does_not_keep_the_scorer(
    start: Start, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(setup, "WAIT_S", 1.0)
    answering(sandbox := start(), ENDLESS[how])
    tabs = task_of("is_expected_tabs", {"type": "open_tabs_info"}, rule({"type": "url", "urls": ["http://a"]}))
    before = peak_mb()
    assert score(sandbox, tabs, "") == 0.0
    steps = [{"type": "chrome_close_tabs", "parameters": {"urls_to_close": ["http://a"]}}]
    after = task_of("exact_match", {"type": "answer"}, rule({"expected": "42"}), postconfig=steps)
    assert score(sandbox, after, "42") == 1.0, "a step that fails is let be"
    assert peak_mb() - before < MOST_GROWTH_MB


def test_tabs_are_taken_from_the_browser_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = f"HTTP/1.1 200 OK\r\nContent-Length: {len(TABS)}\r\n\r\n{TABS}"
    answering(sandbox := start(), f"    connection.recv(9999); connection.sendall({reply!r}.encode())")
    tabs = task_of("is_expected_tabs", {"type": "open_tabs_info"}, rule({"type": "url", "urls": ["http://a"]}))
    monkeypatch.setattr(chrome, "browser_listens", lambda sandbox: True)
    assert score(sandbox, tabs, "") == 1.0
    monkeypatch.setattr(chrome, "browser_listens", lambda sandbox: False)
    assert score(sandbox, tabs, "") == 0.0
    answers = [True, False]  # it is another one by then
    monkeypatch.setattr(chrome, "browser_listens", lambda sandbox: answers.pop(0))
    assert score(sandbox, tabs, "") == 0.0


# To have no score at all.

ODD: dict[str, tuple[str, bytes, Json, Any, Json]] = {
    "bookmarks that are a number": (
        "is_expected_bookmarks", b'{"roots": {"bookmark_bar": {"children": 7}}}', {"type": "bookmarks"},
        {"type": "bookmark_bar_folders_names", "names": ["a"]}, {},
    ),
    "a folder whose name is a list": (
        "is_expected_bookmarks", b'{"roots": {"bookmark_bar": {"children": [{"type": "folder", "name": []}]}}}',
        {"type": "bookmarks"}, {"type": "bookmark_bar_folders_names", "names": ["a"]}, {},
    ),
    "a size that is a text": (
        "check_font_size", b'{"webkit": {"webprefs": {"default_font_size": "x"}}}', {"type": "chrome_font_size"},
        {"type": "range", "min": 1, "max": 9}, {},
    ),
    "a name that is a number": (
        "is_in_list", b'{"profile": {"name": 7}}', {"type": "profile_name"}, {"expected": "a"}, {},
    ),
    "a literal that cannot be": (
        "check_gnome_favorite_apps", b"{[]: 1}", {"type": "vm_command_line", "command": ["cat", "a"]},
        {"expected": ["a"]}, {},
    ),
    "names and numbers": (
        "check_gnome_favorite_apps", b"['a', 1]", {"type": "vm_command_line", "command": ["cat", "a"]},
        {"expected": ["a"]}, {},
    ),
    "depth in a literal": (
        "check_gnome_favorite_apps", b"-" * 100_000 + b"1", {"type": "vm_command_line", "command": ["cat", "a"]},
        {"expected": ["a"]}, {},
    ),
    "depth in JSON": (
        "check_direct_json_object", b"[" * 100_000, {"type": "vm_command_line", "command": ["cat", "a"]},
        {"expected": {"a": 1}}, {},
    ),
    "a number where a text was expected": (
        "check_direct_json_object", b'{"a": 7}', {"type": "vm_command_line", "command": ["cat", "a"]},
        {"expected": {"a": "7"}, "expect_in_result": True}, {},
    ),
    "a number of 5,000 digits": (
        "check_qt_slider_colours", b"qt-slider-colours=" + b"1" * 5000, file("vlcrc"), {"type": "blackish"}, {},
    ),
    "a time that is none": (
        "check_json", b"a: !!timestamp x", file("a.yaml"), {"expect": [{"key": ["a"], "method": "eq", "ref": 1}]},
        {"is_yaml": True},
    ),
    "a number too long to write": (
        "check_json", b"a: 0x" + b"f" * 9000, file("a.yaml"),
        {"expect": [{"key": ["a"], "method": "re", "ref": "^x"}]}, {"is_yaml": True},
    ),
    "a value that is no number": (
        "run_sqlite3", b"nan", file("a.sqlite"), {"sql": "SELECT 'nan'"}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
def test_what_a_checker_did_not_expect_scores_0_and_is_no_failure_of_the_machinery(start: Start, odd: str) -> None:
    metric, data, result, wanted, options = ODD[odd]
    (sandbox := start()).write(result.get("path", PLACES.get(result["type"], f"{HOME}/a")), data)
    if result["type"] == "chrome_font_size":
        sandbox.write(PLACES["profile_name"], data)
    assert score(sandbox, task_of(metric, result, rule(wanted), options=options), "") == 0.0


def test_to_remove_what_is_compared_with_is_no_way_out(start: Start) -> None:
    (sandbox := start()).write(f"{HOME}/a.txt", b"a")
    sandbox.write(f"{HOME}/b.txt", b"a")
    task = task_of("compare_text_file", file("a.txt"), file("b.txt"))
    assert score(sandbox, task, "") == 1.0
    sandbox.run(["rm", "b.txt"])
    assert score(sandbox, task, "") == 0.0


def test_a_number_in_the_agents_table_is_no_reward_above_1(start: Start, tmp_path: Path) -> None:
    (sandbox := start()).write(f"{HOME}/a.sqlite", view("SELECT 1000 AS n", tmp_path))
    task = task_of("run_sqlite3", file("a.sqlite"), rule({"sql": "SELECT n FROM urls"}))
    assert score(sandbox, task, "") == 1.0


ZOO: list[Any] = [
    7, -1.5, True, "", "x", "[", "{}", [], [1, "a", None], {}, {"a": {"b": []}}, [[]], [{}], {"default_font_size": {}},
    {"bookmark_bar": {"children": [None, 1, {}, {"type": "url", "url": {}}]}}, "1" * 5000, {"expected": 1}, "\0", "'",
]  # fmt: skip
RULES: dict[str, Any] = {
    "exact_match": {"expected": "a"}, "match_in_list": {"expected": ["a"]}, "is_in_list": {"expected": "a"},
    "check_include_exclude": {"include": ["a"], "exclude": ["b"]}, "check_direct_json_object": {"expected": {"a": "b"}},
    "check_gnome_favorite_apps": {"expected": ["a"]}, "check_font_size": {"type": "range", "min": 1, "max": 9},
    "is_expected_bookmarks": {"type": "liked_authors_websites_urls", "urls": ["a"]}, "literal_match": "a",
}  # fmt: skip
TEXTS = {"check_gnome_favorite_apps"}  # of a command: always a text
SIZES = {"check_font_size"}  # always has a size


@pytest.mark.parametrize("metric", RULES)
def test_a_metric_takes_values_of_every_kind(metric: str) -> None:
    for value in ZOO:
        if metric in TEXTS and not isinstance(value, str):
            continue
        if metric in SIZES:
            value = {"default_font_size": value}
        evaluator = {"func": metric, "result": {"type": "answer"}, "expected": rule(RULES[metric])}
        for rules in (RULES[metric], *([RULES[metric] | {"expect_in_result": True}] if "direct" in metric else [])):
            (verdict,) = judge(evaluator, {"result": [value], "expected": [rules]}, [False])
            assert isinstance(verdict, float) and 0.0 <= verdict <= 1.0, value


@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_metric_takes_files_of_every_kind(name: str, tmp_path: Path) -> None:
    known = {one[0]: one[3:] for one in FILES}
    if name not in known:
        return
    wanted, options = known[name]
    for data in (
        b"", b"\xff", b"\0" * 99, b"[" * 999, b"a: !!timestamp x", b"!!bool x", b"{[]: 1}", b"=", b"(" * 9, b"\n" * 9,
        zip_of({"content.xml": "<a/>"}), zip_of({"xl/workbook.xml": "<a/>"}), b"PK\5\6" + bytes(18), b"a,b\n1\n",
    ):  # fmt: skip
        for kind in ("csv", "ods", "xlsx"):
            (path := tmp_path / f"found.{kind}").write_bytes(data)
            evaluator = {"func": name, "result": {"type": "answer"}, "expected": rule(wanted), "options": options}
            (verdict,) = judge(evaluator, {"result": [str(path)], "expected": [wanted]}, [False])
            assert isinstance(verdict, float), data


def test_a_tree_of_too_many_files_is_not_built() -> None:
    with pytest.raises(Unreadable, match="more than 100000 files"):
        getters._tree("f/a\0" * 100_001, "/a")


def test_values_for_osworlds_metrics_have_a_bound(tmp_path: Path) -> None:
    evaluator = {"func": "theirs", "result": {"type": "list_directory", "path": "/a"}}
    long = "".join(f"f/{'x' * 100}{n}\0" for n in range(LONGEST_VALUES // 100))
    assert judge(evaluator, {"result": [long], "expected": [None]}, [True]) == [0.0]
    short = judge(evaluator, {"result": ["f/b\0"], "expected": [None]}, [True])
    assert short == [[{"type": "directory", "name": "a", "children": [{"type": "file", "name": "b"}]}]]


# What an agent leaves in its home.


@pytest.mark.parametrize("how", ["vm_command_line", "postconfig"])
def test_modules_in_the_home_folder_are_not_imported_by_a_checkers_python(start: Start, how: str) -> None:
    sandbox = start()
    sandbox.write(f"{HOME}/json.py", b"print('forged')\ndef dumps(_): return ''\n")
    command = ["python3", "-c", "import json; print(json.dumps('true'))"]
    if how == "vm_command_line":
        task = task_of("exact_match", {"type": how, "command": command}, rule({"expected": "forged\n\n"}))
    else:
        steps = [{"type": "execute", "parameters": {"command": command, "stdout": "kept"}}]
        kept = {"type": "cache_file", "path": "kept"}
        task = task_of("file_contains", kept, rule({"expected": ["forged"]}), postconfig=steps)
    assert score(sandbox, task, "") == 0.0


@pytest.mark.desktop("glib-compile-schemas", "gsettings")
def test_a_schema_of_the_agents_own_does_not_change_what_a_setting_is(start: Start) -> None:
    sandbox = start()
    folder = f"{HOME}/.local/share/glib-2.0/schemas"
    sandbox.run(["mkdir", "-p", folder])
    sandbox.write(
        f"{folder}/a.gschema.xml",
        b"""<schemalist><schema id="org.gnome.desktop.screensaver" path="/org/gnome/desktop/screensaver/">
        <key name="lock-enabled" type="s"><default>'forged'</default></key></schema></schemalist>""",
    )
    assert sandbox.run(["glib-compile-schemas", folder]).status == 0
    get = "gsettings get org.gnome.desktop.screensaver lock-enabled"
    assert sandbox.run(get).out == "'forged'\n", "it would"
    for command in (get.split(), ["sh", "-c", get]):
        asked = {"type": "vm_command_line", "command": command}
        assert score(sandbox, task_of("exact_match", asked, rule({"expected": "true\n"})), "") == 1.0


def test_what_needs_running_programs_comes_before_they_are_stopped_and_all_else_after(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, seen = start(), []
    get = checks._get

    def watched(machine: Any, what: Json, osworld: Any) -> Any:
        seen.append(what["type"] if what["type"] != "vm_command_line" else what["command"])
        return get(machine, what, osworld)

    monkeypatch.setattr(checks, "_get", watched)
    ask = Sandbox.ask

    def heard(sandbox: Sandbox, what: str, *more: Any, **arguments: Any) -> Any:
        if what in ("freeze", "thaw"):
            seen.append(what)
        return ask(sandbox, what, *more, **arguments)

    monkeypatch.setattr(Sandbox, "ask", heard)
    results = [
        {"type": "vm_command_line", "command": "cat a"}, {"type": "open_tabs_info"}, {"type": "vm_terminal_output"},
        {"type": "vm_command_line", "command": "true; xsel -o; true", "shell": True},
    ]  # fmt: skip
    task = task_of(["exact_match"] * 4, results, [rule({"expected": ""})] * 4, conj="or")
    assert score(sandbox, task, "") == 1.0
    live = ["open_tabs_info", "vm_terminal_output", "true; xsel -o; true"]
    assert seen == [*live, "freeze", "cat a", *["rule"] * 4, "thaw"]


def test_a_file_of_the_task_that_is_not_there_is_machinery(start: Start) -> None:
    sandbox = start()
    gold = {"type": "cloud_file", "path": "https://files/a.txt", "dest": "a.txt"}
    with pytest.raises(EnvError, match=r"env\.files is not set"):
        score(sandbox, task_of("compare_text_file", file("a.txt"), gold), "", FileSource())
