"""What every sandbox here is made with: bubblewrap, and a shell around it that leaves nothing behind.

Desktops (desktop/sandbox.py) and OSWorld's client (confined.py) are held by it.
"""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

from arpo.errors import ConfigError, EnvError

NOBODY = 65534
USERS = range(0x70000000, 0x7FFE0000)  # that no system gives away; two sandboxes hardly ever get the same
GRACE_S = 10.0  # for a sandbox to end
# What is started is a shell that stays outside. When its input closes, since this object or this process has ended, it
# kills bubblewrap's child, the first process of the namespace, which is gone only after all others there are.
# bubblewrap itself is not killed: in its first moments that would leave its child waiting for ever.
SUPERVISE = """
gone() { until [ -z "$0" ] || rmdir "$0" || [ ! -d "$0" ]; do sleep 0.01; done; }
exec 3<&0
( { [ -z "$0" ] || echo 0 >"$0/cgroup.procs"; } && exec "$@" 3<&- ) &
sandbox=$!
exec >/dev/null 2>&1  # what its output is ends with the sandbox, and not with this shell
( read line
  while kill -0 $sandbox; do
    children=
    read children <"/proc/$sandbox/task/$sandbox/children"
    [ -z "$children" ] || kill -9 $children
    sleep 0.01
  done
  gone ) <&3 &
exec 3<&-
wait $sandbox
status=$?
kill $!
gone
exit $status
"""
FORBIDDEN = (
    "No permissions to creat",
    "uid map",
    "Creating new namespace",
    "max_user_namespaces",
    "mount proc",
    "setuid mode",
)
ALLOW = "allow them: sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"


def refuse_no_sandbox(said: str) -> None:
    """ConfigError where bubblewrap's last words are that none can be made here."""
    if any(word in said for word in FORBIDDEN):
        raise ConfigError(f"the kernel lets this user make no namespaces ({said}); {ALLOW}")
    if "Unknown option" in said:
        raise ConfigError(f"bubblewrap is too old ({said}): 0.8 or newer is needed")


def nobody() -> list[str]:
    """Root does not go into the sandbox: to the host, what runs there is a user whom nobody else is.

    A user of its own, since the kernel counts much by user: what one sandbox uses up, no other lacks. Where this root
    has not got so many users, in some containers, all are the one called nobody.
    """
    if os.geteuid() != 0:
        return []
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    own = any(first <= USERS.start and USERS.stop <= first + length for first, _, length in ranges)
    user = USERS[secrets.randbelow(len(USERS))] if own else NOBODY
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]


def system() -> list[tuple[str, ...]]:
    """For bubblewrap: the system's programs, read-only."""
    links = [
        ("--symlink", os.readlink(f"/{name}"), f"/{name}")
        if Path(f"/{name}").is_symlink()
        else ("--ro-bind-try",) + (f"/{name}",) * 2
        for name in ("bin", "sbin", "lib", "lib64")
    ]
    return [("--ro-bind", "/usr", "/usr"), *links]


@contextlib.contextmanager
def held(text: str) -> Iterator[int]:
    """A file in memory, at its beginning, that a child can read."""
    fd = os.memfd_create("arpo")
    try:
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def end(process: subprocess.Popen[bytes], name: str) -> None:
    """End everything in a sandbox, and see it ended: it lives as long as its standard input is open."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        raise EnvError(f"{name} does not end (process {process.pid})") from None
