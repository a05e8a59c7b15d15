"""The resident process of a sandbox: starts its desktop, then acts, looks and runs commands there on request.

It runs under the system's own Python with the standard library and Xlib, as the sandbox's ordinary user, and is the
only thing that the outside talks to: JSON lines through one socket, answered in any order by their "id". When the
socket closes it ends, and with it the whole process namespace.

    {"id": 1, "do": "click", "with": {"x": 120, "y": 44, "button": 1, "count": 1}}       {"id": 1, "is": null}
    {"id": 2, "do": "run", "with": {"argv": ["ls"], "shell": false, "limit_s": 120}}     {"id": 2, "is": {…}}
    {"id": 3, "do": "press", "with": {"keysyms": [0]}}                 {"id": 3, "error": "…", "fatal": false}

"fatal": the desktop is lost, and not only this request refused.
"""

import base64
import contextlib
import ctypes
import json
import os
import resource
import select
import selectors
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from Xlib import XK, X, Xatom, display, error, protocol
from Xlib.ext import damage, xtest

HOME = "/home/user"
SCREEN = "/run/arpo/screen"  # the folder of Xvfb's framebuffer
MANAGED = "/run/arpo/managed"  # there when the window manager takes windows
REQUESTS = "/run/arpo/requests"  # a socket through which programs here ask: pyautogui does
REQUEST_S = 5.0  # for one to say what it wants
SHIFTS = {XK.XK_Shift_L, XK.XK_Shift_R}
DRAG_POINTS = 8  # a drag is seen as one only if the pointer passes through points between
ALT, HOLD_S = 0xFFE9, 0.03  # the window manager must see Alt held when it opens its list of windows, or it stays open
POLL_S = 0.012  # drawings closer than this are one
SLOW = {b"soffice.bin": 0.35}  # seconds after which a program still draws: LibreOffice renews its bars by a timer
START_S, MANAGER_S = 10.0, 0.2  # for the window manager: to start, to answer
LARGEST_OUTPUT = 16 << 20  # bytes of a command's output that are kept
LARGEST_FILE = 64 << 20  # bytes of a file that is read
OWN_PROCESSES = 64  # of the limit, kept for this process: applications that use up theirs leave the desktop usable
MEDIA = 0x1008  # the upper half of keysyms such as that of "louder"
SET_DUMPABLE = 4  # of prctl

launched: dict[int, subprocess.Popen[bytes]] = {}


