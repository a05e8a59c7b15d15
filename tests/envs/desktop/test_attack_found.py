"""Attacks of an agent that were found later: to have no score instead of 0, and to run code while a check does."""

from __future__ import annotations

import json
import os
import signal
import socket
import textwrap
import time

import pytest

from arpo.envs.desktop.checks.getters import Machine, asked_by, is_live
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.guest import starter
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.desktop.setup import limit_of
from arpo.errors import EnvError, Ruined

pytestmark = [pytest.mark.desktop, pytest.mark.attack("agent")]

DISPLAY = "from Xlib import display, X; d = display.Display(':0')\n"
ASK = """
import json, socket, sys
resident = socket.socket(socket.AF_UNIX)
resident.connect("/run/arpo/requests")
resident.sendall(json.dumps({"id": 0, "do": %r, "with": %r}).encode() + b"\\n")
print(resident.makefile().readline())
"""


def goes_on(sandbox: Sandbox) -> bool:
    sandbox.ask("click", x=1, y=1, button=1, count=1)
    sandbox.ask("type", keysyms=[0xE9, 0x61])
    sandbox.ask("settle", limit_s=1.0, quiet_s=0.06, busy=0.1)
    with sandbox.frozen():
        return sandbox.run(["true"]).status == 0


def launch(sandbox: Sandbox, code: str) -> None:
    """A program of the agent's that goes on, and has begun."""
    sandbox.launch(["python3", "-c", textwrap.dedent(code) + "\n"])
    for _ in range(1000):
        if sandbox.run(["test", "-e", "/tmp/begun"]).status == 0:
            return
        time.sleep(0.02)
    raise AssertionError("it has not begun")


# ---- to have no score: the screen does not answer


@pytest.mark.parametrize(
    ("do", "arguments"),
    [
        ("settle", {"limit_s": 1e9, "quiet_s": 1e9, "busy": 9.0}),
        ("click", {"x": 1, "y": 1, "button": 1, "count": 10**9}),
        ("scroll", {"x": 1, "y": 1, "button": 4, "count": 10**9}),
        ("type", {"keysyms": [0x61] * 10_000}),
        ("windows", {}),
        ("type", []),
    ],
)
def test_a_program_cannot_keep_the_screen_by_what_it_asks_for(
    do: str, arguments: dict[str, object], sandbox: Sandbox
) -> None:
    said = sandbox.run(["python3", "-c", ASK % (do, arguments)], limit_s=20.0).out.strip()
    assert not said or '"error"' in said
    assert goes_on(sandbox)


def test_a_long_request_of_a_program_is_not_read(sandbox: Sandbox) -> None:
    nested = "import socket; s = socket.socket(1); s.connect('/run/arpo/requests'); s.sendall(b'[' * 60000 + b'\\n')"
    for _ in range(2):
        sandbox.run(["python3", "-c", nested], limit_s=20.0)
    assert '"is"' in sandbox.run(["python3", "-c", ASK % ("pointer", {})]).out


def test_pyautogui_still_types_and_scrolls_more_than_fits_into_one_request(sandbox: Sandbox) -> None:
    ran = sandbox.run(["python3", "-c", "import pyautogui; pyautogui.write('a' * 120); pyautogui.scroll(120)"])
    assert ran.status == 0, ran.err


def test_a_window_of_the_desktops_own_that_a_program_destroys_is_made_anew(sandbox: Sandbox) -> None:
    destroy = "for w in d.screen().root.query_tree().children:\n  w.get_geometry().width == 1 and w.destroy()\nd.sync()"
    assert sandbox.run(["python3", "-c", DISPLAY + destroy]).status == 0
    assert goes_on(sandbox)


def test_a_program_that_changes_the_keyboard_all_the_time_does_not_keep_the_screen(sandbox: Sandbox) -> None:
    launch(
        sandbox,
        f"""
        {DISPLAY}
        open('/tmp/begun', 'w').close()
        for i in range(20_000):
            d.change_keyboard_mapping(200 + i % 40, [[0]])
            i % 100 or d.sync()
            while d.pending_events(): d.next_event()
        """,
    )
    for _ in range(5):
        sandbox.ask("type", keysyms=[0xE9, 0x100030A, 0x61])
    assert goes_on(sandbox)


