"""The resident process of a sandbox: starts its desktop, then acts, looks and runs commands there on request.

It runs under the system's own Python with the standard library and Xlib, and is the only thing that the outside talks
to: JSON lines through one socket, answered in any order by their "id". When the socket closes it ends, and with it the
sandbox.

    {"id": 1, "do": "click", "with": {"x": 120, "y": 44, "button": 1, "count": 1}}       {"id": 1, "is": null}
    {"id": 2, "do": "run", "with": {"argv": ["ls"], "shell": false, "limit_s": 120}}     {"id": 2, "is": {…}}
    {"id": 3, "do": "press", "with": {"keysyms": [0]}}                 {"id": 3, "error": "…", "fatal": false}

"fatal": the desktop is lost, and not only this request refused.

It and the X server are in the sandbox's outer process namespace; the agent's programs are in an inner one, from which
nothing around can be seen, signalled or limited. The inner one's first process is starter.py. The two share their
files, their network and their screen.
"""

import contextlib
import json
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from Xlib import error

from . import programs, starter, walls
from .screen import MOST_AT_ONCE, PROGRAM_CALLS, SCREEN_CALLS, Screen
from .witness import Alibi, listener, verdict

REQUESTS = "/run/arpo/requests"  # a socket through which programs here ask: pyautogui does
REQUEST_S = 5.0  # for one to say what it wants
LONGEST_REQUEST = 1 << 16  # bytes of that
USER = 1000  # as whom programs run
FIRST_TO_GO, NEXT_TO_GO = "1000", "500"  # where there is no memory left: programs, then this process and the X server
KERNEL = {  # of this sandbox alone
    "user/max_inotify_instances": "64",
    "user/max_inotify_watches": "65536",
    "kernel/shm_rmid_forced": "1",  # shared memory goes with its last user
}
BAD_REQUEST = OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError
EMPTY = "/arpo/empty"
# Of /proc: what tells of the host.
HOSTS_OWN = """cmdline keys key-users kcore kallsyms kmsg modules config.gz version_signature timer_list sched_debug
interrupts softirqs diskstats partitions iomem ioports slabinfo vmallocinfo pagetypeinfo buddyinfo zoneinfo
scsi acpi asound bus irq fs driver sysrq-trigger pressure""".split()


def main() -> None:
    try:
        serve()
    finally:
        with contextlib.suppress(ProcessLookupError):  # there are none
            os.kill(-1, signal.SIGKILL)  # all others here: the namespace ends when its last process does


