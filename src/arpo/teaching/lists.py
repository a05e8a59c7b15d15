"""The task lists `demo` and `compare` of pocket, by the rules that chose them.

    python -m arpo.teaching.lists docs/results/base-train.json     # writes both lists into the package

Both lists hold feasible tasks of `train` that the agent `base` sometimes solves. The file says how often: successes in
16 trials at temperature 1.0, by task id. Tasks that were added later are not in it. The number of steps of a task is
what the expert needs, the mean over the seeds 9000 to 9002:

    demo      2 to 8 successes, fewer than 3 steps
    compare   1 to 4 successes, the 32 with the fewest steps

docs/log.md says why these rules.
"""

import json
import sys
from pathlib import Path
from statistics import fmean

from arpo.envs.base import make, make_expert
from arpo.envs.pictures import record
from arpo.envs.pocket.catalog import LISTS
from arpo.tasks.load import load_tasks
from arpo.types import Task

TRIALS = 16
SEEDS = range(9000, 9003)


def choose(successes: dict[str, int]) -> dict[str, list[str]]:
    """The ids of each list, from how often each task was solved."""
    env = make("pocket", size=(448, 280))

    def steps(task: Task) -> float:
        return fmean(record(env, make_expert("pocket", task), task, seed).steps for seed in SEEDS)

    tasks = [task for task in load_tasks("pocket", "train") if task.feasible and 1 <= successes.get(task.id, 0) <= 8]
    needed = {task.id: steps(task) for task in tasks}
    shortest = sorted(needed, key=lambda task_id: (needed[task_id], task_id))
    return {
        "demo": [task_id for task_id in shortest if successes[task_id] >= 2 and needed[task_id] < 3],
        "compare": [task_id for task_id in shortest if successes[task_id] <= 4][:32],
    }


def write(name: str, ids: list[str]) -> None:
    """Write a list in OSWorld's form, {domain: [id, …]}."""
    domains: dict[str, list[str]] = {}
    for task_id in sorted(ids):
        domains.setdefault(task_id.partition("-")[0], []).append(task_id)
    (LISTS / f"{name}.json").write_text(json.dumps(domains, indent=1) + "\n")


def main(path: str) -> None:
    successes = json.loads(Path(path).read_text())
    for name, ids in choose(successes).items():
        write(name, ids)
        print(f"{name}: {len(ids)} tasks, mean success {fmean(successes[i] for i in ids) / TRIALS:.1%}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the file of successes: python -m arpo.teaching.lists docs/results/base-train.json")
    main(sys.argv[1])
