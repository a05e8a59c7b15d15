"""The checkpoints in a run's folder, for whoever reads them; training/checkpoint.py writes them.

    checkpoints/update-00012/    the agent in Hugging Face's form, what the learner adds (optimizer.*), state.json

The best is the one with the highest success of training episodes, averaged over the RECENT updates that led to it. (One
update plays few tasks, and not always the same; those with fewer updates behind them are the best only where all have
fewer.) It is a choice by noisy numbers: to compare agents, use `arpo eval`.

A damaged one is never removed: who renames it resumes from the one before, and what was played since is in the store.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo.errors import ConfigError
from arpo.files import read_bytes

STATE = 2**24  # bytes of state.json, at most
RECENT = 4  # updates whose success is averaged to find the best


def checkpoints_in(folder: Path) -> list[Path]:
    """From the oldest to the newest."""
    return sorted(place for place in folder.glob("update-*") if re.fullmatch(r"update-[0-9]{5}", place.name))


def best_in(folder: Path) -> Path:
    """See the module; the newest of those that are equal."""

    def goodness(place: Path) -> tuple[int, float, str]:
        recent = read_state(place)["recent"]
        return len(recent), fmean(recent), place.name

    return max(checkpoints_in(folder), key=goodness)


def read_state(place: Path) -> dict[str, Any]:
    """What state.json holds. ConfigError where it is damaged."""
    with readable(place, place / "state.json") as file:
        state: dict[str, Any] = json.loads(read_bytes(file, STATE))
        kinds = {"version": int, "replay": dict, "line": dict, "recent": list}
        if not all(isinstance(state[name], kind) for name, kind in kinds.items()):
            raise ValueError("not what a checkpoint remembers")
        if state["version"] != int(place.name.removeprefix("update-")):
            raise ValueError(f"of version {state['version']!r:.20}")
        fmean(state["recent"])
        return state


@contextlib.contextmanager
def readable(
    place: Path, file: Path, but: type[Exception] | tuple[type[Exception], ...] = MemoryError
) -> Iterator[Path]:
    """ConfigError, with the way back, where a file of a checkpoint is damaged; `but`: errors to let through."""
    try:
        yield file
    except but:
        raise
    except Exception as error:  # torch, pickle, safetensors and json each raise their own kinds
        others = [each.name for each in checkpoints_in(place.parent) if each != place]
        then = f"from {others[-1]}" if others else "from its beginning, with the episodes that are stored"
        why = str(error).partition("\n")[0].partition(". ")[0] or type(error).__name__
        raise ConfigError(
            f"{file}: cannot be read ({why}); rename {place.name} to {place.name}.damaged, and the run goes on {then}"
        ) from error
