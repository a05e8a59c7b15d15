"""Success rates and their intervals: known values, the edges, and how often the truth is inside."""

import itertools
import math
import random
import statistics

import pytest

from arpo.evaluation.statistics import pass_at, student, success, wilson


def test_wilsons_interval_is_the_textbooks() -> None:
    assert wilson(0.5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(1.0, 32) == pytest.approx((0.8928, 1.0), abs=1e-4)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (5, 2.5706), (9, 2.2622), (31, 2.0395)]
)
def test_students_quantile_is_the_tables(degrees: int, quantile: float) -> None:
    assert student(degrees) == pytest.approx(quantile, rel=2e-3)


def test_each_task_weighs_the_same_however_many_of_its_trials_count() -> None:
    rate, _ = success([[1.0], [0.0, 0.0, 0.0]])
    assert rate == 0.5


def test_one_trial_a_task_is_a_plain_proportion_and_so_is_one_task() -> None:
    assert success([[1.0]] * 3 + [[0.0]] * 7) == (pytest.approx(0.3), pytest.approx(wilson(0.3, 10)))
    assert success([[1.0] * 3 + [0.0] * 7]) == (pytest.approx(0.3), pytest.approx(wilson(0.3, 10)))


def test_trials_that_all_agree_are_worth_one_a_task() -> None:
    apart = [[1.0]] * 16 + [[0.0]] * 16
    together = [[1.0] * 8] * 16 + [[0.0] * 8] * 16
    (_, narrow), (_, wide) = success(apart), success(together)
    assert wide == pytest.approx(narrow, abs=0.02)
    assert success([[1.0] * 8] * 32) == (1.0, wilson(1.0, 32))
    assert success([[0.0] * 8] * 32) == (0.0, wilson(0.0, 32))


def test_tasks_that_are_all_alike_are_worth_all_their_trials() -> None:
    rate, interval = success([[1.0, 0.0]] * 50)
    assert (rate, interval) == (0.5, wilson(0.5, 100, student(49)))


@pytest.mark.parametrize(("n_tasks", "a", "b"), [(5, 0.3, 0.3), (32, 0.3, 0.3), (32, 0.1, 0.9), (200, 0.1, 0.9)])
def test_the_truth_is_inside_about_95_times_in_100(n_tasks: int, a: float, b: float) -> None:
    rng = random.Random(0)
    inside, widths = 0, []
    for _ in range(400):
        rates = [rng.betavariate(a, b) for _ in range(n_tasks)]
        _, (low, high) = success([[float(rng.random() < rate) for _ in range(8)] for rate in rates])
        inside += low <= a / (a + b) <= high
        widths.append(high - low)
    print(f"{inside / 400:.1%} inside, width {statistics.fmean(widths):.3f}")
    assert inside / 400 >= 0.92


@pytest.mark.parametrize(("n", "c", "k"), [(4, 0, 2), (4, 1, 2), (4, 2, 4), (5, 2, 2), (8, 3, 4), (8, 8, 8), (6, 1, 6)])
def test_pass_at_k_is_the_share_of_all_draws_of_k_tries_that_hold_a_success(n: int, c: int, k: int) -> None:
    tries = [i < c for i in range(n)]
    draws = [any(draw) for draw in itertools.combinations(tries, k)]
    assert pass_at([tries], k)[0] == pytest.approx(statistics.fmean(draws))


def test_pass_at_1_is_success_with_the_same_interval() -> None:
    tasks = [[True, False, False, True], [False] * 4, [True, True, False, True]]
    rate, interval = success([[float(one) for one in tries] for tries in tasks])
    assert pass_at(tasks, 1) == (pytest.approx(rate), pytest.approx(interval))


def test_pass_at_k_has_no_bias() -> None:
    """What 1 - (1 - c/n)^k would have: the mean over all that n tries can come to is the truth."""
    n, k, p = 6, 4, 0.15
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    told = sum(chance * pass_at([[i < c for i in range(n)]], k)[0] for c, chance in enumerate(chances))
    assert told == pytest.approx(1 - (1 - p) ** k)
    plain = sum(chance * (1 - (1 - c / n) ** k) for c, chance in enumerate(chances))
    assert abs(plain - (1 - (1 - p) ** k)) > 0.02


@pytest.mark.parametrize(("n_tasks", "k"), [(32, 2), (32, 4), (32, 8), (8, 4)])
def test_the_truth_of_pass_at_k_is_inside_about_95_times_in_100(n_tasks: int, k: int) -> None:
    rng, a, b = random.Random(1), 0.3, 0.9
    truth = 1 - math.prod((b + i) / (a + b + i) for i in range(k))  # the mean of 1 - (1 - rate)^k
    inside = 0
    for _ in range(400):
        rates = [rng.betavariate(a, b) for _ in range(n_tasks)]
        _, (low, high) = pass_at([[rng.random() < rate for _ in range(8)] for rate in rates], k)
        inside += low <= truth <= high
    print(f"{inside / 400:.1%} inside")
    assert inside / 400 >= 0.92
