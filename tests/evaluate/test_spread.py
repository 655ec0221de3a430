import random

import pytest

from hivemind_addon.lab.evaluate.spread import Mean, Spread


def test_a_spread_is_median_least_and_most():
    assert Spread.of([3, 1, 2, 9]) == Spread(2.5, 1, 9)


def test_the_interval_holds_the_mean_and_is_the_same_each_time():
    values = [random.Random(1).gauss(10, 2) for _ in range(1)] + [8.0, 9.0, 11.0, 12.0, 10.0]
    mean = Mean.of(values)
    assert mean.low < mean.mean < mean.high
    assert Mean.of(values) == mean


def test_equal_values_leave_no_doubt():
    assert Mean.of([4.0, 4.0]) == Mean(4.0, 4.0, 4.0)
    assert Mean.of([4.0]).is_sure
    assert not Mean.of([0.0, 0.0]).is_sure


@pytest.mark.parametrize(
    ("values", "sure"), [([5, 6, 7, 5, 6], True), ([-5, 6, -7, 5, 1], False), ([-3, -4, -5], True)]
)
def test_a_mean_is_sure_when_zero_is_outside(values, sure):
    assert Mean.of([float(value) for value in values]).is_sure is sure


def test_the_interval_covers_the_truth_mostly():
    rng = random.Random(3)
    inside = 0
    for _ in range(60):
        mean = Mean.of([rng.gauss(0, 1) for _ in range(20)])
        inside += mean.low <= 0 <= mean.high
    assert inside >= 50
