import pytest

from hivemind_addon.api.ticket import Demand, Dimension, Reading
from hivemind_addon.proxy.core.meter import Meter
from hivemind_addon.proxy.core.meters import ServiceTime, dominant_s, reading_s


def meter(dimension: Dimension, limit: float, window_s: float = 60) -> Meter:
    made = Meter.of(Reading(meter=dimension.value, dimension=dimension, window_s=window_s, limit=limit), 0)
    assert made is not None
    return made


REQUESTS = meter(Dimension.REQUESTS, 60)
INPUT = meter(Dimension.INPUT_TOKENS, 60_000)


def test_without_meters_an_attempt_takes_its_part_of_the_slots():
    assert dominant_s(Demand(input_tokens=10**6), [], service_s=10, slots=4) == 2.5


@pytest.mark.parametrize(
    ("tokens", "cost_s"),
    [(500, 1.0), (5_000, 5.0)],
    ids=["the request itself is the bottleneck", "its input is the bottleneck"],
)
def test_the_largest_part_of_any_limit_counts(tokens, cost_s):
    assert dominant_s(Demand(input_tokens=tokens), [REQUESTS, INPUT], service_s=1, slots=10) == pytest.approx(cost_s)


def test_more_than_a_whole_limit_takes_the_whole_limit():
    assert dominant_s(Demand(input_tokens=10**9), [INPUT], service_s=0, slots=1) == pytest.approx(60)


def test_a_limit_per_day_is_no_bottleneck_of_the_moment():
    daily = meter(Dimension.REQUESTS, 100, window_s=86_400)
    assert dominant_s(Demand(), [daily], service_s=0.5, slots=1) == 0.5


def test_reading_input_takes_the_meter_or_at_least_the_model_its_time():
    assert reading_s(6_000, [INPUT, REQUESTS]) == pytest.approx(6)
    assert reading_s(6_000, [REQUESTS]) == pytest.approx(0.6)


def test_the_expected_service_follows_the_successes():
    service = ServiceTime()
    service.succeeded(2)
    assert service.mean_s == 2
    for _ in range(100):
        service.succeeded(5)
    assert service.mean_s == pytest.approx(5, rel=0.01)
