"""From screen pixels to the pixels that the model sees, and back. Every coordinate of every dialect goes through here.

Qwen2.5-VL does not see the screenshot but a resized copy whose sides are multiples of 28, and UI-TARS names points in
pixels of that copy: a 1920x1080 screen is seen as 1932x1092. `smart_resize` is that rule, and `Scaling` carries points
between the two. A point keeps its place when it goes to the model and comes back: exactly where the copy's side is
not smaller than the screen's, else within one pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from arpo.errors import ParseError

FACTOR = 28  # a vision patch of 14 pixels, two of them merged along each side
MIN_PIXELS = 56 * 56
MAX_PIXELS = 16384 * 28 * 28  # UI-TARS-1.5: larger than any screen that we drive, so nothing is shrunk to fit
MAX_ASPECT = 200  # the model's image processor refuses slimmer images
TOLERANCE = 0.02  # of a side: so far off the image a point still counts as its border


def smart_resize(
    height: int, width: int, factor: int = FACTOR, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS
) -> tuple[int, int]:
    """The (height, width) at which Qwen2.5-VL sees an image: multiples of `factor`, an area within the two bounds."""
    if min(height, width) < 1 or max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"an image of {width}x{height} pixels cannot be shown to the model")
    # Python's round (halves to even) is part of the rule: the reference uses it too.
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(factor, math.floor(height / shrink / factor) * factor)
        new_width = max(factor, math.floor(width / shrink / factor) * factor)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / factor) * factor
        new_width = math.ceil(width * grow / factor) * factor
    return new_height, new_width


@dataclass(frozen=True, slots=True)
class Scaling:
    """A screen's size and the size at which the model sees it."""

    width: int
    height: int
    model_width: int
    model_height: int

    @classmethod
    def of(cls, width: int, height: int) -> Scaling:
        """The scaling for a screen of that size."""
        model_height, model_width = smart_resize(height, width)
        return cls(width, height, model_width, model_height)

    def to_model(self, x: int, y: int) -> tuple[int, int]:
        """The model's pixel for a pixel of the screen. ValueError for a point that is not on the screen."""
        if not (0 <= x < self.width and 0 <= y < self.height):
            raise ValueError(f"({x}, {y}) is not on a screen of {self.width}x{self.height}")
        return _rescale(x, self.width, self.model_width), _rescale(y, self.height, self.model_height)

    def to_screen(self, x: float, y: float) -> tuple[int, int]:
        """The screen's pixel for a point that the model named. ParseError where that is too far off the image."""
        for value, side in ((x, self.model_width), (y, self.model_height)):
            # Written so that not-a-number fails as well.
            if not (-TOLERANCE * side <= value <= side - 1 + TOLERANCE * side):
                raise ParseError(f"the point ({x:g}, {y:g}) is off the {self.model_width}x{self.model_height} image")
        return _rescale(x, self.model_width, self.width), _rescale(y, self.model_height, self.height)


def _rescale(value: float, side: int, new_side: int) -> int:
    return min(max(round(value * new_side / side), 0), new_side - 1)
