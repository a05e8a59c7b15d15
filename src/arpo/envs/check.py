"""Holds an environment to the contract in base.py: one small function for each promise.

    for result in check("pocket", PocketEnv, tasks, deterministic=True):
        print(result.promise, "ok" if result.ok else f"FAILED: {result.detail}")

Every promise is tried on fresh environments, so that a broken one does not change the result of another. Screens are
compared only where the backend promises to be deterministic and the first promise showed that it is: a clock in the
corner of a real desktop is no fault. An exception that the contract does not name is a broken promise like any other.
That is why every exception is caught here.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from arpo.agent.actions import Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.envs.base import Env
from arpo.errors import ActionError, ArpoError, TaskError
from arpo.images import decode, pixel_hash
from arpo.types import Observation, Task

T = TypeVar("T")

SEED = 11


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One promise, and whether it is kept."""

    promise: str
    ok: bool
    detail: str = ""  # what went wrong, or why there was nothing to try


class BrokenPromise(Exception):
    """What was seen instead of what was promised."""


class NothingToTry(Exception):
    """A promise that cannot be tried with these tasks, or that this backend does not give."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is being checked."""

    make_env: Callable[[], Env]
    tasks: list[Task]
    comparable: bool  # equal episodes are promised, and were seen, to give equal screens

    @contextmanager
    def env(self) -> Iterator[Env]:
        env = self.make_env()
        try:
            yield env
        finally:
            env.close()


Promise = Callable[[Subject], None]


def check(
    name: str,
    make_env: Callable[[], Env],
    tasks: list[Task],
    deterministic: bool,
    begun: Callable[[str], object] = lambda what: None,
    settled: Callable[[CheckResult], object] = lambda result: None,
) -> list[CheckResult]:
    """Try every promise of the contract, on all of the tasks where one task would not be enough.

    `begun` is called before each promise is tried, `settled` with its result: real machines take minutes.
    """
    strangers = [task.id for task in tasks if task.env != name]
    if strangers or not tasks:
        raise TaskError(f"checking {name} needs tasks of {name}" + (f", not {strangers[0]}" if strangers else ""))
    subject = Subject(make_env, tasks, comparable=deterministic)
    results: list[CheckResult] = []
    promises = (equal_episodes, *PROMISES)
    for number, promise in enumerate(promises, 1):
        title = (promise.__doc__ or "").strip()
        begun(f"{number} of {len(promises)}: {title}")
        results.append(_try(title, promise, subject))
        settled(results[-1])
        subject = replace(subject, comparable=deterministic and results[0].ok)
    return results


def _try(title: str, promise: Promise, subject: Subject) -> CheckResult:
    try:
        promise(subject)
    except NothingToTry as reason:
        return CheckResult(title, True, str(reason))
    except BrokenPromise as broken:
        return CheckResult(title, False, str(broken))
    except Exception as error:  # whatever it is, it is not in the contract
        return CheckResult(title, False, " ".join(f"{type(error).__name__}: {error}".split()))
    return CheckResult(title, True)


# ---- what all promises use


