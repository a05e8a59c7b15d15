"""The paper's figures on pocket, from the runs of `arpo compare`.

    arpo compare pocket-compare --algorithms grpo,arpo,arpo+,dapo --out runs/compare
    arpo compare pocket-compare tasks.source=train eval.trials=1 eval.held_out=0 \\
        --algorithms arpo --seeds 3 --out runs/full
    python benchmarks/figures.py runs/compare runs/full docs/results/compare

Writes reward.png (over environment steps, with and without replay), selection-reward.png and selection-spread.png
(training on the selected tasks against training on all: the reward, and how far the rewards of a group lie apart).
Trained against held-out tasks are in the table that `arpo compare` writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from arpo.runs.plot import Series, save_plot
from arpo.training.compare import curve

STEPS = "environment steps"


def series(name: str, folder: Path, method: str, what: str, budget: int) -> Series:
    """A metric of a method's runs: the mean of its seeds, and a band."""
    files = sorted(folder.glob(f"{method}-[0-9]*/metrics.jsonl"))
    runs = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return Series(name, **curve(runs, budget, what))


def main(compared: Path, full: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    budget = json.loads((compared / "results.json").read_text())["budget"]
    reward = [series(name, compared, name, "reward", budget) for name in ("grpo", "arpo", "arpo+")]
    save_plot(out / "reward.png", reward, STEPS, "reward of its episodes, with replay (arpo, arpo+) and without")
    for what, label in (("reward", "reward of its episodes"), ("spread", "standard deviation of rewards in a group")):
        places = {"selected tasks": compared, "all tasks": full}
        pair = [series(name, folder, "arpo", what, budget) for name, folder in places.items()]
        save_plot(out / f"selection-{what}.png", pair, STEPS, f"{label} (arpo)")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
