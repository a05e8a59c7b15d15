"""A second wall around a desktop: gVisor. System calls made inside go to a kernel that is a program, not to the host's.

    Sandbox((1280, 720), wall="gvisor")

bubblewrap makes the same view of files as ever. In it, as root of that user namespace and of nothing else, runs
gVisor's `runsc`, which takes the view as its root and lays folders in memory over what is to be written. So whoever
breaks out of gVisor is in a sandbox of bubblewrap still, and what runsc itself writes down goes with it.

The inside is the same behind both walls (guest/inside.py): it builds its own walls in gVisor's kernel. LACKS names what
that kernel has not got.

Of open files runsc hands on standard input, output and error: they are the conversation, the pixels and the last
words. A shell inside gives them the numbers that the resident process is told, and is the parent of what has lost its
own. No open file can be handed out, only in: Sandbox.connect hands one in, and what is said there is relayed.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Literal, get_args

from arpo.errors import ConfigError

Wall = Literal["bubblewrap", "gvisor"]
OLDEST = 20240729  # of Debian 13 and of backports for 12; with that of 12 itself `ls` fails ("Invalid argument")
INSTALL = "apt-get install -y --no-install-recommends runsc  # on Debian 12 with -t bookworm-backports"
GVISOR_MB = 200  # more for a desktop and its spare: measured, they take 1.7 to 2.1 times as much
CONFIG, HOME, STATE = "/arpo/bundle/config.json", "/arpo/home.tar", "/run"
RUNSC = ("runsc", f"--root={STATE}", "--rootless", "--ignore-cgroups", "--network=none", "--overlay2=none", "run")
USER = 1000  # of all that runs inside; what gVisor itself has there, such as /dev, is root's
TO_CHANGE_USER = ("CAP_SETUID", "CAP_SETGID")  # privileges: it begins as root, who alone is given any
OPEN = ("/etc", "/etc/chromium.d", "/var", "/var/cache", "/var/lib")  # bubblewrap would make them for its user alone
# For bash: other shells know open files by one digit only. It outlives runsc for a moment. While it is there, so is its
# control group, which can be asked whether the memory was full: that ends runsc as a whole, and not a program.
OUTSIDE = '"${@:3}" <&"$1" >&"$2" & eval "exec $1<&- $2>&-"; wait $!; status=$?; sleep 1; exit $status'
TEMPLATE, CONVERSATION, PIXELS = 3, 4, 5  # the numbers of the open files inside
FOLDERS = ("/run/user/1000", "/run/arpo", "/tmp/.X11-unix")
START = f"""import os, sys
sys.path.insert(0, '/arpo')
from guest import inside, walls
walls.change_user({USER})
for name in {FOLDERS}: os.makedirs(name)
inside.main()"""
RESIDENT = ("/usr/bin/python3", "-I", "-c", START)
INSIDE = f'exec {CONVERSATION}<&0 {PIXELS}>&1 </dev/null >/dev/null; "$@" {TEMPLATE}<"$0" & wait $!'
# Walls that its kernel has not got, and that nobody needs here: what they limit is this kernel's own, so it costs this
# desktop its memory, and no other anything. (Two more limits it takes and does not keep: of files and of terminals.)
LACKS = (
    "its own user/max_inotify_instances",
    "its own user/max_inotify_watches",
    "its own kernel/shm_rmid_forced",
    "no namespaces inside",  # the filter of system calls refuses them as well
)


def missing() -> str:
    """Why there can be no second wall here; empty where there can."""
    runsc = shutil.which("runsc")
    if runsc is None:
        return f"runsc is missing; {INSTALL}"
    said = version_of(runsc)
    version = re.search(r"20\d{6}", said)
    if version is None or int(version[0]) < OLDEST:
        return f"runsc is too old ({said}): {OLDEST} or newer is needed; {INSTALL}"
    return ""


@cache
def version_of(runsc: str) -> str:
    return subprocess.run([runsc, "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]


def refuse(wall: str) -> None:
    """ConfigError for a wall that cannot be had here."""
    if wall not in get_args(Wall):
        raise ConfigError(f"env.wall={wall}: is one of {', '.join(get_args(Wall))}")
    if wall == "gvisor" and (why := missing()):
        raise ConfigError(f"env.wall=gvisor: {why}")


def bwrap() -> tuple[str, ...]:
    """For bubblewrap: all privileges in its user namespace, and the folders that others are to enter."""
    return ("--cap-add", "ALL", *(word for name in OPEN for word in ("--perms", "0755", "--dir", name)))


def lacking(walls: Iterable[str]) -> list[str]:
    """Of the walls that an inside could not build, those that gVisor does not make needless."""
    return [wall for wall in walls if not wall.startswith(LACKS)]


def inside(
    numbers: Sequence[int],
    variables: Mapping[str, str],
    sizes_mb: Mapping[str, int],
    privileges: Sequence[str],
) -> tuple[list[str], str]:
    """What bubblewrap starts, and the text of the file CONFIG.

    `numbers` are what the resident process is told: the first three are open files on this side.
    """
    conversation, pixels, home, *others = numbers
    told = (CONVERSATION, PIXELS, TEMPLATE if home >= 0 else home, *others)
    args = ["sh", "-c", INSIDE, HOME if home >= 0 else "/dev/null", *RESIDENT, *map(str, told)]
    words = [*RUNSC, f"--bundle={CONFIG.rpartition('/')[0]}", "desktop"]
    outside = ["bash", "-c", OUTSIDE, "bash", str(conversation), str(pixels), *words]
    return outside, json.dumps(_bundle(args, variables, sizes_mb, privileges))


def _bundle(
    args: list[str], variables: Mapping[str, str], sizes_mb: Mapping[str, int], privileges: Sequence[str]
) -> dict[str, object]:
    """What is to run, as the runtime specification of the Open Container Initiative has it."""
    own = ["nosuid", "nodev", "mode=0755", f"uid={USER}", f"gid={USER}"]
    return {
        "ociVersion": "1.0.2",
        "hostname": "desktop",
        "root": {"path": "/", "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *(
                {"destination": name, "type": "tmpfs", "source": "tmpfs", "options": [*own, f"size={mb << 20}"]}
                for name, mb in sizes_mb.items()
            ),
        ],
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": [f"{name}={value}" for name, value in variables.items()],
            "cwd": "/",
            "capabilities": {kind: [*privileges, *TO_CHANGE_USER] for kind in ("bounding", "effective", "permitted")},
            "noNewPrivileges": True,
        },
    }
