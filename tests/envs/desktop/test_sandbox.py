"""One desktop: input reaches real applications, errors say whose they are, and nothing is left after any ending."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from traces import SIZE, Traces, groups, settle, wait_until, window

from arpo.config import EnvConfig
from arpo.envs import memory, private
from arpo.envs.base import BACKENDS
from arpo.envs.desktop import sandbox as module
from arpo.envs.desktop.keys import keysyms, typed
from arpo.envs.desktop.sandbox import APPLICATIONS, MOST_PROCESSES, PROGRAMS, Sandbox, missing
from arpo.envs.listing import try_out
from arpo.envs.pool import LocalPool
from arpo.errors import ConfigError, EnvError, NoRoom
from fake_env import FakeEnv

pytestmark = pytest.mark.desktop
Start = Callable[..., Sandbox]


def press(sandbox: Sandbox, *keys: str, phase: str = "press") -> None:
    sandbox.ask("press", keysyms=keysyms(keys), phase=phase)


# ---- input, in a real application


@pytest.fixture
def editor(sandbox: Sandbox) -> Sandbox:
    """mousepad, with an empty file."""
    sandbox.write("notes.txt", b"")
    sandbox.launch(["mousepad", "notes.txt"])
    window(sandbox, "notes.txt")
    return sandbox


def saved(editor: Sandbox) -> str:
    settle(editor)
    press(editor, "ctrl", "s")
    wait_until(lambda: editor.read("notes.txt"))
    settle(editor)
    return editor.read("notes.txt").decode().removesuffix("\n")


TEXTS = {
    "ascii": "".join(map(chr, range(32, 127))),
    "shifts": "aAbB!1@2 (){}[]<>~`'\"\\|?/",
    "lines": "one\n\ttwo\n\nthree",
    "latin": "Žluťoučký kůň, naïve façade, Ærøskøbing, ß, ¿qué?",
    "signs": "€ £ ¥ © ™ … “quoted” - ½ ≠ ∞ → ☃",
    "cjk": "你好、世界。こんにちは カタカナ 안녕하세요",
    "scripts": "Привет Ελληνικά עברית العربية हिन्दी ไทย ქართული",
    "emoji": "🙂 🚀 👩🏽‍💻 🇪🇺",
    "combining": "e\u0301 n\u0303",
    "repeated": "aaa  ééé 你你你 🙂🙂",
}


@pytest.mark.desktop("mousepad")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_any_text_arrives_as_it_is(editor: Sandbox, text: str) -> None:
    editor.ask("type", keysyms=typed(text))
    assert saved(editor) == text


@pytest.mark.slow
@pytest.mark.desktop("mousepad")
def test_more_different_characters_than_there_are_spare_keys_arrive(editor: Sandbox) -> None:
    text = "".join(random.Random(5).sample([chr(code) for code in range(0x4E00, 0x5E00)], 160))
    for part in (text[:120], text[120:]):
        editor.ask("type", keysyms=typed(part))
    assert saved(editor) == text


@pytest.mark.desktop("mousepad", "setxkbmap")
def test_text_arrives_after_a_program_has_changed_the_keyboard(editor: Sandbox) -> None:
    editor.ask("type", keysyms=typed("z你é"))
    settle(editor)
    assert editor.run(["setxkbmap", "de"]).status == 0
    settle(editor)
    editor.ask("type", keysyms=typed("yz你é@ß?"))
    assert saved(editor) == "z你éyz你é@ß?"


def at(box: object, x: int, y: int) -> dict[str, int]:
    """A point of a window, from its corner."""
    assert isinstance(box, list)
    return {"x": box[0] + x, "y": box[1] + y}


@pytest.mark.desktop("mousepad")
def test_double_click_drag_and_held_keys_select_text(editor: Sandbox) -> None:
    editor.ask("type", keysyms=typed("first second third"))
    box = window(editor, "notes.txt")["box"]
    line = at(box, 10, 36)  # the middle of the first line, under the menu bar
    editor.ask("click", **line, button=1, count=2)
    editor.ask("type", keysyms=typed("1st"))
    settle(editor)
    press(editor, "end")
    press(editor, "shift", phase="down")
    for _ in range(len("third")):
        press(editor, "left")
    press(editor, "shift", phase="up")
    editor.ask("type", keysyms=typed("3rd"))
    settle(editor)
    assert saved(editor) == "1st second 3rd"
    to = at(box, 600, 36)
    editor.ask("drag", **line, to_x=to["x"], to_y=to["y"])
    settle(editor)
    press(editor, "ctrl", "c")
    press(editor, "end")
    editor.ask("type", keysyms=typed("\n"))
    press(editor, "ctrl", "v")
    first, second = saved(editor).split("\n")
    assert first == "1st second 3rd"
    assert second and first.endswith(second)


@pytest.fixture
def events(sandbox: Sandbox) -> Callable[[], str]:
    """xev in focus; called, it gives what it has seen since the last call."""
    sandbox.launch("stdbuf -oL xev -event button -event keyboard -geometry 400x300+50+50 >events")
    window(sandbox, "Event Tester")
    sandbox.ask("move", x=200, y=200)

    def seen() -> str:
        settle(sandbox)
        said = sandbox.read("events").decode()
        sandbox.write("events", b"")
        return said

    seen()
    return seen


@pytest.mark.desktop("xev", "stdbuf")
def test_buttons_and_wheel_are_what_was_asked_for(sandbox: Sandbox, events: Callable[[], str]) -> None:
    sandbox.ask("click", x=200, y=150, button=3, count=1)
    said = events()
    assert said.count("ButtonPress") == said.count("ButtonRelease") == said.count("button 3") // 2 == 1
    assert "root:(200,150)" in said
    assert sandbox.ask("pointer") == [200, 150]
    sandbox.ask("scroll", x=210, y=150, button=5, count=4)
    said = events()
    assert said.count("ButtonPress") == 4 and said.count("button 5") == 8
    sandbox.ask("hold", button=1, down=True)
    said = events()
    assert said.count("ButtonPress") == 1 and "ButtonRelease" not in said
    sandbox.ask("hold", button=1, down=False)
    assert events().count("ButtonRelease") == 1


@pytest.mark.desktop("xev", "stdbuf")
def test_a_combination_presses_shift_only_where_a_key_needs_it(sandbox: Sandbox, events: Callable[[], str]) -> None:
    def names(said: str) -> list[str]:
        return re.findall(r"keysym 0x[0-9a-f]+, (\w+)", said)

    press(sandbox, "ctrl", "a")
    assert names(events()) == ["Control_L", "a", "a", "Control_L"]
    press(sandbox, "ctrl", "+")
    assert names(events()) == ["Control_L", "Shift_L", "plus", "plus", "Shift_L", "Control_L"]
    press(sandbox, "shift", "A")
    assert names(events()) == ["Shift_L", "A", "A", "Shift_L"]
    press(sandbox, "ctrl", "shift", "?")
    assert names(events()) == ["Control_L", "Shift_L", "question", "question", "Shift_L", "Control_L"]
    press(sandbox, "?", "shift")
    assert names(events()) == ["Shift_L", "question", "question", "Shift_L"]
    press(sandbox, "shift", phase="down")
    press(sandbox, "?")
    sandbox.ask("type", keysyms=typed("?a"))
    assert names(events()) == ["Shift_L", *["question"] * 4, "A", "A"], "a held Shift stays held"
    press(sandbox, "shift", phase="up")
    assert names(events()) == ["Shift_L"]
    for phase in ("down", "up"):
        press(sandbox, "?", phase=phase)
    assert names(events()) == ["Shift_L", "question", "question", "Shift_L"]
    press(sandbox, "f13")
    assert names(events())[:1] == ["F13"]
    press(sandbox, "alt", phase="down")
    assert names(events()) == ["Alt_L"]
    press(sandbox, "alt", phase="up")
    assert names(events()) == ["Alt_L"]


def test_a_screenshot_is_what_was_drawn(sandbox: Sandbox) -> None:
    colour = "d.screen().root.change_attributes(background_pixel=0x1080f0); d.screen().root.clear_area(); d.sync()"
    assert sandbox.run(["python3", "-c", f"from Xlib import display; d = display.Display(); {colour}"]).status == 0
    sandbox.ask("move", x=600, y=400)
    settle(sandbox)
    pixels = sandbox.screenshot()
    assert pixels.shape == (SIZE[1], SIZE[0], 3)
    assert tuple(pixels[10, 10]) == (0x10, 0x80, 0xF0)
    assert (pixels[400:420, 600:620] != pixels[10, 10]).any(), "the pointer is not on it"


@pytest.mark.slow
@pytest.mark.desktop("xterm")
def test_programs_that_get_no_processor_are_not_at_rest(start: Start) -> None:
    sandboxes = [start() for _ in range(8)]  # more than there are cores: each draws now and then, and never ends
    for sandbox in sandboxes:
        sandbox.launch(["xterm", "-e", "while true; do date +%N; done"])
        wait_until(partial(sandbox.ask, "windows"))
    with ThreadPoolExecutor(len(sandboxes)) as threads:
        looks = [
            threads.submit(sandbox.ask, "settle", limit_s=2.0, quiet_s=0.06, busy=0.1)
            for _ in range(3)
            for sandbox in sandboxes
        ]
    assert not any(look.result()["settled"] for look in looks)


# ---- commands and files


def test_a_command_has_its_status_and_what_it_said(sandbox: Sandbox) -> None:
    ran = sandbox.run("echo out; echo err >&2; exit 3")
    assert (ran.status, ran.out, ran.err, ran.late) == (3, "out\n", "err\n", False)
    assert sandbox.run(["printenv", "NAME"], NAME="ünï").out == "ünï\n"
    assert sandbox.run(["pwd"], cwd="/tmp").out == "/tmp\n"
    assert sandbox.run("yes | head -c 20000000").out == "y\n" * (8 << 20), "the first 16 MB are kept"


def test_a_command_that_takes_too_long_is_killed_with_its_children(sandbox: Sandbox) -> None:
    ran = sandbox.run("echo begun; sleep 1000 & sleep 1000", limit_s=3.0)
    assert (ran.out, ran.late) == ("begun\n", True)
    wait_until(lambda: sandbox.run(["pgrep", "sleep"]).status == 1)


def test_what_a_command_leaves_in_the_background_is_not_waited_for(sandbox: Sandbox) -> None:
    assert sandbox.run("setsid sleep 1000 & echo done", limit_s=20.0) == module.Ran(0, "done\n", "", False)


def test_a_long_command_does_not_hold_up_others(sandbox: Sandbox) -> None:
    sandbox.launch("until [ -e go ]; do sleep 0.01; done; echo went >gone")
    sandbox.write("go", b"")
    wait_until(lambda: sandbox.run(["cat", "gone"]).out == "went\n")


def test_the_status_of_a_launched_program_can_be_asked_for(sandbox: Sandbox) -> None:
    pid = sandbox.launch("sleep 0.1; exit 7")
    wait_until(lambda: sandbox.ask("status", pid=pid) == 7)
    assert sandbox.ask("status", pid=sandbox.launch(["sleep", "100"])) is None


def test_files_go_in_and_out_whole(sandbox: Sandbox) -> None:
    data = random.Random(1).randbytes(3 << 20)
    sandbox.write("/home/user/deep/er/file", data)
    assert sandbox.read("deep/er/file") == data


# ---- what is refused, and what is lost


def test_what_cannot_be_done_is_refused_and_the_desktop_goes_on(sandbox: Sandbox) -> None:
    sandbox.run("mkfifo pipe; mkdir folder; ln -s /dev/zero endless")
    refused: tuple[tuple[str, dict[str, Any]], ...] = (
        ("nosuch", {}), ("_move", {"x": 1, "y": 1}), ("lock", {}), ("__init__", {}), ("click", {"x": 1}),
        ("press", {"keysyms": [0], "phase": "press"}), ("type", {"keysyms": [1 << 40]}),
        ("read", {"path": "nosuch"}), ("read", {"path": "folder"}), ("read", {"path": "pipe"}),
        ("read", {"path": "endless"}), ("write", {"path": "/usr/x", "data": ""}),
        ("write", {"path": "pipe", "data": ""}), ("launch", {"argv": ["no-such-program"], "shell": False}),
        ("run", {"argv": ["no-such-program"], "shell": False, "limit_s": 5}), ("status", {"pid": 1}),
        ("connect", {"port": 9}),
    )  # fmt: skip
    for what, arguments in refused:
        with pytest.raises(ValueError, match=rf"^{what}: "):
            sandbox.ask(what, **arguments)
    assert sandbox.run(["true"]).status == 0


def test_programs_inside_may_act_on_the_screen_and_ask_for_nothing_else(sandbox: Sandbox) -> None:
    ask = (
        "import json, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect('/run/arpo/requests'); "
        "s.sendall(json.dumps({'id': 0, 'do': sys.argv[1], 'with': json.loads(sys.argv[2])}).encode() + b'\\n'); "
        "print(s.makefile().readline())"
    )
    assert '"is": [640, 480]' in sandbox.run(["python3", "-c", ask, "size", "{}"]).out
    assert sandbox.run(["python3", "-c", ask, "read", '{"path": "/etc/passwd"}']).out == "\n"
    assert sandbox.run(["python3", "-c", "import socket; socket.socket(1).connect('/run/arpo/requests')"]).status == 0
    assert '"is": [640, 480]' in sandbox.run(["python3", "-c", ask, "size", "{}"]).out


def test_a_dead_x_server_is_machinery(sandbox: Sandbox, traces: Traces) -> None:
    send(traces, signal.SIGKILL, "Xvfb")  # from the host: nothing inside can
    with pytest.raises(EnvError, match="X server"):
        sandbox.ask("windows")
    assert sandbox.verdict() == ""


def test_an_x_server_that_crashes_is_the_agents_doing(sandbox: Sandbox, traces: Traces) -> None:
    send(traces, signal.SIGSEGV, "Xvfb")  # as a request that it cannot take would
    with pytest.raises(EnvError, match="X server"):
        for _ in range(100):
            sandbox.ask("windows")
    assert "the X server has ended" in sandbox.verdict()


def test_an_x_server_that_is_asked_to_end_is_machinery(sandbox: Sandbox, traces: Traces) -> None:
    send(traces, signal.SIGTERM, "Xvfb")
    with pytest.raises(EnvError, match="X server"):
        for _ in range(100):
            sandbox.ask("windows")
    assert sandbox.verdict() == ""


def test_a_stopped_x_server_is_machinery(sandbox: Sandbox, traces: Traces) -> None:
    send(traces, signal.SIGSTOP, "Xvfb")
    with pytest.raises(EnvError, match="did not answer within"):
        sandbox.ask("pointer", within_s=0.5)
    assert sandbox.verdict() == ""


def test_a_dead_resident_process_is_machinery(sandbox: Sandbox, traces: Traces) -> None:
    send(traces, signal.SIGKILL, "/usr/bin/python3 -I -c import sys")
    with pytest.raises(EnvError, match=r"ended|gone"):
        sandbox.ask("windows")
    wait_until(lambda: not sandbox.alive)
    assert sandbox.verdict() == ""


def test_a_stopped_resident_process_is_machinery_whatever_it_is_sent(
    start: Start, monkeypatch: pytest.MonkeyPatch, traces: Traces
) -> None:
    monkeypatch.setattr(module, "CALL_S", 1.0)
    sandbox = start()
    sandbox.wait()
    send(traces, signal.SIGSTOP, "/usr/bin/python3 -I -c import sys")
    with pytest.raises(EnvError, match="gone"):
        sandbox.write("more-than-a-socket-holds", bytes(8 << 20))


def send(traces: Traces, number: int, program: str) -> None:
    """A signal, from the host."""
    kill(traces, lambda pid, line: line.startswith(program), number)


def test_a_closed_one_is_machinery_and_may_be_closed_again(start: Start) -> None:
    ready, unready = start(), start()
    ready.wait()
    for sandbox in (ready, unready):
        sandbox.close()
        sandbox.close()
        with pytest.raises(EnvError):
            sandbox.ask("windows")
        with pytest.raises(EnvError):
            sandbox.screenshot()
        assert not sandbox.alive


# ---- nothing is left: the fixture `start` counts


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


ENDINGS = {
    "programs running": lambda sandbox, traces: sandbox.launch(["sleep", "1000"]),
    "a daemon": lambda sandbox, traces: sandbox.run("setsid sh -c 'sleep 1000 & sleep 1000' & sleep 0.1"),
    "all killed inside": lambda sandbox, traces: sandbox.run("kill -9 -1"),
    "stopped inside": lambda sandbox, traces: sandbox.run("kill -STOP -1", limit_s=1.0),
    "frozen": lambda sandbox, traces: sandbox.ask("freeze", but=[]),
    "all stopped": lambda sandbox, traces: kill(
        traces, lambda pid, line: not line.startswith(("sh", "bwrap")), signal.SIGSTOP
    ),
    "bubblewrap killed": lambda sandbox, traces: kill(traces, lambda pid, line: line.startswith("bwrap")),
    "the shell killed": lambda sandbox, traces: kill(traces, lambda pid, line: parent(pid) == os.getpid()),
    "both killed": lambda sandbox, traces: kill(traces, lambda pid, line: line.startswith(("sh", "bwrap"))),
}


def kill(traces: Traces, which: Callable[[int, str], bool], number: int = signal.SIGKILL) -> None:
    pids = [pid for pid, line in traces.processes().items() if which(pid, line)]
    assert pids
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended with the one before
            os.kill(pid, number)


@pytest.mark.parametrize("how", ENDINGS)
def test_nothing_is_left_after(how: str, sandbox: Sandbox, traces: Traces) -> None:
    assert traces.processes()
    ENDINGS[how](sandbox, traces)


def test_nothing_is_left_after_an_exception(start: Start) -> None:
    with pytest.raises(KeyError), start() as sandbox:
        sandbox.launch(["sleep", "1000"])
        raise KeyError


def test_nothing_is_left_of_one_that_is_closed_while_it_starts(start: Start) -> None:
    for _ in range(5):
        start().close()


def test_when_it_is_closed_all_of_it_has_ended(sandbox: Sandbox, traces: Traces) -> None:
    for _ in range(20):
        sandbox.launch(["sleep", "1000"])
    sandbox.close()
    assert {line for line in traces.processes().values() if not line.startswith(("sh ", "sleep 0.01"))} == set()


USER = """
import sys
from arpo.envs.desktop.sandbox import Sandbox
sandbox = Sandbox((640, 480), ARPO_TEST=sys.argv[1].partition("=")[2])
if sys.argv[2] != "starting":
    sandbox.launch(["sleep", "1000"])
