"""rft, dpo, kto and ppo: against TRL's own losses, and against cases worked out by hand."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from arpo.algorithms.base import METHODS, Look, SampledTokens, Weighed, make_algorithm
from arpo.algorithms.ppo import gae
from arpo.config import AlgorithmConfig
from arpo.types import Outcome, Sample
from attempts import group

BETA = 0.3


def made(name: str, **setting: Any) -> Any:
    return make_algorithm(AlgorithmConfig(name=name, **setting), 0)


def sample(name: str, n: int, advantage: float, task: str = "t", returns: float | None = None) -> Sample:
    """Of an episode, with n sampled tokens."""
    return Sample(
        trajectory_id=name,
        ids=(1,) * (n + 1),
        images=(),
        sampled=(False,) + (True,) * n,
        logprobs=(-1.0,) * n,
        advantages=(advantage,) * n,
        version=0,
        returns=() if returns is None else (returns,) * n,
        task_id=task,
    )


def tokens(n: int, **given: Any) -> SampledTokens:
    nothing, zeros = torch.zeros(0), torch.zeros(n)
    usual = dict.fromkeys(("sampler", "old", "advantages"), zeros) | dict.fromkeys(
        ("returns", "reference", "values"), nothing
    )
    flags = dict.fromkeys(("replayed", "stale"), zeros.bool())
    return SampledTokens(**usual | flags | {"lengths": torch.full((n,), n), "trajectories": 1} | given)  # type: ignore[arg-type]


# ---- against TRL


def trl_self(**own: Any) -> Any:
    """What TRL's losses ask of their trainer; log-probabilities are handed to them in place of a model's."""
    alone = dict.fromkeys(("gather", "gather_for_metrics"), lambda value: value)
    accelerator = SimpleNamespace(device="cpu", **alone)
    usual = {"accelerator": accelerator, "beta": BETA, "precompute_ref_logps": True, "aux_loss_enabled": False}
    return MagicMock(**usual, _metrics=defaultdict(lambda: defaultdict(list)), _total_train_tokens=0, _tp_size=1, **own)


def trl_batch(rows: Tensor) -> tuple[Any, dict[str, Any]]:
    """A model that gives these log-probabilities, and inputs with a mask of ones."""
    n, length = rows.shape
    for_its_log = dict.fromkeys(("entropy", "mean_logits"), torch.zeros_like(rows))
    outputs = SimpleNamespace(log_probs=rows, is_top1=torch.zeros_like(rows).bool(), **for_its_log)
    ids = torch.ones(n, length + 1, dtype=torch.long)
    mask = ids.clone()
    mask[:, 0] = 0
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "completion_mask": mask}
    return lambda **given: outputs, inputs


def weighed(name: str, samples: list[Sample], now: Tensor, start: Tensor) -> Weighed:
    found: Weighed = made(name, beta=BETA).weigh(samples, Look(list(now), list(start), []))
    return found


def random_rows(n: int, seed: int) -> tuple[Tensor, Tensor]:
    maker = torch.Generator().manual_seed(seed)
    return tuple(-2 * torch.rand(n, 4, generator=maker) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("seed", range(5))
def test_dpo_is_that_of_trl_in_loss_and_gradient(seed: int) -> None:
    from trl.trainer.dpo_trainer import DPOTrainer

    now, start = random_rows(6, seed)
    rows = now.clone().requires_grad_()
    model, inputs = trl_batch(rows)
    inputs |= dict(zip(("ref_chosen_logps", "ref_rejected_logps"), start.sum(1).chunk(2), strict=True))
    trainer = trl_self(
        ld_alpha=None, f_divergence_type="reverse_kl", loss_types=["sigmoid"], loss_weights=[1.0], label_smoothing=0.0
    )
    trainer.use_weighting = trainer.args.use_weighting = False
    loss = DPOTrainer._compute_loss(trainer, model, inputs, False)
    loss.backward()
    # Three tasks with one pair each.
    samples = [sample(f"{i}", 4, 1.0 if i < 3 else -1.0, task=f"task{i % 3}") for i in range(6)]
    ours = weighed("dpo", samples, now, start)
    assert ours.loss == pytest.approx(loss.item(), rel=1e-5)
    assert rows.grad is not None
    torch.testing.assert_close(-torch.stack(list(ours.advantages)), rows.grad)


@pytest.mark.parametrize("seed", range(5))
def test_kto_is_that_of_trl_in_loss_and_gradient(seed: int) -> None:
    from trl.trainer.kto_trainer import KTOTrainer

    now, start = random_rows(6, seed)
    rows = now.clone().requires_grad_()
    model, inputs = trl_batch(rows)
    good = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.bool)
    inputs |= {"label": good, "ref_logps": start.sum(1), "ref_KL_logps": start.sum(1)}
    trainer = trl_self(loss_type="kto", desirable_weight=1.0, undesirable_weight=1.0, calculate_KL=True)
    trainer._compute_kl_logps = lambda model, batch: now.sum(1)  # the same estimate of the divergence
    loss = KTOTrainer._compute_loss(trainer, model, inputs, False)
    loss.backward()
    samples = [sample(f"{i}", 4, 1.0 if good[i] else -1.0) for i in range(6)]
    ours = weighed("kto", samples, now, start)
    assert ours.loss == pytest.approx(loss.item(), rel=1e-5)
    assert rows.grad is not None
    torch.testing.assert_close(-torch.stack(list(ours.advantages)), rows.grad)


# ---- by hand


def test_every_success_of_a_group_is_paired_with_every_failure_of_it_and_groups_count_alike() -> None:
    samples = [
        *(sample(f"a{i}", 1, value, "a") for i, value in enumerate((1.0, 1.0, -1.0))),
        *(sample(f"b{i}", 1, value, "b") for i, value in enumerate((1.0, -1.0))),
    ]
    r = torch.tensor([0.5, -0.25, 0.125, 1.0, 2.0])
    ours = weighed("dpo", samples, r[:, None], torch.zeros(5, 1))

    def pair(chosen: int, rejected: int) -> Tensor:
        return -torch.nn.functional.logsigmoid(BETA * (r[chosen] - r[rejected]))

    expected = ((pair(0, 2) + pair(1, 2)) / 2 + pair(3, 4)) / 2
    assert ours.loss == pytest.approx(expected.item(), rel=1e-6)
    assert ours.metrics == pytest.approx({"accuracy": 1 / 3, "margin": (0.375 - 0.375 - 1.0) / 3})


def test_a_success_without_a_failure_beside_it_is_no_pair() -> None:
    # Its failures had no token that could be learned.
    samples = [sample("a", 1, 1.0, "a"), sample("b0", 1, 1.0, "b"), sample("b1", 1, -1.0, "b")]
    r = torch.tensor([[5.0], [0.5], [-0.5]])
    ours = weighed("dpo", samples, r, torch.zeros(3, 1))
    assert ours.loss == pytest.approx(weighed("dpo", samples[1:], r[1:], torch.zeros(2, 1)).loss)
    assert ours.advantages[0].item() == 0.0
    alone = weighed("dpo", samples[:1], r[:1], torch.zeros(1, 1))
    assert (alone.loss, alone.advantages[0].item()) == (0.0, 0.0)


def test_an_episode_in_several_samples_is_one_episode() -> None:
    now, start = random_rows(3, 0)
    whole = [sample("good", 8, 1.0), sample("bad", 4, -1.0)]
    parts = [sample("good", 4, 1.0), sample("good", 4, 1.0), sample("bad", 4, -1.0)]
    for name in ("dpo", "kto"):
        method = made(name, beta=BETA)
        one = method.weigh(whole, Look([now[:2].flatten(), now[2]], [start[:2].flatten(), start[2]], []))
        other = method.weigh(parts, Look(list(now), list(start), []))
        assert one.loss == pytest.approx(other.loss)
        assert torch.equal(torch.cat(list(one.advantages)), torch.cat(list(other.advantages)))


def test_what_each_method_learns_of_a_group() -> None:
    mixed, failed = group(1.0, 0.0, None, (1.0, Outcome.UNPARSABLE)), group(0.0, 0.0, None)

    def first(name: str, of: Any) -> list[float | None]:
        return [credit.advantages[0] if credit.advantages else None for credit in made(name).advantages(of)]

    # The last of them solved its task and then said what is no action: that is not to be repeated.
    assert first("rft", mixed) == [1.0, None, None, None]
    assert first("dpo", mixed) == first("kto", mixed) == [1.0, -1.0, None, None]
    assert first("ppo", mixed) == [1.0, 0.0, None, 0.0]  # the reward, until the value head was asked
    assert first("rft", failed) == first("dpo", failed) == [None] * 3
    assert first("kto", failed) == [-1.0, -1.0, None]
    accepted = {name: [made(name).accept(one) for one in (mixed, failed)] for name in ("rft", "dpo", "kto", "ppo")}
    assert accepted == {"rft": [True, False], "dpo": [True, False], "kto": [True, True], "ppo": [True, True]}


def test_rft_is_the_mean_over_episodes_of_the_mean_negative_log_probability() -> None:
    new = torch.tensor([-1.0, -2.0, -4.0], requires_grad=True)
    batch = tokens(3, advantages=torch.ones(3), lengths=torch.tensor([2, 2, 1]), trajectories=4)
    loss = made("rft").loss(new, batch)
    assert loss.total.item() == pytest.approx((1.5 + 4.0) / 4)
    (gradient,) = torch.autograd.grad(loss.total, new)
    assert gradient.tolist() == pytest.approx([-1 / 8, -1 / 8, -1 / 4])


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6), st.floats(-1, 1), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=100)
def test_gae_is_that_of_its_definition(values: list[float], reward: float, decay: float) -> None:
    found = gae(torch.tensor(values, dtype=torch.float64), reward, decay)
    after = [*values[1:], reward]
    steps = [later - value for later, value in zip(after, values, strict=True)]
    for t in range(len(values)):
        expected = sum(decay ** (i - t) * steps[i] for i in range(t, len(values)))
        assert found[t].item() == pytest.approx(expected, abs=1e-9)


def test_ppo_compares_an_episode_with_what_was_expected_of_it_over_all_its_samples() -> None:
    samples = [
        sample("one", 2, 1.0, returns=1.0),
        sample("other", 1, 0.0, returns=0.0),
        sample("one", 1, 1.0, returns=1.0),
    ]
    values = [torch.tensor([0.25, 0.5]), torch.tensor([0.75]), torch.tensor([0.5])]
    exact = made("ppo").weigh(samples, Look([], [], values))
    assert [part.tolist() for part in exact.advantages] == [[0.75, 0.5], [-0.75], [0.5]]
    blurred = made("ppo", gae=0.5).weigh(samples, Look([], [], values))
    # Steps of the first: 0.25, 0.0, 0.5.
    assert [part.tolist() for part in blurred.advantages] == [[0.375, 0.25], [-0.75], [0.5]]


def test_the_value_head_is_taught_the_reward_within_its_bounds() -> None:
    values = torch.tensor([0.5, -0.5], requires_grad=True)
    batch = tokens(2, values=values, returns=torch.tensor([3.0, -1.0]))  # 3: a reward of one's own
    loss = made("ppo", value_weight=2.0).loss(torch.zeros(2, requires_grad=True), batch)
    assert loss.total.item() == pytest.approx(2.0 * (0.25 + 0.25) / 2)
    (gradient,) = torch.autograd.grad(loss.total, values)
    assert gradient.tolist() == pytest.approx([2.0 * -0.5, 2.0 * 0.5])


def test_no_method_has_replay_beside_those_that_are_named_for_it() -> None:
    assert {name for name in METHODS.names() if made(name).settings.replay} == {"arpo", "arpo+"}
