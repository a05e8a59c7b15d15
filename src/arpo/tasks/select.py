"""Task selection: keep the tasks that an agent sometimes solves, for only those can teach it something."""

import json
import tempfile
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from arpo.errors import ConfigError
from arpo.evaluation.run import Evaluation, doubt, of_episodes
from arpo.runs.store import write_whole
from arpo.types import Task


def select(evaluation: Evaluation, least: int, drop_solved: bool, solved: float) -> list[Task]:
    """The tasks with at least so many trials of score `solved`; on demand without those solved every time."""
    counts = [(part.trials, _successes(part, solved)) for part in evaluation.by_task().values()]
    return [trials[0].task for trials, n in counts if n >= least and not (drop_solved and n == len(trials))]


def refuse_place(path: Path) -> None:
    """ConfigError where no list could be written. Nothing is left there yet."""
    if not path.name.endswith(".json"):
        raise ConfigError(f"out={path}: must end in .json")
    try:
        if path.is_dir():
            raise ConfigError(f"out={path}: is a folder; a task list is a file")
        with tempfile.TemporaryFile(dir=next(place for place in path.absolute().parents if place.exists())):
            pass
    except OSError as error:
        raise ConfigError(f"out={path}: cannot be written: {error.strerror}") from None


def write_list(tasks: list[Task], path: Path) -> None:
    """A task list that `tasks.source` takes, {domain: [id, …]}, whole or not at all."""
    by_domain: dict[str, list[str]] = {}
    for task in tasks:
        by_domain.setdefault(task.domain, []).append(task.id)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(by_domain, indent=1) + "\n")


def print_counts(evaluation: Evaluation, kept: list[Task], path: Path, solved: float) -> None:
    """How many tasks had how many successes."""
    counts = Counter(_successes(part, solved) for part in evaluation.by_task().values())
    table = Table("successes", "tasks", box=None, pad_edge=False)
    for n, tasks in sorted(counts.items()):
        table.add_row(str(n), str(tasks))
    Console(highlight=False).print(table)
    print(f"{len(kept)} of {evaluation.n_tasks} tasks kept ({of_episodes(*evaluation.counts)}), in {path}")
    if warning := doubt(*evaluation.counts):
        print(warning)


def _successes(part: Evaluation, solved: float) -> int:
    return sum(trial.score is not None and trial.score >= solved for trial in part.trials)
