"""The screen of a sandbox: its X server, its window manager, and what is done to them.

It runs inside (see inside.py), with the standard library and Xlib.
"""

import os
import select
import subprocess
import threading
import time
from typing import Any

from Xlib import XK, X, Xatom, display, error, protocol
from Xlib.ext import damage, xtest

SHIFTS = {XK.XK_Shift_L, XK.XK_Shift_R}
DRAG_POINTS = 8  # a drag is seen as one only if the pointer passes through points between
ALT, HOLD_S = 0xFFE9, 0.03  # the window manager must see Alt held when it opens its list of windows, or it stays open
POLL_S = 0.012  # drawings closer than this are one
SLOW = {b"soffice.bin": 0.35}  # seconds after which a program still draws: LibreOffice renews its bars by a timer
MANAGER_S = 0.2  # for the window manager to answer
LONGEST_NAME, MOST_WINDOWS = 4096, 256  # of what programs say of their windows
SCREEN_CALLS = "click drag scroll move hold size pointer type press windows activate close_window settle".split()
# What programs here may ask for. While one is served nobody else is, so none may take long: an agent that asks for a
# year of settling would have no score, which it may like better than a bad one.
PROGRAM_CALLS = "click drag scroll move hold size pointer type press".split()
MOST_AT_ONCE = 100  # clicks, notches or keys that one of these asks for: each may take MANAGER_S
MEDIA = 0x1008  # the upper half of keysyms such as that of "louder"


class Screen:
    """X server, window manager and what is done to them."""

    def __init__(self, server: subprocess.Popen[bytes], proc: int) -> None:
        self.server, self.lost = server, False
        self.proc = proc  # an open /proc, of all processes here
        self.shift_held = False  # by a press that was asked for
        self.lock = threading.Lock()  # Xlib's connection and the pointer are one
        self.display = display.Display(":0")
        self.display.set_error_handler(lambda *error: None)  # of requests without an answer: a window that has closed
        self.root = self.display.screen().root
        self.probe = self._new_probe()
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
        try:
            while not self.probe.get_property(self._atom("_NET_FRAME_EXTENTS"), X.AnyPropertyType, 0, 1):
                if time.monotonic() > deadline:
                    return  # a program has ended it
                time.sleep(0.0002)
        except error.BadWindow:  # any program may take any window away
            self.probe = self._new_probe()

    def _new_probe(self) -> Any:
        return self.root.create_window(0, 0, 1, 1, 0, X.CopyFromParent)  # never shown

    def size(self) -> list[int]:
        screen = self.display.screen()
        return [screen.width_in_pixels, screen.height_in_pixels]

    def pointer(self) -> list[int]:
        at = self.root.query_pointer()
        return [at.root_x, at.root_y]

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
            code, shifted = next(iter(self._places(keysym)), (0, 0))
            if not code:
                continue  # a program has taken it off the keyboard since
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
        changed = None
        for _ in range(self.display.pending_events()):  # and not of those that come meanwhile: there may be no end
            event = self.display.next_event()
            changed = event if event.type == X.MappingNotify else changed
        if changed is not None:
            low, high = self.display.display.info.min_keycode, self.display.display.info.max_keycode
            changed.first_keycode, changed.count, changed.request = low, high - low + 1, X.MappingKeyboard
            self.display.refresh_keyboard_mapping(changed)  # once, of all keys: programs may send any number of these

    # Windows.

    def windows(self) -> list[dict[str, Any]]:
        """What a task bar would show, the lowest first."""
        with_focus = self._value(self.root, "_NET_ACTIVE_WINDOW")
        shown = []
        for number in self._value(self.root, "_NET_CLIENT_LIST_STACKING")[-MOST_WINDOWS:]:
            window = self.display.create_resource_object("window", number)
            try:
                if self._is_splash(window):
                    continue
                place = window.get_geometry()
                at = self.root.translate_coords(window, 0, 0)
                shown.append(
                    {
                        "id": number,
                        "title": self._title(window),
                        "class": self._class(window),
                        "box": [at.x, at.y, place.width, place.height],
                        "active": number in with_focus,
                    }
                )
            except error.XError:
                continue  # it closed meanwhile
        return shown

    def _is_splash(self, window: Any) -> bool:
        """The picture that a program shows while it starts."""
        kinds = window.get_property(self._atom("_NET_WM_WINDOW_TYPE"), Xatom.ATOM, 0, MOST_WINDOWS)
        return kinds is not None and self._atom("_NET_WM_WINDOW_TYPE_SPLASH") in list(kinds.value)

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
        return next((text for name in ("_NET_WM_NAME", "WM_NAME") if (text := self._text(window, name))), "")

    def _class(self, window: Any) -> list[str]:
        """Two names: the window's own and the program's."""
        return [*self._text(window, "WM_CLASS").split("\0"), "", ""][:2]

    def _text(self, window: Any, name: str) -> str:
        """A property, which a program may have given any kind and any length."""
        held = window.get_property(self._atom(name), X.AnyPropertyType, 0, LONGEST_NAME // 4)
        return held.value.decode("utf-8", "replace") if held is not None and isinstance(held.value, bytes) else ""

    def _value(self, window: Any, name: str) -> list[int]:
        held = window.get_property(self._atom(name), Xatom.WINDOW, 0, MOST_WINDOWS)
        return list(held.value) if held is not None and held.format == 32 else []

    def _atom(self, name: str) -> int:
        return self.display.intern_atom(name)

    # Settling.

    def settle(self, limit_s: float, quiet_s: float, busy: float) -> dict[str, float | bool]:
        """Wait until for `quiet_s` nothing was drawn and programs used or wanted under the share `busy` of a core.

        Programs that are known to draw late get longer.
        """
        self.drawing.forget()
        began = since = time.monotonic()
        used, _, slowest_s = work(self.proc)
        quiet_s = max(quiet_s, slowest_s)
        while True:
            left_s = min(since + quiet_s, began + limit_s) - time.monotonic()
            drawn = self.drawing.drawn(max(POLL_S, left_s))
            now = time.monotonic()
            total, wanted, _ = work(self.proc)
            if drawn or (now - since >= quiet_s and total - used >= busy * (now - since)):
                since, used = now, total
            elif (
                now - since >= quiet_s and not wanted and not work(self.proc)[1]
            ):  # one may wake another behind a single look
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
        for _ in range(self.display.pending_events()):
            self.display.next_event()
        self.display.damage_subtract(self.what)  # only then is the next drawing told
        self.display.sync()


def work(proc: int) -> tuple[float, bool, float]:
    """Processor seconds that the programs here have used; whether one wants more; how late the slowest may draw.

    On a busy machine one that wants the processor or the disk and does not get it uses none, and is not at rest: known
    of main threads. Programs that have ended are not in the seconds: a difference may be below 0.
    """
    total, wanted, slowest_s = 0, False, 0.0
    for name in os.listdir(proc):
        if name.isdigit() and int(name) != os.getpid():
            try:
                used = time.clock_gettime_ns((~int(name) << 3) | 2)  # the kernel's clock of another process
                state = read_proc(f"{name}/stat", proc)
            except OSError:
                continue  # it has ended
            program, _, rest = state.partition(b"(")[2].rpartition(b") ")
            wanted = wanted or rest.startswith((b"R", b"D"))
            slowest_s = max(slowest_s, SLOW.get(program, 0.0))
            total += used
    return total / 1e9, wanted, slowest_s


def read_proc(name: str, proc: int) -> bytes:
    fd = os.open(name, os.O_RDONLY, dir_fd=proc)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
