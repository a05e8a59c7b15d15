"""Text metrics. Layout happens in logical pixels with one 12-pixel font; only drawing knows the screen's scale.

The font is the one that Pillow carries inside itself, so every machine measures and draws the same.
"""

from __future__ import annotations

from functools import lru_cache

from PIL import ImageFont

SIZE = 12  # logical pixels; a line of text is LINE high
LINE = 15
ELLIPSIS = "…"


@lru_cache(maxsize=16)
def font(size: int) -> ImageFont.FreeTypeFont:
    """The desktop's font in a given pixel size."""
    loaded = ImageFont.load_default(size=size)
    if not isinstance(loaded, ImageFont.FreeTypeFont):  # a Pillow built without FreeType has a bitmap font only
        raise RuntimeError("this Pillow has no FreeType: install the wheel from PyPI")
    return loaded


@lru_cache(maxsize=4096)
def advance(char: str) -> float:
    """The width of one character. Summed up without kerning, so that the caret's place is additive."""
    return font(SIZE).getlength(char)


@lru_cache(maxsize=4096)
def width(text: str) -> int:
    """The width of a text in logical pixels, rounded up."""
    return int(sum(map(advance, text)) + 0.999)


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


@lru_cache(maxsize=2048)
def wrap(line: str, limit: int) -> tuple[tuple[int, int], ...]:
    """Where a line without newlines is broken to fit: (start, end) of each part; after a space where there is one."""
    parts: list[tuple[int, int]] = []
    start, used, space = 0, 0.0, -1
    for i, char in enumerate(line):
        step = advance(char)
        if used + step > limit and i > start:
            end = space + 1 if space >= start else i
            parts.append((start, end))
            start, space = end, -1
            used = sum(map(advance, line[start:i]))
        if char == " ":
            space = i
        used += step
    parts.append((start, len(line)))
    return tuple(parts)
