"""From groups of trajectories to training sequences: what was sampled is what is trained, token for token.

With full history a trajectory is one Sample. Where old screenshots were dropped on the way, there is one for each run
of steps whose contexts extend each other; every sampled token is in exactly one of them.
"""

import math
from collections.abc import Iterator, Sequence

from arpo.agent.dialects.base import flatten
from arpo.algorithms.base import Algorithm, Credit
from arpo.training.base import Batch, LearnerError
from arpo.types import Group, Sample, Step, Trajectory


def to_batches(groups: Sequence[Group], algorithm: Algorithm, n: int, image_pad: int) -> list[Batch]:
    """The optimiser steps of an update: n groups each, the rest in the last one."""
    samples = [to_samples(group, algorithm.advantages(group), image_pad) for group in groups]
    if len({bool(sample.returns) for of_group in samples for sample in of_group}) > 1:
        raise LearnerError("the algorithm gave returns to some of the learned episodes and none to others")
    return [
        Batch(
            tuple(sample for of_group in samples[i : i + n] for sample in of_group),
            sum(trajectory.outcome.valid for group in groups[i : i + n] for trajectory in group.trajectories),
        )
        for i in range(0, len(groups), n)
    ]


def to_samples(group: Group, credits: Sequence[Credit], image_pad: int) -> list[Sample]:
    """The samples of a group. What has no gradient is left out: no advantages, or no sampled token."""
    return [
        sample
        for trajectory, credit in _matched(group, credits)
        if len(credit.advantages)
        for sample in _samples(trajectory, credit, image_pad)
        if sample.logprobs
    ]


def _matched(group: Group, credits: Sequence[Credit]) -> Iterator[tuple[Trajectory, Credit]]:
    """Each with its own. LearnerError where an algorithm from outside gave something else: nothing is cut silently."""
    if len(credits) != len(group.trajectories):
        wanted = len(group.trajectories)
        raise LearnerError(f"{group.task_id}: the algorithm gave {len(credits)} credits to {wanted} episodes")
    for trajectory, credit in zip(group.trajectories, credits, strict=True):
        n = sum(len(step.completion.tokens) for step in trajectory.steps)
        for what, values in (("advantages", credit.advantages), ("returns", credit.returns)):
            if len(values) not in (0, n):
                raise LearnerError(f"{trajectory.id}: the algorithm gave {len(values)} {what} to {n} tokens")
            if not all(map(math.isfinite, values)):
                raise LearnerError(f"{trajectory.id}: the algorithm gave {what} that are not finite")
        yield trajectory, credit


def _samples(trajectory: Trajectory, credit: Credit, image_pad: int) -> Iterator[Sample]:
    replies = [step.completion.tokens for step in trajectory.steps]
    begin = 0  # the index of this run's first token among all that were sampled
    for first, last in runs_of(trajectory.steps):
        steps = trajectory.steps[first : last + 1]
        context = (*steps[-1].context, steps[-1].context[-1] + 1)  # and its own reply, which follows what it saw
        flat = flatten(trajectory.segments, replies, context, image_pad, first_step=first)
        logprobs = tuple(value for step in steps for value in step.completion.logprobs)
        end = begin + len(logprobs)
        yield Sample(
            trajectory_id=trajectory.id,
            ids=flat.ids,
            images=flat.images,
            sampled=flat.sampled,
            logprobs=logprobs,
            advantages=tuple(credit.advantages[begin:end]),
            version=min(step.completion.version for step in steps),
            replayed_from=trajectory.provenance.replayed_from,
            returns=tuple(credit.returns[begin:end]),
            task_id=trajectory.task_id,
            turns=tuple(
                (number, step.completion.version, len(step.completion.tokens))
                for number, step in enumerate(steps, start=first + 1)
            ),
            offline=trajectory.provenance.source == "offline",
        )
        begin = end


def runs_of(steps: tuple[Step, ...]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of steps in which every context begins with the one before it and its reply."""
    first = 0
    for i in range(1, len(steps) + 1):
        before = (*steps[i - 1].context, steps[i - 1].context[-1] + 1)
        if i == len(steps) or steps[i].context[: len(before)] != before:
            yield first, i - 1
            first = i
