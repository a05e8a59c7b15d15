"""Advantages: the worked example, what counts in a group, and what there is to learn from one."""

from __future__ import annotations

import dataclasses
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from arpo.algorithms.advantages import failed as failed_below
from arpo.algorithms.advantages import normalised, solved_by_all, surprising
from arpo.algorithms.base import make_algorithm
from arpo.algorithms.grpo import for_every_token
from arpo.config import AlgorithmConfig
from arpo.training.metrics import episode_metrics
from arpo.types import Group, Outcome, Trajectory
from attempts import attempt, group

ARPO = AlgorithmConfig()
UNPARSABLE, CUT_OFF = Outcome.UNPARSABLE, Outcome.CUT_OFF
ONE_OF_EIGHT = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def advantages(whole: Group, settings: AlgorithmConfig) -> list[float]:
    """Of each trajectory what its one token is worth."""
    return [
        credit.advantages[0] if credit.advantages else 0.0 for credit in make_algorithm(settings, 0).advantages(whole)
    ]


def informative(whole: Group, settings: AlgorithmConfig) -> bool:
    return make_algorithm(settings, 0).accept(whole)


def failed(whole: Group, settings: AlgorithmConfig) -> bool:
    return failed_below(whole, settings.solved)


def spread(whole: Group) -> float:
    return episode_metrics([], [whole], [whole], 1.0)["spread"]


def replayed(trajectory: Trajectory) -> Trajectory:
    provenance = dataclasses.replace(trajectory.provenance, source="replay", replayed_from="old")
    return dataclasses.replace(trajectory, provenance=provenance)


# The numbers


def test_one_success_among_eight_is_the_worked_example() -> None:
    found = advantages(group(*ONE_OF_EIGHT), ARPO)
    assert [round(value, 2) for value in found] == [-0.38, -0.38, 2.65, -0.38, -0.38, -0.38, -0.38, -0.38]


def test_the_standard_deviation_of_a_sample_gives_smaller_ones() -> None:
    found = advantages(group(*ONE_OF_EIGHT), AlgorithmConfig(std="sample"))
    assert [round(value, 2) for value in found] == [-0.35, -0.35, 2.47, -0.35, -0.35, -0.35, -0.35, -0.35]


def test_the_spread_of_a_group_is_that_of_its_rewards() -> None:
    assert spread(group(*ONE_OF_EIGHT)) == pytest.approx(0.3307, abs=1e-4)
    assert spread(group(0.0, 0.0, 0.0)) == 0.0


def test_equal_rewards_teach_nothing() -> None:
    for score in (0.0, 0.3, 1.0):
        assert advantages(group(*[score] * 8), ARPO) == [0.0] * 8


def test_rewards_that_differ_by_rounding_are_equal() -> None:
    assert 0.3 - 0.1 != 0.2
    assert normalised([0.3 - 0.1, 0.2]) == [0.0, 0.0]
    assert normalised([0.0, 5e-324]) == [0.0, 0.0]  # whose standard deviation is 0
    assert normalised([0.0, 1e-6]) == [-1.0, 1.0]


@pytest.mark.parametrize("std", ["population", "sample"])
def test_fewer_than_two_rewards_cannot_be_compared(std: str) -> None:
    assert normalised([], std) == []
    assert normalised([1.0], std) == [0.0]


# What counts


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.ENV_ERROR, Outcome.ENGINE_ERROR])
def test_invalid_members_get_nothing_and_do_not_count(outcome: Outcome) -> None:
    broken = attempt("broken", None, outcome)
    found = advantages(group(broken, 1.0, broken, 0.0, 0.0, 0.0, broken), ARPO)
    assert [found[0], found[2], found[6]] == [0.0, 0.0, 0.0]
    assert [found[1], found[3], found[4], found[5]] == advantages(group(1.0, 0.0, 0.0, 0.0), ARPO)
    assert found[1] > 1.7  # a success among four: sqrt(3), and more among seven


def test_one_valid_member_is_compared_with_nobody() -> None:
    assert advantages(group(None, 1.0, None), ARPO) == [0.0, 0.0, 0.0]
    assert advantages(group(None, None), ARPO) == [0.0, 0.0]


def test_what_is_trained_on_is_the_stored_reward_and_nothing_else() -> None:
    """Whatever the score and the outcome were: a reward of one's own is one truth with the others."""
    own = [dataclasses.replace(attempt(str(i), 0.0), reward=reward) for i, reward in enumerate((0.5, -2.0, 7.0))]
    assert advantages(group(*own), ARPO) == normalised([0.5, -2.0, 7.0])
    assert spread(group(*own)) == pytest.approx(statistics.pstdev([0.5, -2.0, 7.0]))
    mixed = group(1.0, (1.0, UNPARSABLE), (0.0, CUT_OFF), 0.0)
    assert advantages(mixed, ARPO) == normalised([1.0, 0.0, -1.0, 0.0])


