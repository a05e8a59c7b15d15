"""Rollouts: which tasks an update is made of, and their groups of episodes.

Everything follows from (seed, update): the tasks, the screens, what is sampled. With `env.starts=fixed` the screens
follow from the task alone, and (seed, update) says which of its starts it is. An episode that is in the run's store
is not played again, so a resumed run keeps what was finished; one whose machine failed is retried.
"""

import math
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from arpo.agent.episode import Agent
from arpo.agent.player import Player, Reward, well_formed
from arpo.algorithms.advantages import solved_by_all
from arpo.algorithms.base import Algorithm
from arpo.config import Config
from arpo.errors import EnvError
from arpo.runs.store import Run
from arpo.seeds import derive, start_seed, training_seed
from arpo.training.ahead import Ahead
from arpo.types import Attempt, Group, Provenance, Summary, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Rollout:
    """What was played for an update, or taken from the store."""

    update: int
    groups: list[Group]
    played: list[Summary]  # all episodes, also of groups that gave way to others
    last: bool  # whether it is the last: of `train.updates`, or of `train.env_steps`
    sample_s: float  # how long the learner waited for it


class Groups(Protocol):
    """Where the groups of updates come from: `Rollouts` plays them, `offline.Stored` has them."""

    agent: Agent

    def batches(self, first: int, algorithm: Algorithm) -> AsyncGenerator[Rollout]:
        """Update by update, from `first` on. `algorithm` says which groups teach something."""
        ...


