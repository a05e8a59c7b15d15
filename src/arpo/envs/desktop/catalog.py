"""The desktop's own tasks, as their families have them (families/); each family also holds its tasks' expert.

    task_list("train")              {"editor": ["editor-write-000", …], …}; "heldout": the last ones of most families
    get_task("editor-write-000")

`python -m arpo.envs.desktop.catalog FOLDER` writes them as files in OSWorld's form, for use elsewhere:

    FOLDER/train.json  FOLDER/heldout.json  FOLDER/examples/editor/editor-write-000.json

OSWorld's own tasks are used by the path of a list (`tasks.source=OSWorld/…/test_all.json`).
"""

import difflib
import json
import sys
from dataclasses import replace
from pathlib import Path

from arpo.envs.desktop.families import FAMILIES, INSTANCES
from arpo.envs.task_format import from_osworld
from arpo.errors import TaskError
from arpo.types import Json, Task

SPLITS = ("train", "heldout")


def task_list(split: str) -> dict[str, list[str]]:
    """The ids of a split by domain."""
    if split not in SPLITS:
        raise TaskError(f"unknown split {split!r}: desktop has {', '.join(SPLITS)}")
    ids: dict[str, list[str]] = {}
    for task_id, (family, _) in INSTANCES.items():
        if _split(task_id) == split:
            ids.setdefault(family.domain, []).append(task_id)
    return ids


def get_task(task_id: str) -> Task:
    """The task of that id, or a TaskError that names the nearest ones."""
    if task_id not in INSTANCES:
        near = difflib.get_close_matches(task_id, INSTANCES, n=3)
        hint = f"did you mean {', '.join(near)}?" if near else "`arpo envs list --json` has all ids"
        raise TaskError(f"unknown desktop task {task_id!r}: {hint}")
    family, _ = INSTANCES[task_id]
    task = from_osworld(task_file(task_id), family.domain, "desktop")
    return replace(task, split=_split(task_id), setup={**task.setup, "family": family.name})


def task_file(task_id: str) -> Json:
    """The task as a file of OSWorld's has it."""
    family, params = INSTANCES[task_id]
    content = {"id": task_id, "snapshot": family.apps[0], **family.task(params), "related_apps": list(family.apps)}
    file: Json = json.loads(json.dumps(content))  # plain JSON, whatever a family made it of: a tuple is a list
    return file


def write_files(folder: Path) -> None:
    files = {f"{split}.json": task_list(split) for split in SPLITS}
    files |= {f"examples/{INSTANCES[task_id][0].domain}/{task_id}.json": task_file(task_id) for task_id in INSTANCES}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _split(task_id: str) -> str:
    name, _, number = task_id.rpartition("-")
    family = FAMILIES[name]
    return "train" if int(number) < len(family.instances) - family.held_out else "heldout"


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
