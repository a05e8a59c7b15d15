"""The loss against a slow one in plain Python, its gradient, and what clipping and importance weights do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from arpo.algorithms.base import SampledTokens
from arpo.algorithms.loss import clipped_surrogate, importance
from arpo.config import AlgorithmConfig


@dataclass
class Batch:
    """SampledTokens as plain numbers."""

    new: list[float]
    old: list[float]
    sampler: list[float]
    advantages: list[float]
    lengths: list[int]
    replayed: list[bool]
    stale: list[bool]
    trajectories: int = 1
    reference: list[float] = field(default_factory=list)

    @property
    def weights(self) -> list[float]:
        return [1 / (length * self.trajectories) for length in self.lengths]

    def tokens(self, dtype: torch.dtype = torch.float64) -> SampledTokens:
        return SampledTokens(
            sampler=torch.tensor(self.sampler, dtype=dtype),
            old=torch.tensor(self.old, dtype=dtype),
            advantages=torch.tensor(self.advantages, dtype=dtype),
            returns=torch.tensor([], dtype=dtype),
            lengths=torch.tensor(self.lengths),
            trajectories=self.trajectories,
            replayed=torch.tensor(self.replayed, dtype=torch.bool),
            stale=torch.tensor(self.stale, dtype=torch.bool),
            reference=torch.tensor(self.reference, dtype=dtype),
            values=torch.tensor([], dtype=dtype),
        )


def slow_importance(batch: Batch, config: AlgorithmConfig) -> list[float]:
    found = []
    for i, replayed in enumerate(batch.replayed):
        weight = 1.0
        if batch.stale[i] and not replayed and config.lag_truncate is not None:
            weight = min(math.exp(batch.old[i]) / math.exp(batch.sampler[i]), config.lag_truncate)
        found.append(weight)
    return found


def slow_loss(new: list[float], batch: Batch, config: AlgorithmConfig) -> float:
    loss = 0.0
    for i, weight in enumerate(slow_importance(batch, config)):
        advantage = batch.advantages[i]
        ratio = math.exp(new[i]) / math.exp(batch.old[i])
        nearby = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
        gain = min(ratio * advantage, nearby * advantage)
        if advantage < 0 and config.dual_clip is not None:
            gain = max(gain, config.dual_clip * advantage)
        loss -= weight * gain * batch.weights[i]
        if config.kl:
            apart = batch.reference[i] - new[i]
            loss += config.kl * batch.weights[i] * (math.exp(apart) - apart - 1)
    return loss


def fast(batch: Batch, config: AlgorithmConfig) -> tuple[float, list[bool], list[float]]:
    """Loss, clipped flags, gradient."""
    new = torch.tensor(batch.new, dtype=torch.float64, requires_grad=True)
    loss = clipped_surrogate(new, batch.tokens(), config)
    (gradient,) = torch.autograd.grad(loss.total, new)
    return loss.total.item(), loss.clipped.tolist(), gradient.tolist()


def one_token(ratio: float, advantage: float, **setting: Any) -> tuple[float, list[bool], list[float]]:
    batch = Batch([math.log(ratio) - 1.0], [-1.0], [-1.0], [advantage], [1], [False], [False])
    return fast(batch, AlgorithmConfig(**setting))


def replayed_at(*ratios: float) -> Batch:
    """Replayed tokens at these ratios of old to sampler, with an advantage of 1 and no step made yet."""
    n = len(ratios)
    old = [math.log(ratio) - 2.0 for ratio in ratios]
    return Batch(old, old, [-2.0] * n, [1.0] * n, [1] * n, [True] * n, [True] * n)


configs = st.builds(
    AlgorithmConfig,
    clip_low=st.sampled_from([0.1, 0.2, 0.6]),
    clip_high=st.sampled_from([0.1, 0.3, 1.5]),
    dual_clip=st.sampled_from([None, 1.2, 3.0]),
    lag_truncate=st.sampled_from([None, 1.0, 1.3, 2.0]),
)
pulled = st.builds(AlgorithmConfig, kl=st.sampled_from([0.01, 0.5]), clip_high=st.sampled_from([0.1, 1.5]))


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to four sequences of up to four tokens, each replayed as a whole or not."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    n = sum(lengths)

    def numbers(low: float, high: float) -> list[float]:
        return draw(st.lists(st.floats(low, high, width=32, allow_subnormal=False), min_size=n, max_size=n))

    old = numbers(-4, -1)
    signs = draw(st.lists(st.sampled_from([1, -1]), min_size=n, max_size=n))
    replayed, stale = ([draw(st.booleans()) for _ in lengths] for _ in range(2))
    batch = Batch(
        new=[value + step for value, step in zip(old, numbers(-1.5, 1.5), strict=True)],
        old=old,
        sampler=[value + step for value, step in zip(old, numbers(-1, 1), strict=True)],
        advantages=[sign * size for sign, size in zip(signs, numbers(0.125, 3), strict=True)],
        lengths=draw(st.lists(st.integers(1, 16), min_size=n, max_size=n)),
        replayed=[flag for flag, length in zip(replayed, lengths, strict=True) for _ in range(length)],
        stale=[flag for flag, length in zip(stale, lengths, strict=True) for _ in range(length)],
        reference=[value + step for value, step in zip(old, numbers(-1, 1), strict=True)],
    )
    order = draw(st.permutations(range(n)))  # those of a trajectory need not be neighbours
    columns = {name: [column[i] for i in order] for name, column in vars(batch).items() if isinstance(column, list)}
    changes: dict[str, Any] = {**columns, "trajectories": draw(st.integers(1, 9))}
    return replace(batch, **changes)


def near_a_corner(batch: Batch, config: AlgorithmConfig) -> bool:
    """Whether a token's ratio is where two pieces of the loss meet, so that the slope depends on the side."""
    corners = [1 - config.clip_low, 1 + config.clip_high, config.dual_clip or 0.0]
    ratios = [math.exp(new - old) for new, old in zip(batch.new, batch.old, strict=True)]
    return any(abs(ratio - corner) < 1e-4 for ratio in ratios for corner in corners)


