"""Between the agent that training began with and the trained one: what is kept of either, as weights are mixed.

    python benchmarks/blend.py runs/fixed16 --method arpo --shares 0.5 --jobs 2     # of an ended comparison
    python benchmarks/blend.py runs/fixed16 --method arpo --shares 0.25,0.5,0.75 --jobs 2 --seeds 4
    python benchmarks/blend.py runs/fixed16 --method grpo --shares 0.25 --jobs 2 --again 1000   # a hint, looked at anew

A share of 1 is the trained agent, 0 the base. Each mix is judged as the runs of the comparison were: the same tasks,
starts and trials. What is judged stays in FOLDER/blend; the same command goes on. Printed: JSON, success by share and
split with its interval, and how far it lies over the base, the trained agent and the comparison's first method, in
points. With --again other trials on other screens are played, as by seeds so much larger, by the base as well: what
was seen by chance is not seen again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from arpo.bench.compare import Finished
from arpo.bench.compare_table import table_of
from arpo.evaluation.compare import Estimate, difference, estimate
from arpo.export.command import export_checkpoint
from arpo.runs.checkpoints import checkpoints_in
from arpo.runs.settings import stored_settings
from arpo.tasks.kept import kept_tasks
from arpo.tasks.load import FRESH
from arpo.training.command import run_training

LEFT_OUT = "heldout_families"  # of which base and trained agents solve next to none


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="a comparison's")
    parser.add_argument("--method", default="arpo")
    parser.add_argument("--shares", default="0.5")
    parser.add_argument("--seeds", type=int, help="the first of them; without it all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", type=int, default=0, help="judge base and mixes anew, by seeds so much larger")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)  # a run and a share, in a process of its own
    given = parser.parse_args()
    if given.one:
        return judge(given.folder, given.one[0], float(given.one[1]), given.again)
    shares = [float(share) for share in given.shares.split(",")]
    if not all(0 < share < 1 for share in shares):
        parser.error("--shares are between 0 and 1")
    results = json.loads((given.folder / "results.json").read_text())
    seeds = results["seeds"][: given.seeds]
    runs = [f"{given.method}-{seed}" for seed in seeds]
    with ThreadPoolExecutor(given.jobs) as pool:
        every = [(run, share) for share in [*([0.0] if given.again else []), *shares] for run in runs]
        list(pool.map(lambda job: start(given.folder, *job, given.again), every))
    if given.again:
        others = {"base": "base"}
        against = {"base": [place(given.folder, run, 0.0, given.again) for run in runs]}
    else:
        others = {"base": "base", "trained": given.method, "first": next(iter(results["curves"]))}
        against = {name: [given.folder / f"{method}-{seed}" for seed in seeds] for name, method in others.items()}
    mixed = {share: [place(given.folder, run, share, given.again) for run in runs] for share in shares}
    told = {"methods": others | {"mixed": given.method}, "seeds": [seed + given.again for seed in seeds]}
    print(json.dumps(told | compared(against, mixed), indent=1))


def start(folder: Path, run: str, share: float, again: int) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(folder), "--one", run, str(share), "--again", str(again)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    if done.returncode:
        sys.exit(f"{run}, {share}: failed")


def judge(folder: Path, run: str, share: float, again: int) -> None:
    """A training without an update: the agent that it begins with is judged."""
    out = place(folder, run, share, again)
    if (out / "summary.json").exists():
        return
    config = stored_settings(folder / run)
    config = config.with_values({"run_dir": out, "train.updates": 0, "seed": config.seed + again})
    tasks = kept_tasks(folder / run, config)
    assert tasks is not None
    kept = {split: part for split, part in tasks.items() if split != LEFT_OUT}
    with tempfile.TemporaryDirectory() as made:
        if share:
            model = Path(made) / "model"
            export_checkpoint(checkpoints_in(folder / run / "checkpoints")[-1], model, share, config.train.model)
            config = config.with_values({"train.model": str(model)})
        run_training(config, kept)


def place(folder: Path, run: str, share: float, again: int) -> Path:
    return folder / "blend" / f"{run}-{share:g}{f'-again{again}' if again else ''}"


def compared(against: dict[str, list[Path]], mixed: dict[float, list[Path]]) -> dict[str, Any]:
    splits = sorted({split for folders in mixed.values() for split, _ in rates_of(folders[0])})
    results: dict[str, Any] = {}
    for split in splits:
        others = {name: rates(split, folders) for name, folders in against.items()}
        results[split] = {name: points(estimate(of)) for name, of in others.items()}
        for share, folders in mixed.items():
            found = rates(split, folders)
            over = {f"over_{name}": points(difference(found, of)) for name, of in others.items()}
            results[split][f"{share:g}"] = {"success": points(estimate(found)), **over}
    return results


def rates(split: str, folders: list[Path]) -> Any:
    return table_of([dict(rates_of(one))[split] for one in folders])


def rates_of(folder: Path) -> list[tuple[str, dict[str, float]]]:
    """Of each split the success on each task, as far as the run was judged on it."""
    run = Finished.read(folder)
    tasks = json.loads((folder / "tasks.json").read_text())
    found = []
    for split, part in tasks.items():
        if split != LEFT_OUT:
            success = run.rates if split != "train" or FRESH not in tasks else run.fixed_rates
            found.append((split, {task["id"]: success[task["id"]] for task in part}))
    return found


def points(one: Estimate) -> dict[str, float]:
    return {"mean": 100 * one.mean, "low": 100 * one.ci95[0], "high": 100 * one.ci95[1]}


if __name__ == "__main__":
    main()
