"""From groups of trajectories to training sequences: what was sampled is what is trained, token for token.

With full history a trajectory is one Sample. Where old screenshots were dropped on the way, there is one for each run
of steps whose contexts extend each other; every sampled token is in exactly one of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from arpo.agent.dialects import flatten
from arpo.types import Group, Sample, Step, Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """What one optimiser step learns."""

    samples: tuple[Sample, ...]
    trajectories: int  # over which its mean goes: all that are valid, also those without a gradient


def to_batches(groups: Sequence[Group], samples: Sequence[Sequence[Sample]], n: int) -> list[Batch]:
    """n groups a batch, and what is left in the last one; `samples`: those of each group."""
    return [
        Batch(
            tuple(chain(*samples[i : i + n])),
            sum(trajectory.outcome.valid for group in groups[i : i + n] for trajectory in group.trajectories),
        )
        for i in range(0, len(groups), n)
    ]


def to_samples(group: Group, advantages: list[float], image_pad: int) -> list[Sample]:
    """The samples of a group. What has no gradient is left out: an advantage of 0, replies without a token."""
    return [
        sample
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
        if advantage != 0.0
        for sample in _samples(trajectory, advantage, image_pad)
        if sample.logprobs
    ]


def _samples(trajectory: Trajectory, advantage: float, image_pad: int) -> Iterator[Sample]:
    replies = [step.completion.tokens for step in trajectory.steps]
    for first, last in _runs(trajectory.steps):
        steps = trajectory.steps[first : last + 1]
        context = (*steps[-1].context, steps[-1].context[-1] + 1)  # its own reply follows the last segment it saw
        flat = flatten(trajectory.segments, replies, context, image_pad, first_step=first)
        logprobs = tuple(value for step in steps for value in step.completion.logprobs)
        yield Sample(
            trajectory_id=trajectory.id,
            ids=flat.ids,
            images=flat.images,
            sampled=flat.sampled,
            logprobs=logprobs,
            advantages=(advantage,) * len(logprobs),
            version=min(step.completion.version for step in steps),
            replayed_from=trajectory.provenance.replayed_from,
        )


def _runs(steps: tuple[Step, ...]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of steps in which every context begins with the one before it and its reply."""
    first = 0
    for i in range(1, len(steps) + 1):
        before = (*steps[i - 1].context, steps[i - 1].context[-1] + 1)
        if i == len(steps) or steps[i].context[: len(before)] != before:
            yield first, i - 1
            first = i
