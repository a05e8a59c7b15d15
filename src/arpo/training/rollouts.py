"""Rollouts: which tasks an update is made of, and their groups of episodes.

Everything follows from (seed, update): the tasks, the screens, the draws. An episode that is in the run's store already
is not played again, so a killed run goes on with what was finished; one that machines failed is tried again.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence

from arpo.agent.dialects import UITars
from arpo.agent.episode import run_episode
from arpo.config import Config
from arpo.engines.base import Engine, Sampling
from arpo.envs.pool import Job, Lease, Pool
from arpo.errors import EnvError
from arpo.runs.store import Run
from arpo.seeds import derive, training_seed
from arpo.types import Group, Outcome, Provenance, Task, Trajectory


class Rollouts:
    """Plays the groups of updates with one engine, in the environments of one pool."""

    def __init__(
        self, tasks: Sequence[Task], engine: Engine, dialect: UITars, config: Config, run: Run, pool: Pool
    ) -> None:
        self.tasks, self.engine, self.dialect, self.config, self.run = tasks, engine, dialect, config, run
        self.pool = pool
        self.on_episode: Callable[[int], object] = lambda update: None  # sees the update of each that has been played
        self._in_turn: list[Task] = []

    async def groups(self, update: int, accept: Callable[[Group], bool]) -> list[Group]:
        """The groups of an update. Those that `accept` refuses give way to others, as often as `redraw` says.

        EnvError where machines failed in all of them: an update of nothing would be no update.
        """
        groups = await self._accepted(update, accept)
        if not any(trajectory.outcome.valid for group in groups for trajectory in group.trajectories):
            raise EnvError(f"update {update + 1}: machines failed in every episode; what they said is above")
        return groups

    async def _accepted(self, update: int, accept: Callable[[Group], bool]) -> list[Group]:
        config = self.config
        wanted = config.train.rollout_tasks
        taken: list[Group] = []
        refused: set[str] = set()
        for draw in range(config.algorithm.redraw + 1):
            others = [task for task in self._playable(update, draw) if task.id not in {one.task_id for one in taken}]
            others.sort(key=lambda task: task.id in refused)  # once more only where there is no other
            played = await self._play(others[: wanted - len(taken)], update, draw)
            if draw == config.algorithm.redraw:
                return [*taken, *played]
            taken += [group for group in played if accept(group)]
            if len(taken) == wanted:
                break
            refused |= {group.task_id for group in played}
        return taken

    def _playable(self, update: int, draw: int) -> list[Task]:
        """The tasks of a draw without those that the pool has given up; at the end those that may take their places."""
        tasks = self.tasks_of(update, draw)
        if self.pool.aside:
            tasks = [*tasks, *(task for task in self.tasks_of(update, draw + 1) if task not in tasks)]
            tasks = [task for task in tasks if task.id not in self.pool.aside]
        if not tasks:
            raise EnvError(f"machines failed in each of the {len(self.tasks)} tasks: none is left to train on")
        return tasks

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
        members = range(self.config.algorithm.group)
        found: dict[tuple[str, int], Trajectory] = {}

        def name(job: Job) -> str:
            return f"u{update}.{draw}-{job.task.id}-{job.index}-{job.attempt}"

        def done(job: Job, trajectory: Trajectory | None) -> None:
            if trajectory is not None:
                found[job.task.id, job.index] = trajectory
                self.on_episode(update)

        await self.pool.play(
            [Job(task, member) for task in tasks for member in members],
            self.config.train.n_envs,
            stored=lambda job: self._stored(name(job)),
            attempt=lambda env, job: self._episode(env, job, name(job), update),
            done=done,
        )
        # A group has fewer members where its task was given up in the middle of it.
        return [Group(task.id, tuple(found[key] for m in members if (key := (task.id, m)) in found)) for task in tasks]

    async def _episode(self, env: Lease, job: Job, name: str, update: int) -> Trajectory:
        seed, train = self.config.seed, self.config.train
        trajectory = await run_episode(
            job.task,
            env,
            self.engine,
            self.dialect,
            Sampling(train.temperature, 1.0, train.max_tokens),
            env_seed=training_seed(seed, job.task.id, update),  # the same screen for the whole group
            sample_seed=derive("rollout", seed, name),
            trajectory_id=name,
            attempt=job.attempt,
            provenance=Provenance(source="rollout", run=self.run.folder.name, update=update),
            images=self.run.keep_image,
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
