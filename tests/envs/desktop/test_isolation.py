"""What programs on a desktop can and cannot reach: docs/sandbox.md, line by line."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from traces import SIZE, Traces, python, wait_until

from arpo.envs.desktop import shims
from arpo.envs.desktop.sandbox import SURROUNDINGS, Sandbox
from arpo.errors import EnvError

pytestmark = pytest.mark.desktop


# ---- no network


def test_there_is_no_network_but_its_own(desk: Sandbox) -> None:
    names = [line.split(":")[0].strip() for line in desk.run(["cat", "/proc/net/dev"]).out.splitlines()[2:]]
    assert names == ["lo"]
    assert desk.run(["cat", "/proc/net/route"]).out.count("\n") <= 1, "there is a route"
    assert "Network is unreachable" in python(desk, "import socket; socket.create_connection(('192.0.2.1', 80), 5)")


def test_the_hosts_ports_are_out_of_reach(desk: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "Connection refused" in python(
            desk, f"import socket; socket.create_connection(('127.0.0.1', {port}), 5)"
        )


def test_the_hosts_named_sockets_are_out_of_reach(desk: Sandbox) -> None:
    name = f"arpo-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        assert "Connection refused" in python(desk, f"import socket; socket.socket(1).connect('\\0{name}')")
    assert desk.run(["cat", "/proc/net/unix"]).out.count("@") <= desk.run(["pgrep", "."]).out.count("\n")


# ---- no files of the host


def test_files_of_the_host_are_not_there(desk: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("")
    mine = [__file__, tmp_path / "secret", Path.home(), Path.cwd()]
    theirs = "/root /etc/shadow /etc/ssh /etc/ssl /var/log /srv /mnt /media /opt /boot /sys/kernel".split()
    for path in (*mine, *theirs):
        if str(path).startswith("/usr"):
            continue
        assert desk.run(["test", "-e", str(path)]).status == 1, path
    assert desk.run(["ls", "/home"]).out == "user\n"
    assert [line.split(":")[0] for line in desk.read("/etc/passwd").decode().splitlines()] == ["root", "user"]


def test_processes_of_the_host_are_not_there(desk: Sandbox) -> None:
    own = {"python3", "dbus-daemon", "openbox", "ps"}
    assert {line.strip() for line in desk.run("exec ps -eo comm=").out.splitlines()} <= own
    assert desk.run(["kill", "-0", str(os.getpid())]).status == 1


def test_variables_of_the_host_are_not_there(monkeypatch: pytest.MonkeyPatch, start: Callable[..., Sandbox]) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    names = {line.split("=")[0] for line in start().run(["env", "-u", "PWD"]).out.splitlines()}
    assert names == {*SURROUNDINGS, "ARPO_TEST"}


def test_programs_are_given_no_open_files(desk: Sandbox) -> None:
    listed = python(
        desk, "import os", "print([os.readlink(f'/proc/self/fd/{n}') for n in '012'], os.listdir('/proc/self/fd'))"
    )
    assert "['0', '1', '2', '3']" in listed  # the last: the folder that is being listed


# ---- nothing outside its own folders can be written


@pytest.mark.parametrize(
    "path",
    "/x /usr/x /usr/bin/ls /etc/x /etc/passwd /bin/x /dev/x /var/x /home/x /proc/sys/kernel/hostname /sys/x".split()
    + [f"{folder}/x" for folder in (shims.FOLDER, shims.PYTHON, shims.AS)],
)
def test_it_cannot_write(path: str, desk: Sandbox) -> None:
    ran = desk.run(f"echo >{path}")
    assert ran.status != 0 and ("Read-only" in ran.err or "Permission denied" in ran.err or "nonexist" in ran.err)


def test_what_an_agent_leaves_in_its_home_is_not_run_by_a_checkers_python(desk: Sandbox) -> None:
    code = "import site, os; os.makedirs(site.getusersitepackages()); "
    code += "open(site.getusersitepackages() + '/usercustomize.py', 'w').write('print(1)')"
    assert desk.run(f'python3 -c "{code}"').status == 0
    assert desk.run("python3 -c pass").out == ""


# ---- no privileges


def test_no_process_has_privileges_or_can_get_them(desk: Sandbox) -> None:
    status = desk.run("cat /proc/[0-9]*/status").out
    rows = [line.split(":\t") for line in status.splitlines() if line.startswith(("Cap", "NoNewPrivs", "Uid"))]
    found = {(name, value) for name, value in rows}
    assert found == {
        *((f"Cap{kind}", "0" * 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")),
        ("NoNewPrivs", "1"),
        ("Uid", "1000\t1000\t1000\t1000"),
    }
    mounts = [
        line.split() for line in desk.run(["cat", "/proc/self/mountinfo"]).out.splitlines() if " - proc " not in line
    ]
    assert all("nosuid" in fields[5].split(",") for fields in mounts), "a program could change who runs it"


@pytest.mark.parametrize(
    "command", ["unshare -U true", "unshare -n true", "mount -t tmpfs none /tmp", "chroot /", "su"]
)
def test_it_cannot_make_itself_another_world(command: str, desk: Sandbox) -> None:
    assert desk.run(command).status != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="who is not root has nothing to give up")
def test_to_the_host_nothing_inside_is_root(sandbox: Sandbox, traces: Traces) -> None:
    ours = {os.stat(f"/proc/{pid}").st_uid: line for pid, line in traces.processes().items() if line[:3] != "sh "}
    outside = {uid for uid, line in ours.items() if "guest.inside" not in line}  # that one's files are called root's
    assert 0 not in outside and outside


# ---- no other desktop


def test_one_desktop_sees_nothing_of_another(start: Callable[..., Sandbox]) -> None:
    one, other = start(), start()
    one.launch(["xev"])
    wait_until(lambda: one.ask("windows"))
    assert other.ask("windows") == []
    for folder in ("/home/user", "/tmp", "/dev/shm", "/run"):
        one.write(f"{folder}/mine", b"")
        assert other.run(["test", "-e", f"{folder}/mine"]).status == 1
    assert other.run(["pgrep", "xev"]).status == 1
    share = "import ctypes, time; print(ctypes.CDLL(None).shmget(77, 4096, 0o1666), flush=True); time.sleep(1000)"
    one.launch(f'python3 -c "{share}" > /tmp/shared')
    wait_until(lambda: one.run(["cat", "/tmp/shared"]).out)
    assert python(one, "import ctypes; print(ctypes.CDLL(None).shmget(77, 4096, 0) >= 0)") == "True\n"
    assert python(other, "import ctypes; print(ctypes.CDLL(None).shmget(77, 4096, 0) >= 0)") == "False\n"


# ---- programs cannot pass for the process that answers, nor harm who asks


def test_a_program_cannot_look_into_the_process_that_starts_programs(desk: Sandbox) -> None:
    for name in ("mem", "environ", "fd/3", "maps"):
        assert "Permission denied" in desk.run(["cat", f"/proc/1/{name}"]).err
    attach = "libc = ctypes.CDLL(None, use_errno=True); print(libc.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    assert python(desk, "import ctypes", attach) == "-1 1\n"


def test_the_process_that_answers_and_the_x_server_cannot_be_seen(desk: Sandbox) -> None:
    assert desk.run("pgrep -x Xvfb || pgrep -x bwrap").status == 1
    assert desk.run(["pgrep", "-f", "guest.inside"]).out.split() == ["1"]


@pytest.mark.parametrize("how", ["cut short", "scribbled over"])
def test_a_screen_that_is_spoilt_from_outside_is_machinery(how: str, sandbox: Sandbox, traces: Traces) -> None:
    server = next(pid for pid, line in traces.processes().items() if line.startswith("Xvfb"))
    folder = Path(f"/proc/{server}/fd")
    screen = next(fd for fd in folder.iterdir() if "memfd" in os.readlink(fd))
    with screen.open("r+b") as file:
        if how == "cut short":
            with pytest.raises(OSError, match="not permitted"):
                file.truncate(0)
            assert sandbox.screenshot().shape == (SIZE[1], SIZE[0], 3)
        else:
            file.write(b"\xff" * 100)
            file.flush()
            with pytest.raises(EnvError, match="the screen is damaged"):
                sandbox.screenshot()


def test_the_page_names_tests_that_are_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", Path(__file__).parents[3].joinpath("docs/sandbox.md").read_text()))
    there = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert len(named) > 20
    assert {name for name in named if f"def {name}(" not in there} == set()
