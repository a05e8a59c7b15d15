"""The contract of a learner: batches and their screenshots in, metrics and a record of each token out.

    update = learner.update(batches, screens)                   # one optimiser step a batch; the version is one higher
    await engine.load(learner.version, learner.publish(folder)) # the weights, where they are
    write = learner.save(folder); state = write()               # a checkpoint; may be written while updates go on
    learner.restore(folder, state)

One process or many ranks may be behind it. Calls come one at a time, from any thread, in any order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from arpo.engines.base import Weights
from arpo.errors import ArpoError
from arpo.runs.record import TokenRecord
from arpo.types import Observation, Sample


@dataclass(frozen=True, slots=True)
class Batch:
    """What one optimiser step learns."""

    samples: tuple[Sample, ...]
    trajectories: int  # how many its mean is over: all that are valid, also those without a gradient


@dataclass(frozen=True, slots=True)
class Update:
    """The result of an update."""

    metrics: dict[str, float]
    record: Sequence[TokenRecord]  # of every learned token


class Learner(Protocol):
    """Learns. LearnerError where it cannot."""

    @property
    def version(self) -> int:
        """How many updates have been made."""
        ...

    def update(self, batches: Sequence[Batch], screens: Mapping[str, Observation]) -> Update:
        """One optimiser step for each batch that has samples; `screens` has every screenshot of theirs, by hash."""
        ...

    def publish(self, folder: Path) -> Weights:
        """The present weights, for an engine. A learner that does not hold them in this process writes the folder."""
        ...

    def save(self, folder: Path) -> Callable[[], dict[str, Any]]:
        """Take all that is needed to resume, as it is now. The call that is returned writes it to the folder.

        That comes once, from another thread, while updates go on. It writes the weights in Hugging Face's form and what
        else is large as files beside them, and returns the rest, as JSON has it. A learner may as well write at once.
        LearnerError where only some optimiser steps of an update have been made.
        """
        ...

    def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Resume from the files of `save` and what its call returned."""
        ...


class LearnerError(ArpoError):
    """Learning cannot continue: numbers that are not finite, or log-probabilities that are not the sampler's."""


class NotFinite(LearnerError):
    """A loss or a gradient that is not finite. The optimiser step was not taken."""

    def __init__(self, text: str, batch: Batch, old: Sequence[Any], critic: Sequence[float] = ()) -> None:
        super().__init__(text)
        self.batch = batch  # what the step was to learn
        self.old = old  # log-probabilities of its samples before the update; empty in the first step of an update
        self.critic = critic  # the value head, where there is one: published weights do not have it

    def __reduce__(self) -> tuple[Any, ...]:  # it comes from another process
        return NotFinite, (str(self), self.batch, self.old, self.critic)


class RanksLost(LearnerError):
    """A process of the learner has died or hangs. What the run has made is there, and it can be resumed."""
