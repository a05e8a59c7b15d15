"""Samples: every sampled token is trained once, after exactly the context that it was sampled from."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent.actions import Wait
from arpo.agent.dialects.base import flatten
from arpo.agent.dialects.uitars import UITars
from arpo.algorithms.base import Credit
from arpo.algorithms.grpo import for_every_token
from arpo.engines.scripted import byte_vocabulary
from arpo.training.base import LearnerError
from arpo.training.samples import to_samples
from arpo.types import Completion, Group, Observation, Outcome, Provenance, Sample, Step, Trajectory

VOCABULARY = byte_vocabulary()
FULL = UITars(VOCABULARY)
PAD, STOP = FULL.image_pad, FULL.stop


def completion(step: int, length: int, version: int = 0, finish: str = "stop") -> Completion:
    """A reply whose tokens and log-probabilities occur nowhere else, but for the end token."""
    tokens = [1000 * (step + 1) + place for place in range(length)]
    if finish == "stop":
        tokens[-1] = STOP
    logprobs = tuple(-step - place / 1000 for place in range(length))
    return Completion(tuple(tokens), logprobs, "", version, 1.0, 1.0, "stop" if finish == "stop" else "length")


def play(
    dialect: UITars, completions: list[Completion], name: str = "a", replayed_from: str | None = None
) -> Trajectory:
    """The episode of these replies, its contexts and segments made by the dialect's own Conversation."""
    conversation = dialect.start("Rename it.")
    steps = []
    for number, reply in enumerate(completions):
        context = conversation.observe(Observation(b"", 448, 280, f"screen-{number}"))
        conversation.reply(reply.tokens)
        steps.append(Step(context, reply, Wait(), None, "", f"screen-{number + 1}", 0.0, 0.0))
    return Trajectory(
        id=name,
        task_id="t",
        attempt=0,
        env_seed=7,
        start="screen-0",
        segments=tuple(conversation.segments),
        steps=tuple(steps),
        outcome=Outcome.STEP_LIMIT,
        score=0.0,
        reward=0.0,
        provenance=Provenance("replay" if replayed_from else "rollout", "r", 0, replayed_from),
    )


def samples_of(trajectory: Trajectory, advantage: float = 0.5) -> list[Sample]:
    return to_samples(group := Group("t", (trajectory,)), for_every_token(group, [advantage]), PAD)


def trained(sample: Sample) -> list[int]:
    return [token for token, own in zip(sample.ids, sample.sampled, strict=True) if own]


