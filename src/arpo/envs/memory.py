"""Memory of desktops: how many fit, a place kept for each, and a limit for what one may take.

    fitting()                       how many more desktops fit into the memory that is free now
    with reserved():  …             one more, for the time of the block; NoRoom where it would not fit
    with reserved(4096, "machine")  the same for another thing, of so many MB
    new_group(2048)                 a control group that is held to so many MB, to be removed by its user
    taken_mb(group)                 what the programs in it take
    overruns(group)                 what its limit has cost

A desktop is small when it starts and grows with its programs, so for its first minute it counts in full and later by
what it has taken. Places are files in a folder of the user's own (private.py): all of the user's processes see them,
nobody else can take or forge one, and they go with their owner.
"""

import contextlib
import itertools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from arpo.envs import private
from arpo.errors import NoRoom

DESKTOP_MB = 300  # one at work and its spare; Calc or Chromium take some 150 MB each
YOUNG_S = 60
ALONE_S = 60.0  # at most, for the others that are counting; each takes some milliseconds
GROUPS = Path("/sys/fs/cgroup")
TCP_MB = 64  # of the buffers of its connections; each may have one piece of some 64 kB even then
PLACE = re.compile(r"place-(\d+)-\d+-\d+-(\d+)")  # the time of its birth, a process, a number, its size
_numbers = itertools.count()


def fitting(mb: float = DESKTOP_MB) -> int:
    """So many more; those that have begun and not grown yet are counted as if they had."""
    return max(0, int((free_mb() - sum(_young())) // mb))


@contextlib.contextmanager
def reserved(mb: float = DESKTOP_MB, what: str = "desktop") -> Iterator[None]:
    with contextlib.ExitStack() as place:
        with private.locked("places", ALONE_S):  # of many that come at the same time as many go on as fit
            private.forget_the_dead()
            if not fitting(mb):
                raise NoRoom(
                    f"no memory for one more {what}: {free_mb():.0f} MB are free, each takes {mb:.0f} MB "
                    f"and {len(_young())} have just begun; ask for fewer (env.workers)"
                )
            name = f"place-{time.monotonic_ns()}-{os.getpid()}-{next(_numbers)}-{mb:.0f}"
            place.enter_context(private.kept(name))
        yield


def free_mb() -> float:
    """What this process and its children can still take: of the machine, or of its control group if that is less."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) << 10
    own = _own_group()
    for group in () if own is None else (own, *own.parents):
        with contextlib.suppress(OSError, ValueError):  # a group at the top has no limit, and "max" is none
            free = min(free, int(_file(group, "memory.max", "memory.limit_in_bytes").read_text()) - _taken(group))
    return free / 2**20


def taken_mb(group: Path) -> float:
    return _taken(group) / 2**20


def overruns(group: Path) -> tuple[int, int]:
    """How many of its programs were ended for want of memory, and how often it was at its own limit.

    The first alone does not tell: it counts programs that were ended since the whole machine was full, too.
    """
    events = dict(line.split() for line in _file(group, "memory.events", "memory.oom_control").read_text().splitlines())
    at_limit = events["oom"] if "oom" in events else (group / "memory.failcnt").read_text()
    return int(events.get("oom_kill", 0)), int(at_limit)


def _taken(group: Path) -> int:
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    used = int(_file(group, "memory.current", "memory.usage_in_bytes").read_text())
    return used - int(stat["inactive_file"])  # the kernel gives such files up


def _file(group: Path, new: str, old: str) -> Path:
    """A file of the second version of control groups, or of the first."""
    return group / new if (group / new).exists() else group / old


def _young() -> list[float]:
    """The sizes of the places that were taken in the last minute, by any process of this user."""
    places = (match for name in private.names() if (match := PLACE.fullmatch(name)))
    return [float(place[2]) for place in places if time.monotonic_ns() - int(place[1]) < YOUNG_S * 1e9]


def _own_group() -> Path | None:
    """The control group that counts this process's memory. In a container its path may be the host's: then the top."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, kinds, path = line.split(":", 2)
        top = GROUPS / "memory" if "memory" in kinds.split(",") else GROUPS if number == "0" else None
        if top is not None and any((top / name).exists() for name in ("memory.usage_in_bytes", "cgroup.controllers")):
            own = top / path.lstrip("/")
            return own if own.is_dir() else top
    return None


def new_group(mb: int) -> Path | None:
    """A control group; None where this process may not make one. It lies in this process's own or, where that may have
    none in it (the second version's rule for a group with processes), at the top."""
    own = _own_group()
    for parent in () if own is None else (own, GROUPS):
        group = parent / f"arpo-{os.getpid()}-{next(_numbers)}"
        with contextlib.suppress(OSError):
            group.mkdir()
            limit = _file(group, "memory.max", "memory.limit_in_bytes")
            if limit.exists():
                limit.write_text(str(mb << 20))
                tcp = group / "memory.kmem.tcp.limit_in_bytes"  # the second version counts them with all else
                if tcp.exists():
                    tcp.write_text(str(TCP_MB << 20))
                return group
            group.rmdir()
    return None


def remove(group: Path | None) -> None:
    """Where it is not gone yet. The kernel takes a moment to forget the processes that were in it."""
    for _ in range(100):
        if group is None or not group.exists():
            return
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.01)
