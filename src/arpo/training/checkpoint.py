"""Checkpoints: all that a run needs to go on, one folder each, there whole or not at all.

    checkpoints/update-00012/    the model in Hugging Face's form, optimizer.pt, state.json; adapters.pt with LoRA

Random choices follow from (seed, update) and need no state; replay is a list of ids, since the trajectories are in the
run's store. Beside the newest, the best is kept: the one with the highest success of training episodes, averaged over
the RECENT updates that led to it. (One update plays few tasks, and not always the same; those with fewer updates behind
them are the best only where all have fewer.) It is a choice by noisy numbers: to compare agents, use `arpo eval`.

A loss or a gradient that is no number ends a run, and its batch is set aside. So it happens again:

    run, bad = Run.read(folder), folder / "not-finite-00012"
    samples = [from_json(Sample, line) for line in (bad / "samples.jsonl").read_text().splitlines()]
    batch = Batch(tuple(samples), **json.loads((bad / "batch.json").read_text()))
    old = dict(zip(map(id, samples), torch.load(bad / "old.pt")))
    learner = Learner(load_checkpoint(bad), config)      # the weights of the moment
    learner.show({name: run.image(name) for sample in samples for name in sample.images})
    learner.step(batch, old, [])
"""

import asyncio
import contextlib
import errno
import json
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError

from arpo.algorithms.replay import Replay
from arpo.engines.checkpoint import find_checkpoint, load_model
from arpo.training import lora
from arpo.training.learner import Learner, LearnerError, NotFinite
from arpo.types import to_json

RECENT = 4  # updates whose success is averaged to find the best


class Checkpoints:
    """Those of one run: the newest `keep` of them, and the best."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._unsaved: dict[str, Any] | None = None  # the metrics of the last update, where no checkpoint has them
        self._recent: deque[float] = deque(maxlen=RECENT)
        for unfinished in folder.glob("*.part"):
            shutil.rmtree(unfinished)

    def all(self) -> list[Path]:
        return sorted(self.folder.glob("update-?????"))

    @property
    def newest(self) -> Path:
        return self.all()[-1]

    @property
    def best(self) -> Path:
        """See the module; the newest of those that are equal."""
        return max(self.all(), key=_goodness)

    def save(self, learner: Learner, replay: Replay, line: dict[str, Any]) -> Path:
        """Write one, then drop the oldest: a crash in between leaves one more and never one less.

        `line`: the update's metrics, in case that the run ends before it could log them.
        """
        self._finished(line)
        return self._write(learner, replay)

    def publish(self, learner: Learner, line: dict[str, Any]) -> Path:
        """Write only the weights, for the engine. Where the run is stopped before the next `save`, `guard` saves."""
        self._finished(line)
        place = self.folder.parent / "published"
        with _on_disk(place):
            return learner.publish(place)

    @contextlib.contextmanager
    def guard(self, learner: Learner, replay: Replay) -> Iterator[None]:
        """Around the updates: whoever or whatever stops them, what was finished is in a checkpoint.

        An update that broke off between its optimiser steps cannot be: it is made again from the one before.
        """
        try:
            yield
        except (asyncio.CancelledError, NotFinite) as stopped:
            if self._unsaved is not None and not learner.midway:
                self._write(learner, replay)
            if isinstance(stopped, NotFinite):
                place = self._set_aside(learner, stopped)
                begin = self.newest if self.all() else learner.checkpoint.name
                raise LearnerError(
                    f"{stopped}; nothing of its batch was learned, see {place}; "
                    f"a new run with train.model={begin} and a smaller train.lr may do better"
                ) from stopped
            raise

    def line(self) -> dict[str, Any]:
        """The metrics of the newest one's last update."""
        line: dict[str, Any] = _state(self.newest)["line"]
        return line

    def restore(self, learner: Learner, replay: Replay) -> int:
        """Put the newest back; returns its number of updates, 0 where there is none."""
        if not self.all():
            return 0
        state = _state(self.newest)
        if learner.config.train.lora_rank:
            lora.restore(learner.model, torch.load(self.newest / "adapters.pt", weights_only=True))
        else:
            learner.model.load_state_dict(load_model(self.newest, "cpu", learner.parameters[0].dtype).state_dict())
        learner.optimizer.load_state_dict(torch.load(self.newest / "optimizer.pt", weights_only=True))
        learner.version, learner.steps = state["version"], state["steps"]
        replay.restore(state["replay"])
        self._recent.extend(state["recent"])
        return learner.version

    def _finished(self, line: dict[str, Any]) -> None:
        self._unsaved = line
        self._recent.append(line["success"])

    def _write(self, learner: Learner, replay: Replay) -> Path:
        place = self.folder / f"update-{learner.version:05d}"
        state = {
            "version": learner.version,
            "steps": learner.steps,
            "replay": replay.state(),
            "line": self._unsaved,
            "recent": list(self._recent),
        }
        with _whole(place) as part:
            _write_agent(learner, part)
            torch.save(learner.optimizer.state_dict(), part / "optimizer.pt")
            if learner.config.train.lora_rank:
                torch.save(lora.adapters(learner.model), part / "adapters.pt")
            (part / "state.json").write_text(json.dumps(state))
        self._unsaved = None
        kept = {*self.all()[-self.keep :], self.best}
        for old in set(self.all()) - kept:
            shutil.rmtree(old)
        return place

    def _set_aside(self, learner: Learner, bad: NotFinite) -> Path:
        place = self.folder.parent / f"not-finite-{learner.version:05d}"
        shutil.rmtree(place, ignore_errors=True)  # of an earlier try
        with _whole(place) as part:
            _write_agent(learner, part)
            torch.save(bad.old, part / "old.pt")
            (part / "samples.jsonl").write_bytes(b"".join(to_json(sample) + b"\n" for sample in bad.batch.samples))
            (part / "batch.json").write_text(json.dumps({"trajectories": bad.batch.trajectories}))
        return place


def best_of(run: Path) -> Path | None:
    """The best checkpoint of a run, which may be at work: only looked at. None where it has none."""
    return max((run / "checkpoints").glob("update-?????"), key=_goodness, default=None)


def _goodness(place: Path) -> tuple[int, float, str]:
    recent = _state(place)["recent"]
    return len(recent), fmean(recent), place.name


@contextlib.contextmanager
def _whole(place: Path) -> Iterator[Path]:
    """A folder to write into that becomes `place` at the end."""
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with _on_disk(part):
        yield part
    part.rename(place)


@contextlib.contextmanager
def _on_disk(place: Path) -> Iterator[None]:
    """OSError where safetensors or torch.save cannot write a file: the latter gives no reason at all."""
    try:
        yield
    except (SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "inline_container" not in str(error):
            raise
        raise OSError(errno.EIO, "cannot be written (a full disk?)", str(place)) from error


def _write_agent(learner: Learner, folder: Path) -> None:
    """The model with its tokenizer and prompt, so that `arpo eval` takes it as it is."""
    learner.publish(folder)
    source = find_checkpoint(learner.checkpoint.name)
    files = {name: source / name for name in ("tokenizer.json", "tokenizer_config.json", "prompt.txt")}
    if learner.config.agent.prompt_file is not None:
        files["prompt.txt"] = learner.config.agent.prompt_file
    for name, file in files.items():
        if file.exists():
            shutil.copy(file, folder / name)


def _state(place: Path) -> Any:
    return json.loads((place / "state.json").read_text())