class Desktop:
    """X server, window manager and what is done to them."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        self.server, self.lost = server, False
        self.shift_held = False  # by a press that was asked for
        self.lock = threading.Lock()  # Xlib's connection and the pointer are one
        self.display = display.Display(":0")
        self.display.set_error_handler(lambda *error: None)  # of requests without an answer: a window that has closed
        self.root = self.display.screen().root
        self.probe = self.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)  # never shown
        self.drawing = Drawing()
        low, high = self.display.display.info.min_keycode, self.display.display.info.max_keycode
        rows = self.display.get_keyboard_mapping(low, high - low + 1)
        # Keycodes for keysyms that no key gives: those of no key, and those of media keys, which nobody here presses.
        # The one that has been unused for longest comes first.
        spare = [not any(keysym and keysym >> 16 != MEDIA for keysym in row) for row in rows]
        self.spares: dict[int, int] = {low + i: 0 for i in range(len(rows)) if spare[i]}

    # Pointer.

    def click(self, x: int, y: int, button: int, count: int) -> None:
        self._move(x, y)
        for _ in range(count):
            self.hold(button, True)
            xtest.fake_input(self.display, X.ButtonRelease, button)
        self.display.sync()

    scroll = click  # the wheel's notches are buttons

    def drag(self, x: int, y: int, to_x: int, to_y: int) -> None:
        self._move(x, y)
        self.hold(1, True)
        for i in range(1, DRAG_POINTS + 1):
            self.move(x + (to_x - x) * i // DRAG_POINTS, y + (to_y - y) * i // DRAG_POINTS)
            time.sleep(0.01)  # toolkits drop motion that comes faster than they draw
        xtest.fake_input(self.display, X.ButtonRelease, 1)
        self.display.sync()

    def move(self, x: int, y: int) -> None:
        self._move(x, y)
        self.display.sync()

    def hold(self, button: int, down: bool) -> None:
        xtest.fake_input(self.display, X.ButtonPress if down else X.ButtonRelease, button)
        if down:
            self._wait_for_manager()
        self.display.sync()

    def _wait_for_manager(self) -> None:
        """Until the window manager has let a press through: it looks at it first, and keys would overtake it meanwhile.

        It does things in their order, and this is one that can be seen to be done.
        """
        self.probe.delete_property(self._atom("_NET_FRAME_EXTENTS"))
        self._ask_manager("_NET_REQUEST_FRAME_EXTENTS", self.probe.id, [0] * 5)
        deadline = time.monotonic() + MANAGER_S
        while not self.probe.get_full_property(self._atom("_NET_FRAME_EXTENTS"), X.AnyPropertyType):
            if time.monotonic() > deadline:
                return  # a program has ended it
            time.sleep(0.0002)

    def size(self) -> list[int]:
        screen = self.display.screen()
        return [screen.width_in_pixels, screen.height_in_pixels]

    def pointer(self) -> list[int]:
        found = self.root.query_pointer()
        return [found.root_x, found.root_y]

    def _move(self, x: int, y: int) -> None:
        xtest.fake_input(self.display, X.MotionNotify, x=x, y=y)

    # Keyboard.

    def type(self, keysyms: list[int]) -> None:
        size = len(self.spares)
        for start in range(0, len(keysyms), size):
            part = keysyms[start : start + size]
            self._give_keys(part)  # all of a part at once: a changed keyboard map takes clients a moment to read
            for keysym in part:
                self._send(self._keys([keysym]))
            self.display.sync()

    def press(self, keysyms: list[int], phase: str) -> None:
        self._give_keys(keysyms)
        codes = self._keys(keysyms)
        if phase == "press" and len(codes) > 1 and ALT in keysyms:
            self._send(codes, up=False)
            self.display.sync()
            time.sleep(HOLD_S)
            phase = "up"
        self._send(codes, down=phase != "up", up=phase != "down")
        self.display.sync()
        if SHIFTS & set(keysyms):
            self.shift_held = phase == "down"

    def _send(self, codes: list[int], down: bool = True, up: bool = True) -> None:
        for code in codes if down else ():
            xtest.fake_input(self.display, X.KeyPress, code)
        for code in reversed(codes) if up else ():
            xtest.fake_input(self.display, X.KeyRelease, code)

    def _keys(self, keysyms: list[int]) -> list[int]:
        """The keycodes that give keysyms together, Shift among them where one needs it and it is not held already."""
        codes = []
        for keysym in keysyms:
            code, shifted = self._places(keysym)[0]
            if shifted and not self.shift_held:
                codes.append(self.display.keysym_to_keycode(XK.XK_Shift_L))
            codes.append(code)
        return list(dict.fromkeys(codes))  # each once: Shift may also have been asked for

    def _places(self, keysym: int) -> list[tuple[int, int]]:
        """Keycodes that give a keysym, and whether with Shift. Other levels of the keyboard are not used."""
        return [place for place in self.display.keysym_to_keycodes(keysym) if place[1] in (0, 1)]

    def _give_keys(self, keysyms: list[int]) -> None:
        """See that each keysym has a key: what none has gets a spare one."""
        if len(set(keysyms)) > len(self.spares) or not all(0 < keysym < 1 << 29 for keysym in keysyms):
            raise ValueError("too many keys, or one that X cannot have")
        self._read_map()
        missing = []
        for keysym in dict.fromkeys(keysyms):
            places = self._places(keysym)
            if not places:
                missing.append(keysym)
            elif places[0][0] in self.spares:
                self.spares[places[0][0]] = self.spares.pop(places[0][0])  # in use again: the last to be taken
        if not missing:
            return
        if any(list(self.spares.values())[: len(missing)]):
            self.settle(5.0, 0.06, 0.1)  # a client must have read all keys of the old map before it sees the new one
        for keysym in missing:
            code = next(iter(self.spares))
            del self.spares[code]
            self.spares[code] = keysym
            self.display.change_keyboard_mapping(code, [[keysym, keysym]])
        self.display.sync()
        self._read_map()
        time.sleep(0.05)  # clients read the new map when they are told, and there is no way to see that they have

    def _read_map(self) -> None:
        """Hear of changes to the keyboard's map: ours, and those of programs."""
        while self.display.pending_events():
            event = self.display.next_event()
            if event.type == X.MappingNotify:
                self.display.refresh_keyboard_mapping(event)

    # Windows.

    def windows(self) -> list[dict[str, Any]]:
        """What a task bar would show, the lowest first."""
        with_focus = self._value(self.root, "_NET_ACTIVE_WINDOW")
        found = []
        for number in self._value(self.root, "_NET_CLIENT_LIST_STACKING"):
            window = self.display.create_resource_object("window", number)
            try:
                if self._is_splash(window):
                    continue
                names = window.get_wm_class() or ("", "")
                place = window.get_geometry()
                at = self.root.translate_coords(window, 0, 0)
                found.append(
                    {
                        "id": number,
                        "title": self._title(window),
                        "class": list(names),
                        "box": [at.x, at.y, place.width, place.height],
                        "active": number in with_focus,
                    }
                )
            except (error.BadWindow, error.BadDrawable):
                continue  # it closed meanwhile
        return found

    def _is_splash(self, window: Any) -> bool:
        """The picture that a program shows while it starts."""
        kinds = window.get_full_property(self._atom("_NET_WM_WINDOW_TYPE"), Xatom.ATOM)
        return kinds is not None and self._atom("_NET_WM_WINDOW_TYPE_SPLASH") in kinds.value

    def activate(self, window: int) -> None:
        self._ask_manager("_NET_ACTIVE_WINDOW", window, [2, X.CurrentTime, 0, 0, 0])

    def close_window(self, window: int) -> None:
        self._ask_manager("_NET_CLOSE_WINDOW", window, [X.CurrentTime, 2, 0, 0, 0])

    def _ask_manager(self, what: str, window: int, data: list[int]) -> None:
        event = protocol.event.ClientMessage(
            window=self.display.create_resource_object("window", window),
            client_type=self._atom(what),
            data=(32, data),
        )
        self.root.send_event(event, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
        self.display.sync()

    def _title(self, window: Any) -> str:
        for name in ("_NET_WM_NAME", "WM_NAME"):
            found = window.get_full_property(self._atom(name), X.AnyPropertyType)
            if found is not None:
                value = found.value
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        return ""

    def _value(self, window: Any, name: str) -> list[int]:
        found = window.get_full_property(self._atom(name), Xatom.WINDOW)
        return [] if found is None else list(found.value)

    def _atom(self, name: str) -> int:
        return self.display.intern_atom(name)

    # Settling.

    def settle(self, limit_s: float, quiet_s: float, busy: float) -> dict[str, float | bool]:
        """Wait until for `quiet_s` nothing was drawn and programs used or wanted under the share `busy` of a core.

        Programs that are known to draw late get longer.
        """
        self.drawing.forget()
        began = since = time.monotonic()
        used, _, slowest_s = work()
        quiet_s = max(quiet_s, slowest_s)
        while True:
            left_s = min(since + quiet_s, began + limit_s) - time.monotonic()
            drawn = self.drawing.drawn(max(POLL_S, left_s))
            now = time.monotonic()
            total, wanted, _ = work()
            if drawn or (now - since >= quiet_s and total - used >= busy * (now - since)):
                since, used = now, total
            elif now - since >= quiet_s and not wanted and not work()[1]:  # one may wake another behind a single look
                return {"settle_s": now - began, "settled": True}
            if now - began >= limit_s:
                return {"settle_s": now - began, "settled": False}


class Drawing:
    """Says when something was drawn: the X server tells, so that nobody has to look at the pixels all the time."""

    def __init__(self) -> None:
        self.display = display.Display(":0")  # its own, whose only events are these
        self.display.damage_query_version()
        self.what = self.display.screen().root.damage_create(damage.DamageReportNonEmpty)
        self.display.sync()

    def drawn(self, within_s: float) -> bool:
        """Whether something is drawn within so many seconds; returns when it was, and a little later."""
        if not self.display.pending_events() and not select.select([self.display.fileno()], [], [], within_s)[0]:
            return False
        time.sleep(POLL_S)  # more is to come: all of it counts as one
        self.forget()
        return True

    def forget(self) -> None:
        """What was drawn until now."""
        while self.display.pending_events():
            self.display.next_event()
        self.display.damage_subtract(self.what)  # only then is the next drawing told
        self.display.sync()


def work() -> tuple[float, bool, float]:
    """Processor seconds that the programs here have used; whether one wants more; how late the slowest may draw.

    On a busy machine one that wants the processor or the disk and does not get it uses none, and is not at rest: known
    of main threads. Programs that have ended are not in the seconds: a difference may be below 0.
    """
    total, wanted, slowest_s = 0, False, 0.0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                used = time.clock_gettime_ns((~int(name) << 3) | 2)  # the kernel's clock of another process
                state = read_proc(name, "stat")
            except OSError:
                continue  # it has ended
            program, _, rest = state.partition(b"(")[2].rpartition(b") ")
            wanted = wanted or rest.startswith((b"R", b"D"))
            slowest_s = max(slowest_s, SLOW.get(program, 0.0))
            total += used
    return total / 1e9, wanted, slowest_s


def read_proc(pid: str, name: str) -> bytes:
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


# Starting programs.


def start(argv: Sequence[str] | str, **more: Any) -> subprocess.Popen[bytes]:
    """A program of the desktop, in its own session; its own limits leave room for this process."""
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
    return subprocess.Popen(argv, start_new_session=True, preexec_fn=_leave_room, **given)


def _leave_room() -> None:
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0] - OWN_PROCESSES
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def reap(process: subprocess.Popen[bytes]) -> None:
    """Let it run, and no zombie be left of it."""
    threading.Thread(target=process.wait, daemon=True).start()


