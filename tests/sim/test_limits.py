import math
import random

import pytest

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.limits import Limit, LimitKind, SimAllowance
from tests.cases import over

BUCKET = Limit(Dimension.INPUT_TOKENS, 600, 60, LimitKind.BUCKET)
WINDOW = Limit(Dimension.REQUESTS, 10, 60, LimitKind.WINDOW)


def test_a_bucket_refills_continuously_and_never_above_its_limit():
    allowance = SimAllowance(BUCKET, 100)
    allowance.take(600, 100)
    assert [allowance.level(now) for now in (100, 101, 130, 160, 900)] == [0, 10, 300, 600, 600]


def test_a_window_gives_everything_back_at_its_end_and_nothing_before():
    allowance = SimAllowance(WINDOW, 100)
    allowance.take(10, 100)
    assert [allowance.level(now) for now in (100, 159.9, 160)] == [0, 0, 10]


def test_windows_keep_their_beat_when_nothing_happens_for_long():
    allowance = SimAllowance(WINDOW, 0)
    allowance.take(10, 190)
    assert allowance.fits_in_s(1, 190) == 50


def test_a_bucket_says_exactly_when_an_amount_fits():
    allowance = SimAllowance(BUCKET, 0)
    allowance.take(600, 0)
    assert allowance.fits_in_s(25, 0) == pytest.approx(2.5)
    assert not allowance.fits(25, 2.49)
    assert allowance.fits(25, 2.5)


def test_more_than_the_limit_never_fits():
    assert math.isinf(SimAllowance(BUCKET, 0).fits_in_s(601, 0))
    assert math.isinf(SimAllowance(WINDOW, 0).fits_in_s(11, 0))


def test_a_late_charge_may_go_below_zero_and_a_refused_call_may_not():
    late, refused = SimAllowance(BUCKET, 0), SimAllowance(BUCKET, 0)
    late.take(700, 0)
    refused.take(590, 0)
    refused.exhaust(20, 0)
    assert late.level(0) == -100
    assert refused.level(0) == 0


def test_a_refused_call_does_not_forgive_a_debt():
    allowance = SimAllowance(BUCKET, 0)
    allowance.take(700, 0)
    allowance.exhaust(1, 0)
    assert allowance.level(0) == -100


def test_full_means_the_whole_limit_for_a_bucket_and_the_end_for_a_window():
    bucket, window = SimAllowance(BUCKET, 0), SimAllowance(WINDOW, 0)
    bucket.take(60, 0)
    assert bucket.full_in_s(0) == pytest.approx(6)
    assert window.full_in_s(45) == 15


@over("seed", range(5))
def test_random_calls_are_let_through_as_an_independent_computation_says(seed):
    """Windows by counting what was taken in each; buckets by replaying all takes from the beginning."""
    rng = random.Random(seed)
    bucket, window = SimAllowance(BUCKET, 0), SimAllowance(WINDOW, 0)
    taken: list[tuple[float, float]] = []
    per_window: dict[int, int] = {}
    now = 0.0
    for _ in range(400):
        now += rng.expovariate(0.5)
        amount = rng.randrange(1, 200)

        level, at = 600.0, 0.0
        for then, much in taken:
            level, at = min(600.0, level + (then - at) * 10) - much, then
        level = min(600.0, level + (now - at) * 10)
        if abs(level - amount) > 1e-3:
            assert bucket.fits(amount, now) == (level >= amount)
        if bucket.fits(amount, now):
            bucket.take(amount, now)
            taken.append((now, amount))

        number = int(now // 60)
        assert window.fits(1, now) == (per_window.get(number, 0) < 10)
        if window.fits(1, now):
            window.take(1, now)
            per_window[number] = per_window.get(number, 0) + 1
    assert max(per_window.values()) == 10
