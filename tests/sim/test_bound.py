import math

import pytest

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.bound import Spent, lower_bound, lower_bound_of_models
from hivemind_addon.lab.sim.limits import Limit, LimitKind, ModelScope, SimAllowance
from hivemind_addon.lab.sim.provider import ProviderSettings
from tests.cases import over

REQUESTS, OUTPUT = Dimension.REQUESTS, Dimension.OUTPUT_TOKENS


def spent(units=None, *, path_s=0.0, service_s=0.0):
    return Spent(units=units or {}, longest_path_s=path_s, service_s=service_s)


def test_nothing_is_faster_than_the_longest_conversation():
    bound = lower_bound(spent(path_s=9), [], concurrency=None)
    assert (bound.bound_s, bound.why) == (9, "the longest conversation")


def test_service_time_is_shared_by_the_slots():
    bound = lower_bound(spent(path_s=9, service_s=100), [], concurrency=5)
    assert (bound.bound_s, bound.why) == (20, "5 slots")


@over(("units", "bound_s"), [(10, 0), (30, 20), (35, 25)])
def test_a_bucket_begins_full_and_then_refills(units, bound_s):
    limit = Limit(REQUESTS, 10, 10, LimitKind.BUCKET)
    assert lower_bound(spent({REQUESTS: units}), [limit], concurrency=1).bound_s == bound_s


@over(("units", "bound_s"), [(10, 0), (11, 10), (30, 20), (31, 30)])
def test_a_window_gives_its_whole_limit_at_each_beginning(units, bound_s):
    limit = Limit(REQUESTS, 10, 10, LimitKind.WINDOW)
    assert lower_bound(spent({REQUESTS: units}), [limit], concurrency=1).bound_s == bound_s


def test_output_of_the_last_calls_may_be_charged_beyond_the_limit():
    limit = Limit(OUTPUT, 10, 10, LimitKind.BUCKET)
    assert lower_bound(spent({OUTPUT: 30}), [limit], concurrency=None).bound_s == 20
    assert lower_bound(spent({OUTPUT: 30}), [limit], concurrency=None, late_units=5).bound_s == 15


@over("kind", LimitKind)
@over("units", [1, 7, 10, 23, 40])
def test_the_greediest_caller_reaches_the_bound_and_never_beats_it(kind, units):
    """The provider's own allowance, asked for one unit after the other, each as early as it fits."""
    limit = Limit(REQUESTS, 10, 10, kind)
    now, allowance = 0.0, SimAllowance(limit, 0.0)
    for _ in range(units):
        now += allowance.fits_in_s(1, now)
        allowance.take(1, now)
    assert math.isclose(lower_bound(spent({REQUESTS: units}), [limit], concurrency=None).bound_s, now, abs_tol=1e-4)


BUCKET = Limit(Dimension.REQUESTS, 10, 10.0, LimitKind.BUCKET)
WINDOW = Limit(Dimension.REQUESTS, 10, 10.0, LimitKind.WINDOW)


def of_requests(units, limit, outages=()):
    spent = Spent(units={Dimension.REQUESTS: units}, longest_path_s=0.0, service_s=0.0)
    return lower_bound(spent, [limit], concurrency=None, outages=outages).bound_s


@over(
    ("limit", "units", "outage", "bound_s"),
    [
        (BUCKET, 15, (20.0, 30.0), 5.0),
        # 10 at once and 5 by 5 s; the bucket is full again at the end of the outage.
        (BUCKET, 20, (5.0, 25.0), 25.0),
        (BUCKET, 28, (5.0, 25.0), 28.0),
        (BUCKET, 15, (0.0, 20.0), 25.0),
        (WINDOW, 15, (12.0, 14.0), 10.0),
        (WINDOW, 15, (8.0, 14.0), 14.0),
        (WINDOW, 15, (5.0, 25.0), 25.0),
        (WINDOW, 25, (5.0, 25.0), 30.0),
    ],
)
def test_an_outage_lets_nothing_through_and_replenishes_limits(limit, units, outage, bound_s):
    assert of_requests(units, limit, [outage]) == pytest.approx(bound_s)


def test_what_is_left_at_the_last_reset_still_has_to_be_said():
    # Four agents, four turns each of 1 s of thinking and 2 s of service: six of the sixteen calls go after 10 s, so
    # one agent has two of them left.
    spent = Spent(units={Dimension.REQUESTS: 16}, longest_path_s=12.0, service_s=0.0, turns_s=[[(1.0, 2.0)] * 4] * 4)
    bound = lower_bound(spent, [WINDOW], concurrency=None)
    assert bound.bound_s == pytest.approx(10 + 2 + 1 + 2)
    assert bound.why == "the last conversations"


def test_an_agents_turns_alone_are_no_more_than_its_conversation():
    spent = Spent(units={Dimension.REQUESTS: 4}, longest_path_s=12.0, service_s=0.0, turns_s=[[(1.0, 2.0)] * 4])
    assert lower_bound(spent, [WINDOW], concurrency=None).bound_s == 12.0


@over(
    ("scope", "slots", "bound_s"),
    [
        # 30 calls of three models: 10 a minute for all of them, for two families (20 and 10 calls), for each model.
        (ModelScope.KEY, ModelScope.MODEL, 120),
        (ModelScope.FAMILY, ModelScope.MODEL, 60),
        (ModelScope.MODEL, ModelScope.MODEL, 40),
        (ModelScope.MODEL, ModelScope.FAMILY, 80),
        (ModelScope.MODEL, ModelScope.KEY, 120),
    ],
)
def test_models_that_share_a_limit_or_slots_are_bound_together(scope, slots, bound_s):
    settings = ProviderSettings(
        limits=(Limit(REQUESTS, 10, 60, LimitKind.WINDOW, scope=scope),),
        families=(("a", "b"),),
        concurrency=1,
        concurrency_scope=slots,
    )
    one = spent({REQUESTS: 10}, service_s=40)
    bound = lower_bound_of_models({"a": one, "b": one, "c": one}, settings, concurrency=settings.concurrency)
    assert bound.bound_s == bound_s
