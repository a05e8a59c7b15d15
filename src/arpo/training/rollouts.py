"""Rollouts: which tasks an update is made of, and their groups of episodes.

Everything follows from (seed, update): the tasks, the screens, what is sampled. An episode that is in the run's store
is not played again, so a resumed run keeps what was finished; one whose machine failed is retried.
"""

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from arpo.agent.episode import Agent
from arpo.agent.player import Player, Reward, well_formed
from arpo.config import Config
from arpo.errors import EnvError
from arpo.runs.store import Run
from arpo.seeds import derive, training_seed
from arpo.types import Attempt, Group, Provenance, Summary, Task


@dataclass(frozen=True, slots=True)
class Rollout:
    """What was played for an update."""

    update: int
    groups: list[Group]
    played: list[Summary]  # all episodes, also of groups that gave way to others
    last: bool  # whether it is the last: of `train.updates`, or of `train.env_steps`
    sample_s: float  # how long the learner waited for it


class Rollouts:
    """Plays the groups of one update after the other, all with one agent."""

    def __init__(
        self,
        tasks: Sequence[Task],
        agent: Agent,
        config: Config,
        run: Run,
        player: Player,
        reward: Reward | None = None,
        on_episode: Callable[[int], object] = lambda update: None,
    ) -> None:
        """`on_episode` is called after each episode, with its update."""
        self.tasks, self.agent, self.config, self.run, self.player = tasks, agent, config, run, player
        self.reward = reward or well_formed(config.algorithm.format_reward)
        self.on_episode = on_episode
        self._in_turn: list[Task] = []

    async def batches(self, first: int, accept: Callable[[Group], bool]) -> AsyncGenerator[Rollout]:
        """Update by update, from `first` on. The episodes of the next `train.lag` updates are played meanwhile."""
        train = self.config.train
        budget = train.env_steps or math.inf
        spent = sum(episode.n_steps for episode in self.run.summaries(source="rollout") if episode.update < first)
        under_way: deque[asyncio.Task[list[Group]]] = deque()
        begun = first
        try:
            for update in range(first, train.updates):
                if spent >= budget:
                    break
                before = time.monotonic()
                while begun <= min(update + train.lag, train.updates - 1):
                    under_way.append(asyncio.create_task(self.groups(begun, accept)))
                    begun += 1
                groups = await under_way.popleft()
                played = list(self.run.summaries(update=update, source="rollout"))
                spent += sum(episode.n_steps for episode in played)
                last = update + 1 == train.updates or spent >= budget
                yield Rollout(update, groups, played, last, time.monotonic() - before)
        finally:
            for task in under_way:  # begun ahead, because of the lag, and not needed any more
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def groups(self, update: int, accept: Callable[[Group], bool]) -> list[Group]:
        """The groups of an update. Those that `accept` refuses give way to others, as often as `redraw` says.

        EnvError where machines failed in all episodes: there is nothing to learn from.
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
        for round_ in range(config.algorithm.redraw + 1):
            others = [task for task in self._playable(update, round_) if task.id not in {one.task_id for one in taken}]
            others.sort(key=lambda task: task.id in refused)  # refused ones again only where no other is left
            played = await self._play(others[: wanted - len(taken)], update, round_)
            if round_ == config.algorithm.redraw:
                return [*taken, *played]
            taken += [group for group in played if accept(group)]
            if len(taken) == wanted:
                break
            refused |= {group.task_id for group in played}
        return taken

    def _playable(self, update: int, round_: int) -> list[Task]:
        """The tasks of a round without those that are given up, then those that may take their places."""
        tasks = self.tasks_of(update, round_)
        if given_up := self.player.given_up:
            tasks = [*tasks, *(task for task in self.tasks_of(update, round_ + 1) if task not in tasks)]
            tasks = [task for task in tasks if task.id not in given_up]
        if not tasks:
            raise EnvError(f"machines failed in each of the {len(self.tasks)} tasks: none is left to train on")
        return tasks

    def tasks_of(self, update: int, round_: int = 0) -> list[Task]:
        """The tasks of an update: the list again and again, each time in a new order; or by `train.curriculum`.

        In a later round: all tasks, in the order in which they take the places of refused ones.
        """
        count, n = min(self.config.train.rollout_tasks, len(self.tasks)), len(self.tasks)
        if self.config.train.curriculum:
            return self._informative(update, round_)[: n if round_ else count]
        if round_:
            return random.Random(derive("redraw", self.config.seed, update, round_)).sample(self.tasks, n)
        stream = self._in_turn
        while len(stream) < (update + 1) * count:
            order = random.Random(derive("tasks", self.config.seed, len(stream) // n)).sample(self.tasks, n)
            # Where a pass begins in the middle of an update, it begins with tasks that the update does not have yet.
            begun = stream[len(stream) // count * count :]
            first = [task for task in order if task not in begun][: count - len(begun)]
            stream += first + [task for task in order if task not in first]
        return stream[update * count : (update + 1) * count]

    def _informative(self, update: int, round_: int) -> list[Task]:
        """All tasks, at random, likelier first where scores vary: what always or never succeeds teaches nothing."""
        scores: dict[str, deque[float]] = {
            task.id: deque(maxlen=2 * self.config.algorithm.group) for task in self.tasks
        }
        for summary in self.run.summaries(source="rollout"):
            if summary.update < update and summary.score is not None and summary.task_id in scores:
                scores[summary.task_id].append(summary.score)
        rng = random.Random(derive("curriculum", self.config.seed, update, round_))
        rates = {task.id: (sum(scores[task.id]) + 1) / (len(scores[task.id]) + 2) for task in self.tasks}
        # Sampling without replacement: the largest of u^(1/weight).
        weights = {name: rate * (1 - rate) for name, rate in rates.items()}
        return sorted(self.tasks, key=lambda task: rng.random() ** (1 / weights[task.id]), reverse=True)

    async def _play(self, tasks: Sequence[Task], update: int, round_: int) -> list[Group]:
        names: dict[tuple[str, int], str] = {}  # ids of the trajectories, by task and member

        def done(attempt: Attempt, played: Summary | None) -> None:
            if played is not None:
                names[attempt.task.id, attempt.index] = played.id
                self.on_episode(update)

        members = range(self.config.algorithm.group)
        attempts = [self._attempt(task, member, update, round_) for task in tasks for member in members]
        await self.player.play(attempts, lambda task, env: self.agent, self.config.train.n_envs, done, self.reward)
        # Where a task was given up in the middle of its group, the group has fewer members.
        stored = {key: self.run.trajectory(name) for key, name in names.items()}
        return [Group(task.id, tuple(stored[task.id, m] for m in members if (task.id, m) in stored)) for task in tasks]

    def _attempt(self, task: Task, member: int, update: int, round_: int) -> Attempt:
        seed, episode = self.config.seed, f"u{update}.{round_}-{task.id}-{member}"
        return Attempt(
            task=task,
            index=member,
            episode=episode,
            number=0,
            env_seed=training_seed(seed, task.id, update),  # the same screen for the whole group
            sample_seed=derive("rollout", seed, f"{episode}-0"),
            provenance=Provenance(source="rollout", run=self.run.folder.name, update=update),
        )
