"""Whether a task is done, by OSWorld's evaluators: getters fetch a value from the machine, metrics compare two.

    {"func": "exact_match", "result": {"type": "vm_command_line", …}, "expected": {"type": "rule", …},
     "postconfig": [steps that come first, as in setup.py], "conj": "and", "options": {…}}

    score(sandbox, task, answer)      0 … 1
    missing_checks(task)              the names of getters and metrics that are not here: the task is refused by them
    refuse_broken_checks(task)        ValueError where one that is here is called with what it does not know

getters.py and chrome.py fetch. What they fetched is read and compared by judge.py and what it imports, in a process
with limits (judging.py). A value that is not there scores 0, and so does a file that cannot be read as what it should
be, or that takes its checker over the limits: the agent made it. Whatever else goes wrong is machinery.
"""

from __future__ import annotations

import inspect
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from arpo.envs.client_process import number
from arpo.envs.desktop.checks.chrome import PROFILE_GETTERS, TAB_GETTERS, THEIR_PROFILE_GETTERS, close_browser
from arpo.envs.desktop.checks.controller import controller
from arpo.envs.desktop.checks.getters import COMMON_GETTERS, Machine, asked_by, is_live
from arpo.envs.desktop.checks.judge import METRICS, READERS, at, without_type
from arpo.envs.desktop.checks.judging import judges
from arpo.envs.desktop.checks.rules import refuse_rules
from arpo.envs.desktop.checks.tables import refuse_table_rules, tables_cannot
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.desktop.setup import CHECKING_S, finish
from arpo.envs.evaluators import Evaluators, Unreadable
from arpo.envs.task_format import asked_for, listed
from arpo.errors import EnvError
from arpo.types import Task

GETTERS = COMMON_GETTERS | PROFILE_GETTERS | TAB_GETTERS
__all__ = ["GETTERS", "METRICS", "missing_checks", "refuse_broken_checks", "score"]


def score(
    sandbox: Sandbox, task: Task, answer: str, files: FileSource | None = None, osworld: Evaluators | None = None
) -> float:
    """Of a feasible task, in the state that the machine is in. `answer`: what the agent said when it finished."""
    with tempfile.TemporaryDirectory(prefix="arpo-") as cache:
        machine = Machine(sandbox, Path(cache), files or FileSource(), answer, time.monotonic() + CHECKING_S)
        getters = {what["type"] for what in asked_for(task.evaluator)}
        if getters & {*PROFILE_GETTERS, *THEIR_PROFILE_GETTERS} and not getters & TAB_GETTERS.keys():
            close_browser(sandbox)
        finish(sandbox, task, machine.cache, machine.files, machine.until)
        try:
            fetched = _fetch(machine, task.evaluator, osworld)
            return _score(machine, task, fetched, osworld)
        except Unreadable:
            return 0.0
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise EnvError(f"{task.id}: its checker failed: {type(error).__name__}: {error}") from error


def _fetch(machine: Machine, evaluator: dict[str, Any], osworld: Evaluators | None) -> dict[str, list[Any]]:
    """What every getter gives: first what running programs must be asked for; then they are stopped."""
    fetched: dict[str, list[Any]] = {key: [None] * len(listed(evaluator["func"])) for key in ("result", "expected")}
    asked = [(key, i, what) for key in fetched for i, what in enumerate(listed(evaluator.get(key))) if what]
    for key, i, what in asked:
        if is_live(what):
            fetched[key][i] = _get(machine, what, osworld)
    still = [one for one in asked if not is_live(one[2])]
    for awake in sorted({asked_by(what) for *_, what in still}, reverse=True):  # those that need none: last
        with machine.sandbox.frozen(awake):
            for key, i, what in still:
                if asked_by(what) == awake:
                    fetched[key][i] = _get(machine, what, osworld)
    return fetched


