"""The learner: the sampler's log-probabilities, the gradient of the loss as it is written, and no silent nonsense."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guesser import make_guesser, rollouts_of, settings
from torch import Tensor

import plain
from arpo.algorithms.base import Credit, make_algorithm
from arpo.algorithms.grpo import Grpo, for_every_token
from arpo.config import Config
from arpo.engines.base import Prompt
from arpo.engines.local import LocalEngine, screens
from arpo.engines.local.screens import Screens
from arpo.images import decode, observe
from arpo.model.checkpoint import Checkpoint, load_checkpoint, load_model
from arpo.model.layout import lay_out
from arpo.model.qwen import banned_ids
from arpo.runs.store import Run
from arpo.training import lora
from arpo.training.base import Batch, LearnerError, NotFinite
from arpo.training.learner import LocalLearner
from arpo.training.samples import to_batches, to_samples
from arpo.types import Group, Observation, Sample
from attempts import group

FREE = settings({"group": 3}, rollout_tasks=4, grad_clip=1e9)  # the gradient as it is
WATCHED = (  # weights of all kinds whose gradients are compared
    "model.language_model.embed_tokens.weight",
    "model.language_model.layers.0.self_attn.q_proj.weight",
    "model.language_model.layers.1.input_layernorm.weight",
    "model.language_model.layers.2.mlp.down_proj.weight",
    "model.language_model.norm.weight",
)
TOWER = {
    "qwen2_5_vl": ("model.visual.blocks.0.attn.qkv.weight", "model.visual.merger.mlp.2.weight"),
    "qwen3_vl": (
        *("model.visual.blocks.0.attn.qkv.weight", "model.visual.merger.linear_fc2.weight"),
        *("model.visual.pos_embed.weight", "model.visual.deepstack_merger_list.1.linear_fc1.weight"),
        "model.language_model.layers.0.self_attn.k_norm.weight",
    ),
}


@dataclasses.dataclass(frozen=True)
class Played:
    """Episodes of one policy: a list of samples for each task, the screens they show, and who looked at them."""

    samples: list[list[Sample]]
    screens: dict[str, Observation]
    seen: Screens

    @property
    def longest(self) -> Sample:
        return max((sample for group in self.samples for sample in group), key=lambda sample: len(sample.logprobs))


def play(checkpoint: Checkpoint, folder: Path, config: Config = FREE, screenshots: int | None = None) -> Played:
    """Groups of the agent's, with advantages of both signs that are all different."""
    engine = LocalEngine(checkpoint, max_context=2000)
    with Run.write(folder, "") as run:
        rollouts = rollouts_of(engine, config, run, screenshots=screenshots)
        groups = asyncio.run(rollouts.groups(0, make_algorithm(config.algorithm, 0)))
        pad = rollouts.agent.dialect.image_pad
        credits = [for_every_token(group, [1.0, -0.5 - i, 0.25]) for i, group in enumerate(groups)]
        samples = [to_samples(group, of_group, pad) for group, of_group in zip(groups, credits, strict=True)]
        screens = {name: run.image(name) for group in samples for sample in group for name in sample.images}
    return Played(samples, screens, engine.screens)


@pytest.fixture(scope="module")
def guesser_folder(tmp_path_factory: pytest.TempPathFactory, family: str) -> Path:
    return make_guesser(tmp_path_factory.mktemp("guesser"), 0, family)


