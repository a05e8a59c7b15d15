"""The task lists `demo`, `compare`, `seldom` and `seldom16` of pocket, by the rules that chose them.

    python -m arpo.teaching.lists docs/results/base-train.json docs/results/base-fixed.json     # writes all

All hold feasible tasks of `train` that the agent `base` sometimes solves. The files say how often: successes in 16
trials at temperature 1.0, by task id; in the first on fresh starts, in the second on the task's fixed start. Tasks that
were added later are not in them. The number of steps of a task is what the expert needs, the mean over the seeds 9000
to 9002, or that on the fixed start:

    demo      2 to 8 successes, fewer than 3 steps
    compare   1 to 4 successes, the 32 with the fewest steps
    seldom    1 or 2 successes on the fixed start, the 32 with the fewest steps there
    seldom16  the first half of seldom: what two cores can train on for ten seeds

docs/log.md says why these rules.
"""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean

from arpo.envs.base import make, make_expert
from arpo.envs.pictures import record
from arpo.envs.pocket.catalog import LISTS
from arpo.seeds import start_seed
from arpo.tasks.load import load_tasks
from arpo.types import Task

TRIALS = 16
SEEDS = range(9000, 9003)


def choose(fresh: dict[str, int], fixed: dict[str, int]) -> dict[str, list[str]]:
    """The ids of each list, from how often each task was solved on fresh starts and on its fixed one."""
    needed = _steps(fresh, 8, lambda task: SEEDS)
    there = _steps(fixed, 2, lambda task: [start_seed(task.id, 0)])
    return {
        "demo": [task_id for task_id in _shortest(needed) if fresh[task_id] >= 2 and needed[task_id] < 3],
        "compare": [task_id for task_id in _shortest(needed) if fresh[task_id] <= 4][:32],
        "seldom": _shortest(there)[:32],
        "seldom16": _shortest(there)[:16],
    }


def _steps(successes: dict[str, int], most: int, seeds: Callable[[Task], Iterable[int]]) -> dict[str, float]:
    """What the expert needs, on average over the seeds, for the feasible tasks with 1 to `most` successes."""
    env = make("pocket", size=(448, 280))

    def steps(task: Task) -> float:
        return fmean(record(env, make_expert("pocket", task), task, seed).steps for seed in seeds(task))

    tasks = [task for task in load_tasks("pocket", "train") if task.feasible and 1 <= successes.get(task.id, 0) <= most]
    return {task.id: steps(task) for task in tasks}


def _shortest(needed: dict[str, float]) -> list[str]:
    return sorted(needed, key=lambda task_id: (needed[task_id], task_id))


def write(name: str, ids: list[str]) -> None:
    """Write a list in OSWorld's form, {domain: [id, …]}."""
    domains: dict[str, list[str]] = {}
    for task_id in sorted(ids):
        domains.setdefault(task_id.partition("-")[0], []).append(task_id)
    (LISTS / f"{name}.json").write_text(json.dumps(domains, indent=1) + "\n")


def main(*paths: str) -> None:
    fresh, fixed = (json.loads(Path(path).read_text()) for path in paths)
    for name, ids in choose(fresh, fixed).items():
        write(name, ids)
        successes = fixed if name.startswith("seldom") else fresh
        print(f"{name}: {len(ids)} tasks, mean success {fmean(successes[i] for i in ids) / TRIALS:.1%}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        files = "docs/results/base-train.json docs/results/base-fixed.json"
        sys.exit(f"give the files of successes: python -m arpo.teaching.lists {files}")
    main(*sys.argv[1:])
