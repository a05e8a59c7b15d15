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
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as NoAnswer
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np

from arpo.envs.bubblewrap import SUPERVISE, end, held, nobody, refuse_no_sandbox, system
from arpo.envs.desktop import gvisor, shims
from arpo.envs.desktop.gvisor import Wall
from arpo.envs.memory import new_group, overruns, remove
from arpo.errors import ConfigError, EnvError, Ruined
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
STDOUT, NO_FILE = 1, -1
LONGEST_REPLY = 1 << 28  # bytes: a file of 64 MB, as text, is a third of it
PIECE = 8 << 20  # bytes of a file that are sent at once
WEAKER = "desktops would lack walls here: {}; to accept that: --allow-weaker-sandbox"
LOST = {"error": "the desktop has ended", "fatal": True}
RESIDENT = "__init__.py inside.py programs.py screen.py starter.py walls.py witness.py".split()  # of the folder `guest`
PRIVILEGES = (
    "CAP_SYS_ADMIN",
    "CAP_SYS_RESOURCE",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
)  # to build the inner walls with; then they go
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
MACHINE = "00000000000000000000000000000001\n"
FILES = {
    "/etc/passwd": "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/bash\n",
    "/etc/group": "root:x:0:\nuser:x:1000:\n",
    "/etc/hosts": "127.0.0.1 localhost desktop\n",
    "/etc/machine-id": MACHINE,
    "/var/lib/dbus/machine-id": MACHINE,
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

    `template`: a tar file that is unpacked as its home (home.py). `weaker`: it may lack walls that this kernel has not
    got; without, that is a ConfigError. `wall`: gvisor.py has the second one. `more`: variables of all programs'
    surroundings.
    """

    def __init__(
        self,
        size: tuple[int, int],
        template: Path | None = None,
        weaker: bool = False,
        wall: Wall = "bubblewrap",
        **more: str,
    ) -> None:
        if why := missing():
            raise ConfigError(f"programs are missing for desktops; {why}")
        gvisor.refuse(wall)
        self.size, self.wall = size, wall
        self._numbers = count()
        self._pending: dict[int, Future[Any]] = {}
        self._sending, self._starting = threading.Lock(), threading.RLock()
        self._lost, self._was_full, self._weaker = False, False, weaker
        self.lacking: list[str] = []  # walls
        self._listener: threading.Thread | None = None
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._connection, connection = socket.socketpair()
            ours.enter_context(self._connection)
            theirs.enter_context(connection)
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(CALL_S), 0))
            self._pixels = ours.enter_context(_memory(4 * size[0] * size[1] + SCREEN_HEADER))
            texts = {**FILES, **shims.files(), **{f"/arpo/guest/{name}": shims.guest(name) for name in RESIDENT}}
            home = theirs.enter_context(template.open("rb")).fileno() if template else NO_FILE
            numbers = (STDOUT, self._pixels, home, *size, MOST_PROCESSES, int(wall == "gvisor"))
            inside = [*INSIDE, *map(str, numbers)]
            if wall == "gvisor":
                inside, texts[gvisor.CONFIG] = gvisor.inside(numbers, {**SURROUNDINGS, **more}, SIZES_MB, PRIVILEGES)
            files = {name: theirs.enter_context(held(text)) for name, text in texts.items()}
            if wall == "gvisor" and template:
                files[gvisor.HOME] = home
            self.group = new_group(MEMORY_MB)
            if self.group is None:
                self.lacking.append("a limit of memory (no control group can be made)")
            ours.callback(remove, self.group)
            try:
                self._process = subprocess.Popen(
                    ["sh", "-c", SUPERVISE, self.group or "", *nobody(), *_bwrap(files, wall), *inside],
                    stdin=subprocess.PIPE,
                    stdout=connection.fileno(),
                    stderr=subprocess.PIPE,
                    pass_fds=[fd for fd in (self._pixels, home, *files.values()) if fd != NO_FILE],
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
            ready = b""
            while not ready.endswith(b"\n") and (more := self._connection.recv(1 << 12)):
                ready += more
        except OSError:  # also: closed already
            ready = b""
        if not ready:
            said = self._last_words()
            refuse_no_sandbox(said)
            raise EnvError(f"the desktop did not start: {said}")
        self.lacking += json.loads(ready) if self.wall == "bubblewrap" else gvisor.lacking(json.loads(ready))
        if self.lacking and not self._weaker:
            self.close()
            raise ConfigError(WEAKER.format(", ".join(self.lacking)))
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
        return self._ask(what, within_s, arguments)

    def _ask(self, what: str, within_s: float, arguments: dict[str, Any], hand: int | None = None) -> Any:
        """`hand`: an open file that goes with the request."""
        self.wait()
        number, future = next(self._numbers), Future[Any]()
        self._pending[number] = future
        if self._lost:
            _give(future, LOST)
        said = {"id": number, "do": what, "with": arguments, "handed": hand is not None}
        request = json.dumps(said).encode() + b"\n"
        try:
            with self._sending:
                sent = 0 if hand is None else socket.send_fds(self._connection, [request], [hand])
                self._connection.sendall(request[sent:])
            reply = future.result(within_s)
        except NoAnswer:
            raise EnvError(f"{what}: the desktop did not answer within {within_s:g} s") from None
        except OSError as error:
            raise EnvError(f"{what}: the desktop is gone ({error.strerror})") from error
        finally:
            self._pending.pop(number, None)
        if "error" in reply:
            raise (EnvError if reply.get("fatal", True) else ValueError)(f"{what}: {reply['error']}")
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

    def run(
        self,
        argv: Sequence[str] | str,
        limit_s: float = 120.0,
        cwd: str | None = None,
        check: bool = False,
        **more: str,
    ) -> Ran:
        """Run a command to its end: a list of words, or a line for the shell. `more`: variables of its surroundings.

        `check`: it looks at what the agent did; an agent that has used up its processes is no hindrance.
        """
        arguments = {"argv": argv, "shell": isinstance(argv, str), "cwd": cwd, "more": more, "check": check}
        return Ran(**self.ask("run", limit_s + CALL_S, limit_s=limit_s, **arguments))

    def launch(self, argv: Sequence[str] | str, cwd: str | None = None, **more: str) -> int:
        """Start a program and let it run; `ask("status", pid=…)` gives the status with which it ended, or None."""
        pid: int = self.ask("launch", argv=argv, shell=isinstance(argv, str), cwd=cwd, more=more)
        return pid

    @contextlib.contextmanager
    def frozen(self, but: Sequence[str] = ()) -> Iterator[None]:
        """All programs stand still in the block: what is started there is disturbed by none, and what it sees stays.

        Then they go on, since a score may be asked for in the middle of an episode. `but`: paths of programs that are
        asked something. What runs there may be the agent's own code, in whatever program it is. Ruined where a program
        that should stand still did not: nothing but what an agent has arranged wakes one.
        """
        self.ask("freeze", but=list(but))
        try:
            yield
        finally:
            ran = self.ask("thaw")
        if ran:
            raise Ruined(f"{len(ran)} programs did not stand still while a check looked at what they had done")

    def verdict(self) -> str:
        """What the agent did to end this desktop; empty where it lives, or something else may have ended it."""
        if self._lost:
            return "its programs took all memory that it may have" if self._was_full else ""
        return str(self.ask("verdict", full=self._full()))

    def _full(self) -> bool:
        """Whether programs were ended since they took more memory than the desktop may have."""
        try:
            return self.group is not None and all(overruns(self.group))
        except OSError:  # it is gone
            return False

    def connect(self, port: int) -> socket.socket:
        """A connection to a port inside. ValueError where nothing listens there."""
        if self.wall == "bubblewrap":
            return socket.socket(fileno=self.ask("connect", port=port))
        with contextlib.ExitStack() as unless_connected:  # gVisor hands no open file out
            ours, theirs = socket.socketpair()
            unless_connected.enter_context(ours)
            with theirs:
                self._ask("relay", CALL_S, {"port": port}, hand=theirs.fileno())
            unless_connected.pop_all()
            return ours

    def read(self, path: str) -> bytes:
        """A file inside. ValueError where it cannot be read."""
        return base64.b64decode(self.ask("read", path=path))

    def write(self, path: str, data: bytes) -> None:
        for start in range(0, len(data) or 1, PIECE):  # a request is held several times while it is on its way
            piece = base64.b64encode(data[start : start + PIECE]).decode()
            self.ask("write", path=path, data=piece, more=start > 0)

    def _listen(self) -> None:
        """Answers go to who waits for them; at the end, all that is still waited for is lost.

        What is no answer is the end, too: else everybody would wait for one in vain.
        """
        passed: list[int] = []  # files that came with replies, in their order
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            for text in self._lines(passed):
                reply = json.loads(text)
                future = self._pending.get(reply["id"])
                if "error" not in reply:
                    reply = {"is": reply["is"], "fd": passed.pop(0) if reply.get("passed") else None}
                if (future is None or not _give(future, reply)) and reply.get("fd") is not None:
                    os.close(reply["fd"])  # nobody waits any more
        for fd in passed:
            os.close(fd)
        self._was_full = self._full()  # while its control group is still there
        self._lost = True
        for future in list(self._pending.values()):
            _give(future, LOST)

    def _lines(self, passed: list[int]) -> Iterator[bytes]:
        rest = bytearray()
        while len(rest) <= LONGEST_REPLY:
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


def _give(future: Future[Any], reply: dict[str, Any]) -> bool:
    """False where it has one already."""
    try:
        future.set_result(reply)
    except InvalidStateError:
        return False
    return True


def missing(programs: Mapping[str, str] = PROGRAMS) -> str:
    """The command that installs what this machine lacks of some programs; empty where it lacks none."""
    lacking = {package for program, package in programs.items() if shutil.which(program) is None}
    if not Path("/usr/lib/python3/dist-packages/Xlib").is_dir():
        lacking.add("python3-xlib")
    return f"apt-get install -y --no-install-recommends {' '.join(sorted(lacking))}" if lacking else ""


def _bwrap(files: dict[str, int], wall: Wall) -> list[str]:
    binds = [("--ro-bind-try", f"/etc/{name}", f"/etc/{name}") for name in ETC]
    parts: list[tuple[str, ...]] = [
        ("bwrap", "--die-with-parent", "--new-session", "--unshare-all", "--unshare-user"),
        ("--uid", "0", "--gid", "0", "--cap-drop", "ALL", "--hostname", "desktop"),
        gvisor.bwrap() if wall == "gvisor" else tuple(word for one in PRIVILEGES for word in ("--cap-add", one)),
        *system(),
        *binds,
        ("--ro-bind-try", "/var/cache/fontconfig", "/var/cache/fontconfig"),
        ("--symlink", "/tmp", "/var/tmp"),
        ("--proc", "/proc", "--dev", "/dev"),
        *(("--size", str(mb << 20), "--tmpfs", name) for name, mb in SIZES_MB.items()),
        ("--dir", "/run/user/1000", "--dir", "/run/arpo", "--dir", "/tmp/.X11-unix", "--dir", "/arpo/empty"),
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
