"""One private desktop: namespaces, an X server in memory, a window manager, a session bus. Nothing of it is left over.

    with Sandbox((1280, 720)) as sandbox:
        sandbox.launch(["mousepad"])
        sandbox.ask("click", x=120, y=44, button=1, count=1)
        sandbox.ask("settle", limit_s=2.0, quiet_s=0.06, busy=0.1)
        pixels = sandbox.screenshot()
        sandbox.run(["cat", "notes.txt"]).out

What runs inside is user 1000 at home in /home/user, in its own process, network, ipc, mount and user namespaces: it has
no network, sees the system's programs read-only and of the host's files nothing else. What it writes is in memory and
goes with it. All of it ends with this object and with this process, however they end.
"""

import base64
import contextlib
import fcntl
import json
import mmap
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np

from arpo.envs.bubblewrap import SUPERVISE, end, held, nobody, refuse_no_sandbox, system
from arpo.envs.desktop import shims
from arpo.envs.memory import new_group, remove
from arpo.errors import ConfigError, EnvError
from arpo.images import Pixels

PROGRAMS = {"bwrap": "bubblewrap", "Xvfb": "xvfb", "openbox": "openbox", "dbus-daemon": "dbus"}
APPLICATIONS = {
    "xterm": "xterm", "mousepad": "mousepad", "galculator": "galculator", "pcmanfm": "pcmanfm", "gimp": "gimp",
    "chromium": "chromium", "vlc": "vlc", "localc": "libreoffice-calc", "lowriter": "libreoffice-writer",
    "loimpress": "libreoffice-impress", "wmctrl": "wmctrl", "jq": "jq", "socat": "socat", "sar": "sysstat",
}  # fmt: skip
START_S, CALL_S = 20.0, 30.0  # limits; a start takes an eighth of a second
MOST_PROCESSES = 512  # of one desktop, threads included
SIZES_MB = {"/home/user": 256, "/tmp": 256, "/dev/shm": 64, "/run": 32}  # what it may write, in memory
MEMORY_MB = 2048  # what it may take, these files among it, where control groups can be made
SCREEN_HEADER = 1 << 14  # at most, before the pixels
NO_FILE = -1
LOST = {"error": "the desktop has ended", "fatal": True}
RESIDENT = ("__init__.py", "inside.py", "screen.py", "programs.py")  # of the folder `guest`: its first process
START = "import sys; sys.path.insert(0, '/arpo'); from guest.inside import main; main()"
INSIDE = ("/usr/bin/python3", "-I", "-c", START)

