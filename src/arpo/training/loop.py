"""The training loop: sample, replay, advantages, learn, publish, again.

There is one loop. With a lag of 0 the episodes of an update are played by the policy that it changes. With a lag of n
those of the next n updates are under way while the learner works, and the policy that plays may be n updates old.
Where the episodes are other runs' (offline.py), nothing is sampled, and the loop does not know it.
All that it uses is behind a door: it does not know whether the engine is a server or the learner many processes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from arpo.algorithms.base import Algorithm
from arpo.beside import beside
from arpo.config import Config
from arpo.engines.base import Engine
from arpo.errors import ConfigError
from arpo.runs.store import Run
from arpo.training.base import Batch, Learner, LearnerError, Update
from arpo.training.checkpoint import Checkpoints
from arpo.training.metrics import episode_metrics
from arpo.training.rollouts import Groups
from arpo.training.samples import to_batches
from arpo.types import Observation

Kept = TypeVar("Kept")


async def train(
    config: Config,
    run: Run,
    rollouts: Groups,
    engine: Engine,
    learner: Learner,
    algorithm: Algorithm,
    checkpoints: Checkpoints,
    on_update: Callable[[dict[str, Any]], object] = lambda metrics: None,
    make_room: Callable[[], Awaitable[object]] | None = None,
) -> None:
    """Make the updates that the run has not made yet. `make_room`: before each, where it needs memory of others."""
    place = checkpoints.restore(learner, algorithm)
    logged = {metrics["update"] for metrics in run.metrics()}
    if place is not None:
        await engine.load(learner.version, await beside(checkpoints.publish, learner))
        if learner.version - 1 not in logged:  # the run was killed after the checkpoint and before the log
            run.log(metrics := checkpoints.metrics(place))
            on_update(metrics)
    image_pad = rollouts.agent.dialect.image_pad
    with checkpoints.guard(learner, algorithm):
        async with aclosing(rollouts.batches(learner.version, algorithm)) as played:
            async for rollout in played:
                began = time.monotonic()
                groups = algorithm.fill(rollout.groups, rollout.update, partial(_stored, run, run.trajectory))
                batches = to_batches(groups, algorithm, config.train.optimizer_tasks, image_pad)
                screens = await beside(_read_screens, run.folder, batches)
                await asyncio.sleep(0)  # a request to stop ends the run here, before the update, or after it
                if make_room is not None:
                    await make_room()
                learned = await beside(_update, learner, batches, screens)
                await run.keep_record(rollout.update, learned.record)
                algorithm.remember(rollout.groups, rollout.update)
                episodes = episode_metrics(rollout.played, rollout.groups, groups, config.algorithm.solved)
                seconds = {"sample_s": rollout.sample_s, "learn_s": time.monotonic() - began}
                own = {"update": rollout.update, **episodes}
                metrics = own | learned.metrics | own | seconds  # a learner's may not hide those of the loop
                checkpoints.finished(metrics)
                if learner.version % config.train.save_every == 0 or rollout.last:
                    await beside(checkpoints.save, learner, algorithm)
                try:
                    await engine.load(learner.version, await beside(checkpoints.publish, learner))
                finally:  # also where the run is stopped meanwhile: the update has been made
                    metrics["learn_s"] = time.monotonic() - began  # now with saving and loading
                    if rollout.update not in logged:  # it is in a resumed run that repeats updates after its checkpoint
                        run.log(metrics)
                    on_update(metrics)
        await beside(checkpoints.wait)


def _read_screens(folder: Path, batches: Iterable[Batch]) -> dict[str, Observation]:
    """Of the batches, by hash. With a reader of its own, since the writer belongs to the event loop's thread."""
    names = dict.fromkeys(name for batch in batches for sample in batch.samples for name in sample.images)
    with Run.read(folder) as run:
        return {name: _stored(run, run.image, name) for name in names}


def _update(learner: Learner, batches: Sequence[Batch], screens: Mapping[str, Observation]) -> Update:
    """One update. LearnerError where engine and learner do not count versions alike."""
    version = learner.version
    for one in (sample.version for batch in batches for sample in batch.samples):
        if not 0 <= one <= version:  # weights that are still to come: of another run, or an engine with another count
            raise LearnerError(f"the engine sampled with version {one}, and the learner has made {version} updates")
    update = learner.update(batches, screens)
    if learner.version != version + 1:
        raise LearnerError(f"after update {version + 1} the learner has version {learner.version}")
    return update


def _stored(run: Run, read: Callable[[str], Kept], name: str) -> Kept:
    """A success to be replayed, or a screenshot."""
    try:
        return read(name)
    except KeyError:
        raise ConfigError(
            f"{run.folder / 'run.sqlite'}: lacks {name}, which a checkpoint or an episode remembers: it is not the one "
            "that was written with it; put that back"
        ) from None
