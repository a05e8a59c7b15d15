"""With a lag, environments never wait for the learner: episodes go on during all that an update needs time for."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guesser import settings, train_with
from test_loop import GENTLY, LEARNS

from arpo.config import to_yaml
from arpo.engines.base import Prompt, Sampling
from arpo.engines.local import LocalEngine
from arpo.engines.local.screens import Screens
from arpo.model.checkpoint import load_checkpoint
from arpo.runs import store
from arpo.runs.store import Run
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner
from arpo.types import Completion

LONG = 60.0  # seconds after which nobody waits any more


class Paused(LocalEngine):
    """The turns of the second update wait until something that the first one needs time for has begun."""

    gate: asyncio.Event
    moved: threading.Event

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        if not session.startswith("u1."):
            return await super().generate(session, prompt, sampling, seed)
        await self.gate.wait()
        completion = await super().generate(session, prompt, sampling, seed)
        self.moved.set()
        return completion


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Run, "image"),
        (Screens, "features"),
        (LocalLearner, "self_test"),
        (LocalLearner, "update"),
        (store, "pack"),
        (Checkpoints, "save"),
        (LocalLearner, "_write"),
        (Checkpoints, "publish"),
    ],
)
def test_episodes_go_on_while_the_learner(
    owner: Any, name: str, guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = 1 if name in ("save", "_write") else 100
    config = settings(LEARNS, **GENTLY | {"updates": 2, "lag": 1, "save_every": often})
    engine = Paused(load_checkpoint(guesser_folder, "cpu"), max_context=2000)
    function: Callable[..., Any] = getattr(owner, name)

    async def work(run: Run) -> None:
        here, engine.gate, engine.moved = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

        def held(*arguments: Any, **named: Any) -> Any:
            if sys._getframe(1).f_code.co_name == "_take_in":  # the engine's own work, which is on the loop
                return function(*arguments, **named)
            here.call_soon_threadsafe(engine.gate.set)
            assert engine.moved.wait(LONG), f"{name} holds up the episodes"
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, held)
        n_envs = 2 * config.train.n_envs  # so that the paused ones leave places to the others
        await train_with(engine, guesser_folder, config, run, n_envs)

    with Run.write(tmp_path, to_yaml(config)) as run:
        asyncio.run(work(run))
        assert [line["update"] for line in run.metrics()] == [0, 1]
        assert len(list(run.summaries())) == 2 * 9
