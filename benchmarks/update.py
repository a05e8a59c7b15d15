"""Where the time of a training update goes: the table of docs/profile.md.

    OMP_NUM_THREADS=2 python benchmarks/update.py                     # the preset pocket
    OMP_NUM_THREADS=2 python benchmarks/update.py algorithm.group=4   # with other settings

A short run of `arpo train` with a stopwatch around the calls that matter. A call's time is its own: what it spends in
another call that is timed counts there. The first update warms up, and of the others the mean is printed. At the end
the learner repeats its last update under torch's profiler.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import arpo.engines.local.engine
import arpo.engines.local.sampling
import arpo.envs.pocket.env
import arpo.runs.store
from arpo.config import load_config
from arpo.engines.local import LocalEngine
from arpo.engines.local.screens import Screens
from arpo.envs.pocket.env import PocketEnv
from arpo.model.vision import Tower
from arpo.runs.store import Run
from arpo.training.base import Update
from arpo.training.checkpoint import Checkpoints
from arpo.training.command import run_training
from arpo.training.learner import LocalLearner

UPDATES = 4
SAMPLING = [
    (Screens, "features", "screenshots read and resized"),
    (Tower, "forward", "vision tower"),
    (LocalEngine, "_run", "prompts (prefill)"),
    (LocalEngine, "_step", "replies, token by token (decode)"),
    (arpo.engines.local.sampling, "sample", "choice of tokens"),
    (PocketEnv, "reset", "environment"),
    (PocketEnv, "step", "environment"),
    (PocketEnv, "score", "environment"),
    (arpo.envs.pocket.env, "observe", "screenshots written as PNG and hashed"),
    (Run, "add_image", "store"),
    (Run, "add", "store"),
]
LEARNING = [
    (Run, "image", "screenshots read back"),
    (LocalLearner, "logprobs", "old log-probabilities"),
    (LocalLearner, "_forward", "forward"),
    (torch.Tensor, "backward", "backward"),
    (torch.nn.utils, "get_total_norm", "optimiser"),
    (torch.nn.utils, "clip_grads_with_norm_", "optimiser"),
    (torch.optim.AdamW, "step", "optimiser"),
    (arpo.runs.store, "pack", "record of every token"),
    (Checkpoints, "save", "checkpoint taken; its files are written beside"),
    (arpo.engines.local.engine, "_take_over", "weights copied to the engine"),
]
KINDS = {"attention": ("scaled_dot_product",), "matrix products": ("aten::mm", "aten::addmm", "aten::bmm")}


class Stopwatch:
    """Seconds by what they were spent on. Calls may be nested; at lag 0 there is one at a time."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._mark = 0.0

    def wrap(self, owner: Any, name: str, what: str) -> None:
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            # The forward pass of old log-probabilities is theirs.
            self._turn(what if "old log-probabilities" not in self._open else "old log-probabilities")
            try:
                return inner(*args, **kwargs)
            finally:
                self._turn(None)

        setattr(owner, name, timed)

    def _turn(self, what: str | None) -> None:
        """What begins, or None: the latest ends."""
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._mark
        if what is None:
            self._open.pop()
        else:
            self._open.append(what)
        self._mark = now


def main() -> None:
    watch = Stopwatch()
    for owner, name, what in SAMPLING + LEARNING:
        watch.wrap(owner, name, what)
    laps: list[dict[str, float]] = []
    last: list[Any] = []
    log, update = Run.log, LocalLearner.update

    def log_too(self: Run, metrics: dict[str, Any]) -> None:
        laps.append(metrics | watch.seconds)
        watch.seconds.clear()
        log(self, metrics)

    def update_too(*args: Any) -> Update:
        last[:] = args
        return update(*args)

    Run.log, LocalLearner.update = log_too, update_too
    settings = [f"train.updates={UPDATES}", "eval.trials=1", "eval.held_out=0", *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        run_training(load_config("pocket", [*settings, f"run_dir={Path(folder) / 'run'}"]))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:  # here: it sees no threads but its own
        update(*last)
    show(laps[1:], profiled.key_averages())


def show(laps: list[dict[str, float]], operations: list[Any]) -> None:
    def mean(name: str) -> float:
        return sum(lap.get(name, 0.0) for lap in laps) / len(laps)

    whole = mean("sample_s") + mean("learn_s")
    counts = ", ".join(f"{mean(name):,.0f} {name}" for name in ("episodes", "env_steps", "learned_tokens"))
    print(f"\n{len(laps)} updates, mean: {counts}; {torch.get_num_threads()} threads\n")
    print("| | seconds | share |\n|---|---|---|")
    for phase, parts in (("sample_s", SAMPLING), ("learn_s", LEARNING)):
        names = list(dict.fromkeys(what for _, _, what in parts))
        rest = mean(phase) - sum(map(mean, names))
        for what, seconds in [(f"**{phase}**", mean(phase)), *((n, mean(n)) for n in names), ("the rest", rest)]:
            print(f"| {what} | {seconds:.2f} | {seconds / whole:.1%} |")
    total = sum(one.self_cpu_time_total for one in operations)
    shares = {
        kind: sum(one.self_cpu_time_total for one in operations if any(start in one.key for start in starts)) / total
        for kind, starts in KINDS.items()
    }
    print("\nOf the learner's time:", ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()))


if __name__ == "__main__":
    main()
