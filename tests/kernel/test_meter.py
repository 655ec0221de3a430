import math
import pickle
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel.limits.meter import Meter, MeterKind, is_usable
from hivemind_addon.kernel.values.ticket import Dimension, Reading
from tests.kernel.samples import requests_reading


def reading(
    remaining: float | None = None,
    reset_in_s: float | None = None,
    *,
    limit: float | None = 60,
    dimension: Dimension = Dimension.REQUESTS,
    granularity: float = 0,
) -> Reading:
    return Reading(
        meter="m",
        dimension=dimension,
        window_s=60,
        limit=limit,
        remaining=remaining,
        reset_in_s=reset_in_s,
        granularity=granularity,
    )


def meter_of(first: Reading, now: float = 0) -> Meter:
    meter = Meter.of(first, now)
    assert meter is not None
    meter.learn(first, stamp=0, sent_at=now, now=now)
    return meter


def bucket(level: float = 0) -> Meter:
    """One unit a second."""
    meter = meter_of(reading(level, 60 - level))
    assert meter.kind is MeterKind.BUCKET
    return meter


def window(level: float = 10, resets_at: float = 59) -> Meter:
    meter = meter_of(reading(59, resets_at))
    meter.learn(reading(level, resets_at), stamp=0, sent_at=0, now=0)
    assert meter.kind is MeterKind.WINDOW
    return meter


class TestKind:
    def test_a_reset_that_grows_with_what_was_taken_is_a_buckets_and_a_full_meter_tells_nothing(self):
        assert meter_of(reading(30, 30)).kind is MeterKind.BUCKET
        assert meter_of(reading(59, 45)).kind is MeterKind.WINDOW
        assert meter_of(reading(59, 1)).kind is MeterKind.UNKNOWN
        assert meter_of(reading(60, 40)).kind is MeterKind.UNKNOWN

    def test_a_reset_that_drifts_in_small_steps_is_a_bucket(self):
        """Under steady load each reading's reset is close to the last one's, and far from the first one's."""
        meter = meter_of(reading(59, 1))
        for step in range(1, 10):
            taken = 1 + 2.5 * step
            meter.learn(reading(60 - taken, taken), stamp=step, sent_at=step / 2, now=step / 2)
        assert meter.kind is MeterKind.BUCKET

    def test_a_reset_that_stays_within_the_windows_rounding_is_no_bucket(self):
        meter = meter_of(reading(59, 1))
        meter.learn(reading(40, 20), stamp=1, sent_at=0, now=0)
        told = meter.kind
        meter = meter_of(reading(59, 20.4))
        for step in range(1, 10):
            resets_in_s = 20 - step / 10 + (step % 2)
            meter.learn(reading(60 - 2 * step, resets_in_s), stamp=step, sent_at=step / 10, now=step / 10)
        assert (told, meter.kind) == (MeterKind.BUCKET, MeterKind.WINDOW)

    def test_later_evidence_replaces_earlier(self):
        meter = meter_of(reading(30, 30))
        assert meter.learn(reading(29, 10), stamp=1, sent_at=1, now=1)
        assert meter.kind is MeterKind.WINDOW
        assert meter.learn(reading(20, 40), stamp=2, sent_at=2, now=2)
        assert meter.kind is MeterKind.BUCKET

    def test_a_window_that_happens_to_look_like_a_bucket_stays_a_window(self):
        meter = window(level=50, resets_at=50)
        assert not meter.learn(reading(28, 32), stamp=1, sent_at=18, now=18)
        assert meter.kind is MeterKind.WINDOW

    def test_without_a_reset_the_limit_is_taken_for_a_rate(self):
        meter = meter_of(reading(0))
        assert meter.kind is MeterKind.UNKNOWN
        assert meter.earliest(5, 0) == pytest.approx(5)

    def test_a_header_that_was_written_at_admission_may_be_late(self):
        meter = Meter.of(reading(), 0)
        meter.learn(reading(30, 25), stamp=0, sent_at=0, now=5)
        assert meter.kind is MeterKind.BUCKET


