"""What an agent with a terminal tries against its own desktop, other desktops and the host.

What it tries against its score is in test_attack_score.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from traces import Traces, python, wait_until

from arpo.envs import memory
from arpo.envs.desktop import sandbox as module
from arpo.envs.desktop.guest import walls
from arpo.envs.desktop.sandbox import MOST_PROCESSES, Sandbox
from arpo.errors import EnvError

pytestmark = [pytest.mark.desktop, pytest.mark.attack("agent")]

Start = Callable[..., Sandbox]
COUNT = """
made = []
try:
    while len(made) < 5000:
        made.append({0})
except OSError as error:
    pass
print(len(made))
"""


def goes_on(sandbox: Sandbox) -> bool:
    """It is used and looked at as before."""
    sandbox.ask("click", x=1, y=1, button=1, count=1)
    return bool(sandbox.run(["true"]).status == 0 and sandbox.screenshot().shape)


# ---- against the processes that answer for the desktop


@pytest.mark.parametrize(
    "command",
    [
        "pkill -9 Xvfb",
        "pkill -9 -f guest.inside",
        "pkill -9 .",
        "kill -9 -1",
        "kill -STOP -1",
        "kill -9 1; kill -STOP 1; kill -SEGV 1",
        "for i in $(seq 1 400); do kill -9 $i; done",
    ],
)
def test_signals_do_not_reach_what_answers(command: str, sandbox: Sandbox) -> None:
    sandbox.run(command, limit_s=5.0)
    assert goes_on(sandbox)


@pytest.mark.parametrize("limit", ["--nofile=0:0", "--nproc=0:0", "--cpu=1:1", "--as=1:1", "--fsize=0:0"])
def test_limits_of_another_process_cannot_be_set(limit: str, sandbox: Sandbox) -> None:
    assert "not permitted" in sandbox.run(["prlimit", "--pid", "1", limit]).err
    assert "not permitted" in sandbox.run(f"sleep 5 & prlimit --pid $! {limit}").err
    assert goes_on(sandbox)


def test_priorities_of_what_answers_cannot_be_lowered(sandbox: Sandbox, traces: Traces) -> None:
    sandbox.run("renice -n 19 -u 1000; renice -n 19 -u 0; renice -n 19 -p 1")
    server = next(pid for pid, line in traces.processes().items() if line.startswith("Xvfb"))
    resident = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1]
    assert [os.getpriority(os.PRIO_PROCESS, int(pid)) for pid in (server, resident)] == [os.nice(0)] * 2


def test_a_program_that_keeps_the_x_server_for_itself_is_found_out(sandbox: Sandbox) -> None:
    hold = "d = display.Display(); d.grab_server(); d.sync(); print('held', flush=True); time.sleep(1000)"
    sandbox.launch(f'python3 -c "import time; from Xlib import display; {hold}" > /tmp/said')
    wait_until(lambda: sandbox.run(["cat", "/tmp/said"]).out)
    with pytest.raises(EnvError, match="did not answer"):
        sandbox.ask("pointer", within_s=1.0)
    assert sandbox.verdict() == "a program has kept the X server for itself"


def test_a_program_that_cuts_the_desktop_off_from_its_x_server_is_found_out(sandbox: Sandbox) -> None:
    cut = [
        "from Xlib import display",
        "d = display.Display()",
        "own = d.display.info.resource_id_base >> 21",
        "for client in range(1, own):",
        "    for number in range(40):",
        "        d.create_resource_object('window', client << 21 | number).kill_client(onerror=lambda *_: None)",
        "d.sync()",
    ]
    python(sandbox, *cut)
    with pytest.raises(EnvError, match="X server"):
        sandbox.ask("settle", limit_s=0.1, quiet_s=0.05, busy=0.1)
    assert sandbox.verdict() == "a program has cut this desktop off from its X server"


def test_nobody_puts_another_x_server_in_the_place_of_the_real_one(desk: Sandbox) -> None:
    assert "Read-only" in desk.run("rm -f /tmp/.X11-unix/X0").err
    assert "Read-only" in desk.run("mv /tmp/.X11-unix /tmp/other || mount --bind /tmp /tmp/.X11-unix").err + "Read-only"
    assert "in use" in python(desk, "import socket; socket.socket(1).bind('\\0/tmp/.X11-unix/X0')")


NAMES = {
    "too long": "'_NET_WM_NAME', 'UTF8_STRING', 8, b'x' * 200000",
    "numbers": "'WM_CLASS', 'INTEGER', 32, [1, 2, 3]",
    "no text": "'WM_CLASS', 'STRING', 8, b'\\xff\\xfe'",
}
SHOW = """
import time
from Xlib import display
d = display.Display()
window = d.screen().root.create_window(0, 0, 99, 99, 0, 0)
name, kind, size, value = {}
window.change_property(d.intern_atom(name), d.intern_atom(kind), size, value)
window.map()
d.sync()
time.sleep(1000)
"""


@pytest.mark.parametrize("name", NAMES)
def test_what_a_program_says_of_its_window_does_no_harm(name: str, sandbox: Sandbox) -> None:
    sandbox.write("/tmp/show.py", SHOW.format(NAMES[name]).encode())
    sandbox.launch(["python3", "/tmp/show.py"])
    wait_until(lambda: sandbox.ask("windows"))
    (shown,) = sandbox.ask("windows")
    assert len(shown["class"]) == 2 and len(shown["title"]) <= 4096


# ---- system calls that applications never need


NEEDLESS = (
    "add_key request_key keyctl io_setup io_uring_setup userfaultfd perf_event_open bpf ptrace process_vm_readv "
    "process_vm_writev pidfd_getfd memfd_secret fanotify_init name_to_handle_at kcmp mount setns chroot"
).split()


@pytest.mark.parametrize("name", NEEDLESS)
def test_a_system_call_that_no_application_needs_is_refused(name: str, desk: Sandbox) -> None:
    number = walls.REFUSED[name][walls.MACHINES[os.uname().machine][0]]
    call = f"libc.syscall({number}, 0, 0, 0, 0, 0), ctypes.get_errno()"
    assert python(desk, "import ctypes; libc = ctypes.CDLL(None, use_errno=True)", f"print({call})") == "-1 1\n"


@pytest.mark.parametrize("flag", ["0x10000000", "0x20000000", "0x40000000", "0x00020000"])
def test_namespaces_cannot_be_made_by_any_call(flag: str, desk: Sandbox) -> None:
    unshare, clone, clone3 = (
        numbers[walls.MACHINES[os.uname().machine][0]] for numbers in (walls.UNSHARE, walls.CLONE, walls.CLONE3)
    )
    lines = ["import ctypes; libc = ctypes.CDLL(None, use_errno=True)"]
    for call in (f"{unshare}, {flag}", f"{clone}, {flag} | 17, 0, 0, 0, 0", f"{clone3}, 0, 0"):
        lines.append(f"print(libc.syscall({call}), ctypes.get_errno())")
    assert python(desk, *lines) == "-1 1\n-1 1\n-1 38\n"


@pytest.mark.parametrize("family", ["AF_VSOCK", "AF_ALG", "AF_PACKET", "AF_BLUETOOTH", "AF_CAN"])
def test_sockets_that_the_host_shares_cannot_be_made(family: str, desk: Sandbox) -> None:
    said = python(desk, f"import socket; socket.socket(socket.{family}, socket.SOCK_STREAM)")
    assert "not supported by protocol" in said  # "Address family …"


def test_a_program_of_another_kind_of_processor_has_no_system_calls(desk: Sandbox) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("only this processor runs two kinds of programs")
    # mov eax, 20 (getpid); int 0x80; ret
    code = "m = mmap.mmap(-1, 4096, prot=7); m.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')"
    call = "print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())"
    assert python(desk, "import ctypes, mmap", code, call) == "-38\n"


# ---- what the kernel counts for a user or for the whole machine


LIMITED = {
    "event queues": ("__import__('ctypes').CDLL(None).inotify_init() + 1 or int('x')", 64),
    "terminals": ("__import__('os').openpty()", walls.MOST_TERMINALS),
    "open files": ("open('/dev/null')", walls.MOST_FILES),
    "processes": ("__import__('subprocess').Popen(['sleep', '1000'])", MOST_PROCESSES),
}


@pytest.mark.parametrize("what", LIMITED)
def test_one_desktop_cannot_use_up(what: str, start: Start) -> None:
    one, other = start(), start()
    make, most = LIMITED[what]
    count = COUNT.format(make).replace("except OSError", "except (OSError, ValueError)")
    hold = f"{count}\nimport sys, time; sys.stdout.flush(); time.sleep(1000)"
    one.write("/tmp/take.py", hold.encode())
    one.launch("python3 /tmp/take.py > /tmp/taken")
    wait_until(lambda: one.run(["cat", "/tmp/taken"]).out)
    assert 10 < int(one.run(["cat", "/tmp/taken"]).out) <= most
    assert goes_on(one)
    few = COUNT.format(make).replace("5000", "10").replace("except OSError", "except (OSError, ValueError)")
    assert python(other, few) == "10\n"


def test_descriptors_on_their_way_do_not_keep_a_desktop_from_handing_out_connections(start: Start) -> None:
    one, other = start(), start()
    send = [
        "import os, socket, time",
        "pairs, sent = [socket.socketpair() for _ in range(100)], 0",
        "try:",
        "    for left, _ in pairs * 100:",
        "        socket.send_fds(left, [b'x'], [0] * 100); sent += 100",
        "except OSError: pass",
        "print(sent, flush=True); time.sleep(1000)",
    ]
    for sandbox in (one, other):
        sandbox.write("/tmp/send.py", "\n".join(send).encode())
        sandbox.launch("socat TCP-LISTEN:7777,fork,reuseaddr EXEC:true")
        wait_until(partial(sandbox.ask, "listener", port=7777))
    one.launch("python3 /tmp/send.py > /tmp/sent")
    wait_until(lambda: one.run(["cat", "/tmp/sent"]).out)
    assert int(one.run(["cat", "/tmp/sent"]).out) <= 2 * walls.MOST_FILES
    for sandbox in (one, other):
        sandbox.connect(7777).close()


@pytest.mark.parametrize("folder", walls.MOST_ENTRIES)
def test_empty_files_are_refused_before_they_take_the_memory(folder: str, sandbox: Sandbox) -> None:
    make = f"[open(f'{folder}/{{n}}', 'w').close() for n in range({walls.MOST_ENTRIES[folder] + 10})]"
    assert "No space left" in python(sandbox, make)
    assert goes_on(sandbox)


def test_how_soon_a_program_goes_when_memory_is_short_cannot_be_changed(desk: Sandbox) -> None:
    for how in (0, 500, -1000):
        assert "Read-only" in desk.run(f"echo {how} > /proc/self/oom_score_adj").err
    assert desk.run(["cat", "/proc/self/oom_score_adj"]).out == "1000\n"


@pytest.fixture
def small(start: Start, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """One with little memory."""
    group = memory.new_group(1)
    if group is None:
        pytest.skip("control groups cannot be made here")
    group.rmdir()
    monkeypatch.setattr(module, "MEMORY_MB", 250)
    sandbox = start()
    sandbox.wait()
    return sandbox


def test_many_small_programs_that_fill_the_memory_do_not_cost_the_desktop(small: Sandbox) -> None:
    small.write("/tmp/small.py", b"x = b'x' * (6 << 20); __import__('time').sleep(20)")
    small.run("for i in $(seq 60); do python3 -S /tmp/small.py & done; sleep 8")
    assert small._full(), "the attack was made"
    assert goes_on(small)


def test_shared_memory_goes_with_the_programs_that_made_it(small: Sandbox) -> None:
    make = "shm = [libc.shmget(0, 20 << 20, 0o1600) for _ in range(5)]; libc.shmat.restype = ctypes.c_void_p"
    fill = "[ctypes.memset(libc.shmat(one, None, 0), 1, 20 << 20) for one in shm]; print(len(shm))"
    assert python(small, "import ctypes; libc = ctypes.CDLL(None)", make, fill) == "5\n"
    assert small.run("ipcs -m").out.count("0x") == 0
    assert goes_on(small)


# ---- what tells of the host


@pytest.mark.parametrize("name", ["cmdline", "keys", "kallsyms", "kcore", "config.gz", "interrupts", "iomem", "kmsg"])
def test_proc_tells_nothing_of_the_host(name: str, desk: Sandbox) -> None:
    assert desk.run(["cat", f"/proc/{name}"]).out == ""


def test_the_hosts_identity_is_not_there(desk: Sandbox) -> None:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        assert desk.run(["cat", path]).out == module.MACHINE
    own = [Path(path).read_text() for path in ("/etc/machine-id", "/var/lib/dbus/machine-id") if Path(path).exists()]
    assert module.MACHINE not in own


# ---- checks have room, whatever an agent has taken


def test_a_fork_bomb_does_not_keep_a_check_from_running(sandbox: Sandbox) -> None:
    bomb = "import os, time\nwhile True:\n    try: os.fork()\n    except OSError: time.sleep(0.1)"
    sandbox.launch(["python3", "-c", bomb])
    wait_until(lambda: sandbox.run("true | true").status != 0)
    assert sandbox.run("echo 1 | cat | cat", check=True).out == "1\n"
    with sandbox.frozen():
        assert sandbox.run("echo 1 | cat | cat", check=True).out == "1\n"


def test_nothing_that_an_agent_left_runs_once_it_is_frozen(sandbox: Sandbox) -> None:
    sandbox.launch("while true; do date +%N > /tmp/tick; kill -CONT -1; done")
    sandbox.launch(["setsid", "python3", "-c", "import os\nwhile True: os.fork() or os._exit(0); os.wait()"])
    wait_until(lambda: sandbox.run(["cat", "/tmp/tick"]).out)
    with sandbox.frozen():
        before = sandbox.run("cat /tmp/tick; sleep 0.5", check=True).out
        assert sandbox.run(["cat", "/tmp/tick"], check=True).out == before
        states = sandbox.run("ps -eo stat=,comm=", check=True).out.splitlines()
        assert {line.split()[1] for line in states if not line.startswith(("T", "Z"))} <= {"python3", "sh", "ps"}
