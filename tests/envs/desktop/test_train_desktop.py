"""The preset `desktop`: scripts play it as it stands; 20 updates of the small agent go well, without a success."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.envs.desktop.catalog import get_task
from arpo.runs.store import Run
from arpo.types import to_json

SETTINGS = """env.size=448x280 env.workers=2 train.rollout_tasks=1 train.optimizer_tasks=1 train.n_envs=2
algorithm.group=2 train.max_tokens=48 eval.max_tokens=48 eval.n_envs=2 eval.held_out=0 train.save_every=20""".split()
TASKS = ("editor-write-000", "calculator-result-000")


@pytest.mark.desktop("mousepad")
@pytest.mark.parametrize(("script", "success"), [("expert", 1.0), ("random", None), ("fail", 0.0)])
def test_every_script_is_evaluated_by_the_preset_as_it_stands(
    script: str, success: float | None, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "arpo.cli", "eval", script, "desktop", "--tasks", "editor-write-000", "--json"]
    done = subprocess.run([*command, "--run-dir", tmp_path / "run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["n_trials"], told["errors"]) == (1, 0)
    assert success is None or told["success"] == success


@pytest.mark.heavy
@pytest.mark.desktop("mousepad", "galculator")
def test_twenty_updates_over_real_applications(tmp_path: Path) -> None:
    tasks = [dataclasses.replace(get_task(name), max_steps=2) for name in TASKS]
    for task in tasks:
        (tmp_path / "examples" / task.domain).mkdir(parents=True)
        (tmp_path / "examples" / task.domain / f"{task.id}.json").write_bytes(to_json(task))
    (tmp_path / "list.json").write_text(json.dumps({task.domain: [task.id] for task in tasks}))
    folder = tmp_path / "run"
    command = [sys.executable, "-c", "from arpo.cli import main; main()", "train", "desktop", *SETTINGS]
    trained = subprocess.run(
        [*command, f"tasks.source={tmp_path / 'list.json'}", f"run_dir={folder}"], capture_output=True, text=True
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    with Run.read(folder) as run:
        updates = list(run.metrics())
        episodes = list(run.trajectories())
    assert [row["update"] for row in updates] == list(range(20))
    assert sum(row["episodes"] for row in updates) == 40
    assert sum(row["errors"] for row in updates) == 0
    assert sum(row["optimizer_steps"] for row in updates) > 0
    assert all(episode.outcome.valid for episode in episodes)
    acted = [step for episode in episodes for step in episode.steps if step.observation is not None]
    assert acted and all(0 < step.settle_s < step.env_s for step in acted)  # a screen was waited for, each time
