"""Comparing methods: intervals that hold the truth, differences that see through lucky seeds and hard tasks."""

import itertools

import numpy as np
import pytest

from arpo.bench import compare_table
from arpo.evaluation import compare
from arpo.evaluation.compare import Rates
from arpo.evaluation.run import Evaluation, Trial
from arpo.evaluation.statistics import wilson
from arpo.types import Outcome
from fake_env import make_task


def test_resampling_is_what_drawing_seeds_and_tasks_in_every_possible_way_comes_to() -> None:
    rates = np.array([[0.1, 0.9, 0.4], [0.3, 0.2, 0.8]])
    every = [
        np.mean([rates[s, t] for s in seeds for t in tasks])
        for seeds in itertools.product(range(2), repeat=2)
        for tasks in itertools.product(range(3), repeat=3)
    ]
    draws = compare.resampled(rates)
    assert len(draws) == compare.RESAMPLES and np.array_equal(draws, compare.resampled(rates))
    assert draws.mean() == pytest.approx(np.mean(every), abs=0.01)
    assert draws.std() == pytest.approx(np.std(every), rel=0.05)
    for edge in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7):  # the whole distribution, not only its moments
        assert (draws < edge).mean() == pytest.approx(np.mean(np.array(every) < edge), abs=0.03)


def test_the_standard_error_is_that_of_means_of_new_seeds_and_tasks() -> None:
    rng = np.random.default_rng(2)
    tables = [simulated(rng, 4, 12, 0.1, 0.2, 0.3) for _ in range(3000)]
    of_means = np.var([table.mean() for table in tables])
    told = np.mean([compare._standard_error(table)[0] ** 2 for table in tables])
    assert told == pytest.approx(of_means, rel=0.1)
    # Where one thing varies it is the textbook's: s / sqrt(n), n - 1.
    column = np.array([[0.1], [0.4], [0.2], [0.9]])
    for table in (column, column.T):
        std, degrees = compare._standard_error(table)
        assert std == pytest.approx(column.std(ddof=1) / 2) and degrees == 3


def simulated(rng: np.random.Generator, seeds: int, tasks: int, by_seed: float, by_task: float, noise: float) -> Rates:
    parts = ((by_seed, (seeds, 1)), (by_task, (1, tasks)), (noise, (seeds, tasks)))
    return 0.5 + np.asarray(sum(size * rng.standard_normal(shape) for size, shape in parts))


