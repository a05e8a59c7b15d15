"""Each door from outside the package: an engine, a learner, an environment and an algorithm that arpo does not know.

The implementations are throw-away: each is the least that passes, in a file of its own with no more than 60 lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from guesser import TASKS, dialect_of, settings
from process_learner import ProcessLearner
from safetensors.torch import load_file
from socket_engine import served

import arpo
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.algorithms.base import METHODS, make_algorithm
from arpo.bench.compare import methods_of
from arpo.config import Config, load_config, to_yaml
from arpo.engines.base import Engine, Sampling
from arpo.engines.local import LocalEngine
from arpo.envs.base import BACKENDS, catalog, make
from arpo.envs.check import check
from arpo.envs.pool import LocalPool
from arpo.errors import ConfigError
from arpo.images import decode
from arpo.model.checkpoint import load_checkpoint
from arpo.runs.store import Run
from arpo.training.base import Learner
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner
from arpo.training.loop import train
from arpo.training.rollouts import Rollouts
from fake_env import FakeEnv

HERE = Path(__file__).parent
OUTSIDE = ("socket_engine", "process_learner", "lamp_env", "reinforce")


@pytest.mark.parametrize("name", OUTSIDE)
def test_the_implementations_are_small(name: str) -> None:
    assert len((HERE / f"{name}.py").read_text().splitlines()) <= 60


# ---- an engine over a socket, a learner in another process: the loop does not know the difference


def trained(
    folder: Path, model: Path, config: Config, learner: Learner | None = None, remote: bool = False
) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """The metrics, without what the clock says, and the weights of a training."""
    checkpoint = load_checkpoint(model, "cpu")
    local = LocalEngine(checkpoint, max_context=2000)
    algorithm = make_algorithm(config.algorithm, config.seed)
    learner = learner or LocalLearner(load_checkpoint(model, "cpu"), config, algorithm)

    @contextlib.asynccontextmanager
    async def direct(engine: Engine) -> AsyncIterator[Engine]:
        yield engine

    async def work(run: Run) -> None:
        async with (served if remote else direct)(local) as engine:
            agent = Agent(engine, dialect_of(checkpoint), Sampling(max_tokens=config.train.max_tokens))
            rollouts = Rollouts(TASKS, agent, config, run, Player(LocalPool(FakeEnv, 1), run))
            checkpoints = Checkpoints(folder / "checkpoints", model=str(model))
            await train(config, run, rollouts, engine, learner, algorithm, checkpoints)

    with Run.write(folder, to_yaml(config)) as run:
        asyncio.run(work(run))
        metrics = [{name: line[name] for name in line.keys() - {"sample_s", "learn_s"}} for line in run.metrics()]
    return metrics, load_file(folder / "checkpoints" / "update-00002" / "model.safetensors")


def assert_equal(one: Any, other: Any) -> None:
    assert one[0] == other[0] and len(one[0]) == 2
    assert one[1].keys() == other[1].keys() and all(torch.equal(one[1][name], other[1][name]) for name in one[1])


FEW = settings(updates=2, n_envs=1)  # one at a time: in which order things come over a socket is a matter of time


@pytest.fixture(scope="module")
def direct(guesser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trained(tmp_path_factory.mktemp("direct"), guesser_folder, FEW)


def test_an_engine_over_a_socket_trains_alike(direct: Any, guesser_folder: Path, tmp_path: Path) -> None:
    assert_equal(trained(tmp_path, guesser_folder, FEW, remote=True), direct)


@pytest.mark.slow
def test_a_learner_in_another_process_learns_alike(direct: Any, guesser_folder: Path, tmp_path: Path) -> None:
    learner = ProcessLearner(str(guesser_folder), FEW)
    try:
        assert_equal(trained(tmp_path, guesser_folder, FEW, learner), direct)
    finally:
        learner.close()


# ---- an environment


@pytest.fixture
def lamp() -> Any:
    """Registered by a call, once a process."""
    module = import_module("lamp_env")
    BACKENDS.register(module.BACKEND)
    return module


def test_an_environment_keeps_the_contract(lamp: Any) -> None:
    results = check("lamp", lambda: make("lamp"), lamp.TASKS, deterministic=True)
    assert [result for result in results if not result.ok] == []


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_that_a_call_registered_is_evaluated(lamp: Any, workers: int, tmp_path: Path) -> None:
    settings = ("env.name=lamp", "env.options.colour=90", f"env.workers={workers}", "eval.trials=2")
    evaluation = arpo.evaluate("random", *settings, run_dir=tmp_path)
    assert len(evaluation.trials) == 4 and evaluation.errors == 0
    with arpo.read_run(tmp_path) as run:
        steps = [step for episode in run.trajectories() for step in episode.steps]
        screens = {run.image(step.observation).image for step in steps if step.observation}
    assert {int(decode(screen).max()) for screen in screens} == {0, 90}


def test_its_own_settings_are_kept_and_unknown_ones_refused(lamp: Any) -> None:
    config = load_config(None, ["env.name=lamp"])
    assert config.env.options == {"colour": 200}
    assert "  options: {colour: 200}  #" in to_yaml(config)
    with pytest.raises(ConfigError, match=r"^env.options.color=9: lamp has no option 'color'; it has colour$"):
        load_config(None, ["env.name=lamp", "env.options.color=9"])
    with pytest.raises(ConfigError, match=r"^env.options.colour=9: pocket has no option 'colour'; it has none$"):
        load_config(None, ["env.options.colour=9"])


def test_workers_refuse_an_environment_that_they_cannot_import(lamp: Any, tmp_path: Path) -> None:
    arpo.register_environment("lamp", lambda: lamp.Lamp(1), lamp.TASKS, settings=(), replace=True)
    with pytest.raises(
        ConfigError, match=r"^env.workers=1: worker processes cannot import lamp .* or set env.workers=0$"
    ):
        arpo.evaluate("random", "env.name=lamp", "env.workers=1", run_dir=tmp_path)


def command(*arguments: str, cwd: Path) -> str:
    """`arpo` in a process that has a package installed with an entry point for the lamp."""
    installed = cwd / "site" / "lamps-1.0.dist-info"
    installed.mkdir(parents=True, exist_ok=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lamps\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[arpo.environments]\nlamp = lamp_env:BACKEND\n")
    path = os.pathsep.join([str(installed.parent), str(HERE), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "arpo.cli", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_environment_is_found_by_its_entry_point(tmp_path: Path) -> None:
    listed = json.loads(command("envs", "list", "--json", cwd=tmp_path))["environments"]
    assert [env["name"] for env in listed][-1] == "lamp" and listed[-1]["splits"][0]["tasks"] == 2
    assert "lamp keeps 11 of 11 promises" in command("envs", "check", "lamp", cwd=tmp_path)
    assert json.loads(command("eval", "expert", "env.name=lamp", "--json", cwd=tmp_path))["success"] == 1.0
    in_worker = command("eval", "fail", "env.name=lamp", "env.workers=1", "--json", cwd=tmp_path)
    assert json.loads(in_worker)["success"] == 0.0


# ---- an algorithm


def test_an_algorithm_from_outside_is_trained_with(guesser_folder: Path, tmp_path: Path) -> None:
    METHODS.register(import_module("reinforce").METHOD)
    config = load_config("pocket", ["algorithm.name=reinforce", "algorithm.options.discount=0.9"])
    assert (config.algorithm.name, config.algorithm.group) == ("reinforce", 1)
    config = settings({"name": "reinforce", "options": {"discount": 0.9}, "group": 1}, updates=2, rollout_tasks=5)
    metrics, _ = trained(tmp_path, guesser_folder, config)
    assert [line["episodes"] for line in metrics] == [5, 5]
    assert all(line["learned_tokens"] == line["sampled_tokens"] > 0 for line in metrics)
    with arpo.read_run(tmp_path) as run:
        advantages = [one.advantages.tolist() for one in run.record(0)]
        assert max(len(set(values)) for values in advantages) > 1  # token by token
    state = json.loads((tmp_path / "checkpoints" / "update-00002" / "state.json").read_text())
    assert "baseline" in state["replay"]


def test_a_method_that_sets_other_fields_is_named_by_what_is_changed_of_it() -> None:
    arpo.register_algorithm("single", "reinforce:Reinforce", settings={"group": 1}, options={"discount": 1.0})
    config = load_config("pocket", ["algorithm.name=single", "algorithm.group=1"])
    assert (config.algorithm.name, config.algorithm.options) == ("single", {"discount": 1.0})
    with pytest.raises(ConfigError, match=r"algorithm.group=4: makes single another method; name it single:group=4"):
        load_config("pocket", ["algorithm.name=single", "algorithm.group=4"])
    config = load_config("pocket", ["algorithm.name=single:group=4"])
    assert config.algorithm.group == 4
    assert methods_of("pocket-compare", [], "single:group=4")["single:group=4"].algorithm.group == 4
    with pytest.raises(ConfigError, match="grpo has no option 'discount'"):
        load_config("pocket", ["algorithm.name=grpo", "algorithm.options.discount=1"])


def test_tasks_of_another_environment_are_refused() -> None:
    task = arpo.Task("a", "d", "Do it.", "bulb", {}, {}, "train")
    with pytest.raises(arpo.ArpoError, match="a: is listed twice, or its env is 'bulb' and not 'mine'"):
        arpo.register_environment("mine", "m:M", [task])
    with pytest.raises(arpo.ArpoError, match="a: is listed twice"):
        arpo.register_environment("bulb", "m:M", [task, arpo.Task("a", "d", "Other.", "bulb", {}, {}, "train")])
    arpo.register_environment("bulb", "m:M", [task])
    assert catalog("bulb").get_task("a") == task
