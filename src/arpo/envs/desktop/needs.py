"""What a task needs of the desktop, checked before it is played: what cannot be set up or scored is refused by name.

Misspelt words are refused here, too: later they would be an error in every episode, or a checker that always holds.

refuse(task, {"files": "osworld-files", "osworld_python": "osworld/bin/python"})      TaskError, or nothing
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from arpo.envs.desktop.checks import GETTERS, METRICS, missing_checks, refuse_broken_checks
from arpo.envs.desktop.checks.getters import NEEDED, not_installed
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.setup import STEPS, unknown_steps, words_of
from arpo.envs.evaluators import evaluators
from arpo.envs.task_format import asked_for, did_you_mean, listed, refuse_malformed
from arpo.errors import ConfigError, TaskError
from arpo.types import Task

SMALLEST, LARGEST = 200, 8192  # sides of the screen


def refuse_size(size: tuple[int, int]) -> None:
    if not all(SMALLEST <= side <= LARGEST for side in size):
        raise ConfigError("env.size={}x{}: a desktop's sides are from {} to {}".format(*size, SMALLEST, LARGEST))


def refuse(task: Task, settings: dict[str, Any]) -> None:
    try:
        _refuse(task, settings)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, re.error) as error:
        # Deep in a task, anything may be of another kind than what is done with it here.
        raise TaskError(f"{task.id}: not as a task should be: {type(error).__name__}: {error}") from None


def _refuse(task: Task, settings: dict[str, Any]) -> None:
    files, osworld_python = settings.get("files"), settings.get("osworld_python")
    refuse_malformed(task)
    if steps := unknown_steps(task):
        raise TaskError(f"{task.id}: this environment lacks its setup steps {', '.join(steps)}")
    for step in _steps(task):
        try:
            inspect.signature(STEPS[step["type"]]).bind(None, **step["parameters"])
        except TypeError as error:
            raise TaskError(f"{task.id}: the setup step {step['type']}: {error}") from None
        for file in step["parameters"]["files"] if step["type"] == "download" else []:
            if not isinstance(file, dict) or file.keys() != {"url", "path"}:
                raise TaskError(f"{task.id}: the setup step download: {file!r:.80} must have url and path")
    for url in _urls(task):
        if why := FileSource(files).why_not(url):
            raise TaskError(f"{task.id}: needs the file {url}, but {why}")
    osworld = evaluators(osworld_python) if osworld_python else None
    if lacking := missing_checks(task, osworld):
        known = {*METRICS, *GETTERS} | (osworld.known("metrics") | osworld.known("getters") if osworld else set())
        hint = did_you_mean(lacking, known)
        hint += "" if osworld else "; OSWorld's client may have them: set env.osworld_python to its interpreter"
        raise TaskError(f"{task.id}: this environment lacks its checkers {', '.join(lacking)}{hint}")
    try:
        refuse_broken_checks(task)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, re.error) as error:
        raise TaskError(f"{task.id}: its checker is not as it should be: {error}") from None
    for program in _programs(task):
        if why := not_installed(program):
            raise TaskError(f"{task.id}: its checker {why}")


def _steps(task: Task) -> list[dict[str, Any]]:
    return [*task.setup["config"], *task.evaluator.get("postconfig", [])]


def _programs(task: Task) -> Iterator[list[str] | str]:
    """Every command that its checker runs."""
    for what in asked_for(task.evaluator):
        if "command" in what:
            yield words_of(what["command"], what.get("shell", False))
        yield NEEDED.get(what["type"], "")


def _urls(task: Task) -> Iterator[str]:
    """Every file that its setup or its checker fetches."""
    for step in _steps(task):
        if step["type"] == "download":
            yield from (file["url"] for file in step["parameters"]["files"])
    for what in asked_for(task.evaluator):
        if what["type"] == "cloud_file":
            yield from listed(what.get("path"))
