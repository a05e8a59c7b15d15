"""Setup steps do what OSWorld's do; one that fails or hangs is machinery, one that is not known is refused early."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from arpo.envs.desktop import setup
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.needs import refuse
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.desktop.setup import finish, prepare
from arpo.errors import EnvError, TaskError
from arpo.types import Task

HUB = "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main"
Start = Callable[..., Sandbox]


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


def task_of(*steps: dict[str, Any], func: str = "exact_match", **evaluator: Any) -> Task:
    result = {"type": "vm_command_line", "command": "cat said", "shell": True}
    evaluator = {"result": result, "expected": {"type": "rule", "rules": {"expected": ""}}} | evaluator
    return Task("t-1", "os", "Do it.", "desktop", {"config": list(steps)}, {"func": func, **evaluator}, "mine")


def titles(sandbox: Sandbox) -> list[str]:
    return [window["title"] for window in sandbox.ask("windows")]


@pytest.mark.desktop
def test_placeholders_are_filled_in_and_both_forms_of_a_command_run(start: Start) -> None:
    sandbox = start()
    placeholders = "{SCREEN_WIDTH} {SCREEN_HEIGHT} {SCREEN_WIDTH_HALF} {SCREEN_HEIGHT_HALF} {CLIENT_PASSWORD}"
    steps = [
        step("execute", command=f"echo '{placeholders}' > said", shell=True),
        step("command", command=["sh", "-c", "echo $USER $(pwd) >> said"]),
        step("execute", command="echo {CLIENT_PASSWORD} | sudo -S sh -c 'echo sudo >> said'", shell="true"),
        step("execute", command=["python", "-c", "import pyautogui; pyautogui.moveTo({SCREEN_WIDTH_HALF}, 7)"]),
        step("sleep", seconds=0),
    ]
    prepare(sandbox, task_of(*steps))
    assert sandbox.read("/home/user/said").decode() == "640 480 320 240 password\nuser /home/user\nsudo\n"
    assert sandbox.ask("pointer") == [320, 7]


@pytest.mark.desktop("xterm")
def test_launch_waits_for_a_window_and_windows_are_activated_and_closed_by_their_names(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = start()
    prepare(sandbox, task_of(step("launch", command=["xterm", "-T", "first one"])))
    assert titles(sandbox) == ["first one"]
    prepare(sandbox, task_of(step("launch", command="xterm -T second", shell=True)))
    prepare(sandbox, task_of(step("activate_window", window_name="first")))
    assert [window["title"] for window in sandbox.ask("windows") if window["active"]] == ["first one"]
    with monkeypatch.context() as patch, pytest.raises(EnvError, match="no window 'first'"):
        patch.setattr(setup, "WAIT_S", 0.2)
        prepare(sandbox, task_of(step("activate_window", window_name="first", strict=True)))
    prepare(sandbox, task_of(step("close_window", window_name="second", strict=True)))
    assert titles(sandbox) == ["first one"]
    prepare(sandbox, task_of(step("close_window", window_name="xterm.XTerm", strict=True, by_class=True)))
    assert titles(sandbox) == []


@pytest.mark.desktop("socat", "xterm")
def test_what_shows_no_window_is_launched_too_and_what_is_ended_has_ended(start: Start) -> None:
    sandbox = start()
    prepare(sandbox, task_of(step("launch", command=["socat", "tcp-listen:9222,fork", "tcp:localhost:1337"])))
    sandbox.connect(9222).close()
    prepare(sandbox, task_of(step("launch", command=["xterm"]), step("launch", command=["pkill", "xterm"])))
    assert sandbox.run(["pgrep", "xterm"]).status == 1
    prepare(sandbox, task_of(step("launch", command=["pkill", "xterm"])))  # there is none to end: no failure
    prepare(sandbox, task_of(step("launch", command="pkill 'xterm'", shell=True)))
    prepare(sandbox, task_of(step("launch", command="pkill xterm; xterm -T new", shell=True)))  # more than an end
    assert titles(sandbox) == ["new"]


@pytest.mark.desktop("socat")
@pytest.mark.parametrize("said", ['[{"type": "page"}]', "7", '["page"]', "[" * 100_000])
def test_what_an_agent_says_in_the_place_of_the_browser_is_no_answer(said: str, start: Start) -> None:
    sandbox = start()
    reply = f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n{said}"
    sandbox.write("/home/user/reply", reply.encode())
    answering = ["socat", "tcp-listen:1337,fork", "system:read line; cat reply; sleep 5"]
    prepare(sandbox, task_of(step("launch", command=answering)))
    with pytest.raises(ValueError, match="answers with something else"):
        setup.open_pages(sandbox)


FAILING: list[tuple[dict[str, Any], str]] = [
    (step("launch", command=["no-such-program"]), "no-such-program"),
    (step("launch", command="exit 3", shell=True), "status 3"),
    (step("execute", command="echo oh dear >&2; false", shell=True), "status 1: oh dear"),
    (step("execute", command=["no-such-program"]), "no-such-program"),
    (step("execute", command="sleep 60", shell=True), "took too long"),
    (step("execute", words=["ls"]), "unexpected keyword argument 'words'"),
    (step("open", path="/home/user/nothing.txt"), "no such file"),
    (step("sleep", seconds=100000), "must be from 0 to 300"),
    (step("close_window", window_name="none"), "no window 'none'"),
    (step("chrome_open_tabs", urls_to_open=["http://localhost"]), "port 1337 does not answer"),
    (step("download", files=[{"url": f"{HUB}/os/a.txt", "path": "/home/user/a.txt"}]), "env.files is not set"),
]


@pytest.mark.desktop
def test_a_step_that_fails_or_hangs_is_machinery_and_the_desktop_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = start()
    monkeypatch.setattr(setup, "COMMAND_S", 8.0)  # the others must have come to their end by then
    monkeypatch.setattr(setup, "WAIT_S", 0.2)
    for bad, reason in FAILING:
        with pytest.raises(EnvError) as failed:
            prepare(sandbox, task_of(bad))
        assert reason in str(failed.value), bad
        assert "\n" not in str(failed.value).strip()
    assert sandbox.run(["echo", "alive"]).out == "alive\n"


@pytest.mark.desktop
def test_in_an_infeasible_task_a_command_may_fail(start: Start) -> None:
    sandbox = start()
    prepare(sandbox, task_of(step("execute", command="su - charles", shell=True), func="infeasible"))
    with pytest.raises(EnvError):
        prepare(sandbox, task_of(step("execute", command="su - charles", shell=True)))


@pytest.mark.desktop
def test_before_scoring_failures_are_let_be_and_output_is_kept(start: Start, tmp_path: Path) -> None:
    sandbox = start()
    last = [
        step("execute", command="false", shell=True),
        step("launch", command=["no-such-program"]),
        step("execute", command="echo kept; echo not this >&2", shell=True, stdout="out.txt"),
    ]
    finish(sandbox, task_of(postconfig=last), tmp_path, FileSource())
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out.txt": "kept\n"}


@pytest.mark.desktop
def test_files_come_from_a_folder_in_either_layout_or_from_a_mirror(start: Start, tmp_path: Path) -> None:
    sandbox, url = start(), f"{HUB}/os/1a/notes%20one.txt"
    folder = tmp_path / "cloned" / "os" / "1a"
    folder.mkdir(parents=True)
    (folder / "notes one.txt").write_text("cloned")
    fetched = tmp_path / "fetched" / HUB.removeprefix("https://") / "os" / "1a"
    fetched.mkdir(parents=True)
    (fetched / "notes one.txt").write_text("fetched")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "cloned"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as mirror:
        threading.Thread(target=mirror.serve_forever).start()
        address = f"http://127.0.0.1:{mirror.server_port}/"
        for where, expected in (
            (tmp_path / "cloned", "cloned"),
            (tmp_path / "fetched", "fetched"),
            (address, "cloned"),
        ):
            download = step("download", files=[{"url": url, "path": "/home/user/deep/down/notes.txt"}])
            prepare(sandbox, task_of(download), FileSource(str(where)))
            assert sandbox.read("/home/user/deep/down/notes.txt").decode() == expected
        with pytest.raises(EnvError, match="404"):
            FileSource(address).read(f"{HUB}/os/none.txt")
        mirror.shutdown()


@pytest.mark.parametrize(
    "url",
    [
        "file://{secret}",
        f"{HUB}/{{secret}}",
        f"{HUB}//{{secret}}",
        f"{HUB}/../secret.txt",
        f"{HUB}/%2e%2e/secret.txt",
        f"{HUB}/%2e%2e%2fsecret.txt",
        f"{HUB}/os/../../secret.txt",
        "https://..//secret.txt",
        f"{HUB}/link.txt",
        f"{HUB}/linked/secret.txt",
        f"{HUB}/os/a.txt%00",
        f"{HUB}/{'long' * 2000}",
        "http://[",
    ],
)
def test_no_address_in_a_task_reads_a_file_outside_the_folder(url: str, tmp_path: Path) -> None:
    folder, secret = tmp_path / "files", tmp_path / "secret.txt"
    (folder / "os").mkdir(parents=True)
    (folder / "os" / "a.txt").write_text("open to tasks")
    secret.write_text("not open to tasks")
    (folder / "link.txt").symlink_to(secret)
    (folder / "linked").symlink_to(tmp_path)
    (folder / "inside.txt").symlink_to(folder / "os" / "a.txt")
    files, url = FileSource(str(folder)), url.format(secret=secret)
    assert files.why_not(url)
    with pytest.raises(EnvError):
        files.read(url)
    with pytest.raises(TaskError, match="needs the file"):
        refuse(task_of(step("download", files=[{"url": url, "path": "/home/user/a"}])), {"files": str(folder)})
    assert files.read(f"{HUB}/inside.txt") == files.read(f"{HUB}/os/a.txt") == b"open to tasks"


def test_a_mirror_is_not_asked_for_what_lies_above_it() -> None:
    assert FileSource("https://mirror.example/files").why_not(f"{HUB}/%2e%2e/secret.txt")


@pytest.mark.desktop("mousepad", "gio")
def test_a_file_is_opened_with_the_program_of_its_kind(start: Start) -> None:
    sandbox = start()
    sandbox.write("/home/user/list.txt", b"milk")
    prepare(sandbox, task_of(step("open", path="/home/user/list.txt")))
    assert any("list" in title for title in titles(sandbox))


@pytest.mark.slow
@pytest.mark.desktop("chromium", "socat")
def test_tabs_are_opened_and_closed(start: Start) -> None:
    sandbox = start()
    pages = [f"file:///home/user/{name}.html" for name in ("one", "two", "three")]
    for page in pages:
        sandbox.write(page.removeprefix("file://"), b"<title>page</title>")
    steps = [
        step("launch", command=["google-chrome", "--remote-debugging-port=1337"]),
        step("chrome_open_tabs", urls_to_open=pages),
        step("chrome_close_tabs", urls_to_close=[pages[1]]),
    ]
    prepare(sandbox, task_of(*steps))
    shown = setup.open_pages(sandbox)
    assert sorted(page["url"] for page in shown) == sorted([pages[0], pages[2]])


def test_a_task_is_refused_by_the_names_of_what_is_missing(tmp_path: Path) -> None:
    unknown = task_of(step("googledrive", a=1), step("login"), postconfig=[step("replay")])
    with pytest.raises(TaskError, match=r"^t-1: this environment lacks its setup steps googledrive, login, replay$"):
        refuse(unknown, {})
    file = step("download", files=[{"url": f"{HUB}/os/a.txt", "path": "/home/user/a.txt"}])
    with pytest.raises(TaskError, match=r"^t-1: the setup step execute: got an unexpected keyword argument 'words'$"):
        refuse(task_of(step("execute", command="ls", words=[])), {})
    with pytest.raises(TaskError, match=r"^t-1: the setup step sleep: missing a required argument: 'seconds'$"):
        refuse(task_of(postconfig=[step("sleep")]), {})
    with pytest.raises(TaskError, match=r"^t-1: the setup step download: \{'ulr': 'a'\} must have url and path$"):
        refuse(task_of(step("download", files=[{"ulr": "a"}])), {})
    with pytest.raises(TaskError, match=r"^t-1: config\.0\.parameters: Field required$"):
        refuse(task_of({"type": "sleep"}), {})
    with pytest.raises(TaskError, match=r"needs the file https.*, but env\.files is not set"):
        refuse(task_of(file), {})
    with pytest.raises(TaskError, match=r"but env\.files=.* has no os/a\.txt"):
        refuse(task_of(file), {"files": str(tmp_path)})
    (tmp_path / "os").mkdir()
    (tmp_path / "os" / "a.txt").touch()
    refuse(task_of(file), {"files": str(tmp_path)})
    gold = {"type": "cloud_file", "path": f"{HUB}/os/gold.txt", "dest": "gold.txt"}
    with pytest.raises(TaskError, match="gold"):
        refuse(task_of(func="compare_text_file", expected=gold), {"files": str(tmp_path)})