class TestBucket:
    def test_it_is_refilled_all_the_time_and_never_above_its_limit(self):
        meter = bucket(10)
        assert meter.level(5) == pytest.approx(15)
        assert meter.level(1e6) == 60

    def test_earliest_is_the_exact_instant(self):
        meter = bucket(10)
        assert meter.earliest(10, 0) == 0
        assert meter.earliest(12, 0) == pytest.approx(2)
        assert meter.earliest(12, 2) == 2

    def test_a_reservation_takes_from_the_level(self):
        meter = bucket(10)
        meter.reserve(stamp=1, units=4, now=0)
        assert meter.level(0) == 6
        assert meter.reserved == 4

    def test_full_in_says_when_the_level_is_at_the_limit(self):
        assert bucket(10).full_in_s(0) == pytest.approx(50)
        assert bucket(10).full_in_s(100) == 0


class TestWindow:
    def test_it_is_full_a_little_after_its_reset(self):
        meter = window(level=0, resets_at=50)
        assert meter.earliest(1, 10) == pytest.approx(50.1)
        assert meter.level(50.05) == 0
        assert meter.level(50.1) == 60

    def test_it_repeats(self):
        meter = window(level=0, resets_at=50)
        meter.reserve(stamp=1, units=60, now=51)
        assert meter.earliest(1, 51) == pytest.approx(110.1)
        assert meter.full_in_s(51) == pytest.approx(59.1)

    def test_what_was_sent_just_before_the_reset_may_be_booked_after_it(self):
        meter = window(level=10, resets_at=50)
        meter.reserve(stamp=1, units=1, now=20)
        meter.reserve(stamp=2, units=3, now=49)
        assert meter.level(51) == 57

    def test_what_a_header_has_booked_before_the_reset_is_not_carried_over(self):
        meter = window(level=10, resets_at=50)
        meter.reserve(stamp=1, units=3, now=49)
        meter.learn(reading(7, 0.5), stamp=1, sent_at=49, now=49.5)
        assert meter.level(51) == 60

    def test_output_in_flight_is_carried_over(self):
        meter = meter_of(reading(10, 50, dimension=Dimension.OUTPUT_TOKENS, limit=100))
        meter.kind = MeterKind.WINDOW
        meter.reserve(stamp=1, units=8, now=5)
        assert meter.level(51) == 92
        meter.settle(stamp=1, settled_stamp=2, charged=3, now=52)
        assert meter.level(52) == 97

    def test_more_than_is_left_after_the_carry_waits_one_more_window(self):
        meter = window(level=10, resets_at=50)
        meter.reserve(stamp=1, units=3, now=49)
        assert meter.earliest(58, 49) == pytest.approx(110.1)
        assert meter.earliest(57, 49) == pytest.approx(50.1)

    def test_of_several_words_about_one_reset_the_earliest_counts(self):
        meter = window(level=40, resets_at=50)
        meter.learn(reading(20, 42), stamp=1, sent_at=8, now=10)
        assert meter.earliest(60, 10) == pytest.approx(50.1)

    def test_a_window_that_is_found_unturned_gets_a_longer_guard(self):
        meter = window(level=0, resets_at=50)
        meter.reserve(stamp=1, units=1, now=50.2)
        meter.learn(reading(0, 0), stamp=1, sent_at=50.2, now=50.4)
        assert meter.earliest(1, 50.4) == pytest.approx(51.5)
        meter.learn(reading(59, 59), stamp=1, sent_at=51.5, now=52)
        assert meter.earliest(60, 52) == pytest.approx(112.1)

    def test_an_inferred_reset_gives_way_to_a_told_one(self):
        meter = window(level=40, resets_at=50)
        meter.level(51)
        meter.learn(reading(0, 60), stamp=1, sent_at=51, now=51)
        assert meter.earliest(1, 51) == pytest.approx(111.1)


