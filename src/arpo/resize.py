"""The size at which Qwen2.5-VL sees an image: a copy whose sides are multiples of 28."""

import math

PATCH = 14  # pixels along each side of what the vision tower takes as one piece
MERGE = 2  # patches along each side that become one visual token
FACTOR = PATCH * MERGE
MIN_PIXELS = 56 * 56
MAX_PIXELS = 16384 * 28 * 28  # UI-TARS-1.5: larger than any screen that we drive, so nothing is shrunk to fit
MAX_ASPECT = 200  # the model's image processor refuses slimmer images


def smart_resize(
    height: int, width: int, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS
) -> tuple[int, int]:
    """The (height, width) at which the model sees an image: multiples of FACTOR, an area within the two bounds."""
    if min(height, width) < 1 or max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"an image of {width}x{height} pixels cannot be shown to the model")
    # Python's round (halves to even) is part of the rule: the reference uses it too.
    new_height, new_width = round(height / FACTOR) * FACTOR, round(width / FACTOR) * FACTOR
    if new_height * new_width > max_pixels:
        shrink = math.sqrt(height * width / max_pixels)
        new_height = max(FACTOR, math.floor(height / shrink / FACTOR) * FACTOR)
        new_width = max(FACTOR, math.floor(width / shrink / FACTOR) * FACTOR)
    elif new_height * new_width < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        new_height = math.ceil(height * grow / FACTOR) * FACTOR
        new_width = math.ceil(width * grow / FACTOR) * FACTOR
    return new_height, new_width