# Against the slow one


@given(batches(), configs | pulled)
@settings(max_examples=300)
def test_the_loss_is_that_of_the_slow_one(batch: Batch, config: AlgorithmConfig) -> None:
    expected = slow_loss(batch.new, batch, config)
    assert fast(batch, config)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    single = clipped_surrogate(torch.tensor(batch.new), batch.tokens(torch.float32), config).total
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


@given(batches(), configs)
@settings(max_examples=200)
def test_importance_is_that_of_the_slow_one(batch: Batch, config: AlgorithmConfig) -> None:
    assert importance(batch.tokens(), config).tolist() == pytest.approx(slow_importance(batch, config), rel=1e-9)


@given(batches(), configs | pulled)
@settings(max_examples=200)
def test_the_gradient_is_the_slope_of_the_slow_one(batch: Batch, config: AlgorithmConfig) -> None:
    assume(not near_a_corner(batch, config))
    _, _, gradient = fast(batch, config)
    for i, found in enumerate(gradient):
        up, down = ([*batch.new[:i], batch.new[i] + step, *batch.new[i + 1 :]] for step in (1e-6, -1e-6))
        slope = (slow_loss(up, batch, config) - slow_loss(down, batch, config)) / 2e-6
        assert found == pytest.approx(slope, rel=1e-5, abs=1e-7)


@given(batches(), configs)
@settings(max_examples=200)
def test_before_the_first_step_the_gradient_is_minus_weight_times_advantage(
    batch: Batch, config: AlgorithmConfig
) -> None:
    batch.new = batch.old
    w = slow_importance(batch, config)
    _, clipped, gradient = fast(batch, config)
    assert gradient == pytest.approx([-x * y * z for x, y, z in zip(batch.weights, w, batch.advantages, strict=True)])
    assert not any(clipped)


@given(batches(), configs)
@settings(max_examples=200)
def test_the_flags_say_exactly_where_clipping_took_the_gradient(batch: Batch, config: AlgorithmConfig) -> None:
    assume(not near_a_corner(batch, config))
    batch.replayed = batch.stale = [False] * len(batch.new)  # a token that is not trusted has no gradient either
    _, clipped, gradient = fast(batch, config)
    assert clipped == [slope == 0.0 for slope in gradient]


