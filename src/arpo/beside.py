"""Long work (encoding images, files, an update) in a thread: one event loop drives all episodes and the engine.

Small screenshots are the exception. Their few milliseconds are spent on the loop: with threads the order of the
engine's work would depend on the clock, and runs on pocket's small screens are to repeat exactly.
"""

import asyncio
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from arpo.types import Observation

SMALL = 2**18  # pixels: to encode so many without loss takes some 10 ms, at 1920x1080 it is more than 100

P = ParamSpec("P")
T = TypeVar("T")


def large(screenshot: Observation) -> bool:
    """Whether the work on a screenshot belongs into a thread."""
    return large_size((screenshot.width, screenshot.height))


def large_size(size: tuple[int, int]) -> bool:
    return math.prod(size) > SMALL


async def beside(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do work in a thread that must not be left halfway, such as an update or a checkpoint.

    A request to cancel waits for it and is raised at the next `await` after it.
    """
    this = asyncio.current_task()
    assert this is not None
    working = asyncio.create_task(asyncio.to_thread(work, *arguments, **named))
    cancelled = False
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            this.uncancel()
            cancelled = True
    result = working.result()
    if cancelled:
        this.cancel()
    return result
