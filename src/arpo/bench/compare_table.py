"""What a comparison of methods says: success and differences in each split, curves over the budget, a table.

results["splits"]["train"] = compared({"base": […], "grpo": […]}, ["press-1", …])
results |= in_points(results["splits"], ["grpo", "arpo"])       # results["differences"]["arpo"]["train"]["low"]
results["curves"]["grpo"] = curve([metrics of seed 0, …], budget)
print(as_table(results))
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arpo.errors import ArpoError
from arpo.evaluation.compare import Estimate, Rates, difference, estimate
from arpo.evaluation.run import doubt
from arpo.evaluation.statistics import student
from arpo.tasks.load import FRESH

BASE = "base"  # stands where a method would, for the agent that all begin with
ITSELF = Estimate(0.0, (0.0, 0.0))  # how far a method is from itself: no estimate
POINTS = 40  # of a curve
SMOOTH = 0.05  # the standard deviation of the curves' smoothing, as a share of the budget


def compared(rates: dict[str, list[dict[str, float]]], names: Sequence[str]) -> dict[str, Any]:
    """The methods on the tasks of one split. `rates`: of each method the success on each task, for each seed."""
    scored = [name for name in sorted(names) if all(name in one for runs in rates.values() for one in runs)]
    if not scored:
        raise ArpoError(f"{', '.join(names[:3])} …: no task has a score in every run")
    tables = {
        method: table_of([{name: run[name] for name in scored} for run in runs]) for method, runs in rates.items()
    }
    base, first = tables[BASE], next(method for method in tables if method != BASE)
    results: dict[str, Any] = {"tasks": len(scored), "left_out": sorted(set(names) - set(scored))}
    results[BASE] = {"success": dataclasses.asdict(estimate(base))}
    for method in [method for method in tables if method != BASE]:
        lost, gained = (np.array(scored)[which].tolist() for which in changed(base, tables[method]))
        results[method] = {
            "success": dataclasses.asdict(estimate(tables[method])),
            "over_base": dataclasses.asdict(difference(tables[method], base)),
            "over_first": dataclasses.asdict(ITSELF if method == first else difference(tables[method], tables[first])),
            "lost": lost,
            "gained": gained,
        }
    return results


def in_points(splits: dict[str, Any], methods: Sequence[str]) -> dict[str, Any]:
    """Success, also the base's, and differences to the first method: by method and split, in points from 0 to 100."""

    def points(estimate: dict[str, Any]) -> dict[str, float]:
        mean, (low, high) = estimate["mean"], estimate["ci95"]
        return {"mean": 100 * mean, "low": 100 * low, "high": 100 * high}

    def of(method: str, what: str) -> dict[str, Any]:
        return {split: points(numbers[method][what]) for split, numbers in splits.items()}

    return {
        "success": {method: of(method, "success") for method in (BASE, *methods)},
        "differences": {method: of(method, "over_first") for method in methods[1:]},
    }


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


def curve(runs: Sequence[Sequence[dict[str, Any]]], budget: int, what: str = "success") -> dict[str, list[float]]:
    """A metric over the environment steps that the policy had learned from: the mean of the seeds, and a band."""

    def smoothed(metrics: Sequence[dict[str, Any]], at: Rates) -> Rates:
        weights = np.exp(-(((at[:, None] - _learned_from(metrics)) / (SMOOTH * budget)) ** 2) / 2)
        means: Rates = weights @ np.array([one[what] for one in metrics]) / weights.sum(axis=1)
        return means

    x = np.unique(np.linspace(0, min(_learned_from(metrics)[-1] for metrics in runs), POINTS))
    seeds = np.array([smoothed(metrics, x) for metrics in runs])
    mean, n = seeds.mean(axis=0), len(seeds)
    points = {"x": x.tolist(), "y": mean.tolist()}
    if n > 1:
        half = student(n - 1) * seeds.std(axis=0, ddof=1) / np.sqrt(n)
        points |= {"low": (mean - half).clip(-1, 1).tolist(), "high": (mean + half).clip(-1, 1).tolist()}
    return points


def _learned_from(metrics: Sequence[dict[str, Any]]) -> Rates:
    """Environment steps before each update: those that the policy that played it was trained on."""
    steps = np.array([one["env_steps"] for one in metrics], dtype=np.float64)
    return np.cumsum(steps) - steps


def as_table(results: dict[str, Any]) -> str:
    """For people, in Markdown."""
    runs, budget = results["runs"], results["budget"]
    first = next(iter(results["curves"]))
    lines = [
        f"| tasks | method | success | over the base | over {first} | lost | gained |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for split, numbers in results["splits"].items():
        lines.append(f"| {split} ({numbers['tasks']}) | base | {_rate(numbers[BASE]['success'])} | | | | |")
        for method in results["curves"]:
            one = numbers[method]
            more = "" if method == first else _points(one["over_first"])
            counts = f"{len(one['lost'])} | {len(one['gained'])}"
            lines.append(f"| | {method} | {_rate(one['success'])} | {_points(one['over_base'])} | {more} | {counts} |")
    n = len(results["seeds"])
    seeds = Counter(run["method"] for run in runs.values())
    fewer = ", ".join(f"{method} {count}" for method, count in seeds.items() if count < n)  # of joined comparisons
    over = f"Means over {n} seeds{fewer and f' ({fewer})'}, with 95 % intervals by bootstrap over seeds and tasks"
    used = ", ".join(
        f"{method} {np.mean([run['env_steps'] for run in runs.values() if run['method'] == method]):,.0f}"
        for method in results["curves"]
    )
    lines += [
        "",
        f"{over if n > 1 else 'One seed: the 95 % intervals, by bootstrap, are over tasks alone'}. Differences are in "
        "points, on the same seeds and tasks. Lost: tasks that the base solved in at least half of its trials and the "
        "trained agents, all seeds together, in fewer; gained: the reverse.",
        "",
        f"Budget: {budget:,} environment steps a run, and the update begun is finished. Used on average: {used}.",
    ]
    if FRESH in results["splits"]:
        told = "train: on the fixed starts that were trained; fresh: the same tasks on starts that training never shows"
        lines += ["", f"{told}, so it tells what was learned by heart; all: each task once, the trained as in train."]
    told = ", ".join(f"{method} {unscored} of {total}" for method, (total, unscored) in results["counts"].items())
    lines += ["", f"Episodes without a score, which are in no rate: {told}."]
    lines += [f"{method}: {said}." for method, counts in results["counts"].items() if (said := doubt(*counts))]
    if early := [name for name, run in runs.items() if run["env_steps"] < budget]:
        lines += ["", f"Ended at `train.updates` before the budget was spent: {', '.join(early)}."]
    if left_out := sorted({name for numbers in results["splits"].values() for name in numbers["left_out"]}):
        names = ", ".join(left_out)
        lines += ["", f"Left out ({len(left_out)} tasks), since a machine failed in all attempts of a run: {names}."]
    return "\n".join([*lines, "", f"Made by `{results['command']}`.", ""])


def _rate(estimate: dict[str, Any]) -> str:
    low, high = estimate["ci95"]
    return f"{estimate['mean']:.1%} ({low:.1%} to {high:.1%})"


def _points(estimate: dict[str, Any]) -> str:
    low, high = estimate["ci95"]
    return f"{100 * estimate['mean']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