def _routine(env: Env) -> list[Action]:
    """One of each action that is always allowed."""
    width, height = env.size
    return [
        Click(width // 2, height // 2),
        Click(width // 3, height // 3, button="right"),
        Hotkey(("esc",)),
        Click(width // 4, height // 4, count=2),
        Type("plain text"),
        Drag(width // 4, height // 4, width - 1, height - 1),
        Scroll(width // 2, height // 2, "down"),
        Wait(),
    ]


def _seen(observation: Observation) -> str:
    """What is on a screen, by its pixels alone: the hash that comes with it is tried by a promise of its own."""
    return pixel_hash(decode(observation.image))


def _played(env: Env, task: Task) -> list[str]:
    """The screens of one routine episode, from its reset."""
    screens = [_seen(env.reset(task, SEED))]
    return screens + [_seen(env.step(action)) for action in _routine(env)]


def _refused(kind: type[ArpoError], what: str, call: Callable[[T], object], argument: T) -> None:
    try:
        call(argument)
    except kind as error:
        text = " ".join(map(str, error.args))  # not str(error), which is always one line
        if not text or "\n" in text:
            raise BrokenPromise(f"{what} was refused, but not in one line of text: {text!r:.80}") from error
        return
    raise BrokenPromise(f"{what} was not refused ({kind.__name__})")


def _changes_nothing(subject: Subject, disturb: Callable[[Env], object], what: str) -> None:
    """After `disturb` the episode goes on and, where screens can be compared, shows what it would have shown."""
    task = subject.tasks[0]
    with subject.env() as env:
        undisturbed = [*_played(env, task), _seen(env.step(Wait()))]
        played = _played(env, task)
        disturb(env)
        if env.ended:
            raise BrokenPromise(f"{what} ended the episode")
        played.append(_seen(env.step(Wait())))
        if subject.comparable and played != undisturbed:
            raise BrokenPromise(f"{what} changed the screen")


# ---- the promises


def equal_episodes(subject: Subject) -> None:
    """equal task, seed and actions give equal screens, on a fresh environment and on a used one"""
    if not subject.comparable:
        raise NothingToTry("this backend does not promise it")
    with subject.env() as one, subject.env() as other:
        for task in subject.tasks:
            screens = _played(one, task)
            for again in (_played(other, task), _played(one, task)):
                if again != screens:
                    step = next(i for i, (a, b) in enumerate(zip(screens, again, strict=True)) if a != b)
                    raise BrokenPromise(f"{task.id}: the screens differ after {step} steps")


def ended_before_reset(subject: Subject) -> None:
    """before the first reset it counts as ended and refuses to act"""
    with subject.env() as env:
        if not env.ended:
            raise BrokenPromise("`ended` is False on a new environment")
        _refused(ActionError, "a step before the first reset", env.step, Wait())


def observations_are_well_formed(subject: Subject) -> None:
    """every observation decodes to the size of the screen and carries the hash of its pixels"""
    with subject.env() as env:
        size = env.size
        for task in subject.tasks:
            observations = [("reset", env.reset(task, SEED))]
            observations += [(repr(action), env.step(action)) for action in _routine(env)]
            for cause, seen in observations:
                pixels = decode(seen.image)
                decoded = (pixels.shape[1], pixels.shape[0])
                if not size == env.size == (seen.width, seen.height) == decoded:
                    raise BrokenPromise(
                        f"{task.id}: after {cause} the image is {decoded}, said to be {(seen.width, seen.height)}, "
                        f"on a screen of {env.size} that began as {size}"
                    )
                if seen.hash != pixel_hash(pixels):
                    raise BrokenPromise(f"{task.id}: after {cause} the hash is not that of the pixels")


def points_off_the_screen_are_refused(subject: Subject) -> None:
    """an action off the screen is refused and changes nothing"""

    def disturb(env: Env) -> None:
        width, height = env.size
        for x, y in ((-1, 0), (0, -1), (width, 0), (0, height), (10**9, 10**9)):
            actions: list[Action] = [Click(x, y), Scroll(x, y, "up"), Drag(x, y, 0, 0), Drag(0, 0, x, y)]
            for action in actions:
                _refused(ActionError, repr(action), env.step, action)

    _changes_nothing(subject, disturb, "a refused action off the screen")


def unknown_keys_are_refused(subject: Subject) -> None:
    """a key that does not exist is refused and changes nothing"""

    def disturb(env: Env) -> None:
        for keys in (("hyperspace",), ("ctrl", "hyperspace"), ("a\n",), ("\x00",), ("x" * 10_000,)):
            _refused(ActionError, f"{Hotkey(keys)!r:.60}", env.step, Hotkey(keys))

    _changes_nothing(subject, disturb, "a refused key")


def broken_tasks_are_refused(subject: Subject) -> None:
    """a task that it cannot set up is refused, and the episode under way goes on"""
    broken = replace(subject.tasks[0], setup={"no": "such setup"}, evaluator={"func": "no such checker"})

    def disturb(env: Env) -> None:
        _refused(TaskError, "a broken task", lambda task: env.reset(task, SEED), broken)

    _changes_nothing(subject, disturb, "a refused task")


def any_text_can_be_typed(subject: Subject) -> None:
    """text of any length and kind is typed or refused, and the episode goes on"""
    with subject.env() as env:
        for task in subject.tasks:
            for action in (Wait(), Click(env.size[0] // 2, env.size[1] // 2)):  # into nothing, and into some window
                env.reset(task, SEED)
                env.step(action)
                for text in ("", "x" * 100_000, "a\n" * 1000, "\t\x00\x07\x1b\x7f", "é 日本 🙂 \u202e", "\ud800"):
                    with suppress(ActionError):
                        env.step(Type(text))
                env.step(Wait())
                if env.ended:
                    raise BrokenPromise(f"{task.id}: typing ended the episode")


def scores_only_look(subject: Subject) -> None:
    """the score is a number from 0 to 1, and asking for it changes nothing"""
    with subject.env() as env:
        for task in subject.tasks:
            env.reset(task, SEED)
            for action in _routine(env):
                score = env.score()
                if not (isinstance(score, float) and math.isfinite(score) and 0 <= score <= 1):
                    raise BrokenPromise(f"{task.id}: the score is {score!r}")
                if env.score() != score:
                    raise BrokenPromise(f"{task.id}: asked twice, the score went from {score} to {env.score()}")
                env.step(action)

    _changes_nothing(subject, lambda env: env.score(), "asking for the score")


def only_fail_solves_the_infeasible(subject: Subject) -> None:
    """Fail scores 1 on an infeasible task and 0 on any other; on an infeasible task nothing else scores"""
    with subject.env() as env:
        for task in subject.tasks:
            endings: list[Action] = [Fail(), Fail("cannot be done")]
            if not task.feasible:
                endings += [Finish(), Finish("done"), CallUser()]
            for ending in endings:
                env.reset(task, SEED)
                if not task.feasible and env.score() != 0:
                    raise BrokenPromise(f"{task.id}: infeasible, but scores {env.score()} before it was called so")
                env.step(ending)
                wanted = 1.0 if isinstance(ending, Fail) and not task.feasible else 0.0
                if env.score() != wanted:
                    raise BrokenPromise(f"{task.id}: {ending!r} scores {env.score()} instead of {wanted}")
    if all(task.feasible for task in subject.tasks):
        raise NothingToTry("only feasible tasks were tried")


def nothing_happens_after_the_end(subject: Subject) -> None:
    """Finish, Fail and CallUser end the episode: no action is taken after them until the next reset"""
    endings: list[Action] = [Finish(), Fail(), CallUser()]
    with subject.env() as env:
        for ending in endings:
            env.reset(subject.tasks[0], SEED)
            if env.ended:
                raise BrokenPromise("`ended` is True after a reset")
            env.step(ending)
            if not env.ended:
                raise BrokenPromise(f"`ended` is False after {ending!r}")
            score = env.score()
            for late in [*_routine(env), *endings]:
                _refused(ActionError, f"{late!r} after {ending!r}", env.step, late)
            if env.score() != score:
                raise BrokenPromise(f"the score changed after {ending!r}")


def closes_twice(subject: Subject) -> None:
    """close may be called twice, at any time; a closed environment refuses to act"""
    unused = subject.make_env()
    unused.close()
    unused.close()
    env = subject.make_env()
    env.reset(subject.tasks[0], SEED)
    env.close()
    env.close()
    if not env.ended:
        raise BrokenPromise("`ended` is False after close")
    _refused(ActionError, "a step after close", env.step, Wait())


PROMISES: tuple[Promise, ...] = (
    ended_before_reset,
    observations_are_well_formed,
    points_off_the_screen_are_refused,
    unknown_keys_are_refused,
    broken_tasks_are_refused,
    any_text_can_be_typed,
    scores_only_look,
    only_fail_solves_the_infeasible,
    nothing_happens_after_the_end,
    closes_twice,
)
