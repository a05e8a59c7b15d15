"""What a task needs of the desktop, seen before it is played: what cannot be set up or scored is refused by name.

refuse(task, {"files": "osworld-files", "osworld_python": "osworld/bin/python"})      TaskError, or nothing
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arpo.envs.desktop.checks import listed, missing_checks
from arpo.envs.desktop.delegate import client
from arpo.envs.desktop.files import Files
from arpo.envs.desktop.setup import unknown_steps
from arpo.errors import TaskError
from arpo.types import Task


def refuse(task: Task, settings: dict[str, Any]) -> None:
    files, osworld_python = settings.get("files"), settings.get("osworld_python")
    if not isinstance(task.setup.get("config"), list) or "func" not in task.evaluator:
        raise TaskError(f"{task.id}: not a task of this environment: setup.config and evaluator.func are OSWorld's")
    if steps := unknown_steps(task):
        raise TaskError(f"{task.id}: this environment lacks its setup steps {', '.join(steps)}")
    for url in _urls(task):
        if why := Files(files).why_not(url):
            raise TaskError(f"{task.id}: needs the file {url}, but {why}")
    if lacking := missing_checks(task, client(osworld_python) if osworld_python else None):
        hint = "" if osworld_python else "; OSWorld's client may have them: set env.osworld_python to its interpreter"
        raise TaskError(f"{task.id}: this environment lacks its checkers {', '.join(lacking)}{hint}")


def _urls(task: Task) -> Iterator[str]:
    """Every file that its setup or its checker fetches."""
    for step in [*task.setup["config"], *task.evaluator.get("postconfig", [])]:
        if step["type"] == "download":
            yield from (file["url"] for file in step["parameters"]["files"])
    for what in (one for key in ("result", "expected") for one in listed(task.evaluator.get(key)) if one):
        if what["type"] == "cloud_file":
            yield from listed(what["path"])
