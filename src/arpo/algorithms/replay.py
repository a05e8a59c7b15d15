"""Success replay: where every attempt at a task failed, one of the agent's own past successes takes part.

    replay = Replay(settings, seed)
    filled = replay.fill(groups, update, run.trajectory)     # may put a stored success into a group that failed
    replay.add(groups, update)                               # new successes enter afterwards

Kept are only ids and ages, a few of each task; the trajectories themselves are in the run's store and are read when
they are needed. `state` and `restore` make it part of a checkpoint.
"""

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from arpo.algorithms.advantages import exemplary, failed
from arpo.config import AlgorithmConfig
from arpo.errors import ConfigError
from arpo.seeds import derive
from arpo.types import Group, Trajectory


class Replay:
    """The newest successes of each task, by id."""

    def __init__(self, settings: AlgorithmConfig, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self._kept: dict[str, list[tuple[str, int]]] = {}  # task: (trajectory, update), the newest last

    def fill(self, groups: Sequence[Group], update: int, load: Callable[[str], Trajectory]) -> list[Group]:
        """The groups; in each that failed as a whole a random member is replaced by a stored success of its task."""
        solved = self.settings.solved
        return [self._filled(group, update, load) if failed(group, solved) else group for group in groups]

    def fills(self, group: Group) -> bool:
        """Whether a success would join this group."""
        return failed(group, self.settings.solved) and group.task_id in self._kept

    def add(self, groups: Sequence[Group], update: int) -> None:
        """Remember the exemplary successes of these groups; of each task the newest `replay_size`."""
        for group in groups:
            for one in group.trajectories:
                if exemplary(one, self.settings.solved):
                    kept = self._kept.setdefault(group.task_id, [])
                    kept.append((one.id, update))
                    del kept[: -self.settings.replay_size]

    def state(self) -> dict[str, Any]:
        return {task: [list(entry) for entry in kept] for task, kept in self._kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """ValueError where it is not what `state` returns."""
        for name, update in (entry for kept in state.values() for entry in kept):
            if not (isinstance(name, str) and isinstance(update, int) and 0 <= update < 10**6):
                raise ValueError("a success is an id and an update")
        self._kept = {task: [(name, update) for name, update in kept] for task, kept in state.items()}

    def _filled(self, group: Group, update: int, load: Callable[[str], Trajectory]) -> Group:
        kept = self._kept.get(group.task_id)
        if not kept:
            return group
        rng = random.Random(derive("replay", self.seed, update, group.task_id))
        # An invalid member teaches nothing, so it is replaced before a valid one is.
        members = list(group.trajectories)
        for success in self._chosen(kept, rng, group.task_id, load)[: len(members) - 1]:  # one to compare them with
            fresh = [i for i, member in enumerate(members) if member.provenance.source != "replay"]
            place = rng.choice([i for i in fresh if not members[i].outcome.valid] or fresh)
            provenance = dataclasses.replace(success.provenance, source="replay", replayed_from=success.id)
            members[place] = dataclasses.replace(success, id=f"{members[place].id}-replay", provenance=provenance)
        return Group(group.task_id, tuple(members))

    def _chosen(
        self, kept: list[tuple[str, int]], rng: random.Random, task: str, load: Callable[[str], Trajectory]
    ) -> list[Trajectory]:
        """The successes that join a group of this task: `replay_count` different ones, or all there are."""
        count = self.settings.replay_count
        if self.settings.replay_shortest:
            every = [self._success(name, task, load) for name, _ in reversed(kept)]  # of equal ones the newest
            return sorted(every, key=lambda one: len(one.steps))[:count]
        left, chosen = list(kept), list[Trajectory]()
        while left and len(chosen) < count:
            (one,) = rng.choices(left)  # `choice` draws otherwise: runs that are told of could not be made again
            left.remove(one)
            chosen.append(self._success(one[0], task, load))
        return chosen

    def _success(self, name: str, task: str, load: Callable[[str], Trajectory]) -> Trajectory:
        success = load(name)
        if success.task_id != task or (success.score or 0.0) < self.settings.solved:
            raise ConfigError(f"{name}: is not a success at {task}, as which the checkpoint remembers it")
        return success
