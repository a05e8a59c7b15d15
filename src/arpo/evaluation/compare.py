"""Methods against each other: means with intervals, and differences on the same seeds and tasks.

A result is the success of one trained agent on each task of a split. Runs with the same seed began alike, and all were
judged on the same tasks, so two methods are compared seed by seed and task by task: what makes a seed lucky or a task
hard falls out of the difference. Intervals are of a bootstrap over seeds and, inside each draw, over tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arpo.evaluation.statistics import Interval

DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its 95 % interval."""

    mean: float
    ci95: Interval


def estimate(rates: NDArray[np.float64], seed: int = 0) -> Estimate:
    """Of seeds x tasks: the mean of all."""
    rng = np.random.default_rng(seed)
    seeds, tasks = rates.shape
    means = [
        rates[np.ix_(rng.integers(seeds, size=seeds), rng.integers(tasks, size=tasks))].mean() for _ in range(DRAWS)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(rates.mean()), (float(low), float(high)))


def difference(one: NDArray[np.float64], other: NDArray[np.float64], seed: int = 0) -> Estimate:
    """Of the same seeds x tasks under two methods: how much more `one` has."""
    if one.shape != other.shape:
        raise ValueError(f"{one.shape} and {other.shape}: not the same seeds and tasks")
    return estimate(one - other, seed)


def lost(base: NDArray[np.float64], trained: NDArray[np.float64]) -> float:
    """How many tasks the base agent solved at least half of the time and the trained one does not; mean over seeds."""
    return float(((base >= 0.5) & (trained < 0.5)).sum(axis=1).mean())


def table_of(results: Sequence[Mapping[str, float]]) -> NDArray[np.float64]:
    """Seeds x tasks, the tasks in the order of their names. ValueError where they are not the same in all."""
    names = sorted(results[0])
    if any(sorted(result) != names for result in results):
        raise ValueError("runs that were judged on different tasks cannot be compared")
    return np.array([[result[name] for name in names] for result in results])
