"""What is shown while a training learns: a bar where there is a terminal, else a line now and then.

with Learning(config, console, lines) as learning:      # lines: the metrics of the updates that were made before
    learning.episode(update)                            # one more of its episodes is there
    learning.update(metrics)                            # it is made
"""

import math
import time
from collections import Counter, deque
from collections.abc import Sequence
from datetime import timedelta
from statistics import fmean
from typing import Any, Self

from rich.console import Console

from arpo.config import Config
from arpo.runs.progress import progress_bar

QUIET_S = 30.0  # without a terminal: between two lines about the episodes of an update
RECENT = 5  # updates that tell how long the next will take


class Learning:
    def __init__(self, config: Config, console: Console, lines: Sequence[dict[str, Any]]) -> None:
        self._config, self._console = config, console
        self._done = lines[-1]["update"] + 1 if lines else 0
        self._steps = {line["update"]: line["env_steps"] for line in lines}
        self._recent: deque[dict[str, Any]] = deque(lines, maxlen=RECENT)
        self._played: Counter[int] = Counter()  # episodes, by update
        self._told = time.monotonic()
        self._progress = progress_bar(console)
        self._bar = self._progress.add_task("learning", total=config.train.updates, completed=self._done, so_far="")

    def __enter__(self) -> Self:
        self._progress.start()
        if not self._console.is_terminal and (left := self._updates_left()):
            episodes = self._config.train.rollout_tasks * self._config.algorithm.group
            self._say(f"learning; updates to make: {left}, each of {episodes} episodes")
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def episode(self, update: int) -> None:
        """One more episode of an update has been played."""
        self._played[update] += 1
        wanted = self._config.train.rollout_tasks * self._config.algorithm.group
        of = "" if self._config.algorithm.redraw else f" of {wanted}"  # where groups are drawn again there are more
        played = f"update {update + 1:3}  episodes {self._played[update]}{of}"
        self._progress.update(self._bar, so_far="  ".join([*self._so_far(), played]))
        if not self._console.is_terminal and time.monotonic() - self._told >= QUIET_S:
            self._say(played)

    def update(self, metrics: dict[str, Any]) -> None:
        """An update has been made."""
        self._done = metrics["update"] + 1
        self._steps[metrics["update"]] = metrics["env_steps"]
        self._recent.append(metrics)
        self._progress.update(self._bar, completed=self._done, so_far="  ".join(self._so_far()))
        self._say(f"{_line(metrics)}  {self._left()}")

    def _say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, soft_wrap=True)
        self._told = time.monotonic()

    def _so_far(self) -> list[str]:
        return [f"success {self._recent[-1]['success']:.0%}", self._left()] if self._recent else []

    def _left(self) -> str:
        seconds = fmean(line["sample_s"] + line["learn_s"] for line in self._recent)
        return f"{timedelta(seconds=round(self._updates_left() * seconds))} left"

    def _updates_left(self) -> int:
        """Until the last update or the budget of steps, whichever comes first."""
        left = max(0, self._config.train.updates - self._done)
        if (budget := self._config.train.env_steps) is not None and self._recent:
            steps = max(1.0, fmean(line["env_steps"] for line in self._recent))
            left = min(left, max(0, math.ceil((budget - sum(self._steps.values())) / steps)))
        return left


def _line(metrics: dict[str, Any]) -> str:
    """One update for people."""
    tokens = metrics["sampled_tokens"] / max(1e-9, metrics["sample_s"] + metrics["learn_s"])
    return (
        f"update {metrics['update'] + 1:3}  success {metrics['success']:4.0%}  reward {metrics['reward']:5.2f}  "
        f"all failed {metrics['failed_groups']:4.0%}  replayed {metrics['replayed_groups']:4.0%}  {tokens:.0f} tokens/s"
    )
