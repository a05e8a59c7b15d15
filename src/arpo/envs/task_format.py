"""OSWorld's form of a task: its files as Tasks, and what is wrong with one.

    load_tasks("osworld", "OSWorld/evaluation_examples/test_all.json")       {"os": ["13584542-…", …], …}
                           OSWorld/evaluation_examples/examples/os/13584542-….json, one of these files

What a machine needs goes to `setup`: the steps that prepare it, and whether it wants a proxy. Notes for people (source,
trajectory, hint, …) are left behind. A field that OSWorld does not have is refused, since it may be a misspelt one, and
so is an evaluator whose lists do not match.
"""

import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

import pydantic

from arpo.errors import TaskError
from arpo.types import Task

MAX_STEPS = 15  # of an episode, as the paper trains and evaluates; `tasks.max_steps` sets another limit
ALIKE = 0.8  # two names as near as one slip of the keyboard makes them; many checkers are called nearly the same
RELEASE = "https://github.com/dvlab-research/ARPO"  # brings OSWorld with the lists of 128 and of 32 tasks


class SetupStep(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    type: str
    parameters: dict[str, Any]


class Getter(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)  # what else there is belongs to its kind
    type: str


class Evaluator(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    func: str | list[str]
    result: Getter | list[Getter] | None = None
    expected: Getter | list[Getter | None] | None = None
    options: dict[str, Any] | list[dict[str, Any] | None] | None = None
    conj: Literal["and", "or"] = "and"
    postconfig: list[SetupStep] = []
    note: Any = pydantic.Field(None, alias="_config_note")  # one of OSWorld's has it

    @pydantic.model_validator(mode="after")
    def _each_metric_has_its_own(self) -> Self:
        if self.func != "infeasible" and not self.result:
            raise ValueError("result is missing")
        for name, value in (("result", self.result), ("expected", self.expected), ("options", self.options)):
            if value is not None and _length(value) != _length(self.func):
                raise ValueError(f"func and {name} must be one each, or lists of the same length")
        return self


def _length(value: object) -> int | None:
    return len(value) if isinstance(value, list) else None


class TaskParts(pydantic.BaseModel):
    """What a machine needs of a task."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)
    evaluator: Evaluator
    config: list[SetupStep] = []


class TaskFile(TaskParts):
    id: str
    instruction: str = pydantic.Field(min_length=1)
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
    TaskFile.model_validate(data)
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


def what_is_wrong(error: pydantic.ValidationError) -> str:
    """Its first line, with the field."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where + ': ' if where else ''}{first['msg']}"


def refuse_malformed(task: Task) -> None:
    """TaskError for one that is not of OSWorld's kind, whichever form its file has."""
    if not isinstance(task.setup.get("config"), list) or "func" not in task.evaluator:
        raise TaskError(f"{task.id}: not a task of this environment: setup.config and evaluator.func are OSWorld's")
    try:
        TaskParts.model_validate({"config": task.setup["config"], "evaluator": task.evaluator})
    except pydantic.ValidationError as error:
        raise TaskError(f"{task.id}: {what_is_wrong(error)}") from None


def did_you_mean(names: Iterable[str], known: Iterable[str]) -> str:
    """What to add to a refusal where a name looks like a misspelt one; else nothing."""
    known = list(known)
    near = [match for name in names for match in difflib.get_close_matches(name, known, n=1, cutoff=ALIKE)]
    return f"; did you mean {', '.join(near)}?" if near else ""


def how_to_get(path: Path) -> str:
    """What to do where the list is not there."""
    return (
        f"{path}: there is no such file; `git clone --recurse-submodules {RELEASE}` brings OSWorld's tasks, "
        f"then set tasks.source=ARPO/OSWorld/evaluation_examples/{path.name}"
    )


def asked_for(evaluator: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every `{"type": …}` that a getter answers."""
    return (one for key in ("result", "expected") for one in listed(evaluator.get(key)) if one)


def listed(value: Any) -> list[Any]:
    """What may be one thing or a list of them, as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]
