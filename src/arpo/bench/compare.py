"""What `arpo compare` does: methods x seeds under the same budget of environment steps, then one table and one plot.

    DIR/base-0                 the base agent, judged once for each seed; the runs of that seed begin as copies of it
    DIR/grpo-0  DIR/arpo-0  …  runs of `arpo train`, each a process of its own, with its output.txt
    DIR/table.md  results.json  curves.png  from what these stored; the same command makes them anew

A finished run is not run again and a begun one goes on: a comparison that was killed, or that is to have more seeds or
methods, is the same command once more.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from arpo.algorithms.base import METHODS
from arpo.bench.compare_table import BASE, as_table, compared, curve, in_points
from arpo.config import METHOD, AlgorithmConfig, Config, load_config, to_yaml
from arpo.errors import ArpoError, ConfigError
from arpo.evaluation.run import of_episodes, refuse_protocol
from arpo.files import read_bytes, refuse_links
from arpo.machine import cores
from arpo.runs.plot import Series, save_plot
from arpo.runs.progress import progress_bar
from arpo.runs.settings import LENGTH, from_anywhere, go_on, outside, same_settings
from arpo.runs.store import Run, folder_name
from arpo.seeds import EVALUATION
from arpo.tasks.kept import Tasks, same_tasks
from arpo.tasks.load import FRESH
from arpo.training.plan import checked_tasks

ARPO = (sys.executable, "-P", "-m", "arpo.cli")  # -P: else modules in the working directory would be run
SET_PDEATHSIG = 1  # of prctl
TAIL = 2**16  # bytes of an output in which its last line is


def methods_of(source: str | None, overrides: list[str], names: str) -> dict[str, Config]:
    """`grpo,arpo+:group_most=null,…`: the settings of each method, by its name as it is given."""
    methods: dict[str, Config] = {}
    for name in names.replace(" ", "").split(","):
        algorithm, *changes = name.split(":")
        fields = (*METHOD, *(METHODS[algorithm].settings if algorithm in METHODS.names() else ()))
        named = [change for change in changes if change.partition("=")[0] in fields]
        others = [f"algorithm.{change}" for change in changes if change not in named]
        config = load_config(source, [*overrides, f"algorithm.name={':'.join([algorithm, *named])}", *others])
        refuse_protocol(config.eval, "arpo compare")
        if name in methods:
            raise ConfigError(f"algorithms={names}: {name} is there twice")
        methods[name] = config
    if any(override.startswith("algorithm.name=") for override in overrides):
        raise ConfigError("algorithm.name: --algorithms names the methods")
    if config.run_dir is not None:
        raise ConfigError(f"run_dir={config.run_dir}: --out says where the runs go")
    if config.train.updates == 0:
        raise ConfigError("train.updates=0: nothing would be trained; with a budget it may be as large as you like")
    if config.train.env_steps is None:
        raise ConfigError("train.env_steps=null: methods are compared under a budget, as in train.env_steps=20000")
    return methods


def run_comparison(methods: dict[str, Config], seeds: int, out: Path, jobs: int, command: str) -> str:
    """Run what is missing, `jobs` runs at a time; write results and plot; returns the table."""
    one = next(iter(methods.values()))
    if one.agent.device not in ("auto", "cpu"):  # else torch, which takes seconds, is not needed here
        from arpo.model.checkpoint import find_device

        find_device(one.agent.device)  # one that is not there is said before a run is begun with it
    for name, config in methods.items():  # before anything is run
        try:
            tasks = checked_tasks(config)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    comparison = Comparison(methods, range(one.seed, one.seed + seeds), out, tasks)
    refuse_links(out, write=True)
    comparison.run_all(jobs)
    results = {"command": command, **comparison.results()}
    (out / "results.json").write_text(as_json(results))
    series = [Series(name, **curve) for name, curve in results["curves"].items()]
    save_plot(
        out / "curves.png",
        series,
        "environment steps",
        "success while learning: the mean of the seeds and its 95 % interval"
        f" ({of_episodes(*(sum(counts) for counts in zip(*comparison.learned(), strict=True)))})",
        share=True,
    )
    table = as_table(results)
    (out / "table.md").write_text(table)
    return table


def as_json(results: dict[str, Any]) -> str:
    """For files: lists of numbers are on one line."""
    text = json.dumps(results, indent=1)
    return re.sub(r"\[[^][{}\"]*\]", lambda numbers: " ".join(numbers[0].split()), text) + "\n"


@dataclass(frozen=True, slots=True)
class Comparison:
    methods: dict[str, Config]  # the first is the one that the others are compared with
    seeds: range
    out: Path
    tasks: Tasks  # of all its runs

    def config(self, method: str, seed: int) -> Config:
        own: dict[str, Any] = {"seed": seed, "run_dir": self.out / f"{folder_name(method)}-{seed}"}
        if method == BASE:
            method = next(iter(self.methods))
            own |= {"algorithm": AlgorithmConfig(), "train.updates": 0}
        return self.methods[method].with_values(own)

    def folder(self, method: str, seed: int) -> Path:
        folder = self.config(method, seed).run_dir
        assert folder is not None
        return folder

    def run_all(self, jobs: int) -> None:
        """Run what is not finished, the base agent's evaluations first.

        ConfigError where a setting or a task has changed.
        """
        bases = [(BASE, seed) for seed in self.seeds]
        runs = [(method, seed) for seed in self.seeds for method in self.methods]
        for method, seed in (*runs, *bases):
            if self.folder(method, seed).exists():
                self._begin(method, seed)
        with progress_bar(Console(stderr=True, highlight=False)) as progress:
            bar = progress.add_task("runs", total=len(bases) + len(runs), so_far=[])
            for part in (bases, runs):
                missing = [one for one in part if not (self.folder(*one) / "summary.json").exists()]
                progress.advance(bar, len(part) - len(missing))
                self._run(missing, jobs, progress)

    def _run(self, missing: list[tuple[str, int]], jobs: int, progress: Progress) -> None:
        running: dict[Path, subprocess.Popen[bytes]] = {}
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: none is left running alone
        try:
            while missing or running:
                while missing and len(running) < jobs:
                    config = self.config(*missing[0])
                    folder = self._begin(*missing.pop(0))
                    running[folder] = _start(folder, jobs, outside(from_anywhere(config)))
                time.sleep(0.5)
                for folder in [folder for folder, process in running.items() if process.poll() is not None]:
                    status = running.pop(folder).returncode
                    if status:
                        raise ArpoError(f"{folder.name}: {_why(folder, status)}")
                    progress.console.print(f"{folder.name} is done", markup=False)
                    progress.advance(progress.task_ids[0])
                now = ", ".join(f"{folder.name} ({_updates(folder)} updates)" for folder in running)
                progress.update(progress.task_ids[0], so_far=[now])
        finally:  # one failed, or it was interrupted: the others lose nothing
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
            signal.signal(signal.SIGTERM, before)

    def _begin(self, method: str, seed: int) -> Path:
        """The folder of a run, made where there is none."""
        folder, config = self.folder(method, seed), self.config(method, seed)
        if method != BASE and not folder.exists():
            with Run.read(self.folder(BASE, seed)) as base:
                base.copy(folder, to_yaml(config))
        with Run.write(folder, to_yaml(config)) as run:
            same_settings(run, config, fixed=LENGTH)  # the budget is the same for all
            same_tasks(run, self.tasks, config)
            go_on(run, config)
        return folder

    def learned(self) -> list[tuple[int, int]]:
        """Of each run the episodes that it learned from: all, and those without a score."""
        counts = []
        for method, seed in itertools.product(self.methods, self.seeds):
            with Run.read(self.folder(method, seed)) as run:
                scored = [episode.score is not None for episode in run.summaries(source="rollout")]
            counts.append((len(scored), scored.count(False)))
        return counts

    def results(self) -> dict[str, Any]:
        """All numbers, from what the runs stored."""
        done = {
            method: [Finished.read(self.folder(method, seed)) for seed in self.seeds]
            for method in (BASE, *self.methods)
        }
        if never := [run.folder for method in self.methods for run in done[method] if not run.metrics]:
            raise ConfigError(f"{never[0]}: has made no update; remove its summary.json, and the run goes on")
        if len({run.model for runs in done.values() for run in runs}) > 1:
            raise ConfigError(f"{self.out}: its runs began with different models; choose another folder")
        first = next(iter(self.methods.values()))
        ids = {split: [task.id for task in tasks] for split, tasks in self.tasks.items()}
        if len(ids.keys() - {FRESH}) > 1:
            ids["all"] = list(dict.fromkeys(itertools.chain(*ids.values())))
        rates = {method: [self._rates(run) for run in runs] for method, runs in done.items()}
        fresh = {method: [run.rates for run in runs] for method, runs in done.items()}
        budget = first.train.env_steps
        assert budget is not None
        runs = {
            run.folder.name: {**run.summary, "method": method, "seed": seed, "updates": len(run.metrics)}
            for method in self.methods
            for seed, run in zip(self.seeds, done[method], strict=True)
        }
        splits = {split: compared(rates if split in ("train", "all") else fresh, names) for split, names in ids.items()}
        return {
            "budget": budget,
            "seeds": list(self.seeds),
            **in_points(splits, list(self.methods)),
            "splits": splits,
            "counts": {method: [sum(run.counts[i] for run in runs) for i in range(2)] for method, runs in done.items()},
            "curves": {method: curve([run.metrics for run in done[method]], budget) for method in self.methods},
            "runs": runs,
            "rates": _by_task(rates, dict.fromkeys(itertools.chain(*ids.values()))),
            **({"fresh_rates": _by_task(fresh, ids[FRESH])} if FRESH in ids else {}),
        }

    def _rates(self, run: Finished) -> dict[str, float]:
        """Of each task its success: where it was trained, if its starts are fixed, else on fresh ones."""
        if FRESH not in self.tasks:
            return run.rates
        trained = {task.id for task in self.tasks["train"]}
        return {task: rate for task, rate in run.rates.items() if task not in trained} | run.fixed_rates


def _by_task(rates: dict[str, list[dict[str, float]]], tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Of each task the success of each method, seed by seed; None where a run has no score of it."""
    return {task: {method: [run.get(task) for run in runs] for method, runs in rates.items()} for task in tasks}


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to."""

    folder: Path
    model: str | None  # that it began with
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]  # of each update
    rates: dict[str, float]  # of the trained agent on each task, over the trials on fresh starts that have a score
    fixed_rates: dict[str, float]  # the same on fixed starts
    counts: tuple[int, int]  # of these trials: all, and those without a score

    @classmethod
    def read(cls, folder: Path) -> Finished:
        with Run.read(folder) as run:
            metrics = list(run.metrics())
            summary = _summary(folder / "summary.json")
            made = metrics[-1]["update"] + 1 if metrics else 0
            fresh: dict[str, list[float]] = {}
            fixed: dict[str, list[float]] = {}
            last: dict[str, float | None] = {}  # of each trial: another attempt comes later, and counts instead
            for trial in run.summaries(source="evaluation", update=made):
                last[trial.id.rpartition("-")[0]] = trial.score
                if trial.score is not None:
                    scores = fixed if trial.env_seed < EVALUATION else fresh
                    scores.setdefault(trial.task_id, []).append(trial.score)
            counts = len(last), sum(score is None for score in last.values())
            return cls(folder, run.fact("model"), summary, metrics, _means(fresh), _means(fixed), counts)


def _means(scores: dict[str, list[float]]) -> dict[str, float]:
    return {task: float(np.mean(values)) for task, values in sorted(scores.items())}


def _summary(file: Path) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        summary = json.loads(read_bytes(file, 2**20))
        if isinstance(summary, dict) and isinstance(steps := summary.get("env_steps"), int) and 0 <= steps < 1e12:
            return summary
    raise ConfigError(f"{file}: cannot be read; remove it, and the same command makes it anew")


def _start(folder: Path, jobs: int, words: list[str]) -> subprocess.Popen[bytes]:
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // jobs))} | os.environ  # what the user set is what is meant
    # Loaded here: after the fork as little as possible is done.
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
    with (folder / "output.txt").open("ab") as output:
        return subprocess.Popen(
            [*ARPO, "train", "--resume", str(folder), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            # A comparison that is killed by -9 ends its runs too: the same command would find them in use.
            preexec_fn=(lambda: prctl(SET_PDEATHSIG, signal.SIGTERM)) if prctl is not None else None,
        )


def _why(folder: Path, status: int) -> str:
    """Why a run ended with this status, in one line."""
    if status < 0:
        return f"was killed by signal {-status}; the same command goes on"
    with (folder / "output.txt").open("rb") as output:
        output.seek(-min(output.seek(0, os.SEEK_END), TAIL), os.SEEK_END)
        said = output.read().decode(errors="replace").strip().splitlines()
    return f"{said[-1].removeprefix('error: ') if said else status} (all of it in {folder / 'output.txt'})"


def _updates(folder: Path) -> int:
    with Run.read(folder) as run:
        return sum(1 for _ in run.metrics())
