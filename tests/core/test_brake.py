import random

import pytest

from hivemind_addon.core.brake import Brake, Lesson


def make() -> Brake:
    return Brake(rng=random.Random(4))


def refuse(brake: Brake, now: float, *, sent: int = 1, **more) -> Lesson:
    for _ in range(sent):
        brake.sent(now)
    given = {"retry_after_s": None, "explained": False, **more}
    return brake.refused(admitted_at=now, now=now + 0.05, **given)


def test_an_unexplained_refusal_with_a_long_retry_after_is_a_windows_end():
    brake = make()
    assert refuse(brake, 100, sent=11, retry_after_s=30) == Lesson(paused=True, paced=False, quota=True)
    assert brake.quota.limit == 10
    assert brake.pace.rate is None


@pytest.mark.parametrize("retry_after_s", [None, 1.0, 5.0])
def test_an_unexplained_refusal_with_a_short_or_no_retry_after_sets_a_pace(retry_after_s):
    brake = make()
    lesson = refuse(brake, 100, sent=11, retry_after_s=retry_after_s)
    assert (lesson.paced, lesson.quota) == (True, False)
    assert brake.pace.rate == 5.5
    assert brake.passes_at(100) > 100


def test_meters_that_explain_a_refusal_need_nothing_else():
    brake = make()
    assert refuse(brake, 100, explained=True) == Lesson(paused=False, paced=False, quota=False)
    assert brake.passes_at(101) == 101


def test_meters_that_explain_it_afterwards_again_and_again_are_wrong():
    brake = make()
    paced = [refuse(brake, 100.0 + 10 * n, explained=True).paced for n in range(6)]
    assert paced == [False] * 5 + [True]


def test_two_bursts_of_refusals_are_enough():
    brake = make()
    for now in (100, 110):
        for _ in range(4):
            brake.sent(now)
        lessons = [brake.refused(admitted_at=now, now=now + 0.05, retry_after_s=None, explained=True) for _ in range(4)]
    assert lessons[-1].paced


def test_one_burst_however_large_is_not():
    brake = make()
    for _ in range(30):
        brake.sent(100)
    for _ in range(30):
        assert not brake.refused(admitted_at=100, now=100.05, retry_after_s=None, explained=True).paced


def test_refusals_now_and_then_are_not():
    brake = make()
    for n in range(50):
        assert not refuse(brake, 100.0 * n, explained=True).paced


def test_the_more_careful_of_two_counts_for_both():
    one, other = make(), make()
    refuse(other, 100, sent=3, retry_after_s=2)
    refuse(other, 200, sent=9, retry_after_s=30)
    one.absorb(other)
    assert (one.pause.until, one.pace.rate, one.quota.limit) == (
        other.pause.until,
        other.pace.rate,
        other.quota.limit,
    )


def test_a_sleep_ends_all_of_it():
    brake = make()
    refuse(brake, 100, sent=3, retry_after_s=2)
    refuse(brake, 101, sent=9, retry_after_s=30)
    brake.clock_jumped(3600)
    assert brake.pause.until < 101
    assert brake.passes_at(101) == 101


def test_what_an_attempt_costs_where_nothing_else_is_known_is_the_time_until_the_next_may_go():
    one = Brake(rng=random.Random(0))
    assert one.attempt_s == 0
    one.pace.resume(0.5)
    assert one.attempt_s == 2
    one.quota.resume(limit=20, window_s=60)
    assert one.attempt_s == 3


def test_an_overload_did_not_count_against_the_quota():
    one = Brake(rng=random.Random(0))
    one.quota.resume(limit=2, window_s=60)
    one.sent(0)
    one.sent(1)
    assert one.passes_at(2) > 2
    one.overloaded(admitted_at=1)
    assert one.passes_at(2) == 2