if sys.argv[2] == "frozen":
    sandbox.ask("freeze", but=[])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["starting", "starting", "starting", "up", "frozen"])
def test_nothing_is_left_when_the_process_is_killed(when: str, start: Start, traces: Traces) -> None:
    command = [sys.executable, "-c", USER, traces.mark, when]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout is not None and user.stdout.readline()
        user.kill()
    wait_until(lambda: not traces.processes(), traces.processes)
    wait_until(lambda: not groups(user.pid))


# ---- limits


BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.1)
"""


def test_a_fork_bomb_stays_inside_its_limit_and_the_desktop_can_be_used_and_closed(
    sandbox: Sandbox, start: Start, traces: Traces
) -> None:
    other = start()
    other.wait()
    sandbox.launch(["python3", "-c", BOMB])
    wait_until(lambda: len(traces.processes()) > 350)
    assert sandbox.run(["true"]).status == 0
    sandbox.ask("click", x=1, y=1, button=1, count=1)
    assert other.run("true | true").status == 0, "the limit is one desktop's own"
    assert len(traces.processes()) < MOST_PROCESSES + 30  # and the other's
    sandbox.close()
    wait_until(lambda: len(traces.processes()) < 30)


@pytest.mark.parametrize("folder", module.SIZES_MB)
def test_a_folder_takes_no_more_than_its_size_and_the_desktop_goes_on(folder: str, sandbox: Sandbox) -> None:
    ran = sandbox.run(f"head -c 2000000000 /dev/zero >{folder}/large")
    assert "No space left on device" in ran.err
    used = int(sandbox.run(["stat", "-c", "%s", f"{folder}/large"]).out)
    assert 0 < used <= module.SIZES_MB[folder] << 20
    with pytest.raises(ValueError, match="No space left"):
        sandbox.write(f"{folder}/more", b"x" * 10000)
    assert sandbox.run("echo said").out == "said\n"
    sandbox.ask("type", keysyms=typed("é"))
    assert sandbox.screenshot().any()


def test_a_program_takes_no_more_memory_than_the_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    group = memory.new_group(1)
    if group is None:
        pytest.skip("control groups cannot be made here")
    group.rmdir()
    monkeypatch.setattr(module, "MEMORY_MB", 200)
    sandbox = start()
    assert sandbox.run(["python3", "-c", "b'x' * (100 << 20)"]).status == 0
    assert sandbox.run(["python3", "-c", "b'x' * (300 << 20)"]).status == -signal.SIGKILL
    assert sandbox.ask("windows") == []


# ---- starting


def test_a_missing_program_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROGRAMS, "no-such-program", "its-package")
    with pytest.raises(ConfigError, match=r"apt-get install -y --no-install-recommends its-package$"):
        Sandbox(SIZE)


def test_a_start_that_fails_says_why_and_leaves_nothing(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvError, match=r"^the desktop did not start: .*Xvfb ended with status"):
        start((70000, 70000)).wait()
    monkeypatch.setattr(module, "INSIDE", ("/usr/bin/false",))
    with pytest.raises(EnvError, match=r"^the desktop did not start: status 1"):
        start().wait()


def test_a_start_that_takes_too_long_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INSIDE", ("/usr/bin/sh", "-c", "sleep 1000"))
    with pytest.raises(EnvError, match=r"^the desktop did not start: status 137, without a word$"):
        start().wait(limit_s=0.2)


def test_a_bubblewrap_that_is_too_old_is_said(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_bwrap", lambda files, wall: ["bwrap", "--no-such-option"])
    with pytest.raises(ConfigError, match=r"0\.8 or newer"):
        start().wait()


def test_doctor_names_the_programs_that_are_missing_with_one_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: None if name in ("gimp", "Xvfb") else f"/usr/bin/{name}")
    works, _, enable = try_out(BACKENDS["desktop"], EnvConfig())
    assert (works, enable) == (False, "apt-get install -y --no-install-recommends gimp xvfb")


AS_ANOTHER = """
import os, sys
from arpo.errors import ConfigError
from arpo.envs.desktop import sandbox as module
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(54321), os.setuid(54321)
    if not os.access(module.__file__, os.R_OK):
        sys.exit("unreadable")
