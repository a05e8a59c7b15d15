"""Checkpoints: all that a run needs to go on, one folder each, there whole or not at all.

    checkpoints/update-00012/    the model in Hugging Face's form, optimizer.pt, state.json

Random choices follow from (seed, update) and need no state; replay is a list of ids, since the trajectories are in the
run's store.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from arpo.algorithms.replay import Replay
from arpo.engines.checkpoint import find_checkpoint, load_model
from arpo.training.learner import Learner


class Checkpoints:
    """Those of one run, the newest `keep` of them."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep
        for unfinished in folder.glob("*.part"):
            shutil.rmtree(unfinished)

    def all(self) -> list[Path]:
        return sorted(self.folder.glob("update-?????"))

    @property
    def newest(self) -> Path:
        return self.all()[-1]

    def save(self, learner: Learner, replay: Replay, line: dict[str, Any]) -> Path:
        """Write one, then drop the oldest: a crash in between leaves one more and never one less.

        `line`: the update's metrics, in case that the run ends before it could log them.
        """
        place = self.folder / f"update-{learner.version:05d}"
        part = place.with_suffix(".part")
        part.mkdir(parents=True)
        learner.publish(part)
        torch.save(learner.optimizer.state_dict(), part / "optimizer.pt")
        state = {"version": learner.version, "steps": learner.steps, "replay": replay.state(), "line": line}
        (part / "state.json").write_text(json.dumps(state))
        source = find_checkpoint(learner.checkpoint.name)
        for name in ("tokenizer.json", "tokenizer_config.json", "prompt.txt"):  # so that `arpo eval` takes it as it is
            if (source / name).exists():
                shutil.copy(source / name, part / name)
        part.rename(place)
        for old in self.all()[: -self.keep]:
            shutil.rmtree(old)
        return place

    def line(self) -> dict[str, Any]:
        """The metrics of the newest one's last update."""
        line: dict[str, Any] = self._state()["line"]
        return line

    def restore(self, learner: Learner, replay: Replay) -> int:
        """Put the newest back; returns its number of updates, 0 where there is none."""
        if not self.all():
            return 0
        state = self._state()
        learner.model.load_state_dict(load_model(self.newest, "cpu", learner.parameters[0].dtype).state_dict())
        learner.optimizer.load_state_dict(torch.load(self.newest / "optimizer.pt", weights_only=True))
        learner.version, learner.steps = state["version"], state["steps"]
        replay.restore(state["replay"])
        return learner.version

    def _state(self) -> Any:
        return json.loads((self.newest / "state.json").read_text())