def start_bus() -> Any:
    """The session bus, at the address that programs know; when it is up, a line can be read from what is returned."""
    read, write = os.pipe()
    words = ["--session", "--nofork", "--nopidfile", f"--address={os.environ['DBUS_SESSION_BUS_ADDRESS']}"]
    reap(start(["dbus-daemon", *words, f"--print-address={write}"], pass_fds=[write]))
    os.close(write)
    return open(read)


def wait_for_bus(bus: Any) -> None:
    with bus:
        if not bus.readline():
            raise RuntimeError("dbus-daemon did not start")


def wait_for_manager(manager: subprocess.Popen[bytes]) -> None:
    """A window manager says that it is there well before it takes windows; only then does it run its command."""
    deadline = time.monotonic() + START_S
    while not os.path.exists(MANAGED):
        if manager.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"openbox did not start (status {manager.returncode})")
        time.sleep(0.002)
    reap(manager)


def unpack(home: int) -> None:
    """The home folder, from a tar file."""
    unpacked = subprocess.run(["tar", "-xf", "-"], stdin=home, stderr=subprocess.PIPE, text=True)
    if unpacked.returncode:
        raise RuntimeError(f"the home folder cannot be made: {unpacked.stderr.strip()}")
    os.close(home)


def start_x(screen: int, width: int, height: int) -> subprocess.Popen[bytes]:
    """The X server, drawing into a file that is given: one in memory that nobody here can make shorter."""
    os.makedirs(SCREEN)
    os.symlink(f"/proc/self/fd/{screen}", os.path.join(SCREEN, "Xvfb_screen0"))
    read, write = os.pipe()
    server = subprocess.Popen(
        [
            "Xvfb", ":0", "-screen", "0", f"{width}x{height}x24", "-fbdir", SCREEN, "-nolisten", "tcp", "-noreset",
            "-extension", "GLX", "-displayfd", str(write),
        ],
        pass_fds=[write, screen],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(write)
    with open(read) as ready:
        if not ready.readline():  # all of the line: it writes in pieces, and a closed pipe would end it
            raise RuntimeError(f"Xvfb ended with status {server.wait()}")
    return server


# Commands and files.


def run(
    argv: list[str] | str, shell: bool, limit_s: float, cwd: str | None = None, more: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run a command to its end; killed with all it started where it takes too long."""
    process = start(
        argv,
        shell=shell,
        cwd=cwd or HOME,
        env={**os.environ, **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        out, err, late = _collect(process, time.monotonic() + limit_s)
        if late:
            os.killpg(process.pid, signal.SIGKILL)
    return {"status": process.returncode, "out": out, "err": err, "late": late}


def _collect(process: subprocess.Popen[bytes], deadline: float) -> tuple[str, str, bool]:
    """What a process says until it has ended, and whether it was too late for that.

    What it leaves in the background may keep its pipes open: that is not waited for.
    """
    said: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    ended = os.pidfd_open(process.pid)
    with selectors.DefaultSelector() as selector:
        selector.register(ended, selectors.EVENT_READ)
        for pipe in said:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        alive = True
        while alive and (left := deadline - time.monotonic()) > 0:
            ready = [key.fileobj for key, _ in selector.select(left)]
            alive = ended not in ready
            for pipe in said if not alive else ready:
                if not _drain(pipe, said[pipe]) and alive:
                    selector.unregister(pipe)
    os.close(ended)
    out, err = (bytes(data).decode("utf-8", "replace") for data in said.values())
    return out, err, alive


def _drain(pipe: Any, into: bytearray) -> bool:
    """Take what is in a pipe; more than the largest output is dropped. False: it is closed."""
    while data := pipe.read(1 << 16):
        into += data[: LARGEST_OUTPUT - len(into)]
    return data is None


def launch(argv: list[str] | str, shell: bool, cwd: str | None = None, more: dict[str, str] | None = None) -> int:
    """Start a command and leave it alone."""
    process = start(argv, shell=shell, cwd=cwd or HOME, env={**os.environ, **(more or {})})
    reap(process)
    launched[process.pid] = process
    return process.pid


def status(pid: int) -> int | None:
    """The status with which a launched program ended; None while it runs."""
    return launched[pid].returncode


def read(path: str) -> str:
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would never open
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST_FILE:
            raise ValueError(f"{path} is not a file of at most {LARGEST_FILE >> 20} MB")
        return base64.b64encode(file.read(LARGEST_FILE)).decode()


def write(path: str, data: str) -> None:
    path = os.path.join(HOME, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644), "wb") as file:
        file.write(base64.b64decode(data))


def connect(port: int) -> socket.socket:
    """A connection to a program here, which is handed out whole: nothing has to relay its bytes."""
    return socket.create_connection(("127.0.0.1", port), timeout=None)


# The conversation.


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    screen, home, width, height, most_processes = map(int, sys.argv[2:7])
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # where the whole machine has no memory left, desktops go first
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 0)  # programs here have the same user: they shall not look into this process
    resource.setrlimit(resource.RLIMIT_NPROC, (most_processes, most_processes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(HOME)
    bus, server = start_bus(), start_x(screen, width, height)
    if home >= 0:
        unpack(home)
    os.makedirs("Desktop", exist_ok=True)
    manager, desktop = start(["openbox", "--startup", f"touch {MANAGED}"]), Desktop(server)
    wait_for_bus(bus)
    wait_for_manager(manager)
    requests = socket.socket(socket.AF_UNIX)
    requests.bind(REQUESTS)
    requests.listen()
    threading.Thread(target=accept, args=(requests, desktop), daemon=True).start()
    connection.sendall(b"\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # from now on nobody reads what is said there
    converse(connection, desktop)


def accept(requests: socket.socket, desktop: Desktop) -> None:
    """What programs here ask of the screen: one after the other, so that no number of them takes all threads."""
    while True:
        with requests.accept()[0] as connection, contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            connection.settimeout(REQUEST_S)
            request = json.loads(connection.makefile("rb").readline(LARGEST_FILE))
            if request["do"] in SCREEN_CALLS:
                handle(connection, threading.Lock(), desktop, request)


def converse(connection: socket.socket, desktop: Desktop) -> None:
    answer = threading.Lock()
    for line in connection.makefile("rb"):
        request = json.loads(line)
        if request["do"] == "run":  # it may take long, and others must not wait
            threading.Thread(target=handle, args=(connection, answer, desktop, request), daemon=True).start()
        else:
            handle(connection, answer, desktop, request)


def handle(connection: socket.socket, answer: threading.Lock, desktop: Desktop, request: dict[str, Any]) -> None:
    reply: dict[str, Any] = {"id": request["id"], "is": None}
    passed: list[socket.socket] = []
    try:
        found = perform(desktop, request["do"], request["with"])
        if isinstance(found, socket.socket):
            passed.append(found)
            reply["passed"] = True
        else:
            reply["is"] = found
    except error.ConnectionClosedError:
        desktop.lost = True
        reply |= {"error": "the X server is gone", "fatal": True}
    except Exception as failure:  # the outside decides what it means
        reply |= {"error": f"{type(failure).__name__}: {failure}", "fatal": False}
    line = json.dumps(reply).encode() + b"\n"
    with answer:
        if passed:
            socket.send_fds(connection, [line], [passed[0].fileno()])
            passed[0].close()
        else:
            connection.sendall(line)


def perform(desktop: Desktop, do: str, arguments: dict[str, Any]) -> Any:
    if desktop.lost or desktop.server.poll() is not None:
        raise error.ConnectionClosedError("X server")
    if do in CALLS:
        return CALLS[do](**arguments)
    if do not in SCREEN_CALLS:
        raise ValueError("unknown request")
    with desktop.lock:
        return getattr(desktop, do)(**arguments)


CALLS: dict[str, Callable[..., Any]] = {
    "run": run, "launch": launch, "status": status, "read": read, "write": write, "connect": connect,
}  # fmt: skip
SCREEN_CALLS = "click drag scroll move hold size pointer type press windows activate close_window settle".split()

if __name__ == "__main__":
    try:
        main()
    finally:
        with contextlib.suppress(ProcessLookupError):  # there are none
            os.kill(-1, signal.SIGKILL)  # all others here: the namespace ends when its last process does
