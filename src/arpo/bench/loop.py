"""How much of the event loop's thread a step takes: a figure of `arpo bench envs`.

One thread drives all environments, all episodes and the engine, so what a step takes of it bounds the steps of a run.
Counted is all processor time of that thread, resets too: the environment in this process, the episode, the screenshot
on its way into the store and to the model. Not counted are other threads, and what the model computes: its layers are
left out, and the expert acts in its place.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from arpo.agent.dialects.uitars import PROMPT, UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.config import EvalConfig
from arpo.engines.base import Engine, Prompt, Sampling, Weights
from arpo.engines.local import LocalEngine
from arpo.engines.local import engine as local_engine
from arpo.engines.local.cache import Rows
from arpo.engines.scripted import scripted
from arpo.envs.base import Lease, make
from arpo.envs.pool import LocalPool
from arpo.evaluation.run import evaluate
from arpo.model.checkpoint import Checkpoint
from arpo.model.qwen import QwenVL, TextModel
from arpo.model.vision import Tower
from arpo.resize import QWEN2_5
from arpo.runs.store import Run
from arpo.teaching.tiny import make_config, make_tokenizer, new_model
from arpo.types import Completion, Task
from arpo.vocabulary import TokenizerVocabulary

AT_ONCE = 4  # environments
TASKS = 8  # that the expert does


class _Shown:
    """The expert's replies, after the local engine was asked the same."""

    def __init__(self, expert: Engine, local: LocalEngine) -> None:
        self._expert, self._local = expert, local

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        await self._local.generate(session, prompt, Sampling(max_tokens=1), seed)
        return await self._expert.generate(session, prompt, sampling, seed)

    async def release(self, session: str) -> None:
        await self._local.release(session)

    async def load(self, version: int, weights: Weights) -> None:
        await self._expert.load(version, weights)


def loop_ms_a_step(env: str, size: tuple[int, int], tasks: list[Task], seed: int) -> float:
    """Milliseconds, the mean over the steps of the expert's episodes in the first of these tasks."""
    tokenizer = make_tokenizer([PROMPT] * 3)
    model = new_model(make_config(tokenizer, {}, {})).eval().requires_grad_(False)
    checkpoint = Checkpoint("tiny", model, TokenizerVocabulary(tokenizer))
    dialect = UITars(checkpoint.vocabulary)
    expert = scripted("expert", dialect, checkpoint.vocabulary)
    longest = (1 + max(task.max_steps for task in tasks)) * (QWEN2_5.tokens(*size) + 1024)

    def shown(task: Task, lease: Lease) -> Agent:
        return Agent(_Shown(expert(task, lease), engine), dialect, Sampling())

    async def play(run: Run, seed: int) -> float:
        async with LocalPool(partial(make, env, size=size), AT_ONCE) as pool:
            began = time.thread_time()
            settings = EvalConfig(trials=1, n_envs=AT_ONCE)
            played = await evaluate(shown, tasks[:TASKS], settings, Player(pool, run), run, seed=seed)
            seconds = time.thread_time() - began
        return 1e3 * seconds / sum(trial.n_steps for trial in played.trials)

    with tempfile.TemporaryDirectory() as folder, _without_the_model():
        engine = LocalEngine(checkpoint, max_context=longest, slots=AT_ONCE)
        for number in (seed + 1, seed):  # first once around for nothing, as in envs.py, on other screens
            with Run.write(Path(folder, str(number)), "") as run:
                taken = asyncio.run(play(run, number))
    return taken


class _NoCache(Rows):
    """In place of the keys and values."""

    def __init__(self, *given: Any) -> None:
        pass

    def room(self, *given: Any) -> bool:
        return True

    def drop(self, *given: Any) -> None:
        pass

    def row(self, *given: Any) -> int:
        return 0

    def extend(self, *given: Any) -> Any:
        pass

    def step(self, *given: Any) -> Any:
        pass


@contextlib.contextmanager
def _without_the_model() -> Iterator[None]:
    """The vision tower, the layers and their cache take no time: everything is one number wide."""

    def encode(tower: Tower, images: Tensor) -> Tensor:
        batch, height, width, _ = images.shape
        return torch.zeros(batch, height * width // QWEN2_5.factor**2, 1)

    def run_layers(text: TextModel, ids: Tensor, *others: Any, wanted: Tensor | None = None, **named: Any) -> Tensor:
        return torch.zeros(len(ids if wanted is None else wanted), 1)

    def scores(model: QwenVL, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), model.config.text_config.vocab_size)

    with contextlib.ExitStack() as replaced:
        for owner, name, instead in (
            (Tower, "forward", encode),
            (TextModel, "forward", run_layers),
            (QwenVL, "scores", scores),
            (local_engine, "Rows", _NoCache),
        ):
            replaced.enter_context(patch.object(owner, name, instead))
        yield
