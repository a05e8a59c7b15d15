"""Tells people who wait what is being done.

    with doing(console) as now:
        now("starting the desktop's programs: gimp, 4 of 7")

On a terminal this is one line that changes and is gone at the end. Elsewhere each call prints a line on standard error:
a log shows what is going on, and standard output stays free for the result.
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
