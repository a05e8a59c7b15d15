"""The size at which a model sees an image: a copy whose sides are multiples of 28, or of 32 in a Qwen3-VL."""

import math
from dataclasses import dataclass

from arpo.errors import EnvError

MERGE = 2  # patches along each side that become one visual token
MAX_ASPECT = 200  # the models' image processors refuse slimmer images


@dataclass(frozen=True, slots=True)
class Sight:
    """How the models of one family see an image."""

    patch: int  # pixels along each side of what the vision tower takes as one piece
    min_pixels: int
    max_pixels: int
    mean: tuple[float, float, float]  # of red, green and blue, from 0 to 1: what becomes 0
    std: tuple[float, float, float]  # what becomes 1

    @property
    def factor(self) -> int:
        """Pixels along each side of a visual token."""
        return self.patch * MERGE

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The (height, width) at which an image is seen: multiples of the factor, an area within the two bounds."""
        if min(height, width) < 1 or max(height, width) > MAX_ASPECT * min(height, width):
            raise EnvError(f"an image of {width}x{height} pixels cannot be shown to the model")
        factor = self.factor
        # Python's round (halves to even) is part of the rule: the reference uses it too.
        new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
        if new_height * new_width > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            new_height = max(factor, math.floor(height / shrink / factor) * factor)
            new_width = max(factor, math.floor(width / shrink / factor) * factor)
        elif new_height * new_width < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            new_height = math.ceil(height * grow / factor) * factor
            new_width = math.ceil(width * grow / factor) * factor
        return new_height, new_width

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """(rows, columns) of visual tokens that a screenshot takes."""
        new_height, new_width = self.size(height, width)
        return new_height // self.factor, new_width // self.factor

    def tokens(self, width: int, height: int) -> int:
        """How many visual tokens a screenshot of this size takes in a context."""
        return math.prod(self.grid(width, height))


# The bounds are those of the published models: larger than any screen that we drive, so nothing is shrunk to fit.
QWEN2_5 = Sight(
    patch=14,
    min_pixels=56 * 56,
    max_pixels=16384 * 28 * 28,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
)
QWEN3 = Sight(patch=16, min_pixels=256 * 256, max_pixels=4096 * 4096, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
