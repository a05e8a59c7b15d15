"""OSWorld's own task files as Tasks; also the catalog of the environments that take their tasks from such files.

    load_tasks("osworld", "OSWorld/evaluation_examples/test_all.json")       {"os": ["13584542-…", …], …}
                           OSWorld/evaluation_examples/examples/os/13584542-….json, one of these files

What a machine needs goes to `setup`: the steps that prepare it, and whether it wants a proxy. Notes for people (source,
trajectory, hint, …) are left behind. A field that OSWorld does not have is refused, since it may be a misspelt one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic

from arpo.errors import TaskError
from arpo.types import Task

SPLITS: tuple[str, ...] = ()  # the tasks are the user's files
MAX_STEPS = 15  # of an episode, as the paper trains and evaluates
RELEASE = "https://github.com/dvlab-research/ARPO"  # brings OSWorld with the lists of 128 and of 32 tasks


class _Step(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    type: str
    parameters: dict[str, Any]


class _Evaluator(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)  # what else there is belongs to the checker
    func: str | list[str]


class _File(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    id: str
    instruction: str = pydantic.Field(min_length=1)
    evaluator: _Evaluator
    config: list[_Step] = []
    proxy: bool = False
    snapshot: Any = None
    related_apps: Any = None
    fixed_ip: Any = None
    source: Any = None
    trajectory: Any = None
    hint: Any = None
    possibility_of_env_change: Any = None
    env_may_change: Any = None


def from_osworld(data: dict[str, Any], domain: str, env: str) -> Task:
    """The task of such a file; `domain` is its folder. pydantic's ValidationError names the field that is wrong."""
    _File.model_validate(data)
    return Task(
        id=data["id"],
        domain=domain,
        instruction=data["instruction"],
        env=env,
        setup={"config": data.get("config", []), "proxy": data.get("proxy", False)},
        evaluator=data["evaluator"],
        split="osworld",
        max_steps=MAX_STEPS,
    )


def task_list(split: str) -> dict[str, list[str]]:
    raise TaskError(f"unknown split {split!r}: {_FILES}")


def get_task(task_id: str) -> Task:
    raise TaskError(f"unknown task {task_id!r}: {_FILES}")


def how_to_get(path: Path) -> str:
    """What to do where the list is not there."""
    return (
        f"{path}: there is no such file; `git clone --recurse-submodules {RELEASE}` brings OSWorld's tasks, "
        f"then set tasks.source=ARPO/OSWorld/evaluation_examples/{path.name}"
    )


_FILES = "this environment's tasks are files; tasks.source must name a list of them, a .json file"
