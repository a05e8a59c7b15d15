"""The contract checker passes an honest environment and catches each kind of dishonest one, by the promise meant."""

import dataclasses
import itertools

import numpy as np
import pytest

from arpo.agent.actions import Action, CallUser, Fail, Finish, Hotkey, Type, Wait
from arpo.envs import check as module
from arpo.envs.base import backend, make
from arpo.envs.check import CheckResult, Promise, check
from arpo.errors import ActionError, EnvError, TaskError
from arpo.images import Pixels
from arpo.tasks.load import interleaved, load_tasks
from arpo.types import Observation, Task
from fake_env import KEYS, TASKS, FakeEnv


def results_of(env: type[FakeEnv], deterministic: bool = True, tasks: list[Task] | None = None) -> list[CheckResult]:
    return check("fake", env, tasks or list(TASKS.values()), deterministic)


def test_an_honest_environment_keeps_every_promise() -> None:
    results = results_of(FakeEnv)
    assert [result for result in results if not result.ok] == []
    assert len(results) == len(module.PROMISES) + 1
    assert all(result.promise for result in results)


class RandomStart(FakeEnv):
    count = itertools.count()

    def load(self, task: Task, seed: int) -> None:
        super().load(task, seed + next(self.count))


class RemembersLastEpisode(FakeEnv):
    def load(self, task: Task, seed: int) -> None:
        touched = self.touched
        super().load(task, seed)
        self.touched = touched


class ReadyBeforeReset(FakeEnv):
    def __init__(self) -> None:
        super().__init__()
        self.task = TASKS["press-1"]


class HashOfTheFile(FakeEnv):
    def observe(self) -> Observation:
        return dataclasses.replace(super().observe(), hash="0" * 32)


class SmallImage(FakeEnv):
    def pixels(self) -> Pixels:
        return np.ascontiguousarray(super().pixels()[:-1])


class SaysAnotherSize(FakeEnv):
    def observe(self) -> Observation:
        return dataclasses.replace(super().observe(), width=97)


class Shrinks(FakeEnv):
    """The screen as it was, but `size` says something else after the first look."""

    def observe(self) -> Observation:
        self.size = (96, 64)
        seen = super().observe()
        self.size = (95, 64)
        return seen


class BrokenImage(FakeEnv):
    """Only on the last screens, which no other promise looks at."""

    def observe(self) -> Observation:
        seen = super().observe()
        return dataclasses.replace(seen, image=seen.image[:-40]) if self.task == TASKS["press-2"] else seen


class Clamps(FakeEnv):
    def refuse(self, action: Action) -> None:
        if self.ended:
            raise ActionError("ended")
        if isinstance(action, Hotkey) and not KEYS.issuperset(action.keys):
            raise ActionError("there is no such key")

    def perform(self, action: Action) -> None:
        touched = self.touched
        super().perform(action)
        if not (0 <= self.touched[0] < self.size[0] and 0 <= self.touched[1] < self.size[1]):
            self.touched = touched


class MovesBeforeRefusing(FakeEnv):
    def refuse(self, action: Action) -> None:
        try:
            super().refuse(action)
        except ActionError:
            if not self.ended and not isinstance(action, Hotkey):
                self.touched = (1, 1)
            raise


class RefusesInTwoLines(FakeEnv):
    def refuse(self, action: Action) -> None:
        try:
            super().refuse(action)
        except ActionError:
            if not self.ended and not isinstance(action, Hotkey):
                raise ActionError("off\nthe screen") from None
            raise


class LooksKeysUp(FakeEnv):
    def refuse(self, action: Action) -> None:
        if isinstance(action, Hotkey) and not self.ended:
            for key in action.keys:
                {name: name for name in KEYS}[key]
        super().refuse(action)


class UnknownKeysEnd(FakeEnv):
    def refuse(self, action: Action) -> None:
        try:
            super().refuse(action)
        except ActionError:
            if isinstance(action, Hotkey) and not self.ended:
                self.last = Finish()
            raise


