"""The task lists `demo` and `compare` of pocket, from the rule that chose them.

    python benchmarks/lists.py           # writes both; docs/log.md says why these rules

Both take feasible tasks of `train` that the agent `base` sometimes solves (successes in 16 trials at temperature 1.0:
docs/results/base-train.json; later tasks are not in it), by how many steps the expert needs, the mean of screens 9000
to 9002:

    demo      2 to 8 successes, fewer than 3 steps
    compare   1 to 4 successes, the 32 with the fewest steps
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import arpo.envs.pocket.catalog
from arpo.envs.base import make, make_expert
from arpo.envs.play import record
from arpo.tasks.load import load_tasks
from arpo.types import Task

SUCCESSES = json.loads((Path(__file__).parent.parent / "docs/results/base-train.json").read_text())
LISTS = Path(arpo.envs.pocket.catalog.__file__).parent / "lists"
SCREENS = range(9000, 9003)


def chosen() -> dict[str, list[str]]:
    env = make("pocket", size=(448, 280))

    def steps(task: Task) -> float:
        return fmean(len(record(env, make_expert("pocket", task), task, seed).shots) - 1 for seed in SCREENS)

    tasks = [task for task in load_tasks("pocket", "train") if task.feasible and 1 <= SUCCESSES.get(task.id, 0) <= 8]
    needed = {task.id: steps(task) for task in tasks}
    shortest = sorted(needed, key=lambda name: (needed[name], name))
    return {
        "demo": [name for name in shortest if SUCCESSES[name] >= 2 and needed[name] < 3],
        "compare": [name for name in shortest if SUCCESSES[name] <= 4][:32],
    }


def write(name: str, ids: list[str]) -> None:
    domains: dict[str, list[str]] = {}
    for task_id in sorted(ids):
        domains.setdefault(task_id.partition("-")[0], []).append(task_id)
    (LISTS / f"{name}.json").write_text(json.dumps(domains, indent=1) + "\n")


if __name__ == "__main__":
    for name, ids in chosen().items():
        write(name, ids)
        print(f"{name}: {len(ids)} tasks, mean success {fmean(SUCCESSES[i] for i in ids) / 16:.1%}")
