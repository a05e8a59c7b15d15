"""Which tasks there are: ids, and the splits as task lists in OSWorld's form {domain: [id, …]}.

An id is a family and a number: "files-rename-003" is the fourth different instance that the family draws. Numbers go
on beyond those that the lists hold, so there is no end of further instances (their split is "extra").

    train             instances of the families that are trained on       subset32   32 of them, for small machines
    heldout           further instances of the same families              heldout_families   families that train lacks

The lists are files so that they can be read, quoted and pinned. `python -m arpo.envs.pocket.catalog` writes them anew
after a change of the families. Two further parts of `train` are not made by it, since they follow from how often the
agent `base` solved its tasks, in 16 trials of each at temperature 1.0 (docs/log.md):

    demo              12 short tasks that it solved in 3 to 6 of the 16
    compare           32 of those that it solved in 1 to 8 of the 16, infeasible ones too: their sorted ids shuffled by
                      Random(0), the first two of each family kept, domains in turn and in each its families
                      in turn (`tasks.load.spread`), the first 32
"""

import difflib
import json
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from random import Random

from arpo.envs.pocket.families import FAMILIES
from arpo.envs.pocket.families.base import Family, Params
from arpo.errors import TaskError
from arpo.types import Task

SELECTED = ("demo", "compare")  # by an agent's success
SPLITS = ("train", "subset32", *SELECTED, "heldout", "heldout_families")
LISTS = Path(__file__).parent / "lists"
HELDOUT_FAMILIES = frozenset(
    "shell-move files-copy files-largest mail-forward browser-cheaper sheet-copy sheet-missing settings-reset "
    "multi-attachment multi-webprice".split()
)
COUNTS = {"train": 6, "heldout": 3, "heldout_families": 5}  # instances of each feasible family
INFEASIBLE = 0.085  # the share of infeasible tasks in every split
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
        raise TaskError(f"unknown split {split!r}: pocket has {', '.join(SPLITS)}")
    tasks: dict[str, list[str]] = json.loads((LISTS / f"{split}.json").read_text(encoding="utf-8"))
    return tasks


def build_lists() -> dict[str, dict[str, list[str]]]:
    """The lists as they follow from the families."""
    kept = [family for family in FAMILIES.values() if family.name not in HELDOUT_FAMILIES]
    apart = [family for family in FAMILIES.values() if family.name in HELDOUT_FAMILIES]
    train = _deal(kept, COUNTS["train"])
    return {
        "train": _ids(train, {}),
        "subset32": _ids(_subset(kept, 32), {}),
        "heldout": _ids(_deal(kept, COUNTS["heldout"]), train),
        "heldout_families": _ids(_deal(apart, COUNTS["heldout_families"]), {}),
    }


def _deal(families: list[Family], count: int) -> dict[str, int]:
    """So many instances of each feasible family, and of the infeasible ones as many as make up their share."""
    counts = {family.name: count for family in families if family.feasible}
    infeasible = [family.name for family in families if not family.feasible]
    wanted = round(INFEASIBLE / (1 - INFEASIBLE) * sum(counts.values()))
    for i, name in enumerate(infeasible):
        counts[name] = wanted // len(infeasible) + (i < wanted % len(infeasible))
    return counts


def _subset(families: list[Family], total: int) -> dict[str, int]:
    """One instance each of families that are spread evenly over all, with the share of infeasible ones."""
    infeasible = [family.name for family in families if not family.feasible]
    feasible = [family.name for family in families if family.feasible]
    n = round(INFEASIBLE * total)
    spread = [names[i * len(names) // k] for names, k in ((feasible, total - n), (infeasible, n)) for i in range(k)]
    return dict.fromkeys(spread, 1)


def _ids(counts: dict[str, int], taken: dict[str, int]) -> dict[str, list[str]]:
    """The ids of so many instances of each family, by domain, after those that are taken."""
    tasks: dict[str, list[str]] = {}
    for name, family in FAMILIES.items():
        first = taken.get(name, 0)
        for number in range(first, first + counts.get(name, 0)):
            tasks.setdefault(family.domain, []).append(f"{name}-{number:03d}")
    return tasks


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