@pytest.fixture(scope="module")
def played(guesser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(load_checkpoint(guesser_folder, "cpu"), tmp_path_factory.mktemp("run"))


@pytest.fixture
def checkpoint(guesser_folder: Path) -> Checkpoint:
    """Weights of one's own, to be changed."""
    return load_checkpoint(guesser_folder, "cpu")


class Pupil(LocalLearner):
    """A learner that is shown the screens of these episodes. `left`: the gradients of its last step, by name."""

    def __init__(self, checkpoint: Checkpoint, played: Played, config: Config) -> None:
        super().__init__(checkpoint, config, make_algorithm(config.algorithm, config.seed), played.seen)
        self.shown = played.screens
        self._tested = True  # the self-test has tests of its own

    def step(self, batch: Batch, screens: Any, old: Sequence[Tensor] = ()) -> Any:
        done = super().step(batch, screens, old)
        named = {name: weight.grad for name, weight in self.model.named_parameters()}
        self.left = {name: gradient.clone() for name, gradient in named.items() if gradient is not None}
        return done

    def learn(self, batches: Sequence[Batch]) -> dict[str, float]:
        self.learned = self.update(batches, self.shown)
        return self.learned.metrics

    def values(self, samples: Sequence[Sample]) -> list[Tensor]:
        return self.logprobs(samples, self.shown)

    def test(self, samples: Sequence[Sample]) -> None:
        self.self_test(samples, self.shown)


def pupil(checkpoint: Checkpoint, played: Played, config: Config = FREE) -> Pupil:
    return Pupil(checkpoint, played, config)


def steps(*batches: Sequence[Sample], trajectories: int = 3) -> list[Batch]:
    """Optimiser steps, each on the trajectories of one group unless they are said to be more."""
    return [Batch(tuple(samples), trajectories) for samples in batches]


def changed(config: Config = FREE, **train: Any) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update=train)})


def sampler_logprobs(samples: Sequence[Sample]) -> Tensor:
    return torch.tensor([value for sample in samples for value in sample.logprobs])


def gradients(learner: Pupil, names: Sequence[str] = WATCHED) -> dict[str, Tensor]:
    return {name: learner.left[name] for name in names}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], share: float = 1e-3) -> None:
    for name, gradient in expected.items():
        assert gradient.abs().max() > 0, name
        assert (found[name] - gradient).abs().max() <= share * gradient.abs().max(), name


# The reference: transformers' own forward pass, one sequence at a time, the whole vocabulary, the loss as it is written


def plain_logprobs(
    checkpoint: Checkpoint, sample: Sample, screens: dict[str, Observation], temperature: float = 1.0
) -> Tensor:
    images = tuple(screens[name] for name in sample.images)
    inputs = plain.reference_inputs(checkpoint, Prompt(sample.ids, images))
    scores = plain.reference(checkpoint)(**inputs).logits[0].float()
    banned = torch.tensor(banned_ids(checkpoint.config))
    every = (scores.index_fill(-1, banned, float("-inf")) / temperature).log_softmax(-1)
    sizes = [checkpoint.model.sight.grid(image.width, image.height) for image in images]
    places = torch.from_numpy(lay_out(sample.ids, sizes, checkpoint.config.image_token_id).starts[:-1])
    places = places[torch.tensor(sample.sampled)]
    return every[places - 1, inputs["input_ids"][0, places]]


def reference_gradients(
    checkpoint: Checkpoint,
    played: Played,
    batch: Sequence[Sample],
    config: Config,
    old: Sequence[Tensor] | None = None,
    names: Sequence[str] = WATCHED,
    trajectories: int = 3,
) -> dict[str, Tensor]:
    """Of the mean over a step's trajectories of the mean over their tokens of the clipped surrogate."""
    model = plain.reference(checkpoint).requires_grad_(True)
    model.zero_grad()
    loss = torch.zeros(())
    for place, sample in enumerate(batch):
        new = plain_logprobs(checkpoint, sample, played.screens)
        before = new.detach() if old is None else old[place]
        for token, advantage in enumerate(sample.advantages):
            ratio = (new[token] - before[token]).exp()
            low, high = 1 - config.algorithm.clip_low, 1 + config.algorithm.clip_high
            surrogate = torch.min(ratio * advantage, ratio.clamp(low, high) * advantage)
            length = len(sample.logprobs) if config.algorithm.normaliser == "trajectory" else config.algorithm.length
            loss = loss - surrogate / length / trajectories
    loss.backward()
    return {name: model.get_parameter(name).grad.clone() for name in names}


