"""Intervals come from whole blocks, weighted by their tokens, and repeat with the seed."""

import numpy as np
import pytest

from tasks.model.bootstrap import interval, resampled_ratios


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for trial in range(100):
        values = random.normal(3.0, 1.0, 40) * 10
        low, high = interval(resampled_ratios(values, np.full(40, 10), 300, trial), 0.95)
        covered += low < 3.0 < high
    assert 86 <= covered <= 100


def test_ratios_are_of_sums_not_means_of_ratios() -> None:
    ratios = resampled_ratios(np.array([10.0, 900.0]), np.array([10, 300]), 400, 5)
    assert set(np.round(ratios, 6)) == {1.0, 3.0, round(910 / 310, 6)}


def test_equal_seeds_give_equal_intervals_and_others_do_not() -> None:
    values = np.random.default_rng(1).normal(2, 1, 30)
    first, second, third = (resampled_ratios(values, np.ones(30, int), 200, seed) for seed in (7, 7, 8))
    assert np.array_equal(first, second) and not np.array_equal(first, third)
    assert interval(first, 0.5)[0] > interval(first, 0.95)[0]
    assert values.mean() == pytest.approx(first.mean(), abs=0.1)
