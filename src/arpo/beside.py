"""Work beside the event loop: in a thread, so that everybody else goes on meanwhile.

One event loop drives every environment, every episode and the engine. What takes long and is not the model's own work
(an image to encode or decode, files to write or read, an update to learn) would hold all of them up.

Small screenshots are the exception: their few milliseconds are spent on the loop, since a thread ends when it ends, and
then the order of the engine's work would depend on the clock. So a run on pocket's small screens repeats exactly.
"""

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from arpo.types import Observation

SMALL = 2**18  # pixels: to encode so many without loss takes some 10 ms, at 1920x1080 it is more than 100

P = ParamSpec("P")
T = TypeVar("T")


def large(screenshot: Observation) -> bool:
    """Whether the work on a screenshot belongs into a thread."""
    return screenshot.width * screenshot.height > SMALL


async def beside(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do work in a thread that must not be left halfway, such as an update or a checkpoint.

    Who cancels meanwhile has to wait for it; the request is heard at the next pause that is none of these.
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
