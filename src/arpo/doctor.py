"""What works on this machine, and the one command that enables what does not: `arpo doctor`.

A backend is tried and not only imported: it sets a task up, looks and scores. Of osworld the client is started, and no
machine: `arpo doctor env.osworld_python=… env.osworld_disk=…`.
"""

import contextlib
import importlib.util
import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import features
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.config import EnvConfig
from arpo.envs.base import BACKENDS, Backend, catalog, make
from arpo.envs.desktop.delegate import Client
from arpo.envs.desktop.sandbox import APPLICATIONS, PROGRAMS, missing
from arpo.envs.osworld import Docker
from arpo.errors import ArpoError, ConfigError
from arpo.tasks.load import load_tasks

PIP = f"{sys.executable} -m pip install"  # into the environment that this command runs in, whatever is active


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that works or does not."""

    what: str
    works: bool
    detail: str
    enable: str = ""  # the command that makes it work; empty: there is none yet


def diagnose(env: EnvConfig) -> list[Finding]:
    here = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    backends = (_osworld(one, env) if one.name == "osworld" else _backend(one) for one in BACKENDS.values())
    return [Finding("Python", True, here), _fonts(), *backends, *(_extra(*extra) for extra in EXTRAS)]


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
    if backend.name == "desktop" and (command := missing({**PROGRAMS, **APPLICATIONS})):
        return Finding(what, False, "programs are missing", command)
    try:
        tasks = load_tasks(backend.name, catalog(backend.name).SPLITS[0])
        with contextlib.closing(make(backend.name)) as env:
            env.reset(tasks[0], 0)
            env.score()
    except ConfigError as error:  # it says itself what to do
        return Finding(what, False, str(error))
    except Exception as error:  # whatever is broken is what is asked for here
        return Finding(what, False, f"{type(error).__name__}: {error}", "make clean install")
    return Finding(what, True, f"{backend.about}; {len(tasks)} training tasks")


def _osworld(backend: Backend, env: EnvConfig) -> Finding:
    what = f"environment {backend.name}"
    try:
        lacking = Docker(env.osworld_image, Path(env.osworld_disk) if env.osworld_disk else None).missing()
        if env.osworld_python is None:
            lacking.append(("env.osworld_python", "make osworld-client; then set it to that interpreter"))
        if lacking:
            return Finding(what, False, f"{lacking[0][0]} is missing", lacking[0][1])
        assert env.osworld_python is not None
        with contextlib.closing(Client(env.osworld_python)) as client:
            client.has_metric("infeasible")  # it is started for that
    except ArpoError as error:
        return Finding(what, False, str(error))
    return Finding(what, True, backend.about)


EXTRAS = (  # its name, what is to be installed, what is then there
    ("gym", "gymnasium>=1.1", 'gymnasium.make("arpo/Pocket-v0") after `import arpo.envs.gym`'),
    ("lora", "peft>=0.18", "train.lora_rank=16"),
    ("track", "tensorboard>=2.18", "train.track=[tensorboard]"),
    ("track", "wandb>=0.19", "train.track=[wandb] or [wandb-offline]"),
)


def _extra(name: str, needed: str, detail: str) -> Finding:
    found = importlib.util.find_spec(needed.partition(">")[0]) is not None
    return Finding(f"extra {name}", found, detail if found else "not installed", f"{PIP} '{needed}'")


def print_findings(findings: list[Finding]) -> None:
    table = Table("", "", "what it is, or the command that enables it", box=None, pad_edge=False)
    for finding in findings:
        mark = "[green]works[/]" if finding.works else "[red]missing[/]"
        lines = [finding.detail] if finding.works or not finding.enable else [finding.detail, finding.enable]
        table.add_row(mark, finding.what, escape("\n".join(lines)))
    Console(highlight=False).print(table)
