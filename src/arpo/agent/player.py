"""The player: turns attempts into stored trajectories, for training and evaluation alike.

    player = Player(pool, run)
    await player.play(attempts, lambda task, env: agent, at_once=16, done=on_summary)

An episode that is in the store is not played again, so a resumed run keeps what was finished. An episode whose machine
failed is retried: it has three attempts, and three more when the run is resumed. Until then two things are given up, so
that they do not hold up the rest:

    a task       after nine failed attempts in a row (at three episodes or more): it is not played any more
    the engine   after nine episodes in a row in which it failed in every attempt: the run stops

One failure of an engine ends all turns under way, so its failures count only where an episode has no attempt left.
"""

import asyncio
import dataclasses
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

from arpo.agent.episode import Agent, as_number, run_episode
from arpo.envs.base import Lease, Pool
from arpo.errors import ConfigError, EngineError
from arpo.types import Attempt, Observation, Outcome, Summary, Task, Trajectory

ATTEMPTS = 3  # at an episode
LOST = 9  # failures in a row: so many that a machine which fails one time in ten costs no task in a long run
_log = logging.getLogger(__name__)

AgentFor: TypeAlias = Callable[[Task, Lease], Agent]
"""The agent of one episode: a model's is always the same, a script's looks at the task and its environment."""

Reward: TypeAlias = Callable[[Task, Trajectory], float]
"""What is trained on, for an episode that has a score. In the trajectory that it is given, `reward` is the score."""


class Store(Protocol):
    """Where trajectories are kept: a run."""

    async def keep_image(self, observation: Observation) -> None: ...

    def add(self, trajectory: Trajectory) -> None: ...

    def summaries(self, *, id: str) -> Iterator[Summary]: ...


def well_formed(penalty: float = -1.0) -> Reward:
    """The score, and a penalty where the last reply was no action, whatever else ended the episode."""
    return lambda task, trajectory: (
        (trajectory.score or 0.0) + penalty * any(step.parse_error is not None for step in trajectory.steps[-1:])
    )


def rewarded(reward: Reward, task: Task, trajectory: Trajectory) -> Trajectory:
    """The same with the reward that the function gives. ConfigError where that is no number."""
    given = reward(task, dataclasses.replace(trajectory, reward=trajectory.score))
    if (number := as_number(given)) is None:
        raise ConfigError(f"reward: gave {given!r:.60} for {trajectory.id}: it must give a finite number")
    return dataclasses.replace(trajectory, reward=number)


STANDARD = well_formed()


class Player:
    """Plays in the environments of one pool, into one store."""

    def __init__(self, pool: Pool, store: Store) -> None:
        self.pool, self.store = pool, store
        self.given_up: set[str] = set()  # tasks
        self._failed: Counter[str] = Counter()  # failed attempts in a row, by task
        self._lost_by_engine = 0  # lost episodes in a row

    async def play(
        self,
        attempts: Iterable[Attempt],
        agent_for: AgentFor,
        at_once: int,
        done: Callable[[Attempt, Summary | None], object],
        reward: Reward = STANDARD,
    ) -> None:
        """Play episodes, given by their first attempts. `done` is called once for each, with its last attempt.

        It gets None for an episode that was not played, since its task is given up. EngineError where the engine is.
        """
        waiting = deque((attempt, 0) for attempt in attempts)  # each with how many of its attempts failed in this call

        async def one_by_one() -> None:
            while waiting:
                attempt, failed = waiting.popleft()
                summary = next(self.store.summaries(id=attempt.id), None)
                if summary is None and attempt.task.id in self.given_up:
                    done(attempt, None)
                    continue
                if summary is None:
                    summary = await self._play(attempt, agent_for, reward)
                    failed += not summary.outcome.valid
                    self._count(attempt.task, summary.outcome, last=failed == ATTEMPTS)
                if summary.outcome.valid or failed == ATTEMPTS:
                    done(attempt, summary)
                else:
                    waiting.append((dataclasses.replace(attempt, number=attempt.number + 1), failed))

        try:
            async with asyncio.TaskGroup() as group:
                players = [group.create_task(one_by_one()) for _ in range(min(at_once, len(waiting)))]
        except ExceptionGroup as stopped:  # they are all alike: the first says it for the others
            raise stopped.exceptions[0] from None
        if any(player.cancelled() for player in players):  # the pool was closed meanwhile
            raise asyncio.CancelledError

    async def _play(self, attempt: Attempt, agent_for: AgentFor, reward: Reward) -> Summary:
        async with self.pool.lease() as env:
            agent = agent_for(attempt.task, env)
            trajectory = await run_episode(attempt, env, agent, self.store.keep_image)
        if trajectory.outcome is Outcome.CANCELLED:
            raise asyncio.CancelledError  # not stored: it is played again when the run is resumed
        if trajectory.score is not None:
            trajectory = rewarded(reward, attempt.task, trajectory)
        self.store.add(trajectory)
        return next(self.store.summaries(id=attempt.id))

    def _count(self, task: Task, outcome: Outcome, last: bool) -> None:
        """Count failures in a row. `last`: the episode has no attempt left."""
        if outcome.valid:
            self._failed[task.id] = self._lost_by_engine = 0
        elif outcome is Outcome.ENV_ERROR:
            self._failed[task.id] += 1
        elif outcome is Outcome.ENGINE_ERROR and last:
            self._failed[task.id] += ATTEMPTS
            self._lost_by_engine += 1
        if self._lost_by_engine >= LOST:
            raise EngineError(
                f"the engine failed in each attempt at {LOST} episodes in a row: nothing can be sampled; "
                "what it said is above"
            )
        if self._failed[task.id] >= LOST and task.id not in self.given_up:
            self.given_up.add(task.id)
            _log.warning("%s: given up, since its machines failed %d times in a row", task.id, LOST)