class ForgetsOnBrokenTask(FakeEnv):
    def load(self, task: Task, seed: int) -> None:
        self.pressed = 2
        super().load(task, seed)


class BelievesEveryTask(FakeEnv):
    def load(self, task: Task, seed: int) -> None:
        super().load(dataclasses.replace(task, setup={"family": "any"}), seed)


class ChokesOnText(FakeEnv):
    def perform(self, action: Action) -> None:
        if isinstance(action, Type):
            action.text.encode("ascii")
        super().perform(action)


class TypingEnds(FakeEnv):
    def perform(self, action: Action) -> None:
        super().perform(action)
        if isinstance(action, Type) and len(action.text) > 1000:
            self.last = Finish()


class PercentScore(FakeEnv):
    def score(self) -> float:
        return 50.0 if not self.ended and self.task == TASKS["press-1"] else super().score()


class ScoreIsNotANumber(FakeEnv):
    def score(self) -> float:
        return float("nan") if not self.ended and self.task == TASKS["press-1"] else super().score()


class ScoringTouches(FakeEnv):
    def score(self) -> float:
        self.touched = (5, 5)
        return super().score()


class ScoringPresses(FakeEnv):
    """The second question gets another answer, though nothing on the screen shows it."""

    asked = 0

    def score(self) -> float:
        self.asked += 1
        return super().score() if self.ended or self.asked % 2 or self.task != TASKS["press-1"] else 1.0


class PaysForGivingUp(FakeEnv):
    def score(self) -> float:
        return 1.0 if isinstance(self.last, Fail) else super().score()


class NeverPaysForGivingUp(FakeEnv):
    def score(self) -> float:
        return 0.0 if isinstance(self.last, Fail) else super().score()


class PaysForClaiming(FakeEnv):
    def score(self) -> float:
        return 1.0 if isinstance(self.last, Finish) else super().score()


class GoesOnAfterFail(FakeEnv):
    @property
    def ended(self) -> bool:
        return super().ended and not isinstance(self.last, Fail)


class ActsAfterCallUser(FakeEnv):
    def refuse(self, action: Action) -> None:
        if not isinstance(self.last, CallUser):
            super().refuse(action)


class ClosesOnce(FakeEnv):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise EnvError("already closed")
        self.closed = True
        super().close()


class ActsWhenClosed(FakeEnv):
    closed = False

    def refuse(self, action: Action) -> None:
        if not self.closed:
            super().refuse(action)

    def close(self) -> None:
        super().close()
        self.closed = True


BROKEN: list[tuple[type[FakeEnv], Promise, str]] = [
    (RandomStart, module.equal_episodes, "differ after 0 steps"),
    (RemembersLastEpisode, module.equal_episodes, "press-1"),
    (ReadyBeforeReset, module.ended_before_reset, "`ended` is False"),
    (HashOfTheFile, module.observations_are_well_formed, "hash"),
    (SmallImage, module.observations_are_well_formed, "(96, 63)"),
    (SaysAnotherSize, module.observations_are_well_formed, "(97, 64)"),
    (Shrinks, module.observations_are_well_formed, "on a screen of (95, 64) that began as (96, 64)"),
    (Clamps, module.points_off_the_screen_are_refused, "Click(x=-1, y=0"),
    (MovesBeforeRefusing, module.points_off_the_screen_are_refused, "changed the screen"),
    (RefusesInTwoLines, module.points_off_the_screen_are_refused, "one line"),
    (LooksKeysUp, module.unknown_keys_are_refused, "KeyError: 'hyperspace'"),
    (UnknownKeysEnd, module.unknown_keys_are_refused, "a refused key ended the episode"),
    (ForgetsOnBrokenTask, module.broken_tasks_are_refused, "changed the screen"),
    (BelievesEveryTask, module.broken_tasks_are_refused, "not refused (TaskError)"),
    (ChokesOnText, module.any_text_can_be_typed, "UnicodeEncodeError"),
    (TypingEnds, module.any_text_can_be_typed, "ActionError: the episode has ended"),
    (PercentScore, module.scores_only_look, "50.0"),
    (ScoreIsNotANumber, module.scores_only_look, "nan"),
    (ScoringTouches, module.scores_only_look, "changed the screen"),
    (ScoringPresses, module.scores_only_look, "asked twice"),
    (PaysForGivingUp, module.only_fail_solves_the_infeasible, "press-1: Fail(reason='') scores 1.0 instead of 0.0"),
    (NeverPaysForGivingUp, module.only_fail_solves_the_infeasible, "never-1: Fail(reason='') scores 0.0"),
    (PaysForClaiming, module.only_fail_solves_the_infeasible, "never-1: Finish(answer='') scores 1.0"),
    (GoesOnAfterFail, module.nothing_happens_after_the_end, "`ended` is False after Fail"),
    (ActsAfterCallUser, module.nothing_happens_after_the_end, "after CallUser"),
    (ClosesOnce, module.closes_twice, "EnvError: already closed"),
    (ActsWhenClosed, module.closes_twice, "a step after close"),
]