def serve() -> None:
    given = int(sys.argv[1])  # maybe what is else called standard output: nobody is to inherit it
    connection = socket.socket(fileno=os.dup(given))
    os.dup2(os.open(os.devnull, os.O_WRONLY), given)
    pixels, home, width, height, most_processes, second_wall = map(int, sys.argv[2:8])
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)  # of the outer processes; programs get another
    own = Walls(proc, most_processes, bool(second_wall))
    os.chdir(programs.HOME)
    server, up = programs.start_x(pixels, width, height, own.lower)
    tar = programs.unpack(home) if home >= 0 else None
    programs.wait_for_x(server, up)  # it finds its file by /proc, which is another from now on
    started = programs.Programs(own.start_starter())
    bus = programs.start_bus(started)
    own.finish()  # before the first thread: each thread has privileges of its own
    started.listen()
    if tar is not None:
        programs.unpacked(tar)
    os.makedirs("Desktop", exist_ok=True)
    manager, screen = programs.start_manager(started), Screen(server, proc)
    programs.wait_for_bus(bus)
    programs.wait_for_manager(manager)
    requests = socket.socket(socket.AF_UNIX)
    requests.bind(REQUESTS)
    requests.listen()
    resident = Resident(connection, screen, started, proc)
    threading.Thread(target=resident.accept, args=(requests,), daemon=True).start()
    connection.sendall(json.dumps(own.lacking).encode() + b"\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # from now on nobody reads what is said there
    resident.converse()


class Walls:
    """What this process does to itself, to the X server and to programs before any of them runs what is not ours.

    `lacking`: what the kernel does not have. `second`: it is gVisor's.
    """

    def __init__(self, proc: int, most_processes: int, second: bool) -> None:
        self.lacking: list[str] = []
        self._proc, self._second = proc, second
        self._filter: bytes | None = None
        self.first_to_go(NEXT_TO_GO)
        walls.hide()
        resource.setrlimit(resource.RLIMIT_NPROC, (most_processes, most_processes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with self.wall("limits of the number of files"):
            for name, most in walls.MOST_ENTRIES.items():
                walls.remount(name, f"nr_inodes={most}")
        with self.wall("a limit of terminals"):
            walls.remount(
                "/dev/pts", f"ptmxmode=0666,mode=620,max={walls.MOST_TERMINALS}", walls.NO_SUID | walls.NO_PROGRAMS
            )
        for name, value in KERNEL.items():
            with self.wall(f"its own {name}"):
                walls.set_kernel(name, value, proc)
        with self.wall("a filter of system calls"):
            self._filter = walls.filter_program(second)

    @contextlib.contextmanager
    def wall(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as failure:
            self.lacking.append(f"{name} ({failure.strerror})")

    def lower(self) -> None:
        """No privileges, and the filter."""
        walls.drop_privileges()
        if self._filter is not None:
            walls.filter_calls(self._filter)

    def start_starter(self) -> socket.socket:
        """The process namespace of the agent's programs, with its first process; a connection to it."""
        ours, theirs = socket.socketpair()
        ready, done = os.pipe()
        if not (helper := os.fork()):  # a process whose children go elsewhere can have no threads: it is another's
            try:
                walls.unshare(walls.NEW_PROCESSES)
                if os.fork():
                    os._exit(0)
                self._close_but(theirs.fileno(), self._proc, done)
                self._furnish()
                os.write(done, json.dumps(self.lacking).encode())
                os.close(done)
                if self._second:  # in its /proc programs can open what the first process has open
                    os.close(self._proc)
                    os.dup2(0, 2)
                starter.run(theirs, lambda: self.first_to_go(FIRST_TO_GO), self._second)
            except BaseException as failure:
                os.write(2, f"{type(failure).__name__}: {failure}\n".encode())
            finally:
                os._exit(1)
        os.close(done)
        theirs.close()
        with open(ready, "rb") as said:
            text = said.read()
        if not text:
            raise RuntimeError("the process that starts programs did not start")
        self.lacking = json.loads(text)
        os.waitpid(helper, 0)
        return ours

    @staticmethod
    def _close_but(*kept: int) -> None:
        """Nothing of the outer processes' is open here but this."""
        for fd in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:
            with contextlib.suppress(OSError):  # the one by which they were listed
                os.close(fd)

    def _furnish(self) -> None:
        """In the first process of programs: their /proc, their user, their limits."""
        walls.mount("proc", "/proc", walls.NO_SUID | walls.NO_DEVICES | walls.NO_PROGRAMS | walls.READ_ONLY)
        with self.wall("a masked /proc"):
            walls.mask((f"/proc/{name}" for name in HOSTS_OWN), EMPTY)
        walls.become(USER, self._proc)
        resource.setrlimit(resource.RLIMIT_NOFILE, (walls.MOST_FILES, walls.MOST_FILES))
        self.lower()
        walls.hide()

    def first_to_go(self, how_much: str) -> None:
        """Where there is no memory left. gVisor ends no program then: it is ended as a whole."""
        if self._second:
            return
        fd = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=self._proc)
        os.write(fd, how_much.encode())
        os.close(fd)

    def finish(self) -> None:
        """When all is started."""
        with self.wall("a closed folder of the X server's socket"):
            walls.read_only("/tmp/.X11-unix")
        with self.wall("no namespaces inside"):
            walls.set_kernel("user/max_user_namespaces", "0", self._proc)
        self.lower()


def lines(connection: socket.socket, handed: list[int]) -> Iterator[bytes]:
    rest = bytearray()
    while True:
        data, fds, _, _ = socket.recv_fds(connection, 1 << 18, 1)
        if not data:
            return
        handed += fds
        rest += data
        if b"\n" in data:
            *whole, rest = rest.split(b"\n")
            yield from map(bytes, whole)


class Resident:
    """Answers. What is done to the screen is done by one thread, in order; the rest does not wait for that."""

    def __init__(self, connection: socket.socket, screen: Screen, started: programs.Programs, proc: int) -> None:
        self.connection, self.screen = connection, screen
        self.sending = threading.Lock()
        self.to_do: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.calls: dict[str, Callable[..., Any]] = {
            "run": started.run,
            "launch": started.launch,
            "status": started.status,
            "read": programs.read,
            "write": programs.write,
            "connect": programs.connect,
            "relay": programs.relay,
            "freeze": lambda but: started.signal(signal.SIGSTOP, but),
            "thaw": lambda: started.signal(signal.SIGCONT),
            "listener": lambda port: listener(port, proc),
            "verdict": lambda full: verdict(screen, started, proc, full, self.alibi),
        }
        self.alibi = Alibi()

    def converse(self) -> None:
        threading.Thread(target=self.act, daemon=True).start()
        handed: list[int] = []  # open files that came with requests, in their order
        for text in lines(self.connection, handed):
            request = json.loads(text)
            if request.get("handed"):
                request["with"]["to"] = handed.pop(0)
            if request["do"] in SCREEN_CALLS:
                self.alibi.begins(request)
                self.to_do.put(request)
            else:
                threading.Thread(target=self.handle, args=(request, self.perform), daemon=True).start()

    def act(self) -> None:
        while True:
            request = self.to_do.get()
            self.handle(request, self.to_screen)
            self.alibi.ends(request)

    def accept(self, requests: socket.socket) -> None:
        """What programs here ask of the screen: one after the other, so that no number of them takes all threads."""
        while True:
            with requests.accept()[0] as connection, contextlib.suppress(*BAD_REQUEST):
                request = json.loads(_line(connection))
                if request["do"] in PROGRAM_CALLS:
                    self.handle(request, self.for_program, connection)

    def handle(
        self,
        request: dict[str, Any],
        perform: Callable[[str, dict[str, Any]], Any],
        connection: socket.socket | None = None,
    ) -> None:
        reply: dict[str, Any] = {"id": request["id"], "is": None}
        passed: list[socket.socket] = []
        try:
            result = perform(request["do"], request["with"])
            if isinstance(result, socket.socket):
                passed.append(result)
                reply["passed"] = True
            else:
                reply["is"] = result
        except error.ConnectionClosedError:
            self.screen.lost = True
            reply |= {"error": "the X server is gone", "fatal": True}
        except programs.StarterLost as failure:
            reply |= {"error": str(failure), "fatal": True}
        except Exception as failure:  # the outside decides what it means
            reply |= {"error": f"{type(failure).__name__}: {failure}", "fatal": False}
        text = json.dumps(reply).encode() + b"\n"
        if connection is not None:  # of a program, which may not listen: the outside does not wait for it
            return connection.sendall(text)
        with self.sending:
            if passed:
                socket.send_fds(self.connection, [text], [passed[0].fileno()])
                passed[0].close()
            else:
                self.connection.sendall(text)

    def perform(self, do: str, arguments: dict[str, Any]) -> Any:
        if do not in self.calls:
            raise ValueError("unknown request")
        return self.calls[do](**arguments)

    def for_program(self, do: str, arguments: dict[str, Any]) -> Any:
        if arguments.get("count", 0) > MOST_AT_ONCE or len(arguments.get("keysyms", ())) > MOST_AT_ONCE:
            raise ValueError(f"more than {MOST_AT_ONCE} at once")
        return self.to_screen(do, arguments)

    def to_screen(self, do: str, arguments: dict[str, Any]) -> Any:
        if self.screen.lost or self.screen.server.poll() is not None:
            raise error.ConnectionClosedError("X server")
        with self.screen.lock:
            return getattr(self.screen, do)(**arguments)


def _line(connection: socket.socket) -> bytes:
    """What a program says, in all that time: not in that time for each letter."""
    deadline, said = time.monotonic() + REQUEST_S, bytearray()
    while b"\n" not in said and len(said) <= LONGEST_REQUEST:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (more := connection.recv(1 << 16)):
            break
        said += more
    connection.settimeout(REQUEST_S)  # to read the answer
    return bytes(said).partition(b"\n")[0]
