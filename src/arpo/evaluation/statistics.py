"""Success rates with 95 % intervals. The task is the unit, not the trial.

The trials of a task resemble each other: an agent that fails it once mostly fails it again. Eight trials of 32 tasks
are worth more than 32 observations but far fewer than 256, and an interval that takes them for 256 is too narrow.

Overall success is the mean of the tasks' rates. Its interval is Wilson's for as many independent trials as the spread
between tasks is worth: with T tasks, their mean p and the sample variance s² of their rates,

    n = p (1 - p) / (s² / T)      and no more than there were trials

and Student's quantile for T - 1 degrees of freedom in place of the normal one. Where there is one trial a task, or all
rates are 0 or all are 1, it is Wilson's plain interval for T trials. This is the survey statisticians'
effective sample size (Korn and Graubard 1998; with Wilson's interval: Franco et al. 2019). A bootstrap over tasks, the
usual alternative, says "100 % to 100 %" of 32 solved tasks, which nobody should believe. How often the interval holds
the truth, with 8 trials of T tasks whose rates come from a Beta(a, b), in 2,000 to 4,000 simulations (a test repeats
the first column in 400: `pytest tests/evaluation -k truth -s`):

      T    (a, b)        this one    bootstrap over tasks    all trials as one sample
      5    (0.3, 0.3)      95 %            88 %                     62 %
     32    (0.3, 0.3)      96 %            94 %                     60 %
     32    (0.1, 0.9)      93 %            90 %                     64 %
    200    (0.1, 0.9)      95 %            94 %                     65 %

What is meant is the rate on tasks *like these*. On the very same tasks a repetition varies less.
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
    rate, n_tasks, n_trials = statistics.fmean(rates), len(rates), sum(len(scores) for scores in scores_by_task)
    if n_tasks == 1:
        return rate, wilson(rate, n_trials)
    if n_tasks == n_trials or rate in (0.0, 1.0):  # there is no spread to be estimated
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
