"""Plain functions that do asynchronous work: from a script, from a thread, from a notebook's running loop."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from arpo.event_loops import callable_anywhere, on_signals, run_async

T = TypeVar("T")


def in_a_cell(call: Callable[[], T]) -> T:
    """As a notebook does it: by a loop that leaves interrupts as they are."""

    async def cell() -> T:
        return call()

    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(cell())
    finally:
        loop.close()


@callable_anywhere
def double(number: int, *, wrong: bool = False) -> tuple[int, threading.Thread]:
    async def work() -> int:
        await asyncio.sleep(0)
        if wrong:
            raise ValueError(number)
        return 2 * number

    return run_async(work()), threading.current_thread()


def test_without_a_loop_all_is_done_in_the_callers_thread() -> None:
    assert double(4) == (8, threading.current_thread())


def test_where_a_loop_runs_it_is_done_beside_it() -> None:
    result, thread = in_a_cell(lambda: double(4))
    assert result == 8
    assert thread is not threading.current_thread()


def test_what_goes_wrong_there_is_raised_here() -> None:
    with pytest.raises(ValueError, match="4"):
        in_a_cell(lambda: double(4, wrong=True))


def in_asyncio_run(call: Callable[[], T]) -> T:
    """By a loop that takes an interrupt for a wish to cancel."""

    async def cell() -> T:
        return call()

    return asyncio.run(cell())


@pytest.mark.parametrize("by", [in_a_cell, in_asyncio_run])
@pytest.mark.parametrize("when", ["before its loop runs", "in its loop"])
def test_an_interrupt_ends_the_work_beside_a_loop_and_is_raised_when_it_has_ended(
    when: str, by: Callable[[Callable[[], None]], None]
) -> None:
    ended = []

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    @callable_anywhere
    def endless() -> None:
        async def work() -> None:
            if when == "in its loop":
                interrupt()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)  # to tidy up takes a moment
                ended.append(True)

        if when == "before its loop runs":
            interrupt()
        run_async(work())

    with pytest.raises(KeyboardInterrupt):
        by(endless)
    assert ended == [True]


def test_signals_are_handled_in_the_main_thread_and_left_alone_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handled() -> bool:
        called = asyncio.Event()
        on_signals(called.set)
        if threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
            await called.wait()
        return called.is_set()

    assert asyncio.run(handled())
    assert not in_a_cell(callable_anywhere(lambda: run_async(handled())))

    def as_on_windows(*_: object) -> None:
        raise NotImplementedError

    async def asked() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "add_signal_handler", as_on_windows)
        on_signals(lambda: None)

    asyncio.run(asked())
