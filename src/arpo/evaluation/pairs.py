"""Two runs against each other: `arpo eval --compare A B`. Nothing is played; only what both were judged on counts.

A run is an evaluation, or a training: of that, how it was judged after its last update. A trial of A and one of B are a
pair where task, start and number are the same and both have a score. Tasks without a pair are left out and counted. A
task that is another one in B, a start that is, or another protocol is refused: the difference would not be the agents'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.config import Config
from arpo.errors import ConfigError, printable
from arpo.evaluation.compare import Estimate, Permuted, gain, paired, permutation_test
from arpo.evaluation.run import Evaluation, Trial, in_rates
from arpo.runs.settings import stored_settings
from arpo.runs.store import Run
from arpo.tasks.kept import first_difference, kept_tasks
from arpo.types import Summary, Task

KINDS = ("fixed", "eval")  # how names of trials begin: on a task's fixed starts, on fresh ones


@dataclass(frozen=True, slots=True)
class Judged:
    """A run as it was judged."""

    folder: Path
    config: Config
    tasks: dict[str, Task]
    update: int
    trials: dict[str, dict[tuple[str, int], Summary]]  # those with a score: by kind of start, by task and number

    @property
    def named(self) -> str:
        """For people. A training that was not judged again yet is no trained agent."""
        if self.update == 0:
            return f"{self.folder}{'' if self.config.run_dir is None else ', before any update'}"
        return f"{self.folder}, after update {self.update}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same trials under two agents."""

    folders: tuple[Path, Path]
    named: tuple[str, str]  # for people
    updates: tuple[int, int]
    one: Evaluation
    other: Evaluation
    left_out: tuple[int, int]  # tasks of each that have a score and no pair
    difference: Estimate  # how much more the other one has
    test: Permuted


def compare_runs(one: Path, other: Path) -> Comparison:
    """See the module. ConfigError where there is nothing to be compared."""
    a, b = read_judged(one), read_judged(other)
    _refuse_unlike(a, b)
    kind = next((kind for kind in KINDS if a.trials.get(kind) and b.trials.get(kind)), None)
    if kind is None:
        raise ConfigError(f"{one} and {other}: one was judged on fixed starts, the other on fresh ones (env.starts)")
    first, second = a.trials[kind], b.trials[kind]
    common = sorted(first.keys() & second.keys())  # not as they were finished: intervals are drawn in this order
    if unlike := [key for key in common if first[key].env_seed != second[key].env_seed]:
        task, _ = unlike[0]
        raise ConfigError(f"{one} and {other}: {task} does not begin alike in both; judge both with the same seed")
    before, after = (_evaluation(run, kind, common) for run in (a, b))
    pairs, difference = paired(before, after), gain(before, after)
    if pairs is None or difference is None:
        raise ConfigError(f"{one} and {other}: no task has a score in both on the same start")
    left = [len({task for task, _ in trials}) - before.n_tasks for trials in (first, second)]
    return Comparison(
        (one, other),
        (a.named, b.named),
        (a.update, b.update),
        before,
        after,
        (left[0], left[1]),
        difference,
        permutation_test(*pairs),
    )


def read_judged(folder: Path) -> Judged:
    """The last trials of each task in a run's folder, also while it is written.

    Without the infeasible tasks where the protocol has them in no rate.
    """
    with Run.read(folder) as run:
        config = stored_settings(folder)
        kept = kept_tasks(folder, config)
        if kept is None:
            raise ConfigError(f"{folder}: has kept no tasks, so nobody knows what was tried; evaluate it again")
        tasks = {task.id: task for part in kept.values() for task in part if in_rates(task, config.eval)}
        played = [one for one in run.summaries(source="evaluation") if one.task_id in tasks and one.score is not None]
    if not played:
        raise ConfigError(f"{folder}: holds no trial with a score yet")
    update = max(one.update for one in played)
    trials: dict[str, dict[tuple[str, int], Summary]] = {}
    for one in played:
        for kind in KINDS:
            number = one.id.removeprefix(f"{kind}{update}-{one.task_id}-").removesuffix(f"-{one.attempt}")
            if one.update == update and number.isdecimal() and number.isascii() and len(number) < 6:
                trials.setdefault(kind, {})[one.task_id, int(number)] = one
    return Judged(folder, config, tasks, update, trials)


