import pytest

from hivemind_addon.core.pace import Pace


def burst(pace: Pace, count: int, now: float, *, refused: int = 0) -> None:
    for _ in range(count):
        pace.sent(now)
    for _ in range(refused):
        pace.refused(admitted_at=now)


def paced(rate: float = 1.0) -> Pace:
    pace = Pace()
    pace.sent(0)
    pace.surprised(admitted_at=0, now=0, burst=True)
    pace.rate = rate
    return pace


def test_it_is_off_at_first():
    assert Pace().passes_at == float("-inf")


def test_a_burst_that_is_refused_makes_it_half_of_the_last_seconds_sends():
    pace = Pace()
    burst(pace, 8, 10, refused=1)
    assert pace.surprised(admitted_at=10, now=10.1, burst=True)
    assert pace.rate == 4
    assert pace.passes_at == pytest.approx(10.25)


def test_a_first_surprise_never_makes_it_slower_than_one_a_second():
    pace = Pace()
    burst(pace, 1, 10, refused=1)
    pace.surprised(admitted_at=10, now=10.1, burst=True)
    assert pace.rate == 1


def test_one_burst_counts_once():
    pace = Pace()
    burst(pace, 8, 10)
    for _ in range(5):
        pace.refused(admitted_at=10)
        pace.surprised(admitted_at=10, now=10.1, burst=True)
    assert pace.rate == 4


def test_a_further_surprise_makes_it_three_percent_slower():
    pace = paced()
    pace.sent(1)
    pace.surprised(admitted_at=1, now=1.1, burst=True)
    assert pace.rate == pytest.approx(0.97)


def test_after_enough_sends_it_is_what_was_delivered_since_the_last_surprise():
    pace = paced()
    for second in range(1, 9):
        pace.sent(second)
    pace.refused(admitted_at=8)
    pace.surprised(admitted_at=8, now=10, burst=True)
    assert pace.rate == pytest.approx(0.7)


def test_a_quiet_time_never_more_than_halves_it():
    pace = paced()
    for second in range(1, 9):
        pace.sent(second)
    pace.surprised(admitted_at=1000, now=1000, burst=True)
    assert pace.rate == 0.5


def test_where_the_burst_is_not_to_blame_it_is_what_was_delivered_within_a_minute():
    pace = Pace()
    for at in range(0, 90, 2):
        pace.sent(at)
    pace.surprised(admitted_at=88, now=90, burst=False)
    assert pace.rate == pytest.approx(29 / 60)


def test_it_recovers_slowly_and_more_slowly_after_each_failed_recovery():
    pace = paced()
    pace.succeeded(29)
    assert pace.rate == 1
    pace.succeeded(30)
    assert pace.rate == pytest.approx(1.02)
    pace.surprised(admitted_at=31, now=31, burst=True)
    slower = pace.rate
    pace.succeeded(31 + 59)
    assert pace.rate == slower
    pace.succeeded(31 + 60)
    assert pace.rate > slower


def test_of_two_paces_the_slower_is_resumed():
    pace = paced(0.5)
    pace.resume(2)
    assert pace.rate == 0.5
    pace.resume(0.2)
    assert pace.rate == 0.2


def test_a_sleep_makes_the_last_attempt_older():
    pace = paced(0.001)
    pace.clock_jumped(3600)
    assert pace.passes_at < 0
