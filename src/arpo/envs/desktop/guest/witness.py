"""Whose doing it is that a desktop does not answer, and who it is that answers on a port.

It runs inside (see inside.py), with the standard library and Xlib. Both are answered by what the kernel says of
processes, not by what they say of themselves.
"""

import os
import signal
import threading
import time
from typing import Any

from Xlib import display

from .programs import Programs
from .screen import Screen, read_proc

END_S = 1.0  # for an X server that is ending to have ended
LOOKS, LOOK_S = 40, 0.025  # at a server that does not answer
ANSWER_S = 10.0  # for one that nobody holds
LISTENING = "0A"  # as /proc/net/tcp has it
BEAT_S, LATE_S = 0.5, 0.1  # how often this process looks at the clock; what does not count
HELD_S, MOST_LATE = 15.0, 0.3  # what no request to the screen takes; the share of it that a busy machine may explain
SYSTEMS_OWN = ("/usr/", "/arpo/")  # folders that nobody here can write


class Alibi:
    """Whether the machine let this process work while a request to the screen was not answered.

    A program may hold the screen for just so long that it answers again when it is looked at. But the clock tells: one
    that was late though this process was not was held by somebody, and there are only the agent's programs.
    """

    def __init__(self) -> None:
        self.late_s = 0.0  # so far
        self._asked: dict[int, tuple[float, float, float]] = {}  # when, how late it was then, what it may take
        self._held_until = float("-inf")  # behind gVisor the clock begins with the desktop
        threading.Thread(target=self._watch, daemon=True).start()

    def begins(self, request: dict[str, Any]) -> None:
        self._asked[id(request)] = time.monotonic(), self.late_s, _may_take_s(request["with"])

    def ends(self, request: dict[str, Any]) -> None:
        if self._was_held(*self._asked.pop(id(request))):
            self._held_until = time.monotonic()

    @property
    def held(self) -> bool:
        """Whether one is, or was just now."""
        return time.monotonic() - self._held_until < 2 * HELD_S or any(
            self._was_held(*asked) for asked in list(self._asked.values())
        )

    def _was_held(self, began: float, late_s: float, may_s: float) -> bool:
        took_s = time.monotonic() - began
        return took_s - may_s > HELD_S and self.late_s - late_s < MOST_LATE * took_s

    def _watch(self) -> None:
        while True:
            then = time.monotonic()
            time.sleep(BEAT_S)
            over_s = time.monotonic() - then - BEAT_S
            self.late_s += over_s if over_s > LATE_S else 0.0


def _may_take_s(given: dict[str, Any]) -> float:
    try:
        return float(given.get("limit_s", 0.0) + len(given.get("keysyms", ())) / 1000)
    except TypeError:  # no such values can be meant: the screen will refuse the request, and at once
        return 0.0


def verdict(screen: Screen, started: Programs, proc: int, full: bool, alibi: Alibi) -> str:
    """What an agent's program did to the desktop; empty where it may have been something else.

    `full`: programs were ended since all of them took more memory than they may.
    A server that a program holds sleeps, with our request before it. One that lacks the processor, on a busy machine,
    wants to run. To be sure all programs are ended: if it was one of them, it answers then.
    """
    deadline = time.monotonic() + END_S
    while (status := screen.server.poll()) is None and screen.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    if status is not None:  # nothing inside can send it a signal: one that was asked to end was asked from outside
        asked = status in (0, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
        asked = asked or (status == -signal.SIGKILL and not full)
        return "" if asked else f"the X server has ended (status {status})"
    if screen.lost:
        return "a program has cut this desktop off from its X server"
    if alibi.held:
        return "a program has kept the screen from answering"
    if _answers(2.0) or not _sleeps(screen.server.pid, proc):
        return ""
    started.signal(signal.SIGKILL)
    return "a program has kept the X server for itself" if _answers(ANSWER_S) else ""


def _answers(within_s: float) -> bool:
    """Whether the X server takes one more connection."""
    done = threading.Event()

    def connect() -> None:
        display.Display(":0").close()
        done.set()

    threading.Thread(target=connect, daemon=True).start()
    return done.wait(within_s)


def _sleeps(pid: int, proc: int) -> bool:
    """Whether it neither runs nor wants to for a while."""
    clock = (~pid << 3) | 2
    before = time.clock_gettime_ns(clock)
    for _ in range(LOOKS):
        if not read_proc(f"{pid}/stat", proc).rpartition(b") ")[2].startswith(b"S"):
            return False
        time.sleep(LOOK_S)
    return time.clock_gettime_ns(clock) == before


def listener(port: int, proc: int) -> dict[str, Any] | None:
    """Who listens on a port: the program, and whether it and nothing else answers there. None: nobody does."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, proc)}
    holders = [pid for pid in os.listdir(proc) if pid.isdigit() and sockets & _open(pid, proc)] if sockets else []
    if not holders:
        return None
    programs = {_program(pid, proc) for pid in holders}
    genuine = len(programs) == 1 and all(_untouched(pid, proc) for pid in holders)
    return {"program": programs.pop(), "genuine": genuine}


def _inodes(port: int, proc: int) -> set[str]:
    found = set()
    for name in ("self/net/tcp", "self/net/tcp6"):
        fd = os.open(name, os.O_RDONLY, dir_fd=proc)
        with open(fd) as table:
            for line in list(table)[1:]:
                fields = line.split()
                if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def _open(pid: str, proc: int) -> set[str]:
    """What it has open."""
    links: set[str] = set()
    try:
        folder = os.open(f"{pid}/fd", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return links  # it has ended
    try:
        for name in os.listdir(folder):
            try:
                links.add(os.readlink(name, dir_fd=folder))
            except OSError:
                continue
    finally:
        os.close(folder)
    return links


def _program(pid: str, proc: int) -> str:
    try:
        return os.readlink(f"{pid}/exe", dir_fd=proc)
    except OSError:
        return ""


def _untouched(pid: str, proc: int) -> bool:
    """Whether all code that it has from files is the system's own: none that was slipped in when it started."""
    try:
        fd = os.open(f"{pid}/maps", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return False
    with open(fd) as maps:
        lines = [line.split(maxsplit=5) for line in maps]
    files = [line[5].strip() for line in lines if "x" in line[1] and len(line) == 6]
    return all(name.startswith((*SYSTEMS_OWN, "[")) for name in files) and bool(files)