member = st.none() | st.tuples(
    st.integers(0, 4).map(lambda quarters: quarters / 4) | st.floats(0, 1),
    st.sampled_from([Outcome.FINISHED, Outcome.STEP_LIMIT, UNPARSABLE, CUT_OFF]),
)


@given(st.lists(member, min_size=2, max_size=16))
def test_over_valid_members_the_mean_is_0_and_the_variance_1(members: list[tuple[float, Outcome] | None]) -> None:
    whole = group(*members)
    rewards = [one.reward for one in whole.trajectories if one.reward is not None]
    assume(rewards and max(rewards) - min(rewards) > 1e-6)
    found = [
        (one.reward, value)
        for one, value in zip(whole.trajectories, advantages(whole, ARPO), strict=True)
        if one.reward is not None
    ]
    assert statistics.fmean(value for _, value in found) == pytest.approx(0, abs=1e-6)
    assert statistics.pvariance(value for _, value in found) == pytest.approx(1, abs=1e-6)
    assert [value for _, value in sorted(found)] == sorted(value for _, value in found)  # better is never less


# Replayed successes


def test_a_replayed_success_counts_like_any_other() -> None:
    filled = group(0.0, replayed(attempt("b", 1.0)), 0.0)
    assert advantages(filled, ARPO) == advantages(group(0.0, 1.0, 0.0), ARPO)


# Whole groups


def test_a_group_failed_where_no_valid_member_solved_its_task() -> None:
    assert failed(group(0.0, 0.0, None), ARPO)
    assert failed(group(0.0), ARPO)
    assert not failed(group(0.0, 1.0), ARPO)
    assert not failed(group(None, None), ARPO)  # nobody tried


def test_from_which_score_on_a_task_is_solved_is_a_setting() -> None:
    nearly = group(0.0, 0.75)
    assert failed(nearly, ARPO)
    assert not failed(nearly, AlgorithmConfig(solved=0.75))
    assert failed(nearly, AlgorithmConfig(solved=0.8))


def test_failure_is_the_word_of_the_checker_and_not_the_reward() -> None:
    malformed = group(0.0, (0.0, UNPARSABLE), 0.0)
    assert failed(malformed, ARPO) and informative(malformed, ARPO)
    unrewarded = group((1.0, UNPARSABLE), 0.0)
    assert not failed(unrewarded, ARPO) and not informative(unrewarded, ARPO)


def test_a_group_is_informative_where_valid_rewards_differ() -> None:
    assert informative(group(1.0, 0.0), ARPO)
    assert not informative(group(1.0, 1.0), ARPO)
    assert not informative(group(0.0, 0.0, None), ARPO)
    assert not informative(group(1.0, None), ARPO)


def test_only_the_turns_whose_replies_were_least_expected_are_learned() -> None:
    def turns(name: str, *surprises: float) -> Trajectory:
        one = attempt(name, 1.0 if name == "good" else 0.0)
        (step,) = one.steps
        replies = [dataclasses.replace(step.completion, logprobs=(-value, -value)) for value in surprises]
        return dataclasses.replace(one, steps=tuple(dataclasses.replace(step, completion=reply) for reply in replies))

    both = group(turns("good", 0.1, 0.9, 0.2), turns("bad", 0.8, 0.05))
    credits = for_every_token(both, [1.0, -1.0], share=0.4)
    assert [list(map(abs, one.advantages)) for one in credits] == [[0, 0, 1, 1, 0, 0], [1, 1, 0, 0]]
    assert surprising(both, 1.0) == [[True] * 3, [True] * 2]
    assert surprising(both, 0.01) == [[False, True, False], [False] * 2]  # at least one
    broken = dataclasses.replace(turns("broken", 3.0, 3.0, 3.0), outcome=Outcome.ENV_ERROR, score=None, reward=None)
    three = group(*both.trajectories, broken)  # what a machine broke off does not take the places of others
    assert surprising(three, 0.4)[:2] == surprising(both, 0.4)


def test_a_group_is_solved_by_all_only_where_somebody_tried() -> None:
    assert solved_by_all(group(1.0, None, 1.0), 1.0)
    assert not solved_by_all(group(1.0, 0.5), 1.0)
    assert not solved_by_all(group(None, None), 1.0)


def test_a_pull_to_the_start_holds_episodes_without_an_advantage_too_and_makes_no_group_teach() -> None:
    equal, broken = group(0.0, 0.0, None), group(1.0, 0.0, None)
    pulled, free = (make_algorithm(AlgorithmConfig(name="grpo", kl=kl), 0) for kl in (0.1, 0.0))
    assert [list(one.advantages) for one in pulled.advantages(equal)] == [[0.0] * 2, [0.0] * 2, []]
    assert [list(one.advantages) for one in free.advantages(equal)] == [[], [], []]
    assert pulled.advantages(broken) == free.advantages(broken)
    assert not pulled.accept(equal) and pulled.accept(broken)
