import math

import pytest

from hivemind_addon.core.ticket import Dimension
from hivemind_addon.sim.bound import Spent, lower_bound
from hivemind_addon.sim.limits import Allowance, Limit, LimitKind

REQUESTS, OUTPUT = Dimension.REQUESTS, Dimension.OUTPUT_TOKENS


def spent(units=None, *, path_s=0.0, service_s=0.0):
    return Spent(units=units or {}, longest_path_s=path_s, service_s=service_s)


def test_nothing_is_faster_than_the_longest_conversation():
    bound = lower_bound(spent(path_s=9), [], concurrency=None)
    assert (bound.bound_s, bound.why) == (9, "the longest conversation")


def test_service_time_is_shared_by_the_slots():
    bound = lower_bound(spent(path_s=9, service_s=100), [], concurrency=5)
    assert (bound.bound_s, bound.why) == (20, "5 slots")


@pytest.mark.parametrize(("units", "bound_s"), [(10, 0), (30, 20), (35, 25)])
def test_a_bucket_begins_full_and_then_refills(units, bound_s):
    limit = Limit(REQUESTS, 10, 10, LimitKind.BUCKET)
    assert lower_bound(spent({REQUESTS: units}), [limit], concurrency=1).bound_s == bound_s


@pytest.mark.parametrize(("units", "bound_s"), [(10, 0), (11, 10), (30, 20), (31, 30)])
def test_a_window_gives_its_whole_limit_at_each_beginning(units, bound_s):
    limit = Limit(REQUESTS, 10, 10, LimitKind.WINDOW)
    assert lower_bound(spent({REQUESTS: units}), [limit], concurrency=1).bound_s == bound_s


def test_output_of_the_last_calls_may_be_charged_beyond_the_limit():
    limit = Limit(OUTPUT, 10, 10, LimitKind.BUCKET)
    assert lower_bound(spent({OUTPUT: 30}), [limit], concurrency=None).bound_s == 20
    assert lower_bound(spent({OUTPUT: 30}), [limit], concurrency=None, late_units=5).bound_s == 15


@pytest.mark.parametrize("kind", LimitKind)
@pytest.mark.parametrize("units", [1, 7, 10, 23, 40])
def test_the_greediest_caller_reaches_the_bound_and_never_beats_it(kind, units):
    """The provider's own allowance, asked for one unit after the other, each as early as it fits."""
    limit = Limit(REQUESTS, 10, 10, kind)
    now, allowance = 0.0, Allowance(limit, 0.0)
    for _ in range(units):
        now += allowance.fits_in_s(1, now)
        allowance.take(1, now)
    assert math.isclose(lower_bound(spent({REQUESTS: units}), [limit], concurrency=None).bound_s, now, abs_tol=1e-4)
