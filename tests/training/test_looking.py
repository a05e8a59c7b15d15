"""Methods that look before they learn: the policy that training began with, whole episodes, a value head."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from guesser import make_guesser, settings
from test_learner import WATCHED, Played, Pupil, assert_close, play
from torch import Tensor

from arpo.algorithms.base import Weighed
from arpo.config import Config
from arpo.model.checkpoint import Checkpoint, load_checkpoint
from arpo.training.base import Batch, LearnerError
from arpo.types import Sample

TASKS, MEMBERS = 4, 3  # of what is played


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_guesser(tmp_path_factory.mktemp("guesser"))


@pytest.fixture(scope="module")
def played(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(load_checkpoint(folder, "cpu"), tmp_path_factory.mktemp("run"))


@pytest.fixture
def checkpoint(folder: Path) -> Checkpoint:
    return load_checkpoint(folder, "cpu")


def of(name: str, **train: Any) -> Config:
    return settings({"name": name, "group": MEMBERS}, rollout_tasks=TASKS, grad_clip=1e9, **train)


def judged(played: Played, *signs: float, returns: bool = False) -> Batch:
    """All episodes, the members of each group with these advantages."""
    samples = [
        dataclasses.replace(
            one, advantages=(sign,) * len(one.logprobs), returns=(sign,) * len(one.logprobs) if returns else ()
        )
        for group in played.samples
        for one, sign in zip(group, signs, strict=True)
    ]
    return Batch(tuple(samples), len(samples))


def pupil(checkpoint: Checkpoint, played: Played, config: Config) -> Pupil:
    return Pupil(checkpoint, played, config)


def moved(learner: Pupil, samples: tuple[Sample, ...], start: list[Tensor]) -> Tensor:
    """How much likelier each episode became, with gradient: all of them at once, as a loss is written on paper."""
    rows: dict[int, Tensor] = {}
    for part in learner._parts(samples, learner.shown):
        lengths = [len(one.logprobs) for one in part.samples]
        rows |= zip(part.rows, torch.split(learner._forward(part), lengths), strict=True)
    return torch.stack([(rows[i] - start[i]).sum() for i in range(len(samples))])


def now(learner: Pupil) -> dict[str, Tensor]:
    """The gradients that no step was taken with yet."""
    weights = {name: learner.model.get_parameter(name).grad for name in WATCHED}
    return {name: gradient.clone() for name, gradient in weights.items() if gradient is not None}


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_the_gradient_in_parts_is_that_of_the_loss_over_all_episodes_at_once(
    checkpoint: Checkpoint, played: Played, name: str
) -> None:
    learner = pupil(checkpoint, played, of(name, micro_tokens=200))
    batch = judged(played, 1.0, -1.0, -1.0)
    start = learner.values(batch.samples)
    with torch.no_grad():  # away from the start, else every r is 0
        maker = torch.Generator().manual_seed(0)
        for weight in learner.parameters:
            weight += 0.02 * weight.std() * torch.randn(weight.shape, generator=maker)
    seen = learner.gradient(batch, learner.shown)
    assert len(seen) > 1  # parts
    found = now(learner)
    assert found.keys() == {*WATCHED}
    r, beta = moved(learner, batch.samples, start).view(TASKS, MEMBERS), learner.config.algorithm.beta
    assert r.abs().mean() > 0.1
    if name == "dpo":
        loss = -torch.nn.functional.logsigmoid(beta * (r[:, :1] - r[:, 1:])).mean()
    else:
        z = r.detach().mean().clamp(min=0)
        loss = (1 - torch.sigmoid(beta * torch.cat([r[:, :1] - z, z - r[:, 1:]], dim=1))).mean()
    learner.model.zero_grad()
    loss.backward()
    assert_close(found, now(learner))
    assert float(sum(part.loss for part in seen)) == pytest.approx(loss.item(), rel=1e-4)


def test_looking_back_leaves_the_weights_as_they_are_to_the_last_bit(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played, of("dpo"))
    batch = judged(played, 1.0, -1.0, -1.0)
    before = [weight.clone() for weight in learner.parameters]
    at_start = learner.values(batch.samples)
    learner.learn([batch])
    assert any(not torch.equal(old, new) for old, new in zip(before, learner.parameters, strict=True))
    learned = [weight.clone() for weight in learner.parameters]
    looked = learner._reference(batch.samples, learner.shown)
    torch.testing.assert_close(torch.cat(looked), torch.cat(at_start))
    assert not torch.allclose(torch.cat(looked), torch.cat(learner.values(batch.samples)))
    assert all(torch.equal(old, new) for old, new in zip(learned, learner.parameters, strict=True))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_weights_are_never_saved_half_way_to_the_start_and_back(
    checkpoint: Checkpoint, played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    learner = pupil(checkpoint, played, of("dpo"))
    batch = judged(played, 1.0, -1.0, -1.0)
    learner.learn([batch])
    before = [weight.clone() for weight in learner.parameters]
    work = itertools.count(1)

    def out_of_memory(what: Callable[..., Any]) -> Callable[..., Any]:
        def fails(*arguments: Any) -> Any:
            if next(work) == at:
                raise torch.OutOfMemoryError
            return what(*arguments)

        return fails

    monkeypatch.setattr(learner, "_swap", out_of_memory(learner._swap))
    monkeypatch.setattr(learner, "logprobs", out_of_memory(learner.logprobs))
    with pytest.raises(torch.OutOfMemoryError):
        learner.gradient(batch, learner.shown)
    if at == 2:  # in the pass itself: the weights are back in their places
        assert all(torch.equal(old, new) for old, new in zip(before, learner.parameters, strict=True))
        learner.save(tmp_path)
    else:
        with pytest.raises(LearnerError):
            learner.save(tmp_path)


def test_a_pull_to_the_start_keeps_the_policy_nearer_to_it(
    checkpoint: Checkpoint, folder: Path, played: Played
) -> None:
    batch = judged(played, 1.0, -1.0, -0.5)

    def distance(pull: float) -> float:
        config = of("grpo", lr=3e-3)
        config = config.with_values({"algorithm.kl": pull})
        learner = pupil(load_checkpoint(folder, "cpu"), played, config)
        start = torch.cat(learner.values(batch.samples))
        for _ in range(5):
            learner.learn([batch])
        return (torch.cat(learner.values(batch.samples)) - start).abs().mean().item()

    assert distance(10.0) < 0.7 * distance(0.0)


def test_the_value_head_learns_what_episodes_come_to(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played, of("ppo", lr=3e-3))
    # Two tasks always succeed and two always fail: their instructions tell them apart.
    samples = [
        dataclasses.replace(one, returns=(reward,) * len(one.logprobs), advantages=(reward,) * len(one.logprobs))
        for group, reward in zip(played.samples, (1.0, 1.0, -1.0, -1.0), strict=True)
        for one in group
    ]
    batch = Batch(tuple(samples), len(samples))
    errors = [learner.learn([batch])["value_error"] for _ in range(30)]
    assert errors[0] == pytest.approx(1.0)  # it begins with 0 for all
    assert errors[-1] < 0.75
    values: list[Tensor] = []
    learner.logprobs(batch.samples, learner.shown, values=values)
    assert all(part.abs().max() <= 1 for part in values)


def test_published_weights_have_no_value_head(
    checkpoint: Checkpoint, folder: Path, played: Played, tmp_path: Path
) -> None:
    learner = pupil(checkpoint, played, of("ppo"))
    learner.learn([judged(played, 1.0, 0.0, -1.0, returns=True)])
    weights = learner.publish(tmp_path / "weights")
    assert weights.tensors is not None
    assert {name for name, _ in weights.tensors()} <= {
        name for name, _ in load_checkpoint(folder, "cpu").model.named_parameters()
    }


def test_a_damaged_value_head_is_refused(checkpoint: Checkpoint, played: Played) -> None:
    critic = pupil(checkpoint, played, of("ppo"))._critic
    assert critic is not None
    state = critic.state()
    critic.restore(state)
    every: list[Any] = [float("nan"), True, "0.0", None, [0.0], 10**400, 1e300]  # the last is infinite in the head
    bad: Any
    for bad in (state[:-1], *([*state[:-1], value] for value in every), "0" * len(state)):
        with pytest.raises(ValueError, match="value head"):
            critic.restore(bad)
    assert critic.state() == state


def test_a_value_head_beside_adapters_is_as_precise_as_they_are(checkpoint: Checkpoint, played: Played) -> None:
    checkpoint.model.to(torch.bfloat16)
    learner = pupil(checkpoint, played, of("ppo", lora_rank=2, lr=1e-6))
    assert {weight.dtype for weight in learner.parameters} == {torch.float32}
    learner.learn([judged(played, 1.0, 0.0, -1.0, returns=True)])


def test_methods_that_do_not_look_keep_no_second_copy(checkpoint: Checkpoint, played: Played) -> None:
    for name in ("grpo", "arpo", "rft"):
        assert pupil(checkpoint, played, of(name))._start == []
    assert len(pupil(checkpoint, played, of("kto"))._start) > 0


def test_advantages_of_other_tokens_are_refused(
    checkpoint: Checkpoint, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = pupil(checkpoint, played, of("dpo"))
    batch = judged(played, 1.0, -1.0, -1.0)
    monkeypatch.setattr(learner.algorithm, "weigh", lambda samples, look: Weighed([torch.zeros(1)]))
    with pytest.raises(LearnerError, match="weighed other tokens than those that were sampled"):
        learner.learn([batch])
