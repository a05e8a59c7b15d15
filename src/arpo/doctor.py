"""What works on this machine, and the one command that enables what does not: `arpo doctor`."""

import contextlib
import importlib.util
import itertools
import os
import platform
import shutil
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import features
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.config import Config, EnvConfig
from arpo.envs.base import BACKENDS, Backend
from arpo.envs.listing import try_out
from arpo.errors import ConfigError
from arpo.machine import cores
from arpo.model.shapes import numbers_of
from arpo.registry import imported
from arpo.training.memory import Shape, estimate, find_device, gib, smallest_gpu

PIP = f"{sys.executable} -m pip install"  # into the environment that this command runs in, whatever is active


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    works: bool
    detail: str
    enable: str = ""  # the command that makes it work; empty: there is none


def diagnose(env: EnvConfig) -> list[Finding]:
    here = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    freetype = features.version("freetype2")
    detail = f"FreeType {freetype}" if freetype else "this Pillow was built without it: no text on any screen"
    return [
        Finding("Python", True, here),
        Finding("processor", True, _processor()),
        Finding("disk", True, _disk()),
        *_torch(),
        Finding("to train Qwen2.5-VL", True, _fits()),
        Finding("Pillow with FreeType", bool(freetype), detail, f"{PIP} --force-reinstall --only-binary :all: pillow"),
        *(Finding(f"environment {name}", *try_out(BACKENDS[name], env)) for name in BACKENDS.names()),
        *(Finding(*wall) for name in BACKENDS.names() for wall in _walls(BACKENDS[name])),
        _vllm(),
        *(_extra(*extra) for extra in EXTRAS),
    ]


def _vllm() -> Finding:
    """Whether there is one; it is not started, which takes a minute."""
    from arpo.engines.vllm.installed import COMMAND, find_python

    try:
        return Finding("engine vllm", True, f"by {find_python()}; engine.name=vllm, `arpo serve`")
    except ConfigError:
        return Finding("engine vllm", False, "not installed", COMMAND)


def _walls(backend: Backend) -> list[tuple[str, bool, str, str]]:
    return imported(backend.walls)() if backend.walls and backend.works_here else []


def _processor() -> str:
    """The cores, and the memory as far as this system says it: Windows says nothing, macOS not what is free."""
    parts = [f"{cores()} cores"]
    with contextlib.suppress(AttributeError, KeyError, OSError, ValueError):
        parts.append(f"{_gb(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))} of memory")
        memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        parts.append(f"{_gb(2**10 * int(memory['MemAvailable'].split()[0]))} of it free")
    return ", ".join(parts)


def _disk() -> str:
    try:
        return f"{_gb(shutil.disk_usage(here := Path.cwd()).free)} free in {here}"
    except OSError as error:  # such as a folder that was removed under us
        return f"cannot be asked: {error.strerror}"


def _gb(size: int) -> str:
    return f"{size / 2**30:.1f} GB"


def _torch() -> list[Finding]:
    """PyTorch, and what it computes on."""
    try:
        import torch
    except Exception as error:  # a broken build fails in many ways
        detail = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return [Finding("PyTorch", False, detail, f"{PIP} --force-reinstall torch")]
    with warnings.catch_warnings(record=True) as said:  # by a build for GPUs that finds a driver it cannot use
        warnings.simplefilter("always")
        devices = [f"cuda:{i} {_gpu(torch, i)}" for i in range(torch.cuda.device_count())]
    devices += ["mps"] if torch.backends.mps.is_available() else []
    why = f" ({str(said[0].message).splitlines()[0]})" if said else ""
    device = "; ".join(devices) or f"cpu: no GPU that PyTorch can use{why}"
    return [Finding("PyTorch", True, torch.__version__), Finding("device", True, device)]


def _fits() -> str:
    """What can be trained here, with 15 full-HD screenshots: a line for each size, with LoRA and without."""
    try:
        device = find_device("auto")
    except Exception as error:  # a torch or a driver that is broken, which is said elsewhere
        return f"not known: {str(error).partition(chr(10))[0]}"
    lines = []
    for size, rank in itertools.product((3, 7, 32), (16, 0)):
        config = Config().with_values({"env.size": (1920, 1080), "train.max_tokens": 512, "train.lora_rank": rank})
        model = Shape(numbers_of(f"qwen2.5-vl-{size}b"), "")
        needs, gpu = estimate(config, model, 15, device), smallest_gpu(config, model, 15)
        can = f"; {gpu.name} can" if estimate(config, model, 15, gpu).fits else ""
        takes = f"yes, {gib(max(needs.learning, needs.sampling))}" if needs.fits else f"no, {gib(needs.least)}{can}"
        lines.append(f"{size}B, {'LoRA' if rank else 'all weights'}: {takes}")
    return "\n".join(lines)


def _gpu(torch: Any, number: int) -> str:
    """Its name and memory, as far as it says."""
    try:
        name, (free, total) = torch.cuda.get_device_name(number), torch.cuda.mem_get_info(number)
    except RuntimeError as error:  # in use by another alone, or lost
        return f"cannot be used: {str(error).splitlines()[0]}"
    return f"{name}, {_gb(total)}, {_gb(free)} of it free"


EXTRAS = (  # its name, what is to be installed, what is then there
    ("ray", "ray>=2.60,<2.61", "env.ray: environments on the nodes of a cluster; `arpo doctor --cluster`"),
    ("gym", "gymnasium>=1.1", 'gymnasium.make("arpo/Pocket-v0") after `import arpo.envs.pocket.gymnasium_env`'),
    ("track", "tensorboard>=2.18", "train.track=[tensorboard]"),
    ("track", "wandb>=0.19", "train.track=[wandb] or [wandb-offline]"),
)


def _extra(name: str, needed: str, detail: str) -> Finding:
    installed = importlib.util.find_spec(needed.partition(">")[0]) is not None
    return Finding(f"extra {name}", installed, detail if installed else "not installed", f"{PIP} '{needed}'")


def print_findings(findings: list[Finding]) -> None:
    table = Table("", "", "what it is, or the command that enables it", box=None, pad_edge=False)
    for finding in findings:
        mark, enable = ("[green]works[/]", "") if finding.works else ("[red]missing[/]", finding.enable)
        table.add_row(mark, finding.what, escape(f"{finding.detail}\n{enable}".strip()))
    Console(highlight=False).print(table)