# Log-probabilities


@pytest.mark.parametrize("frozen", [True, False])
def test_logprobs_of_fresh_samples_are_the_samplers_and_those_of_a_plain_forward_pass(
    checkpoint: Checkpoint, played: Played, frozen: bool
) -> None:
    learner = pupil(checkpoint, played, changed(freeze_vision=frozen))
    samples = [sample for group in played.samples for sample in group]
    assert max(len(sample.images) for sample in samples) > 2
    found = learner.values(samples)
    assert torch.allclose(torch.cat(found), sampler_logprobs(samples), atol=1e-4)
    with torch.no_grad():
        for sample, values in zip(samples, found, strict=True):
            assert torch.allclose(values, plain_logprobs(checkpoint, sample, played.screens), atol=1e-4)


def test_the_temperature_of_sampling_is_the_learners_too(checkpoint: Checkpoint, tmp_path: Path) -> None:
    warm = changed(temperature=1.7)
    played = play(checkpoint, tmp_path, warm)
    (found,) = pupil(checkpoint, played, warm).values([played.longest])
    assert torch.allclose(found, sampler_logprobs([played.longest]), atol=1e-4)
    with torch.no_grad():
        assert torch.allclose(found, plain_logprobs(checkpoint, played.longest, played.screens, 1.7), atol=1e-4)


def test_another_screenshot_gives_other_logprobs_from_there_on(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played, changed(freeze_vision=False))
    sample = played.longest
    (before,) = learner.values([sample])
    last = played.screens[sample.images[-1]]
    other = dataclasses.replace(observe(255 - decode(last.image)), hash="other")
    learner.shown = played.screens | {"other": other}
    altered = dataclasses.replace(sample, images=(*sample.images[:-1], "other"))
    (after,) = learner.values([altered])
    place = len(sample.ids) - 1 - sample.ids[::-1].index(checkpoint.config.image_token_id)
    earlier = sum(sample.sampled[:place])
    assert 0 < earlier < len(before)
    assert torch.allclose(before[:earlier], after[:earlier], atol=1e-5)
    assert (before[earlier:] - after[earlier:]).abs().min() > 1e-4


def test_the_self_test_passes_for_the_samplers_twin(checkpoint: Checkpoint, played: Played) -> None:
    for frozen in (True, False):
        pupil(checkpoint, played, changed(freeze_vision=frozen)).test(played.samples[0])


def test_the_self_test_finds_other_weights(played: Played, family: str, tmp_path: Path) -> None:
    stranger = load_checkpoint(make_guesser(tmp_path, 1, family), "cpu")
    with pytest.raises(LearnerError, match="other log-probabilities than the sampler"):
        pupil(stranger, played).test(played.samples[0])


def test_the_self_test_finds_another_temperature(checkpoint: Checkpoint, played: Played) -> None:
    with pytest.raises(LearnerError, match="do not run the same weights, prompt or temperature"):
        pupil(checkpoint, played, changed(temperature=0.9)).test(played.samples[0])


def test_the_self_test_finds_weights_that_are_no_numbers(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played)
    with torch.no_grad():
        learner.model.model.language_model.norm.weight[0] = math.nan
    with pytest.raises(LearnerError):
        learner.test(played.samples[0])


