"""Curves as a picture: one line for each series, with a band around it where there is one."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from arpo.fonts import font

SIZE, SMOOTH = (760, 440), 2  # drawn so many times larger, and shrunk
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 40, 60
INK, FAINT, PAPER = (28, 32, 40), (214, 218, 224), (255, 255, 255)
BLUE, RED, GREEN, ORANGE = (24, 104, 230), (226, 38, 60), (24, 128, 72), (200, 120, 0)
COLOURS = (BLUE, RED, GREEN, ORANGE, (128, 60, 180), (60, 60, 60), (0, 160, 180), (190, 70, 140))
MARKED = 25  # more points than that are a line to the eye, and their dots only blur it


@dataclass(frozen=True, slots=True)
class Series:
    """A line. `low` and `high` are the edges of its band, one value for each x; empty: no band."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()


def save_plot(path: Path, series: Sequence[Series], x_label: str, y_label: str, share: bool = False) -> None:
    """Write the picture; the axes fit all that is shown, and the vertical one begins at 0 where nothing is below.

    `share`: the values are shares, and that axis is always from 0 to 1, so that a small gain looks small. A band that
    leaves it is cut off.
    """
    xs = [x for one in series for x in one.x]
    ys = [y for one in series for y in (*one.y, *one.low, *one.high)]
    if not xs:
        raise ValueError("a plot of nothing")
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(0.0, 1.0) if share else ticks(min(0.0, *ys), max(ys))
    canvas = Image.new("RGB", (SIZE[0] * SMOOTH, SIZE[1] * SMOOTH), PAPER)
    pen = ImageDraw.Draw(canvas, "RGBA")

    def at(x: float, y: float) -> tuple[float, float]:
        y = min(max(y, y_ticks[0]), y_ticks[-1])
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0]) * (SIZE[0] - LEFT - RIGHT)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (SIZE[1] - TOP - BOTTOM)
        return (LEFT + across) * SMOOTH, (SIZE[1] - BOTTOM - up) * SMOOTH

    def write(x: float, y: float, text: str, anchor: str) -> None:
        pen.text((x, y), text, INK, font(15 * SMOOTH), anchor=anchor)

    for tick in y_ticks:
        pen.line([at(x_ticks[0], tick), at(x_ticks[-1], tick)], FAINT, SMOOTH)
        x, y = at(x_ticks[0], tick)
        write(x - 8 * SMOOTH, y, f"{tick:g}", "rm")
    for tick in x_ticks:
        x, y = at(tick, y_ticks[0])
        write(x, y + 8 * SMOOTH, f"{tick:g}", "ma")
    write(SIZE[0] * SMOOTH / 2, (SIZE[1] - 8) * SMOOTH, x_label, "ms")
    write(8 * SMOOTH, 4 * SMOOTH, y_label, "la")
    coloured = list(zip(series, itertools.cycle(COLOURS), strict=False))
    for one, colour in coloured:  # all bands before the first line: none is hidden
        if one.low and len(one.x) > 1:
            edge = [at(x, y) for x, y in zip(one.x, one.high, strict=True)]
            edge += [at(x, y) for x, y in zip(reversed(one.x), reversed(one.low), strict=True)]
            pen.polygon(edge, (*colour, 48))
    for number, (one, colour) in enumerate(coloured):
        points = [at(x, y) for x, y in zip(one.x, one.y, strict=True)]
        pen.line(points, colour, 3 * SMOOTH, joint="curve")
        for x, y in points if len(points) <= MARKED else []:
            pen.circle((x, y), 3 * SMOOTH, colour)
        top = (TOP + 6 + 20 * number) * SMOOTH
        pen.line([((LEFT + 12) * SMOOTH, top), ((LEFT + 36) * SMOOTH, top)], colour, 3 * SMOOTH)
        write((LEFT + 44) * SMOOTH, top, one.name, "lm")
    canvas.resize(SIZE, Image.Resampling.LANCZOS).save(path)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers, about five, that begin at or below `low` and end at or above `high`."""
    raw = max(high - low, 1e-6 * max(1.0, abs(low), abs(high))) / 5  # what is closer together is one number to the eye
    unit = 10.0 ** math.floor(math.log10(raw))
    step = unit * next(m for m in (1, 2, 5, 10) if m * unit >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [i * step for i in range(first, max(last, first + 1) + 1)]
