"""One episode: every way to end has its outcome, score and reward, and the engine is shown what the records say."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from arpo.agent.actions import Action, CallUser, Click, Fail, Finish, Hotkey, Wait
from arpo.agent.dialects.base import flatten
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent, run_episode
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.scripted import byte_vocabulary
from arpo.envs.pool import LocalPool
from arpo.errors import ActionError, ContextTooLong, EngineError, EnvError
from arpo.types import Attempt, Completion, Observation, Outcome, Provenance, Task, Trajectory
from fake_env import BUTTON, FakeEnv, make_task

VOCABULARY = byte_vocabulary()
DIALECT = UITars(VOCABULARY)
PRESS = Click(*BUTTON)
Reply = Action | str | BaseException


class Puppet:
    """An engine that says what it was told to: an action, a text, or an exception to raise."""

    version = 3

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.prompts: list[Prompt] = []
        self.seeds: list[int] = []
        self.released: list[str] = []

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        assert sampling.stop == (DIALECT.stop,)
        self.prompts.append(prompt)
        self.seeds.append(seed)
        reply = self.replies.pop(0)
        if isinstance(reply, BaseException):
            raise reply
        if isinstance(reply, str):
            tokens = (*VOCABULARY.encode(reply), DIALECT.stop)
        else:
            tokens = DIALECT.format("So.", reply, (96, 64))
        finish = "stop"
        if len(tokens) > sampling.max_tokens:
            tokens, finish = tokens[: sampling.max_tokens], "length"
        logprobs = (-0.5,) * len(tokens)
        return Completion(tokens, logprobs, VOCABULARY.decode(tokens), 3, 1.0, 1.0, finish)  # type: ignore[arg-type]

    async def release(self, session: str) -> None:
        self.released.append(session)

    async def load(self, version: int, weights: Weights) -> None:
        raise NotImplementedError


class Broken(FakeEnv):
    """An environment whose machine dies at a chosen call."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def reset(self, task: Task, seed: int) -> Observation:
        self.die("reset")
        return super().reset(task, seed)

    def step(self, action: Action) -> Observation:
        self.die("step")
        return super().step(action)

    def score(self) -> float:
        self.die("score")
        return super().score()

    def die(self, here: str) -> None:
        if here == self.where:
            raise EnvError("the display is gone")


def play(
    engine: Puppet,
    task: Task | None = None,
    env: FakeEnv | None = None,
    dialect: UITars = DIALECT,
    max_tokens: int = 512,
    keep: Callable[[Observation], object] = lambda observation: None,
) -> Trajectory:
    return asyncio.run(episode(engine, task, env, dialect, max_tokens, keep))


async def episode(
    engine: Puppet,
    task: Task | None = None,
    env: FakeEnv | None = None,
    dialect: UITars = DIALECT,
    max_tokens: int = 512,
    keep: Callable[[Observation], object] = lambda observation: None,
) -> Trajectory:
    async def kept(observation: Observation) -> None:
        keep(observation)

    async with LocalPool(lambda: env or FakeEnv(), 1).lease() as lease:
        agent = Agent(engine, dialect, Sampling(max_tokens=max_tokens))
        attempt = Attempt(task or make_task("press-1"), 0, "it", 0, 1, 2, Provenance("rollout", "r", 0))
        return await run_episode(attempt, lease, agent, kept)


@pytest.mark.parametrize(
    ("replies", "outcome", "score"),
    [
        ((PRESS, Finish()), Outcome.FINISHED, 1.0),
        ((Finish(),), Outcome.FINISHED, 0.0),
        ((PRESS, Fail()), Outcome.GAVE_UP, 0.0),
        ((PRESS, CallUser()), Outcome.ASKED_USER, 1.0),
        ((PRESS, Wait(), Wait(), Wait(), Wait()), Outcome.STEP_LIMIT, 1.0),
        ((Wait(),) * 5, Outcome.STEP_LIMIT, 0.0),
        (("I do not know.",), Outcome.UNPARSABLE, 0.0),
        ((PRESS, "Action: dance()"), Outcome.UNPARSABLE, 1.0),
        ((PRESS, Hotkey(("f9",))), Outcome.UNPARSABLE, 1.0),
        ((PRESS, "Action: wait() " + "and so on " * 60), Outcome.CUT_OFF, 1.0),
        ((PRESS, ContextTooLong("4097 tokens")), Outcome.CONTEXT_LIMIT, 1.0),
        ((ContextTooLong("4097 tokens"),), Outcome.CONTEXT_LIMIT, 0.0),
        ((PRESS, EngineError("out of memory")), Outcome.ENGINE_ERROR, None),
        ((PRESS, asyncio.CancelledError()), Outcome.CANCELLED, None),
    ],
)
def test_every_end_has_its_outcome_and_score(replies: tuple[Reply, ...], outcome: Outcome, score: float | None) -> None:
    engine = Puppet(*replies)
    trajectory = play(engine)
    assert (trajectory.outcome, trajectory.score, trajectory.reward) == (outcome, score, score)
    assert engine.released == ["it-0"]
    assert len(trajectory.steps) == sum(not isinstance(reply, BaseException) for reply in replies)


