"""What is shown while a training learns: a bar where there is a terminal, else a line now and then."""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from datetime import timedelta
from statistics import fmean
from typing import Any, Self

from rich.console import Console

from arpo.config import Config
from arpo.evaluation.run import of_episodes
from arpo.runs.progress import QUIET_S, progress_bar

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
        self._bar = self._progress.add_task("learning", total=self._train.updates, completed=self._done, so_far="")

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
        self._progress.update(self._bar, so_far="  ".join([*self._so_far(), played]))
        if not self._console.is_terminal and time.monotonic() - self._said >= QUIET_S:
            self._say(played)

    def update(self, metrics: dict[str, Any]) -> None:
        """An update has been made."""
        self._steps[metrics["update"]] = metrics["env_steps"]
        self._recent.append(metrics)
        self._progress.update(self._bar, completed=self._done, so_far="  ".join(self._so_far()))
        tokens = metrics["sampled_tokens"] / max(1e-9, metrics["sample_s"] + metrics["learn_s"])
        self._say(
            f"update {self._done:3}  {_rate(metrics)}  reward {metrics['reward']:5.2f}  "
            f"all failed {metrics['failed_groups']:4.0%}  replayed {metrics['replayed_groups']:4.0%}  "
            f"{tokens:.0f} tokens/s  {self._time_left()}"
        )

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, soft_wrap=True)
        self._said = time.monotonic()

    @property
    def _done(self) -> int:
        return int(self._recent[-1]["update"]) + 1 if self._recent else 0

    def _so_far(self) -> list[str]:
        return [_rate(self._recent[-1]), self._time_left()] if self._recent else []

    def _time_left(self) -> str:
        seconds = fmean(metrics["sample_s"] + metrics["learn_s"] for metrics in self._recent)
        return f"{timedelta(seconds=round(self._updates_left() * seconds))} left"

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
