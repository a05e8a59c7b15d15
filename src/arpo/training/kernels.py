"""A step of Bf16AdamW with moments of 8 bits on a GPU: each number is read once and written once.

What is computed is what `optimizer.py` says in plain operations, which go over memory some fifty times; only the random
numbers are others. They follow from the seed and the place of the weight.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCKS = 4  # that a program works on


def step(
    upper: Tensor,
    gradient: Tensor,
    kept: dict[str, Tensor],
    block: int,
    shrink: float,
    rate: float,
    correction: float,
    beta1: float,
    beta2: float,
    eps: float,
    seed: int,
) -> None:
    """All flat; `block`: weights that share a scale. The three factors: see Bf16AdamW."""
    n = upper.numel()
    with torch.cuda.device_of(upper):  # type: ignore[no-untyped-call]  # Triton takes the current one
        _step_kernel[(triton.cdiv(n, block * BLOCKS),)](
            upper.view(torch.int16),
            gradient,
            kept["lower"],
            kept["first"],
            kept["second"],
            kept["first_scale"],
            kept["second_scale"],
            n,
            shrink,
            rate,
            1 - beta1,
            beta2,
            1 - beta2,
            correction,
            eps,
            seed,
            torch.finfo(torch.bfloat16).max,
            torch.finfo(torch.float32).tiny,
            BLOCKS,
            block,
        )


@triton.jit(do_not_specialize=["seed"])  # type: ignore[untyped-decorator]
def _step_kernel(  # type: ignore[no-untyped-def]
    upper_ptr,
    gradient_ptr,
    lower_ptr,
    first_ptr,
    second_ptr,
    first_scale_ptr,
    second_scale_ptr,
    n,
    shrink,
    rate,
    new1,
    beta2,
    new2,
    correction,
    eps,
    seed,
    largest,
    tiny,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = at < n
    row_inside = row * BLOCK < n
    gradient = tl.load(gradient_ptr + at, inside, 0.0).to(tl.float32)
    code = tl.load(first_ptr + at, inside, 0).to(tl.float32)
    first = code * tl.abs(code) * (tl.load(first_scale_ptr + row, row_inside, 0.0) / 16129.0)[:, None]
    first += (gradient - first) * new1
    code = tl.load(second_ptr + at, inside, 0).to(tl.float32)
    code *= code
    second = code * code * (tl.load(second_scale_ptr + row, row_inside, 0.0) / 4228250625.0)[:, None]
    second = second * beta2 + gradient * gradient * new2
    # The master: its upper half is the weight, its lower half what that lacks.
    bits = (tl.load(upper_ptr + at, inside, 0).to(tl.int32) << 16) + tl.load(lower_ptr + at, inside, 0).to(tl.int32)
    master = bits.to(tl.float32, bitcast=True) * shrink
    master -= rate * (first / (tl.sqrt(second) / correction + eps))
    bits = tl.minimum(tl.maximum(master, -largest), largest).to(tl.int32, bitcast=True)
    above = (bits + 32768) >> 16
    tl.store(upper_ptr + at, above.to(tl.int16), inside)
    tl.store(lower_ptr + at, (bits - (above << 16)).to(tl.int16), inside)
    # The moments, rounded at random: 127 numbers by their squares, 255 by their fourth powers.
    chance1, chance2, _, _ = tl.rand4x(seed, at.to(tl.int32))
    size = tl.abs(first)
    scale = tl.maximum(tl.max(size, 1), tiny)
    tl.store(first_scale_ptr + row, scale, row_inside)
    square = size / scale[:, None] * 16129.0
    low = tl.floor(tl.sqrt(square))
    low += (chance1 < (square - low * low) / (2 * low + 1)).to(tl.float32)
    low = tl.minimum(low, 127.0)
    tl.store(first_ptr + at, tl.where(first < 0, -low, low).to(tl.int8), inside)
    scale = tl.maximum(tl.max(second, 1), tiny)
    tl.store(second_scale_ptr + row, scale, row_inside)
    power = second / scale[:, None] * 4228250625.0
    low = tl.floor(tl.sqrt(tl.sqrt(power)))
    square, above_square = low * low, (low + 1) * (low + 1)
    below = square * square
    low += (chance2 < (power - below) / (above_square * above_square - below)).to(tl.float32)
    low = tl.maximum(tl.minimum(low, 255.0), (second > 0).to(tl.float32))
    tl.store(second_ptr + at, low.to(tl.uint8), inside)