class TestHeaders:
    def test_costs_that_a_header_cannot_know_are_taken_off(self):
        meter = window(10)
        for stamp in (1, 2, 3):
            meter.reserve(stamp=stamp, units=1, now=stamp)
        meter.learn(reading(40, 54), stamp=1, sent_at=1, now=5)
        assert meter.level(5) == 38

    def test_an_older_header_than_the_newest_is_ignored(self):
        meter = window(10)
        meter.reserve(stamp=1, units=1, now=1)
        meter.reserve(stamp=2, units=1, now=8)
        meter.learn(reading(40, 50), stamp=2, sent_at=8, now=9)
        meter.learn(reading(3, 49), stamp=1, sent_at=1, now=10)
        assert meter.level(10) == 40

    def test_output_is_unknown_to_headers_until_an_attempt_is_sent_after_its_settle(self):
        meter = bucket_of_output = meter_of(reading(1000, 30, dimension=Dimension.OUTPUT_TOKENS, limit=2000))
        assert bucket_of_output.kind is MeterKind.BUCKET
        meter.reserve(stamp=1, units=500, now=0)
        meter.reserve(stamp=2, units=100, now=0)
        meter.settle(stamp=1, settled_stamp=3, charged=300, now=0)
        meter.learn(reading(900, 33, dimension=Dimension.OUTPUT_TOKENS, limit=2000), stamp=2, sent_at=0, now=0)
        assert meter.level(0) == 900 - 300 - 100
        meter.reserve(stamp=4, units=50, now=0)
        meter.learn(reading(700, 39, dimension=Dimension.OUTPUT_TOKENS, limit=2000), stamp=4, sent_at=0, now=0)
        assert meter.level(0) == 700 - 100 - 50

    def test_a_settle_replaces_the_reserved_cost_where_it_is_told_and_no_header_has_booked_it(self):
        for charged, booked, level in ((3, False, 7), (None, False, 2), (1, True, 9)):
            meter = bucket(10)
            meter.reserve(stamp=1, units=8, now=0)
            if booked:
                meter.learn(reading(9, 51), stamp=1, sent_at=0, now=0)
            meter.settle(stamp=1, settled_stamp=2, charged=charged, now=0)
            assert (meter.level(0), meter.reserved) == (level, 0)

    def test_half_of_the_rounding_stays_in_reserve(self):
        meter = meter_of(reading(20_000, 30, limit=40_000, granularity=1000))
        assert meter.level(0) == 19_500

    def test_a_new_limit_is_learned(self):
        meter = bucket(10)
        assert meter.learn(reading(20, 10, limit=30), stamp=1, sent_at=0, now=0)
        assert meter.limit == 30

    def test_a_limit_alone_caps_the_level(self):
        meter = bucket(50)
        meter.learn(reading(limit=30), stamp=1, sent_at=0, now=0)
        assert meter.level(0) == 30

    def test_attempts_of_before_the_first_reading_are_adopted(self):
        meter = Meter.of(reading(), 0)
        meter.adopt(stamp=1, units=1, admitted_at=-1, now=0)
        meter.adopt(stamp=2, units=1, admitted_at=-1, now=0)
        meter.learn(reading(40, 50), stamp=1, sent_at=-1, now=0)
        assert meter.level(0) == 39
        assert meter.reserved == 2


class TestTooWide:
    def test_a_demand_above_the_limit_fits_when_the_meter_is_full(self):
        meter = bucket(10)
        assert meter.earliest(1000, 0) == pytest.approx(50)
        assert meter.earliest(1000, 50) == 50

    def test_not_while_anything_of_it_is_reserved(self):
        meter = bucket(50)
        meter.reserve(stamp=1, units=1, now=0)
        assert meter.earliest(1000, 100) == math.inf
        meter.settle(stamp=1, settled_stamp=2, charged=None, now=100)
        assert meter.earliest(1000, 100) == 100

    def test_its_debt_is_never_more_than_one_limit(self):
        meter = bucket(50)
        meter.reserve(stamp=1, units=10**9, now=10)
        meter.settle(stamp=1, settled_stamp=2, charged=10**12, now=10)
        assert meter.earliest(1, 10) == pytest.approx(71)


def test_of_a_level_in_doubt_one_goes_until_a_header_tells_it():
    meter = Meter.resume(bucket().learned, 1000)
    meter.doubt_level(1000)
    assert meter.earliest(10, 1000) == 1000
    meter.reserve(stamp=1, units=10, now=1000)
    assert meter.earliest(10, 1001) == 1015, "nobody waits longer for a head"
    assert meter.earliest(10, 1015) == 1015
    meter.settle(stamp=1, settled_stamp=2, charged=10, now=1001)
    assert meter.earliest(10, 1001) == 1001, "it told nothing, the next one may"
    meter.reserve(stamp=3, units=10, now=1001)
    meter.learn(reading(40, 20), stamp=3, sent_at=1001, now=1002)
    assert meter.earliest(10, 1002) == 1002


