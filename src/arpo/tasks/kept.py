"""The tasks of a run, kept whole in its folder: what was played must stay what is judged.

    tasks.json      {split: [task, …]}, written once; a training's splits are those that it is judged on

A list file may change, move or be deleted after a run was begun. Tasks that are named again (`arpo eval --run-dir`,
`arpo compare`, `arpo train … run_dir=`) must be those that the run was begun with; `arpo train --resume` names none and
uses the run's own. A run of an older arpo has kept none: they are kept when it is next opened.
"""

import json
from pathlib import Path

from arpo.config import Config
from arpo.envs.base import refuse_unfit, settings_of
from arpo.errors import ConfigError, TaskError
from arpo.files import read_bytes
from arpo.runs.store import TASKS, Run, write_whole
from arpo.tasks.load import FRESH, JUDGED, judged_tasks, parse_tasks, plain, to_text
from arpo.types import Task

LONGEST = 2**25  # bytes of tasks.json, at most

Tasks = dict[str, list[Task]]


def same_tasks(run: Run, tasks: Tasks, config: Config) -> None:
    """Keep them with the run, once. ConfigError where it was begun with others."""
    path = run.folder / TASKS
    kept = kept_tasks(run.folder, config)
    if kept is None:
        text = to_text(tasks)
        parse_tasks(text, path, config.env.name)  # what could not be read again is said before the work
        known = {task.id for part in tasks.values() for task in part}
        unknown = sorted({episode.task_id for episode in run.summaries()} - known)  # played by an older arpo
        if not unknown:
            write_whole(path, text)
        difference = f"{unknown[0]} is missing" if unknown else None
    else:
        difference = first_difference(kept, tasks)
    if difference is not None:
        raise ConfigError(
            f"{run.folder}: was begun with other tasks than tasks.source={config.tasks.source} has now: {difference}; "
            "put it back as it was, or choose another folder"
        )


def own_tasks(config: Config) -> Tasks | None:
    """The tasks of the training in this folder; None where it has kept none. ConfigError where they cannot be used."""
    assert config.run_dir is not None
    kept = kept_tasks(config.run_dir, config)
    if kept is not None and not _of_a_training(kept, config):
        raise ConfigError(f"{config.run_dir}: has no tasks of a training")
    for part in (kept or {}).values():
        refuse_unfit(config.env.name, part, settings_of(config.env))
    return kept


def changed_since(kept: Tasks, config: Config) -> str | None:
    """The first difference to what tasks.source has now; None where there is none, or the source is gone."""
    try:
        return first_difference(kept, judged_tasks(config))
    except TaskError:
        return None


def first_difference(kept: Tasks, tasks: Tasks) -> str | None:
    """The first task that is not the same, and in what."""
    for split in {**kept, **tasks}:
        old, new = ({task.id: plain(task) for task in part.get(split, [])} for part in (kept, tasks))
        for name in {**old, **new}:
            if name not in new:
                return f"{name} is missing"
            if name not in old:
                return f"{name} is new"
            for field in old[name]:
                # As JSON: in Python, true is 1 and 1.0.
                before, now = (json.dumps(part[name][field], sort_keys=True) for part in (old, new))
                if before != now:
                    return f"{name} has another {field}"
        for before, now in zip(old, new, strict=True):
            if before != now:
                return f"{now} stands where {before} stood"
    return None


def _of_a_training(kept: Tasks, config: Config) -> bool:
    """Whether there are trained tasks, the same ones on fresh starts where theirs are fixed, and else held-out ones."""
    again = kept.get("train") if config.env.fixed_starts else None
    return bool(kept.get("train")) and kept.keys() <= {*JUDGED} and kept.get(FRESH) == again


def kept_tasks(folder: Path, config: Config) -> Tasks | None:
    """All that tasks.json of a run holds; None where it has none."""
    path = folder / TASKS
    if not path.exists():
        return None
    try:
        return parse_tasks(read_bytes(path, LONGEST).decode("utf-8-sig"), path, config.env.name)
    except (TaskError, ValueError) as error:
        raise ConfigError(f"{error}; without this file the run takes its tasks from tasks.source again") from None
