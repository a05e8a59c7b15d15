"""Decoupled training: groups are played while the learner works, and an update takes those that are finished.

    ahead = Ahead(rollouts, first, accept)
    groups, played = await ahead.take(update)      # as many as an update has, the oldest of the finished ones

Lag is the version that is trained minus the oldest version that sampled in a group. It never exceeds `train.lag`, and
nothing is discarded for age; two rules are enough for that.

    Begun are at most as many groups as the updates up to (version now) + lag will take, each when an environment is
    free for it. So the policy that begins it is as new as can be.
    A group that began with version v must be learned by update v + lag. An update takes finished ones in any order, as
    long as those that are left can still be learned in time. Else it waits.

Where an update has to wait for the last members of a few groups, it goes without up to `train.stragglers` of each: they
are ended, and the group is smaller. Slow episodes are then learned from less often than quick ones, so this is for lag
bounds of 1 or 2; from 3 on environments hardly ever wait (docs/results/rollouts.md).

What has begun and what was taken is noted in the run. A resumed run finishes the groups that it had begun, makes an
update that was under way from the same groups, and learns none twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from arpo.runs.store import damaged
from arpo.types import Attempt, Group, Summary, Task

if TYPE_CHECKING:
    from arpo.training.rollouts import Rollouts


@dataclass(slots=True)
class _Place:
    """One of the groups that updates are made of. `row`: which update it would be of, were there no other order."""

    number: int
    row: int
    begun: int  # the version at that time
    tasks: list[str] = field(default_factory=list)  # of all its groups: each was refused but the last
    playing: asyncio.Task[Group | None] | None = None
    members: asyncio.Task[list[Group]] | None = None  # the episodes of the last group
    ended: dict[int, Summary | None] = field(default_factory=dict)  # of them, by member
    cut: bool = False  # whether it goes without those that are still under way

    @property
    def finished(self) -> bool:
        return self.playing is not None and self.playing.done()

    @property
    def group(self) -> Group | None:
        """Of one that is finished. Whatever went wrong in it is raised."""
        assert self.playing is not None
        return self.playing.result()

    @property
    def lost(self) -> bool:
        """Whether it is finished, and nothing can be learned from it."""
        return self.finished and not any(one.outcome.valid for one in (self.group.trajectories if self.group else ()))


class Ahead:
    """The groups under way, of one run from update `first` on."""

    def __init__(self, rollouts: Rollouts, first: int, accept: Callable[[Group], bool]) -> None:
        self._rollouts, self._run, self._config, self._accept = rollouts, rollouts.run, rollouts.config, accept
        self._a_row = min(self._config.train.rollout_tasks, len(rollouts.tasks))
        self._version = first
        self._episodes = 0  # under way or waiting for an environment
        self._changed = asyncio.Event()
        self._closed = False
        self._orders: dict[tuple[int, int], list[Task]] = {}  # by row and round
        self._drawn: dict[int, set[tuple[int, str]]] = defaultdict(set)  # by row: round and task
        self._places: dict[int, _Place] = {}  # begun and not taken
        self._begun = 0
        while (place := self._noted(self._begun)) is not None or self._begun < first * self._a_row:
            if place is not None:
                self._places[self._begun] = place
                self._drawn[place.row].update(enumerate(place.tasks))
            self._begun += 1
        self._last = max((place.begun for place in self._places.values()), default=first)
        for update in range(first):  # a run of an older arpo noted none, and took them in order
            taken = self._made_of(update) or range(update * self._a_row, (update + 1) * self._a_row)
            for number in taken:
                self._places.pop(number, None)
        # Of updates that were under way: perhaps for a success that is unknown again, since no checkpoint has it.
        self._accepted = {number for update in self._noted_from(first) for number in update}

    async def take(self, update: int) -> tuple[list[Group], list[Summary]]:
        """The groups of an update, and all episodes that were played for them."""
        self._version = update
        for place in self._places.values():
            # A resumed run's. Where updates are repeated, not before the version that began it: an older would play.
            if place.playing is None and place.begun <= update:
                if not place.tasks:  # all were given up, which counts until the run is resumed
                    self._draw(place)
                self._play(place)
        self._begin()
        while (taken := self._ready(update)) is None:
            self._changed.clear()
            await self._changed.wait()
        self._run.note(f"update {update}", json.dumps([place.number for place in taken]))
        groups: list[Group] = []
        played: list[Summary] = []
        for place in taken:
            del self._places[place.number]
            groups += [group for group in (place.group,) if group is not None]
            played += self._played(place)
        return groups, played

    async def close(self) -> None:
        """End what was begun and is not needed any more."""
        self._closed = True
        tasks = [place.playing for place in self._places.values() if place.playing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ready(self, update: int) -> list[_Place] | None:
        """What the update takes; None: it has to wait."""
        finished = [place for place in self._places.values() if place.finished]
        for place in finished:
            _ = place.group  # whatever went wrong in it ends the run
        if noted := self._made_of(update):  # it was made, and is in no checkpoint
            if any(number not in self._places or self._places[number].begun > update for number in noted):
                raise damaged(self._run.folder, f"what is noted of update {update} is not of this run")
            again = [place for place in finished if place.number in noted]
            return again if len(again) == len(noted) else None
        if (taken := self._in_time(update, finished)) is None:
            self._go_without(update, finished)
        return taken

    def _in_time(self, update: int, finished: list[_Place]) -> list[_Place] | None:
        """The oldest of these; None where they are too few, or where too many others would have to be learned later.

        One in which machines failed in every episode can be learned at any time, and no update is made of such alone:
        they are finished first.
        """
        lag, lost = self._config.train.lag, {place.number for place in finished if place.lost}
        oldest = sorted(finished, key=lambda place: (place.begun, place.number))
        useful = [place for place in oldest if place.number not in lost]
        for n in range(min(len(useful), self._a_row) + 1):  # so many of these at least: as few as will do
            taken = (useful[:n] + [place for place in oldest if place not in useful[:n]])[: self._a_row]
            numbers = {place.number for place in taken}
            latest = [one.begun + lag for one in self._places.values() if one.number not in numbers | lost]
            in_time = all(
                sum(last <= until for last in latest) <= (until - update) * self._a_row
                for until in range(update, update + lag + 1)
            )
            if len(taken) == self._a_row and in_time and (numbers - lost or not self._places.keys() - lost):
                return sorted(taken, key=lambda one: one.number)  # as an update that is repeated takes them
        return None

    def _go_without(self, update: int, finished: list[_Place]) -> None:
        """Where an update waits for nothing but the last members of some groups (`train.stragglers`), end these."""
        others = [place for place in self._places.values() if not place.finished]
        enough = finished + [place for place in others if place.cut]
        nearly = sorted((place for place in others if self._nearly(place)), key=lambda one: (one.begun, one.number))
        for count in range(len(nearly) + 1):  # 0: those that are being ended are enough
            if self._in_time(update, enough + nearly[:count]) is not None:
                for place in nearly[:count]:
                    place.cut = True
                    assert place.members is not None
                    place.members.cancel()
                return

    def _nearly(self, place: _Place) -> bool:
        left = self._config.algorithm.group - len(place.ended)
        scored = sum(one is not None and one.outcome.valid for one in place.ended.values())
        return 0 < left <= self._config.train.stragglers and scored > 1 and not place.cut

    def _begin(self) -> None:
        """Begin groups while the lag allows it and an environment is free."""
        train = self._config.train
        if self._closed or self._version < self._last:  # updates are repeated: what they left to later ones was begun
            return
        most = self._a_row * min(self._version + train.lag + 1, train.updates)
        while self._begun < most and self._episodes < train.n_envs:
            place = _Place(self._begun, self._begun // self._a_row, self._version)
            self._places[place.number] = place
            self._begun += 1
            self._draw(place)
            self._play(place)

    def _play(self, place: _Place) -> None:
        self._episodes += self._config.algorithm.group if place.tasks else 0
        place.playing = asyncio.create_task(self._group(place))
        place.playing.add_done_callback(lambda _: self._changed.set())

    async def _group(self, place: _Place) -> Group | None:
        """The group of a place; None where machines failed in all tasks that it could have.

        A group that is refused gives way to another, as often as `redraw` says.
        """
        group = None
        while place.tasks:
            round_ = len(place.tasks) - 1
            group = await self._members(place, round_)
            accepted = place.number in self._accepted or self._accept(group)
            if accepted or round_ == self._config.algorithm.redraw or not self._draw(place):
                break
            self._episodes += self._config.algorithm.group
        return group

    async def _members(self, place: _Place, round_: int) -> Group:
        """Those of its present task; where it was told to go without the last ones, the others."""
        place.ended, place.cut = {}, False
        task = next(task for task in self._rollouts.tasks if task.id == place.tasks[-1])
        playing = self._rollouts.play([task], place.row, round_, partial(self._ended, place))
        place.members = asyncio.create_task(playing)
        try:
            return (await place.members)[0]
        except asyncio.CancelledError:
            if not place.cut or self._closed:
                raise
        self._episodes -= self._config.algorithm.group - len(place.ended)
        self._begin()
        known = [summary for _, summary in sorted(place.ended.items()) if summary is not None]
        return Group(task.id, tuple(self._run.trajectory(summary.id) for summary in known))

    def _ended(self, place: _Place, attempt: Attempt, summary: Summary | None) -> None:
        """An episode has: there is room for another."""
        place.ended[attempt.index] = summary
        self._episodes -= 1
        self._begin()
        if self._config.train.stragglers:
            self._changed.set()

    def _draw(self, place: _Place) -> bool:
        """The next task of a place: one that its row does not have yet, else one that was refused there."""
        round_, drawn = len(place.tasks), self._drawn[place.row]
        order = self._orders.get((place.row, round_)) or self._rollouts.playable(place.row, round_)
        self._orders[place.row, round_] = order
        lost, used = self._rollouts.player.given_up, {task for _, task in drawn}
        free = [task for task in order if (round_, task.id) not in drawn and task.id not in lost]
        if free:
            place.tasks.append(min(free, key=lambda task: task.id in used).id)
            drawn.add((round_, place.tasks[-1]))
        self._run.note(f"group {place.number}", json.dumps([place.begun, *place.tasks]))
        return bool(free)

    def _noted(self, number: int) -> _Place | None:
        """A place that has begun, as it was noted."""
        if (noted := self._run.fact(f"group {number}")) is None:
            return None
        known = {task.id for task in self._rollouts.tasks}
        match _json(noted):
            case [int(begun), *tasks] if (
                max(0, number // self._a_row - self._config.train.lag) <= begun <= number // self._a_row
                and len(tasks) <= self._config.algorithm.redraw + 1
                and all(isinstance(task, str) and task in known for task in tasks)
            ):
                return _Place(number, number // self._a_row, begun, tasks)
        raise damaged(self._run.folder, f"what is noted of group {number} is not of this run")

    def _made_of(self, update: int) -> list[int]:
        """The numbers of the places that an update took; none where it was not begun."""
        noted = _json(self._run.fact(f"update {update}") or "[]")
        if (
            not isinstance(noted, list)
            or len(noted) not in (0, self._a_row)
            or not all(type(number) is int and 0 <= number < self._begun for number in noted)
            or len(set(noted)) < len(noted)
        ):
            raise damaged(self._run.folder, f"what is noted of update {update} is not of this run")
        return noted

    def _noted_from(self, first: int) -> Iterator[list[int]]:
        """What the updates from this one on took, as far as they were begun."""
        return itertools.takewhile(bool, map(self._made_of, itertools.count(first)))

    def _played(self, place: _Place) -> Iterator[Summary]:
        """All episodes of a place, also those that a machine broke off."""
        for round_, task in enumerate(place.tasks):
            for one in self._run.summaries(task_id=task, update=place.row, source="rollout"):
                if one.id.startswith(f"u{place.row}.{round_}-"):
                    yield one


def _json(text: str) -> Any:
    """None where it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None