@pytest.mark.parametrize(("env", "promise", "detail"), BROKEN, ids=[env.__name__ for env, _, _ in BROKEN])
def test_a_broken_environment_fails_exactly_the_promise_meant(
    env: type[FakeEnv], promise: Promise, detail: str
) -> None:
    failed = [result for result in results_of(env) if not result.ok]
    assert [result.promise for result in failed] == [promise.__doc__]
    assert detail in failed[0].detail
    assert "\n" not in failed[0].detail


def test_an_image_that_does_not_decode_is_no_crash_of_the_checker() -> None:
    failed = {result.promise: result.detail for result in results_of(BrokenImage) if not result.ok}
    assert module.observations_are_well_formed.__doc__ in failed


def test_a_backend_that_promises_no_determinism_is_not_held_to_it() -> None:
    results = results_of(RandomStart, deterministic=False)
    assert all(result.ok for result in results)
    assert results[0].detail == "this backend does not promise it"


def test_without_an_infeasible_task_the_result_says_so() -> None:
    results = {result.promise: result for result in results_of(FakeEnv, tasks=[TASKS["press-1"]])}
    infeasible = results[str(module.only_fail_solves_the_infeasible.__doc__)]
    assert infeasible == CheckResult(infeasible.promise, True, "only feasible tasks were tried")


def test_tasks_of_another_environment_are_the_callers_error() -> None:
    with pytest.raises(TaskError, match="needs tasks of pocket, not press-1"):
        check("pocket", FakeEnv, [TASKS["press-1"]], True)
    with pytest.raises(TaskError, match="needs tasks"):
        check("fake", FakeEnv, [], True)


def test_environments_are_closed_even_where_a_promise_breaks() -> None:
    closed = []

    class Counts(LooksKeysUp):
        def close(self) -> None:
            closed.append(self)
            super().close()

    made = []

    def make_env() -> Counts:
        made.append(Counts())
        return made[-1]

    check("fake", make_env, [TASKS["press-1"]], True)
    assert {id(env) for env in closed} == {id(env) for env in made}


def test_the_fake_is_an_environment_that_goes_on_after_a_refusal() -> None:
    env = FakeEnv()
    env.reset(TASKS["press-1"], 0)
    with pytest.raises(ActionError):
        env.step(Hotkey(("hyperspace",)))
    env.step(Wait())


@pytest.mark.parametrize(("size", "count"), [((448, 280), 12), ((1280, 800), 2)])
def test_pocket_keeps_every_promise(size: tuple[int, int], count: int) -> None:
    tasks = interleaved(load_tasks("pocket", "subset32"))
    tried = tasks[:count] + [task for task in tasks if not task.feasible][:1]
    results = check("pocket", lambda: make("pocket", size=size), tried, backend("pocket").deterministic)
    assert [result for result in results if not result.ok or result.detail] == []
