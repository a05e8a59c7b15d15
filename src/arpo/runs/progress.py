"""How far work is: a bar on a terminal, elsewhere a line now and then.

with counted(console, "evaluating", total=96) as advance:
    …
    advance("success so far 31%")      after each of them
"""

import contextlib
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

BUSY_S = 10.0  # at least between two lines, for every further tenth of the work
QUIET_S = 30.0  # after that there is a line in any case


def progress_bar(console: Console, *more: ProgressColumn) -> Progress:
    """A bar with a description, a count and the texts `so_far`, where there is a terminal to draw it on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *more)
    return _Bar(*columns, console=console, transient=True, disable=not console.is_terminal)


class _Bar(Progress):
    """What is known so far stands below the bar: beside it a narrow terminal would have no room."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for task in self.tasks:
            yield from map(Text, packed(task.fields["so_far"], self.console.width))


def packed(parts: Iterable[str], width: int) -> list[str]:
    """The parts on lines of at most so many letters; what is too long for a line goes on in the next."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines += textwrap.wrap(part, width)
    return lines


@contextlib.contextmanager
def counted(
    console: Console, what: str, total: int, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[str], None]]:
    """Gives a function to call after each of so many steps, with a text on what is known by then."""
    with progress_bar(console, TimeRemainingColumn()) as progress:
        bar = progress.add_task(what, total=total, so_far=[])
        said, tenths = clock(), 0

        def advance(so_far: str) -> None:
            nonlocal said, tenths
            progress.update(bar, advance=1, so_far=[so_far])
            task = progress.tasks[0]
            done, quiet = int(task.completed), clock() - said
            if console.is_terminal or done >= total:  # the result follows
                return
            if quiet >= QUIET_S or (quiet >= BUSY_S and 10 * done // total > tenths):
                said, tenths = clock(), 10 * done // total
                left = "" if task.time_remaining is None else f", {timedelta(seconds=round(task.time_remaining))} left"
                console.print(f"{what}: {done} of {total}, {so_far}{left}", markup=False, soft_wrap=True)

        yield advance
