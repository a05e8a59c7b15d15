"""The first process of the agent's process namespace: it starts programs there, says when they have ended, stops them.

The resident process (programs.py) asks it, from the namespace around, which nothing in here can see:

    start {"n": 7, "argv": ["ls"], "shell": false, "cwd": "/home/user", "env": {…}, "most": 448}    {"n": 7, "pid": 12}
          with three open files: its input, output and errors                 {"ended": 7, "status": 0}   later
    {"kill": 7}         it and its group       {"n": 8, "signal": 19, "but": [program]}   all that run here

It runs inside, with the standard library, and it is one thread: so is all that it does to others. So it waits for
nothing that they can keep: also not for a program that is about to run, which they may stop.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, NoReturn

HEAD = 4  # bytes that say how long a request is
LONGEST_ERROR = 1000
STILL_S, LOOK_S = 10.0, 0.002  # for all to stand still; between looks whether they do
BEGIN_S = 3.0  # after which a program that was stopped before it ran is ended: whoever asked for it waits
STANDING, ENDED = set("TtZXD"), set("ZX")  # states; D: it waits for its child, which stands, to become a program


def run(connection: socket.socket, first: Callable[[], None], second: bool) -> None:
    """Until the other side has gone, which ends this namespace. `first`: what a program does before it is one.

    `second`: the kernel is gVisor's.
    """
    Starter(connection, first, second).serve()


class Starter:
    def __init__(self, connection: socket.socket, first: Callable[[], None], second: bool) -> None:
        self.connection, self.first, self.second = connection, first, second
        self.running: dict[int, int] = {}  # by pid: the request's number
        self.starting: dict[int, tuple[int, int, float]] = {}  # both, and since when, by a pipe that closes as it runs
        self.still: dict[int, int] = {}  # what each has used of the processor, while all stand still
        self.woken, self.wake = socket.socketpair()  # which nobody can open by /proc, as a pipe
        self.woken.setblocking(False)
        self.wake.setblocking(False)
        signal.set_wakeup_fd(self.wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        while True:
            files = [self.connection.fileno(), self.woken.fileno(), *self.starting]
            ready = select.select(files, [], [], BEGIN_S if self.starting else None)[0]
            self.end_those_kept_from_running()
            for pipe in self.starting.keys() & ready:
                self.started(pipe)
            if self.woken.fileno() in ready:
                self.woken.recv(1 << 12)
                self.reap()
            if self.connection.fileno() in ready:
                head, files, _, _ = socket.recv_fds(self.connection, HEAD, 3)
                text = self.receive(int.from_bytes(head, "big"))
                if not text:
                    return
                self.answer(json.loads(text), files)

    def receive(self, length: int) -> bytes:
        """All of a request: a program that ends meanwhile interrupts the wait for the rest."""
        text = b""
        while len(text) < length and (more := self.connection.recv(length - len(text))):
            text += more
        return text

    def answer(self, request: dict[str, Any], files: list[int]) -> None:
        try:
            if "argv" in request:
                self.start(request, files)
            elif "kill" in request:
                self.kill(request["kill"])
            else:
                self.say(n=request["n"], ran=self.signal(request["signal"], request["but"]))
        except Exception as error:  # the other side decides what it means
            self.say(n=request.get("n"), error=f"{type(error).__name__}: {error}")
        finally:
            for file in files:
                os.close(file)

    def signal(self, number: int, but: list[str]) -> list[int]:
        """To all. When they go on: which did before that they had used the processor, or have gone."""
        ran = [pid for pid, used in self.still.items() if _used(pid) != used] if number == signal.SIGCONT else []
        send(number)
        self.still = self.stand_still(but) if number == signal.SIGSTOP else {}
        return ran

    def stand_still(self, but: list[str]) -> dict[int, int]:
        """Until all but some do; what each has used of the processor.

        One that is woken by something that it has arranged before, by a timer or by the end of another, is found out by
        this: who stands still uses nothing. On a busy machine one may not have stopped in time: it is not judged.
        gVisor's kernel lets one start or wake another meanwhile, and its clocks are silent: there who resists is ended.
        """
        deadline = time.monotonic() + STILL_S
        while True:
            awake = wake(but)
            states = {pid: _states(pid) for pid in _others() - awake}
            late = time.monotonic() > deadline
            if late or all(state <= STANDING for state in states.values()):
                break
            if self.second:
                send(signal.SIGSTOP)
            time.sleep(LOOK_S)
        if self.second:
            if late:
                send(signal.SIGKILL)
            return {}
        return {pid: _used(pid) for pid, state in states.items() if state <= STANDING and not state <= ENDED}

    def start(self, request: dict[str, Any], files: list[int]) -> None:
        pipe, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError:
            os.close(pipe)
            raise
        else:
            if not pid:
                self.become(request, files, theirs)
            self.running[pid], self.starting[pipe] = request["n"], (request["n"], pid, time.monotonic())
        finally:
            os.close(theirs)

    def become(self, request: dict[str, Any], files: list[int], pipe: int) -> NoReturn:
        """In the child: the program. What goes wrong is said through the pipe."""
        try:
            os.setsid()
            for usual in (signal.SIGPIPE, signal.SIGXFSZ):  # Python's own programs do not hear these
                signal.signal(usual, signal.SIG_DFL)
            self.first()
            resource.setrlimit(resource.RLIMIT_NPROC, (request["most"],) * 2)
            kept = [os.dup(file) for file in files]  # above those that they become
            for number, file in enumerate(kept):
                os.dup2(file, number)
            for low, high in ((3, pipe), (pipe + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])):
                os.closerange(low, high)
            os.chdir(request["cwd"])
            argv = ["/bin/sh", "-c", request["argv"]] if request["shell"] else request["argv"]
            os.execvpe(argv[0], argv, request["env"])
        except BaseException as error:
            os.write(pipe, f"{type(error).__name__}: {error}".encode()[:LONGEST_ERROR])
        finally:
            os._exit(127)

    def end_those_kept_from_running(self) -> None:
        """Others can stop the process that is about to become a program; one that is only slow goes on."""
        for _, pid, since in self.starting.values():
            if time.monotonic() - since > BEGIN_S and "T" in _states(pid) and not self.still:
                os.kill(pid, signal.SIGKILL)

    def started(self, pipe: int) -> None:
        (number, pid, _), said = self.starting.pop(pipe), os.read(pipe, LONGEST_ERROR)
        os.close(pipe)
        self.say(n=number, **({"error": said.decode(errors="replace")} if said else {"pid": pid}))

    def kill(self, number: int) -> None:
        for pid, n in self.running.items():
            if n == number:
                os.kill(pid, signal.SIGKILL)  # it may not lead its group yet
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Of its own and of what others have left behind: all that end here come to the first process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.running:
                self.say(ended=self.running.pop(pid), status=os.waitstatus_to_exitcode(status))

    def say(self, **what: Any) -> None:
        self.connection.sendall(json.dumps(what).encode() + b"\n")


def send(number: int) -> None:
    """To all that run here, at once: while the kernel goes through them none can start another."""
    with contextlib.suppress(ProcessLookupError):  # there are none
        os.kill(-1, number)


def wake(programs: list[str]) -> set[int]:
    """Those of the system's own programs that are asked for go on."""
    woken = set()
    for pid in _others():
        try:
            if os.readlink(f"/proc/{pid}/exe") in programs:
                os.kill(pid, signal.SIGCONT)
                woken.add(pid)
        except OSError:
            continue  # it has ended, or is another's
    return woken


def _others() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1}


def _states(pid: int) -> set[str]:
    """Of all its threads; none where it has gone."""
    states = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                states.add(file.read().rpartition(b") ")[2][:1].decode())
    except OSError:
        return states  # it is ending
    return states


def _used(pid: int) -> int:
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # the kernel's clock of another process
    except OSError:
        return -1  # it has gone
