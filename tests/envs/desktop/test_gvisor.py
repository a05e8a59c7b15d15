"""A desktop behind the second wall: it can be used as any other, its kernel is not the host's, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from traces import SIZE, python, settle, wait_until, window

from arpo.agent.actions import Finish, Hotkey, Type
from arpo.envs import memory
from arpo.envs.desktop import env as environment
from arpo.envs.desktop import gvisor
from arpo.envs.desktop import sandbox as module
from arpo.envs.desktop.doctor import walls
from arpo.envs.desktop.env import DesktopEnv
from arpo.envs.desktop.guest.walls import MACHINES, MOST_FILES, REFUSED
from arpo.envs.desktop.keys import typed
from arpo.envs.desktop.sandbox import Sandbox
from arpo.errors import ConfigError, EnvError
from arpo.types import Task

Start = Callable[..., Sandbox]
behind_gvisor = [
    pytest.mark.heavy,
    pytest.mark.desktop,
    pytest.mark.skipif(bool(gvisor.missing()), reason=gvisor.missing()),
]


def descendants(pid: int) -> dict[int, str]:
    """A process and all that come from it, with their words. gVisor's own carry none of our variables (traces.py)."""
    parents, words = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
            words[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {one: words[one] for one in found if one in words}


def still_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture
def walled(start: Start) -> Sandbox:
    sandbox = start(wall="gvisor")
    sandbox.wait()
    return sandbox


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """For tests that change nothing."""
    with Sandbox(SIZE, wall="gvisor") as sandbox:
        yield sandbox


def goes_on(sandbox: Sandbox) -> bool:
    """It is used, looked at and checked as before."""
    sandbox.ask("click", x=1, y=1, button=1, count=1)
    return bool(sandbox.run(["true"]).status == 0 and sandbox.screenshot().shape and sandbox.verdict() == "")


class TestBehindGvisor:
    pytestmark = behind_gvisor

    @pytest.mark.desktop("mousepad")
    def test_an_editor_is_clicked_typed_into_and_seen(self, walled: Sandbox) -> None:
        empty = walled.screenshot()
        walled.write("notes.txt", b"")
        walled.launch(["mousepad", "notes.txt"])
        window(walled, "notes.txt")
        walled.ask("click", x=SIZE[0] // 2, y=SIZE[1] // 2, button=1, count=1)
        assert walled.ask("pointer") == [SIZE[0] // 2, SIZE[1] // 2]
        walled.ask("type", keysyms=typed("dear kernel"))
        settle(walled)
        assert (walled.screenshot() != empty).any()
        walled.ask("press", keysyms=[0xFFE3, ord("s")], phase="press")
        wait_until(lambda: walled.read("notes.txt"))
        assert walled.read("notes.txt").startswith(b"dear kernel")

    @pytest.mark.desktop("xterm")
    def test_a_terminal_runs_what_is_typed_and_can_interrupt_it(self, walled: Sandbox) -> None:
        started: list[int] = []

        def shown() -> bool:
            """gVisor tells an xterm that is faster than its child that nobody is there, and it ends: then another."""
            if not started or walled.ask("status", pid=started[-1]) is not None:
                started.append(walled.launch(["xterm"]))
            return any(one["title"] == "xterm" for one in walled.ask("windows"))

        wait_until(shown)
        window(walled, "xterm")
        walled.ask("type", keysyms=typed("touch begun; sleep 1000\n"))
        wait_until(lambda: walled.run(["test", "-e", "begun"]).status == 0)
        walled.ask("press", keysyms=[0xFFE3, ord("c")], phase="press")
        walled.ask("type", keysyms=typed("tty >terminal\n"))
        wait_until(lambda: walled.run(["test", "-s", "terminal"]).status == 0)
        assert walled.read("terminal").startswith(b"/dev/pts/")

    def test_a_command_says_how_it_ended(self, walled: Sandbox) -> None:
        ran = walled.run("pwd; id -un; echo wrong >&2; exit 3")
        assert (ran.status, ran.out, ran.err, ran.late) == (3, "/home/user\nuser\n", "wrong\n", False)
        assert walled.run("sleep 1000", limit_s=0.2).late

    def test_a_home_folder_is_unpacked(self, start: Start, tmp_path: Path) -> None:
        (tmp_path / "letter.txt").write_text("dear home")
        with tarfile.open(tmp_path / "home.tar", "w") as tar:
            tar.add(tmp_path / "letter.txt", "letter.txt")
        assert start(template=tmp_path / "home.tar", wall="gvisor").read("letter.txt") == b"dear home"

    def test_a_port_inside_is_reached_though_no_open_file_can_be_handed_out(self, walled: Sandbox) -> None:
        with pytest.raises(ValueError, match="refused"):
            walled.connect(8000)
        walled.write("large", os.urandom(1 << 20))
        walled.launch(["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
        connected: list[socket.socket] = []

        def reached() -> bool:
            try:
                connected.append(walled.connect(8000))
            except ValueError:
                return False
            return True

        wait_until(reached)
        with connected[0] as one:
            one.sendall(b"GET /large HTTP/1.0\r\n\r\n")
            with one.makefile("rb") as said:
                assert said.read().endswith(walled.read("large"))

    def test_its_processes_are_gvisors_and_end_with_it(self, walled: Sandbox) -> None:
        walled.launch("trap '' HUP TERM; while :; do sleep 1000; done")
        family = descendants(walled._process.pid)
        assert any("runsc-sandbox" in name for name in family.values()), family
        assert not any("Xvfb" in name for name in family.values()), family
        walled.close()
        assert not any(map(still_there, family)), family

    @pytest.mark.parametrize("name", ["runsc-sandbox", "runsc-gofer", "bwrap", "sh"])
    def test_nothing_is_left_when_a_process_of_it_is_killed(self, walled: Sandbox, name: str) -> None:
        family = descendants(walled._process.pid)
        named = [pid for pid, words in family.items() if words.startswith(name)]
        assert named, family
        for pid in named:
            os.kill(pid, signal.SIGKILL)
        walled.close()
        wait_until(lambda: not any(map(still_there, family)), lambda: family)

    def test_nothing_is_left_of_one_that_is_closed_while_it_starts(self, start: Start) -> None:
        family: dict[int, str] = {}
        for wait_s in (0.0, 0.05, 0.1, 0.2, 0.4, 0.8):
            sandbox = start(wall="gvisor")
            time.sleep(wait_s)
            family |= descendants(sandbox._process.pid)
            sandbox.close()
        wait_until(lambda: not any(map(still_there, family)), lambda: family)

    @pytest.mark.attack("agent")
    def test_the_hosts_kernel_is_not_what_answers(self, shared: Sandbox) -> None:
        assert os.uname().release not in shared.run("cat /proc/version; uname -a; cat /proc/cmdline").out

    @pytest.mark.attack("agent")
    @pytest.mark.parametrize(
        "refused",
        [
            "socket.socket(40, socket.SOCK_STREAM)",  # AF_VSOCK
            "socket.create_connection(('192.0.2.1', 80), timeout=5)",
            "os.open('/etc/shadow', os.O_RDONLY)",
            "os.open('/usr/new', os.O_CREAT | os.O_WRONLY)",
            "os.open('/arpo/new', os.O_CREAT | os.O_WRONLY)",
            "os.open('/dev/kvm', os.O_RDONLY)",
            "os.open('/dev/new', os.O_CREAT | os.O_WRONLY)",
            "os.remove('/dev/null')",
            "os.open('/proc/self/oom_score_adj', os.O_WRONLY)",
            "os.open('/proc/1/mem', os.O_RDONLY)",
            "os.setuid(0)",
            "os.kill(1, 9)",
            "os.kill(1, signal.SIGSTOP)",
            "fcntl.fcntl(0, fcntl.F_SETOWN, 1)",
            "fcntl.fcntl(0, fcntl.F_SETSIG, 9)",
            "fcntl.ioctl(socket.socket(), 0x8901, struct.pack('i', 1))",
            "resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))",
            "[os.open(f'/proc/1/fd/{n}/.', os.O_RDONLY) for n in os.listdir('/proc/1/fd')]",
        ],
    )
    def test_it_is_refused(self, shared: Sandbox, refused: str) -> None:
        ran = shared.run(["python3", "-c", f"import fcntl, os, resource, signal, socket, struct\n{refused}"])
        assert ran.status == 1 and "Error" in ran.err.splitlines()[-1]
        assert goes_on(shared)

    @pytest.mark.attack("agent")
    @pytest.mark.parametrize(
        "call", ["62, 1, 9", "200, 1, 9", "234, 1, 1, 9", "129, 1, 9, 0", "297, 1, 1, 9, 0", "434, 1"]
    )
    def test_no_call_sends_the_first_process_a_signal(self, shared: Sandbox, call: str) -> None:
        if os.uname().machine != "x86_64":
            pytest.skip("numbers of another processor's system calls")
        lines = [
            "import ctypes; libc = ctypes.CDLL(None, use_errno=True)",
            f"print(libc.syscall({call}), ctypes.get_errno())",
        ]
        assert python(shared, *lines) == "-1 1\n"

    @pytest.mark.attack("agent")
    @pytest.mark.parametrize(
        "command", ["pkill -9 Xvfb", "kill -9 -1", "kill -STOP -1", "for i in $(seq 1 400); do kill -9 $i; done"]
    )
    def test_signals_do_not_reach_what_answers(self, walled: Sandbox, command: str) -> None:
        walled.run(command, limit_s=5.0)
        assert goes_on(walled)

    @pytest.mark.attack("agent")
    def test_the_processes_that_answer_cannot_be_seen(self, shared: Sandbox) -> None:
        seen = shared.run("ps -eo args=").out
        assert "openbox" in seen and "Xvfb" not in seen and "runsc" not in seen
        opened = {
            line.partition(" -> ")[2].partition("[")[0] for line in shared.run("ls -l /proc/1/fd").out.splitlines()[1:]
        }
        assert opened == {"/dev/null", "socket:"}  # no folder, no pipe: what can be opened there

    @pytest.mark.attack("agent")
    def test_what_one_process_may_have_open_is_limited(self, shared: Sandbox) -> None:
        count = [
            "made = []",
            "try:",
            "    while True: made.append(open('/dev/null'))",
            "except OSError: print(len(made))",
        ]
        assert 10 < int(python(shared, *count)) <= MOST_FILES

    @pytest.mark.attack("agent")
    def test_nothing_that_an_agent_left_runs_once_it_is_frozen(self, walled: Sandbox) -> None:
        walled.launch("while true; do date +%N > /tmp/tick; kill -CONT -1; done")
        for _ in range(3):
            walled.launch(["setsid", "python3", "-c", "import os\nwhile True: os.fork() or os._exit(0); os.wait()"])
            walled.launch(["python3", "-c", "import os\nwhile True: os.kill(-1, 18)"])
        wait_until(lambda: walled.run(["cat", "/tmp/tick"]).out)
        with walled.frozen():
            before = walled.run("cat /tmp/tick; sleep 0.5", check=True).out
            assert walled.run(["cat", "/tmp/tick"], check=True).out == before
            states = walled.run("ps -eo stat=,comm=", check=True).out.splitlines()
            awake = [line.split()[1] for line in states if not line.startswith(("T", "Z"))]
            assert sorted(awake) == ["ps", "python3", "sh"] or sorted(awake) == ["ps", "python3"], states
        assert goes_on(walled)

    @pytest.mark.attack("agent")
    def test_a_program_that_keeps_the_x_server_for_itself_is_found_out(self, walled: Sandbox) -> None:
        hold = "d = display.Display(); d.grab_server(); d.sync(); print('held', flush=True); time.sleep(1000)"
        walled.launch(f'python3 -c "import time; from Xlib import display; {hold}" > /tmp/said')
        wait_until(lambda: walled.run(["cat", "/tmp/said"]).out)
        with pytest.raises(EnvError, match="did not answer"):
            walled.ask("pointer", within_s=3.0)
        assert walled.verdict() == "a program has kept the X server for itself"

    @pytest.mark.attack("agent")
    def test_who_listens_on_a_port_is_known(self, walled: Sandbox) -> None:
        walled.launch(["python3", "-m", "http.server", "--bind", "127.0.0.1", "8000"])
        wait_until(lambda: walled.ask("listener", port=8000))
        said = walled.ask("listener", port=8000)
        assert "python3" in said["program"] and said["genuine"]

    @pytest.mark.attack("agent")
    def test_a_desktop_whose_programs_take_all_memory_is_the_agents_doing(
        self, start: Start, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        group = memory.new_group(1)
        if group is None:
            pytest.skip("control groups cannot be made here")
        group.rmdir()
        monkeypatch.setattr(module, "MEMORY_MB", 400)
        walled = start(wall="gvisor")
        walled.wait()
        with contextlib.suppress(EnvError):
            walled.run(["python3", "-c", "b'x' * (600 << 20)"])
        wait_until(lambda: not walled.alive)
        assert walled.verdict() == "its programs took all memory that it may have"

    @pytest.mark.desktop("mousepad")
    def test_an_episode_is_played_and_scored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("SETTLE_S", "START_SETTLE_S"):
            monkeypatch.setattr(environment, name, 25.0)
        evaluator = {
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": "cat done || true", "shell": True},
            "expected": {"type": "rule", "rules": {"expected": "yes\n"}},
        }
        setup = {"config": [{"type": "launch", "parameters": {"command": ["mousepad", "done"]}}]}
        task = Task("one", "tests", "Do it.", "desktop", setup, evaluator, "test")
        with contextlib.closing(DesktopEnv(wall="gvisor")) as env:
            env.reset(task, 0)
            assert [sandbox.wall for sandbox in env.sandboxes] == ["gvisor"] * len(env.sandboxes)
            assert env.score() == 0.0
            env.reset(task, 0)
            window(env.sandbox, "done")
            env.step(Type("yes\n"))
            env.step(Hotkey(("ctrl", "s")))
            wait_until(lambda: env.sandbox.run(["test", "-s", "done"]).status == 0)
            env.step(Finish())
            assert env.score() == 1.0

    @pytest.mark.attack("agent")
    @pytest.mark.parametrize(
        "name", ["mount", "umount2", "pivot_root", "setns", "chroot", "ptrace", "syslog", "mq_open"]
    )
    def test_its_own_kernel_refuses_what_no_application_needs(self, shared: Sandbox, name: str) -> None:
        number = REFUSED[name][MACHINES[os.uname().machine][0]]
        call = f"libc.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno()"
        assert python(shared, "import ctypes; libc = ctypes.CDLL(None, use_errno=True)", f"print({call})") == "-1 1\n"

    @pytest.mark.attack("agent")
    def test_it_cannot_make_itself_another_world(self, shared: Sandbox) -> None:
        assert "not permitted" in shared.run(["unshare", "-Ur", "true"]).err
        assert "not permitted" in shared.run(["unshare", "-Urmp", "--fork", "true"]).err

    @pytest.mark.attack("agent")
    def test_a_fork_bomb_stays_inside_its_limit(self, walled: Sandbox) -> None:
        bomb = "import os, time\nwhile True:\n    if os.fork() == 0:\n        time.sleep(1000)"
        ran = walled.run(["python3", "-c", bomb])
        assert ran.status == 1 and "BlockingIOError" in ran.err
        assert walled.run(["echo", "here"]).out == "here\n"


@pytest.mark.desktop
@pytest.mark.parametrize("said", ["runsc version 0.0~20221219.0", "runsc version release-20230102.0", "nothing"])
def test_a_runsc_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str) -> None:
    (tmp_path / "runsc").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "runsc").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match=f"too old .*{gvisor.OLDEST} or newer"):
        Sandbox(SIZE, wall="gvisor")


@pytest.mark.desktop
def test_without_runsc_one_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gvisor.shutil, "which", lambda name: None if name == "runsc" else f"/usr/bin/{name}")
    with pytest.raises(ConfigError, match=r"runsc is missing; apt-get install .*runsc"):
        Sandbox(SIZE, wall="gvisor")


def test_a_wall_that_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.wall=paper: is one of bubblewrap, gvisor"):
        gvisor.refuse("paper")


@pytest.mark.desktop
def test_doctor_says_which_walls_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: (stands, detail, enable) for name, stands, detail, enable in walls()}
    assert list(found) == ["wall bubblewrap", "wall gvisor", "limit of memory"]
    assert all(detail for _, detail, _ in found.values())
    monkeypatch.setattr(gvisor.shutil, "which", lambda name: None)
    assert walls()[1] == ("wall gvisor", False, "runsc is missing (env.wall=gvisor)", gvisor.INSTALL)
