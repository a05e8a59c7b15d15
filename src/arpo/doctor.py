"""What works on this machine, and the one command that enables what does not: `arpo doctor`.

A backend is tried and not only imported: it sets a task up, looks and scores.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import dataclass

from PIL import features
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.envs.base import BACKENDS, Backend, catalog, make
from arpo.tasks.load import load_tasks

PIP = f"{sys.executable} -m pip install"  # into the environment that this command runs in, whatever is active


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that works or does not."""

    what: str
    works: bool
    detail: str
    enable: str = ""  # the command that makes it work


def diagnose() -> list[Finding]:
    return [_python(), _fonts(), *(_backend(backend) for backend in BACKENDS.values()), _gymnasium()]


def _python() -> Finding:
    return Finding("Python", True, f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def _fonts() -> Finding:
    version = features.version("freetype2")
    return Finding(
        "Pillow with FreeType",
        version is not None,
        f"FreeType {version}" if version else "this Pillow was built without it: no text on any screen",
        f"{PIP} --force-reinstall --only-binary :all: pillow",
    )


def _backend(backend: Backend) -> Finding:
    what = f"environment {backend.name}"
    try:
        tasks = load_tasks(backend.name, catalog(backend.name).SPLITS[0])
        env = make(backend.name)
        env.reset(tasks[0], 0)
        env.score()
        env.close()
    except Exception as error:  # whatever is broken is what is asked for here
        return Finding(what, False, f"{type(error).__name__}: {error}", "make clean install")
    return Finding(what, True, f"{backend.about}; {len(tasks)} training tasks")


def _gymnasium() -> Finding:
    found = importlib.util.find_spec("gymnasium") is not None
    detail = 'gymnasium.make("arpo/Pocket-v0") after `import arpo.envs.gym`' if found else "not installed"
    return Finding("extra gym", found, detail, f"{PIP} 'gymnasium>=1.1'")


def print_findings(findings: list[Finding]) -> None:
    table = Table("", "", "what it is, or the command that enables it", box=None, pad_edge=False)
    for finding in findings:
        mark = "[green]works[/]" if finding.works else "[red]missing[/]"
        lines = [finding.detail] if finding.works else [finding.detail, finding.enable]
        table.add_row(mark, finding.what, escape("\n".join(lines)))
    Console(highlight=False).print(table)
