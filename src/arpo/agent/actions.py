"""What an agent can do to a computer. Typed values in screen pixels, never source code.

    Click(120, 44)                          Drag(10, 10, 90, 10)        Scroll(200, 140, "down")
    Click(120, 44, button="right")          Type("hello\\n")             Hotkey(("ctrl", "c"))
    Click(120, 44, count=2)                 Wait()

and four that end an episode or hand it over: Finish("42 files"), Fail(), CallUser().

The values say nothing about a screen's size or a keyboard's layout: an environment refuses what it cannot do
(`ActionError`), and a dialect writes only what its model's grammar has.
"""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Button: TypeAlias = Literal["left", "right"]
Direction: TypeAlias = Literal["up", "down", "left", "right"]


@dataclass(frozen=True, slots=True)
class Click:
    """Press and release at a point, once or twice. A right double click exists nowhere, so it cannot be made."""

    x: int
    y: int
    button: Button = "left"
    count: Literal[1, 2] = 1
    kind: Literal["click"] = field(default="click", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.button == "right" and self.count == 2:
            raise ValueError("a right double click does not exist")


@dataclass(frozen=True, slots=True)
class Drag:
    """Press at (x, y), move, release at (to_x, to_y)."""

    x: int
    y: int
    to_x: int
    to_y: int
    kind: Literal["drag"] = field(default="drag", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Scroll:
    """Turn the wheel over a point by one gesture; how far that goes is the environment's business."""

    x: int
    y: int
    direction: Direction
    kind: Literal["scroll"] = field(default="scroll", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Type:
    """Type text where the keyboard focus is. A newline is the Enter key."""

    text: str
    kind: Literal["type"] = field(default="type", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Hotkey:
    """Press keys together, in order, and release them; or only hold ("down") or only release ("up") them.

    Names are lower case: "ctrl", "shift", "alt", "enter", "esc", "tab", "f2", "a". One key alone is a key press.
    """

    keys: tuple[str, ...]
    phase: Literal["press", "down", "up"] = "press"
    kind: Literal["hotkey"] = field(default="hotkey", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if not self.keys or not all(self.keys):
            raise ValueError("a hotkey needs at least one key, and no key without a name")


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing for a moment and look again."""

    kind: Literal["wait"] = field(default="wait", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Finish:
    """The agent says that the task is done, with an answer where one was asked for."""

    answer: str = ""
    kind: Literal["finish"] = field(default="finish", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class Fail:
    """The agent says that the task cannot be done: the right answer to an infeasible one."""

    reason: str = ""
    kind: Literal["fail"] = field(default="fail", kw_only=True, repr=False)


@dataclass(frozen=True, slots=True)
class CallUser:
    """The agent hands the computer back to the user."""

    question: str = ""
    kind: Literal["call_user"] = field(default="call_user", kw_only=True, repr=False)


Action: TypeAlias = Click | Drag | Scroll | Type | Hotkey | Wait | Finish | Fail | CallUser
ENDING = (Finish, Fail, CallUser)


def points(action: Action) -> tuple[tuple[int, int], ...]:
    """The screen points that an action touches: none, one, or two for a drag."""
    match action:
        case Click(x=x, y=y) | Scroll(x=x, y=y):
            return ((x, y),)
        case Drag(x=x, y=y, to_x=to_x, to_y=to_y):
            return ((x, y), (to_x, to_y))
    return ()
