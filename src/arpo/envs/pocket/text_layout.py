"""How wide a text is, where it is cut or wrapped, and its ink.

Layout happens in logical pixels with one 12-pixel font; only drawing knows the screen's scale.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arpo.fonts import font

SIZE = 12  # logical pixels; a line of text is LINE high
LINE = 15
ELLIPSIS = "…"
TAB = "    "  # how a tab is shown


@lru_cache(maxsize=4096)
def advance(char: str, size: int = SIZE) -> int:
    """The width of one character. Whole pixels and no kerning, so that the caret's place is a plain sum."""
    return round(font(size).getlength(TAB if char == "\t" else char))


@lru_cache(maxsize=4096)
def width(text: str, size: int = SIZE) -> int:
    """The width of a text in logical pixels."""
    return sum(advance(char, size) for char in text)


@lru_cache(maxsize=1024)
def text_mask(text: str, size: int, scale: int) -> Image.Image:
    """How much ink is where, for a text at `scale` screen pixels a logical one.

    Put together from its characters, each drawn once: four times as fast as letting the font set a whole text, and
    every character stands where `width` says.
    """
    ink = np.zeros(((size + LINE - SIZE) * scale, (width(text, size) + 2) * scale), np.uint8)
    x = 0
    for char in text:
        shape, left, top = _glyph(char, size * scale)
        h, w = shape.shape
        at = max(0, x + left)
        part = ink[top : top + h, at : at + w]
        np.maximum(part, shape[: part.shape[0], : part.shape[1]], out=part)
        x += advance(char, size) * scale
    return Image.fromarray(ink)


@lru_cache(maxsize=2048)
def _glyph(char: str, size: int) -> tuple[NDArray[np.uint8], int, int]:
    """A character's ink, and where it begins from the text's corner."""
    mask, (left, top) = font(size).getmask2(TAB if char == "\t" else char, mode="L", anchor="la")
    w, h = mask.size
    return np.frombuffer(bytes(mask), np.uint8).reshape(h, w), int(left), max(0, int(top))


@lru_cache(maxsize=4096)
def fit(text: str, limit: int) -> str:
    """The text, or as much of its beginning as fits, with an ellipsis."""
    if width(text) <= limit:
        return text
    room = limit - advance(ELLIPSIS)
    for end, char in enumerate(text):
        room -= advance(char)
        if room < 0:
            return text[:end] + ELLIPSIS
    return text


@lru_cache(maxsize=512)
def wrap(line: str, limit: int) -> tuple[tuple[int, int], ...]:
    """Where a line without newlines is broken to fit: (start, end) of each part; after a space where there is one."""
    parts: list[tuple[int, int]] = []
    start, used, space = 0, 0, -1
    for i, char in enumerate(line):
        step = advance(char)
        while used + step > limit and i > start:
            end = space + 1 if space >= start else i
            parts.append((start, end))
            start, space = end, -1
            used = sum(map(advance, line[start:i]))
        if char == " ":
            space = i
        used += step
    parts.append((start, len(line)))
    return tuple(parts)
