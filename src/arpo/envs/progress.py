"""What long work is at, for people who wait.

    with doing(console) as now:
        now("starting the desktop's programs: gimp, 4 of 7")

On a terminal that is one line that moves, and is gone when the work is done. Elsewhere it is a line on standard error
each time, at once: a log shows what is going on, and what a program reads from standard output stays as it was.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text


@contextmanager
def doing(console: Console) -> Iterator[Callable[[str], None]]:
    """Gives a function that says what is being done now."""
    if console.is_terminal:
        with console.status("") as status:
            yield lambda what: status.update(Text(what[: console.width - 3]))  # the spinner comes before it
    else:
        yield lambda what: print(what, file=sys.stderr, flush=True)