class InTurn:
    """The tasks of each update, n of them: the list again and again, each time in a new order."""

    def __init__(self, tasks: Sequence[Task], n: int, seed: int) -> None:
        self._tasks, self._count, self._seed = tasks, min(n, len(tasks)), seed
        self._stream: list[Task] = []

    def tasks_of(self, update: int) -> list[Task]:
        stream, count, n = self._stream, self._count, len(self._tasks)
        while len(stream) < (update + 1) * count:
            order = random.Random(derive("tasks", self._seed, len(stream) // n)).sample(self._tasks, n)
            # Where a pass begins in the middle of an update, it begins with tasks that the update does not have yet.
            begun = stream[len(stream) // count * count :]
            first = [task for task in order if task not in begun][: count - len(begun)]
            stream += first + [task for task in order if task not in first]
        return stream[update * count : (update + 1) * count]


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
        tasks = [replace(task, partial=config.algorithm.partial) for task in tasks]
        self.tasks, self.agent, self.config, self.run, self.player = tasks, agent, config, run, player
        self.reward = reward or well_formed(config.algorithm.format_reward)
        self.on_episode = on_episode
        self._in_turn = InTurn(tasks, config.train.rollout_tasks, config.seed)

    async def batches(self, first: int, algorithm: Algorithm) -> AsyncGenerator[Rollout]:
        """Update by update, from `first` on. With a lag, groups are played meanwhile, and come as they are finished."""
        train = self.config.train
        budget = train.env_steps or math.inf
        ahead = Ahead(self, first, algorithm.accept) if train.lag else None
        spent = self._spent(first)
        try:
            for update in range(first, train.updates):
                if spent >= budget:
                    break
                before = time.monotonic()
                if ahead is None:
                    groups = await self.groups(update, algorithm)
                    played = list(self.run.summaries(update=update, source="rollout"))
                else:
                    groups, played = await ahead.take(update)
                    refuse_lost(groups, update)
                spent += sum(episode.n_steps for episode in played)
                last = update + 1 == train.updates or spent >= budget
                yield Rollout(update, groups, played, last, time.monotonic() - before)
        finally:
            if ahead is not None:
                await ahead.close()

    def _spent(self, first: int) -> int:
        """Steps of the updates before it. With a lag only the log tells which episodes these were made of."""
        if self.config.train.lag:
            return sum(metrics["env_steps"] for metrics in self.run.metrics() if metrics["update"] < first)
        return sum(episode.n_steps for episode in self.run.summaries(source="rollout") if episode.update < first)

    async def groups(self, update: int, algorithm: Algorithm) -> list[Group]:
        """The groups of an update. Those not accepted give way to others, as often as `redraw` says.

        EnvError where machines failed in all episodes: there is nothing to learn from.
        """
        groups = await self._accepted(update, algorithm)
        refuse_lost(groups, update)
        return groups

    async def _accepted(self, update: int, algorithm: Algorithm) -> list[Group]:
        config = self.config
        wanted = config.train.rollout_tasks
        taken: list[Group] = []
        refused: set[str] = set()
        for round_ in range(config.algorithm.redraw + 1):
            others = [task for task in self.playable(update, round_) if task.id not in {one.task_id for one in taken}]
            others.sort(key=lambda task: task.id in refused)  # refused ones again only where no other is left
            now = others[: wanted - len(taken)]
            played = await self.play(now, update, round_, seeks=lambda group: algorithm.seeks(group))
            if round_ == config.algorithm.redraw:
                return [*taken, *played]
            taken += [group for group in played if algorithm.accept(group)]
            if len(taken) == wanted:
                break
            refused |= {group.task_id for group in played}
        return taken

    def playable(self, update: int, round_: int) -> list[Task]:
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
        return self._in_turn.tasks_of(update)

    def _informative(self, update: int, round_: int) -> list[Task]:
        """All tasks, at random, likelier first where successes vary: what always or never succeeds teaches nothing."""
        scores: dict[str, deque[bool]] = {task.id: deque(maxlen=2 * self.config.algorithm.group) for task in self.tasks}
        for summary in self.run.summaries(source="rollout"):
            if summary.update < update and summary.score is not None and summary.task_id in scores:
                scores[summary.task_id].append(summary.score >= self.config.algorithm.solved)
        rng = random.Random(derive("curriculum", self.config.seed, update, round_))
        rates = {task.id: (sum(scores[task.id]) + 1) / (len(scores[task.id]) + 2) for task in self.tasks}
        # Sampling without replacement: the largest of u^(1/weight).
        weights = {name: rate * (1 - rate) for name, rate in rates.items()}
        return sorted(self.tasks, key=lambda task: rng.random() ** (1 / weights[task.id]), reverse=True)

    async def play(
        self,
        tasks: Sequence[Task],
        update: int,
        round_: int,
        ended: Callable[[Attempt, Summary | None], object] = lambda attempt, played: None,
        seeks: Callable[[Group], bool] = lambda group: False,
    ) -> list[Group]:
        """The groups of these tasks.

        `ended` is called after each episode; None: its task was given up before it. `seeks`: whether a group goes on.
        """
        names: dict[tuple[str, int], str] = {}  # ids of the trajectories, by task and member

        def done(attempt: Attempt, played: Summary | None) -> None:
            if played is not None:
                names[attempt.task.id, attempt.index] = played.id
                self.on_episode(update)
            ended(attempt, played)

        stored: dict[tuple[str, int], Trajectory] = {}

        def group(task: Task) -> Group:
            # Where a task was given up in the middle of its group, the group has fewer members.
            return Group(task.id, tuple(one for (name, _), one in sorted(stored.items()) if name == task.id))

        begun = 0
        for most, goes_on in self._waves(seeks):
            members, going = range(begun, most), [task for task in tasks if goes_on(group(task))]
            attempts = [self._attempt(task, member, update, round_) for task in going for member in members]
            await self.player.play(attempts, lambda task, env: self.agent, self.config.train.n_envs, done, self.reward)
            stored |= {key: self.run.trajectory(name) for key, name in names.items() if key not in stored}
            begun = most
        return [group(task) for task in tasks]

    def _waves(self, seeks: Callable[[Group], bool]) -> list[tuple[int, Callable[[Group], bool]]]:
        """Up to how many attempts groups go on, and which do: by `group_least` and `group_most`."""
        algorithm = self.config.algorithm
        waves: list[tuple[int, Callable[[Group], bool]]] = [(algorithm.group, lambda group: True)]
        if algorithm.group_least is not None and algorithm.group_least < algorithm.group:
            waves = [
                (algorithm.group_least, lambda group: True),
                (algorithm.group, lambda group: not solved_by_all(group, algorithm.solved)),
            ]
        most = algorithm.group_most or algorithm.group
        further = range(2 * algorithm.group, most + algorithm.group, algorithm.group)
        return [*waves, *((min(attempts, most), seeks) for attempts in further)]

    def _attempt(self, task: Task, member: int, update: int, round_: int) -> Attempt:
        seed, episode = self.config.seed, f"u{update}.{round_}-{task.id}-{member}"
        return Attempt(
            task=task,
            index=member,
            episode=episode,
            number=0,
            env_seed=self._env_seed(task, update),
            sample_seed=derive("rollout", seed, f"{episode}-0"),
            provenance=Provenance(source="rollout", run=self.run.folder.name, update=update),
        )

    def _env_seed(self, task: Task, update: int) -> int:
        """The same screen for the whole group."""
        seed, starts = self.config.seed, self.config.env.fixed_starts
        if starts:
            return start_seed(task.id, derive("start", seed, task.id, update) % starts)
        return training_seed(seed, task.id, update)


def refuse_lost(groups: Sequence[Group], update: int) -> None:
    """EnvError where machines failed in all episodes: there is nothing to learn from."""
    if not any(trajectory.outcome.valid for group in groups for trajectory in group.trajectories):
        raise EnvError(f"update {update + 1}: machines failed in every episode; what they said is above")
