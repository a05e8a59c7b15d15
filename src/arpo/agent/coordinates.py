"""From screen pixels to the pixels that the model sees, and back. Every coordinate of every dialect goes through here.

Qwen2.5-VL does not see the screenshot but a resized copy whose sides are multiples of 28, and UI-TARS names points in
pixels of that copy: a 1920x1080 screen is seen as 1932x1092. `Sight.size` is that rule, and `Scaling` carries points
between the two. A point keeps its place when it goes to the model and comes back: exactly where the copy's side is
not smaller than the screen's, else within one pixel.
"""

from __future__ import annotations

from dataclasses import dataclass

from arpo.errors import ParseError
from arpo.resize import QWEN2_5

TOLERANCE = 0.02  # of a side: so far off the image a point still counts as its border


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
        model_height, model_width = QWEN2_5.size(height, width)
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
