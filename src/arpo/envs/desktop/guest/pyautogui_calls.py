"""A stand-in for pyautogui inside a sandbox, for clients that send Python source: mouse and keyboard, nothing else.

    python -c "import pyautogui; pyautogui.click(120, 44); pyautogui.write('naïve 你好')"

The calls are pyautogui's own; the sandbox's resident process carries them out. So a step costs the start of an
interpreter (20 ms instead of pyautogui's 200), every character of Unicode can be typed, and `<` is a `<`. There are
no pictures here (screenshot, locateOnScreen) and no message boxes.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

PAUSE = 0.0  # seconds after every call; OSWorld's clients wait for the screen themselves
FAILSAFE = False  # a pointer in a corner is no sign of anything here
MINIMUM_DURATION, STEP_S = 0.1, 0.02
AT_ONCE = 100  # keys or notches of one request, at most
LEFT, MIDDLE, RIGHT, PRIMARY, SECONDARY = "left", "middle", "right", "left", "right"
BUTTONS = {"left": 1, "primary": 1, "middle": 2, "right": 3, "secondary": 3, 1: 1, 2: 2, 3: 3}
NAMES = {
    "ctrl": 0xFFE3, "ctrlleft": 0xFFE3, "ctrlright": 0xFFE4, "control": 0xFFE3, "shift": 0xFFE1, "shiftleft": 0xFFE1,
    "shiftright": 0xFFE2, "alt": 0xFFE9, "altleft": 0xFFE9, "altright": 0xFFEA, "option": 0xFFE9, "win": 0xFFEB,
    "winleft": 0xFFEB, "winright": 0xFFEC, "super": 0xFFEB, "meta": 0xFFEB, "command": 0xFFEB, "cmd": 0xFFEB,
    "apps": 0xFF67, "capslock": 0xFFE5, "numlock": 0xFF7F, "scrolllock": 0xFF14, "enter": 0xFF0D, "return": 0xFF0D,
    "\n": 0xFF0D, "\r": 0xFF0D, "tab": 0xFF09, "\t": 0xFF09, "esc": 0xFF1B, "escape": 0xFF1B, "backspace": 0xFF08,
    "\b": 0xFF08, "delete": 0xFFFF, "del": 0xFFFF, "insert": 0xFF63, "home": 0xFF50, "end": 0xFF57, "pageup": 0xFF55,
    "pgup": 0xFF55, "pagedown": 0xFF56, "pgdn": 0xFF56, "left": 0xFF51, "up": 0xFF52, "right": 0xFF53, "down": 0xFF54,
    "space": 0x20, "print": 0xFF61, "printscreen": 0xFF61, "prtsc": 0xFF61, "prtscr": 0xFF61, "prntscrn": 0xFF61,
    "pause": 0xFF13, "add": 0xFFAB, "subtract": 0xFFAD, "multiply": 0xFFAA, "divide": 0xFFAF, "decimal": 0xFFAE,
    "separator": 0xFFAC, **{f"num{n}": 0xFFB0 + n for n in range(10)}, **{f"f{n}": 0xFFBD + n for n in range(1, 25)},
}  # fmt: skip
KEYBOARD_KEYS = [*map(chr, range(32, 127)), *NAMES]


class PyAutoGUIException(Exception):
    pass


class FailSafeException(PyAutoGUIException):
    pass


class Point(NamedTuple):
    x: int
    y: int


class Size(NamedTuple):
    width: int
    height: int


def _ask(do: str, **arguments: Any) -> Any:
    with socket.socket(socket.AF_UNIX) as resident:
        resident.connect("/run/arpo/requests")
        resident.sendall(json.dumps({"id": 0, "do": do, "with": arguments}).encode() + b"\n")
        with resident.makefile("rb") as lines:
            reply = json.loads(lines.readline())
    if "error" in reply:
        raise PyAutoGUIException(f"{do}: {reply['error']}")
    return reply["is"]


# Mouse.


def position() -> Point:
    return Point(*_ask("pointer"))


def size() -> Size:
    return Size(*_ask("size"))


resolution = size


def onScreen(x: Any, y: int | None = None) -> bool:
    (x, y), (width, height) = (x, y) if y is not None else x, size()
    return 0 <= x < width and 0 <= y < height


def _place(x: Any, y: Any) -> tuple[int, int]:
    """Where a call means: None is where the pointer is, a pair may stand for both, off the screen is its edge."""
    if x is not None and not isinstance(x, int | float | str):
        x, y = x[:2]
    here, (width, height) = position(), size()
    x, y = here.x if x is None else int(x), here.y if y is None else int(y)
    return min(max(x, 0), width - 1), min(max(y, 0), height - 1)


def _button(name: str | int) -> int:
    if name not in BUTTONS:
        raise PyAutoGUIException(f"button={name!r}: must be left, middle, right, 1, 2 or 3")
    return BUTTONS[name]


def linear(n: float) -> float:
    return n


def __getattr__(name: str) -> Callable[[float], float]:
    if name.startswith("ease"):
        return linear  # how the pointer gets faster on its way makes no difference to a program
    raise AttributeError(f"arpo's stand-in for pyautogui has no {name}: it has the mouse and the keyboard")


def _move(x: int, y: int, duration: float) -> None:
    if duration > MINIMUM_DURATION:
        start, began = position(), time.monotonic()
        while (part := (time.monotonic() - began) / duration) < 1:
            _ask("move", x=round(start.x + part * (x - start.x)), y=round(start.y + part * (y - start.y)))
            time.sleep(STEP_S)
    _ask("move", x=x, y=y)


def moveTo(x: Any = None, y: Any = None, duration: float = 0.0, tween: Any = linear, **more: Any) -> None:
    _move(*_place(x, y), duration)
    time.sleep(PAUSE)


def moveRel(xOffset: Any = None, yOffset: Any = None, duration: float = 0.0, tween: Any = linear, **more: Any) -> None:
    moveTo(*_offset(xOffset, yOffset), duration)


move = moveRel


def _offset(x: Any, y: Any) -> tuple[int, int]:
    if x is not None and not isinstance(x, int | float):
        x, y = x
    here = position()
    return here.x + int(x or 0), here.y + int(y or 0)


def mouseDown(x: Any = None, y: Any = None, button: str | int = LEFT, duration: float = 0.0, **more: Any) -> None:
    _move(*_place(x, y), duration)
    _ask("hold", button=_button(button), down=True)
    time.sleep(PAUSE)


def mouseUp(x: Any = None, y: Any = None, button: str | int = LEFT, duration: float = 0.0, **more: Any) -> None:
    _move(*_place(x, y), duration)
    _ask("hold", button=_button(button), down=False)
    time.sleep(PAUSE)


def click(
    x: Any = None,
    y: Any = None,
    clicks: int = 1,
    interval: float = 0.0,
    button: str | int = LEFT,
    duration: float = 0.0,
    **more: Any,
) -> None:
    at, number = _place(x, y), _button(button)
    _move(*at, duration)
    for i in range(clicks):
        time.sleep(interval if i else 0.0)
        _ask("click", x=at[0], y=at[1], button=number, count=1)
    time.sleep(PAUSE)


def _click_with(**fixed: Any) -> Callable[..., None]:
    return lambda x=None, y=None, **more: click(x, y, **(more | fixed))


leftClick, middleClick, rightClick = (_click_with(button=button) for button in (LEFT, MIDDLE, RIGHT))
doubleClick, tripleClick = _click_with(clicks=2), _click_with(clicks=3)


def dragTo(
    x: Any = None,
    y: Any = None,
    duration: float = 0.0,
    tween: Any = linear,
    button: str | int = LEFT,
    mouseDownUp: bool = True,
    **more: Any,
) -> None:
    number, to = _button(button), _place(x, y)
    if mouseDownUp:
        _ask("hold", button=number, down=True)
    _move(*to, max(duration, 2 * MINIMUM_DURATION))  # programs take a jump for no drag
    if mouseDownUp:
        _ask("hold", button=number, down=False)
    time.sleep(PAUSE)


def dragRel(xOffset: Any = 0, yOffset: Any = 0, duration: float = 0.0, tween: Any = linear, **more: Any) -> None:
    dragTo(*_offset(xOffset, yOffset), duration, **more)


drag = dragRel


def scroll(clicks: float, x: Any = None, y: Any = None, **more: Any) -> None:
    _wheel(4 if clicks > 0 else 5, clicks, x, y)


def hscroll(clicks: float, x: Any = None, y: Any = None, **more: Any) -> None:
    _wheel(7 if clicks > 0 else 6, clicks, x, y)


vscroll = scroll


def _wheel(button: int, clicks: float, x: Any, y: Any) -> None:
    at, left = _place(x, y), abs(int(clicks))
    for start in range(0, left, AT_ONCE):
        _ask("scroll", x=at[0], y=at[1], button=button, count=min(left - start, AT_ONCE))
    time.sleep(PAUSE)


# Keyboard.


def isValidKey(key: str) -> bool:
    return len(key) == 1 or key.lower() in NAMES


def _keysym(key: str) -> int | None:
    if key.lower() in NAMES:
        return NAMES[key.lower()]
    if len(key) != 1 or not key.isprintable():
        return None  # pyautogui, too, ignores names that it does not know
    return ord(key) if ord(key) < 0x100 else 0x01000000 + ord(key)


def _press(keys: Iterable[str], phase: str) -> None:
    known = [keysym for keysym in map(_keysym, keys) if keysym is not None]
    if known:
        _ask("press", keysyms=known, phase=phase)


def keyDown(key: str, **more: Any) -> None:
    _press([key], "down")
    time.sleep(PAUSE)


def keyUp(key: str, **more: Any) -> None:
    _press([key], "up")
    time.sleep(PAUSE)


def press(keys: str | Iterable[str], presses: int = 1, interval: float = 0.0, **more: Any) -> None:
    for _ in range(presses):
        for key in [keys] if isinstance(keys, str) else keys:
            if (keysym := _keysym(key)) is not None:
                _ask("type", keysyms=[keysym])
        time.sleep(interval)
    time.sleep(PAUSE)


def hotkey(*keys: Any, interval: float = 0.0, **more: Any) -> None:
    names = list(keys[0]) if len(keys) == 1 and not isinstance(keys[0], str) else list(keys)
    for phase, ordered in (("down", names), ("up", names[::-1])):
        for key in ordered:
            _press([key], phase)
            time.sleep(interval)
    time.sleep(PAUSE)


@contextlib.contextmanager
def hold(keys: str | list[str], **more: Any) -> Iterator[None]:
    names = [keys] if isinstance(keys, str) else keys
    _press(names, "down")
    try:
        yield
    finally:
        _press(reversed(names), "up")


def write(message: str | Iterable[str], interval: float = 0.0, **more: Any) -> None:
    known = [keysym for keysym in map(_keysym, message) if keysym is not None]
    size = 1 if interval else AT_ONCE
    for start in range(0, len(known), size):
        _ask("type", keysyms=known[start : start + size])
        time.sleep(interval)
    time.sleep(PAUSE)


typewrite = write


def sleep(seconds: float) -> None:
    time.sleep(seconds)