def _refuse_unlike(a: Judged, b: Judged) -> None:
    """ConfigError where the same names stand for other things."""
    both = f"{a.folder} and {b.folder}"
    for key in ("env.name", "env.size", "eval.protocol"):
        if a.config.value(key) != b.config.value(key):
            raise ConfigError(f"{both}: were judged with {' and '.join(run.config.words([key])[0] for run in (a, b))}")
    common = [task for task in a.tasks if task in b.tasks]
    if not common:
        raise ConfigError(f"{both}: have no task in common")
    old, new = ({"": [replace(run.tasks[task], split="") for task in common]} for run in (a, b))
    if (difference := first_difference(old, new)) is not None:
        raise ConfigError(f"{both}: were judged on other tasks: {difference}")


def _evaluation(run: Judged, kind: str, common: Sequence[tuple[str, int]]) -> Evaluation:
    """Of these trials."""
    counted = [(run.tasks[key[0]], key[1], run.trials[kind][key]) for key in common]
    return Evaluation(
        tuple(
            Trial(task, number, found.outcome, found.score, found.n_steps, found.id) for task, number, found in counted
        )
    )


def comparison_as_json(found: Comparison) -> dict[str, Any]:
    """For a script. `difference`: B's success less A's."""
    runs = {
        name: {"run_dir": str(folder), "update": update, "success": rate, "ci95": interval, "left_out": left_out}
        for name, folder, update, (rate, interval), left_out in zip(
            "ab",
            found.folders,
            found.updates,
            (found.one.success(), found.other.success()),
            found.left_out,
            strict=True,
        )
    }
    rates = [{task: part.success()[0] for task, part in run.by_task().items()} for run in (found.one, found.other)]
    return {
        **runs,
        "n_tasks": found.one.n_tasks,
        "n_trials": len(found.one.trials),
        "difference": found.difference.mean,
        "ci95": found.difference.ci95,
        "p_value": found.test.p_value,
        "exact": found.test.exact,
        "tasks": {task: {"a": rates[0][task], "b": rates[1][task]} for task in rates[0]},
    }


def print_comparison(found: Comparison) -> None:
    """For people."""
    console = Console(highlight=False)
    for name, named in zip("AB", found.named, strict=True):
        console.print(f"{name}: {printable(named)}", markup=False, soft_wrap=True)
    table = Table("domain", box=None, pad_edge=False)
    for column in ("tasks", "A", "B", "B - A", "95 % interval"):
        table.add_column(column, justify="right")
    domains = [run.by_domain() for run in (found.one, found.other)]
    for name in domains[0]:
        one, other = domains[0][name], domains[1][name]
        table.add_row(escape(printable(name)), *_cells(one, other, gain(one, other)))
    table.add_section()
    table.add_row("all", *_cells(found.one, found.other, found.difference), style="bold")
    console.print(table)
    for name, n in zip("AB", found.left_out, strict=True):
        if n:
            console.print(f"left out of {name}: {n} tasks, of which the other has no score on the same start")
    way = "every way" if found.test.exact else "a sample of all ways"
    over = "tasks" if found.one.n_tasks > 1 else "the trials of one task"
    console.print(f"p = {found.test.p_value:.3g} (paired permutation test over {over}, {way})")


def _cells(one: Evaluation, other: Evaluation, difference: Estimate | None) -> tuple[str, ...]:
    shown = ["-" if rate is None else f"{rate:.1%}" for rate, _ in (one.success(), other.success())]
    if difference is None:
        return (str(one.n_tasks), *shown, "-", "-")
    low, high = (100 * edge for edge in difference.ci95)
    return (str(one.n_tasks), *shown, f"{100 * difference.mean:+.1f}", f"{low:+.0f} to {high:+.0f}")
