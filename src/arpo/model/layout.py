"""Where the tokens of a context stand: one image token in it becomes as many as the image needs.

The reference works positions out in Python, image by image and on every call; here they are a few cumulative sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """A context of T tokens, those of its images included."""

    ids: Tensor  # T
    positions: Tensor  # 3 x T: time, height, width
    starts: NDArray[np.int64]  # of each entry of the short ids, its first token; one more entry: T
    end: int  # the position of the token that would follow


def lay_out(ids: Sequence[int], sizes: Sequence[tuple[int, int]], image_pad: int) -> Layout:
    """Lay a context out. `sizes`: rows and columns of each image's tokens, in the order of the image tokens in `ids`.

    A text token is treated as an image of one row and one column. An image occupies as many positions as its longer
    side; its tokens count time from its first position on (a still: all the same), height and width from there.
    """
    short = np.asarray(ids, dtype=np.int64)
    grid = np.ones((len(short), 2), dtype=np.int64)
    grid[short == image_pad] = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)
    tokens, steps = grid.prod(axis=1), grid.max(axis=1)
    starts = np.concatenate([[0], tokens.cumsum()])
    first = np.repeat(steps.cumsum() - steps, tokens)
    inside = np.arange(starts[-1]) - np.repeat(starts[:-1], tokens)
    columns = np.repeat(grid[:, 1], tokens)
    positions = np.stack([first, first + inside // columns, first + inside % columns])
    return Layout(
        ids=torch.from_numpy(np.repeat(short, tokens)),
        positions=torch.from_numpy(positions),
        starts=starts,
        end=int(steps.sum()),
    )