@pytest.mark.parametrize(
    ("by_seed", "by_task", "noise"), [(0.1, 0.05, 0.1), (0.03, 0.05, 0.3), (0.0, 0.2, 0.1)], ids=str
)
def test_the_interval_holds_the_truth_as_often_as_it_says(
    by_seed: float, by_task: float, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever varies most: seeds, single trials or tasks. A plain bootstrap would come to 83, 98 and 94 %."""
    monkeypatch.setattr(compare, "RESAMPLES", 400)
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        low, high = compare.estimate(simulated(rng, 5, 32, by_seed, by_task, noise), least=-9.0).ci95
        held += low <= 0.5 <= high
    print(f"held {held / 4:.0f} %")
    assert 0.91 <= held / 400 <= 0.985


def test_the_interval_lies_about_the_mean_within_what_is_possible() -> None:
    rates = np.random.default_rng(3).choice([0.0, 0.0, 0.0, 1.0], size=(3, 5))
    found = compare.estimate(rates)
    assert 0.0 <= found.ci95[0] < found.mean == rates.mean() < found.ci95[1] <= 1.0
    assert compare.estimate(np.zeros((3, 32))).ci95 == pytest.approx(wilson(0.0, 32))
    assert compare.estimate(np.ones((3, 32))).ci95 == pytest.approx(wilson(1.0, 32))
    assert compare.estimate(np.array([[0.3]])) == compare.Estimate(0.3, (0.0, 1.0))


def test_a_difference_is_seen_that_lucky_seeds_and_hard_tasks_hide() -> None:
    rng = np.random.default_rng(1)
    both = rng.uniform(0, 0.8, (5, 1)) * rng.uniform(0, 1, (1, 40))
    one, other = both + 0.1, both
    found = compare.difference(one, other)
    assert found.mean == pytest.approx(0.1) and 0 < found.ci95[0] < 0.1 < found.ci95[1] < 0.2
    low, high = compare.estimate(one).ci95
    assert low < other.mean() < high
    assert compare.difference(other, one).mean == pytest.approx(-0.1)


@pytest.mark.parametrize("value", [0.0, 0.25, -0.5, 1.0, -1.0])
def test_equal_differences_leave_room_for_tasks_that_were_not_seen(value: float) -> None:
    low, high = compare.estimate(np.full((3, 12), value), least=-1.0).ci95
    assert -1 <= low <= value <= high <= 1
    assert (low < value or value == -1) and (value < high or value == 1)
    wider = compare.estimate(np.full((3, 6), value), least=-1.0).ci95
    assert wider[0] <= low and high <= wider[1] and wider != (low, high)  # of fewer tasks less is known
    rounded = np.full((3, 12), value) + np.linspace(-1e-12, 1e-12, 12)
    assert compare.estimate(rounded, least=-1.0).ci95 == pytest.approx((low, high))


@pytest.mark.parametrize("share", [0.01, 0.03, 0.1])
def test_where_few_tasks_change_the_truth_is_inside_also_when_none_of_them_is_seen(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With (0, 0) for samples in which nothing changed it would be 28, 63 and 87 %."""
    monkeypatch.setattr(compare, "RESAMPLES", 400)
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(400):
        changed = (rng.random((1, 32)) < share).astype(float)
        low, high = compare.difference(changed, np.zeros((1, 32))).ci95
        held += low <= share <= high
    print(f"held {held / 4:.0f} %")
    assert held / 400 >= 0.89


def test_seeds_that_are_each_others_opposite_are_not_sure_of_anything() -> None:
    low, high = compare.estimate(np.array([[1.0, -1.0], [-1.0, 1.0]]), least=-1.0).ci95
    assert low < 0 < high


def evaluation(*scores: tuple[float | None, ...]) -> Evaluation:
    """A tuple of trials for each task."""
    return Evaluation(
        tuple(
            Trial(make_task(f"press-{i}"), k, Outcome.ENV_ERROR if score is None else Outcome.FINISHED, score, 1)
            for i, trials in enumerate(scores)
            for k, score in enumerate(trials)
        )
    )


def test_a_gain_is_of_the_same_tasks_and_those_that_crashed_are_in_none() -> None:
    base = evaluation((0.0, 1.0), (0.0, 0.0), (1.0, None), (None, None), (1.0, 1.0))
    trained = evaluation((1.0, 1.0), (0.0, 1.0), (None, 1.0), (1.0, 1.0), (None, None))
    assert (base.crashed, trained.crashed) == (["press-3"], ["press-4"])
    found = compare.gain(base, trained)
    assert found is not None
    assert found == compare.difference(np.array([[1.0, 0.5, 1.0]]), np.array([[0.5, 0.0, 1.0]]))
    assert compare.gain(evaluation((None,), (1.0,)), evaluation((1.0,), (None,))) is None


def test_the_gain_on_one_task_is_that_of_its_trials() -> None:
    found = compare.gain(evaluation((0.0, 0.0, None, 1.0) * 4), evaluation((1.0, 1.0, 1.0, 1.0) * 4))
    assert found == compare.difference(np.ones((1, 12)), np.array([[0.0, 0.0, 1.0] * 4]))
    assert found is not None and 0 < found.ci95[0] < found.mean


@pytest.mark.parametrize(("tasks", "trials"), [(12, 16), (32, 4), (16, 1)])
def test_the_interval_of_a_gain_holds_the_truth_as_often_as_it_says(
    tasks: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tasks are learned and some are not, on which the agent was of all kinds before."""
    monkeypatch.setattr(compare, "RESAMPLES", 400)
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(400):
        before = rng.beta(0.5, 1.0, (1, tasks))
        after = before + (1 - before) * rng.choice([0.0, 0.8], (1, tasks))
        one, other = (rng.binomial(trials, rates) / trials for rates in (after, before))
        low, high = compare.difference(one, other).ci95
        held += low <= (2 / 3) * 0.4 <= high
    print(f"held {held / 4:.0f} %")
    assert 0.91 <= held / 400 <= 0.99


def test_a_single_success_is_not_clear_of_none() -> None:
    one = np.zeros((5, 32))
    one[2, 7] = 1.0
    low, high = compare.difference(one, np.zeros((5, 32))).ci95
    assert low < 0 < 1 / 160 < high
    assert compare.estimate(one).ci95[0] == 0.0


def test_what_was_not_judged_alike_is_refused() -> None:
    with pytest.raises(ValueError, match="not the same seeds and tasks"):
        compare.difference(np.zeros((5, 3)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match="different tasks"):
        compare_table.table_of([{"a": 1.0}, {"b": 1.0}])
    assert compare_table.table_of([{"b": 1.0, "a": 0.0}, {"a": 0.5, "b": 0.25}]).tolist() == [[0.0, 1.0], [0.5, 0.25]]


def test_tasks_are_lost_that_the_base_mostly_solved_and_the_trained_agents_mostly_do_not() -> None:
    base = np.array([[1.0, 1.0, 0.25, 0.0], [1.0, 0.0, 0.5, 0.0]])
    lost, gained = compare_table.changed(base, np.array([[0.25, 0.5, 0.0, 1.0], [0.5, 0.5, 0.0, 0.0]]))
    assert lost.tolist() == [True, False, False, False]
    assert gained.tolist() == [False, False, False, True]
    lost, gained = compare_table.changed(base, base)
    assert not lost.any() and not gained.any()


def row(*values: float) -> Rates:
    return np.array([values])


@pytest.mark.parametrize(
    ("one", "other", "p_value"),
    [
        ((1, 1, 1), (0, 0, 0), 2 / 8),  # +++ and --- of eight
        ((1, 1, 1, 0), (0, 0, 0, 1), 10 / 16),  # sums of four signs: 4, 2, 2, 2, 2 and their negatives reach 2
        ((1, 1, 1, 0.5, 0.5), (0, 0, 0, 0.5, 0.5), 2 / 8),  # tasks that do not differ say nothing
        ((0.75, 0.5), (0.5, 0.0), 2 / 4),  # 0.25 + 0.5 is reached by both signs alike alone
        ((0.3,), (0.3,), 1.0),
        ((1,), (0,), 1.0),  # of one task nothing can be told
    ],
)
def test_the_permutation_test_is_what_counting_by_hand_gives(
    one: tuple[float, ...], other: tuple[float, ...], p_value: float
) -> None:
    assert compare.permutation_test(row(*one), row(*other)) == compare.Permuted(p_value, exact=True)
    assert compare.permutation_test(row(*other), row(*one)).p_value == p_value


def test_of_many_tasks_a_sample_of_all_signs_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    one, other = rng.integers(0, 5, (2, 1, 14)) / 4
    exact = compare.permutation_test(one, other)
    monkeypatch.setattr(compare, "EXACT", 4)
    drawn = compare.permutation_test(one, other)
    assert exact.exact and not drawn.exact and drawn == compare.permutation_test(one, other)
    assert drawn.p_value == pytest.approx(exact.p_value, abs=0.01)
    many = np.ones((1, 60))
    assert compare.permutation_test(many, 0 * many).p_value == 1 / (compare.DRAWS + 1)  # never 0


def test_where_two_agents_are_alike_few_p_values_are_small() -> None:
    rng, small = np.random.default_rng(7), 0
    for _ in range(400):
        rates = rng.beta(0.5, 1.0, (1, 12))
        one, other = (rng.binomial(4, rates) / 4 for _ in range(2))
        small += compare.permutation_test(one, other).p_value <= 0.05
    print(f"{small / 4:.1f} % at most 0.05")
    assert small / 400 <= 0.08
