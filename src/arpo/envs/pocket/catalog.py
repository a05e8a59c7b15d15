"""Which tasks there are: ids, and the splits as task lists in OSWorld's form {domain: [id, …]}.

An id is a family and a number: "files-rename-003" is the fourth instance of its family. The parameters of an instance
are random, from a seed that the id gives, and no two instances of a family are equal. Every family has more instances
than the lists name; their split is "extra". Some families have a dozen of them, others thousands.

    train             instances of the 44 families that are trained on
    heldout           further instances of the same families
    heldout_families  instances of ten other families
    subset32          a part of train, for small machines: the first instance of 32 families from all domains
    demo, compare, seldom, seldom16    parts of train: tasks that the agent `base` sometimes solves, by the rules in
                      teaching/lists.py

The lists are files in `lists/`. Figures depend on them, so what is in them stays. After a new family was written,
`python -m arpo.envs.pocket.catalog` adds its tasks to `train` and `heldout`, or to `heldout_families`.
"""

import difflib
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from random import Random

from arpo.envs.pocket.families import FAMILIES
from arpo.envs.pocket.families.base import Params
from arpo.errors import TaskError
from arpo.types import Task

SELECTED = ("demo", "compare", "seldom", "seldom16")  # by an agent's success
SPLITS = ("train", "subset32", *SELECTED, "heldout", "heldout_families")
LISTS = Path(__file__).parent / "lists"
HELDOUT_FAMILIES = frozenset(
    "shell-move files-copy files-largest mail-forward browser-cheaper sheet-copy sheet-missing settings-reset "
    "multi-attachment multi-webprice".split()
)
COUNTS = {"train": (6, 2), "heldout": (3, 1), "heldout_families": (5, 1)}  # of a new family: feasible, infeasible
TRIES = 200  # to find an instance that is not equal to an earlier one
_instances: defaultdict[str, list[Params]] = defaultdict(list)  # of each family, so far; always in the same order


def get_task(task_id: str) -> Task:
    """The task of that id, or a TaskError that names the nearest ones."""
    match = re.fullmatch(r"([a-z]+-[a-z]+)-([0-9]{3,5})", task_id)
    if match is None or match[1] not in FAMILIES:
        known = [task for split in SPLITS for tasks in task_list(split).values() for task in tasks]
        near = difflib.get_close_matches(task_id, known, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`arpo envs list --json` has all ids"
        raise TaskError(f"unknown pocket task {task_id!r}: {hint}")
    family = FAMILIES[match[1]]
    params = _instance(family.name, int(match[2]))
    return Task(
        id=task_id,
        domain=family.domain,
        instruction=family.instruction(params),
        env="pocket",
        setup={"family": family.name, "params": dict(params)},
        evaluator={"func": "state" if family.feasible else "infeasible"},
        split=_splits().get(task_id, "extra"),
    )


def task_list(split: str) -> dict[str, list[str]]:
    """The ids of a split by domain."""
    if split not in SPLITS:
        near = difflib.get_close_matches(split, SPLITS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"pocket has {', '.join(SPLITS)}"
        raise TaskError(f"unknown split {split!r}: {hint}")
    tasks: dict[str, list[str]] = json.loads((LISTS / f"{split}.json").read_text(encoding="utf-8"))
    return tasks


def build_lists() -> dict[str, dict[str, list[str]]]:
    """The lists as they are and, at the ends of their domains, tasks of the families that none of them has."""
    lists = {split: task_list(split) for split in COUNTS}
    listed = {task.rpartition("-")[0] for split in lists.values() for tasks in split.values() for task in tasks}
    for family in (family for name, family in FAMILIES.items() if name not in listed):
        number = 0
        for split in ("heldout_families",) if family.name in HELDOUT_FAMILIES else ("train", "heldout"):
            first, number = number, number + COUNTS[split][not family.feasible]
            more = [f"{family.name}-{i:03d}" for i in range(first, number)]
            lists[split].setdefault(family.domain, []).extend(more)
    return lists


@cache
def _splits() -> dict[str, str]:
    """The split of every listed task; the other lists are parts of `train`."""
    splits = ("train", "heldout", "heldout_families")
    return {task: split for split in splits for tasks in task_list(split).values() for task in tasks}


def _instance(family_name: str, number: int) -> Params:
    instances = _instances[family_name]
    while len(instances) <= number:
        for attempt in range(TRIES):
            params = FAMILIES[family_name].random_params(Random(f"{family_name}/{len(instances)}/{attempt}"))
            if params not in instances:
                break
        else:
            raise TaskError(
                f"task {family_name}-{number:03d}: the family has only {len(instances)} different instances"
            )
        instances.append(params)
    return instances[number]


def write_lists() -> None:
    for split, tasks in build_lists().items():
        (LISTS / f"{split}.json").write_text(json.dumps(tasks, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_lists()
