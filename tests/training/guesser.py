"""An agent of random weights that can act: whatever it says is an action, and it soon stops speaking."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path
from typing import Any

import torch

from arpo.agent.actions import Action, Click, Finish
from arpo.agent.dialects.base import Parsed
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.algorithms.base import make_algorithm
from arpo.config import Config, to_yaml
from arpo.engines.base import Sampling
from arpo.engines.local import LocalEngine
from arpo.envs.pool import LocalPool
from arpo.model.checkpoint import Checkpoint, load_checkpoint, load_model, save_model
from arpo.runs.store import Run
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner
from arpo.training.loop import train
from arpo.training.rollouts import Rollouts
from fake_env import BUTTON, FakeEnv, make_task
from tiny_model import make_decided

TASKS = [make_task(f"press-{i}") for i in range(5)]


class Guesser(UITars):
    """Finds an action in any reply: one in three presses the button, one in three says that it is done."""

    def parse(self, text: str, screen_size: tuple[int, int]) -> Parsed:
        number = zlib.crc32(text.encode())
        actions: tuple[Action, ...] = (Click(*BUTTON), Click(1, number % 60), Finish())
        return Parsed("", actions[number % 3], "")


def make_guesser(folder: Path, seed: int = 0, family: str = "qwen2_5_vl") -> Path:
    """The tiny checkpoint, its embedding of the end token so large that replies are short."""
    make_decided(folder, seed, family)
    model = load_model(folder, "cpu")
    end = load_checkpoint(folder, "cpu").vocabulary.special("<|im_end|>")
    with torch.no_grad():
        model.model.language_model.embed_tokens.weight[end] *= 7.0
    save_model(model, folder)
    (folder / "prompt.txt").write_text("Do this: {instruction}")
    return folder


def dialect_of(checkpoint: Checkpoint, screenshots: int | None = None) -> Guesser:
    return Guesser(checkpoint.vocabulary, prompt_file=Path(checkpoint.name) / "prompt.txt", screenshots=screenshots)


def settings(algorithm: dict[str, Any] | None = None, **train: Any) -> Config:
    """Few episodes, short replies."""
    few = {"updates": 3, "rollout_tasks": 2, "optimizer_tasks": 1, "max_tokens": 16, "n_envs": 3, "lr": 1e-3}
    return Config.model_validate({"algorithm": {"name": "grpo", "group": 2} | (algorithm or {}), "train": few | train})


def train_in(folder: Path, model: Path, config: Config, one_model: bool = False) -> None:
    """Make the updates that the run in this folder has not made yet. `one_model`: engine and learner have the same."""
    engine = LocalEngine(load_checkpoint(model, "cpu"), max_context=2000)
    with Run.write(folder, to_yaml(config)) as run:
        asyncio.run(train_with(engine, model, config, run, one_model=one_model))


async def train_with(
    engine: LocalEngine, model: Path, config: Config, run: Run, n_envs: int = 3, one_model: bool = False
) -> None:
    algorithm = make_algorithm(config.algorithm, config.seed)
    checkpoint = engine.checkpoint if one_model else load_checkpoint(model, "cpu")
    learner = LocalLearner(checkpoint, config, algorithm, engine.screens)
    checkpoints = Checkpoints(run.folder / "checkpoints", config.train.keep, str(model))
    rollouts = rollouts_of(engine, config, run, n_envs)
    await train(config, run, rollouts, engine, learner, algorithm, checkpoints)


def rollouts_of(
    engine: LocalEngine, config: Config, run: Run, n_envs: int = 3, screenshots: int | None = None
) -> Rollouts:
    dialect = dialect_of(engine.checkpoint, screenshots)
    agent = Agent(engine, dialect, Sampling(config.train.temperature, 1.0, config.train.max_tokens))
    return Rollouts(TASKS, agent, config, run, Player(LocalPool(FakeEnv, n_envs), run))
