"""Checkpoints: all that a run needs to resume, one folder each, written whole or not at all (runs/checkpoints.py).

They are written in a thread while the run goes on, one at a time.

Random choices follow from (seed, update) and need no state; what an algorithm remembers is small, since trajectories
are in the run's store. Kept are the newest, and beside them the best.

A loss or a gradient that is not finite ends a run, and its batch is written to a folder. To reproduce:

    run, bad = Run.read(folder), folder / "not-finite-00012"
    samples = [from_json(Sample, line) for line in (bad / "samples.jsonl").read_text().splitlines()]
    batch = Batch(tuple(samples), **json.loads((bad / "batch.json").read_text()))
    learner = LocalLearner(load_checkpoint(bad), config, make_algorithm(config.algorithm, config.seed))
    learner.step(batch, {name: run.image(name) for one in samples for name in one.images}, torch.load(bad / "old.pt"))

A method that looks back (dpo, kto, `algorithm.kl`) needs the weights that training began with: make the learner with
load_checkpoint(config.train.model) and call fill_model(learner.model, bad). critic.json has the value head of ppo, for
learner._critic.restore.
"""

import contextlib
import errno
import json
import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from arpo.algorithms.base import Algorithm
from arpo.engines.base import Weights
from arpo.model.checkpoint import BASE, find_checkpoint
from arpo.runs.checkpoints import RECENT, best_in, checkpoints_in, read_state, readable
from arpo.runs.settings import of_an_update
from arpo.training.base import Learner, LearnerError, NotFinite
from arpo.types import to_json

_log = logging.getLogger(__name__)


