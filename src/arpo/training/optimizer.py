"""AdamW for weights in bf16, whose steps are too small for bf16.

    optimizer = Bf16AdamW(weights, lr=1e-6, weight_decay=0.0, moments="8bit", seed=0)
    norm = clip_gradients(weights, 1.0)
    optimizer.step()

Neighbours in bf16 lie 0.4 % apart: a step of 1e-6 would round to nothing. So every weight has a master in fp32. Its
upper half is the weight itself, rounded, and its lower half is kept here as an int16: together they are exact. A step
is that of torch.optim.AdamW on the masters.

The two moments of AdamW are fp32 (8 bytes a weight) or 8-bit numbers in blocks of 256 that share a scale (2.03 bytes).
Those are close together near zero: a value is the square of its number for the first moment, the fourth power for the
second, as a block may hold gradients of very different sizes. They are rounded up or down at random, so that on average
nothing is lost (the second moment changes by 0.1 % a step, much less than to the next number), and a second moment
never down to 0, which would make a step without bound. The random numbers follow from (seed, step, weight): a run that
is resumed repeats them on the same kind of device.

It goes through the weights in pieces, so what it needs for a moment is bounded. With Triton on a GPU the step of 8-bit
moments is one kernel, which needs nothing (`kernels.py`).
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.config import TrainConfig
from arpo.model.tensorfiles import KINDS, read_tensors
from arpo.seeds import derive

try:
    from arpo.training import kernels
except ImportError:  # torch comes with Triton for GPUs alone
    kernels = None  # type: ignore[assignment]

Moments: TypeAlias = Literal["fp32", "8bit"]
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # those of torch.optim.AdamW
BLOCK = 256  # weights that share a scale
_log = logging.getLogger(__name__)
PIECE = 2**24  # weights that are worked on at once; whole blocks


class Bf16AdamW(torch.optim.Optimizer):
    """See the module. All that it keeps is allocated at once, on the weights' device."""

    def __init__(self, weights: Sequence[Tensor], lr: float, weight_decay: float, moments: Moments, seed: int) -> None:
        super().__init__(weights, {"lr": lr, "weight_decay": weight_decay})
        self.weights, self.moments, self.seed = list(weights), moments, seed
        self.steps = 0
        for weight in self.weights:
            assert weight.dtype == torch.bfloat16 and weight.is_contiguous()
            self.state[weight] = _new_state(weight, moments)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        self.steps += 1
        (group,) = self.param_groups
        for number, weight in enumerate(self.weights):
            if weight.grad is None:
                continue
            seed = derive("rounding", self.seed, self.steps, number)
            kept = {name: tensor.view(-1) for name, tensor in self.state[weight].items()}
            upper, gradient = weight.view(-1), weight.grad.reshape(-1)
            if self.moments == "8bit" and weight.is_cuda and kernels is not None and kernel_works(weight.device):
                kernels.step(upper, gradient, kept, BLOCK, *self._factors(group), BETA1, BETA2, EPS, seed)
                continue
            random = torch.Generator(weight.device).manual_seed(seed)
            for start in range(0, weight.numel(), PIECE):
                each, blocks = slice(start, start + PIECE), slice(start // BLOCK, (start + PIECE) // BLOCK)
                piece = {name: part[blocks if name.endswith("scale") else each] for name, part in kept.items()}
                self._step(upper[each], gradient[each].float(), piece, group, random)

    def _step(
        self, upper: Tensor, gradient: Tensor, kept: dict[str, Tensor], group: dict[str, Any], random: torch.Generator
    ) -> None:
        """In the order of torch.optim.AdamW's own operations."""
        if self.moments == "fp32":
            first, second = kept["first"], kept["second"]
        else:
            first = read_first(kept["first"], kept["first_scale"])
            second = read_second(kept["second"], kept["second_scale"])
        shrink, rate, correction = self._factors(group)
        master = join(upper, kept["lower"]).mul_(shrink)
        first.lerp_(gradient, 1 - BETA1)
        second.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        size = second.sqrt().div_(correction).add_(EPS)
        master.addcdiv_(first, size, value=-rate)
        split(master, upper, kept["lower"])
        if self.moments == "8bit":
            write_first(first, kept["first"], kept["first_scale"], random)
            write_second(second, kept["second"], kept["second_scale"], random)

    def _factors(self, group: dict[str, Any]) -> tuple[float, float, float]:
        """What shrinks the weights; how far a step goes; and by how much the second moment's root is too small yet."""
        shrink, rate = 1 - group["lr"] * group["weight_decay"], group["lr"] / (1 - BETA1**self.steps)
        return shrink, rate, math.sqrt(1 - BETA2**self.steps)

    def read(self, files: Iterable[Path]) -> None:
        """Continue with what files hold. ValueError where that is not of these weights and moments."""
        missing = dict(named_tensors(self.state_dict()["state"]))
        for name, part in (one for file in files for one in read_tensors(file)):
            mine = missing.pop(name, None)
            if mine is None or (part.get_dtype(), part.get_shape()) != (KINDS[mine.dtype], list(mine.shape)):
                raise ValueError(f"the optimiser's {name!r:.40} is of other weights or other moments")
            mine.copy_(part[...])
        if missing:
            raise ValueError(f"the optimiser lacks {len(missing)} tensors, {min(missing)} the first of them")


@cache
def kernel_works(device: torch.device) -> bool:
    """Triton needs a C compiler and Python's headers, and says so only when a kernel is used."""
    weight = torch.zeros(BLOCK, dtype=torch.bfloat16, device=device)
    state = _new_state(weight, "8bit")
    try:
        kernels.step(weight, torch.zeros_like(weight), state, BLOCK, 1.0, 0.0, 1.0, BETA1, BETA2, EPS, seed=0)
    except Exception as error:  # whatever a compiler may raise
        _log.warning("AdamW goes without its kernel, and is slower: %s", str(error).partition("\n")[0])
        return False
    return True


def named_tensors(state: dict[int, dict[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """The `state` of state_dict() flat: with the weights and `steps` all that a checkpoint needs."""
    return ((f"{number}.{name}", tensor) for number, kept in state.items() for name, tensor in kept.items())


def make_optimizer(weights: Sequence[Tensor], train: TrainConfig, seed: int) -> torch.optim.AdamW | Bf16AdamW:
    """torch's for weights in fp32, which keep all the precision that they need themselves."""
    if weights[0].dtype == torch.float32:
        return torch.optim.AdamW(weights, train.lr, weight_decay=train.weight_decay)
    return Bf16AdamW(weights, train.lr, train.weight_decay, "8bit" if train.moments == "8bit" else "fp32", seed)


def clip_gradients(weights: Sequence[Tensor], most: float, joined: Callable[[Tensor], Tensor] = Tensor.detach) -> float:
    """Scale the gradients down to a norm of `most`; returns the norm before. It is summed in fp32, also of bf16.

    `joined`: makes of the norm of these gradients that of all, where other processes have others.
    """
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if all(weight.dtype == torch.float32 for weight in weights):
        whole = joined(nn.utils.get_total_norm(gradients))
        nn.utils.clip_grads_with_norm_(weights, most, whole)
        return float(whole)
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    norm = float(joined(torch.linalg.vector_norm(torch.stack(norms))))
    if norm > most:
        for gradient in gradients:  # _foreach_mul_ would round the factor to bf16, on a CPU
            gradient.mul_(most / norm)
    return norm


def _new_state(weight: Tensor, moments: Moments) -> dict[str, Tensor]:
    def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape or weight.shape, dtype=dtype, device=weight.device)

    state = {"lower": zeros(torch.int16)}
    if moments == "fp32":
        return state | {"first": zeros(torch.float32), "second": zeros(torch.float32)}
    scales = -(-weight.numel() // BLOCK)
    return state | {
        "first": zeros(torch.int8),
        "second": zeros(torch.uint8),
        "first_scale": zeros(torch.float32, scales),
        "second_scale": zeros(torch.float32, scales),
    }


# A number in fp32 as one in bf16 and what that lacks, in units of the fp32's last bit


def join(upper: Tensor, lower: Tensor) -> Tensor:
    """The fp32 that `split` took apart, bit by bit."""
    return upper.view(torch.int16).to(torch.int32).bitwise_left_shift_(16).add_(lower).view(torch.float32)


def split(master: Tensor, upper: Tensor, lower: Tensor) -> None:
    """Into the nearest bf16, which is finite where the number is, and the rest."""
    largest = torch.finfo(torch.bfloat16).max
    bits = master.clamp_(-largest, largest).view(torch.int32)
    above = bits.add(2**15).bitwise_right_shift_(16)
    upper.view(torch.int16).copy_(above)
    lower.copy_(bits.sub_(above.bitwise_left_shift_(16)))


# Numbers in 8 bits. Of a block the largest has the highest, and all are shares of it.


def read_first(codes: Tensor, scales: Tensor) -> Tensor:
    codes = codes.float()
    return _times(codes.mul_(codes.abs()), scales, 127.0**-2)


def write_first(values: Tensor, codes: Tensor, scales: Tensor, random: torch.Generator) -> None:
    squares = _shares(values.abs(), scales, 127.0**2)
    low = squares.sqrt().floor_()
    up = squares.sub_(low.square()).div_(low.mul(2).add_(1))
    codes.copy_(low.add_(_chosen(up, random)).clamp_(max=127).copysign_(values))


def read_second(codes: Tensor, scales: Tensor) -> Tensor:
    return _times(codes.float().square_().square_(), scales, 255.0**-4)


def write_second(values: Tensor, codes: Tensor, scales: Tensor, random: torch.Generator) -> None:
    powers = _shares(values, scales, 255.0**4)
    low = powers.sqrt().sqrt_().floor_()
    below = low.square().square_()
    up = powers.sub_(below).div_(low.add(1).square_().square_().sub_(below))
    codes.copy_(low.add_(_chosen(up, random)).clamp_(max=255).maximum(values > 0))


def _shares(values: Tensor, scales: Tensor, highest: float) -> Tensor:
    """From 0 to `highest`, the most of each block, which becomes its scale."""
    blocks = _blocks(values)
    scales.copy_(blocks.amax(1).clamp_(min=torch.finfo(torch.float32).tiny))
    return (blocks / scales[:, None]).mul_(highest).view(-1)[: len(values)]


def _times(values: Tensor, scales: Tensor, unit: float) -> Tensor:
    return _blocks(values).mul_((scales * unit)[:, None]).view(-1)[: len(values)]


def _blocks(values: Tensor) -> Tensor:
    lacking = -len(values) % BLOCK
    return (F.pad(values, (0, lacking)) if lacking else values).view(-1, BLOCK)


def _chosen(chance: Tensor, random: torch.Generator) -> Tensor:
    """True with that chance, number by number."""
    return torch.rand(chance.shape, generator=random, device=chance.device) < chance
