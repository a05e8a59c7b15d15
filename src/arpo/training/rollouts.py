"""Rollouts: which tasks an update is made of, and their groups of episodes.

Everything follows from (seed, update): the tasks, the screens, the draws. An episode that is in the run's store already
is not played again, so a killed run goes on with what was finished.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

from arpo.agent.dialects import UITars
from arpo.agent.episode import run_episode
from arpo.config import Config
from arpo.engines.base import Engine, Sampling
from arpo.envs.base import Env
from arpo.runs.store import Run
from arpo.seeds import derive, training_seed
from arpo.types import Group, Outcome, Provenance, Task, Trajectory

ATTEMPTS = 3  # where a machine failed


class Rollouts:
    """Plays the groups of updates with one engine."""

    def __init__(
        self,
        tasks: Sequence[Task],
        engine: Engine,
        dialect: UITars,
        config: Config,
        run: Run,
        make_env: Callable[[], Env],
    ) -> None:
        self.tasks, self.engine, self.dialect, self.config, self.run = tasks, engine, dialect, config, run
        self._make_env = make_env
        self._in_turn: list[Task] = []

    async def groups(self, update: int, accept: Callable[[Group], bool]) -> list[Group]:
        """The groups of an update. Those that `accept` refuses give way to others, as often as `redraw` says."""
        config = self.config
        wanted = config.train.rollout_tasks
        taken: list[Group] = []
        refused: set[str] = set()
        for draw in range(config.algorithm.redraw + 1):
            others = [task for task in self.tasks_of(update, draw) if task.id not in {group.task_id for group in taken}]
            others.sort(key=lambda task: task.id in refused)  # once more only where there is no other
            played = await self._play(others[: wanted - len(taken)], update, draw)
            if draw == config.algorithm.redraw:
                return [*taken, *played]
            taken += [group for group in played if accept(group)]
            if len(taken) == wanted:
                break
            refused |= {group.task_id for group in played}
        return taken

    def tasks_of(self, update: int, draw: int = 0) -> list[Task]:
        """The tasks of an update: the list over and over, each time in a new order; or by what they taught lately.

        For a later draw all tasks, in the order in which they are to take the places of others.
        """
        count, n = min(self.config.train.rollout_tasks, len(self.tasks)), len(self.tasks)
        if self.config.train.curriculum:
            return self._informative(update, draw)[: n if draw else count]
        if draw:
            return random.Random(derive("redraw", self.config.seed, update, draw)).sample(self.tasks, n)
        stream = self._in_turn
        while len(stream) < (update + 1) * count:
            order = random.Random(derive("tasks", self.config.seed, len(stream) // n)).sample(self.tasks, n)
            # A pass that begins inside an update begins with others than those which that update has already.
            begun = stream[len(stream) // count * count :]
            first = [task for task in order if task not in begun][: count - len(begun)]
            stream += first + [task for task in order if task not in first]
        return stream[update * count : (update + 1) * count]

    def _informative(self, update: int, draw: int) -> list[Task]:
        """Drawn in proportion to the spread of their latest scores: what always or never succeeds teaches nothing."""
        scores: dict[str, deque[float]] = {
            task.id: deque(maxlen=2 * self.config.algorithm.group) for task in self.tasks
        }
        for summary in self.run.summaries(source="rollout"):
            if summary.update < update and summary.score is not None and summary.task_id in scores:
                scores[summary.task_id].append(summary.score)
        rng = random.Random(derive("curriculum", self.config.seed, update, draw))
        rates = {task.id: (sum(scores[task.id]) + 1) / (len(scores[task.id]) + 2) for task in self.tasks}
        # Sampling without replacement: the largest of u^(1/weight).
        weights = {name: rate * (1 - rate) for name, rate in rates.items()}
        return sorted(self.tasks, key=lambda task: rng.random() ** (1 / weights[task.id]), reverse=True)

    async def _play(self, tasks: Sequence[Task], update: int, draw: int) -> list[Group]:
        members = self.config.algorithm.group
        waiting = deque((task, member, 0) for task in tasks for member in range(members))
        done: dict[tuple[str, int], Trajectory] = {}

        async def worker() -> None:
            env: Env | None = None
            try:
                while waiting:
                    task, member, attempt = waiting.popleft()
                    name = f"u{update}.{draw}-{task.id}-{member}-{attempt}"
                    trajectory = self._stored(name)
                    if trajectory is None:
                        env = env or self._make_env()
                        trajectory = await self._episode(env, task, member, attempt, name, update)
                    if trajectory.outcome is Outcome.ENV_ERROR and env is not None:
                        env.close()
                        env = None
                    if not trajectory.outcome.valid and attempt + 1 < ATTEMPTS:
                        waiting.append((task, member, attempt + 1))
                    else:
                        done[task.id, member] = trajectory
            finally:
                if env is not None:
                    env.close()

        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self.config.train.n_envs, len(waiting))):
                    workers.create_task(worker())
        except ExceptionGroup as failed:  # the workers are alike: what stopped the first is what there is to say
            raise failed.exceptions[0] from None
        return [Group(task.id, tuple(done[task.id, member] for member in range(members))) for task in tasks]

    async def _episode(self, env: Env, task: Task, member: int, attempt: int, name: str, update: int) -> Trajectory:
        seed, train = self.config.seed, self.config.train
        trajectory = await run_episode(
            task,
            env,
            self.engine,
            self.dialect,
            Sampling(train.temperature, 1.0, train.max_tokens),
            env_seed=training_seed(seed, task.id, update),  # the same screen for the whole group
            sample_seed=derive("rollout", seed, name),
            trajectory_id=name,
            attempt=attempt,
            provenance=Provenance(source="rollout", run=self.run.folder.name, update=update),
            images=self.run.add_image,
            format_reward=self.config.algorithm.format_reward,
        )
        if trajectory.outcome is Outcome.CANCELLED:
            raise asyncio.CancelledError  # not stored: it is played again when the run goes on
        self.run.add(trajectory)
        return trajectory

    def _stored(self, name: str) -> Trajectory | None:
        try:
            return self.run.trajectory(name)
        except KeyError:
            return None