def test_the_self_test_finds_a_model_that_does_not_look(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with torch.no_grad():  # whatever is on a screen, its tokens are all zero
        for name, last in checkpoint.model.model.visual.named_modules():
            if re.fullmatch(r"merger\.mlp\.2|.*merger.*\.linear_fc2", name):
                assert isinstance(last, torch.nn.Linear)
                last.weight.zero_()
                last.bias.zero_()
    blind = play(checkpoint, tmp_path)
    with pytest.raises(LearnerError, match="does not look at screenshots"):
        pupil(checkpoint, blind).test(blind.samples[0])


def bf16(folder: Path) -> Checkpoint:
    return load_checkpoint(folder, "cpu", torch.bfloat16)


def test_in_bf16_the_learner_is_the_samplers_twin_too_and_other_weights_are_found(
    guesser_folder: Path, family: str, tmp_path: Path
) -> None:
    half = play(bf16(guesser_folder), tmp_path / "run")
    learner = pupil(bf16(guesser_folder), half)
    learner.test(half.samples[0])
    samples = [sample for group in half.samples for sample in group]
    off = (torch.cat(learner.values(samples)) - sampler_logprobs(samples)).abs()
    assert off.mean() < 0.01
    with pytest.raises(LearnerError, match=r"train.self_test allows 0.05 and 0.25\)"):
        pupil(bf16(make_guesser(tmp_path / "stranger", 1, family)), half).test(half.samples[0])


def test_in_bf16_a_token_here_and_there_may_be_far_off(guesser_folder: Path, family: str, tmp_path: Path) -> None:
    if family != "qwen2_5_vl":
        pytest.skip("about how it is judged; replies of the other agent are too short for that")
    half = play(bf16(guesser_folder), tmp_path)
    (first, *others) = half.longest.logprobs
    assert len(others) >= 20
    one = dataclasses.replace(half.longest, logprobs=(first - 0.3, *others))
    pupil(bf16(guesser_folder), half).test([one])
    many = dataclasses.replace(half.longest, logprobs=tuple(v - 0.3 * (i % 4 == 0) for i, v in enumerate(one.logprobs)))
    with pytest.raises(LearnerError, match=r"one in twenty by 0\.3"):
        pupil(bf16(guesser_folder), half).test([many])


def test_how_far_off_log_probabilities_may_be_is_a_setting(checkpoint: Checkpoint, played: Played) -> None:
    shifted = [dataclasses.replace(played.longest, logprobs=tuple(v - 0.05 for v in played.longest.logprobs))]
    pupil(checkpoint, played, changed(self_test=0.06)).test(shifted)
    with pytest.raises(LearnerError, match=r"off by 0.05 on average.* allows 0.04 and 0.2"):
        pupil(checkpoint, played, changed(self_test=0.04)).test(shifted)


def test_a_screen_of_one_colour_is_no_blindness(checkpoint: Checkpoint, played: Played) -> None:
    learner, name = pupil(checkpoint, played), played.longest.images[0]
    tokens = played.seen.features([played.screens[name]])[name]
    grey = dataclasses.replace(played.screens[name], hash="grey")
    learner.shown = {"grey": grey}
    learner._visual._known["grey"] = tokens[:1].expand_as(tokens)
    sample = dataclasses.replace(played.longest, images=("grey",) * len(played.longest.images))
    (values,) = learner.values([sample])
    learner.test([dataclasses.replace(sample, logprobs=tuple(values.tolist()))])


# Gradients


@pytest.mark.parametrize("normaliser", ["trajectory", "constant"])
@pytest.mark.parametrize("frozen", [True, False])
def test_the_gradient_is_that_of_the_loss_as_it_is_written(
    guesser_folder: Path, checkpoint: Checkpoint, played: Played, normaliser: str, frozen: bool
) -> None:
    algorithm = FREE.algorithm.model_copy(update={"normaliser": normaliser, "length": 40})
    config = changed(FREE, freeze_vision=frozen).model_copy(update={"algorithm": algorithm})
    batch = [*played.samples[0], *played.samples[1]]
    names = WATCHED if frozen else (*WATCHED, *TOWER[checkpoint.config.model_type])
    trajectories = 7  # one of them without a gradient
    twin = load_checkpoint(guesser_folder, "cpu")
    expected = reference_gradients(twin, played, batch, config, names=names, trajectories=trajectories)
    learner = pupil(checkpoint, played, config)
    learner.learn(steps(batch, trajectories=trajectories))
    assert_close(gradients(learner, names), expected)


def test_later_steps_of_an_update_are_clipped_around_the_policy_before_it(
    guesser_folder: Path, checkpoint: Checkpoint, played: Played
) -> None:
    """A first step on some samples, then the gradient of a second: old is before both, new between them."""
    config = changed(lr=3e-3)
    first, second = played.samples[0], played.samples[1]
    between = pupil(load_checkpoint(guesser_folder, "cpu"), played, config)
    with torch.no_grad():
        old = [plain_logprobs(between.checkpoint, sample, played.screens) for sample in second]
    between.learn(steps(first))
    expected = reference_gradients(between.checkpoint, played, second, config, old)
    learner = pupil(checkpoint, played, config)
    clipped = learner.learn(steps(first, second))["clipped"]
    assert 0.05 < clipped < 0.95  # else this would say nothing about clipping
    assert_close(gradients(learner), expected)


def test_neither_micro_batches_nor_recomputing_change_the_gradient(guesser_folder: Path, played: Played) -> None:
    batch = [sample for group in played.samples for sample in group]
    found: list[dict[str, Tensor]] = []
    for train in ({"micro_tokens": 10**6}, {"micro_tokens": 1}, {"checkpointing": True}, {"freeze_vision": False}):
        learner = pupil(load_checkpoint(guesser_folder, "cpu"), played, changed(**train))
        learner.learn(steps(batch))
        found.append(gradients(learner))
    for other in found[1:]:
        assert_close(other, found[0])


def test_nor_does_a_tower_that_is_computed_again(guesser_folder: Path, played: Played) -> None:
    found: list[dict[str, Tensor]] = []
    for recompute in (False, True):
        config = changed(freeze_vision=False, checkpointing=recompute)
        learner = pupil(load_checkpoint(guesser_folder, "cpu"), played, config)
        learner.learn(steps(played.samples[0]))
        found.append(gradients(learner, (*WATCHED, *TOWER[learner.checkpoint.config.model_type])))
    assert_close(found[1], found[0])


def test_what_an_older_policy_sampled_counts_as_far_as_the_present_one_agrees(
    guesser_folder: Path, played: Played
) -> None:
    (sample, *_) = played.samples[0]
    found: list[dict[str, Tensor]] = []
    learned: list[dict[str, float]] = []
    for version, ratio in ((2, 1.5), (1, 1.5), (0, 4.0)):
        learner = pupil(load_checkpoint(guesser_folder, "cpu"), played)
        learner.version = 2
        logprobs = tuple(value - math.log(ratio) for value in sample.logprobs)
        learned.append(learner.learn(steps([dataclasses.replace(sample, version=version, logprobs=logprobs)])))
        found.append(gradients(learner))
    for factor, other in zip((1.5, 2.0), found[1:], strict=True):
        assert_close(other, {name: factor * gradient for name, gradient in found[0].items()})
    assert [one["lag"] for one in learned] == [0, 1, 2]
    assert [one.get("lag_weight") for one in learned] == [None, pytest.approx(1.5, rel=1e-3), pytest.approx(2.0)]
    assert [one["sampler_gap"] for one in learned] == pytest.approx([math.log(v) for v in (1.5, 1.5, 4)], rel=1e-2)


def test_a_step_is_the_mean_over_the_trajectories_that_it_has(guesser_folder: Path, played: Played) -> None:
    """Not over as many as the settings would have: a machine may have failed, or the last step have fewer tasks."""
    groups = [group(1.0, 0.0, None), group(0.0, 0.0, 0.0), group(1.0)]

    class Silent(Grpo):
        def advantages(self, group: Group) -> list[Credit]:
            return [Credit()] * len(group.trajectories)

    batches = to_batches(groups, Silent(FREE.algorithm, 0), 2, image_pad=0)
    assert [batch.trajectories for batch in batches] == [5, 1]
    found = []
    for trajectories in (1, 4):
        batch = Batch((played.samples[1][0],), trajectories)
        learner = pupil(load_checkpoint(guesser_folder, "cpu"), played)
        learner.learn([batch])
        found.append(gradients(learner))
    assert_close(found[0], {name: 4 * gradient for name, gradient in found[1].items()})


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_tower_stays_as_it_is_and_another_moves(
    guesser_folder: Path, checkpoint: Checkpoint, played: Played, frozen: bool
) -> None:
    learner = pupil(checkpoint, played, changed(freeze_vision=frozen, weight_decay=0.1))
    learner._visual = Screens(learner.model.model.visual)  # its own tower looks, frozen or not
    learner.learn(steps(*played.samples))
    before = load_checkpoint(guesser_folder, "cpu").model.model.visual.state_dict()
    same = [torch.equal(before[name], weight) for name, weight in checkpoint.model.model.visual.state_dict().items()]
    assert all(same) if frozen else not any(same)
    assert all((f"model.visual.{name}" in learner.left) != frozen for name in before)


# Steps


def test_each_batch_that_holds_something_is_one_step_and_an_update_one_version(
    checkpoint: Checkpoint, played: Played
) -> None:
    learner = pupil(checkpoint, played)
    metrics = learner.learn(steps(played.samples[0], [], played.samples[1]))
    tokens = sum(len(sample.logprobs) for group in played.samples[:2] for sample in group)
    assert (metrics["optimizer_steps"], metrics["learned_tokens"]) == (2, tokens)
    assert (learner._steps, learner.version) == (2, 1)
    before = {name: weight.clone() for name, weight in learner.model.named_parameters()}
    assert learner.learn(steps([], [])) == {"optimizer_steps": 0, "learned_tokens": 0}
    assert (learner._steps, learner.version) == (2, 2)
    assert all(torch.equal(before[name], weight) for name, weight in learner.model.named_parameters())


def test_the_learning_rate_rises_over_the_first_steps(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played, changed(lr=4e-4, warmup=4))
    rates = []
    for _ in range(6):
        learner.learn(steps(played.samples[0]))
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4, 4e-4])


