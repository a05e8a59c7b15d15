"""A process in a sandbox (envs/confined.py) that answers questions by JSON lines, each in a child that has limits.

    out {"metrics": […], …}                                                 what it can do, first of all
    in  {"id": "1f…", "files": {"a.csv": 12}, …, "cpu_s": 60, "memory": 3221225472, "limit_s": 300, "longest": 65536}
        and after the line the bytes of its files, which are put into FOLDER
        out {"call": "get_file", "arguments": ["/home/user/a.txt"]}  in {"is": "base64…"}       where it asks back
    out {"id": "1f…", "is": 0.5}
    out {"over": "…"}       it ran against a wall of the sandbox: memory, processor time, the size of its folder
    out {"error": "…"}      what else was raised, or what else it ended of
    out {…, "last": true}   what is left of it cannot be taken away: ask another process the next time

What a child says goes through this process, which alone has the conversation and says nothing before all that the child
started has ended and its files are gone. So nothing of one agent's file is there when the next one's question comes.
Who answers: osworld_worker.py and judge_worker.py.
"""

import base64
import contextlib
import ctypes
import errno
import io
import json
import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import walls

SCRATCH = Path("/arpo/tmp")  # all that may be written
FOLDER = SCRATCH / "files"  # of a question
WALLS = (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EMFILE)
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)  # of a parser, on such a file
LONGEST_TEXT = 1000  # of an error
OUTCOME = ("is", "files", "over", "error")
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
DUMPABLE = 4  # PR_SET_DUMPABLE
NO_MEMORY = 99  # a status
MEMORY = 3 << 30  # of one process, at most; a question may have less


class Lines:
    """The conversation. Evaluators print, too: that goes nowhere."""

    def __init__(self, fd: int) -> None:
        os.dup2(1, 2)
        self._input, self._output = io.BufferedReader(io.FileIO(fd), 1 << 20), os.fdopen(os.dup(fd), "wb")
        self.number: str | None = None  # of the question that is being answered

    def say(self, **what: Any) -> None:
        self._output.write(json.dumps({"id": self.number, **what}).encode() + b"\n")
        self._output.flush()

    def read_line(self) -> bytes:
        return self._input.readline() or sys.exit()

    def read(self, most: int) -> bytes:
        return self._input.read1(most) or sys.exit()

    def hear(self) -> Any:
        said = json.loads(self.read_line())
        self.number = said.get("id", self.number)
        return said

    def close(self) -> None:
        self._input.close()
        self._output.close()

    def ask(self, call: str, *arguments: Any, **named: Any) -> Any:
        self.say(call=call, arguments=[*arguments, *named.values()])
        answer = self.hear()["is"]
        return base64.b64decode(answer) if call == "get_file" and answer is not None else answer


Answering = Callable[[Lines, dict[str, Any]], dict[str, Any]]


def attend(lines: Lines, answer: Answering, processes: int, **offer: Any) -> None:
    """Say what is offered, then answer until nobody asks any more. `processes`: how many a question may start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process hears no signal that it has no handler for
    watch_over(own=False)
    confine(processes)
    lines.say(**offer)
    while True:
        request = lines.hear()
        put(lines, request.get("files", {}))
        serve(lines, request, answer)


def put(lines: Lines, files: dict[str, int]) -> None:
    """The files of a question, as they come."""
    FOLDER.mkdir()
    for name, size in files.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        with (FOLDER / name).open("wb") as file:
            while size > 0:
                size -= file.write(lines.read(min(size, 1 << 20)))


def kept(folder: Path = FOLDER) -> dict[str, str]:
    """The files that are there; nothing that only leads to one."""
    paths = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    plain = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode() for path in plain}


def watch_over(own: bool) -> None:
    """Others cannot look into this process, or they may."""
    ctypes.CDLL(None).prctl(DUMPABLE, int(own), 0, 0, 0)


def confine(processes: int) -> None:
    """For this process and its children."""
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))  # they outlive who made them, and nobody could list them
    with contextlib.suppress(OSError):  # a kernel without filters: the sandbox is what holds
        walls.filter_calls(walls.filter_program())


def empty() -> None:
    """What a question left. Folders that may not be entered, and trees of thousands, are no hindrance."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(FOLDER)  # most are as they were made, and this takes no process
    if any(SCRATCH.iterdir()):
        command = 'chmod -R u+rwX "$0"; find "$0" -mindepth 1 -delete'
        subprocess.run(["sh", "-c", command, SCRATCH], stderr=subprocess.DEVNULL, check=True)


