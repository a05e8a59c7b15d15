"""A fuzzer: inputs that nobody would write are made at random, and given to what reads files and connections of others.

    cd tests && python -m fuzz --seconds 60                     all targets, for so long together; prints JSON
    python -m fuzz --only task-file server --seconds 10         some of them
    python -m fuzz --again task-file:123:45                     one input again, by the seed of a failure

A target makes an input from a `random.Random`, and then is given it: it must end, in a result or in an exception that
is allowed. To add one: a file here with such functions and TARGETS = [Target(…)], and its name in MODULES.
"""

import contextlib
import importlib
import math
import random
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from arpo.errors import ArpoError

MODULES = ("requests_in", "task_files", "model_output", "agents_files", "said", "run_folders", "resident")
APART = ("real_desktop",)  # only where they are asked for: they need programs
HANGS_S = 60  # an input that takes longer does not end
MOST_FAILURES = 10  # of one target; then it is left


@dataclass(frozen=True, slots=True)
class Target:
    """`run` gets what `around` gives (a server, a folder) and the input. Exceptions of these kinds are no failure, if
    they say what they say in one line."""

    name: str
    make: Callable[[random.Random], Any]
    run: Callable[[Any, Any], object]
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    allowed: tuple[type[Exception], ...] = (ArpoError,)


@dataclass(slots=True)
class Done:
    inputs: int
    seconds: float
    failures: list[dict[str, str]]


class Hangs(BaseException):
    """No Exception: nothing may catch it on its way."""


def targets(only: Iterable[str] = ()) -> list[Target]:
    modules = (*MODULES, *(APART if only else ()))
    known = {target.name: target for name in modules for target in importlib.import_module(f"fuzz.{name}").TARGETS}
    return [known[name] for name in only or known]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Libraries warn of what they read: that is no failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fuzz(target: Target, seconds: float, seed: str, most: float = math.inf) -> Done:
    """Inputs for so long, or so many; each has a seed of its own."""
    began, done = time.monotonic(), Done(0, 0.0, [])
    with target.around() as surroundings:
        while time.monotonic() - began < seconds and done.inputs < most and len(done.failures) < MOST_FAILURES:
            name = f"{target.name}:{seed}:{done.inputs}"
            if failure := _failure(target, surroundings, name):
                done.failures.append(failure)
            done.inputs += 1
    done.seconds = time.monotonic() - began
    return done


def once(seed: str) -> Done:
    """The input of this seed again."""
    (target,) = targets([seed.partition(":")[0]])
    with target.around() as surroundings:
        failure = _failure(target, surroundings, seed)
    return Done(1, 0.0, [failure] if failure else [])


def _failure(target: Target, surroundings: Any, seed: str) -> dict[str, str] | None:
    value = target.make(random.Random(seed))
    try:
        with _in_time():
            target.run(surroundings, value)
        return None
    except target.allowed as error:
        if "\n" not in str(error):
            return None
        reason = f"more than one line: {error}"
    except (Exception, Hangs):
        reason = traceback.format_exc(limit=-6)
    return {"seed": seed, "reason": reason, "input": repr(value)[:500]}


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hangs(f"it takes more than {HANGS_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def report(seconds: float, seed: str, only: Iterable[str] = ()) -> dict[str, Any]:
    """All of them in turn, each for the same time."""
    chosen = targets(only)
    done = {target.name: fuzz(target, seconds / len(chosen), seed) for target in chosen}
    return {
        "inputs": sum(one.inputs for one in done.values()),
        "seconds": round(sum(one.seconds for one in done.values()), 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "targets": {name: {"inputs": one.inputs, "seconds": round(one.seconds, 1)} for name, one in done.items()},
        "failures": [failure for one in done.values() for failure in one.failures],
    }
