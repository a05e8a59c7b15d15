"""The paper's figures on pocket, from the runs of `arpo compare`.

    arpo compare pocket-compare --algorithms grpo,arpo,arpo+,dapo --out runs/compare
    arpo compare pocket-compare tasks.source=train eval.trials=1 eval.held_out=0 \\
        --algorithms arpo --seeds 3 --out runs/full
    python benchmarks/figures.py runs/compare runs/full docs/results/compare

Writes reward.png (over environment steps, with and without replay), selection-reward.png and selection-spread.png
(training on the selected tasks against training on all: the reward, and how far the rewards of a group lie apart).
Trained against held-out tasks are in the table that `arpo compare` writes. late.json has metrics of each seed: their
means over the first and over the last third of the steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from arpo.bench.compare_table import curve
from arpo.runs.plot import Series, save_plot

STEPS = "environment steps"
LATE = ("success", "failed_groups", "replayed_groups", "replay_age")


def series(name: str, folder: Path, method: str, what: str, budget: int) -> Series:
    """A metric of a method's runs: the mean of its seeds, and a band."""
    files = sorted(folder.glob(f"{method}-[0-9]*/metrics.jsonl"))
    runs = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return Series(name, **curve(runs, budget, what))


def thirds(updates: list[dict[str, Any]], what: str) -> list[float | None]:
    """The means of a metric over the updates of the first and of the last third of a run's steps."""
    steps = np.cumsum([metrics["env_steps"] for metrics in updates])
    before = np.concatenate([[0], steps[:-1]]) / steps[-1]
    parts = [
        [metrics[what] for metrics, at in zip(updates, before, strict=True) if low <= at < high and what in metrics]
        for low, high in ((0, 1 / 3), (2 / 3, 1))
    ]
    return [round(float(np.mean(part)), 4) if part else None for part in parts]


def main(compared: Path, full: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    results = json.loads((compared / "results.json").read_text())
    budget = results["budget"]
    late: dict[str, dict[str, Any]] = {what: {} for what in LATE}
    for name in results["runs"]:
        updates = [json.loads(line) for line in (compared / name / "metrics.jsonl").read_text().splitlines()]
        for what in LATE:
            late[what][name] = thirds(updates, what)
    (out / "late.json").write_text(json.dumps(late, indent=1) + "\n")
    reward = [series(name, compared, name, "reward", budget) for name in ("grpo", "arpo", "arpo+")]
    save_plot(out / "reward.png", reward, STEPS, "reward of its episodes, with replay (arpo, arpo+) and without")
    for what, label in (("reward", "reward of its episodes"), ("spread", "standard deviation of rewards in a group")):
        places = {"selected tasks": compared, "all tasks": full}
        pair = [series(name, folder, "arpo", what, budget) for name, folder in places.items()]
        save_plot(out / f"selection-{what}.png", pair, STEPS, f"{label} (arpo)")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