def serve(lines: Lines, request: dict[str, Any], answer: Answering) -> None:
    """Answer it in a child, and see the end of that before a word is said."""
    assert os.getpid() == 1, "what is ended below is every other process that it sees"
    limits, before = limited(), spent_s()
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        status = 1
        try:
            lines.close()  # before anything else: the next agent's question comes by it
            ours.close()
            watch_over(own=True)
            Path("/proc/self/oom_score_adj").write_text("1000")  # it goes before its parent
            resource.setrlimit(resource.RLIMIT_CPU, (request["cpu_s"], request["cpu_s"] + 1))
            resource.setrlimit(resource.RLIMIT_DATA, (request["memory"], request["memory"]))
            own = Lines(theirs.detach())
            own.say(**_outcome(answer, own, request))
            status = 0
        except MemoryError:  # it had none left to say so
            status = NO_MEMORY
        finally:
            os._exit(status)
    theirs.close()
    with ours:
        said, late = _heard(lines, request, ours, child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    outcome = said or _why(request, status, late, spent_s() - before)
    empty()
    lines.say(**outcome, last=leftovers() or limited() != limits)


def _heard(
    lines: Lines, request: dict[str, Any], ours: socket.socket, child: int
) -> tuple[dict[str, Any] | None, bool]:
    """What a child says in the end, if anything, and whether it is late. What it asks back before that is passed on."""
    deadline, parts = time.monotonic() + request["limit_s"], bytearray()
    pidfd = os.pidfd_open(child)
    waiting: list[Any] = [ours, pidfd]
    try:
        while ready := select.select(waiting, [], [], max(0.0, deadline - time.monotonic()))[0]:
            if ours not in ready:
                return None, False
            read = _received(ours)
            if not read:
                waiting.remove(ours)  # its end is near, and says why
            parts += read
            if len(parts) > request["longest"]:
                return {"error": f"it says more than {request['longest']} bytes"}, False
            if b"\n" in read:
                said = _read(bytes(parts))
                if "call" not in said:
                    return {name: said[name] for name in OUTCOME if name in said}, False
                parts.clear()
                lines.say(call=said["call"], arguments=said.get("arguments"))
                answer = lines.read_line()
                ours.settimeout(max(0.001, deadline - time.monotonic()))
                with contextlib.suppress(OSError):  # it does not listen: it is late, or it has ended
                    ours.sendall(answer)
        return None, True
    finally:
        os.close(pidfd)


def _received(ours: socket.socket) -> bytes:
    try:
        return ours.recv(1 << 20)
    except ConnectionResetError:  # it has ended, and had not read all
        return b""


def _read(text: bytes) -> dict[str, Any]:
    try:
        said = json.loads(text.partition(b"\n")[0])
    except (ValueError, RecursionError, MemoryError):
        said = None
    return said if isinstance(said, dict) else {"error": "it said what is no JSON object"}


def _why(request: dict[str, Any], status: int, late: bool, spent: float) -> dict[str, Any]:
    """Of a child that came to nothing: whose doing that is. A SIGKILL may be the host's, and a host may be busy."""
    ended_by = signal.Signals(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    if spent >= request["cpu_s"] or ended_by == signal.SIGXCPU:
        return {"over": f"it takes more than {request['cpu_s']} s of processor time"}
    if late:
        return {"error": f"it did not answer within {request['limit_s']:g} s"}
    if ended_by is not None:
        return {"over" if ended_by in CRASHES else "error": f"it was ended by {ended_by.name}"}
    if os.WEXITSTATUS(status) == NO_MEMORY:
        return {"over": "it wants more memory than it may have"}
    return {"error": f"it ended with status {os.WEXITSTATUS(status)}"}


def spent_s() -> float:
    """Processor time of all that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def limited() -> list[tuple[int, int]]:
    """The limits of this process, which a child may lower: the next child would inherit them."""
    return [resource.getrlimit(limit) for limit in LIMITS]


def leftovers() -> bool:
    """System V's shared memory, semaphores and queues stay when all who used them have ended."""
    return any(Path("/proc/sysvipc", kind).read_text().count("\n") > 1 for kind in ("shm", "sem", "msg"))


def text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:LONGEST_TEXT]


def _outcome(answer: Answering, own: Lines, request: dict[str, Any]) -> dict[str, Any]:
    try:
        reply = answer(own, request)
        json.dumps(reply)
        return reply
    except MemoryError:
        return {"over": "it wants more memory than it may have"}
    except OSError as error:
        return {"over" if error.errno in WALLS else "error": text_of(error)}
    except Exception as error:  # the outside decides what it means
        return {"error": text_of(error)}
