"""Values that readers do not expect, and changes to such as they do."""

import contextlib
import copy
import io
import json
import random
from collections.abc import Iterable
from typing import Any

from PIL import Image

TEXTS = [
    "", " ", ".", "..", "../..", "/", "//", "/etc/passwd", "~", "-", "a", "A", "\u00e4", "a\u0308", "\u202e", "\0",
    "\n", "\r\n",
    "\x1b[2J", "\x9b31m", "\x7f", "\ud800", "\uffff", "\U0001f642", "%", "%00", "%2e%2e%2f", "%zz", "{}",
    "{SCREEN_WIDTH}",
    "file:///etc/passwd", "http://[", "https://x/resolve/main//etc/passwd", "null", "true", "NaN", "1e999",
    "0x10", "1_0",
    "x" * 300, "y" * 5000, "[" * 50, "(a+)+$", "(?P<a>", "\\", "'", '"', "$(id)", "`id`", "[bold]", "[/]",
]  # fmt: skip
NUMBERS = [0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.0, -0.0, 1e308, 1e-320, 0.1]


def text(rng: random.Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(TEXTS)
    return "".join(
        chr(rng.choice([rng.randrange(32, 127), rng.randrange(0x300), rng.randrange(0x110000)])) for _ in range(8)
    )


def anything(rng: random.Random, depth: int = 3) -> Any:
    """A value of JSON."""
    kind = rng.randrange(8 if depth else 5)
    if kind < 2:
        return text(rng)
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind < 5:
        return rng.choice([None, True, False, "", [], {}])
    if kind == 5:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {text(rng): anything(rng, depth - 1) for _ in range(rng.randrange(4))}


def changed(rng: random.Random, value: Any, times: int = 3) -> Any:
    """The same with some of its parts replaced, removed, moved or put in twice."""
    value = [copy.deepcopy(value)]
    for _ in range(rng.randrange(times + 1)):
        places = list(_places(value))
        holder, key = rng.choice(places)
        how = rng.randrange(6)
        if how < 3:
            holder[key] = anything(rng)
        elif how == 3 and holder is not value:
            del holder[key]
        elif how == 4:
            other, name = rng.choice(places)
            holder[key] = copy.deepcopy(other[name])
        elif isinstance(holder, dict):
            holder[text(rng)] = anything(rng)
        elif holder is not value:
            holder.insert(key, anything(rng))
    return value[0]


def _places(value: Any) -> Any:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def damaged(rng: random.Random, data: bytes, times: int = 4, pieces: tuple[bytes, ...] = ()) -> bytes:
    """The same with bytes changed, cut, doubled, or pieces put in."""
    made = bytearray(data)
    for _ in range(rng.randrange(times + 1)):
        at, end = sorted(rng.randrange(len(made) + 1) for _ in range(2))
        how = rng.randrange(5)
        if how == 0 and at < len(made):
            made[at] = rng.randrange(256)
        elif how == 1:
            del made[at : min(end, at + 40)]
        elif how == 2:
            made[at:at] = made[at : min(end, at + 200)]
        elif how == 3:
            made[at:at] = rng.choice(pieces) if pieces else rng.randbytes(rng.randrange(8))
        else:
            made[at:at] = text(rng).encode(errors="surrogatepass")
    return bytes(made)


def as_text(rng: random.Random, value: Any) -> bytes:
    """As JSON, sometimes with numbers that JSON has not, or damaged."""
    data = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass")
    if rng.random() < 0.1:
        data = data.replace(b"1", rng.choice([b"1e999", b"NaN", b"-Infinity", b"1" * 5000]))
    if rng.random() < 0.05:
        data = data.replace(b"{}", b"[" * 99 + b"]" * 99)
    return damaged(rng, data, 1) if rng.random() < 0.2 else data


def pictures(formats: Iterable[str]) -> list[bytes]:
    """Small ones, in each of these formats and of every kind that it has."""
    made = []
    for form in formats:
        for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16", "CMYK"):
            written = io.BytesIO()
            with contextlib.suppress(OSError, ValueError):  # it has not got this kind
                Image.linear_gradient("L").resize((12, 9)).convert(mode).save(written, form)
                made.append(written.getvalue())
    return made