@pytest.mark.parametrize(("where", "steps"), [("reset", 0), ("step", 1), ("score", 2)])
def test_a_machine_that_dies_is_never_scored(where: str, steps: int) -> None:
    engine = Puppet(PRESS, Finish())
    trajectory = play(engine, env=Broken(where))
    assert (trajectory.outcome, trajectory.score, trajectory.reward) == (Outcome.ENV_ERROR, None, None)
    assert len(trajectory.steps) == steps
    assert (trajectory.start == "") == (where == "reset")
    assert engine.released == ["it-0"]


def test_giving_up_is_right_on_an_infeasible_task_and_the_step_limit_is_not_giving_up() -> None:
    task = make_task("never-1", feasible=False)
    assert play(Puppet(Fail()), task).score == 1.0
    assert play(Puppet(*[Wait()] * 5), task).score == 0.0


def test_a_refused_reply_keeps_its_reason_and_no_action() -> None:
    step = play(Puppet(Hotkey(("f9",)))).steps[-1]
    assert (step.action, step.parse_error, step.observation) == (None, "there is no such key", None)
    step = play(Puppet(Wait()), max_tokens=4).steps[-1]
    assert (step.action, step.parse_error) == (None, "cut off after 4 tokens")


def test_the_engine_sees_what_the_records_say() -> None:
    engine, kept = Puppet(PRESS, Wait(), Finish()), dict[str, Observation]()
    trajectory = play(engine, keep=lambda observation: kept.setdefault(observation.hash, observation))
    replies = [step.completion.tokens for step in trajectory.steps]
    assert len(engine.prompts) == 3
    for prompt, step in zip(engine.prompts, trajectory.steps, strict=True):
        flat = flatten(trajectory.segments, replies, step.context, DIALECT.image_pad)
        assert prompt == Prompt(flat.ids, tuple(kept[name] for name in flat.images))
    assert trajectory.start == engine.prompts[0].images[0].hash
    assert [step.observation for step in trajectory.steps] == [
        engine.prompts[1].images[-1].hash,
        engine.prompts[2].images[-1].hash,
        None,
    ]
    assert len(set(engine.seeds)) == 3


def test_old_screenshots_are_left_out_where_the_dialect_says_so() -> None:
    engine = Puppet(*[Wait()] * 5)
    play(engine, dialect=UITars(VOCABULARY, screenshots=2))
    assert [len(prompt.images) for prompt in engine.prompts] == [1, 2, 2, 2, 2]


def test_the_screen_at_the_step_limit_is_kept() -> None:
    kept: list[str] = []
    trajectory = play(
        Puppet(PRESS),
        replace(make_task("press-1"), max_steps=1),
        keep=lambda observation: kept.append(observation.hash),
    )
    assert [trajectory.start, trajectory.steps[-1].observation] == kept


def test_a_cancelled_episode_releases_its_session_and_hands_back_what_it_has() -> None:
    class Slow(Puppet):
        async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
            if len(self.replies) == 1:
                await asyncio.Event().wait()
            return await super().generate(session, prompt, sampling, seed)

    async def cancel(engine: Puppet) -> Trajectory:
        task = asyncio.create_task(episode(engine))
        while len(engine.replies) > 1:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        return await task

    engine = Slow(PRESS, Finish())
    trajectory = asyncio.run(cancel(engine))
    assert (trajectory.outcome, len(trajectory.steps), engine.released) == (Outcome.CANCELLED, 1, ["it-0"])


def test_a_bug_is_not_an_outcome_but_still_releases_the_session() -> None:
    engine = Puppet(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        play(engine)
    assert engine.released == ["it-0"]


def test_an_engine_that_dies_in_the_release_does_not_cost_the_episode() -> None:
    class Dying(Puppet):
        async def release(self, session: str) -> None:
            raise EngineError("gone")

    assert play(Dying(PRESS, Finish())).score == 1.0


def test_an_environment_that_refuses_changes_nothing() -> None:
    class Strict(FakeEnv):
        def refuse(self, action: Action) -> None:
            raise ActionError("not now")

    assert play(Puppet(PRESS), env=Strict()).steps[0].parse_error == "not now"


@pytest.mark.parametrize("score", [1.7, -0.1, float("nan"), float("inf")])
def test_a_score_that_is_none_is_a_failure_of_the_machine(score: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeEnv, "score", lambda self: score)
    trajectory = play(Puppet(PRESS, Finish()))
    assert (trajectory.outcome, trajectory.score, trajectory.reward) == (Outcome.ENV_ERROR, None, None)
