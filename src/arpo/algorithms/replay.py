"""Success replay: where every attempt at a task failed, one of the agent's own past successes takes part.

    replay = Replay(settings, seed)
    filled = replay.fill(groups, update, run.trajectory)     # may put a stored success into a group that failed
    replay.add(groups, update)                               # new successes enter afterwards

Kept are only ids and ages, a few of each task; the trajectories themselves are in the run's store and are read when
they are needed. `state` and `restore` make it part of a checkpoint.
"""

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

from arpo.algorithms.advantages import failed
from arpo.config import AlgorithmConfig
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

    def add(self, groups: Sequence[Group], update: int) -> None:
        """Remember the successes of these groups; of each task the newest `replay_size`.

        A success whose reward is lower, since its last reply was no action, is left out: it would teach that reply.
        """
        for group in groups:
            for one in group.trajectories:
                if one.score is not None and one.reward is not None and one.reward >= one.score >= self.settings.solved:
                    kept = self._kept.setdefault(group.task_id, [])
                    kept.append((one.id, update))
                    del kept[: -self.settings.replay_size]

    def state(self) -> dict[str, Any]:
        return {task: [list(entry) for entry in kept] for task, kept in self._kept.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """ValueError where it is not what `state` returns."""
        for name, update in (entry for kept in state.values() for entry in kept):
            if not (isinstance(name, str) and isinstance(update, int)):
                raise ValueError("a success is an id and an update")
        self._kept = {task: [(name, update) for name, update in kept] for task, kept in state.items()}

    def _filled(self, group: Group, update: int, load: Callable[[str], Trajectory]) -> Group:
        kept = self._kept.get(group.task_id)
        if not kept:
            return group
        rng = random.Random(derive("replay", self.seed, update, group.task_id))
        tau = self.settings.replay_tau
        newest = kept[-1][1]  # ages count from it, which changes no odds: from now, all weights could round to 0
        weights = [1.0 if tau is None else math.exp((since - newest) / tau) for _, since in kept]
        name, _ = rng.choices(kept, weights)[0]
        # An invalid member teaches nothing, so it is replaced before a valid one is.
        members = list(group.trajectories)
        places = [i for i, member in enumerate(members) if not member.outcome.valid] or range(len(members))
        place = rng.choice(places)
        success = load(name)
        provenance = dataclasses.replace(success.provenance, source="replay", replayed_from=name)
        members[place] = dataclasses.replace(success, id=f"{members[place].id}-replay", provenance=provenance)
        return Group(group.task_id, tuple(members))
