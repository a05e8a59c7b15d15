"""Comparing methods: intervals that hold the truth, differences that see through lucky seeds and hard tasks."""

import numpy as np
import pytest

from arpo.evaluation import compare


def test_the_interval_holds_the_truth_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds and tasks both vary; a bootstrap over few of either is a little too narrow, never far off."""
    monkeypatch.setattr(compare, "DRAWS", 300)
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        rates = 0.5 + 0.1 * rng.standard_normal((5, 1)) + 0.2 * rng.standard_normal((1, 32))
        low, high = compare.estimate(rates + 0.05 * rng.standard_normal((5, 32))).ci95
        held += low <= 0.5 <= high
    assert 0.8 < held / 200 <= 1.0


def test_a_difference_is_seen_that_lucky_seeds_and_hard_tasks_hide() -> None:
    rng = np.random.default_rng(1)
    both = rng.uniform(0, 0.8, (5, 1)) * rng.uniform(0, 1, (1, 40))
    one, other = both + 0.1, both
    assert compare.difference(one, other).mean == pytest.approx(0.1)
    low, high = compare.difference(one, other).ci95
    assert low == pytest.approx(0.1) and high == pytest.approx(0.1)
    low, high = compare.estimate(one).ci95
    assert low < other.mean() < high


def test_what_was_not_judged_alike_is_refused() -> None:
    with pytest.raises(ValueError, match="not the same seeds and tasks"):
        compare.difference(np.zeros((5, 3)), np.zeros((4, 3)))
    with pytest.raises(ValueError, match="different tasks"):
        compare.table_of([{"a": 1.0}, {"b": 1.0}])
    assert compare.table_of([{"b": 1.0, "a": 0.0}, {"a": 0.5, "b": 0.25}]).tolist() == [[0.0, 1.0], [0.5, 0.25]]


def test_tasks_are_lost_that_the_base_mostly_solved_and_the_trained_agent_mostly_does_not() -> None:
    base = np.array([[1.0, 0.5, 0.25, 0.0]])
    assert compare.lost(base, np.array([[0.25, 0.5, 0.0, 0.0]])) == 1.0
    assert compare.lost(base, np.array([[0.25, 0.25, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0]])) == 1.0
