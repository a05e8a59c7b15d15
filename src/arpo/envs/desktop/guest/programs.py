"""The programs and files of a sandbox: what is started there, commands and their output, files read and written.

It runs inside (see inside.py), with the standard library. Programs are started by starter.py, in the agent's own
process namespace; here is what asks it to.
"""

import base64
import contextlib
import json
import os
import resource
import select
import selectors
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

HOME = "/home/user"
SCREEN = "/run/arpo/screen"  # the folder of Xvfb's framebuffer
MANAGED = "/run/arpo/managed"  # there when the window manager takes windows
START_S = 10.0  # for the window manager to start
ANSWER_S = 20.0  # for the starter to answer; it does nothing that takes time
CONNECT_S = 10.0
LARGEST_OUTPUT = 16 << 20  # bytes of a command's output that are kept
LARGEST_FILE = 64 << 20  # bytes of a file that is read
OWN_PROCESSES = 64  # of the limit, kept for this process and for checks: an agent that uses up its own leaves these


Answer = Future[dict[str, Any]]


class Program:
    """One that was started. `ended` can be read when it has, and `status` is then with what."""

    def __init__(self, number: int) -> None:
        self.number, self.pid = number, 0  # of the request; as programs see it
        self.status: int | None = None
        self.ended = os.eventfd(0)

    def __del__(self) -> None:
        os.close(self.ended)


class Programs:
    """Asks the starter, on behalf of any thread."""

    def __init__(self, starter: socket.socket) -> None:
        self._starter = starter
        self.nothing = os.open(os.devnull, os.O_RDWR)
        self._sending = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, Answer] = {}
        self._running: dict[int, Program] = {}
        self._launched: dict[int, Program] = {}

    def listen(self) -> None:
        """Hear what the starter says, from now on."""
        threading.Thread(target=self._listen, daemon=True).start()

    def begin(
        self,
        argv: Sequence[str] | str,
        shell: bool = False,
        cwd: str | None = None,
        more: dict[str, str] | None = None,
        files: Sequence[int] = (),
        check: bool = False,
    ) -> tuple[Program, Answer]:
        """A program of the desktop, in its own session, that is being started. `files`: its input, output and errors.

        `check`: it looks at what the agent did, so it may have the processes that the agent may not.
        """
        program = Program(next(self._numbers))
        most = resource.getrlimit(resource.RLIMIT_NPROC)[0] - (0 if check else OWN_PROCESSES)
        request = {"n": program.number, "argv": argv, "shell": shell, "cwd": cwd or HOME, "most": most}
        request["env"] = {**os.environ, **(more or {})}
        self._running[program.number] = program
        return program, self._ask(request, [*files, *[self.nothing] * (3 - len(files))])

    def start(self, *arguments: Any, **named: Any) -> Program:
        """The same, and it has been. ValueError where it cannot be."""
        program, answer = self.begin(*arguments, **named)
        try:
            program.pid = _answered(answer)["pid"]
        except BaseException:
            self._running.pop(program.number, None)
            raise
        return program

    def signal(self, number: int, but: Sequence[str] = ()) -> list[int]:
        """All programs. `but`: those that go on, by the path of what they run. Those that did not stand still."""
        ran: list[int] = _answered(self._ask({"n": next(self._numbers), "signal": int(number), "but": list(but)}))[
            "ran"
        ]
        return ran

    def run(
        self,
        argv: list[str] | str,
        shell: bool,
        limit_s: float,
        cwd: str | None = None,
        more: dict[str, str] | None = None,
        check: bool = False,
    ) -> dict[str, Any]:
        """Run a command to its end; killed with all it started where it takes too long."""
        pipes = [os.pipe() for _ in range(2)]
        try:
            program = self.start(argv, shell, cwd, more, [self.nothing, *(write for _, write in pipes)], check)
        except BaseException:
            for read, _ in pipes:
                os.close(read)
            raise
        finally:
            for _, write in pipes:
                os.close(write)
        with contextlib.ExitStack() as stack:
            outputs = [stack.enter_context(open(read, "rb", 0)) for read, _ in pipes]
            out, err, late = _collect(program, outputs, time.monotonic() + limit_s)
        if late:
            self._send({"kill": program.number})
            select.select([program.ended], [], [], ANSWER_S)
        return {"status": program.status, "out": out, "err": err, "late": late}

    def launch(
        self, argv: list[str] | str, shell: bool, cwd: str | None = None, more: dict[str, str] | None = None
    ) -> int:
        """Start a command and leave it alone."""
        program = self.start(argv, shell, cwd, more)
        self._launched[program.pid] = program
        return program.pid

    def status(self, pid: int) -> int | None:
        """The status with which a launched program ended; None while it runs."""
        return self._launched[pid].status

    def _ask(self, request: dict[str, Any], files: Sequence[int] = ()) -> Answer:
        self._waiting[request["n"]] = answer = Answer()
        self._send(request, files)
        return answer

    def _send(self, request: dict[str, Any], files: Sequence[int] = ()) -> None:
        text = json.dumps(request).encode()
        with self._sending:
            socket.send_fds(self._starter, [len(text).to_bytes(4, "big")], files)
            self._starter.sendall(text)

    def _listen(self) -> None:
        for text in self._starter.makefile("rb"):
            said = json.loads(text)
            if "ended" not in said:
                if (answer := self._waiting.pop(said["n"], None)) is not None:  # of a kill nobody waits
                    answer.set_result(said)
            elif (program := self._running.pop(said["ended"], None)) is not None:  # nor for one that came too late
                program.status = said["status"]
                os.eventfd_write(program.ended, 1)
        os._exit(1)  # the starter has ended, and all programs with it: there is no desktop any more


