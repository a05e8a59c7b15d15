"""A training on a Ray cluster by the command line: a node dies in the middle, and nothing is lost or counted twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from ray_nodes import SETTINGS, Nodes, actors, below, nodes, processes, wait_until

from arpo.errors import ConfigError
from arpo.runs.store import Run
from arpo.tasks.load import load_tasks
from audit import audit

__all__ = ["nodes"]
pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.heavy]

UPDATES, TASKS, GROUP = 3, 2, 16
SMALL = f"train.updates={UPDATES} train.rollout_tasks={TASKS} train.optimizer_tasks={TASKS} algorithm.group={GROUP}"
SHORT = "train.n_envs=4 eval.n_envs=4 eval.trials=1 eval.held_out=0 tasks.max_steps=4 train.max_tokens=48 env.workers=4"
ARPO = [sys.executable, "-m", "arpo.cli"]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    listed: dict[str, list[str]] = {}
    for task in load_tasks("pocket", "demo")[:TASKS]:
        listed.setdefault(task.domain, []).append(task.id)
    (folder / "list.json").write_text(json.dumps(listed))
    command = [*ARPO, "train", "pocket", f"run_dir={folder / 'run'}", f"tasks.source={folder / 'list.json'}"]
    command += [*SMALL.split(), *SHORT.split(), *words]
    here = os.environ | SETTINGS | {"OMP_NUM_THREADS": "1"}
    with (folder / "told").open("a") as told:
        return subprocess.Popen(command, env=here, stdout=told, stderr=told, text=True, cwd=folder)


def played(folder: Path) -> int:
    with contextlib.suppress(ConfigError), Run.read(folder / "run") as run:  # there is none yet
        return sum(1 for _ in run.summaries(source="rollout"))
    return 0


def ended(folder: Path, run: subprocess.Popen[str]) -> str:
    wait_until(lambda: run.poll() is not None, 500)
    return (folder / "told").read_text()


def test_a_node_dies_in_the_middle_and_another_joins(nodes: Nodes, tmp_path: Path) -> None:
    run = start(tmp_path, f"env.ray={nodes.address}")
    try:
        wait_until(lambda: played(tmp_path) >= 5 or run.poll() is not None, 300)
        on_it = [pid for pid, args in below(nodes.started[1].pid).items() if args.startswith("ray::Place")]
        assert on_it and len(actors(nodes)) > len(on_it)
        # Looking took seconds. In the middle of episodes: most of an update's are still to come.
        wait_until(lambda: 1 <= played(tmp_path) % (TASKS * GROUP) <= GROUP // 2 or run.poll() is not None, 300)
        nodes.lose(nodes.started[1])
        nodes.start(desktop=2)
        told = ended(tmp_path, run)
    finally:
        run.kill()
    assert run.returncode == 0, told
    with Run.read(tmp_path / "run") as stored:
        counts = audit(stored, UPDATES, TASKS, GROUP)
    assert counts["episodes"] == UPDATES * TASKS * GROUP and counts["failed_attempts"] > 0, told
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] > 0
    wait_until(lambda: not actors(nodes))


def test_on_a_cluster_of_its_own_that_ends_with_the_run_however_it_ends(tmp_path: Path) -> None:
    """The run is killed, and nothing of its cluster is left; it is resumed, and is whole."""
    run = start(tmp_path, "env.ray=local")
    try:
        wait_until(lambda: played(tmp_path) >= 5 or run.poll() is not None, 300)
        cluster = set(below(run.pid))
        told = (tmp_path / "told").read_text()
        assert any(args.startswith("ray::Place") for args in below(run.pid).values()), told
        run.send_signal(signal.SIGKILL)
        run.wait()
        wait_until(lambda: not cluster & processes().keys())
        before = played(tmp_path)
        command = [*ARPO, "train", "--resume", str(tmp_path / "run")]
        again = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    finally:
        run.kill()
    assert again.returncode == 0, again.stderr
    with Run.read(tmp_path / "run") as stored:
        counts = audit(stored, UPDATES, TASKS, GROUP)
    assert counts["episodes"] == UPDATES * TASKS * GROUP > before
    assert not [args for _, args in processes().values() if str(tmp_path) in args]
