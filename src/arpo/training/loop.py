"""The training loop: sample, replay, advantages, learn, publish, again.

One loop for all: with a lag of 0 each update's episodes are played by the policy that it changes; with a lag of n the
episodes of the next n updates are under way while the learner works, and the policy that plays may be n updates old.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from arpo.algorithms.advantages import advantages, failed, informative, spread
from arpo.algorithms.replay import Replay
from arpo.beside import beside
from arpo.config import AlgorithmConfig, Config
from arpo.engines.local import LocalEngine
from arpo.errors import ConfigError
from arpo.runs.store import Run, Summary
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import Learner
from arpo.training.rollouts import Rollouts
from arpo.training.samples import to_batches, to_samples
from arpo.types import Group, Observation, Trajectory


async def train(
    config: Config,
    run: Run,
    rollouts: Rollouts,
    engine: LocalEngine,
    learner: Learner,
    image_pad: int,
    on_update: Callable[[dict[str, Any]], object] = lambda metrics: None,
) -> None:
    """Make the updates that the run has not made yet."""
    replay = Replay(config.algorithm, config.seed)
    checkpoints = Checkpoints(run.folder / "checkpoints", config.train.keep)
    first = checkpoints.restore(learner, replay)
    logged = {line["update"] for line in run.metrics()}
    if first:
        await engine.load(first, checkpoints.newest)
        if first - 1 not in logged:
            run.log(checkpoints.line())
            on_update(checkpoints.line())
    budget = config.train.env_steps or math.inf
    spent: float = sum(episode.n_steps for episode in run.summaries(source="rollout") if episode.update < first)
    tested = False
    under_way: deque[asyncio.Task[list[Group]]] = deque()

    def begin(update: int) -> None:
        if update < config.train.updates and spent < budget:
            accept = partial(informative, config=config.algorithm)
            under_way.append(asyncio.create_task(rollouts.groups(update, accept)))

    try:
        for update in range(first, min(first + config.train.lag, config.train.updates)):
            begin(update)
        with checkpoints.guard(learner, replay):
            for update in range(first, config.train.updates):
                if spent >= budget:
                    break
                began = time.monotonic()
                begin(update + config.train.lag)
                groups = await under_way.popleft()
                sampled = time.monotonic()
                filled = replay.fill(groups, update, partial(_success, run))
                samples = [to_samples(group, advantages(group, config.algorithm), image_pad) for group in filled]
                batches = to_batches(filled, samples, config.train.optimizer_tasks)
                names = [name for sample in chain(*samples) for name in sample.images]
                screens = await beside(_read_screens, run.folder, names)
                frozen = config.train.freeze_vision
                learner.show(screens, await beside(engine.screens.features, screens.values()) if frozen else None)
                fresh = [one for one in chain(*samples) if one.version == learner.version and not one.replayed]
                if fresh and not tested:
                    await beside(learner.self_test, fresh)
                    tested = True
                await asyncio.sleep(0)  # a stop is heard here, before the update, or after it
                learned = await beside(learner.update, batches)
                await run.keep_record(update, learner.record)
                replay.add(groups, update)
                played = list(run.summaries(update=update, source="rollout"))
                seconds = {"sample_s": sampled - began, "learn_s": time.monotonic() - sampled}
                metrics = {"update": update, **about(played, groups, filled, config.algorithm), **learned, **seconds}
                spent += metrics["env_steps"]
                last = learner.version == config.train.updates or spent >= budget
                if learner.version % config.train.save_every == 0 or last:
                    place = await beside(checkpoints.save, learner, replay, metrics)
                else:
                    place = await beside(checkpoints.publish, learner, metrics)
                try:
                    await engine.load(learner.version, place)
                finally:  # also where the run is stopped meanwhile: the update is made
                    metrics["learn_s"] = time.monotonic() - sampled
                    if update not in logged:  # it is, where updates since the last checkpoint are made again
                        run.log(metrics)
                    on_update(metrics)
    finally:
        for beyond in under_way:  # what a lag began: before the budget was spent, or before something failed
            beyond.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def _read_screens(folder: Path, names: Iterable[str]) -> dict[str, Observation]:
    """By a reader of its own, since the writer's connection belongs to the event loop's thread."""
    with Run.read(folder) as run:
        return {name: run.image(name) for name in dict.fromkeys(names)}


def _success(run: Run, name: str) -> Trajectory:
    """A stored success that is to be replayed."""
    try:
        return run.trajectory(name)
    except KeyError:
        raise ConfigError(
            f"{run.folder / 'run.sqlite'}: lacks the success {name}, which the checkpoint remembers: it is not the one "
            "that was written with it; put that back"
        ) from None


def about(
    played: Sequence[Summary], groups: Sequence[Group], filled: Sequence[Group], config: AlgorithmConfig
) -> dict[str, float]:
    """What the episodes of an update were like: all that were played, also those that gave way to others."""
    valid = [episode for episode in played if episode.outcome.valid]
    replayed = sum(t.provenance.source == "replay" for group in filled for t in group.trajectories)
    n = max(1, len(valid))
    return {
        "success": math.fsum(episode.score or 0.0 for episode in valid) / n,  # fsum: in whatever order they ended
        "reward": math.fsum(episode.reward or 0.0 for episode in valid) / n,
        "spread": math.fsum(map(spread, groups)) / max(1, len(groups)),
        "failed_groups": sum(failed(group, config) for group in groups) / max(1, len(groups)),
        "replayed_groups": replayed / max(1, len(groups)),
        "episodes": len(valid),
        "errors": len(played) - len(valid),
        "env_steps": sum(episode.n_steps for episode in played),
        "sampled_tokens": sum(
            len(s.completion.tokens) for group in groups for t in group.trajectories for s in t.steps
        ),
    }
