"""What sandboxes take of the machine, and waiting for what they show."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from arpo.envs import memory
from arpo.envs.desktop import env
from arpo.envs.desktop.env import DesktopEnv
from arpo.envs.desktop.sandbox import Sandbox

SIZE = (640, 480)
PATIENCE_S = 25.0  # less than what an answer is waited for
MOUNTS = ("newroot", "oldroot")  # folders that bubblewrap makes a sandbox's mounts in; all others are somebody else's


@dataclass(frozen=True, slots=True)
class Traces:
    """What the sandboxes of one test have taken. They are known by a variable in all their processes' surroundings."""

    mark: str

    def processes(self) -> dict[int, str]:
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
            except OSError:
                continue  # it has ended, or is somebody else's
        return found

    @staticmethod
    def things() -> dict[str, object]:
        """Of this process, and of the machine what is ours: what must be the same before and after."""
        return {
            "files": sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in _fds()),
            "mounts": [line for line in _mounts() if any(name in line for name in MOUNTS)],
            "groups": groups(os.getpid()),
            "threads": threading.active_count(),
        }


def groups(pid: int) -> list[str]:
    """The control groups that a process has made."""
    own = memory._own_group()
    return [str(group) for top in {own, memory.GROUPS} if top for group in top.glob(f"arpo-{pid}-*")]


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _fds() -> list[int]:
    return [fd for fd in map(int, os.listdir("/proc/self/fd")) if os.path.lexists(f"/proc/self/fd/{fd}")]


def wait_until(true: Callable[[], object], why: Callable[[], object] = lambda: "it took too long") -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


def window(sandbox: Sandbox, title: str) -> dict[str, object]:
    """The window of that title, in focus and drawn."""
    found: list[dict[str, object]] = []

    def shown() -> bool:
        found[:] = [one for one in sandbox.ask("windows") if title in one["title"] and one["active"]]
        return bool(found)

    wait_until(shown, lambda: sandbox.ask("windows"))
    settle(sandbox)
    return found[0]


def patient(size: tuple[int, int] = (1280, 720)) -> DesktopEnv:
    """An environment that waits for its screen however busy the machine is: what was typed has been done then."""
    env.SETTLE_S, env.START_SETTLE_S = PATIENCE_S, PATIENCE_S
    return DesktopEnv(size)


def settle(sandbox: Sandbox) -> None:
    sandbox.ask("settle", limit_s=10.0, quiet_s=0.1, busy=0.1)


def python(sandbox: Sandbox, *lines: str) -> str:
    """What a small program there says, its last error among it."""
    ran = sandbox.run(["python3", "-c", "\n".join(lines)])
    return ran.out + (ran.err.strip().splitlines() or [""])[-1]


def kill(sandbox: Sandbox, program: str) -> None:
    """From the host, the processes of a sandbox that run this."""
    for pid in tree(sandbox._process.pid):
        with contextlib.suppress(OSError):  # it has ended with the one before
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(program.encode() + b"\0"):
                os.kill(pid, signal.SIGKILL)


def tree(pid: int) -> list[int]:
    """A process and all that come from it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in tree(int(child)))]
