"""Checkpoints: all that a run needs to go on, one folder each, there whole or not at all.

    checkpoints/update-00012/    the model in Hugging Face's form, optimizer.pt, state.json; adapters.pt with LoRA

Random choices follow from (seed, update) and need no state; replay is a list of ids, since the trajectories are in the
run's store. Beside the newest, the best is kept: the one with the highest success of training episodes, averaged over
the RECENT updates that led to it. (One update plays few tasks, and not always the same; those with fewer updates behind
them are the best only where all have fewer.) It is a choice by noisy numbers: to compare agents, use `arpo eval`.

A damaged one is never removed: who renames it goes on from the one before, and what was played since is in the store.

A loss or a gradient that is no number ends a run, and its batch is set aside. So it happens again:

    run, bad = Run.read(folder), folder / "not-finite-00012"
    samples = [from_json(Sample, line) for line in (bad / "samples.jsonl").read_text().splitlines()]
    batch = Batch(tuple(samples), **json.loads((bad / "batch.json").read_text()))
    old = dict(zip(map(id, samples), torch.load(bad / "old.pt")))
    learner = Learner(load_checkpoint(bad), config)      # the weights of the moment
    learner.show({name: run.image(name) for sample in samples for name in sample.images})
    learner.step(batch, old, [])
"""

import contextlib
import errno
import json
import logging
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors import SafetensorError

from arpo.algorithms.replay import Replay
from arpo.errors import ConfigError
from arpo.model.checkpoint import find_checkpoint, load_model
from arpo.runs.settings import LINE
from arpo.training import lora
from arpo.training.learner import Learner, LearnerError, NotFinite
from arpo.types import to_json

_log = logging.getLogger(__name__)
RECENT = 4  # updates whose success is averaged to find the best


class Checkpoints:
    """Those of one run: the newest `keep` of them, and the best."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        self._unsaved: dict[str, Any] | None = None  # the metrics of the last update, where no checkpoint has them
        self._recent: deque[float] = deque(maxlen=RECENT)

    def all(self) -> list[Path]:
        return sorted(self.folder.glob("update-?????"))

    @property
    def newest(self) -> Path:
        return self.all()[-1]

    @property
    def best(self) -> Path:
        """See the module; the newest of those that are equal."""

        def goodness(place: Path) -> tuple[int, float, str]:
            recent = self._state(place)["recent"]
            return len(recent), fmean(recent), place.name

        return max(self.all(), key=goodness)

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
        with on_disk(place):
            return learner.publish(place)

    @contextlib.contextmanager
    def guard(self, learner: Learner, replay: Replay) -> Iterator[None]:
        """Around the updates: whoever or whatever stops them, what was finished is in a checkpoint.

        An update that broke off between its optimiser steps cannot be: it is made again, with all since the last
        checkpoint.
        """
        try:
            yield
        except BaseException as stopped:
            if self._unsaved is not None and self._unsaved["update"] + 1 == learner.version and not learner.midway:
                try:
                    self._write(learner, replay)
                except Exception as error:  # of whatever kind: what stopped the run is what there is to say
                    if not isinstance(stopped, OSError):  # that said the same already: the disk
                        _log.warning("update %d could not be saved, it will be made again: %s", learner.version, error)
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
        line: dict[str, Any] = self._state(self.newest)["line"]
        with self._reading(self.newest / "state.json"):
            if not line.keys() >= LINE:
                raise ValueError("its line of metrics is none")
        return line

    def restore(self, learner: Learner, replay: Replay) -> int:
        """Put the newest back; returns its number of updates, 0 where there is none.

        ConfigError where one of them is damaged. What a GPU wrote is read where there is none, and the reverse.
        """
        for unfinished in self.folder.glob("*.part"):
            shutil.rmtree(unfinished)
        if not self.all():
            return 0
        place = self.newest
        state = {each: self._state(each) for each in self.all()}[place]  # all: a later choice of the best needs them
        if learner.config.train.lora_rank:
            with self._reading(place / "adapters.pt") as file:
                lora.restore(learner.model, torch.load(file, "cpu", weights_only=True))
        else:
            with self._reading(place):
                learner.model.load_state_dict(load_model(place, "cpu", learner.parameters[0].dtype).state_dict())
        with self._reading(place / "optimizer.pt") as file:
            learner.optimizer.load_state_dict(torch.load(file, "cpu", weights_only=True))
        learner.version, learner.steps = state["version"], state["steps"]
        replay.restore(state["replay"])
        self._recent.extend(state["recent"])
        return learner.version

    def _state(self, place: Path) -> dict[str, Any]:
        with self._reading(place / "state.json") as file:
            state: dict[str, Any] = json.loads(file.read_text())
            kinds = {"version": int, "steps": int, "replay": dict, "line": dict, "recent": list}
            if not all(isinstance(state[name], kind) for name, kind in kinds.items()):
                raise ValueError("not what a checkpoint remembers")
            fmean(state["recent"])
            for kept in state["replay"].values():
                if not all(isinstance(name, str) and isinstance(update, int) for name, update in kept):
                    raise ValueError("a success is an id and an update")
            return state

    @contextlib.contextmanager
    def _reading(self, file: Path) -> Iterator[Path]:
        """ConfigError, with the way back, where a checkpoint or a file of it is damaged."""
        try:
            yield file
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # torch, pickle, safetensors and json each raise their own kinds
            place = file if file.parent == self.folder else file.parent
            others = [each.name for each in self.all() if each != place]
            then = f"from {others[-1]}" if others else "from its beginning, with the episodes that are stored"
            why = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
            raise ConfigError(
                f"{file}: cannot be read ({why}); rename {place.name} to {place.name}.damaged, and the run goes on "
                f"{then}"
            ) from error

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
        with whole(place) as part:
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
        with whole(place) as part:
            _write_agent(learner, part)
            torch.save(bad.old, part / "old.pt")
            (part / "samples.jsonl").write_bytes(b"".join(to_json(sample) + b"\n" for sample in bad.batch.samples))
            (part / "batch.json").write_text(json.dumps({"trajectories": bad.batch.trajectories}))
        return place


@contextlib.contextmanager
def whole(place: Path) -> Iterator[Path]:
    """A folder to write into that becomes `place` at the end."""
    part = place.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with on_disk(part):
        yield part
    part.rename(place)


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


def _write_agent(learner: Learner, folder: Path) -> None:
    """The model with its tokenizer and prompt, so that `arpo eval` takes it as it is."""
    learner.publish(folder)
    source = find_checkpoint(learner.checkpoint.name)
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "prompt.txt")
    files = {name: source / name for name in names}
    if learner.config.agent.prompt_file is not None:
        files["prompt.txt"] = learner.config.agent.prompt_file
    for name, file in files.items():
        if file.exists():
            shutil.copy(file, folder / name)
