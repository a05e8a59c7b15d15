"""Which tasks there are: ids, and the splits as task lists in OSWorld's form {domain: [id, …]}.

An id is a family and a number: "files-rename-003" is the fourth different instance that the family draws. Numbers go
on beyond those that the lists hold, so there is no end of further instances (their split is "extra").

    train             instances of the families that are trained on
    heldout           further instances of the same families
    heldout_families  families that train lacks
    subset32          of train: one task each of 32 families that are spread evenly over all, for small machines
    demo, compare     of train: tasks that the agent `base` sometimes solves, by the rules in benchmarks/lists.py

The lists are files, so that they can be read, quoted and pinned, and what is in them stays: figures depend on it.
`python -m arpo.envs.pocket.catalog` adds the tasks of families that are in none of them to the first three; the others
never change.
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

SELECTED = ("demo", "compare")  # by an agent's success
SPLITS = ("train", "subset32", *SELECTED, "heldout", "heldout_families")
LISTS = Path(__file__).parent / "lists"
HELDOUT_FAMILIES = frozenset(
    "shell-move files-copy files-largest mail-forward browser-cheaper sheet-copy sheet-missing settings-reset "
    "multi-attachment multi-webprice".split()
)
COUNTS = {"train": (6, 2), "heldout": (3, 1), "heldout_families": (5, 1)}  # of a new family: feasible, infeasible
DRAWS = 200  # tries to draw an instance that is not one of the earlier ones
_drawn: defaultdict[str, list[Params]] = defaultdict(list)  # each family's instances so far, always in the same order


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
    drawn = _drawn[family_name]
    while len(drawn) <= number:
        for attempt in range(DRAWS):
            params = FAMILIES[family_name].draw(Random(f"{family_name}/{len(drawn)}/{attempt}"))
            if params not in drawn:
                break
        else:
            raise TaskError(f"task {family_name}-{number:03d}: the family has only {len(drawn)} different instances")
        drawn.append(params)
    return drawn[number]


def write_lists() -> None:
    for split, tasks in build_lists().items():
        (LISTS / f"{split}.json").write_text(json.dumps(tasks, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_lists()