def test_nothing_always_fits():
    meter = bucket(0)
    meter.reserve(stamp=1, units=50, now=0)
    assert meter.earliest(0, 0) == 0


def test_output_in_flight_stays_taken_while_a_bucket_refills():
    meter = meter_of(reading(100, 0, dimension=Dimension.OUTPUT_TOKENS, limit=100))
    meter.kind = MeterKind.BUCKET
    meter.reserve(stamp=1, units=40, now=0)
    assert meter.level(1000) == 60
    meter.reserve(stamp=2, units=60, now=0)
    assert meter.level(1000) == 0
    assert meter.earliest(1, 1000) == math.inf


def test_what_is_left_of_output_lets_a_longer_answer_pass():
    """Its length is a guess, and nobody takes it before it is there."""
    meter = meter_of(reading(50, 50, dimension=Dimension.OUTPUT_TOKENS, limit=100))
    meter.kind = MeterKind.WINDOW
    assert meter.earliest(80, 1) == 1
    meter.reserve(stamp=1, units=80, now=1)
    assert meter.earliest(1, 1) > 1


def test_nobody_is_waited_for_who_may_have_gone():
    """What others took fades; else a pool would wait for minutes for its last units."""
    meter = bucket(10)
    meter.learn(reading(0, 60), stamp=1, sent_at=11, now=11)
    assert meter.others_per_s(11) > 0.6
    assert meter.earliest(30, 11) <= 11 + 30 + 21 + 3


def test_settled_costs_do_not_pile_up_without_headers():
    meter = bucket(0)
    for stamp in range(1, 20_001, 2):
        meter.reserve(stamp=stamp, units=1, now=stamp)
        if stamp > 1:
            meter.settle(stamp=stamp - 2, settled_stamp=stamp + 1, charged=None, now=stamp)
    assert len(pickle.dumps(meter)) < 4500


def test_absurd_numbers_are_ignored():
    for absurd in (math.nan, math.inf, -math.inf, -1.0, 1e300):
        meter = bucket(10)
        for wrong in (reading(absurd, 5), reading(5, absurd), reading(limit=absurd)):
            meter.learn(wrong, stamp=1, sent_at=0, now=0)
            assert math.isfinite(meter.level(0))
            assert meter.limit == 60


def test_without_a_limit_there_is_no_meter():
    limits = (0.0, -1.0, 5e-324, math.nan, None)
    assert [limit for limit in limits if Meter.of(requests_reading(limit=limit), 0) is not None] == []


def test_a_reading_without_a_window_or_with_nothing_in_it_is_of_no_use():
    windows_s = (0.0, 5e-324, -60.0, math.nan, math.inf)
    assert [one for one in windows_s if is_usable(requests_reading(remaining=5, window_s=one))] == []
    assert not is_usable(requests_reading(limit=-1, remaining=-1))
    assert is_usable(requests_reading(limit=None, remaining=4))


NUMBERS = st.one_of(
    st.none(), st.floats(), st.floats(0, 200), st.sampled_from([0.0, -1.0, 1e-300, 60.0, math.inf, math.nan])
)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 500), st.floats(0, 100)), max_size=12),
    st.sampled_from(list(Dimension)),
)
def test_no_sequence_of_readings_breaks_it(steps, dimension):
    meter = Meter.of(reading(30, 30, dimension=dimension), 0)
    assert meter is not None
    now, stamp = 0.0, 0
    for limit, remaining, reset_in_s, granularity, units, wait_s in steps:
        stamp += 2
        now += wait_s
        meter.reserve(stamp=stamp, units=units, now=now)
        told = Reading(
            meter="m",
            dimension=dimension,
            window_s=60,
            limit=limit,
            remaining=remaining,
            reset_in_s=reset_in_s,
            granularity=granularity or 0,
        )
        sent_at, now = now, now + 0.5
        meter.learn(told, stamp=stamp, sent_at=sent_at, now=now)
        assert -meter.limit - meter.reserved <= meter.level(now) <= meter.limit
        if stamp % 4:
            meter.settle(stamp=stamp, settled_stamp=stamp + 1, charged=units * 2, now=now)
        assert meter.reserved >= 0
        fits_at = meter.earliest(units, now)
        if math.isfinite(fits_at):
            now = fits_at
            assert meter.earliest(units, now) == now


