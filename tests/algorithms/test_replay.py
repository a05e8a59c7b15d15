"""Replay: which groups get a success, which success, in whose place; and what is kept for that."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from arpo.algorithms.advantages import group_advantages
from arpo.algorithms.base import METHODS, make_algorithm
from arpo.algorithms.replay import Replay
from arpo.config import AlgorithmConfig
from arpo.types import Completion, Group, Outcome, Trajectory
from attempts import attempt, group

FAILED = group(*[0.0] * 8)


def load(name: str) -> Trajectory:
    """A store that has every success; of-u is one at the task u."""
    return attempt(name, 1.0, task=name.removeprefix("of-") if name.startswith("of-") else "t")


def with_successes(*updates: int, seed: int = 0, **settings: Any) -> Replay:
    """A replay that saw one success of task t in each of these updates, s0 in update 0."""
    replay = Replay(AlgorithmConfig(**settings), seed)
    for update in updates:
        replay.add([group(0.0, attempt(f"s{update}", 1.0))], update)
    return replay


def place_of(filled: Group) -> int:
    (place,) = (i for i, member in enumerate(filled.trajectories) if member.provenance.source == "replay")
    return place


def source_of(filled: Group) -> str:
    name = filled.trajectories[place_of(filled)].provenance.replayed_from
    assert name is not None
    return name


def drawn(replay: Replay, updates: range, whole: Group = FAILED) -> list[Group]:
    return [replay.fill([whole], update, load)[0] for update in updates]


# Which groups


def test_only_groups_that_failed_as_a_whole_are_filled() -> None:
    replay = with_successes(0)
    others = [group(0.0, 1.0), group(1.0, 1.0), group(None, None)]
    first, *rest, last = replay.fill([FAILED, *others, FAILED], 1, load)
    assert source_of(first) == source_of(last) == "s0"
    assert rest == others


def test_differing_rewards_do_not_save_a_failed_group_from_being_filled() -> None:
    (filled,) = with_successes(0).fill([group(0.0, (0.0, Outcome.UNPARSABLE))], 1, load)
    assert source_of(filled) == "s0"


def test_a_group_is_filled_with_a_success_of_its_own_task_or_not_at_all() -> None:
    replay = Replay(AlgorithmConfig(), 0)
    replay.add([group(attempt("of-a", 1.0, task="a"), task="a"), group(attempt("of-b", 1.0, task="b"), task="b")], 0)
    groups = [group(0.0, 0.0, task=task) for task in "abc"]
    a, b, c = replay.fill(groups, 1, load)
    assert (source_of(a), source_of(b)) == ("of-a", "of-b")
    assert (a.task_id, b.task_id) == ("a", "b")
    assert c == groups[2]


@pytest.mark.parametrize("name", METHODS)
def test_the_name_of_the_algorithm_decides_about_replay(name: str) -> None:
    algorithm = make_algorithm(AlgorithmConfig(name=name), 0)
    algorithm.remember([group(0.0, attempt("s0", 1.0))], 0)
    (filled,) = algorithm.fill([FAILED], 1, load)
    assert (filled != FAILED) == (name in ("arpo", "arpo+"))


@pytest.mark.parametrize("name", ["grpo:replay=true", "dapo:replay=true"])
def test_replay_can_be_switched_on_by_itself(name: str) -> None:
    algorithm = make_algorithm(AlgorithmConfig(name=name), 0)
    algorithm.remember([group(0.0, attempt("s0", 1.0))], 0)
    (filled,) = algorithm.fill([FAILED], 1, load)
    assert source_of(filled) == "s0"


def test_replay_can_be_switched_off_by_itself() -> None:
    def refuse(name: str) -> Trajectory:
        raise AssertionError(f"{name} is not needed")

    algorithm = make_algorithm(AlgorithmConfig(name="arpo", replay=False), 0)
    algorithm.remember([group(0.0, attempt("s0", 1.0))], 0)
    assert algorithm.fill([FAILED], 1, refuse) == [FAILED]


def test_a_failed_group_that_a_success_will_join_is_not_refused_for_another_task() -> None:
    plain, switched_off = (make_algorithm(AlgorithmConfig(name=name), 0) for name in ("arpo:redraw=2", "dapo"))
    for algorithm in (plain, switched_off):
        assert not algorithm.accept(FAILED)
        algorithm.remember([group(0.0, attempt("s0", 1.0))], 0)
        assert algorithm.accept(group(0.0, 1.0)) and not algorithm.accept(group(1.0, 1.0))
        assert not algorithm.accept(group(0.0, 0.0, task="another"))
    assert plain.accept(FAILED) and not switched_off.accept(FAILED)
    assert not make_algorithm(AlgorithmConfig(name="arpo:redraw=2:replay=false"), 0).accept(FAILED)


# Whose place


def test_every_member_is_replaced_now_and_then() -> None:
    counts = Counter(map(place_of, drawn(with_successes(0), range(1, 401))))
    assert set(counts) == set(range(8))
    assert min(counts.values()) > 25 and max(counts.values()) < 85  # 50 expected, within five standard deviations


def test_the_place_depends_on_the_seed_and_on_the_task() -> None:
    def places(seed: int, task: str) -> list[int]:
        replay = Replay(AlgorithmConfig(), seed)
        replay.add([group(attempt(f"of-{task}", 1.0, task=task), task=task)], 0)
        return [place_of(found) for found in drawn(replay, range(1, 30), group(*[0.0] * 8, task=task))]

    assert places(0, "t") == places(0, "t")
    assert places(0, "t") != places(1, "t")
    assert places(0, "t") != places(0, "u")


def test_an_invalid_member_gives_way_before_a_valid_one() -> None:
    places = [place_of(found) for found in drawn(with_successes(0), range(1, 41), group(0.0, None, 0.0, None))]
    assert set(places) == {1, 3}


def test_all_other_members_stay_as_they_are() -> None:
    for found in drawn(with_successes(0), range(1, 9)):
        place = place_of(found)
        assert found.trajectories[:place] == FAILED.trajectories[:place]
        assert found.trajectories[place + 1 :] == FAILED.trajectories[place + 1 :]


# What is put there


def test_a_replayed_success_says_where_it_comes_from() -> None:
    (filled,) = with_successes(0).fill([FAILED], 5, load)
    place = place_of(filled)
    success, found = load("s0"), filled.trajectories[place]
    assert found.provenance == dataclasses.replace(success.provenance, source="replay", replayed_from="s0")
    assert found.id == f"t-{place}-replay"  # an own name, so that it is weighted and shown by itself
    assert dataclasses.replace(found, id="s0", provenance=success.provenance) == success
    assert round(group_advantages(filled)[place], 2) == 2.65


# What is kept


def test_no_more_than_the_newest_are_kept() -> None:
    replay = with_successes(*range(10), replay_size=3)
    assert {source_of(found) for found in drawn(replay, range(10, 100))} == {"s7", "s8", "s9"}


def test_the_newest_of_one_update_are_those_that_came_last() -> None:
    replay = Replay(AlgorithmConfig(replay_size=2), 0)
    replay.add([group(*(attempt(f"s{i}", 1.0) for i in range(5)))], 0)
    assert {source_of(found) for found in drawn(replay, range(1, 60))} == {"s3", "s4"}


def test_the_bound_is_for_each_task() -> None:
    replay = Replay(AlgorithmConfig(replay_size=1), 0)
    for task in "ab":
        replay.add([group(attempt(f"of-{task}", 1.0, task=task), task=task)], 0)
    a, b = replay.fill([group(0.0, 0.0, task=task) for task in "ab"], 1, load)
    assert (source_of(a), source_of(b)) == ("of-a", "of-b")


def test_only_whole_successes_are_kept() -> None:
    replay = Replay(AlgorithmConfig(), 0)
    replay.add([group(0.0, 0.5, None, attempt("success", 1.0))], 0)
    assert {source_of(found) for found in drawn(replay, range(1, 40))} == {"success"}


def test_what_is_kept_and_what_is_filled_go_by_the_same_threshold() -> None:
    """Or a group would have neither failed nor anything worth keeping, and teach nothing for ever."""
    nearly = group(0.0, attempt("nearly", 0.75))
    for solved in (0.75, 0.8, 1.0):
        replay = Replay(AlgorithmConfig(solved=solved), 0)
        replay.add([nearly], 0)
        assert (replay.state() == {}) == (solved > 0.75)
        replay.restore({"t": [["success", 0]]})
        assert (replay.fill([nearly], 1, load) == [nearly]) == (solved <= 0.75)


@pytest.mark.parametrize("outcome", [Outcome.UNPARSABLE, Outcome.CUT_OFF])
def test_a_success_with_a_reply_that_was_no_action_is_not_kept(outcome: Outcome) -> None:
    replay = Replay(AlgorithmConfig(), 0)
    replay.add([group(0.0, attempt("malformed", 1.0, outcome))], 0)
    assert replay.fill([FAILED], 1, load) == [FAILED]


def test_filling_alone_keeps_nothing() -> None:
    replay = with_successes(0)
    before = replay.state()
    replay.fill([FAILED, group(1.0, 0.0)], 1, load)
    assert replay.state() == before


def test_a_trajectory_is_loaded_by_its_id_when_it_is_needed() -> None:
    asked: list[str] = []

    def watched(name: str) -> Trajectory:
        asked.append(name)
        return load(name)

    replay = with_successes(0)
    replay.fill([group(0.0, 1.0), FAILED, group(0.0, task="unknown")], 1, watched)
    assert asked == ["s0"]


def test_trajectories_are_not_held_in_memory() -> None:
    long = dataclasses.replace(
        attempt("s", 1.0).steps[0], completion=Completion((1,) * 50_000, (-0.5,) * 50_000, "", 0, 1.0, 1.0, "stop")
    )
    replay = Replay(AlgorithmConfig(), 0)
    held: dict[str, Trajectory] = {}

    def size_after(updates: range) -> int:
        for update in updates:
            success = dataclasses.replace(attempt(f"s{update:03}", 1.0), steps=(long,))
            held[success.id] = success
            replay.add([group(0.0, success)], update)
            replay.fill([FAILED], update, held.__getitem__)
        return len(pickle.dumps(replay))

    assert size_after(range(100, 110)) == size_after(range(110, 200)) < 5_000


# Which success


def test_all_ages_are_alike() -> None:
    counts = Counter(map(source_of, drawn(with_successes(0, 4), range(10, 2010))))
    assert 0.45 < counts["s4"] / 2000 < 0.55


# Going on after a restart


@pytest.mark.parametrize("settings", [{}, {"replay_count": 2}, {"replay_size": 2}])
def test_a_restored_replay_makes_the_same_choices(settings: dict[str, Any]) -> None:
    replay = with_successes(0, 1, 2, 5, **settings)
    restored = Replay(replay.settings, 0)
    restored.restore(json.loads(json.dumps(replay.state())))
    later: Callable[[Replay], list[Group]] = lambda one: drawn(one, range(6, 60))  # noqa: E731
    assert later(restored) == later(replay)
    for one in (replay, restored):
        one.add([group(attempt("new", 1.0))], 60)
    assert later(restored) == later(replay)
    assert restored.state() == replay.state()


def test_restoring_forgets_what_was_there() -> None:
    replay = with_successes(0)
    replay.restore({})
    assert replay.fill([FAILED], 1, load) == [FAILED]


def test_a_saved_state_does_not_change_later() -> None:
    replay = with_successes(0)
    state = replay.state()
    replay.add([group(attempt("new", 1.0))], 1)
    assert state == with_successes(0).state()


# Refinements


def test_several_different_successes_can_join_a_group_and_a_failure_stays_to_be_compared_with() -> None:
    replay = with_successes(0, 1, 2, replay_count=2)
    for filled in drawn(replay, range(3, 20)):
        joined = [one.provenance.replayed_from for one in filled.trajectories if one.provenance.source == "replay"]
        assert len(set(joined)) == len(joined) == 2
        assert len({one.id for one in filled.trajectories}) == len(filled.trajectories) == 8
    (small,) = with_successes(0, 1, 2, replay_count=9).fill([group(0.0, 0.0, 0.0)], 3, load)
    assert sorted(one.score or 0.0 for one in small.trajectories) == [0.0, 1.0, 1.0]
    (all_there_are,) = with_successes(0, 1, replay_count=9).fill([FAILED], 3, load)
    assert sum(one.provenance.source == "replay" for one in all_there_are.trajectories) == 2


def test_the_shortest_success_joins_of_equal_ones_the_newest() -> None:
    lengths = {"s0": 3, "s1": 2, "s2": 2, "s3": 5}

    def load_of_length(name: str) -> Trajectory:
        success = load(name)
        return dataclasses.replace(success, steps=success.steps * lengths[name])

    replay = with_successes(0, 1, 2, 3, replay_shortest=True)
    assert {source_of(replay.fill([FAILED], update, load_of_length)[0]) for update in range(4, 20)} == {"s2"}
