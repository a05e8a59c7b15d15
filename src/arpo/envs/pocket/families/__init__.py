"""The tasks: families that make instances at random, set the desktop up, check its state and know an expert."""

from random import Random
from typing import Any

from arpo.envs.pocket.families import browser, calculator, editor, files, mail, multi, settings, sheet, shell
from arpo.envs.pocket.families.base import Family
from arpo.errors import TaskError
from arpo.types import Task

FAMILIES: dict[str, Family] = {  # every class of these modules that has a name of its own
    family.name: family()
    for module in (shell, editor, files, mail, browser, sheet, calculator, settings, multi)
    for family in vars(module).values()
    if isinstance(family, type) and issubclass(family, Family) and "name" in vars(family)
}


def family_of(task: Task) -> tuple[Family, dict[str, Any]]:
    """The family and the parameters of a task, or a TaskError that says what is wrong with its `setup`."""
    name, params = task.setup.get("family"), task.setup.get("params")
    if name not in FAMILIES:
        raise TaskError(f"task {task.id}: setup.family is {name!r}: pocket has {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[name]
    pattern = family.random_params(Random(0))
    if not isinstance(params, dict) or params.keys() != pattern.keys():
        raise TaskError(f"task {task.id}: setup.params of {name} must have the keys {', '.join(sorted(pattern))}")
    for key, example in pattern.items():
        if type(params[key]) is not type(example):
            raise TaskError(f"task {task.id}: setup.params.{key} is {params[key]!r}, expected like {example!r}")
    return family, params