class TestOthers:
    def spend(self, meter: Meter, *, per_s: float, until: int) -> None:
        """We take one unit every second, somebody else takes theirs; one way is a tenth of a second."""
        level = meter.level(0)
        for second in range(1, until):
            meter.reserve(stamp=second, units=1, now=second)
            level = min(60, level + 1) - 1 - per_s
            meter.learn(reading(level, 60 - level), stamp=second, sent_at=second, now=second + 0.1)
            meter.settle(stamp=second, settled_stamp=second, charged=None, now=second + 0.2)

    def test_nobody_else_is_seen_where_nobody_is(self):
        meter = bucket(50)
        self.spend(meter, per_s=0, until=60)
        assert meter.others_per_s(60) < 0.02

    def test_what_others_take_is_averaged(self):
        meter = bucket(55)
        self.spend(meter, per_s=0.5, until=90)
        assert meter.others_per_s(90) == pytest.approx(0.5, rel=0.2)

    def test_a_bucket_counts_on_what_they_leave_and_keeps_their_next_unit(self):
        meter = bucket(55)
        self.spend(meter, per_s=0.5, until=90)
        level = meter.level(90)
        expected_s = (level + 2 + 1 - level) / (1 - meter.others_per_s(90))
        assert meter.earliest(math.ceil(level + 2), 90) - 90 == pytest.approx(expected_s, abs=2)

    def test_they_are_forgotten_when_they_have_gone(self):
        meter = bucket(55)
        self.spend(meter, per_s=0.5, until=60)
        assert meter.others_per_s(300) < 0.01

    def test_the_last_unit_of_a_window_is_not_kept_for_a_phantom(self):
        meter = window(level=10, resets_at=50)
        meter.reserve(stamp=1, units=1, now=1)
        meter.learn(reading(8, 48.9), stamp=1, sent_at=1, now=1.1)
        assert meter.earliest(8, 1.1) == 1.1


class TestFailures:
    def fail_and_hear(self, meter: Meter, told: float, *, stamp: int) -> None:
        meter.reserve(stamp=stamp, units=4, now=1)
        meter.settle(stamp=stamp, settled_stamp=stamp + 1, charged=None, now=1, failed=True)
        meter.reserve(stamp=stamp + 2, units=1, now=1)
        meter.learn(reading(told, 58), stamp=stamp + 2, sent_at=1, now=1)
        meter.settle(stamp=stamp + 2, settled_stamp=stamp + 3, charged=None, now=1)

    @pytest.mark.parametrize("told", [39, 35])
    def test_they_count_until_a_header_shows_the_level(self, told):
        meter = window(level=40, resets_at=59)
        meter.reserve(stamp=1, units=4, now=1)
        meter.settle(stamp=1, settled_stamp=2, charged=None, now=1, failed=True)
        assert meter.level(1) == 36
        self.fail_and_hear(meter, told, stamp=3)
        assert meter.level(1) == told

    def test_they_are_nobody_elses_spending(self):
        meter = window(level=40, resets_at=59)
        before = meter.others_per_s(1)
        self.fail_and_hear(meter, 39, stamp=1)
        self.fail_and_hear(meter, 34, stamp=11)
        assert meter.others_per_s(1) == before


class TestResume:
    def test_all_but_the_level_is_there_again(self):
        meter = window(level=5, resets_at=50)
        again = Meter.resume(meter.learned, 1000)
        assert again.learned == meter.learned
        assert again.level(1000) == 60

    def test_the_first_header_tells_the_level(self):
        again = Meter.resume(window().learned, 1000)
        again.learn(reading(7, 30), stamp=0, sent_at=1000, now=1000)
        assert again.level(1000) == 7
        assert again.others_per_s(1000) == 0
        assert again.earliest(8, 1000) == pytest.approx(1030.1)


