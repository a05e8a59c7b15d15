"""How many environment steps a second several trainings of the shipped agent make together on one machine.

    PYTHONPATH=src python benchmarks/gpu_runs.py FOLDER --runs 16 --updates 12      # on the H200
    PYTHONPATH=src python benchmarks/gpu_runs.py FOLDER --runs 2 --updates 3        # on a laptop

Counted from when every run has made its first update (until then models are loaded and kernels are compiled) to when
one has made its last. Printed: one JSON line.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=16)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("settings", nargs="*", help="of all runs, as `arpo train` takes them")
    options = parser.parse_intermixed_args()  # settings may come last
    if options.updates < 2:
        parser.error("--updates must be at least 2: the first is not counted")
    options.folder.mkdir(parents=True, exist_ok=True)
    folders = [options.folder / f"run{number}" for number in range(options.runs)]
    runs = [start(folder, seed, options.updates, options.settings) for seed, folder in enumerate(folders)]
    try:
        logged = watch(folders, runs, options.updates)
    finally:
        for run in runs:
            run.kill()
            run.wait()
    began = max(times[0] for times in logged)
    ended = min(times[-1] for times in logged if len(times) == options.updates)
    if ended <= began:
        sys.exit("one run had ended before another had made its first update: give more --updates")
    steps = 0
    for folder, times in zip(folders, logged, strict=True):
        steps += sum(n for n, at in zip(steps_of(folder), times, strict=False) if began < at <= ended)
    seconds = ended - began
    print(json.dumps({"runs": options.runs, "seconds": seconds, "env_steps": steps, "per_s": steps / seconds}))


def start(folder: Path, seed: int, updates: int, settings: list[str]) -> subprocess.Popen[bytes]:
    """A training that judges no agent: only its updates count."""
    own = [f"seed={seed}", f"run_dir={folder}", f"train.updates={updates}", "eval.trials=1", "eval.held_out=0"]
    command = [sys.executable, "-c", "from arpo.cli import main; main()", "train", "pocket-compare", *own, *settings]
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def watch(folders: list[Path], runs: list[subprocess.Popen[bytes]], updates: int) -> list[list[float]]:
    """When each run logged each of its updates, until the first run has logged all."""
    logged: list[list[float]] = [[] for _ in folders]
    while not (all(logged) and any(len(times) == updates for times in logged)):
        for folder, run, times in zip(folders, runs, logged, strict=True):
            if run.poll():
                sys.exit(f"{folder}: ended with status {run.returncode}; see {folder.with_suffix('.log')}")
            times += [time.monotonic()] * (len(steps_of(folder)) - len(times))
        time.sleep(POLL_S)
    return logged


def steps_of(folder: Path) -> list[int]:
    """The environment steps of each update that is logged; a line that is being written is not."""
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line)["env_steps"] for line in lines if line.endswith("\n")]


main()
