"""From screenshots to what the vision tower takes. Equal to transformers' image processor, which needs torchvision."""

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arpo.images import Pixels
from arpo.resize import FACTOR, MERGE, PATCH, smart_resize

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def resized(pixels: Pixels) -> Pixels:
    """The screenshot at the size that the model sees; the same array where that is its own."""
    height, width = smart_resize(*pixels.shape[:2])
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def image_grid(width: int, height: int) -> tuple[int, int]:
    """(rows, columns) of image tokens that a screenshot takes."""
    new_height, new_width = smart_resize(height, width)
    return new_height // FACTOR, new_width // FACTOR


def image_tokens(width: int, height: int) -> int:
    """How many image tokens a screenshot of this size takes in a context."""
    return math.prod(image_grid(width, height))


def patches(images: Tensor) -> Tensor:
    """uint8 B x H x W x 3, resized already, to B x patches x 3 x 196: normalised, in the order of the 2 x 2 merge."""
    batch, height, width, _ = images.shape
    rows, columns = height // FACTOR, width // FACTOR
    mean = torch.tensor(MEAN, device=images.device, dtype=torch.float32) * 255
    std = torch.tensor(STD, device=images.device, dtype=torch.float32) * 255
    x = ((images.float() - mean) / std).view(batch, rows, MERGE, PATCH, columns, MERGE, PATCH, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)  # batch, row, column, merge row, merge column, colour, y, x
    return x.reshape(batch, rows * columns * MERGE * MERGE, 3, PATCH * PATCH)