class TestWindowThatIsNotAsStated:
    """The limit is stated for 60 s, and it is not so."""

    @pytest.mark.parametrize(
        ("window_s", "lag_s"), [(10, 0.0), (20, 0.0), (300, 0.0), (300, 4.0), (600, 4.0), (86_400, 4.0)]
    )
    def test_a_bucket_is_found_by_its_seconds_a_unit(self, window_s, lag_s):
        per_unit_s = window_s / 75
        meter = meter_of(reading(74, per_unit_s, limit=75))
        for taken in range(4, 75, 10):
            sent_at = taken / 100
            told_s = taken * per_unit_s - lag_s  # an instant, read later
            if told_s > 0:
                meter.learn(reading(75 - taken, told_s, limit=75), stamp=taken, sent_at=sent_at, now=sent_at + lag_s)
        assert meter.kind is MeterKind.BUCKET
        assert meter.window_s == pytest.approx(window_s, rel=0.01)

    @pytest.mark.parametrize("window_s", [10, 15, 20, 30])
    @pytest.mark.parametrize("limit", [4, 5, 8])
    def test_resets_in_whole_seconds_promise_no_unit_of_a_small_bucket_early(self, window_s, limit):
        """The provider rounds the reset up, and the reader counts to the end of that second."""
        rng, per_unit_s, early = random.Random(limit), window_s / limit, []
        level, now, meter, at = float(limit), 100.3, None, 0.0
        for stamp in range(60):
            sent_at = max(now + rng.uniform(0, 2), at)
            level, now = min(limit, level + (sent_at - now) / per_unit_s), sent_at
            if level < 0.999:
                early.append((stamp, level))
                level = 0.0
            else:
                level -= 1
            told = reading(int(level), math.ceil(now + (limit - level) * per_unit_s) + 1 - now, limit=limit)
            meter = meter or meter_of(told, now=now)
            meter.reserve(stamp=stamp, units=1, now=now)
            meter.learn(told, stamp=stamp, sent_at=now, now=now)
            meter.settle(stamp=stamp, settled_stamp=stamp, charged=1, now=now)
            at = meter.earliest(1, now)
        assert early == []

    def test_a_fixed_window_is_not_taken_for_a_slow_bucket(self):
        meter = meter_of(reading(74, 290, limit=75))
        for taken in range(2, 75):
            meter.learn(reading(75 - taken, 290 - taken, limit=75), stamp=taken, sent_at=taken, now=taken)
        assert meter.kind is MeterKind.WINDOW

    def test_it_goes_back_to_what_is_stated_when_readings_speak_against_it(self):
        meter = meter_of(reading(65, 80, limit=75))
        meter.learn(reading(45, 240, limit=75), stamp=1, sent_at=1, now=1)
        assert (meter.kind, meter.window_s) == (MeterKind.BUCKET, 600)
        meter.learn(reading(40, 50, limit=75), stamp=2, sent_at=2, now=2)
        assert (meter.kind, meter.window_s) == (MeterKind.WINDOW, 60)

    def test_what_a_wrong_rate_foretold_is_no_neighbour(self):
        meter = meter_of(reading(70, 40, limit=75))
        meter.learn(reading(45, 240, limit=75), stamp=1, sent_at=1, now=1)
        assert meter.kind is MeterKind.BUCKET
        assert meter.others_per_s(1) == 0

    def test_rounding_is_no_neighbour(self):
        meter = meter_of(reading(4000, 0, limit=8000, granularity=1000), now=0.1)
        for step, told in enumerate([3000, 4000, 3000, 4000, 3000], start=1):
            meter.learn(reading(told, 0, limit=8000, granularity=1000), stamp=step, sent_at=0.1, now=0.1)
        assert meter.others_per_s(0.1) == 0


def test_a_fixed_window_is_as_long_as_headers_state_now_whatever_was_learned():
    resumed = Meter.resume(window().learned, 1000)
    resumed.learn(replace(reading(40, 20), window_s=30), stamp=1, sent_at=1000, now=1000)
    assert resumed.window_s == 30


def test_only_what_was_assumed_is_in_doubt():
    for charged, hoped_at in ((None, 1), (6, 59)):
        meter = window(level=10, resets_at=59)
        meter.reserve(stamp=1, units=6, now=1)
        meter.settle(stamp=1, settled_stamp=2, charged=charged, now=1)
        assert meter.earliest(8, 1) >= 59, charged
        assert meter.earliest(8, 1, hoped=True) == pytest.approx(hoped_at, abs=1), charged
