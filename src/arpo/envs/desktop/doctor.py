"""What a real desktop lacks on this machine, and which walls stand around one: its part of `arpo doctor`."""

import shutil

from arpo.config import EnvConfig
from arpo.envs.desktop import gvisor
from arpo.envs.desktop.sandbox import APPLICATIONS, MEMORY_MB, PROGRAMS, Sandbox, missing
from arpo.envs.memory import new_group, remove
from arpo.errors import ArpoError

SIZE = (320, 240)
Wall = tuple[str, bool, str, str]  # its name, whether it stands, what it is or lacks, the command that enables it


def lacking(settings: EnvConfig) -> list[tuple[str, str]]:
    """What is missing, and the command that installs it."""
    command = missing({**PROGRAMS, **APPLICATIONS})
    return [("programs are missing", command)] if command else []


def walls() -> list[Wall]:
    """Those around a desktop of this machine. One is started."""
    return [_bubblewrap(), _gvisor(), _memory()]


def _bubblewrap() -> Wall:
    name = "wall bubblewrap"
    if command := missing():
        return name, False, "programs are missing", command
    try:
        with Sandbox(SIZE, weaker=True) as sandbox:
            sandbox.wait()
            lacks = sandbox.lacking[sandbox.group is None :]  # a limit of memory is another wall
    except ArpoError as error:  # it says itself what to do
        return name, False, str(error), ""
    return name, not lacks, f"lacks {', '.join(lacks)}" if lacks else "namespaces, a filter of system calls, limits", ""


def _gvisor() -> Wall:
    runsc = shutil.which("runsc")
    if gvisor.missing() or runsc is None:
        why, _, command = gvisor.missing().partition("; ")
        return "wall gvisor", False, f"{why} (env.wall=gvisor)", command
    return "wall gvisor", True, f"{gvisor.version_of(runsc)}: env.wall=gvisor", ""


def _memory() -> Wall:
    group = new_group(MEMORY_MB)
    remove(group)
    if group is None:
        return "limit of memory", False, "no control group can be made; root can, where /sys/fs/cgroup is writable", ""
    return "limit of memory", True, f"{MEMORY_MB} MB for each desktop", ""
