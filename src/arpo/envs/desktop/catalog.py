"""The desktop's own tasks: files in OSWorld's form, in the folder `tasks`.

    tasks/train.json                               {"editor": ["editor-write-000", …], …}
    tasks/heldout.json                             the last instances of most families
    tasks/examples/editor/editor-write-000.json    one task

`python -m arpo.envs.desktop.catalog` writes them anew after a change of the families (families/), which also hold each
task's expert. OSWorld's own tasks are used by the path of a list (`tasks.source=OSWorld/…/test_all.json`).
"""

import difflib
import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from arpo.envs.desktop.families import FAMILIES
from arpo.errors import TaskError
from arpo.tasks.osworld import from_osworld
from arpo.types import Json, Task

SPLITS = ("train", "heldout")
TASKS = Path(__file__).parent / "tasks"


def task_list(split: str) -> dict[str, list[str]]:
    """The ids of a split by domain."""
    if split not in SPLITS:
        raise TaskError(f"unknown split {split!r}: desktop has {', '.join(SPLITS)}")
    tasks: dict[str, list[str]] = json.loads((TASKS / f"{split}.json").read_text(encoding="utf-8"))
    return tasks


def get_task(task_id: str) -> Task:
    """The task of that id, or a TaskError that names the nearest ones."""
    places = _places()
    if task_id not in places:
        near = difflib.get_close_matches(task_id, places, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`arpo envs list --json` has all ids"
        raise TaskError(f"unknown desktop task {task_id!r}: {hint}")
    split, domain = places[task_id]
    data = json.loads((TASKS / "examples" / domain / f"{task_id}.json").read_text(encoding="utf-8"))
    task = from_osworld(data, domain, "desktop")
    return replace(task, split=split, setup={**task.setup, "family": task_id.rpartition("-")[0]})


@cache
def _places() -> dict[str, tuple[str, str]]:
    """Split and domain of every task."""
    return {
        task_id: (split, domain)
        for split in SPLITS
        for domain, task_ids in task_list(split).items()
        for task_id in task_ids
    }


def build() -> dict[str, Json]:
    """All files of the folder `tasks`, by their names, as they follow from the families."""
    lists: dict[str, dict[str, list[str]]] = {split: {} for split in SPLITS}
    files: dict[str, Json] = {f"{split}.json": tasks for split, tasks in lists.items()}
    for family in FAMILIES.values():
        for number, params in enumerate(family.instances):
            task_id = f"{family.name}-{number:03d}"
            split = "train" if number < len(family.instances) - family.held_out else "heldout"
            lists[split].setdefault(family.domain, []).append(task_id)
            file = {"id": task_id, "snapshot": family.apps[0], **family.task(params), "related_apps": list(family.apps)}
            files[f"examples/{family.domain}/{task_id}.json"] = file
    return files


def write_files() -> None:
    shutil.rmtree(TASKS, ignore_errors=True)
    for name, content in build().items():
        path = TASKS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_files()
