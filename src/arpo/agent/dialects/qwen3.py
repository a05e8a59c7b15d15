"""The dialect of Qwen3-VL: a call of the function computer_use, as JSON, with points from 0 to 1000.

    I open the menu.
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [500, 12]}}
    </tool_call>

The names are those of Qwen's own computer_use. There dragging begins and scrolling happens where the mouse is; here an
action names its points, so a drag has a start_coordinate, and a scroll that has no coordinate is over the middle. What
our actions do not have (mouse_move, middle_click, triple_click) is not offered and not read.

`parse` is total, as that of UI-TARS: any text gives a Parsed or a ParseError with a one-line reason, in linear time.
The call is read from the first <tool_call> on; where it ends is known from the JSON, so a typed text may hold the
letters of the closing tag.
"""

from __future__ import annotations

import json
from typing import Any

from arpo.agent.actions import Action, CallUser, Click, Direction, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.agent.coordinates import Scaling
from arpo.agent.dialects.base import Parsed
from arpo.agent.dialects.chat import END_OF_REPLY, ChatDialect
from arpo.agent.grammar import keys_of, short
from arpo.errors import ParseError

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SIDE = 1000  # of the square in which the model names points, whatever the screen's shape
STEP = 5  # what a scroll says for pixels; only its sign counts
MOST_KEYS = 8  # together

# The names of actions and arguments are Qwen's, to the letter: the model was trained on them. The sentences are ours.
PROMPT = """\
You operate a computer to get a task done. After each of your actions you are shown the screen as it then is.
Answer every screenshot with a short thought and one call of the function computer_use, in exactly this form:

what you see, what is still to do, and which step comes next
<tool_call>
{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}}
</tool_call>

The arguments of the call are one of these:
{"action": "left_click", "coordinate": [x, y]}
{"action": "double_click", "coordinate": [x, y]}
{"action": "right_click", "coordinate": [x, y]}
{"action": "left_click_drag", "start_coordinate": [x, y], "coordinate": [x, y]}
{"action": "scroll", "coordinate": [x, y], "pixels": 5 for up or -5 for down}
{"action": "hscroll", "coordinate": [x, y], "pixels": 5 for right or -5 for left}
{"action": "key", "keys": ["ctrl", "c"]}
{"action": "type", "text": "xxx"}
{"action": "wait", "time": 1}
{"action": "answer", "text": "xxx"}
{"action": "terminate", "status": "success or failure"}

How to use them:
- A point is given from 0 to 1000 across the screenshot and from 0 to 1000 down it, counted from its top left corner.
- In the text of type, \\n is the Enter key; a \\n at the end submits what was typed.
- wait lets a few moments pass when the screen is still changing.
- terminate with success says that the task is done; where the task asks a question, give the answer by answer instead.
- terminate with failure says that the task cannot be done on this computer. That is how an impossible task ends.

The task: {instruction}"""

# A raw newline in a text is a newline; NaN and Infinity are no numbers.
_DECODER = json.JSONDecoder(strict=False, parse_constant=lambda name: name)
_SCROLLS: dict[str, tuple[Direction, Direction]] = {"scroll": ("up", "down"), "hscroll": ("right", "left")}
_CLICKS: dict[str, dict[str, Any]] = {
    "left_click": {},
    "double_click": {"count": 2},
    "right_click": {"button": "right"},
}
_PHASES: dict[str, Any] = {"key": "press", "key_down": "down", "key_up": "up"}


class Qwen3(ChatDialect):
    """The dialect of Qwen3-VL."""

    marks = (OPEN, CLOSE)
    template = PROMPT

    def parse(self, text: str, screen_size: tuple[int, int]) -> Parsed:
        """A reply's thought and action on a screen of (width, height). ParseError where there is none."""
        thought, opening, call = text.removesuffix(END_OF_REPLY).partition(OPEN)
        if not opening:
            raise ParseError(f"the reply has no {OPEN}")
        call = call.lstrip()
        try:
            said, end = _DECODER.raw_decode(call)
        except (ValueError, RecursionError) as error:  # a number may be too long, brackets too deep
            raise ParseError(f"no JSON after {OPEN} but {short(call)}") from error
        if not isinstance(said, dict) or said.get("name") != "computer_use":
            raise ParseError(f"not a call of computer_use: {short(call)}")
        arguments = said.get("arguments")
        if not isinstance(arguments, dict):
            raise ParseError("computer_use: its arguments are missing")
        action = _action(arguments, Scaling(*screen_size, SIDE, SIDE))
        return Parsed(thought.strip(), action, call[end:].strip().removeprefix(CLOSE).strip())

    def format(self, thought: str, action: Action, screen_size: tuple[int, int]) -> tuple[int, ...]:
        """The reply as the model would sample it: the tags by id, the end token last."""
        if OPEN in thought:
            raise ValueError(f"the thought holds {OPEN}")
        arguments = _arguments(action, Scaling(*screen_size, SIDE, SIDE))
        call = json.dumps({"name": "computer_use", "arguments": arguments}, ensure_ascii=False)
        return (*self._encode([f"{thought}\n", OPEN, f"\n{call}\n", CLOSE, ""]), self.stop)