def test_a_gradient_is_cut_to_the_bound_on_its_norm(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played, changed(grad_clip=0.01))
    norm = learner.learn(steps(played.samples[0]))["grad_norm"]
    left = math.sqrt(sum(float((gradient**2).sum()) for gradient in learner.left.values()))
    assert norm > 0.02 and left == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("where", ["an advantage", "a weight", "the second step"])
def test_what_is_no_number_ends_the_update(checkpoint: Checkpoint, played: Played, where: str) -> None:
    learner = pupil(checkpoint, played)
    (good, *_) = played.samples[0]
    bad = dataclasses.replace(good, advantages=(math.nan,) * len(good.advantages))
    batches = {"an advantage": [[bad]], "a weight": [[good]], "the second step": [[good], [bad]]}[where]
    if where == "a weight":
        with torch.no_grad():
            learner.model.get_parameter("model.language_model.layers.1.mlp.up_proj.weight")[3, 4] = math.nan
    with pytest.raises(NotFinite, match="after 0 updates: the loss is nan") as stopped:
        learner.learn(steps(*batches))
    assert stopped.value.batch == steps(batches[-1])[0] and len(stopped.value.old) == len(batches) - 1
    assert (learner.version, learner._steps, learner._midway) == (0, len(batches) - 1, len(batches) > 1)
    if where != "a weight":
        assert all(weight.isfinite().all() for weight in learner.parameters)