# By hand


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.29, 2.0, -2.58, False),
        (1.31, 2.0, -2.6, True),  # likelier enough
        (0.5, 2.0, -1.0, False),  # it may always be made likelier again
        (0.81, -2.0, 1.62, False),
        (0.79, -2.0, 1.6, True),  # less likely enough
        (5.0, -2.0, 10.0, False),
    ],
)
def test_a_clipped_token_of_the_usual_settings(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    found, flags, (gradient,) = one_token(ratio, advantage)
    assert found == pytest.approx(loss)
    assert flags == [clipped]
    assert gradient == pytest.approx(0.0 if clipped else -ratio * advantage)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [(2.9, -2.0, 5.8, False), (3.1, -2.0, 6.0, True), (50.0, -2.0, 6.0, True), (0.7, -2.0, 1.6, True)],
)
def test_dual_clip_bounds_what_a_bad_token_costs(ratio: float, advantage: float, loss: float, clipped: bool) -> None:
    found, flags, (gradient,) = one_token(ratio, advantage, dual_clip=3.0)
    assert found == pytest.approx(loss)
    assert flags == [clipped]
    assert gradient == pytest.approx(0.0 if clipped else -ratio * advantage)


@pytest.mark.parametrize("ratio", [0.3, 1.1, 4.0])
def test_dual_clip_leaves_good_tokens_alone(ratio: float) -> None:
    assert one_token(ratio, 2.0, dual_clip=3.0) == one_token(ratio, 2.0)


def test_trajectories_count_alike_and_so_do_the_tokens_of_each() -> None:
    batch = Batch([-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0], [3.0, -2.0], [2, 1], [False] * 2, [False] * 2, 2)
    loss, _, gradient = fast(batch, AlgorithmConfig())
    assert loss == pytest.approx(-0.75 + 1.0)
    assert gradient == pytest.approx([-0.75, 1.0])
    _, _, gradient = fast(batch, AlgorithmConfig(normaliser="constant", length=10))
    assert gradient == pytest.approx([-0.15, 0.1])


# Importance


def weights_of(batch: Batch, **setting: Any) -> list[float]:
    found: Tensor = importance(batch.tokens(), AlgorithmConfig(**setting))
    return [round(value, 6) for value in found.tolist()]


def test_what_the_present_policy_sampled_is_not_corrected() -> None:
    batch = replayed_at(0.1, 3.0, 50.0)
    batch.replayed = batch.stale = [False] * 3
    assert weights_of(batch, name="arpo+") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("name", ["grpo", "dapo", "arpo", "arpo+"])
def test_what_an_older_policy_sampled_is_corrected_with_every_method(name: str) -> None:
    batch = replayed_at(0.1, 1.9, 50.0)
    batch.replayed = [False] * 3
    assert weights_of(batch, name=name) == [0.1, 1.9, 2.0]
    assert weights_of(batch, name=name, lag_truncate=1.5) == [0.1, 1.5, 1.5]
    assert weights_of(batch, name=name, lag_truncate=None) == [1.0, 1.0, 1.0]


def test_what_is_out_of_the_store_counts_as_if_it_were_fresh() -> None:
    assert weights_of(replayed_at(0.1, 3.0, 50.0)) == [1.0, 1.0, 1.0]


def test_no_tokens_have_no_loss() -> None:
    loss, clipped, gradient = fast(Batch([], [], [], [], [], [], []), AlgorithmConfig(name="arpo+", dual_clip=3.0))
    assert (loss, clipped, gradient) == (0.0, [], [])


# Against others


@pytest.mark.filterwarnings("ignore")
def test_the_loss_is_that_of_verl() -> None:
    """Its function always has a dual clip and takes the mean over tokens. Not installed with arpo."""
    verl = pytest.importorskip("verl.trainer.ppo.core_algos", exc_type=ImportError)
    torch.manual_seed(0)
    n = 500
    old, advantages = -torch.rand(n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    new = (old + torch.randn(n, dtype=torch.float64)).requires_grad_()
    config = AlgorithmConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    none = torch.zeros(n, dtype=torch.int64)
    lengths, nothing = torch.full_like(none, n), old[:0]
    tokens = SampledTokens(old, old, advantages, nothing, lengths, 1, none.bool(), none.bool(), nothing, nothing)
    loss = clipped_surrogate(new, tokens, config)
    ours, clipped = loss.total, loss.clipped
    theirs, above, _, below = verl.compute_policy_loss(
        old[None],
        new[None],
        advantages[None],
        torch.ones_like(old)[None],
        cliprange_low=0.2,
        cliprange_high=0.3,
        clip_ratio_c=3.0,
    )
    assert ours.item() == pytest.approx(theirs.item())
    assert clipped.double().mean().item() == pytest.approx((above + below).item())
    gradients = [torch.autograd.grad(loss, new)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)
