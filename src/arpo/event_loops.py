"""Plain functions that do asynchronous work, callable from anywhere: a script, any thread, a notebook.

    @callable_anywhere
    def run_evaluation(…):
        …
        return run_async(work())        # in place of asyncio.run

The cells of a notebook run inside an event loop, and a thread can run one loop only. There the function gets a thread
of its own, and the caller waits. Signals come to the main thread alone, so an interrupt of the caller (Ctrl-C, a
notebook's stop button) is handed on: it cancels the work, and is raised when that has ended.
"""

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

LOOK_S = 0.1  # between two looks whether the caller was interrupted

P = ParamSpec("P")
T = TypeVar("T")
_interrupt: ContextVar[threading.Event | None] = ContextVar("_interrupt", default=None)  # of a waiting caller


def callable_anywhere(function: Callable[P, T]) -> Callable[P, T]:
    """A function that uses `run_async`, also callable where an event loop is running."""

    @functools.wraps(function)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        caller = None
        with contextlib.suppress(RuntimeError):  # no loop is running
            caller = asyncio.current_task()
        if caller is None:
            return function(*arguments, **named)
        interrupt, result = threading.Event(), Future[T]()

        def apart() -> None:
            _interrupt.set(interrupt)
            try:
                result.set_result(function(*arguments, **named))
            except BaseException as error:  # whatever it is, it is the caller's
                result.set_exception(error)

        thread = threading.Thread(target=apart, name=function.__name__)
        try:
            thread.start()
            while not wait([result], timeout=LOOK_S).done:
                if caller.cancelling():  # what asyncio.run makes of Ctrl-C, while its loop stands still
                    raise KeyboardInterrupt
            return result.result()
        except KeyboardInterrupt:
            interrupt.set()
            wait([result])  # until the work has ended; a second interrupt is not waited for
            raise

    return called


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run. KeyboardInterrupt where it was interrupted, in whichever thread."""
    interrupt = _interrupt.get()
    return asyncio.run(work if interrupt is None else _until(interrupt, work))


async def _until(interrupt: threading.Event, work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    while not (await asyncio.wait([task], timeout=LOOK_S))[0]:
        if interrupt.is_set():
            interrupt.clear()
            task.cancel()
    if task.cancelled():
        raise KeyboardInterrupt
    return task.result()


def on_signals(handler: Callable[..., object], *arguments: Any) -> None:
    """Let SIGINT and SIGTERM call this in the running loop, where it gets signals.

    In a thread it gets none, and on Windows asyncio has no handlers: there Ctrl-C cancels the work, as asyncio does it.
    """
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(NotImplementedError):
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, handler, *arguments)