def _action(said: dict[str, Any], scaling: Scaling) -> Action:
    match kind := said.get("action"):
        case "left_click" | "double_click" | "right_click":
            return Click(*_point(said, "coordinate", scaling), **_CLICKS[kind])
        case "left_click_drag":
            return Drag(*_point(said, "start_coordinate", scaling), *_point(said, "coordinate", scaling))
        case "scroll" | "hscroll":
            pixels = said.get("pixels")
            if not isinstance(pixels, int | float) or isinstance(pixels, bool) or not pixels:
                raise ParseError(f"{kind}: pixels is {short(str(pixels))}, which leads nowhere")
            middle = (scaling.width // 2, scaling.height // 2)
            where = _point(said, "coordinate", scaling) if "coordinate" in said else middle
            return Scroll(*where, _SCROLLS[kind][pixels < 0])
        case "key" | "key_down" | "key_up":
            keys = said.get("keys")
            named = [keys] if isinstance(keys, str) else keys
            if not isinstance(named, list) or not 0 < len(named) <= MOST_KEYS:
                raise ParseError(f"{kind}: keys is {short(str(keys))}, not a list of 1 to {MOST_KEYS} names")
            return Hotkey(tuple(one for key in named for one in keys_of(str(key))), phase=_PHASES[kind])
        case "type":
            return Type(_text(said))
        case "wait":
            return Wait()
        case "answer":
            return Finish(_text(said))
        case "call_user":
            return CallUser(_text(said))
        case "terminate":
            status = said.get("status")
            if status not in ("success", "failure"):
                raise ParseError(f"terminate: status is {short(str(status))}, not success or failure")
            return Finish() if status == "success" else Fail(_text(said) if "text" in said else "")
    raise ParseError(f"computer_use: unknown action {short(str(kind))}")


def _arguments(action: Action, scaling: Scaling) -> dict[str, Any]:
    """What `_action` reads as this action. ValueError for a point off the screen or a key of another name."""

    def at(x: int, y: int) -> list[int]:
        return list(scaling.to_model(x, y))

    match action:
        case Click(x, y, button, count):
            kind = "right_click" if button == "right" else "double_click" if count == 2 else "left_click"
            return {"action": kind, "coordinate": at(x, y)}
        case Drag(x, y, to_x, to_y):
            return {"action": "left_click_drag", "start_coordinate": at(x, y), "coordinate": at(to_x, to_y)}
        case Scroll(x, y, direction):
            kind = "scroll" if direction in _SCROLLS["scroll"] else "hscroll"
            pixels = -STEP if direction == _SCROLLS[kind][1] else STEP
            return {"action": kind, "coordinate": at(x, y), "pixels": pixels}
        case Hotkey(keys, phase):
            if len(keys) > MOST_KEYS or not all(map(_is_key, keys)):
                raise ValueError(f"{keys} are not the names of keys in this grammar")
            return {"action": {"press": "key", "down": "key_down", "up": "key_up"}[phase], "keys": list(keys)}
        case Type(text):
            return {"action": "type", "text": text}
        case Wait():
            return {"action": "wait", "time": 1}
        case Finish(answer):
            return {"action": "answer", "text": answer} if answer else {"action": "terminate", "status": "success"}
        case Fail(reason):
            return {"action": "terminate", "status": "failure"} | ({"text": reason} if reason else {})
        case CallUser(question):
            return {"action": "call_user", "text": question}


def _point(said: dict[str, Any], name: str, scaling: Scaling) -> tuple[int, int]:
    match said.get(name):
        case [int() | float() as x, int() | float() as y] if not isinstance(x, bool) and not isinstance(y, bool):
            # A number that no float can hold is off the screen as infinity is.
            return scaling.to_screen(*(float(value) if abs(value) < 2**53 else float("inf") for value in (x, y)))
        case None:
            raise ParseError(f"{name} is missing")
        case other:
            raise ParseError(f"{name} is {short(str(other))}, which is no point")


def _text(said: dict[str, Any]) -> str:
    text = said.get("text")
    if not isinstance(text, str):
        raise ParseError("text is missing")
    return text.encode("utf-8", "replace").decode()  # half a surrogate pair could not be stored


def _is_key(name: str) -> bool:
    try:
        return keys_of(name) == (name,)
    except ParseError:
        return False
