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
EXACT, DRAWS = 16, 100_000  # of the permutation test
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
    pairs = paired(base, trained)
    return None if pairs is None else difference(pairs[1], pairs[0])


def paired(base: Evaluation, trained: Evaluation) -> tuple[Rates, Rates] | None:
    """Both agents' rates of the tasks that have a score in both, a row each; of a single one those of its trials."""
    before, after = base.scores(), trained.scores()
    common = [task for task in before if before[task] and after.get(task)]
    if not common:
        return None
    one, other = ([fmean(scores[task].values()) for task in common] for scores in (before, after))
    if len(common) == 1 and (trials := sorted(before[common[0]].keys() & after[common[0]].keys())):
        one, other = ([scores[common[0]][trial] for trial in trials] for scores in (before, after))
    return np.array([one]), np.array([other])


@dataclass(frozen=True, slots=True)
class Permuted:
    """How often a difference at least as large comes about where two agents are alike: the p-value."""

    p_value: float
    exact: bool  # every way was looked at, not a sample of them


def permutation_test(one: Rates, other: Rates) -> Permuted:
    """A paired test of the mean difference, by which agent's name stands at each task: alike ones could change places.

    So each difference could as well have the other sign. Two-sided. Of up to EXACT tasks that differ all signs are
    gone through, of more DRAWS random ones, always the same, and the one that was seen.
    """
    differences = (one - other).ravel()
    differences = differences[np.abs(differences) > EQUAL]  # where there is none the sign says nothing
    n, seen = len(differences), abs(differences.sum()) - EQUAL
    if n <= EXACT:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return Permuted(float(np.mean(np.abs(signs @ differences) >= seen)), True)
    rng, reached = np.random.default_rng(0), 0
    for _ in range(DRAWS // 1000):  # in parts: memory
        signs = rng.choice([-1.0, 1.0], (1000, n))
        reached += int((np.abs(signs @ differences) >= seen).sum())
    return Permuted((reached + 1) / (DRAWS + 1), False)


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
