"""Every command of the cluster page (docs/scaling.md) is run, on two nodes that are one machine.

What would change the system or fetch gigabytes (apt-get, docker pull, …) is a stand-in here that only notes its
call; `ray`, `arpo` and `export` are the real ones. The training is of pocket, in place of a 7B on virtual machines;
those are tried on the stand-in container, in test_ray_osworld.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ray_nodes import RAY, SETTINGS, Nodes

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.heavy]

PAGE = Path(__file__).parents[2] / "docs" / "scaling.md"
SYSTEM = ("apt-get", "docker", "unzip", "scp", "make", "pip")
NOTE = '#!/bin/sh\necho "$(basename "$0") $*" >> "$NOTES"\n'
POCKET = "tasks.source=demo eval.held_out=0 eval.trials=1 train.updates=1 train.rollout_tasks=2 train.optimizer_tasks=2"
SHORT = "algorithm.group=2 tasks.max_steps=2 train.max_tokens=32 eval.max_tokens=32 env.workers=3 train.n_envs=4"


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]


def test_every_command_of_the_page(tmp_path: Path) -> None:
    nodes = Nodes()
    for name in SYSTEM:
        (tmp_path / name).write_text(NOTE)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "arpo").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m arpo.cli "$@"\n')
    (tmp_path / "arpo").chmod(0o755)
    here = os.environ | SETTINGS | {"OMP_NUM_THREADS": "1", "NOTES": str(tmp_path / "notes"), "HOME": str(tmp_path)}
    del here["RAY_AUTH_TOKEN"]  # the page makes one
    here["PATH"] = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), here["PATH"]])
    told = ""
    try:
        for command in commands():
            words = shlex.split(command)
            if words[:2] == ["ray", "start"]:
                small = {"--object-store-memory": f"--object-store-memory={100 << 20}", "--num-gpus": "--num-gpus=0"}
                words = [small.get(word.partition("=")[0], word) for word in words]
                words = [word.replace("HEAD:6379", nodes.address).replace("NODE", "10.0.0.7") for word in words]
                words = [word.replace("--port=6379", f"--port={nodes.address.rpartition(':')[2]}") for word in words]
                own = [f"--temp-dir={nodes.folder}"] if "--head" in words else []
                if len(nodes.started) < 2:  # the third is as the second
                    nodes.run([RAY, *words[1:], *own, "--num-cpus=2", "--block"], here)
                continue
            if words[0] == "export":
                here |= dict(word.split("=", 1) for word in words[1:])
                continue
            if words[0] == "arpo":
                command = command.replace("osworld-full", "pocket").replace("env.ray=auto", f"env.ray={nodes.address}")
                command = re.sub(r"env.osworld_\w+=\S+", "", command)
                command += f" {POCKET} {SHORT}" if words[1] == "train" else ""
                command += f" env.ray={nodes.address}" if "--cluster" in words else ""
            done = subprocess.run(["bash", "-c", command], env=here, cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
            told += done.stdout
    finally:
        nodes.close()
    assert (tmp_path / ".ray" / "auth_token").read_text()
    assert "2 nodes, and nothing is wrong with them" in told
    assert re.search(r"environments: 3 of pocket on the Ray cluster .*\n#   node \S+: 2\n#   node \S+: 1\n", told), told
    assert (tmp_path / "runs" / "full" / "summary.json").exists()
    noted = (tmp_path / "notes").read_text()
    assert "docker pull" in noted and "scp" in noted