def test_a_key_that_a_program_has_taken_away_is_no_failure(sandbox: Sandbox) -> None:
    take = "for code in range(8, 256): d.change_keyboard_mapping(code, [[0]])\nd.sync()"
    assert sandbox.run(["python3", "-c", DISPLAY + take]).status == 0
    sandbox.ask("type", keysyms=[0x41, 0x61])
    sandbox.ask("press", keysyms=[0xFFE3, 0x61], phase="press")


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["keeps it busy", "lets go in time"])
def test_a_program_that_holds_the_screen_is_found_out_whatever_it_does_then(how: str, sandbox: Sandbox) -> None:
    """Busy, the X server looks like one on a busy machine; free again, like one that was late for another reason."""
    then = "while True: d.sync()" if how == "keeps it busy" else "time.sleep(31)\nd.ungrab_server(); d.sync()"
    code = f"import time\n{DISPLAY}\nd.grab_server(); d.sync(); open('/tmp/begun', 'w').close()\n{then}"
    launch(sandbox, code)
    with pytest.raises(EnvError):
        sandbox.ask("click", x=1, y=1, button=1, count=1)
    if how == "lets go in time":
        sandbox.ask("pointer")
    assert sandbox.verdict() == "a program has kept the screen from answering"


def test_a_desktop_that_answers_is_not_blamed(sandbox: Sandbox) -> None:
    assert goes_on(sandbox)
    assert sandbox.verdict() == ""


@pytest.mark.parametrize("kind", ["atom", "title", "class"])
def test_a_property_of_a_wrong_shape_does_not_hide_other_windows(kind: str, sandbox: Sandbox) -> None:
    name = {"atom": "_NET_WM_WINDOW_TYPE", "title": "_NET_WM_NAME", "class": "WM_CLASS"}[kind]
    launch(
        sandbox,
        f"""
        {DISPLAY}
        import time
        root = d.screen().root
        for i in range(2):
            w = root.create_window(0, 0, 50, 50, 0, X.CopyFromParent)
            i or w.change_property(d.intern_atom({name!r}), 4, 8, b'abcd')
            w.map()
        d.sync()
        time.sleep(0.5)
        open('/tmp/begun', 'w').close()
        time.sleep(60)
        """,
    )
    assert len(sandbox.ask("windows")) == 2


# ---- to have no score: programs do not start, or take their time


def test_a_program_that_is_stopped_before_it_runs_does_not_keep_others_from_it(sandbox: Sandbox) -> None:
    """The process in which a program is about to run can be signalled; whoever starts it must not wait for it."""
    launch(
        sandbox,
        """
        import os, signal, time
        open('/tmp/begun', 'w').close()
        time.sleep(1)
        last, end = os.getpid(), time.monotonic() + 20
        known = {int(name) for name in os.listdir('/proc') if name.isdigit()}
        stopped = []
        while not stopped and time.monotonic() < end:
            for pid in range(max(known) + 1, max(known) + 20):
                try:
                    os.kill(pid, signal.SIGSTOP)
                    stopped.append(pid)
                except OSError:
                    pass
        time.sleep(25)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        """,
    )
    time.sleep(1.5)
    for _ in range(3):
        try:
            sandbox.run(["true"], limit_s=2.0)
        except ValueError:
            continue
    with sandbox.frozen():
        assert sandbox.run(["echo", "here"]).out == "here\n"


def test_one_that_is_stopped_just_before_it_runs_is_ended_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, without a race: it stops itself at that place."""
    monkeypatch.setattr(starter, "BEGIN_S", 0.2)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        ours.close()
        starter.run(theirs, lambda: os.kill(os.getpid(), signal.SIGSTOP), False)
        os._exit(0)
    theirs.close()
    asked = {"n": 7, "argv": ["true"], "shell": False, "cwd": "/", "env": {}, "most": 4096}
    text = json.dumps(asked).encode()
    nothing = os.open(os.devnull, os.O_RDWR)
    socket.send_fds(ours, [len(text).to_bytes(4, "big")], [nothing] * 3)
    ours.sendall(text)
    ours.settimeout(30)
    with ours.makefile("rb") as said:
        answers = [json.loads(said.readline()) for _ in range(2)]
    ours.close()
    os.close(nothing)
    os.waitpid(pid, 0)
    assert {"ended": 7, "status": -signal.SIGKILL} in answers


def test_pipes_in_the_place_of_files_do_not_make_a_check_last(sandbox: Sandbox, tmp_path: object) -> None:
    """Each command waits to its limit, and so many limits are longer than a score may take: that would be no score."""
    sandbox.run(["mkfifo", "a"])
    began = time.monotonic()
    machine = Machine(sandbox, None, FileSource(), "", began + 3.0)  # type: ignore[arg-type]
    assert [machine.run(["cat", "a"]) for _ in range(4)] == [None] * 4
    assert limit_of(machine.until) < 30.0


# ---- to run while a check does


PRELOADED = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void) {
    for (long i = 0;; i++) {
        FILE *file = fopen("/tmp/begun", "w");
        fprintf(file, "%ld", i);
        fclose(file);
        usleep(1000);
    }
}
"""


