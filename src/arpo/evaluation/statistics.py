"""Success rates with 95 % intervals. The task is the unit, not the trial: the trials of a task resemble each other.

Overall success is the mean of the tasks' rates. Its interval is Wilson's for as many independent trials as the variance
between tasks is worth: with T tasks, their mean p and the sample variance s² of their rates,

    n = p (1 - p) / (s² / T)      and no more than there were trials

and Student's quantile for T - 1 degrees of freedom. Why, and how often it holds the truth: docs/statistics.md.
"""

import math
import statistics
from collections.abc import Sequence

Interval = tuple[float, float]

Z = statistics.NormalDist().inv_cdf(0.975)


def wilson(rate: float, n: float, quantile: float = Z) -> Interval:
    """Wilson's interval for a rate seen in n independent trials."""
    shrink = 1 + quantile**2 / n
    middle = (rate + quantile**2 / (2 * n)) / shrink
    half = quantile / shrink * math.sqrt(rate * (1 - rate) / n + quantile**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def success(scores_by_task: Sequence[Sequence[float]]) -> tuple[float, Interval]:
    """The mean over tasks of their mean scores, and its interval. Each task has at least one score from 0 to 1."""
    rates = [statistics.fmean(scores) for scores in scores_by_task]
    return _mean_of_tasks(rates, sum(len(scores) for scores in scores_by_task))


def pass_at(successes_by_task: Sequence[Sequence[bool]], k: int) -> tuple[float, Interval]:
    """The mean over tasks of the chance that one of k tries succeeds, and its interval. Each task has k tries or more.

    With c successes in n tries it is 1 - C(n - c, k) / C(n, k): the share of all ways to draw k of them that holds a
    success. It has no bias, which 1 - (1 - c/n)^k has. The interval is that of `success`, n tries being worth n / k.
    """
    counted = [(len(tries), sum(tries)) for tries in successes_by_task]
    rates = [1.0 - math.comb(n - c, k) / math.comb(n, k) for n, c in counted]
    return _mean_of_tasks(rates, sum(n for n, _ in counted) / k)


def _mean_of_tasks(rates: Sequence[float], n_trials: float) -> tuple[float, Interval]:
    rate, n_tasks = statistics.fmean(rates), len(rates)
    if n_tasks == 1:
        return rate, wilson(rate, n_trials)
    if n_tasks == n_trials or rate in (0.0, 1.0):  # there is no variance to be estimated
        return rate, wilson(rate, n_tasks)
    variance = statistics.variance(rates) / n_tasks
    worth = n_trials if variance == 0.0 else min(n_trials, rate * (1 - rate) / variance)
    return rate, wilson(rate, worth, student(n_tasks - 1))


def student(degrees: int) -> float:
    """Student's 97.5 % quantile: exact for 1 and 2 degrees of freedom, else by Hill's expansion (within 0.2 %)."""
    if degrees <= 2:
        return (12.7062, 4.30265)[degrees - 1]
    z, n = Z, degrees
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
