"""What a model writes, and screenshots that are no pictures."""

import random

import numpy as np

from arpo.agent import grammar
from arpo.agent.actions import Hotkey, points
from arpo.agent.coordinates import Scaling
from arpo.agent.dialects.qwen3 import Qwen3
from arpo.agent.dialects.uitars import UITars
from arpo.engines.scripted import byte_vocabulary
from arpo.errors import EnvError, ParseError
from arpo.images import FORMATS, decode
from arpo.types import PIXELS
from fuzz import Target, quiet
from fuzz.values import TEXTS, damaged, pictures

DIALECT = UITars(byte_vocabulary())
SIZES = [(448, 280), (1, 1), (1920, 1080), (3, 300)]
BOX = "<|box_start|>(12,34)<|box_end|>"
CALLS = [
    f"click(start_box='{BOX}')", "left_double(start_box='(1,2)')", "right_single(point='<point>1 2</point>')",
    "drag(start_box='(1,2)', end_box='(3,4,5,6)')", "scroll(start_box='[1, 2]', direction='down')",
    "hotkey(key='ctrl c')", "press(key='ctrl+shift-a')", "keydown(key='page up')", "keyup(key='+')",
    "type(content='it\\'s\\n')", 'type(content="x, y=")', "wait()", "finished(content='42')", "fail()",
    "call_user(content='who?')",
]  # fmt: skip
WORDS = (
    b"Action:", b"\nAction: ", b"Thought: ", b"(", b")", b"'", b'"', b"\\", b"\\n", b", ", b"=", b"key='", b"content='",
    b"```", b"<|im_end|>", b"<|box_start|>", b"<point>", b"+", b"-", b" ", b"9" * 30, b"1.", b"\xef\xbc\x9a",
)  # fmt: skip


def make_reply(rng: random.Random) -> tuple[str, tuple[int, int]]:
    reply = f"Thought: {rng.choice(TEXTS)}\nAction: {rng.choice(CALLS)}"
    data = damaged(rng, reply.encode(errors="surrogatepass"), 6, WORDS)
    return data.decode("utf-8", rng.choice(["replace", "surrogateescape"])), rng.choice(SIZES)


def run_reply(_: None, given: tuple[str, tuple[int, int]]) -> None:
    text, size = given
    action = DIALECT.parse(text, size).action
    assert all(0 <= x < size[0] and 0 <= y < size[1] for x, y in points(action)), action
    scaling = Scaling.of(*size)
    try:
        call = grammar.format_action(action, scaling.to_model)
    except ValueError:
        assert isinstance(action, Hotkey)  # 'page  up' are two keys that no keyboard has
        return
    again = grammar.parse(f"Action: {call}", scaling.to_screen).action
    assert type(again) is type(action) and (points(action) or again == action), again


QWEN3 = Qwen3(byte_vocabulary())
ARGUMENTS = [
    '"left_click", "coordinate": [500, 12]', '"double_click", "coordinate": [0.5, 1e2]', '"scroll", "pixels": -5',
    '"left_click_drag", "start_coordinate": [1, 2], "coordinate": [999, 1000]', '"right_click", "coordinate": []',
    '"hscroll", "coordinate": [1, 2], "pixels": 3.5', '"key", "keys": ["ctrl", "shift+a"]', '"wait", "time": 2',
    '"type", "text": "it\'s\\n\\ud800</tool_call>"', '"answer", "text": "42"', '"key_down", "keys": "page up"',
    '"terminate", "status": "failure", "text": "why"', '"terminate", "status": "success"', '"call_user", "text": "?"',
]  # fmt: skip
TAGS = (
    b"<tool_call>", b"</tool_call>", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u", b", ", b": ", b"null", b"true",
    b"NaN", b"-Infinity", b"1e999", b"9" * 30, b"<|im_end|>", b'"coordinate": ', b'"action": ', b"\n", b"computer_use",
)  # fmt: skip


def make_call(rng: random.Random) -> tuple[str, tuple[int, int]]:
    call = f'{{"name": "computer_use", "arguments": {{"action": {rng.choice(ARGUMENTS)}}}}}'
    reply = f"{rng.choice(TEXTS)}\n<tool_call>\n{call}\n</tool_call>"
    data = damaged(rng, reply.encode(errors="surrogatepass"), 6, TAGS)
    return data.decode("utf-8", rng.choice(["replace", "surrogateescape"])), rng.choice(SIZES)


def run_call(_: None, given: tuple[str, tuple[int, int]]) -> None:
    text, size = given
    action = QWEN3.parse(text, size).action
    assert all(0 <= x < size[0] and 0 <= y < size[1] for x, y in points(action)), action
    try:
        tokens = QWEN3.format("", action, size)
    except ValueError:
        assert isinstance(action, Hotkey)
        return
    again = QWEN3.parse(byte_vocabulary().decode(tokens), size).action
    assert type(again) is type(action), again


PICTURES = pictures(FORMATS)


def make_picture(rng: random.Random) -> bytes:
    return damaged(
        rng, rng.choice(PICTURES), 5, (b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"IDAT", b"IHDR", b"!\xf9")
    )


def run_picture(_: None, data: bytes) -> None:
    pixels = decode(data)
    assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.size <= 3 * PIXELS


TARGETS = [
    Target("replies", make_reply, run_reply, allowed=(ParseError,)),
    Target("calls", make_call, run_call, allowed=(ParseError,)),
    Target("screenshots", make_picture, run_picture, quiet, (EnvError,)),
]
