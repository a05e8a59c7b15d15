"""What is done to each number alone, on a GPU: in one pass over memory instead of several, forwards and backwards.

At 42,000 tokens rotary positions and gates are bound by memory. A Triton kernel reads each number once and rounds as
the plain operations do (the gate) or once less (the rotation). Elsewhere, and where there is no Triton, plain
operations: same results but for the last digit.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ModuleNotFoundError:
    triton = None

BLOCK = 1024  # numbers a program


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary positions of T x heads x dim, by factors T x 1 x dim: the halves of a head turn against each other.

    Computed in the precision of the factors, the result has that of x.
    """
    if _fused(x):
        turned: Tensor = _Rotate.apply(x, cos, signed_sin)  # type: ignore[no-untyped-call]
        return turned
    wide = x if x.dtype == cos.dtype else x.to(cos.dtype)
    return torch.addcmul(wide * cos, wide.roll(x.shape[-1] // 2, -1), signed_sin).to(x.dtype)


def gate(through: Tensor, x: Tensor) -> Tensor:
    """silu(through) * x."""
    if _fused(x):
        gated: Tensor = _Gate.apply(through, x)  # type: ignore[no-untyped-call]
        return gated
    return F.silu(through) * x


def _fused(x: Tensor) -> bool:
    return triton is not None and x.is_cuda and x.dtype == torch.bfloat16


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, signed_sin)
        return _rotated(x, cos, signed_sin, 1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        cos, signed_sin = ctx.saved_tensors
        return _rotated(gradients[0], cos, signed_sin, -1.0), None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, through: Tensor, x: Tensor) -> Tensor:
        through, x = through.contiguous(), x.contiguous()
        ctx.save_for_backward(through, x)
        out = torch.empty_like(x)
        _gate_kernel[(triton.cdiv(x.numel(), BLOCK),)](through, x, out, x.numel(), BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        through, x = ctx.saved_tensors
        of_through, of_x = torch.empty_like(x), torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), BLOCK),)
        _gate_back_kernel[grid](through, x, gradients[0].contiguous(), of_through, of_x, x.numel(), BLOCK)
        return of_through, of_x


def _rotated(x: Tensor, cos: Tensor, signed_sin: Tensor, sign: float) -> Tensor:
    if x.stride(-1) != 1:
        x = x.contiguous()
    tokens, heads, dim = x.shape
    out = torch.empty((tokens, heads, dim), device=x.device, dtype=x.dtype)
    half = triton.next_power_of_2(dim // 2)
    rows = max(1, BLOCK // half)
    _rotate_kernel[(triton.cdiv(tokens * heads, rows),)](
        x, cos, signed_sin, out, tokens * heads, heads, x.stride(0), x.stride(1), dim // 2, sign, rows, half
    )
    return out


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator]
    def _rotate_kernel(  # type: ignore[no-untyped-def]
        x_ptr,
        cos_ptr,
        sin_ptr,
        out_ptr,
        n,
        heads,
        token_stride,
        head_stride,
        half,
        sign,
        ROWS: tl.constexpr,
        HALF: tl.constexpr,
    ):
        row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
        column = tl.arange(0, HALF)[None, :]
        inside = (row < n) & (column < half)
        token = row // heads
        x_at = x_ptr + token * token_stride + (row % heads) * head_stride + column
        factor_at = token * (2 * half) + column
        first = tl.load(x_at, inside, 0.0).to(tl.float32)
        second = tl.load(x_at + half, inside, 0.0).to(tl.float32)
        cos = tl.load(cos_ptr + factor_at, inside, 0.0).to(tl.float32)
        sin = tl.load(sin_ptr + factor_at + half, inside, 0.0).to(tl.float32) * sign  # the second half's has no sign
        out_at = out_ptr + row * (2 * half) + column
        tl.store(out_at, (first * cos - second * sin).to(out_ptr.dtype.element_ty), inside)
        tl.store(out_at + half, (second * cos + first * sin).to(out_ptr.dtype.element_ty), inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate_kernel(through_ptr, x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        through = tl.load(through_ptr + at, at < n, 0.0).to(tl.float32)
        x = tl.load(x_ptr + at, at < n, 0.0)
        opened = (through * tl.sigmoid(through)).to(x.dtype).to(tl.float32)
        tl.store(out_ptr + at, (opened * x.to(tl.float32)).to(x.dtype), at < n)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate_back_kernel(  # type: ignore[no-untyped-def]
        through_ptr, x_ptr, gradient_ptr, of_through_ptr, of_x_ptr, n, BLOCK: tl.constexpr
    ):
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        through = tl.load(through_ptr + at, at < n, 0.0).to(tl.float32)
        x = tl.load(x_ptr + at, at < n, 0.0)
        gradient = tl.load(gradient_ptr + at, at < n, 0.0).to(tl.float32)
        open_ = tl.sigmoid(through)
        slope = open_ * (1 + through * (1 - open_))
        tl.store(of_through_ptr + at, (gradient * x.to(tl.float32) * slope).to(x.dtype), at < n)
        tl.store(of_x_ptr + at, (gradient * through * open_).to(x.dtype), at < n)
