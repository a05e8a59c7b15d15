"""The contract of a learner: batches and their screenshots in, metrics and a record of each token out.

    update = learner.update(batches, screens)                   # one optimiser step a batch; the version is one higher
    await engine.load(learner.version, learner.publish(folder)) # a place to fetch the weights from, never tensors
    state = learner.state(folder); learner.restore(folder, state)   # what a checkpoint needs

One process or many ranks may be behind it. Calls come one at a time, from any thread, in any order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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

    def publish(self, folder: Path) -> Path:
        """Write the weights as a Hugging Face folder, where an engine can fetch them; returns that folder."""
        ...

    def state(self, folder: Path) -> dict[str, Any]:
        """What it needs to resume, beside the published weights: large things as files in the folder, the rest as JSON.

        LearnerError where only some optimiser steps of an update have been made.
        """
        ...

    def restore(self, folder: Path, state: dict[str, Any]) -> None:
        """Resume: the folder has the published weights and the files of `state`."""
        ...


class LearnerError(ArpoError):
    """Learning cannot continue: numbers that are not finite, or log-probabilities that are not the sampler's."""


class NotFinite(LearnerError):
    """A loss or a gradient that is not finite. The optimiser step was not taken."""

    def __init__(self, text: str, batch: Batch, old: Sequence[Any]) -> None:
        super().__init__(text)
        self.batch = batch  # what the step was to learn
        self.old = old  # log-probabilities of its samples before the update; empty in the first step of an update