def seen(trajectory: Trajectory, step: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """What the engine was shown in a step, as the episode makes it: ids and screenshots."""
    replies = [one.completion.tokens for one in trajectory.steps[:step]]
    flat = flatten(trajectory.segments, replies, trajectory.steps[step].context, PAD)
    return flat.ids, flat.images


lengths = st.lists(st.integers(1, 4), min_size=1, max_size=12)


# Full history


@given(lengths)
def test_with_full_history_a_trajectory_is_one_sample(lengths: list[int]) -> None:
    trajectory = play(FULL, [completion(step, length) for step, length in enumerate(lengths)])
    (sample,) = samples_of(trajectory)
    replies = [step.completion for step in trajectory.steps]
    assert trained(sample) == [token for reply in replies for token in reply.tokens]
    assert sample.logprobs == tuple(value for reply in replies for value in reply.logprobs)
    assert sample.advantages == (0.5,) * sum(lengths)
    assert sample.trajectory_id == "a"
    last = len(lengths) - 1
    assert sample.ids == (*seen(trajectory, last)[0], *replies[last].tokens)
    assert sample.images == tuple(f"screen-{number}" for number in range(len(lengths)))


def test_a_sample_ends_with_its_last_reply() -> None:
    """What came after it, a screenshot that nobody answered, teaches nothing."""
    conversation = FULL.start("Rename it.")
    context = conversation.observe(Observation(b"", 448, 280, "screen-0"))
    conversation.reply((1000, STOP))
    conversation.observe(Observation(b"", 448, 280, "screen-1"))
    played = play(FULL, [completion(0, 2)])
    (sample,) = samples_of(dataclasses.replace(played, segments=tuple(conversation.segments)))
    assert played.steps[0].context == context
    assert sample.ids[-2:] == (1000, STOP)
    assert sample.images == ("screen-0",)


def test_a_reply_that_was_cut_off_is_trained_too() -> None:
    trajectory = play(FULL, [completion(0, 2), completion(1, 3, finish="length")])
    (sample,) = samples_of(trajectory)
    assert trained(sample) == [1000, STOP, 2000, 2001, 2002]


# The last screenshots only


@given(lengths, st.integers(1, 4), st.data())
def test_each_token_is_trained_once_and_after_what_it_was_sampled_from(
    lengths: list[int], screenshots: int, data: st.DataObject
) -> None:
    dialect = UITars(VOCABULARY, screenshots=screenshots, block=data.draw(st.integers(1, screenshots)))
    trajectory = play(dialect, [completion(step, length) for step, length in enumerate(lengths)])
    step = 0
    for sample in samples_of(trajectory):
        place, done = 0, 0
        while place < len(sample.ids):
            if not sample.sampled[place]:
                place += 1
                continue
            reply = trajectory.steps[step].completion
            end = place + len(reply.tokens)
            ids, images = seen(trajectory, step)
            assert sample.ids[:place] == ids
            assert sample.images[: len(images)] == images
            assert sample.ids[place:end] == reply.tokens
            assert all(sample.sampled[place:end])
            assert sample.logprobs[done : done + len(reply.tokens)] == reply.logprobs
            place, done, step = end, done + len(reply.tokens), step + 1
        assert done == len(sample.logprobs)
        assert sample.ids.count(PAD) == len(sample.images)
    assert step == len(lengths)


@pytest.mark.parametrize(
    ("screenshots", "block", "expected"),
    [
        (1, 1, [[0], [1], [2], [3], [4], [5]]),
        (2, 1, [[0, 1], [2], [3], [4], [5]]),
        (2, 2, [[0, 1], [2, 3], [4, 5]]),
        (4, 3, [[0, 1, 2, 3], [4, 5]]),
        (6, 1, [[0, 1, 2, 3, 4, 5]]),
    ],
)
def test_there_are_as_many_samples_as_prefixes(screenshots: int, block: int, expected: list[list[int]]) -> None:
    dialect = UITars(VOCABULARY, screenshots=screenshots, block=block)
    samples = samples_of(play(dialect, [completion(step, 1, finish="stop") for step in range(6)]))
    steps = [sorted({round(-value) for value in sample.logprobs}) for sample in samples]
    assert steps == expected
    assert {sample.trajectory_id for sample in samples} == {"a"}


def test_earlier_replies_are_shown_again_but_not_trained_again() -> None:
    trajectory = play(UITars(VOCABULARY, screenshots=1), [completion(step, 2) for step in range(3)])
    first, second, third = samples_of(trajectory)
    assert [trained(one) for one in (first, second, third)] == [[1000, STOP], [2000, STOP], [3000, STOP]]
    assert 1000 in second.ids and 1000 in third.ids and 2000 in third.ids
    assert third.images == ("screen-2",)


# Which trajectories


def test_a_group_is_its_members_in_order_without_those_that_have_no_advantage() -> None:
    members = tuple(play(FULL, [completion(0, 2), completion(1, 3)], name) for name in "abc")
    found = to_samples(Group("t", members), for_every_token(Group("t", members), [2.65, 0.0, -0.38]), PAD)
    assert [(sample.trajectory_id, set(sample.advantages)) for sample in found] == [("a", {2.65}), ("c", {-0.38})]
    assert to_samples(Group("t", members), for_every_token(Group("t", members), [0.0, 0.0, 0.0]), PAD) == []


def test_every_member_needs_an_advantage() -> None:
    with pytest.raises(LearnerError, match=r"^t: the algorithm gave 2 credits to 1 episodes$"):
        to_samples(Group("t", (play(FULL, [completion(0, 2)]),)), [Credit([1.0, 1.0])] * 2, PAD)


@pytest.mark.parametrize("origin", [None, "u3-a"])
def test_all_samples_of_a_replayed_trajectory_say_where_it_comes_from(origin: str | None) -> None:
    replies = [completion(step, 2) for step in range(3)]
    for dialect, n in ((FULL, 1), (UITars(VOCABULARY, screenshots=1), 3)):
        found = samples_of(play(dialect, replies, replayed_from=origin))
        assert [(sample.replayed_from, sample.replayed) for sample in found] == [(origin, origin is not None)] * n


def test_an_episode_without_a_sampled_token_has_no_sample() -> None:
    assert samples_of(play(FULL, [])) == []
    assert samples_of(play(FULL, [completion(0, 0, finish="length")])) == []
    (sample,) = samples_of(play(FULL, [completion(0, 2), completion(1, 0, finish="length")]))
    assert trained(sample) == [1000, STOP]


# Versions


def test_a_sample_is_as_old_as_its_oldest_token() -> None:
    replies = [completion(step, 2, version) for step, version in enumerate([5, 3, 4, 6])]
    (whole,) = samples_of(play(FULL, replies))
    assert whole.version == 3
    parts = samples_of(play(UITars(VOCABULARY, screenshots=2, block=2), replies))
    assert [part.version for part in parts] == [3, 4]


def test_each_token_has_the_advantage_and_the_return_that_its_algorithm_gave_it() -> None:
    """Old screenshots are dropped, so that the trajectory is several samples."""
    lengths = [2, 3, 1, 2]
    trajectory = play(UITars(VOCABULARY, screenshots=2), [completion(step, n) for step, n in enumerate(lengths)])
    advantages, returns = [float(i) for i in range(8)], [float(-i) for i in range(8)]
    samples = to_samples(Group("t", (trajectory,)), [Credit(advantages, returns)], PAD)
    assert len(samples) > 1
    assert [value for sample in samples for value in sample.advantages] == advantages
    assert [value for sample in samples for value in sample.returns] == returns
    with pytest.raises(LearnerError, match=r"the algorithm gave 7 advantages to 8 tokens$"):
        to_samples(Group("t", (play(FULL, [completion(0, 8)]),)), [Credit(advantages[:7])], PAD)
