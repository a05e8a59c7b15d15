"""From the word in a configuration to the tasks it means.

    load_tasks("pocket", "train")               a split of the environment's own catalog
    load_tasks("pocket", "mine/list.json")      a task list in OSWorld's form, {"files": ["files-rename-003", …], …}
    load_tasks("pocket", "files-rename-003")    one task

An id in a list is a task of the catalog, or a file beside the list, `examples/<domain>/<id>.json`, with one Task in its
JSON form or in OSWorld's; the file wins. Whatever is wrong ends in one TaskError that names the place.
"""

import dataclasses
import difflib
import itertools
import json
import math
import os
import stat
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pydantic

from arpo.config import Config
from arpo.envs.base import Catalog, catalog, refuse_unfit, settings_of
from arpo.envs.task_format import from_osworld, how_to_get, what_is_wrong
from arpo.errors import TaskError
from arpo.types import Task, from_json

STORED = "stored"  # in place of that word: the tasks of stored episodes (training/offline.py)
FRESH = "fresh"
HELD_OUT = ("heldout", "heldout_families")
JUDGED = ("train", FRESH, *HELD_OUT)  # what a training may be judged on
LARGEST = 16 << 20  # bytes of a file
DEEPEST = 100  # lists in lists
LONGEST = 200  # bytes of a name, which with an ending must do as a file's
MOST_STEPS = 10_000
AT_ONCE = 0 if os.name == "nt" else os.O_NONBLOCK  # some files of a kernel would be waited for


def load_tasks(env: str, spec: str, settings: dict[str, Any] | None = None, max_steps: int | None = None) -> list[Task]:
    """The tasks of a split, of a task list file or of one id, in the order in which they are listed.

    `settings` are those with which the environment will be made: a task that it then cannot do is refused. `max_steps`
    replaces the limit of each task.
    """
    tasks = _load(env, spec)
    refuse_unfit(env, tasks, settings or {})
    return tasks if max_steps is None else [replace(task, max_steps=max_steps) for task in tasks]


def _load(env: str, spec: str) -> list[Task]:
    known = catalog(env)
    if spec in known.SPLITS:
        return [known.get_task(task_id) for ids in known.task_list(spec).values() for task_id in ids]
    if spec.endswith(".json") or "/" in spec:
        if not known.SPLITS and not os.path.exists(spec):
            raise TaskError(how_to_get(Path(spec)))
        return _load_list(env, known, Path(spec))
    try:
        return [known.get_task(spec)]
    except TaskError as error:
        if not known.SPLITS:
            raise
        if near := difflib.get_close_matches(spec, known.SPLITS, n=1):
            raise TaskError(f"unknown split or task {spec!r}: did you mean {near[0]}?") from None
        raise TaskError(f"{error} (a split would be one of {', '.join(known.SPLITS)}; a file ends in .json)") from None


def family(task: Task) -> str:
    """The kind of task that it is one of: what its environment calls a family, else its domain."""
    return str(task.setup.get("family", task.domain))


def interleaved(tasks: Iterable[Task]) -> list[Task]:
    """The same tasks in an order whose first few are as different as they can be: domains in turn, in each families."""

    def in_turn(lists: Iterable[list[Task]]) -> list[Task]:
        return [task for layer in itertools.zip_longest(*lists) for task in layer if task is not None]

    domains: dict[str, dict[str, list[Task]]] = {}
    for task in tasks:
        domains.setdefault(task.domain, {}).setdefault(family(task), []).append(task)
    return in_turn(in_turn(families.values()) for families in domains.values())


def judged_tasks(config: Config) -> dict[str, list[Task]]:
    """The tasks of each split on which training judges its agent; "train": those that it is trained on.

    With fixed starts these are judged on them, and as "fresh" once more, on starts that training never shows.
    """
    max_steps = config.tasks.max_steps
    train = load_tasks(config.env.name, config.tasks.source, settings_of(config.env), max_steps)
    return with_others(train, config)


def with_others(train: list[Task], config: Config) -> dict[str, list[Task]]:
    """The tasks that are trained on, and the other splits that judge such a training."""
    tasks, max_steps = {"train": train}, config.tasks.max_steps
    if config.env.fixed_starts:
        tasks[FRESH] = train
    for split in HELD_OUT:
        if split in catalog(config.env.name).SPLITS and config.eval.held_out:
            tasks[split] = interleaved(load_tasks(config.env.name, split, max_steps=max_steps))[: config.eval.held_out]
    return tasks


def to_text(tasks: dict[str, list[Task]]) -> str:
    """Whole tasks as one JSON object {split: [task, …]}. TaskError for one that JSON cannot hold."""
    try:
        return json.dumps({split: [plain(task) for task in part] for split, part in tasks.items()}, indent=1) + "\n"
    except (RecursionError, ValueError) as error:
        raise TaskError(f"these tasks cannot be kept: {error}") from None


