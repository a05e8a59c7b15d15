"""From screenshots to what the vision tower takes. Equal to transformers' image processor, which needs torchvision."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from arpo.images import Pixels
from arpo.resize import MERGE, Sight


def resized(pixels: Pixels, sight: Sight) -> Pixels:
    """The screenshot at the size that the model sees; the same array where that is its own."""
    height, width = sight.size(*pixels.shape[:2])
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.array(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def patches(images: Tensor, sight: Sight) -> Tensor:
    """uint8 B x H x W x 3, resized already, to B x patches x 3 x pixels: normalised, in the order of the merge."""
    batch, height, width, _ = images.shape
    rows, columns, side = height // sight.factor, width // sight.factor, sight.patch
    mean = torch.tensor(sight.mean, device=images.device, dtype=torch.float32) * 255
    std = torch.tensor(sight.std, device=images.device, dtype=torch.float32) * 255
    x = ((images.float() - mean) / std).view(batch, rows, MERGE, side, columns, MERGE, side, 3)
    x = x.permute(0, 1, 4, 2, 5, 7, 3, 6)  # batch, row, column, merge row, merge column, colour, y, x
    return x.reshape(batch, rows * columns * MERGE * MERGE, 3, side * side)
