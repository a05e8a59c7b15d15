"""Methods against each other: means with intervals, and differences on the same seeds and tasks.

    rates = table_of([{"press-1": 0.5, …}, …])      seeds x tasks: the success of each trained agent on each task
    difference(rates, others).ci95                  does the method help?

Runs with the same seed began alike and were judged on the same screens, so two methods are compared seed by seed and
task by task: what makes a seed lucky or a task hard falls out of the difference.

Intervals are of a bootstrap over seeds and over tasks: what is meant is the mean over seeds and tasks *like these*.
Left as it is, such a bootstrap is too narrow where seeds differ much (five of them show little of how they vary) and
too wide where they do not (it counts the luck of single trials three times). So its quantiles are moved, from the mean,
by the factor that makes its spread the unbiased one and its tails Student's. With the means of rows and columns, and
the residuals that these leave, over S seeds and T tasks:

    variance = s²(rows) / S + s²(columns) / T - s²(residuals) / (S T)       degrees of freedom: Satterthwaite's

How often the interval holds the truth, and its width in points, in 600 simulations of a difference of trials:

    S, T, trials   seeds differ by       this one        plain bootstrap
    5, 48, 4          10 points         93 %   24          90 %   18
    5, 48, 4           3 points         96 %   10          99 %   11
    5, 32, 1           3 points         96 %   20          99 %   25
    3, 48, 4          10 points         90 %   43          86 %   21

That was before each side was made at least as long as Student's, which widens intervals of rare successes.

Where all values are equal to some d, nothing varies and a bootstrap says (d, d), which nobody should believe: the next
task may be another. Of tasks like these, a share of up to u = z² / (T + z²) can be of another kind with none of them
among T (Wilson's bound for none of T), and those may have any value from the least possible to the greatest:

    d - u (d - least)   to   d + u (greatest - d)

For successes that are all 0 or all 1 this is Wilson's interval. Where 1, 3 or 10 % of the tasks like these change by 1
and the others not at all, differences on 32 of them hold the truth in 100, 100 and 91 % of 2,000 simulations. With
(0, 0) where no change is seen it would be 28, 63 and 87 %. (A test repeats it in 400.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from arpo.evaluation.run import Evaluation
from arpo.evaluation.statistics import Interval, Z, student, wilson

DRAWS = 4000
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
    draws = resampled(rates)
    spread, degrees = _spread(rates)
    found = float(draws.std())
    half = student(degrees) * spread
    width = half / Z / found if found > EQUAL else 1.0  # else nothing varies
    low, high = mean + (np.quantile(draws, [0.025, 0.975]) - mean) * width
    # One success among many failures: no draw lies below 0, and a quantile of 0 moved to the mean would seem above it.
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
    """Means of as many seeds and as many tasks, both drawn with replacement; always the same draws."""
    rng = np.random.default_rng(0)
    seeds, tasks = (rng.multinomial(n, [1 / n] * n, DRAWS) for n in rates.shape)  # how often each was drawn
    means: Rates = ((seeds @ rates) * tasks).sum(axis=1) / rates.size
    return means


def _spread(rates: Rates) -> tuple[float, int]:
    """The standard error of the mean, and its degrees of freedom."""
    parts = [_variance(rates.mean(axis=1 - axis)) / n for axis, n in enumerate(rates.shape)]
    residuals = rates - rates.mean(axis=0) - rates.mean(axis=1, keepdims=True) + rates.mean()
    noise = float((residuals**2).sum()) / max(1, math.prod(n - 1 for n in rates.shape)) / rates.size
    both = sum(part**2 / max(1, n - 1) for part, n in zip(parts, rates.shape, strict=True))
    variance = max(sum(parts) - noise, *parts)
    if variance < EQUAL**2:  # what one seed gained another lost, task by task: their luck is all that is known
        return math.sqrt(noise), max(1, math.prod(n - 1 for n in rates.shape))
    return math.sqrt(variance), int(sum(parts) ** 2 / both) if both else 1


def _variance(means: Rates) -> float:
    return float(means.var(ddof=1)) if len(means) > 1 else 0.0


def changed(base: Rates, trained: Rates) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which tasks were lost and which gained. All seeds count together: one trial of a task says little.

    Lost: the base agent solves it at least half of the time, the trained ones less often. Gained: the reverse.
    """
    before, after = base.mean(axis=0) >= 0.5, trained.mean(axis=0) >= 0.5
    return before & ~after, after & ~before


def table_of(results: Sequence[Mapping[str, float]]) -> Rates:
    """Seeds x tasks, the tasks in the order of their names. ValueError where they are not the same in all."""
    names = sorted(results[0])
    if any(sorted(result) != names for result in results):
        raise ValueError("runs that were judged on different tasks cannot be compared")
    return np.array([[result[name] for name in names] for result in results])
