import random

import pytest

from hivemind_addon.core.pause import Pause


def make() -> Pause:
    return Pause(rng=random.Random(3))


def refuse(
    pause: Pause,
    now: float,
    *,
    admitted_at: float | None = None,
    retry_after_s: float | None = None,
    explained: bool = False,
) -> float:
    """How long it lasts from now."""
    sent_at = now if admitted_at is None else admitted_at
    pause.refused(admitted_at=sent_at, retry_after_s=retry_after_s, explained=explained, now=now)
    return pause.until - now


def test_it_lasts_as_long_as_told_and_a_little_jitter():
    assert 7.05 <= refuse(make(), 100, retry_after_s=7) <= 7.25


def test_it_never_gets_shorter():
    pause = make()
    refuse(pause, 100, retry_after_s=20)
    assert refuse(pause, 101, retry_after_s=1) >= 19


def test_without_a_word_it_doubles_up_to_thirty_seconds():
    pause = make()
    now, waits = 100.0, []
    for _ in range(8):
        waits.append(refuse(pause, now))
        now = pause.until
    for wait_s, nominal_s in zip(waits, [1, 2, 4, 8, 16, 30, 30, 30], strict=True):
        assert 0.75 * nominal_s <= wait_s <= 1.25 * nominal_s


def test_one_burst_doubles_once():
    pause = make()
    for _ in range(10):
        wait_s = refuse(pause, 100, admitted_at=99)
        assert wait_s <= 2.5
    pause = make()
    refuse(pause, 100, admitted_at=99)
    assert refuse(pause, 100.1, admitted_at=99.5) <= 1.25


def test_a_success_since_the_refusal_ends_the_doubling():
    pause = make()
    for now in (100, 110, 120):
        refuse(pause, now)
    pause.succeeded(admitted_at=119)
    assert refuse(pause, 130) > 5
    pause.succeeded(admitted_at=131)
    assert refuse(pause, 150) <= 1.25


def test_meters_that_explain_it_need_no_pause():
    assert refuse(make(), 100, explained=True) == float("-inf")


def test_a_second_refusal_shows_that_the_meters_are_wrong():
    pause = make()
    refuse(pause, 100, explained=True)
    assert 1.5 <= refuse(pause, 101, explained=True) <= 2.5


@pytest.mark.parametrize("absurd", [float("nan"), float("inf"), -5.0, 0.0])
def test_an_impossible_retry_after_counts_as_none(absurd):
    assert 0.75 <= refuse(make(), 100, retry_after_s=absurd) <= 1.25


def test_a_retry_after_of_years_is_a_day():
    assert refuse(make(), 100, retry_after_s=1e12) <= 86_401
