"""Agents and methods against each other: means with intervals, and differences on the same seeds and tasks.

Two methods are compared seed by seed and task by task: what makes a seed lucky or a task hard falls out of the
difference. Intervals come from a bootstrap over seeds and over tasks, with its width corrected to the unbiased variance
and its tails to Student's. Why, and how often they hold the truth: docs/statistics.md.
"""

import math
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from arpo.evaluation.run import Evaluation
from arpo.evaluation.statistics import Interval, Z, student, wilson

RESAMPLES = 4000
EQUAL = 1e-9  # values that are no further apart are the same, but for rounding

Rates = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    ci95: Interval


def estimate(rates: Rates, least: float = 0.0) -> Estimate:
    """The mean of seeds x tasks of values from `least` to 1."""
    mean = float(rates.mean())
    if rates.size == 1:  # of how seeds or tasks vary, it says nothing
        return Estimate(mean, (least, 1.0))
    if np.ptp(rates) < EQUAL:  # no bootstrap sees that the next task may be another
        _, unseen = wilson(0.0, rates.shape[1])
        return Estimate(mean, (mean - unseen * (mean - least), mean + unseen * (1.0 - mean)))
    means = resampled(rates)
    std, degrees = _standard_error(rates)
    half, plain_std = student(degrees) * std, float(means.std())
    width = half / Z / plain_std if plain_std > EQUAL else 1.0  # else nothing varies
    low, high = mean + (np.quantile(means, [0.025, 0.975]) - mean) * width
    # One success among many failures: no mean lies below 0, and a quantile of 0 moved to the mean would seem above it.
    low, high = np.clip([min(low, mean - half), max(high, mean + half)], least, 1.0)
    return Estimate(mean, (float(low), float(high)))


def difference(one: Rates, other: Rates) -> Estimate:
    """Of the same seeds x tasks under two methods: how much more `one` has."""
    if one.shape != other.shape:
        raise ValueError(f"{one.shape} and {other.shape}: not the same seeds and tasks")
    return estimate(one - other, least=-1.0)


def gain(base: Evaluation, trained: Evaluation) -> Estimate | None:
    """How much more the trained agent has of the same tasks and screens; None where no task has a score in both.

    A task that a machine never let finish, before or after, says nothing of what was learned and is left out. Of one
    task alone the trials are compared, as in `statistics.success`.
    """
    before, after = base.scores(), trained.scores()
    common = [task for task in before if before[task] and after.get(task)]
    if not common:
        return None
    one, other = ([fmean(scores[task].values()) for task in common] for scores in (after, before))
    if len(common) == 1 and (trials := sorted(before[common[0]].keys() & after[common[0]].keys())):
        one, other = ([scores[common[0]][trial] for trial in trials] for scores in (after, before))
    return difference(np.array([one]), np.array([other]))


def resampled(rates: Rates) -> Rates:
    """Means of as many seeds and as many tasks, both drawn with replacement; always the same ones."""
    rng = np.random.default_rng(0)
    seeds, tasks = (rng.multinomial(n, [1 / n] * n, RESAMPLES) for n in rates.shape)  # how often each was drawn
    means: Rates = ((seeds @ rates) * tasks).sum(axis=1) / rates.size
    return means


def _standard_error(rates: Rates) -> tuple[float, int]:
    """The standard error of the mean, and its degrees of freedom."""
    means = [rates.mean(axis=1), rates.mean(axis=0)]
    parts = [float(part.var(ddof=1)) / len(part) if len(part) > 1 else 0.0 for part in means]
    residuals = rates - rates.mean(axis=0) - rates.mean(axis=1, keepdims=True) + rates.mean()
    free = max(1, math.prod(n - 1 for n in rates.shape))
    noise = float((residuals**2).sum()) / free / rates.size
    both = sum(part**2 / max(1, n - 1) for part, n in zip(parts, rates.shape, strict=True))
    variance = max(sum(parts) - noise, *parts)
    if variance < EQUAL**2:  # what one seed gained another lost, task by task: their luck is all that is known
        return math.sqrt(noise), free
    return math.sqrt(variance), int(sum(parts) ** 2 / both) if both else 1