class StarterLost(Exception):
    """It does not answer. No program can keep it, so it is the machine."""


def _answered(answer: Answer) -> dict[str, Any]:
    try:
        said = answer.result(ANSWER_S)
    except TimeoutError:
        raise StarterLost(f"the process that starts programs did not answer within {ANSWER_S:g} s") from None
    if "error" in said:
        raise ValueError(said["error"])
    return said


def _collect(program: Program, outputs: Sequence[Any], deadline: float) -> tuple[str, str, bool]:
    """What a program says until it has ended, and whether it was too late for that.

    What it leaves in the background may keep its pipes open: that is not waited for.
    """
    said: dict[Any, bytearray] = {output: bytearray() for output in outputs}
    with selectors.DefaultSelector() as selector:
        selector.register(program.ended, selectors.EVENT_READ)
        for pipe in said:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        alive = True
        while alive and (left := deadline - time.monotonic()) > 0:
            ready = [key.fileobj for key, _ in selector.select(left)]
            alive = program.ended not in ready
            for pipe in said if not alive else ready:
                if not _drain(pipe, said[pipe]) and alive:
                    selector.unregister(pipe)
    out, err = (bytes(data).decode("utf-8", "replace") for data in said.values())
    return out, err, alive


def _drain(pipe: Any, into: bytearray) -> bool:
    """Take what is in a pipe; more than the largest output is dropped. False: it is closed."""
    while data := pipe.read(1 << 16):
        into += data[: LARGEST_OUTPUT - len(into)]
    return data is None


# The desktop's own programs.


def start_bus(programs: Programs) -> Any:
    """The session bus, at the address that programs know; when it is up, a line can be read from what is returned."""
    read, write = os.pipe()
    words = ["--session", "--nofork", "--nopidfile", f"--address={os.environ['DBUS_SESSION_BUS_ADDRESS']}"]
    programs.begin(["dbus-daemon", *words, "--print-address=1"], files=[programs.nothing, write])
    os.close(write)
    return open(read)


def wait_for_bus(bus: Any) -> None:
    with bus:
        if not bus.readline():
            raise RuntimeError("dbus-daemon did not start")


def start_manager(programs: Programs) -> Program:
    return programs.start(["openbox", "--startup", f"touch {MANAGED}"])


def wait_for_manager(manager: Program) -> None:
    """A window manager says that it is there well before it takes windows; only then does it run its command."""
    deadline = time.monotonic() + START_S
    while not os.path.exists(MANAGED):
        if manager.status is not None or time.monotonic() > deadline:
            raise RuntimeError(f"openbox did not start (status {manager.status})")
        time.sleep(0.002)


def unpack(home: int) -> subprocess.Popen[str]:
    """The home folder, from a tar file; `unpacked` waits for it."""
    words = ["tar", "--no-same-owner", "--no-same-permissions", "-xf", "-"]
    return subprocess.Popen(words, stdin=home, stderr=subprocess.PIPE, text=True)


def unpacked(tar: subprocess.Popen[str]) -> None:
    said = tar.communicate()[1]
    if tar.returncode:
        raise RuntimeError(f"the home folder cannot be made: {said.strip()}")


def start_x(pixels: int, width: int, height: int, lower: Callable[[], None]) -> tuple[subprocess.Popen[bytes], Any]:
    """The X server, drawing into a file that is given: one in memory that nobody here can make shorter.

    `lower`: takes its privileges, in it. When it is up, a line can be read from what is returned.
    """
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
        preexec_fn=lower,
    )  # fmt: skip
    os.close(write)
    return server, open(read)


def wait_for_x(server: subprocess.Popen[bytes], up: Any) -> None:
    with up:
        if not up.readline():  # all of the line: it writes in pieces, and a closed pipe would end it
            raise RuntimeError(f"Xvfb ended with status {server.wait()}")


# Files and ports.


def read(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would never open
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode) or state.st_size > LARGEST_FILE:
            raise ValueError(f"{path} is not a file of at most {LARGEST_FILE >> 20} MB")
        return base64.b64encode(file.read(LARGEST_FILE)).decode()


def write(path: str, data: str, more: bool = False) -> None:
    """`more`: at its end."""
    path = os.path.join(HOME, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    how = os.O_APPEND if more else os.O_CREAT | os.O_TRUNC
    with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK | how, 0o644), "wb") as file:
        file.write(base64.b64decode(data))


def connect(port: int) -> socket.socket:
    """A connection to a program here, which is handed out whole: nothing has to relay its bytes."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S)  # its queue may be full for ever
    connection.settimeout(None)
    return connection


def relay(port: int, to: int) -> None:
    """The same where no open file can be handed out: `to` was handed in, and bytes go from one to the other."""
    outer = socket.socket(fileno=to)
    try:
        inner = connect(port)
    except OSError:
        outer.close()
        raise
    for one, other in ((inner, outer), (outer, inner)):
        threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):  # one side is gone, and the other sees it
        while data := one.recv(1 << 16):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