# Of /etc only what programs need to run: nothing that is the host's own.
ETC = (
    "alternatives", "chromium", "dconf", "drirc", "fonts", "gimp", "gtk-2.0", "gtk-3.0", "host.conf",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libreoffice", "locale.alias", "localtime", "mailcap", "mime.types",
    "nsswitch.conf", "pulse", "vdpau_wrapper.cfg", "vlc", "X11", "xdg",
)  # fmt: skip
CHROMIUM = (  # nothing asked, nothing moving, nothing fetched, few processes
    "--no-sandbox --test-type "  # it has no namespaces of its own here; the second flag says that this is meant
    "--no-first-run --no-default-browser-check --password-store=basic --disable-sync --disable-pings --media-router=0 "
    "--disable-background-networking --disable-component-update --disable-component-extensions-with-background-pages "
    "--disable-smooth-scrolling --force-prefers-reduced-motion --wm-window-animations-disabled "
    "--disable-gpu --in-process-gpu --renderer-process-limit=2"
)
FILES = {
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost desktop\n",
    "/etc/machine-id": "00000000000000000000000000000001\n",
    "/etc/chromium.d/still": f'CHROMIUM_FLAGS="$CHROMIUM_FLAGS {CHROMIUM}"\n',  # in place of the host's own
}
SURROUNDINGS = {
    "PATH": f"{shims.FOLDER}:/usr/local/bin:/usr/bin:/bin:/usr/games",
    "PYTHONPATH": shims.PYTHON,
    "PYTHONNOUSERSITE": "1",  # what an agent leaves in its home is not run by a checker's python3
    "XENVIRONMENT": shims.XTERM,
    "HOME": "/home/user",
    "USER": "user",
    "LOGNAME": "user",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "DISPLAY": ":0",
    "XDG_RUNTIME_DIR": "/run/user/1000",
    "DBUS_SESSION_BUS_ADDRESS": "unix:path=/run/user/1000/bus",
    "NO_AT_BRIDGE": "1",
    "GTK_OVERLAY_SCROLLING": "0",
    "LIBGL_ALWAYS_SOFTWARE": "1",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command. `late`: it was killed, since it took too long."""

    status: int
    out: str
    err: str
    late: bool


class Sandbox:
    """See the module. It is being started when it is made; `wait` says when it is ready.

    `template`: a tar file that is unpacked as its home (home.py). `more`: variables of all programs' surroundings.
    """

    def __init__(self, size: tuple[int, int], template: Path | None = None, **more: str) -> None:
        if why := missing():
            raise ConfigError(f"programs are missing for desktops; {why}")
        self.size = size
        self._numbers = count()
        self._pending: dict[int, Future[Any]] = {}
        self._sending, self._starting = threading.Lock(), threading.RLock()
        self._lost = False
        self._listener: threading.Thread | None = None
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._connection, connection = socket.socketpair()
            ours.enter_context(self._connection)
            theirs.enter_context(connection)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(CALL_S), 0))
            self._pixels = ours.enter_context(_memory(4 * size[0] * size[1] + SCREEN_HEADER))
            texts = {**FILES, **shims.files(), **{f"/arpo/guest/{name}": shims.guest(name) for name in RESIDENT}}
            files = {name: theirs.enter_context(held(text)) for name, text in texts.items()}
            home = theirs.enter_context(template.open("rb")).fileno() if template else NO_FILE
            numbers = (connection.fileno(), self._pixels, home, *size, MOST_PROCESSES)
            self.group = new_group(MEMORY_MB)
            ours.callback(remove, self.group)
            try:
                self._process = subprocess.Popen(
                    ["sh", "-c", SUPERVISE, self.group or "", *nobody(), *_bwrap(files), *INSIDE, *map(str, numbers)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    pass_fds=[fd for fd in (*numbers[:3], *files.values()) if fd != NO_FILE],
                    env={**SURROUNDINGS, **more},
                    start_new_session=True,  # what ends this process's group must leave it to clear up
                )
            except OSError as error:
                raise EnvError(f"no sandbox can be started: {error.strerror}") from error
            assert self._process.stdin is not None
            ours.enter_context(self._process.stdin)
            assert self._process.stderr is not None
            ours.enter_context(self._process.stderr)
            self._ours = ours.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def wait(self, limit_s: float = START_S) -> None:
        """Until it is ready. EnvError, with what was said, where it is not; ConfigError where the kernel forbids it."""
        with self._starting:
            if self._listener is None:
                self._wait(limit_s)

    def _wait(self, limit_s: float) -> None:
        try:
            self._connection.settimeout(limit_s)
            ready = self._connection.recv(1)
        except OSError:  # also: closed already
            ready = b""
        if not ready:
            said = self._last_words()
            refuse_no_sandbox(said)
            raise EnvError(f"the desktop did not start: {said}")
        self._connection.settimeout(None)
        self._screen = mmap.mmap(self._pixels, 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
        self._ours.callback(self._screen.close)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def close(self) -> None:
        """End everything in it, and see it ended. May be called twice."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        with self._starting, self._ours:
            end(self._process, "a desktop")
            if self._listener is not None:
                self._listener.join()

    @property
    def alive(self) -> bool:
        return not self._lost and self._process.poll() is None

    def ask(self, what: str, within_s: float = CALL_S, **arguments: Any) -> Any:
        """One request to guest/inside.py. ValueError where it was refused; EnvError where the desktop is lost."""
        self.wait()
        number, future = next(self._numbers), Future[Any]()
        self._pending[number] = future
        if self._lost:
            future.set_result(LOST)
        request = json.dumps({"id": number, "do": what, "with": arguments}).encode() + b"\n"
        try:
            with self._sending:
                self._connection.sendall(request)
            reply = future.result(within_s)
        except NoAnswer:
            raise EnvError(f"{what}: the desktop did not answer within {within_s:g} s") from None
        except OSError as error:
            raise EnvError(f"{what}: the desktop is gone ({error.strerror})") from error
        finally:
            self._pending.pop(number, None)
        if "error" in reply:
            raise (EnvError if reply["fatal"] else ValueError)(f"{what}: {reply['error']}")
        return reply["is"] if reply["fd"] is None else reply["fd"]

    def screenshot(self) -> Pixels:
        """What is on the screen now, the pointer with it."""
        self.wait()
        if self._lost:
            raise EnvError(f"screenshot: {LOST['error']}")
        width, height = self.size
        whole = np.frombuffer(self._screen, np.uint8)  # an XWD file: its header's length is its first number
        start = int.from_bytes(whole[:4].tobytes(), "big") + 12 * int.from_bytes(whole[76:80].tobytes(), "big")
        if not 0 < start <= SCREEN_HEADER:  # programs inside may write there
            raise EnvError("the screen is damaged")
        pixels = whole[start : start + 4 * width * height].reshape(height, width, 4)
        rgb = np.empty((height, width, 3), np.uint8)
        for i in range(3):  # blue, green, red, nothing; four times as fast as turning them round in one go
            rgb[:, :, i] = pixels[:, :, 2 - i]
        return rgb

    def run(self, argv: Sequence[str] | str, limit_s: float = 120.0, cwd: str | None = None, **more: str) -> Ran:
        """Run a command to its end: a list of words, or a line for the shell. `more`: variables of its surroundings."""
        arguments = {"argv": argv, "shell": isinstance(argv, str), "cwd": cwd, "more": more}
        return Ran(**self.ask("run", limit_s + CALL_S, limit_s=limit_s, **arguments))

    def launch(self, argv: Sequence[str] | str, cwd: str | None = None, **more: str) -> int:
        """Start a program and let it run; `ask("status", pid=…)` gives the status with which it ended, or None."""
        pid: int = self.ask("launch", argv=argv, shell=isinstance(argv, str), cwd=cwd, more=more)
        return pid

    def connect(self, port: int) -> socket.socket:
        """A connection to a port inside. ValueError where nothing listens there."""
        return socket.socket(fileno=self.ask("connect", port=port))

    def read(self, path: str) -> bytes:
        """A file inside. ValueError where it cannot be read."""
        return base64.b64decode(self.ask("read", path=path))

    def write(self, path: str, data: bytes) -> None:
        self.ask("write", path=path, data=base64.b64encode(data).decode())

    def _listen(self) -> None:
        """Answers go to who waits for them; at the end, all that is still waited for is lost."""
        with contextlib.suppress(OSError, ValueError):
            passed: list[int] = []  # files that came with replies, in their order
            for text in self._lines(passed):
                reply = json.loads(text)
                fd = passed.pop(0) if reply.get("passed") else None
                if (future := self._pending.get(reply["id"])) is not None:
                    future.set_result({**reply, "fd": fd})
                elif fd is not None:
                    os.close(fd)  # nobody waits any more
        self._lost = True
        for future in list(self._pending.values()):
            if not future.done():
                future.set_result(LOST)

    def _lines(self, passed: list[int]) -> Iterator[bytes]:
        rest = bytearray()
        while True:
            data, fds, _, _ = socket.recv_fds(self._connection, 1 << 18, 1)
            if not data:
                return
            passed += fds
            rest += data
            if b"\n" in data:
                *lines, rest = rest.split(b"\n")
                yield from map(bytes, lines)

    def _last_words(self) -> str:
        end(self._process, "a desktop")
        assert self._process.stderr is not None
        said = "" if self._process.stderr.closed else self._process.stderr.read().decode(errors="replace").strip()
        self.close()
        return said.splitlines()[-1] if said else f"status {self._process.returncode}, without a word"


def missing(programs: Mapping[str, str] = PROGRAMS) -> str:
    """The command that installs what this machine lacks of some programs; empty where it lacks none."""
    lacking = {package for program, package in programs.items() if shutil.which(program) is None}
    if not Path("/usr/lib/python3/dist-packages/Xlib").is_dir():
        lacking.add("python3-xlib")
    return f"apt-get install -y --no-install-recommends {' '.join(sorted(lacking))}" if lacking else ""


def _bwrap(files: dict[str, int]) -> list[str]:
    binds = [("--ro-bind-try", f"/etc/{name}", f"/etc/{name}") for name in ETC]
    parts: list[tuple[str, ...]] = [
        ("bwrap", "--die-with-parent", "--new-session", "--unshare-all", "--unshare-user", "--disable-userns"),
        ("--uid", "1000", "--gid", "1000", "--cap-drop", "ALL", "--hostname", "desktop"),
        *system(),
        *binds,
        ("--ro-bind-try", "/var/cache/fontconfig", "/var/cache/fontconfig"),
        ("--ro-bind-try", "/var/lib/dbus", "/var/lib/dbus"),
        ("--symlink", "/tmp", "/var/tmp"),
        ("--proc", "/proc", "--dev", "/dev"),
        *(("--size", str(mb << 20), "--tmpfs", name) for name, mb in SIZES_MB.items()),
        ("--dir", "/run/user/1000", "--dir", "/run/arpo", "--dir", "/tmp/.X11-unix"),
        *(("--perms", "0755", "--ro-bind-data", str(fd), name) for name, fd in files.items()),
        *shims.mounts(),
        ("--remount-ro", "/", "--remount-ro", "/dev"),  # these folders themselves have no size that could be limited
    ]
    return [word for part in parts for word in part]


@contextlib.contextmanager
def _memory(size: int) -> Iterator[int]:
    """Memory that others may write. It keeps its size for ever: reading what was cut off would end this process."""
    fd = os.memfd_create("arpo", os.MFD_ALLOW_SEALING)
    try:
        os.truncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        yield fd
    finally:
        os.close(fd)