try:
    mark = sys.argv[1].partition("=")[2]
    with module.Sandbox((640, 480), weaker=sys.argv[2] == "weaker", ARPO_TEST=mark) as sandbox:
        print(sandbox.run(["id", "-un"]).out.strip(), sandbox.ask("windows"), sandbox.screenshot().shape)
except ConfigError as error:
    print("ConfigError:", error)
"""


def as_another(traces: Traces, *before: str, how: str = "weaker") -> str:
    """What a small program says that an ordinary user runs."""
    command = [*before, sys.executable, "-c", AS_ANOTHER, traces.mark, how]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.stderr == "unreadable\n":
        pytest.skip("another user cannot read this checkout")
    return ran.stdout + ran.stderr


def test_an_ordinary_user_can_have_one(start: Start, traces: Traces) -> None:
    assert as_another(traces) == "user [] (480, 640, 3)\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may be given control groups of his own")
def test_where_a_wall_is_lacking_one_line_says_which_and_how_to_accept_that(start: Start, traces: Traces) -> None:
    said = as_another(traces, how="whole")
    assert said.startswith("ConfigError: desktops would lack walls here: a limit of memory")
    assert "--allow-weaker-sandbox" in said and said.count("\n") == 1


def test_where_the_kernel_forbids_namespaces_one_line_says_so(start: Start, traces: Traces) -> None:
    said = as_another(traces, *"bwrap --unshare-user --disable-userns --uid 1234 --dev-bind / /".split())
    assert said.startswith("ConfigError: the kernel lets this user make no namespaces") and "sysctl" in said
    assert said.count("\n") == 1


# ---- memory


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A machine of its own, with so much free memory."""
    room = SimpleNamespace(mb=2.5 * memory.DESKTOP_MB)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(memory, "free_mb", lambda: room.mb)
    yield room