def _score(machine: Machine, task: Task, fetched: dict[str, list[Any]], osworld: Evaluators | None) -> float:
    """All metrics must have something to say and their mean counts; with "or" the best of them does.

    Where some say nothing, `partial` of their mean counts. What was right from the start counts too, since nobody has
    looked then: the same for all attempts that are compared, but for those that gave up, which score 0.
    """
    metrics = listed(task.evaluator["func"])
    options = [at(task.evaluator, "options", i) or {} for i in range(len(metrics))]
    theirs = [bool(osworld and _no_metric(*one)) for one in zip(metrics, options, strict=True)]
    verdicts = judges().judge(f"{task.id}: its checker", task.evaluator, fetched, theirs, machine.cache)
    scores = []
    for i, verdict in enumerate(verdicts):
        if osworld and isinstance(verdict, list):
            values = [
                value if what["type"] in READERS else fetched[key][i]
                for value, (key, what) in zip(verdict, _asked(task.evaluator, i), strict=True)
            ]
            verdict = _theirs(osworld, metrics[i], values, options[i], machine.cache)
        scores.append(number(verdict, f"{task.id}: its checker"))
    if task.evaluator.get("conj", "and") == "or":
        return max(scores)
    mean = sum(scores) / len(scores)
    return mean if all(scores) else task.partial * mean


def _asked(evaluator: dict[str, Any], i: int) -> list[tuple[str, dict[str, Any]]]:
    return [(key, what) for key in ("result", "expected") if (what := at(evaluator, key, i))]


def _theirs(osworld: Evaluators, name: str, values: list[Any], options: dict[str, Any], cache: Path) -> float:
    try:
        return min(1.0, max(0.0, osworld.metric(name, values, options, cache)))
    except Unreadable:
        return 0.0


def missing_checks(task: Task, osworld: Evaluators | None = None) -> list[str]:
    """Those that are neither here nor with OSWorld's client; the latter is started where it is needed."""
    if not task.feasible:
        return []
    evaluator = task.evaluator
    lacking = set()
    for i, name in enumerate(listed(evaluator["func"])):
        options = at(evaluator, "options", i) or {}
        if (missing := _no_metric(name, options)) and not (osworld and osworld.has_metric(name)):
            lacking |= missing
    for what in asked_for(evaluator):
        if (missing := _no_getter(what)) and not (osworld and osworld.has_getter(what["type"])):
            lacking |= missing
    return sorted(lacking)


def refuse_broken_checks(task: Task) -> None:
    """What OSWorld's client does is its own to judge."""
    evaluator = task.evaluator
    for what in asked_for(evaluator):
        if not _no_getter(what):
            _refuse_call(what["type"], GETTERS[what["type"]], None, **without_type(what))
        _refuse_names(what)
    for i, name in enumerate(listed(evaluator["func"]) if task.feasible else []):
        expected, options = at(evaluator, "expected", i), at(evaluator, "options", i) or {}
        if not _no_metric(name, options):
            _refuse_call(name, METRICS[name], *[None] * (2 if expected else 1), **options)
            if expected and expected["type"] == "rule":
                refuse_rules(name, expected["rules"])
            if name == "compare_table":
                refuse_table_rules(options["rules"])


def _refuse_call(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def _refuse_names(what: dict[str, Any]) -> None:
    """Of the files in the getter's folder: each has its own, and none leads out of it."""
    paths = listed(what.get("path"))
    names = listed(what.get("dest")) or [Path(path).name for path in paths]
    if what["type"] == "cache_file":
        names = paths
    if any(Path(name).is_absolute() or ".." in Path(name).parts for name in names):
        raise ValueError(f"{what['type']}: {', '.join(names)}: must be names of files, not paths to elsewhere")
    if len(set(names)) < len(names):
        raise ValueError(f"{what['type']}: several files with one name: give each its own, by dest")


def _no_metric(name: str, options: dict[str, Any]) -> set[str]:
    return _lacking(METRICS, name, options) | (tables_cannot(options) if name == "compare_table" else set())


def _no_getter(what: dict[str, Any]) -> set[str]:
    return _lacking(GETTERS, what["type"], without_type(what))


def _lacking(known: dict[str, Callable[..., Any]], name: str, options: dict[str, Any]) -> set[str]:
    """The name, where it is not known, or those of its options that are not."""
    if name not in known:
        return {name}
    return {f"{name} ({option})" for option in options.keys() - inspect.signature(known[name]).parameters.keys()}


def _get(machine: Machine, what: dict[str, Any], osworld: Evaluators | None) -> Any:
    machine = replace(machine, cache=Path(tempfile.mkdtemp(dir=machine.cache)))  # two may have files of one name
    if osworld and _no_getter(what):
        return osworld.get(what["type"], what, machine.cache, partial(controller, machine))
    return GETTERS[what["type"]](machine, **without_type(what))
