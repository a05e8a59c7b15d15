"""Task files come from anybody: what one can try on the disk, the memory and the terminal of who loads it."""

import http.server
import io
import json
import os
import re
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from arpo.config import load_config
from arpo.envs import play
from arpo.envs.desktop import files as files_module
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.needs import refuse
from arpo.errors import ArpoError, EnvError, TaskError
from arpo.tasks import load
from arpo.tasks.load import load_tasks
from arpo.types import Task, to_json
from fake_env import FakeEnv, make_task

pytestmark = [pytest.mark.usefixtures("fake_backend"), pytest.mark.attack("task file")]
HUB = "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\n\u202e\x08"


def listed(folder: Path, ids: Any, task: object = None) -> str:
    """A list, and beside it a file for its first task."""
    path = folder / "list.json"
    path.write_text(json.dumps({"buttons": ids}))
    if task is not None:
        beside = folder / "examples" / "buttons" / f"{ids[0]}.json"
        beside.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(to_json(task) if isinstance(task, Task) else str(task).encode())
    return str(path)


def refused(spec: str) -> str:
    with pytest.raises(TaskError) as error:
        load_tasks("fake", spec)
    said = str(error.value)
    assert said.isprintable() and len(said) <= 2000
    return said


# ---- names


NAMES: list[Any] = [
    "../up", "/etc/cron.d/x", "a/b", "a\\b", "..", ".", "", "a\0b", "a\nb", "a\x1b[2Jb", "a\x7f", "a\x9bb", "a\u202eb",
    "a\u200bb", "a\ud800b", "x" * 10_000, "\U0001f642" * 60, None, 5, True, ["a"], {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_id_that_is_no_plain_name_is_refused(name: Any, tmp_path: Path) -> None:
    assert "is not a name" in refused(listed(tmp_path, [name]))


PAIRS = [("Press", "press"), ("\u00e4", "a\u0308"), ("\ufb01le", "file"), ("\u212a", "k")]


@pytest.mark.parametrize("pair", PAIRS, ids=ascii)
def test_ids_that_some_systems_take_for_one_are_refused(pair: tuple[str, str], tmp_path: Path) -> None:
    assert "is listed twice" in refused(listed(tmp_path, pair))


@pytest.mark.parametrize("task_id", ["-rf", ".bashrc", "a b;id", "..gif", "~", "$(id)", "[bold]x", "\u00e4\u4f60", "-"])
def test_the_picture_of_a_play_has_a_plain_name_in_this_folder(
    task_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = listed(tmp_path, [task_id], make_task(task_id, instruction=f"Press it. {ESCAPES}"))
    monkeypatch.chdir(tmp_path)
    config = load_config(None, ["env.name=fake", "env.size=96x64", f"tasks.source={spec}"])
    play.play_task(config, None, "expert", None)
    (picture,) = tmp_path.glob("*.gif")
    assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.gif", picture.name)
    assert capsys.readouterr().out.replace("\n", "").isprintable()


def test_a_picture_does_not_go_where_a_link_of_its_name_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "target"
    target.write_text("mine")
    (tmp_path / "press-1.gif").symlink_to(target)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArpoError, match="is a link"):
        play.play_task(load_config(None, ["env.name=fake", "env.size=96x64"]), "press-1", "expert", None)
    assert target.read_text() == "mine"


# ---- what is said to a terminal


def test_an_instruction_gives_no_orders_to_the_terminal(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=200, highlight=False)
    task = make_task("press-1", instruction=ESCAPES)
    play.play_by_hand(FakeEnv(), task, 0, [ESCAPES, f"click({ESCAPES})"], tmp_path / "play.gif", console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().replace("\n", "").isprintable()


def test_labels_on_a_screen_give_no_orders_to_the_terminal(tmp_path: Path) -> None:
    class Control:
        kind, label, box, state, value, window = "button", ESCAPES, (30, 20, 50, 40), ("focused",), ESCAPES, ESCAPES

    class Parsing(FakeEnv):
        def parse(self) -> list[Control]:
            return [Control()]

    console = Console(file=io.StringIO(), width=400)
    play.play_by_hand(Parsing(), make_task("press-1"), 0, [], tmp_path / "play.gif", console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "change", [{"id": ESCAPES}, {"env": ESCAPES}, {ESCAPES: 1}, {"split": [ESCAPES]}, {"max_steps": ESCAPES}], ids=ascii
)
def test_a_refusal_gives_no_orders_to_the_terminal(change: dict[str, Any], tmp_path: Path) -> None:
    whole = json.loads(to_json(make_task("mine-1")))
    refused(listed(tmp_path, ["mine-1"], json.dumps(whole | change)))


def test_no_error_of_ours_gives_orders_to_the_terminal() -> None:
    for kind in (ArpoError, TaskError, EnvError):
        assert str(kind(f"{ESCAPES}{'x' * 10_000}")).isprintable()


# ---- files that are none, or have no end


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The place of the file of the task that the list names."""
    listed(tmp_path, ["mine-1"], make_task("mine-1"))
    path = tmp_path / "examples" / "buttons" / "mine-1.json"
    path.unlink()
    return path


def test_a_fifo_is_not_waited_for(beside: Path, tmp_path: Path) -> None:
    os.mkfifo(beside)
    assert "is not a file" in refused(str(tmp_path / "list.json"))


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/tty", "/dev/stdin", "/dev/random"])
def test_a_link_to_a_device_is_not_read(device: str, beside: Path, tmp_path: Path) -> None:
    beside.symlink_to(device)
    refused(str(tmp_path / "list.json"))


def test_what_becomes_a_fifo_after_it_was_looked_at_is_not_waited_for(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some files of a kernel are like this from the beginning."""
    os.mkfifo(beside)
    monkeypatch.setattr(load.stat, "S_ISREG", lambda mode: True)
    refused(str(tmp_path / "list.json"))
    writer = os.open(beside, os.O_RDWR)  # who says nothing
    refused(str(tmp_path / "list.json"))
    os.close(writer)


def test_links_that_lead_in_a_circle_are_refused(beside: Path, tmp_path: Path) -> None:
    beside.symlink_to(beside)
    refused(str(tmp_path / "list.json"))


def test_a_folder_in_a_files_place_is_refused(beside: Path, tmp_path: Path) -> None:
    beside.mkdir()
    refused(str(tmp_path / "list.json"))


def test_a_huge_file_is_not_read(beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with beside.open("wb") as file:
        file.truncate(1 << 40)  # it takes no room on the disk
    monkeypatch.setattr(load, "LARGEST", 1 << 20)
    assert "is larger than 1 MB" in refused(str(tmp_path / "list.json"))


def test_a_list_that_is_a_fifo_or_a_device_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list.json")
    assert "is not a file" in refused(str(tmp_path / "list.json"))
    assert "is not a file" in refused("/dev/zero")


# ---- what JSON can hold


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 5000])
def test_a_number_that_is_none_is_refused(number: str, tmp_path: Path) -> None:
    text = to_json(make_task("mine-1")).decode().replace('"setup":{', f'"setup":{{"x":{number},')
    assert number in text and "not JSON that can be read" in refused(listed(tmp_path, ["mine-1"], text))


@pytest.mark.parametrize("depth", [101, 400, 900, 100_000])
@pytest.mark.parametrize("brackets", [("[", "]"), ('{"a":', "}")])
def test_what_is_nested_deeply_is_refused(depth: int, brackets: tuple[str, str], tmp_path: Path) -> None:
    deep = brackets[0] * depth + "1" + brackets[1] * depth
    text = to_json(make_task("mine-1")).decode().replace('"setup":{', f'"setup":{{"x":{deep},')
    assert refused(listed(tmp_path, ["mine-1"], text))


@pytest.mark.parametrize("steps", [0, -1, 10_001, 10**30, 1.5, "x", None, [5]])
def test_a_number_of_steps_that_would_never_end_is_refused(steps: Any, tmp_path: Path) -> None:
    whole = json.loads(to_json(make_task("mine-1"))) | {"max_steps": steps}
    assert "max_steps" in refused(listed(tmp_path, ["mine-1"], json.dumps(whole)))


def desktop_task(config: Any = (), **evaluator: Any) -> Task:
    usual = {"func": "exact_match", "result": {"type": "vm_command_line", "command": "ls"}}
    rule = {"type": "rule", "rules": {"expected": "a"}}
    return Task("t-1", "os", "Do.", "desktop", {"config": list(config)}, {**usual, "expected": rule, **evaluator}, "x")


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


@pytest.mark.parametrize(
    "task",
    [
        desktop_task([step("download", files=5)]),
        desktop_task([step("download", files=[{"url": 5, "path": "a"}])]),
        desktop_task([step("download", files=[{"url": {}, "path": "a"}])]),
        desktop_task([step("download", files={"url": "a", "path": "b"})]),
        desktop_task(expected={"type": "cloud_file", "path": True, "dest": "b"}),
        desktop_task(expected={"type": "cloud_file", "path": [{}], "dest": "b"}),
        desktop_task(result={"type": "vm_file", "path": 5, "dest": 7}),
        desktop_task(result={"type": "vm_command_line", "command": {"a": 1}}),
        desktop_task(expected={"type": "rule", "rules": 5}),
        desktop_task(func="compare_table", options={"rules": [5]}),
        desktop_task(func="compare_table", options={"rules": [{"type": {}}]}),
        desktop_task(func="check_json", expected={"type": "rule", "rules": {"expect": 5}}),
        desktop_task(func=["exact_match"] * 3),
        desktop_task(func="exact_match" * 100_000),
        desktop_task(func=5),
    ],
    ids=lambda task: str(task.evaluator | task.setup)[:60],
)
def test_parts_of_the_wrong_kind_are_refused(task: Task, tmp_path: Path) -> None:
    with pytest.raises(TaskError) as error:
        refuse(task, {"files": str(tmp_path)})
    assert str(error.value).startswith("t-1: ") and str(error.value).isprintable()


# ---- the files that tasks download


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "files"
    (made / "os").mkdir(parents=True)
    (made / "os" / "a.txt").write_text("open to tasks")
    (tmp_path / "secret.txt").write_text("not open to tasks")
    return made


ADDRESSES = [
    "file:/secret.txt", "file://localhost/etc/passwd", "//../secret.txt", "https://../secret.txt",
    "https://%2e%2e/secret.txt", f"{HUB}/os/..%2f..%2fsecret.txt", f"{HUB}/%252e%252e/secret.txt",
    f"{HUB}/resolve/main/../secret.txt", f"{HUB}/.%2e/secret.txt", f"{HUB}\\..\\secret.txt", f"{HUB}/os/link",
    f"{HUB}/os/up/secret.txt", f"{HUB}/os/chain", f"{HUB}/os/\ud800", f"{HUB}/os/fifo", f"{HUB}/os", f"{HUB}/", "",
    "\0", "?", f"{HUB}/os/a.txt\n/../../secret.txt",
]  # fmt: skip


@pytest.mark.parametrize("url", ADDRESSES, ids=ascii)
def test_no_address_leads_out_of_the_folder_or_is_waited_for(url: str, folder: Path) -> None:
    (folder / "os" / "link").symlink_to("../../secret.txt")
    (folder / "os" / "up").symlink_to("../..")
    (folder / "os" / "chain").symlink_to("link")
    os.mkfifo(folder / "os" / "fifo")
    with pytest.raises(EnvError) as error:
        FileSource(str(folder)).read(url)
    assert str(error.value).isprintable()


def test_a_huge_file_of_the_folder_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "os" / "a.txt").open("wb") as file:
        file.truncate(1 << 40)
    monkeypatch.setattr(files_module, "LARGEST", 1 << 20)
    with pytest.raises(EnvError, match="is larger than 1 MB"):
        FileSource(str(folder)).read(f"{HUB}/os/a.txt")


class Mirror(http.server.BaseHTTPRequestHandler):
    """One that answers badly, each path in a way of its own."""

    def do_GET(self) -> None:
        match self.path.rpartition("/")[2]:
            case "none":
                self.wfile.write(b"not http at all\r\n\r\n")
            case "short":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
            case "heads":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000)
            case "file":
                self.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n")
            case "round":
                self.wfile.write(b"HTTP/1.1 302 Found\r\nLocation: /round\r\n\r\n")
            case "endless":
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(4 << 20))
            case "slow":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
                for _ in range(1000):
                    self.wfile.write(b"x")
                    if self.server.left.wait(0.02):  # type: ignore[attr-defined]
                        return

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def mirror() -> Iterator[str]:
    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        left = threading.Event()

        def handle_error(self, *_: object) -> None: ...

    with Server(("127.0.0.1", 0), Mirror) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.left.set()
        server.shutdown()


@pytest.mark.parametrize("path", ["none", "short", "heads", "file", "round", "endless", "slow"])
def test_a_mirror_that_answers_badly_is_machinery(path: str, mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "LARGEST", 1 << 20)
    monkeypatch.setattr(files_module, "FETCH_S", 0.5)
    with pytest.raises(EnvError) as error:
        FileSource(mirror).read(f"{HUB}/{path}")
    assert str(error.value).isprintable()