def test_a_gradient_that_is_no_number_changes_nothing(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played)
    learner.parameters[3].register_hook(lambda gradient: gradient * math.inf)
    before = {name: weight.clone() for name, weight in learner.model.named_parameters()}
    with pytest.raises(NotFinite, match="after 0 updates: the gradient is not finite"):
        learner.learn(steps(played.samples[0]))
    assert (learner._steps, learner._midway, learner.optimizer.state_dict()["state"]) == (0, False, {})
    assert all(torch.equal(before[name], weight) for name, weight in learner.model.named_parameters())


# The record


def test_the_record_has_every_token_as_its_step_saw_it(
    guesser_folder: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """Old screenshots are dropped, so that trajectories are several samples; two steps, parts of any length."""
    config = changed(lr=3e-3, micro_tokens=900)
    played = play(checkpoint, tmp_path, config, screenshots=1)
    replayed = [dataclasses.replace(sample, replayed_from="earlier") for sample in played.samples[1]]
    first, second = [*played.samples[0], *replayed], [*played.samples[2], *played.samples[3]]
    assert len(first) > len({sample.trajectory_id for sample in first})
    before, between = (pupil(load_checkpoint(guesser_folder, "cpu"), played, config) for _ in range(2))
    between.learn(steps(first))
    learner = pupil(checkpoint, played, config)
    learned = learner.learn(steps(first, [], second))
    order = list(dict.fromkeys(sample.trajectory_id for sample in (*first, *second)))
    assert [one.trajectory_id for one in learner.learned.record] == order
    for one in learner.learned.record:
        samples = [sample for sample in (*first, *second) if sample.trajectory_id == one.trajectory_id]
        assert one.replayed_from == samples[0].replayed_from
        assert one.advantages.tolist() == pytest.approx([v for sample in samples for v in sample.advantages])
        assert one.sampler.tolist() == pytest.approx([v for sample in samples for v in sample.logprobs])
        for values, policy in ((one.old, before), (one.new, before if samples[0] in first else between)):
            assert torch.allclose(torch.from_numpy(values), torch.cat(policy.values(samples)), atol=1e-4)
    clipped = np.concatenate([one.clipped for one in learner.learned.record])
    assert 0 < clipped.mean() == pytest.approx(learned["clipped"])


# LoRA


def low_rank(**train: Any) -> Config:
    return changed(lora_rank=2, lr=3e-3, **train)


@pytest.mark.parametrize("frozen", [True, False])
def test_adapters_begin_as_nothing_learn_and_leave_all_weights_as_they_are(
    guesser_folder: Path, checkpoint: Checkpoint, played: Played, frozen: bool, tmp_path: Path
) -> None:
    samples = [sample for group in played.samples for sample in group]
    bare = pupil(load_checkpoint(guesser_folder, "cpu"), played, changed(freeze_vision=frozen))
    learner = pupil(checkpoint, played, low_rank(freeze_vision=frozen))
    before = torch.cat(bare.values(samples))
    assert torch.equal(torch.cat(learner.values(samples)), before)
    learner.test(played.samples[0])
    learner.learn(steps(*played.samples))
    after = torch.cat(learner.values(samples))
    assert (after - before).abs().max() > 0.01
    published = load_model(learner.publish(tmp_path).path(), "cpu")
    merged = pupil(dataclasses.replace(bare.checkpoint, model=published), played, changed(freeze_vision=frozen))
    assert torch.allclose(torch.cat(merged.values(samples)), after, atol=1e-4)
    weights = bare.model.state_dict()
    same = {name: torch.equal(weight, weights[name]) for name, weight in published.state_dict().items()}
    moved = {name for name, equal in same.items() if not equal}
    linear = {f"{name}.weight" for name, one in bare.model.named_modules() if isinstance(one, torch.nn.Linear)}
    linear -= {"lm_head.weight"}
    assert moved == {name for name in linear if not (frozen and ".visual." in name)}
    for name, weight in learner.model.named_parameters():
        if ".lora_" not in name:
            assert torch.equal(weight, weights[name.replace(".base_layer.", ".")]), name


def test_adapters_learn_what_the_merged_weights_would_have_to(
    guesser_folder: Path, checkpoint: Checkpoint, played: Played
) -> None:
    """The gradient of A and B is that of the weight they are added to: dB = 2 dW Aᵀ."""
    name = "model.language_model.layers.1.self_attn.q_proj"
    bare = pupil(load_checkpoint(guesser_folder, "cpu"), played)
    bare.learn(steps(played.samples[0]))
    learner = pupil(checkpoint, played, low_rank())
    a = learner.model.get_parameter(f"{name}.lora_A").clone()
    learner.learn(steps(played.samples[0]))
    whole, b = bare.left[f"{name}.weight"], f"{name}.lora_B"
    assert_close(gradients(learner, [b]), {b: 2 * whole @ a.T})


def test_adapters_of_peft_are_read_and_written_under_the_same_names(checkpoint: Checkpoint, played: Played) -> None:
    learner = pupil(checkpoint, played, low_rank())
    kept = {name: torch.randn_like(weight) for name, weight in lora.adapters(learner.model).items()}
    names = {f"model.language_model.layers.0.mlp.up_proj.lora_{matrix}.default.weight" for matrix in "AB"}
    assert names < kept.keys()
    lora.restore(learner.model, kept)
    assert all(torch.equal(weight, kept[name]) for name, weight in lora.adapters(learner.model).items())
    with pytest.raises(AssertionError, match="adapters of another model"):
        lora.restore(learner.model, {name: weight for name, weight in kept.items() if name not in names})


def test_adapters_beside_weights_in_bf16_learn_what_they_would_in_fp32(guesser_folder: Path, tmp_path: Path) -> None:
    """They are fp32 themselves, and only what is computed is rounded; the weights get no gradient."""
    half = play(bf16(guesser_folder), tmp_path)
    rounded = bf16(guesser_folder)
    rounded.model.float()
    found = []
    for one in (bf16(guesser_folder), rounded):
        learner = pupil(one, half, low_rank())
        lora.restore(learner.model, _some_adapters(learner))
        learner.learn(steps(half.samples[0]))
        assert {weight.dtype for weight in learner.parameters} == {torch.float32}
        assert learner.left.keys() == {name for name, _ in learner.model.named_parameters() if ".lora_" in name}
        found.append(torch.cat([gradient.flatten() for gradient in learner.left.values()]))
    assert torch.nn.functional.cosine_similarity(found[0], found[1], dim=0) > 0.99
    assert float(found[0].norm()) == pytest.approx(float(found[1].norm()), rel=0.05)


def _some_adapters(learner: LocalLearner) -> dict[str, Tensor]:
    """That add something, and are the same for each learner."""
    random = torch.Generator().manual_seed(0)
    kept = lora.adapters(learner.model)
    return {name: 0.05 * torch.randn(weight.shape, generator=random) for name, weight in kept.items()}


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_what_went_well_becomes_likelier_and_what_went_badly_less_likely(
    checkpoint: Checkpoint, played: Played, advantage: float
) -> None:
    learner = pupil(checkpoint, played, changed(lr=1e-4, grad_clip=1.0))
    sample = dataclasses.replace(played.longest, advantages=(advantage,) * len(played.longest.advantages))
    likelihoods = [float(learner.values([sample])[0].sum())]
    for _ in range(4):
        learner.learn(steps([sample]))
        likelihoods.append(float(learner.values([sample])[0].sum()))
    rises = [advantage * (after - before) for before, after in itertools.pairwise(likelihoods)]
    assert min(rises) > 0


def test_the_next_parts_screenshots_are_decoded_meanwhile_and_once(
    checkpoint: Checkpoint, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = pupil(checkpoint, played, changed(freeze_vision=False, micro_tokens=1))
    decoded: list[str] = []
    real = screens._pixels

    def counting(one: Observation, sight: Any) -> Any:
        decoded.append(one.hash)
        return real(one, sight)

    monkeypatch.setattr(screens, "_pixels", counting)
    monkeypatch.setattr(screens, "large", lambda one: True)  # as if all were of a large screen
    begun, needed = 0, 0
    for part in learner._parts(played.samples[0], played.screens):
        needed += len(set(part.images))
        for _ in range(500):  # threads have decoded what was asked of them
            if all(one.done() for one in learner._visual._decoding.values()):
                break
            time.sleep(0.01)
        begun += bool(decoded)
        learner._shown(part, altered=False)
    assert begun > 0 and len(decoded) == needed
