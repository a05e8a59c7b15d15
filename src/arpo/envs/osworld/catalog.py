"""The tasks that come with `osworld`: none. They are files, OSWorld's or the user's own (tasks/load.py reads them)."""

from arpo.errors import TaskError
from arpo.types import Task

SPLITS: tuple[str, ...] = ()
_FILES = "this environment's tasks are files; tasks.source must name a list of them, a .json file"


def task_list(split: str) -> dict[str, list[str]]:
    raise TaskError(f"unknown split {split!r}: {_FILES}")


def get_task(task_id: str) -> Task:
    raise TaskError(f"unknown task {task_id!r}: {_FILES}")
