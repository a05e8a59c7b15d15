"""Comparisons of more methods joined to one that was made before, perhaps on another machine: one table, one plot.

    arpo compare pocket-fixed16 --algorithms dapo,ppo --seeds 3 --out runs/more
    python benchmarks/join.py docs/results/compare/fixed.json runs/more/results.json --out joined

Of the first file all methods stay as they are; the others add theirs. Each is compared with the first file's base and
first method on the seeds that both have. Budget and tasks must be the same. Written are
joined/results.json, table.md and curves.png, as `arpo compare` writes them; printed is how many steps each method needs
to be as good as the first one is at its end.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from arpo.bench.compare import as_json
from arpo.bench.compare_table import BASE, as_table, compared, in_points
from arpo.runs.plot import Series, save_plot
from arpo.tasks.load import FRESH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="results.json of the comparison that is added to")
    parser.add_argument("more", type=Path, nargs="+", help="results.json of others")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    joined = json.loads(given.first.read_text())
    for path in given.more:
        if problem := add(joined, json.loads(path.read_text())):
            sys.exit(f"{path}: {problem}")
    methods = list(joined["curves"])
    joined |= in_points(joined["splits"], methods)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "results.json").write_text(as_json(joined))
    (given.out / "table.md").write_text(as_table(joined))
    what = "success while learning: the mean of the seeds and its 95 % interval"
    series = [Series(name, **curve) for name, curve in joined["curves"].items()]
    save_plot(given.out / "curves.png", series, "environment steps", what, share=True)
    print(json.dumps({"steps_to_the_end_of_the_first": steps_needed(joined["curves"])}))


def add(to: dict[str, Any], other: dict[str, Any]) -> str | None:
    """Put the methods of `other` into `to`; returns why that cannot be."""
    if twice := [method for method in other["curves"] if method in to["curves"]]:
        return f"{twice[0]} is in both"
    if to["budget"] != other["budget"] or tasks_of(to) != (tasks := tasks_of(other)):
        return "has another budget or other tasks"
    if any(numbers["left_out"] != other["splits"][split]["left_out"] for split, numbers in to["splits"].items()):
        return "has scores of other tasks"
    if missing := set(other["seeds"]) - set(to["seeds"]):
        return f"has the seed {min(missing)}, which the first comparison has not"
    first = next(iter(to["curves"]))
    places = [to["seeds"].index(seed) for seed in other["seeds"]]
    for split, numbers in to["splits"].items():
        kind = "fresh_rates" if split == FRESH else "rates"
        beside = {method: by_seed(to[kind], method, places) for method in (BASE, first)}
        for method in other["curves"]:
            own = by_seed(other[kind], method, range(len(places)))
            numbers[method] = compared(beside | {method: own}, tasks[split])[method]
    for kind in ("rates", "fresh_rates"):
        for task, of_task in other.get(kind, {}).items():
            to[kind][task] |= {method: rates for method, rates in of_task.items() if method != BASE}
    for what in ("curves", "runs"):
        to[what] |= other[what]
    to["counts"] |= {method: counts for method, counts in other["counts"].items() if method != BASE}
    to["command"] += f"` and `{other['command']}"
    return None


def tasks_of(results: dict[str, Any]) -> dict[str, list[str]]:
    """Of each split its tasks: they stand split by split in `rates`."""
    every, tasks = list(results["rates"]), dict[str, list[str]]()
    at = 0
    for split, numbers in results["splits"].items():
        n = numbers["tasks"] + len(numbers["left_out"])
        if split in (FRESH, "all"):
            tasks[split] = list(results["fresh_rates"]) if split == FRESH else every
        else:
            tasks[split], at = every[at : at + n], at + n
        assert len(tasks[split]) == n, split
    return tasks


def by_seed(rates: dict[str, Any], method: str, places: Iterable[int]) -> list[dict[str, float]]:
    """Of each of these seeds the success of a method on each task that has a score."""
    of_seeds = [{task: of_task[method][place] for task, of_task in rates.items()} for place in places]
    return [{task: rate for task, rate in one.items() if rate is not None} for one in of_seeds]


def steps_needed(curves: dict[str, Any]) -> dict[str, float | None]:
    """After how many steps a method's curve first lies as high as the first method's ends; None: never."""
    end = next(iter(curves.values()))["y"][-1]
    reached = {name: np.flatnonzero(np.array(curve["y"]) >= end) for name, curve in curves.items()}
    return {name: float(curves[name]["x"][at[0]]) if len(at) else None for name, at in reached.items()}


if __name__ == "__main__":
    main()