def parse_tasks(text: str, path: Path, env: str) -> dict[str, list[Task]]:
    """What `to_text` wrote, for that environment. TaskError where it is not that; `path` is where it comes from."""
    kept = _parse_json(text, path)
    if not isinstance(kept, dict) or not all(isinstance(part, list) for part in kept.values()):
        raise TaskError(f"{path}: must be one object {{split: [task, …]}}")
    tasks = {split: [_task(item, path, env) for item in part] for split, part in kept.items()}
    for part in tasks.values():
        _refuse_bad_names(path, [(task.domain, task.id) for task in part])
        if wrong := next((task for task in part if task.env != env), None):
            raise TaskError(f"{path}: {wrong.id}: the task's env is {wrong.env!r}, not {env!r}")
    return tasks


def plain(task: Task) -> dict[str, Any]:
    """Its fields by name."""
    return {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}


def _load_list(env: str, known: Catalog, path: Path) -> list[Task]:
    listed = _parse_json(read_text(path), path)
    if not isinstance(listed, dict):
        raise TaskError(f"{path}: must be one object {{domain: [id, …]}}, not {_kind(listed)}")
    for domain, ids in listed.items():
        if not isinstance(ids, list):
            raise TaskError(f"{path}: {domain!r} must hold a list of ids, not {_kind(ids)}")
    entries = [(domain, task_id) for domain, ids in listed.items() for task_id in ids]
    if not entries:
        raise TaskError(f"{path}: lists no task")
    _refuse_bad_names(path, entries)
    return [_find(env, known, path, domain, task_id) for domain, task_id in entries]


def _refuse_bad_names(path: Path, entries: Iterable[tuple[str, str]]) -> None:
    """A domain and an id become parts of a path; an id is a task's own."""
    ids: set[str] = set()
    for domain, task_id in entries:
        for name in (domain, task_id):
            if not isinstance(name, str) or not _is_name(name):
                raise TaskError(f"{path}: {domain!r:.80}: {name!r:.80} is not a name (text without slashes)")
        same = unicodedata.normalize("NFKC", task_id).casefold()  # some systems take such names for one
        if same in ids:
            raise TaskError(f"{path}: the task {task_id!r} is listed twice")
        ids.add(same)


def _is_name(text: str) -> bool:
    plain = text.isprintable() and not {"/", "\\"} & {*text} and text not in ("", ".", "..")
    return plain and len(text.encode()) <= LONGEST


def _find(env: str, known: Catalog, path: Path, domain: str, task_id: str) -> Task:
    beside = path.parent / "examples" / domain / f"{task_id}.json"
    if os.path.exists(beside):
        task, place = _task(_parse_json(read_text(beside), beside), beside, env, domain), str(beside)
    else:
        place = f"{path}: {domain}"
        try:
            task = known.get_task(task_id)
        except TaskError as error:
            raise TaskError(f"{place}: {error}; there is no file {beside} either") from None
    for field, wanted in (("id", task_id), ("domain", domain), ("env", env)):
        if (value := getattr(task, field)) != wanted:
            raise TaskError(f"{place}: the task's {field} is {value!r}, not {wanted!r}")
    return task


def _task(data: Any, path: Path, env: str, domain: str | None = None) -> Task:
    """From its JSON in our form; with a domain also from OSWorld's, which has neither `setup` nor `env`."""
    try:
        if domain is None or not isinstance(data, dict) or {"setup", "env"} & data.keys():
            task = from_json(Task, json.dumps(data))
        else:
            task = from_osworld(data, domain, env)
    except pydantic.ValidationError as error:
        raise TaskError(f"{path}: {what_is_wrong(error)}") from None
    except RecursionError:
        raise TaskError(f"{path}: nested too deeply") from None
    if not 1 <= task.max_steps <= MOST_STEPS:
        raise TaskError(f"{path}: max_steps={task.max_steps}: must be from 1 to {MOST_STEPS}")
    if task.partial:
        raise TaskError(f"{path}: partial={task.partial}: is for training alone to say, by algorithm.partial")
    return task


def _parse_json(text: str, path: Path) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built: dict[str, Any] = {}
        for name, value in pairs:
            if name in built:
                raise TaskError(f"{path}: the key {name!r} is given twice")
            built[name] = value
        return built

    def finite(text: str) -> float:
        if not math.isfinite(number := float(text)):
            raise ValueError(f"{text:.20} is no number")
        return number

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=finite)
    except json.JSONDecodeError as error:
        raise TaskError(f"{path}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise TaskError(f"{path}: not JSON that can be read: {error}") from None
    level = [value]
    for _ in range(DEEPEST):
        lists = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [*itertools.chain.from_iterable(lists)]
    if level:
        raise TaskError(f"{path}: nested more than {DEEPEST} deep")
    return value


def read_text(path: Path) -> str:
    """The text of a task file or list. What is no file, or has no end, is not waited for."""
    try:
        state = path.stat()
        if not stat.S_ISDIR(state.st_mode) and not stat.S_ISREG(state.st_mode):
            raise TaskError(f"{path}: is not a file")
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | AT_ONCE)) as file:
            data = file.read(LARGEST + 1) or b""  # None where it would have to be waited for
        if len(data) > LARGEST:
            raise TaskError(f"{path}: is larger than {LARGEST >> 20} MB")
        return data.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError:
        raise TaskError(f"{path}: not a text file in UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise TaskError(f"{path}: cannot be read: {reason}") from None


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