@pytest.mark.desktop("gcc", "pulseaudio")
def test_code_of_the_agents_in_a_program_of_the_systems_stands_still_too(sandbox: Sandbox) -> None:
    sandbox.write("/tmp/own.c", PRELOADED.encode())
    assert sandbox.run("gcc -shared -fPIC -o /tmp/own.so /tmp/own.c").status == 0
    sandbox.launch("LD_PRELOAD=/tmp/own.so exec /usr/bin/pulseaudio --version")
    for _ in range(200):
        if sandbox.run(["cat", "/tmp/begun"]).out:
            break
        time.sleep(0.02)
    with sandbox.frozen(asked_by({"type": "vm_command_line", "command": ["cat", "a"]})):
        first, second = (sandbox.run("sleep 0.2; cat /tmp/begun").out for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("command", "live", "awake"),
    [
        (["cat", "/home/user/code/a.py"], False, False),
        ("python3 /home/user/code/pactl/code.py", False, False),
        ("pactl list sinks", False, True),
        (["xsel", "-b"], True, False),
    ],
)
def test_only_what_a_check_asks_goes_on_while_it_runs(command: object, live: bool, awake: bool) -> None:
    what = {"type": "vm_command_line", "command": command}
    assert is_live(what) == live
    assert bool(asked_by(what)) == awake


COUNT = """
import ctypes, fcntl, os, signal, time
signal.signal(signal.SIGCONT, lambda *_: None)
{}
for i in range(1_000_000):
    with open("/tmp/next", "w") as file:
        file.write(str(i))
    os.replace("/tmp/next", "/tmp/begun")  # it may be stopped at any moment, and never with an empty one
    time.sleep(0.002)
"""
BY_TIMER = """
event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)
timer, each_ms = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 1_000_000, 0, 1_000_000)
libc = ctypes.CDLL(None)
if libc.timer_create(1, event, ctypes.byref(timer)) == 0:
    libc.timer_settime(timer, 0, each_ms, None)
"""
BY_FILE = """
watched = os.open("/tmp", os.O_RDONLY)
try:
    fcntl.fcntl(watched, 10, signal.SIGCONT)  # which signal
    fcntl.fcntl(watched, fcntl.F_NOTIFY, 0x80000000 | fcntl.DN_ACCESS)
except OSError:
    pass
"""
BY_PARENT = """
if os.fork():
    time.sleep(1000)
ctypes.CDLL(None).prctl(1, signal.SIGCONT)  # when the parent ends
"""


@pytest.mark.parametrize("arrange", [BY_TIMER, BY_FILE], ids=["a timer", "a file that is read"])
def test_a_stopped_program_cannot_have_the_kernel_wake_it(arrange: str, sandbox: Sandbox) -> None:
    launch(sandbox, COUNT.format(arrange))
    with sandbox.frozen():
        first, second = (sandbox.run("sleep 0.2; cat /tmp/begun").out for _ in range(2))
    assert first == second != ""


def test_a_program_that_went_on_while_a_check_ran_is_found_out(sandbox: Sandbox) -> None:
    sandbox.write("/tmp/count.py", COUNT.format(BY_PARENT).encode())
    parent = sandbox.launch(["python3", "/tmp/count.py"])
    for _ in range(500):
        if sandbox.run(["cat", "/tmp/begun"]).out:
            break
        time.sleep(0.02)
    with pytest.raises(Ruined, match="did not stand still"), sandbox.frozen():
        sandbox.run(f"kill -9 {parent}; sleep 0.3")  # in the place of what else ends it
