"""The programs and files of a sandbox: what is started there, commands and their output, files read and written.

It runs inside (see inside.py), with the standard library.
"""

import base64
import os
import resource
import selectors
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any

HOME = "/home/user"
SCREEN = "/run/arpo/screen"  # the folder of Xvfb's framebuffer
MANAGED = "/run/arpo/managed"  # there when the window manager takes windows
START_S = 10.0  # for the window manager to start
LARGEST_OUTPUT = 16 << 20  # bytes of a command's output that are kept
LARGEST_FILE = 64 << 20  # bytes of a file that is read
OWN_PROCESSES = 64  # of the limit, kept for this process: applications that use up theirs leave the desktop usable

launched: dict[int, subprocess.Popen[bytes]] = {}

# Starting programs.


def start(argv: Sequence[str] | str, **more: Any) -> subprocess.Popen[bytes]:
    """A program of the desktop, in its own session; its own limits leave room for this process."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
    return subprocess.Popen(argv, start_new_session=True, preexec_fn=_leave_room, **given)


def _leave_room() -> None:
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0] - OWN_PROCESSES
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def reap(process: subprocess.Popen[bytes]) -> None:
    """Let it run, and no zombie be left of it."""
    threading.Thread(target=process.wait, daemon=True).start()


def start_bus() -> Any:
    """The session bus, at the address that programs know; when it is up, a line can be read from what is returned."""
    read, write = os.pipe()
    words = ["--session", "--nofork", "--nopidfile", f"--address={os.environ['DBUS_SESSION_BUS_ADDRESS']}"]
    reap(start(["dbus-daemon", *words, f"--print-address={write}"], pass_fds=[write]))
    os.close(write)
    return open(read)


def wait_for_bus(bus: Any) -> None:
    with bus:
        if not bus.readline():
            raise RuntimeError("dbus-daemon did not start")


def start_manager() -> subprocess.Popen[bytes]:
    return start(["openbox", "--startup", f"touch {MANAGED}"])


def wait_for_manager(manager: subprocess.Popen[bytes]) -> None:
    """A window manager says that it is there well before it takes windows; only then does it run its command."""
    deadline = time.monotonic() + START_S
    while not os.path.exists(MANAGED):
        if manager.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"openbox did not start (status {manager.returncode})")
        time.sleep(0.002)
    reap(manager)


def unpack(home: int) -> None:
    """The home folder, from a tar file."""
    unpacked = subprocess.run(["tar", "-xf", "-"], stdin=home, stderr=subprocess.PIPE, text=True)
    if unpacked.returncode:
        raise RuntimeError(f"the home folder cannot be made: {unpacked.stderr.strip()}")
    os.close(home)


def start_x(pixels: int, width: int, height: int) -> subprocess.Popen[bytes]:
    """The X server, drawing into a file that is given: one in memory that nobody here can make shorter."""
    os.makedirs(SCREEN)
    os.symlink(f"/proc/self/fd/{pixels}", os.path.join(SCREEN, "Xvfb_screen0"))
    read, write = os.pipe()
    server = subprocess.Popen(
        [
            "Xvfb", ":0", "-screen", "0", f"{width}x{height}x24", "-fbdir", SCREEN, "-nolisten", "tcp", "-noreset",
            "-extension", "GLX", "-displayfd", str(write),
        ],
        pass_fds=[write, pixels],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(write)
    with open(read) as ready:
        if not ready.readline():  # all of the line: it writes in pieces, and a closed pipe would end it
            raise RuntimeError(f"Xvfb ended with status {server.wait()}")
    return server


# Commands and files.


def run(
    argv: list[str] | str, shell: bool, limit_s: float, cwd: str | None = None, more: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run a command to its end; killed with all it started where it takes too long."""
    process = start(
        argv,
        shell=shell,
        cwd=cwd or HOME,
        env={**os.environ, **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        out, err, late = _collect(process, time.monotonic() + limit_s)
        if late:
            os.killpg(process.pid, signal.SIGKILL)
    return {"status": process.returncode, "out": out, "err": err, "late": late}


def _collect(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, str, bool]:
    """What a process says until it has ended, and whether it was too late for that.

    What it leaves in the background may keep its pipes open: that is not waited for.
    """
    said: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    ended = os.pidfd_open(process.pid)
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        for pipe in said:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        alive = True
        while alive and (left := deadline - time.monotonic()) > 0:
            ready = [key.fileobj for key, _ in selector.select(left)]
            alive = ended not in ready
            for pipe in said if not alive else ready:
                if not _drain(pipe, said[pipe]) and alive:
                    selector.unregister(pipe)
    os.close(ended)
    out, err = (bytes(data).decode("utf-8", "replace") for data in said.values())
    return out, err, alive


def _drain(pipe: Any, into: bytearray) -> bool:
    """Take what is in a pipe; more than the largest output is dropped. False: it is closed."""
    while data := pipe.read(1 << 16):
        into += data[: LARGEST_OUTPUT - len(into)]
    return data is None


def launch(argv: list[str] | str, shell: bool, cwd: str | None = None, more: dict[str, str] | None = None) -> int:
    """Start a command and leave it alone."""
    process = start(argv, shell=shell, cwd=cwd or HOME, env={**os.environ, **(more or {})})
    reap(process)
    launched[process.pid] = process
    return process.pid


def status(pid: int) -> int | None:
    """The status with which a launched program ended; None while it runs."""
    return launched[pid].returncode


def read(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would never open
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_size > LARGEST_FILE:
            raise ValueError(f"{path} is not a file of at most {LARGEST_FILE >> 20} MB")
        return base64.b64encode(file.read(LARGEST_FILE)).decode()


def write(path: str, data: str) -> None:
    path = os.path.join(HOME, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644), "wb") as file:
        file.write(base64.b64decode(data))


def connect(port: int) -> socket.socket:
    """A connection to a program here, which is handed out whole: nothing has to relay its bytes."""
    return socket.create_connection(("127.0.0.1", port), timeout=None)