def test_as_many_fit_as_there_is_memory_for(room: SimpleNamespace) -> None:
    assert memory.fitting() == 2
    with contextlib.ExitStack() as places:
        places.enter_context(memory.reserved())
        places.enter_context(memory.reserved())
        assert memory.fitting() == 0
        with pytest.raises(NoRoom, match="750 MB are free, each takes 300 MB and 2 have just begun"):
            places.enter_context(memory.reserved())
        room.mb += memory.DESKTOP_MB
        places.enter_context(memory.reserved())
    assert memory.fitting() == 3


def test_one_that_has_had_time_to_grow_counts_by_what_it_takes(
    room: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with memory.reserved():
        assert memory.fitting() == 1
        monkeypatch.setattr(memory, "YOUNG_S", 0)
        assert memory.fitting() == 2


MANY = """
import sys
from arpo.envs import memory
from arpo.errors import NoRoom
memory.free_mb = lambda: 3.5 * memory.DESKTOP_MB
print("ready", flush=True)
sys.stdin.readline()
try:
    with memory.reserved():
        print("in", flush=True)
        sys.stdin.readline()
except NoRoom:
    print("out", flush=True)
"""


def test_of_many_processes_at_once_as_many_begin_as_fit(room: SimpleNamespace) -> None:
    begin = partial(subprocess.Popen[str], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    command = [sys.executable, "-c", MANY]
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(begin(command)) for _ in range(8)]
        pipes = [(one.stdin, one.stdout) for one in many if one.stdin is not None and one.stdout is not None]
        assert [said.readline() for _, said in pipes] == ["ready\n"] * 8
        for told, _ in pipes:
            told.write("\n")
            told.flush()
        assert sorted(said.readline() for _, said in pipes) == ["in\n"] * 3 + ["out\n"] * 5
        for one in many[::2]:
            one.kill()
        for told, _ in pipes[1::2]:
            told.close()
    room.mb = 3.5 * memory.DESKTOP_MB
    assert memory.fitting() == 3, "places go with their processes"


def test_whoever_keeps_the_others_from_counting_is_not_waited_for_without_end(
    room: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "ALONE_S", 0.1)
    with private.locked("places", 0.1), pytest.raises(EnvError, match=r"places\.lock for 0\.1 s"), memory.reserved():
        pass


def test_the_free_memory_is_the_machines_or_the_groups() -> None:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert 0 < memory.free_mb() <= int(fields["MemTotal"].split()[0]) / 1024


class Roomy(FakeEnv):
    """An environment that takes the memory of a desktop."""

    def __init__(self) -> None:
        super().__init__()
        self._places = contextlib.ExitStack()
        self._places.enter_context(memory.reserved())

    def close(self) -> None:
        self._places.close()
        super().close()


def played(n_envs: int) -> tuple[int, int]:
    """So many episodes were played, so many of them at the same time."""
    at_once, most, done = 0, 0, 0

    async def use(pool: LocalPool) -> None:
        nonlocal at_once, most, done
        async with pool.lease():
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            done += 1

    async def play() -> None:
        async with LocalPool(Roomy, n_envs, EnvConfig()) as pool:
            await asyncio.gather(*(use(pool) for _ in range(10)))

    asyncio.run(play())
    return done, most


def test_of_a_pool_too_large_for_the_memory_what_fits_runs_and_the_rest_waits(room: SimpleNamespace) -> None:
    assert played(n_envs=5) == (10, 2)


def test_a_pool_without_memory_for_one_stops_and_says_so(room: SimpleNamespace) -> None:
    room.mb = 10
    with pytest.raises(EnvError, match="no memory for one more desktop"):
        played(n_envs=5)


def test_all_that_a_desktop_needs_is_installed_here() -> None:
    assert missing() == ""


def test_make_installs_all_that_doctor_asks_for() -> None:
    makefile = Path(__file__).parents[3].joinpath("Makefile").read_text()
    listed = makefile.split("DEBIAN := ")[1].split("\nOSWORLD")[0].replace("\\\n", " ").split()
    assert {*PROGRAMS.values(), *APPLICATIONS.values(), "python3-xlib"} <= {*listed}
