"""What `arpo envs list` and `arpo envs check` print, and whether an environment works on this machine."""

import contextlib
from functools import partial
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.config import EnvConfig
from arpo.envs.base import BACKENDS, Backend, backend, catalog, make, refuse_system, settings_of
from arpo.envs.check import CheckResult, check
from arpo.envs.progress import doing
from arpo.errors import ConfigError
from arpo.registry import imported
from arpo.tasks.load import family, load_tasks
from arpo.types import Task


def describe() -> dict[str, Any]:
    """Every environment and what its splits hold."""
    return {"environments": [_describe(name) for name in BACKENDS.names()]}


def _describe(name: str) -> dict[str, Any]:
    known = backend(name)
    splits = []
    for split in catalog(name).SPLITS:
        tasks = load_tasks(name, split)
        splits.append(
            {
                "split": split,
                "tasks": len(tasks),
                "domains": len({task.domain for task in tasks}),
                "families": len({family(task) for task in tasks}),
                "infeasible": sum(not task.feasible for task in tasks) / max(1, len(tasks)),
                "ids": catalog(name).task_list(split),
            }
        )
    return {"name": name, "about": known.description, "deterministic": known.deterministic, "splits": splits}


def print_tables(listed: dict[str, Any]) -> None:
    console = Console(highlight=False)
    for env in listed["environments"]:
        repeats = "the same task, seed and actions give the same screens" if env["deterministic"] else "not repeatable"
        console.print(f"[bold]{env['name']}[/]  {escape(env['about'])}; {repeats}", soft_wrap=True)
        if not env["splits"]:
            continue
        table = Table("split", box=None, pad_edge=False)
        for column in ("tasks", "domains", "families", "infeasible"):
            table.add_column(column, justify="right")
        for row in env["splits"]:
            counts = (str(row[column]) for column in ("tasks", "domains", "families"))
            table.add_row(row["split"], *counts, f"{row['infeasible']:.0%}")
        console.print(table)
    console.print("The ids of the tasks: arpo envs list --json")


def check_and_print(name: str, size: tuple[int, int], allow_weaker_sandbox: bool = False) -> bool:
    """Try every promise, on one task of each family (of each domain where machines are slow). True: all were kept."""
    kinds: dict[tuple[str, bool], Task] = {}
    for split in catalog(name).SPLITS:
        for task in load_tasks(name, split):
            kind = family(task) if backend(name).deterministic else task.domain
            kinds.setdefault((kind, task.feasible), task)
    settings = settings_of(EnvConfig(name=name, size=size, allow_weaker_sandbox=allow_weaker_sandbox))
    make(name, **settings).close()  # so that a size that cannot be is the user's error and not a broken promise
    console = Console(highlight=False)

    def show(result: CheckResult) -> None:
        mark = "[green]ok    [/]" if result.ok else "[red]FAILED[/]"
        detail = f" ({result.detail})" if result.ok and result.detail else f": {result.detail}" if result.detail else ""
        console.print(f"{mark} {escape(result.promise + detail)}", soft_wrap=True)

    with doing(console) as now:
        results = check(
            name,
            partial(make, name, **settings),
            list(kinds.values()),
            backend(name).deterministic,
            begun=lambda what: now(f"{name} on {len(kinds)} tasks, {what}"),
            settled=show,
        )
    broken = sum(not result.ok for result in results)
    console.print(f"{name} keeps {len(results) - broken} of {len(results)} promises, tried on {len(kinds)} tasks")
    return not broken


def try_out(known: Backend, settings: EnvConfig) -> tuple[bool, str, str]:
    """Whether an environment works here; what it is, or what is wrong; the command that makes it work.

    It says itself what it lacks (`Backend.doctor`). If nothing, and it brings tasks, it sets one up and scores it.
    """
    detail = known.description
    try:
        refuse_system(known.name)
        for reason, enable in imported(known.doctor)(settings) if known.doctor else ():
            return False, reason, enable
        if splits := catalog(known.name).SPLITS:
            tasks = load_tasks(known.name, splits[0])
            with contextlib.closing(make(known.name)) as env:
                env.reset(tasks[0], 0)
                env.score()
            detail += f"; {len(tasks)} training tasks"
    except ConfigError as error:  # it says itself what to do
        return False, str(error), ""
    except Exception as error:  # whatever is broken is what is asked for here
        return False, f"{type(error).__name__}: {error}", "make clean install"
    return True, detail, ""
