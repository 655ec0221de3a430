"""The limits of one pool together: what fits, and what an attempt costs."""

import pytest

from hivemind_addon.kernel.limits.meter import Meter
from hivemind_addon.kernel.limits.meters import Meters, ServiceTime, dominant_s, reading_s
from hivemind_addon.kernel.order.entry import InFlight
from hivemind_addon.kernel.values.ticket import Demand, Dimension, Reading
from tests.kernel.samples import SUCCESS, THROTTLED, requests_reading
from tests.kernel.test_flights import attempt, flying

INPUT = Reading("input", Dimension.INPUT_TOKENS, window_s=60, limit=6_000, remaining=3_000, reset_in_s=30)


def known(*readings: Reading) -> Meters:
    meters = Meters()
    for reading in readings:
        assert meters.learn(reading, attempt(), 5) is not None
    return meters


def fits_at(meters: Meters, demand: Demand, now: float = 5) -> float:
    return meters.fits_at(demand, now)


def test_a_new_limit_is_news_and_so_is_its_change_but_not_its_level():
    meters = Meters()
    reading = requests_reading(limit=60, remaining=30, reset_in_s=30)
    assert meters.learn(reading, attempt(), 5).name == "requests"
    assert meters.learn(requests_reading(limit=60, remaining=29, reset_in_s=31), attempt(), 5) is None
    assert meters.learn(requests_reading(limit=50, remaining=29, reset_in_s=31), attempt(), 5) is not None
    assert meters.learn(requests_reading(limit=-1, remaining=-1), attempt(), 5) is None


def test_a_demand_fits_when_the_last_of_them_has_room():
    meters = known(requests_reading(limit=60, remaining=0, reset_in_s=60), INPUT)
    assert fits_at(meters, Demand(input_tokens=100)) == pytest.approx(6)
    assert fits_at(meters, Demand(requests=0, input_tokens=3_500)) == pytest.approx(10)
    assert meters.fits_at(Demand(), 5) > 5
    assert meters.fits_at(Demand(requests=0), 5) == 5


def test_what_is_reserved_in_all_of_them_is_settled_in_all_of_them():
    meters, one = known(requests_reading(limit=60, remaining=59, reset_in_s=1), INPUT), attempt()
    meters.reserve(Demand(input_tokens=1_000), stamp=one.stamp, now=5)
    assert [view.level for view in meters.views(5)] == [58, 2_000]
    meters.settle(one, Demand(input_tokens=400), SUCCESS, stamp=2, now=5)
    assert [view.level for view in meters.views(5)] == [58, 2_600]


def test_who_got_no_answer_has_taken_no_output():
    """Nobody generates for a refused attempt, whatever else of it a provider may charge."""
    output = Reading(
        meter="output-tokens", dimension=Dimension.OUTPUT_TOKENS, window_s=60, limit=3_000, remaining=3_000
    )
    meters, one = known(requests_reading(limit=60, remaining=59, reset_in_s=1), output), attempt()
    meters.reserve(Demand(output_tokens=1_000), stamp=one.stamp, now=5)
    meters.settle(one, None, THROTTLED, stamp=2, now=5)
    assert [view.level for view in meters.views(5)] == [58, 3_000]


def test_a_limit_that_becomes_known_late_counts_what_is_in_flight():
    one = flying()
    flights = InFlight()
    meters = Meters(None, flights)
    flights.add(one)
    meters.learn(requests_reading(limit=60, remaining=59, reset_in_s=1), one.attempt, 6)
    assert [meter.reserved for meter in meters] == [1]


def test_what_was_learned_is_resumed_full():
    meters = Meters()
    meters.resume(known(INPUT).learned, 100)
    assert [(view.name, view.limit, view.level) for view in meters.views(100)] == [("input", 6_000, 6_000)]


def test_only_fixed_windows_turn():
    assert known(INPUT).next_window_at(5) is None
    meters = known(requests_reading(limit=60, remaining=59, reset_in_s=50))
    meters.learn(requests_reading(limit=60, remaining=58, reset_in_s=50), attempt(), 5)
    assert meters.next_window_at(5) == pytest.approx(55.1)


# What an attempt costs --------------------------------------------------------------------------------------------------


def meter(dimension: Dimension, limit: float, window_s: float = 60) -> Meter:
    made = Meter.of(Reading(meter=dimension.value, dimension=dimension, window_s=window_s, limit=limit), 0)
    assert made is not None
    return made


REQUESTS_METER = meter(Dimension.REQUESTS, 60)
INPUT_METER = meter(Dimension.INPUT_TOKENS, 60_000)


def test_without_meters_an_attempt_takes_its_part_of_the_slots():
    assert dominant_s(Demand(input_tokens=10**6), [], service_s=10, slots=4) == 2.5


def test_the_largest_part_of_any_limit_counts():
    """Of a short request it is the request itself, of a longer one its input."""
    for tokens, cost_s in ((500, 1.0), (5_000, 5.0)):
        cost = dominant_s(Demand(input_tokens=tokens), [REQUESTS_METER, INPUT_METER], service_s=1, slots=10)
        assert cost == pytest.approx(cost_s)


def test_more_than_a_whole_limit_takes_the_whole_limit():
    assert dominant_s(Demand(input_tokens=10**9), [INPUT_METER], service_s=0, slots=1) == pytest.approx(60)


def test_a_limit_per_day_is_no_bottleneck_of_the_moment():
    daily = meter(Dimension.REQUESTS, 100, window_s=86_400)
    assert dominant_s(Demand(), [daily], service_s=0.5, slots=1) == 0.5


def test_reading_input_takes_the_meter_or_at_least_the_model_its_time():
    assert reading_s(6_000, [INPUT_METER, REQUESTS_METER]) == pytest.approx(6)
    assert reading_s(6_000, [REQUESTS_METER]) == pytest.approx(0.6)


def test_the_expected_service_follows_the_successes():
    service = ServiceTime()
    service.succeeded(2)
    assert service.mean_s == 2
    for _ in range(100):
        service.succeeded(5)
    assert service.mean_s == pytest.approx(5, rel=0.01)
