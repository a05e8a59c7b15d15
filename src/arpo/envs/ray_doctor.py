"""What works on the nodes of a Ray cluster, and the command that mends what does not: `arpo doctor --cluster`.

On every node a small task looks around. What an environment lacks there its own doctor says (Backend.doctor), on the
nodes that offer what it takes: KVM, Docker, the image of the machine, programs.
"""

import contextlib
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.config import EnvConfig
from arpo.envs.base import backend
from arpo.envs.memory import free_mb
from arpo.envs.ray_pool import alive, connect, disconnect, usable
from arpo.machine import cores
from arpo.registry import imported

ANSWER_S = 120.0  # a node's limit: the first task on it starts a process
CLOCK_S = 1.0  # that clocks may differ
DISK_GB, MEMORY_GB = 10, 2  # that should be free
PORT_S = 5.0
PACKAGES = ("arpo", "ray", "torch")


@dataclass
class Checked:
    """One node."""

    address: str
    offers: dict[str, float]
    seen: dict[str, Any] = field(default_factory=dict)  # what `look` says of it
    clock_s: float = 0.0  # by how much it is ahead of this machine
    wrong: list[tuple[str, str]] = field(default_factory=list)  # each thing, and the command that mends it


def check_cluster(settings: EnvConfig) -> list[Checked]:
    """Every node of the cluster that the settings name, looked at."""
    resource = settings.resource or backend(settings.name).resource
    connect(settings, resource)
    try:
        nodes = alive()
        asked = [_on(node, look, settings, bool(usable(node, resource))) for node in nodes]
        checked = [_checked(node, answer) for node, answer in zip(nodes, asked, strict=True)]
    finally:
        disconnect()
    if not any(usable(node, resource) for node in nodes):
        example = f"{resource}:ADDRESS" if resource == "docker" else resource
        command = f"ray start … --resources='{{\"{example}\": 16}}'"
        checked[0].wrong.append((f"no node offers {resource}, which env.name={settings.name} needs", command))
    return checked


def _on(node: dict[str, Any], function: Any, *arguments: Any) -> Any:
    where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    return ray.remote(num_cpus=0, max_retries=0)(function).options(scheduling_strategy=where).remote(*arguments)


def _checked(node: dict[str, Any], answer: Any) -> Checked:
    address = node["NodeManagerAddress"]
    offers = {name: n for name, n in node["Resources"].items() if not name.startswith(("node:", "object_", "memory"))}
    one = Checked(address, offers)
    for name, option in (("NodeManagerPort", "node-manager-port"), ("ObjectManagerPort", "object-manager-port")):
        with contextlib.closing(socket.socket()) as port:
            port.settimeout(PORT_S)
            if port.connect_ex((address, node[name])):
                command = f"ray start … --{option}=PORT, and let the other nodes through to it"
                one.wrong.append((f"its port {node[name]} cannot be reached from here", command))
    try:
        one.seen = ray.get(answer, timeout=ANSWER_S)
        before = time.time()
        there = ray.get(_on(node, clock), timeout=ANSWER_S)  # its process runs by now
        after = time.time()
    except RayError as error:
        lacks = "No module named 'arpo" in str(error)
        said = "arpo is not installed on it" if lacks else f"it does not answer ({type(error).__name__})"
        mend = _pip(f"arpo[ray]=={importlib.metadata.version('arpo')}") if lacks else "start Ray on it again"
        one.wrong.append((said, mend))
        return one
    one.clock_s = there - (before + after) / 2
    if abs(one.clock_s) > CLOCK_S + (after - before) / 2:
        one.wrong.append((f"its clock differs by {one.clock_s:+.1f} s", "timedatectl set-ntp true"))
    here = versions()
    for name, version in one.seen["versions"].items():
        if version != here[name]:
            mend = f"install Python {here[name]} on it" if name == "python" else _pip(f"{name}=={here[name]}")
            one.wrong.append((f"it has {name} {version}, and this machine {here[name]}", mend))
    if one.seen["disk_gb"] < DISK_GB:
        one.wrong.append((f"{one.seen['disk_gb']:.1f} GB of disk are free", "docker system prune, or a larger disk"))
    if one.seen["memory_gb"] < MEMORY_GB:
        one.wrong.append((f"{one.seen['memory_gb']:.1f} GB of memory are free", "offer fewer environments on it"))
    one.wrong += one.seen["lacking"]
    return one


def _pip(what: str) -> str:
    return f"pip install '{what}'"


# ---- on the node


def look(settings: EnvConfig, offers: bool) -> dict[str, Any]:
    """What is here. `offers`: environments are to run here, so what they lack counts."""
    known = backend(settings.name)
    return {
        "versions": versions(),
        "cores": cores(),
        "memory_gb": free_mb() / 1024,
        "disk_gb": shutil.disk_usage(Path.home()).free / 2**30,
        "kvm": os.access("/dev/kvm", os.R_OK | os.W_OK),
        "gpus": _gpus(),
        "lacking": list(imported(known.doctor)(settings)) if offers and known.doctor else [],
    }


def clock() -> float:
    return time.time()


def versions() -> dict[str, str]:
    """Without what a build for some device adds to it."""
    packages = {name: importlib.metadata.version(name).partition("+")[0] for name in PACKAGES}
    return {"python": platform.python_version()} | packages


def _gpus() -> list[str]:
    """By the driver's own program: torch would take seconds, and memory of the device."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    return []


# ---- shown


def print_cluster(checked: list[Checked]) -> None:
    console = Console(highlight=False)
    table = Table("node", "offers", "versions", "machine", "GPUs", "KVM", "clock", box=None, pad_edge=False)
    for one in checked:
        offers = ", ".join(f"{n:g} {name}" for name, n in sorted(one.offers.items()))
        if not one.seen:
            table.add_row(one.address, offers, *["?"] * 5)
            continue
        seen = one.seen
        machine = f"{seen['cores']} cores, {seen['memory_gb']:.0f} GB and {seen['disk_gb']:.0f} GB of disk free"
        packages = ", ".join(f"{name} {version}" for name, version in seen["versions"].items())
        gpus = "\n".join(seen["gpus"]) or "none"
        kvm, clock = "yes" if seen["kvm"] else "no", f"{one.clock_s:+.2f} s"
        table.add_row(one.address, offers, packages, machine, escape(gpus), kvm, clock)
    console.print(table)
    for one in checked:
        for what, mend in one.wrong:
            console.print(f"[red]node {one.address}:[/] {escape(what)}; {escape(mend)}", soft_wrap=True)
    if not any(one.wrong for one in checked):
        console.print(f"[green]{len(checked)} nodes, and nothing is wrong with them[/]")
