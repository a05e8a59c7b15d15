"""What is shown while a training learns: a bar where there is a terminal, else a line now and then.

An update is one line in a file or a pipe, where it can be searched for, and as many as it needs in a terminal.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import fmean
from typing import Any, Self

from rich.console import Console

from arpo.config import Config
from arpo.evaluation.run import of_episodes
from arpo.runs.progress import QUIET_S, packed, progress_bar

RECENT = 5  # updates that tell how long the next will take


class Learning:
    """The display, to be told of episodes and updates. `made`: the metrics of the updates that were made before."""

    def __init__(self, config: Config, console: Console, made: Sequence[dict[str, Any]]) -> None:
        self._train, self._console = config.train, console
        self._episodes = config.train.rollout_tasks * config.algorithm.group
        self._of = "" if config.algorithm.redraw else f" of {self._episodes}"  # where groups are drawn again: more
        self._steps = {metrics["update"]: metrics["env_steps"] for metrics in made}
        self._recent: deque[dict[str, Any]] = deque(made, maxlen=RECENT)
        self._played: Counter[int] = Counter()  # episodes, by update
        self._said = time.monotonic()
        self._progress = progress_bar(console)
        self._bar = self._progress.add_task("learning", total=self._train.updates, completed=self._done, so_far=[])

    def __enter__(self) -> Self:
        self._progress.start()
        if not self._console.is_terminal and (left := self._updates_left()):
            self._say(f"learning; updates to make: {left}, each of {self._episodes} episodes")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def episode(self, update: int) -> None:
        """One more episode of an update has been played."""
        self._played[update] += 1
        played = f"update {update + 1:3}  episodes {self._played[update]}{self._of}"
        self._progress.update(self._bar, so_far=[*self._so_far(), played])
        if not self._console.is_terminal and time.monotonic() - self._said >= QUIET_S:
            self._say(played)

    def update(self, metrics: dict[str, Any]) -> None:
        """An update has been made."""
        self._steps[metrics["update"]] = metrics["env_steps"]
        self._recent.append(metrics)
        self._progress.update(self._bar, completed=self._done, so_far=self._so_far())
        seconds = max(1e-9, metrics["sample_s"] + metrics["learn_s"])
        parts = [f"update {self._done:3}", _rate(metrics), f"reward {metrics['reward']:5.2f}"]
        parts += [f"all failed {metrics['failed_groups']:4.0%}", f"replayed {metrics['replayed_groups']:4.0%}"]
        if "lag" in metrics:  # what a learner tells of tokens that it had to learn, none of them replayed
            parts.append(f"lag {metrics['lag']:.1f}")
        if "sampler_gap" in metrics:
            parts.append(f"gap {metrics['sampler_gap']:.1e}")
        if speed := metrics["env_steps"] / seconds:  # none where stored episodes are learned
            parts.append(f"{speed:{'.2g' if speed < 10 else '.0f'}} steps/s")
        self._say(*parts, f"{metrics['sampled_tokens'] / seconds:.0f} tokens/s", *self._end())

    def _say(self, *parts: str) -> None:
        lines = packed(parts, self._console.width) if self._console.is_terminal else ["  ".join(parts)]
        for line in lines:
            self._progress.console.print(line, markup=False, soft_wrap=True)
        self._said = time.monotonic()

    @property
    def _done(self) -> int:
        return int(self._recent[-1]["update"]) + 1 if self._recent else 0

    def _so_far(self) -> list[str]:
        return [_rate(self._recent[-1]), *self._end()] if self._recent else []

    def _end(self) -> list[str]:
        """When the last update is made, as the last few went: by the clock, and from now on."""
        each = fmean(metrics["sample_s"] + metrics["learn_s"] for metrics in self._recent)
        left, now = timedelta(seconds=round(self._updates_left() * each)), datetime.now()
        end = now + left
        clock = f"ends {end:{'%H:%M' if end.date() == now.date() else '%Y-%m-%d %H:%M'}}"
        return [*([clock] if left else []), f"{left} left"]

    def _updates_left(self) -> int:
        """Until the last update or the budget of steps, whichever comes first."""
        left = max(0, self._train.updates - self._done)
        if (budget := self._train.env_steps) is not None and self._recent:
            steps = max(1.0, fmean(metrics["env_steps"] for metrics in self._recent))
            left = min(left, max(0, math.ceil((budget - sum(self._steps.values())) / steps)))
        return left


def _rate(metrics: dict[str, Any]) -> str:
    unscored = metrics.get("errors", 0)
    whose = "stored success" if metrics.get("stored_episodes") else "success"
    return f"{whose} {metrics['success']:4.0%} ({of_episodes(metrics.get('episodes', 0) + unscored, unscored)})"
