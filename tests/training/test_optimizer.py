"""AdamW of bf16 weights: masters that are exact, moments in 8 bits that lose nothing on average."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arpo.model.tensorfiles import write_tensors
from arpo.training import optimizer
from arpo.training.optimizer import (
    BLOCK,
    Bf16AdamW,
    Moments,
    clip_gradients,
    join,
    named_tensors,
    read_first,
    read_second,
    split,
    write_first,
    write_second,
)

SHAPES = ((40, 77), (1000,), (3,), (1, 256), (4, 5, 6))  # whole blocks, and others
LARGEST = torch.finfo(torch.bfloat16).max


def weights(seed: int = 0) -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=random).bfloat16()) for shape in SHAPES]


def masters(made: Bf16AdamW) -> list[Tensor]:
    return [join(weight.detach(), made.state[weight]["lower"]) for weight in made.weights]


def gradients(of: list[nn.Parameter], step: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(1000 + step)
    sizes = (1.0, 1e-4, 30.0, 1e-9, 1.0)
    return [
        size * (torch.randn(one.shape, generator=random) + 0.3).bfloat16() for one, size in zip(of, sizes, strict=True)
    ]


def learn(made: torch.optim.Optimizer, of: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        for weight, gradient in zip(of, gradients(of, step), strict=True):
            weight.grad = gradient.to(weight.dtype)
        made.step()


# Masters


def test_every_number_is_its_bf16_and_the_rest() -> None:
    bits = torch.randint(-(2**31), 2**31, (100_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    numbers = bits.view(torch.float32)
    numbers = numbers[numbers.abs() <= LARGEST]  # without those that are none
    numbers = torch.cat([numbers, torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0, LARGEST, -LARGEST])])
    upper, lower = torch.empty(len(numbers), dtype=torch.bfloat16), torch.empty(len(numbers), dtype=torch.int16)
    split(numbers.clone(), upper, lower)
    assert torch.equal(join(upper, lower).view(torch.int32), numbers.view(torch.int32))
    assert torch.isfinite(upper).all()
    assert ((upper.float() - numbers).abs() <= (numbers.bfloat16().float() - numbers).abs()).all()  # none is nearer


def test_a_number_beyond_the_largest_stays_finite() -> None:
    upper, lower = torch.empty(2, dtype=torch.bfloat16), torch.empty(2, dtype=torch.int16)
    split(torch.tensor([3.4e38, -torch.inf]), upper, lower)
    assert upper.tolist() == [LARGEST, -LARGEST]


def test_with_moments_in_fp32_a_step_is_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "PIECE", 2 * BLOCK)
    mine, theirs = weights(), [nn.Parameter(weight.detach().float()) for weight in weights()]
    made = Bf16AdamW(mine, 1e-4, 0.01, "fp32", seed=0)
    learn(made, mine, range(200))
    learn(torch.optim.AdamW(theirs, 1e-4, weight_decay=0.01, foreach=False), theirs, range(200))
    for master, weight in zip(masters(made), theirs, strict=True):
        torch.testing.assert_close(master, weight.detach(), rtol=1e-6, atol=0)


def test_steps_too_small_for_bf16_are_made() -> None:
    weight = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    made = Bf16AdamW([weight], 1e-5, 0.0, "8bit", seed=0)
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)
        made.step()
    assert weight.float().mean().item() == pytest.approx(0.99, abs=2e-3)


# 8 bits


@pytest.mark.parametrize("n", [1, 255, 256, 257, 2000])
def test_numbers_in_8_bits_are_near_and_right_on_average(n: int) -> None:
    random = torch.Generator().manual_seed(n)
    values = torch.randn(n, generator=random) * 10 ** torch.empty(n).uniform_(-2, 0, generator=random)
    codes, scales = torch.empty(n, dtype=torch.int8), torch.empty(-(-n // BLOCK))
    squares, square_codes, square_scales = values.square(), torch.empty(n, dtype=torch.uint8), torch.empty_like(scales)
    firsts, seconds = [], []
    for _ in range(300):
        write_first(values, codes, scales, random)
        firsts.append(read_first(codes, scales))
        write_second(squares, square_codes, square_scales, random)
        seconds.append(read_second(square_codes, square_scales))
    most = values.abs().max()
    for exact, drawn, step in ((values, firsts, 2 / 127), (squares, seconds, 4 / 255)):
        drawn = torch.stack(drawn)  # type: ignore[assignment]
        largest = exact.abs().max()
        assert ((drawn - exact).abs() <= 1.1 * step * largest).all()  # type: ignore[operator]
        assert (drawn.mean(0) - exact).abs().max() < 0.2 * step * largest  # type: ignore[attr-defined]
    assert most > 0


def test_a_second_moment_is_never_0_unless_it_is() -> None:
    values = torch.zeros(BLOCK)
    values[:3] = torch.tensor([1.0, 1e-30, 1e-42])
    codes, scales = torch.empty(BLOCK, dtype=torch.uint8), torch.empty(1)
    write_second(values, codes, scales, torch.Generator().manual_seed(0))
    assert codes[:3].tolist() == [255, 1, 1] and not codes[3:].any()
    assert read_second(codes, scales)[3:].sum() == 0


def test_no_step_explodes_where_gradients_differ_by_any_factor() -> None:
    """Nine decades in one block, and some gradients that stop."""
    random = torch.Generator().manual_seed(0)
    sizes = 10 ** torch.empty(BLOCK).uniform_(-9, 0, generator=random)
    weight = nn.Parameter(torch.zeros(BLOCK, dtype=torch.bfloat16))
    made = Bf16AdamW([weight], 1e-3, 0.0, "8bit", seed=0)
    before = masters(made)[0]
    for step in range(300):
        weight.grad = (sizes * torch.randn(BLOCK, generator=random) * (step % 50 < 25)).bfloat16()
        made.step()
        after = masters(made)[0]
        assert (after - before).abs().max() < 1e-3 * 20
        before = after


def test_the_second_moment_fades_as_it_should() -> None:
    """By 0.1 % a step, where the next lower number is some per cent away."""
    weight = nn.Parameter(torch.zeros(20 * BLOCK, dtype=torch.bfloat16))
    made = Bf16AdamW([weight], 0.0, 0.0, "8bit", seed=0)
    state = made.state[weight]
    weight.grad = torch.randn(len(weight), generator=torch.Generator().manual_seed(0)).bfloat16()
    made.step()
    first = read_second(state["second"], state["second_scale"]).mean()
    weight.grad = torch.zeros_like(weight)
    for _ in range(1000):
        made.step()
    last = read_second(state["second"], state["second_scale"]).mean()
    assert float(last / first) == pytest.approx(0.999**1000, rel=0.03)


def test_random_numbers_follow_from_seed_step_and_weight() -> None:
    def after(seed: int) -> list[Tensor]:
        mine = weights()
        made = Bf16AdamW(mine, 1e-3, 0.0, "8bit", seed)
        learn(made, mine, range(5))
        return masters(made)

    assert all(map(torch.equal, after(1), after(1)))
    assert not all(map(torch.equal, after(1), after(2)))


# Resumed


def saved(made: Bf16AdamW, folder: Path) -> list[Path]:
    write_tensors(folder, "optimizer", named_tensors(made.state_dict()["state"]), most=5000)
    return sorted(folder.glob("optimizer*.safetensors"))


@pytest.mark.parametrize("moments", ["fp32", "8bit"])
def test_what_is_read_goes_on_as_if_nothing_had_been(moments: Moments, tmp_path: Path) -> None:
    mine = weights()
    made = Bf16AdamW(mine, 1e-3, 0.01, moments, seed=0)
    learn(made, mine, range(5))
    files = saved(made, tmp_path)
    assert len(files) > 1
    other = copy.deepcopy(mine)
    again = Bf16AdamW(other, 1e-3, 0.01, moments, seed=0)
    again.read(files)
    again.steps = 5
    learn(made, mine, range(5, 10))
    learn(again, other, range(5, 10))
    assert all(map(torch.equal, masters(made), masters(again)))


@pytest.mark.attack("checkpoint")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda state: state[0].pop("lower"), "lacks 1 tensors, 0.lower the first"),
        (lambda state: state[0].update(more=torch.zeros(3)), "'0.more' is of other weights"),
        (lambda state: state[0].update(lower=torch.zeros(40, 77)), "'0.lower' is of other weights"),
        (lambda state: state[0].update(lower=torch.zeros(77, 40, dtype=torch.int16)), "'0.lower' is of other weights"),
    ],
)
def test_what_is_not_of_these_weights_is_refused(change: Any, why: str, tmp_path: Path) -> None:
    made = Bf16AdamW(weights(), 1e-3, 0.0, "8bit", seed=0)
    state = made.state_dict()["state"]
    change(state)
    write_tensors(tmp_path, "optimizer", named_tensors(state), most=10**9)
    with pytest.raises(ValueError, match=why):
        Bf16AdamW(weights(), 1e-3, 0.0, "8bit", seed=0).read([tmp_path / "optimizer.safetensors"])


def test_moments_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    files = saved(Bf16AdamW(weights(), 1e-3, 0.0, "8bit", seed=0), tmp_path)
    with pytest.raises(ValueError, match="of other weights or other moments"):
        Bf16AdamW(weights(), 1e-3, 0.0, "fp32", seed=0).read(files)


# The norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_clipped_to_a_norm_that_is_summed_in_fp32(dtype: torch.dtype) -> None:
    ones = [nn.Parameter(torch.zeros(1000, 100, dtype=dtype)), nn.Parameter(torch.zeros(7, dtype=dtype))]
    ones[0].grad = torch.full((1000, 100), 0.01, dtype=dtype)  # its squares are too small for sums in bf16
    expected = float(ones[0].grad[0, 0]) * 100_000**0.5
    assert clip_gradients(ones, 1.0) == pytest.approx(expected, rel=1e-4)
    assert clip_gradients(ones, 1.0) == pytest.approx(1.0, rel=0.01)
    before = ones[0].grad.clone()
    clip_gradients(ones, 5.0)
    assert torch.equal(ones[0].grad, before)
    ones[0].grad[0, 0] = torch.nan
    assert not clip_gradients(ones, 1.0) < 1e9
