"""Each limiter against an example that is computed by hand."""

import math

import pytest

from hivemind_addon.lab.sim.limiters import (
    Ban,
    Bucket,
    Cap,
    HonestHeader,
    Outage,
    Ramp,
    SlidingCounter,
    SlidingLog,
    Window,
)

REQUEST = 1


def take(limiter, *instants, units=REQUEST):
    for at in instants:
        assert limiter.wait_s(at, units) == 0
        limiter.take(at, units)


def test_a_window_by_the_clock_begins_anew_at_its_own_instants():
    window = Window(2, 10, begins_at=-4)
    take(window, 1, 5.5)
    assert window.wait_s(5.6, REQUEST) == pytest.approx(0.4)
    assert window.standing(5.6) == HonestHeader(2, 0, pytest.approx(0.4))
    take(window, 6, 6.1)
    assert window.wait_s(6.1, REQUEST) == pytest.approx(9.9)
    assert window.wait_s(40, REQUEST) == 0


def test_a_window_may_begin_with_the_first_call():
    window = Window(2, 10, begins_at=None)
    assert window.standing(3) == HonestHeader(2, 2, 10)
    take(window, 3, 9)
    assert window.wait_s(9, REQUEST) == 4
    take(window, 20)
    assert window.standing(21) == HonestHeader(2, 1, 9)


def test_a_window_counts_units():
    window = Window(100, 10)
    take(window, 0, units=70)
    assert window.wait_s(1, 40) == 9
    assert window.wait_s(1, 30) == 0


def test_a_limit_that_falls_below_what_is_used_refuses_until_the_next_window():
    window = Window(5, 10)
    take(window, 0, 1, 2)
    window.resize(2, 3)
    assert window.wait_s(3, REQUEST) == 7
    assert window.standing(3).remaining == 0


def test_a_log_forgets_each_one_in_its_own_time():
    log = SlidingLog(3, 10)
    take(log, 0, 1, 5)
    assert log.wait_s(6, REQUEST) == 4
    assert log.wait_s(6, 2) == 5
    assert log.wait_s(6, 4) == math.inf
    take(log, 10)
    assert log.standing(10) == HonestHeader(3, 0, 1)


def test_a_log_that_counts_refusals_keeps_shut_whoever_hammers():
    log = SlidingLog(1, 10, counts_refusals=True)
    take(log, 0)
    log.refuse(9, REQUEST)
    assert log.wait_s(10, REQUEST) == 9
    forgiving = SlidingLog(1, 10)
    take(forgiving, 0)
    forgiving.refuse(9, REQUEST)
    assert forgiving.wait_s(10, REQUEST) == 0


def test_a_counter_weighs_the_last_period_by_what_still_overlaps():
    counter = SlidingCounter(10, 10)
    for _ in range(8):
        take(counter, 1)
    take(counter, 12.5, 12.5, 12.5, 12.5)  # 8 · 0.75 = 6, and 4
    assert counter.standing(12.5) == HonestHeader(10, 0, 7.5)
    assert counter.wait_s(12.5, REQUEST) == pytest.approx(1.25)  # 8 · 0.625 = 5
    take(counter, 13.75)
    assert counter.wait_s(13.75, 6) == pytest.approx(6.25 + 2)  # of the next period, when 5 · 0.8 = 4
    assert counter.wait_s(100, 10) == 0


def test_a_bucket_is_refilled_all_the_time_and_never_runs_over():
    bucket = Bucket(60, 60)
    assert bucket.wait_s(100, 60) == 0
    bucket.take(100, 60)
    assert bucket.wait_s(100, REQUEST) == 1
    assert bucket.standing(110) == HonestHeader(60, 10, 50)
    assert bucket.wait_s(110, 61) == math.inf


def test_the_size_of_a_bucket_is_what_goes_at_once():
    spacing = Bucket(120, 60, size=1)
    take(spacing, 7)
    assert spacing.wait_s(7.1, REQUEST) == pytest.approx(0.4)
    assert spacing.wait_s(90, REQUEST) == 0
    spacing.take(90, REQUEST)
    assert spacing.wait_s(90, REQUEST) == pytest.approx(0.5)


def test_a_bucket_that_counts_refusals_is_emptied_by_them_down_to_a_bound():
    bucket = Bucket(60, 60, size=2, counts_refusals=True)
    take(bucket, 0, 0)
    bucket.refuse(0, REQUEST)
    assert bucket.wait_s(0, REQUEST) == 2
    for _ in range(9):
        bucket.refuse(0, REQUEST)
    assert bucket.wait_s(0, REQUEST) == 3


def test_a_bucket_whose_limit_changes_keeps_what_is_in_it():
    bucket = Bucket(60, 60)
    bucket.take(0, 50)
    bucket.resize(120, 0)
    assert bucket.standing(0) == HonestHeader(120, 10, 55)
    bucket.resize(6, 0)
    assert bucket.standing(0).remaining == 6


def test_a_cap_counts_what_runs():
    cap = Cap(2)
    take(cap, 0, 1)
    assert cap.wait_s(2, REQUEST) == math.inf
    cap.end(3)
    assert (cap.wait_s(3, REQUEST), cap.taken(3)) == (0, 1)
    cap.resize(1, 4)
    assert cap.wait_s(4, REQUEST) == math.inf


def test_a_slot_may_stay_taken_after_the_end():
    cap = Cap(2, linger_s=5)
    take(cap, 0, 0)
    cap.end(1)
    cap.end(2)
    assert (cap.wait_s(3, REQUEST), cap.taken(3)) == (3, 2)
    assert (cap.wait_s(6, REQUEST), cap.taken(6)) == (0, 1)
    cap.resize(1, 6)
    assert cap.wait_s(6, REQUEST) == 1


def test_a_ban_follows_refusals_that_come_too_close():
    ban = Ban(3, 10, lasts_s=45)
    for at in (0, 6, 12):
        ban.refuse(at, REQUEST)
        assert ban.wait_s(at, REQUEST) == 0
    ban.refuse(13, REQUEST)
    assert ban.wait_s(20, REQUEST) == 38
    ban.refuse(50, REQUEST)
    assert ban.wait_s(58, REQUEST) == 0


def test_an_outage_has_its_time():
    outage = Outage(20, 30)
    assert [outage.wait_s(at, REQUEST) for at in (19, 20, 45, 50)] == [0, 30, 5, 0]


def test_a_ramp_gives_as_much_more_as_the_time_before_proves():
    ramp = Ramp(2, 10, growth=1.5)
    take(ramp, 0, 1)
    assert ramp.wait_s(4, REQUEST) == 6
    take(ramp, 10)
    assert ramp.wait_s(10.5, REQUEST) == 0.5
    take(ramp, 11, 11)  # 1.5 · 2, of which one is taken
    assert ramp.wait_s(11, REQUEST) == 9
    assert ramp.standing(20) == HonestHeader(3, 1, 10)
    take(ramp, 21, 21, 21, 21)  # 1.5 · 3
    assert ramp.wait_s(21, REQUEST) == 10
    assert ramp.wait_s(50, 2) == 0
