"""The player: three attempts where machines fail, nothing played twice, and what is given up."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator

import pytest

from arpo.agent.actions import Action, Click, Fail, Finish
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player, Reward, well_formed
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.scripted import byte_vocabulary
from arpo.envs.pool import LocalPool
from arpo.errors import EngineError, EnvError
from arpo.types import Attempt, Completion, Observation, Outcome, Provenance, Summary, Task, Trajectory
from fake_env import BUTTON, FakeEnv, make_task

VOCABULARY = byte_vocabulary()
DIALECT = UITars(VOCABULARY)
PRESS = [make_task(f"press-{i}") for i in range(3)]
FINISHED, GAVE_UP, ENV_ERROR, ENGINE_ERROR = Outcome.FINISHED, Outcome.GAVE_UP, Outcome.ENV_ERROR, Outcome.ENGINE_ERROR


def first(task: Task, index: int, number: int = 0) -> Attempt:
    """The attempts at an episode are named after its task: press-1-4-0 is the first at the fifth episode of press-1."""
    return Attempt(task, index, f"{task.id}-{index}", number, 1, 2, Provenance("rollout", "r", 0))


class Kept:
    """A store in memory."""

    def __init__(self, *summaries: Summary) -> None:
        self.known = {summary.id: summary for summary in summaries}
        self.trajectories: list[Trajectory] = []

    async def keep_image(self, observation: Observation) -> None:
        pass

    def add(self, t: Trajectory) -> None:
        assert t.id not in self.known
        self.trajectories.append(t)
        self.known[t.id] = played(t.id, t.outcome, t.score, t.reward)

    def summaries(self, *, id: str | None = None) -> Iterator[Summary]:
        return iter([self.known[id]] if id in self.known else [])


def played(name: str, outcome: Outcome, score: float | None = None, reward: float | None = None) -> Summary:
    task_id, _, number = name.rsplit("-", 2)
    return Summary(name, task_id, 0, "rollout", int(number), 1, outcome, score, reward, 1)


class Told:
    """An engine whose episodes end as they are told to, by the name of the attempt."""

    def __init__(self, outcome: Callable[[str], Outcome | str]) -> None:
        self.outcome, self.attempts = outcome, []  # type: tuple[Callable[[str], Outcome | str], list[str]]

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        await asyncio.sleep(0)
        if len(prompt.images) == 1:
            self.attempts.append(session)
        action: Action
        match self.outcome(session):
            case Outcome.ENV_ERROR:
                raise EnvError("the display is gone")
            case Outcome.ENGINE_ERROR:
                raise EngineError("out of memory")
            case Outcome.GAVE_UP:
                action = Fail()
            case Outcome.FINISHED:
                action = Click(*BUTTON) if len(prompt.images) == 1 else Finish()
            case text:
                tokens = (*VOCABULARY.encode(text), DIALECT.stop)
                return Completion(tokens, (0.0,) * len(tokens), text, 0, 1.0, 1.0, "stop")
        tokens = DIALECT.format("So.", action, (96, 64))
        return Completion(tokens, (0.0,) * len(tokens), VOCABULARY.decode(tokens), 0, 1.0, 1.0, "stop")

    async def release(self, session: str) -> None:
        pass

    async def load(self, version: int, weights: Weights) -> None:
        raise NotImplementedError


@dataclasses.dataclass
class Play:
    """Plays episodes and remembers: what was attempted, and what each came to in the end."""

    outcome: Callable[[str], Outcome | str] = lambda name: Outcome.FINISHED
    kept: Kept = dataclasses.field(default_factory=Kept)
    n_envs: int = 2
    ends: dict[str, Outcome | None] = dataclasses.field(default_factory=dict)
    attempts: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.player = Player(LocalPool(FakeEnv, self.n_envs), self.kept)

    def __call__(self, attempts: list[Attempt], **reward: Reward) -> Play:
        engine = Told(self.outcome)
        agent = Agent(engine, DIALECT, Sampling(max_tokens=512))
        asyncio.run(self.player.play(attempts, lambda task, env: agent, self.n_envs, self.done, **reward))
        self.attempts += engine.attempts
        return self

    def done(self, attempt: Attempt, summary: Summary | None) -> None:
        assert attempt.episode not in self.ends
        self.ends[attempt.episode] = None if summary is None else summary.outcome


@pytest.mark.parametrize("outcome", [ENV_ERROR, ENGINE_ERROR])
def test_three_attempts_where_machines_fail(outcome: Outcome) -> None:
    play = Play(lambda name: outcome if name.startswith("press-1") else FINISHED)
    play([first(task, 0) for task in PRESS])
    assert sorted(play.attempts) == ["press-0-0-0", "press-1-0-0", "press-1-0-1", "press-1-0-2", "press-2-0-0"]
    assert play.ends == {"press-0-0": FINISHED, "press-1-0": outcome, "press-2-0": FINISHED}
    assert [(t.attempt, t.score, t.reward) for t in play.kept.trajectories if t.task_id == "press-1"] == [
        (number, None, None) for number in range(3)
    ]


def test_what_is_stored_is_not_played_again_and_what_failed_is_tried_three_times_more() -> None:
    kept = Kept(
        played("press-0-0-0", ENV_ERROR),
        played("press-1-0-0", GAVE_UP, 0.0, 0.0),
        *(played(f"press-2-{index}-{number}", ENV_ERROR) for index in range(4) for number in range(3)),
    )
    play = Play(lambda name: ENV_ERROR if name.startswith("press-2-3") else FINISHED, kept)
    play([first(PRESS[0], 0), first(PRESS[1], 0), *(first(PRESS[2], index) for index in range(5))])
    tried = [f"press-2-{name}" for name in ("0-3", "1-3", "2-3", "3-3", "3-4", "3-5", "4-0")]
    assert sorted(play.attempts) == ["press-0-0-1", *tried]  # nor is a task given up for what was long ago
    assert play.ends == {"press-0-0": FINISHED, "press-1-0": GAVE_UP} | {
        f"press-2-{index}": ENV_ERROR if index == 3 else FINISHED for index in range(5)
    }


def test_a_task_whose_environment_always_fails_is_given_up_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    play = Play(lambda name: ENV_ERROR if name.startswith("press-1") else FINISHED)
    play([first(task, index) for task in PRESS for index in range(9)])
    assert play.player.given_up == {"press-1"}
    lost = [play.ends[f"press-1-{index}"] for index in range(9)]
    assert len(play.ends) == 27 and set(lost) <= {ENV_ERROR, None} and None in lost
    assert 9 <= sum(name.startswith("press-1") for name in play.attempts) <= 10  # one may have been under way
    assert [play.ends[f"press-{task}-{index}"] for task in (0, 2) for index in range(9)] == [FINISHED] * 18
    told = [record.message for record in caplog.records if "given up" in record.message]
    assert told == ["press-1: given up, since its machines failed 9 times in a row"]
    before = len(play.attempts)
    play([first(PRESS[1], 9), first(PRESS[0], 9)])
    assert play.attempts[before:] == ["press-0-9-0"]
    assert (play.ends["press-1-9"], play.ends["press-0-9"]) == (None, FINISHED)


def test_a_task_that_fails_now_and_then_is_not_given_up() -> None:
    play = Play(lambda name: ENV_ERROR if int(name.split("-")[2]) % 3 else GAVE_UP, n_envs=1)
    for index in range(12):
        assert play([first(PRESS[0], index)]).ends[f"press-0-{index}"] is not None
    assert play.player.given_up == set()


def test_a_task_that_the_engine_always_fails_at_is_given_up_too() -> None:
    play = Play(lambda name: ENGINE_ERROR if name.startswith("press-1") else FINISHED, n_envs=1)
    for index in range(4):  # one of another task between two of its own: the engine works
        play([first(PRESS[1], index), first(PRESS[0], index)])
    assert play.player.given_up == {"press-1"}
    assert [play.ends[f"press-1-{index}"] for index in range(4)] == [*[ENGINE_ERROR] * 3, None]


def test_where_the_engine_fails_all_everybody_hears_so() -> None:
    play = Play(lambda name: ENGINE_ERROR)
    with pytest.raises(EngineError, match="in each attempt at 9 episodes in a row: nothing can be sampled"):
        play([first(task, index) for task in PRESS for index in range(9)])
    assert list(play.ends.values()).count(ENGINE_ERROR) <= 9


def test_who_plays_in_a_pool_that_is_closed_is_cancelled() -> None:
    class Slow(Told):
        async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError

    async def use(kept: Kept) -> asyncio.Task[None]:
        agent = Agent(Slow(lambda name: FINISHED), DIALECT, Sampling())
        async with LocalPool(FakeEnv, 2) as pool:
            player = Player(pool, kept)
            attempts = [first(task, 0) for task in PRESS[:2]]
            playing = asyncio.create_task(player.play(attempts, lambda task, env: agent, 2, lambda *ended: None))
            await asyncio.sleep(0.01)
        await asyncio.wait([playing])
        return playing

    kept = Kept()
    assert asyncio.run(use(kept)).cancelled()
    assert kept.trajectories == []  # they are played again when the run goes on


@pytest.mark.parametrize(
    ("reply", "reward", "expected"),
    [
        (FINISHED, well_formed(), 1.0),
        ("I do not know.", well_formed(), -1.0),
        ("I do not know.", well_formed(-0.25), -0.25),
        (FINISHED, lambda task, trajectory: (trajectory.score or 0.0) - 0.1 * len(trajectory.steps), 0.8),
        (GAVE_UP, lambda task, trajectory: float(task.id == "press-0"), 1.0),
    ],
)
def test_what_is_trained_on_is_the_rewards_word_and_the_score_stays_the_checkers(
    reply: Outcome | str, reward: Reward, expected: float
) -> None:
    (trajectory,) = Play(lambda name: reply)([first(PRESS[0], 0)], reward=reward).kept.trajectories
    assert trajectory.reward == pytest.approx(expected)
    assert trajectory.score == (1.0 if reply == FINISHED else 0.0)