class Checkpoints:
    """Those in a folder: the newest `keep` of them, and the best.

    `model` is what the run began with, whose tokenizer all of them have; `prompt_file`: replaces its prompt.
    """

    def __init__(self, folder: Path, keep: int = 1, model: str = BASE, prompt_file: Path | None = None) -> None:
        self.folder, self.keep, self._model, self._prompt_file = folder, keep, model, prompt_file
        self._unsaved: dict[str, Any] | None = None  # the metrics of the last update, until a checkpoint has them
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[dict[str, Any]] | None = None  # its result: the metrics that are in a checkpoint by now

    @property
    def newest(self) -> Path | None:
        return next(reversed(checkpoints_in(self.folder)), None)

    def finished(self, metrics: dict[str, Any]) -> None:
        """An update was made. Where the run is stopped before the next `save`, `guard` saves.

        `metrics`: of the update, in case the run is killed before it logs them.
        """
        self._unsaved = metrics
        # Stored episodes say nothing of the present policy: all are alike, and the newest is the best.
        self._recent.append(0.0 if metrics.get("stored_episodes") else metrics["success"])
        if self._writing is not None and self._writing.done():
            self.wait()

    def save(self, learner: Learner, algorithm: Algorithm) -> None:
        """Begin to write one, as soon as the one before is whole."""
        self.wait()
        state = {
            "version": learner.version,
            "replay": algorithm.state(),
            "line": dict(self._unsaved or {}),
            "recent": list(self._recent),
        }
        if not isinstance(state["replay"], dict):
            raise LearnerError(f"the state of an algorithm is a dict, not {state['replay']!r:.60}")
        state = json.loads(json.dumps(state))  # as it is now: it is written later, and an algorithm may go on with it
        place = self.folder / f"update-{learner.version:05d}"
        part = _new_part(place)
        with on_disk(part):
            write = learner.save(part)
        self._writing = self._thread.submit(self._write, place, part, write, state, self._unsaved)

    def wait(self) -> None:
        """Until what is being written is whole. What went wrong with it is raised here."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            if writing.result() is self._unsaved:
                self._unsaved = None

    def publish(self, learner: Learner) -> Weights:
        """The weights, for the engine."""
        place = self.folder.parent / "published"
        with on_disk(place):
            return learner.publish(place)

    @contextlib.contextmanager
    def guard(self, learner: Learner, algorithm: Algorithm) -> Iterator[None]:
        """Around the updates: whatever stops them, the finished ones are in a checkpoint.

        Not so where an update broke off between its optimiser steps: all since the last checkpoint are repeated.
        """
        try:
            yield
        except BaseException as stopped:
            with contextlib.suppress(Exception):  # what could not be written is tried once more
                self.wait()
            if self._unsaved is not None and self._unsaved["update"] + 1 == learner.version:
                try:
                    self.save(learner, algorithm)
                    self.wait()
                except Exception as error:  # of any kind: it must not hide what stopped the run
                    if not isinstance(stopped, OSError):  # a full disk, which is reported already
                        _log.warning("update %d could not be saved, it will be made again: %s", learner.version, error)
            if isinstance(stopped, NotFinite):
                place = self._keep_batch(learner, stopped)
                begin = self.newest or self._model
                raise LearnerError(
                    f"{stopped}; nothing of its batch was learned, see {place}; "
                    f"a new run with train.model={begin} and a smaller train.lr may do better"
                ) from stopped
            raise

    def metrics(self, place: Path) -> dict[str, Any]:
        """Of the last update before a checkpoint."""
        metrics: dict[str, Any] = read_state(place)["line"]
        with readable(place, place / "state.json"):
            if not of_an_update(metrics):
                raise ValueError("its metrics are not those of an update")
        return metrics

    def restore(self, learner: Learner, algorithm: Algorithm) -> Path | None:
        """Restore the newest and return its folder; None where there is none. ConfigError where one is damaged."""
        for unfinished in self.folder.glob("*.part"):
            shutil.rmtree(unfinished)
        states = {place: read_state(place) for place in checkpoints_in(self.folder)}  # a later best needs all of them
        if (place := self.newest) is None:
            return None
        with readable(place, place, but=(torch.OutOfMemoryError, LearnerError)):
            learner.restore(place, states[place])
        if learner.version != states[place]["version"]:
            raise LearnerError(f"{place}: the learner came back from it with version {learner.version}")
        with readable(place, place / "state.json"):
            algorithm.restore(states[place]["replay"])
        self._recent.extend(states[place]["recent"])
        return place

    def _write(
        self, place: Path, part: Path, write: Callable[[], dict[str, Any]], state: dict[str, Any], metrics: Any
    ) -> Any:
        """Write one, then drop the oldest: a crash in between leaves one more and never one less."""
        with on_disk(part):
            own = write()
            if taken := own.keys() & state.keys() - {"version"}:
                raise LearnerError(f"the state of a learner has no {min(taken)!r}: that is a checkpoint's own")
            self._complete(part)
            (part / "state.json").write_text(json.dumps(own | state))
        part.rename(place)
        every = checkpoints_in(self.folder)
        for old in set(every) - {*every[-self.keep :], best_in(self.folder)}:
            shutil.rmtree(old)
        return metrics

    def _keep_batch(self, learner: Learner, bad: NotFinite) -> Path:
        place = self.folder.parent / f"not-finite-{learner.version:05d}"
        shutil.rmtree(place, ignore_errors=True)  # of an earlier try
        part = _new_part(place)
        with on_disk(part):
            learner.publish(part).path()
            self._complete(part)
            torch.save(bad.old, part / "old.pt")
            (part / "samples.jsonl").write_bytes(b"".join(to_json(sample) + b"\n" for sample in bad.batch.samples))
            (part / "batch.json").write_text(json.dumps({"trajectories": bad.batch.trajectories}))
            if bad.critic:
                (part / "critic.json").write_text(json.dumps(list(bad.critic)))
        part.rename(place)
        return place

    def _complete(self, folder: Path) -> None:
        """To the model its tokenizer and prompt: `arpo eval` takes it as it is."""
        if not (folder / "config.json").is_file():
            raise LearnerError(f"the learner did not write its weights into {folder}, where a checkpoint has them")
        source = find_checkpoint(self._model)
        names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "prompt.txt")
        files = {name: source / name for name in names}
        if self._prompt_file is not None:
            files["prompt.txt"] = self._prompt_file
        for name, file in files.items():
            if file.exists():
                shutil.copy(file, folder / name)


def _new_part(place: Path) -> Path:
    """A folder to write into, that becomes `place` at the end."""
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    return part


@contextlib.contextmanager
def on_disk(place: Path) -> Iterator[None]:
    """OSError where safetensors, torch.save or a tokenizer cannot write a file; some of them give no reason at all."""
    try:
        yield
    except Exception as error:  # a kind of its own, a RuntimeError, a bare one
        said = str(error)
        if isinstance(error, SafetensorError) or "inline_container" in said or "(os error" in said:
            raise OSError(errno.EIO, "cannot be written (a full disk?)", str(place)) from error
        raise
