from hivemind_addon.core.quota import Quota


def fill(quota: Quota, now: float, *, most: int = 1000) -> int:
    """Send as long as it passes; answers how many went."""
    for sent in range(most):
        if quota.passes_at(now) > now:
            return sent
        quota.sent(now)
    return most


def learned(limit: int = 10, *, now: float = 20, retry_after_s: float = 40) -> Quota:
    """A minute that began at 0."""
    quota = Quota()
    for _ in range(limit):
        quota.sent(now)
    quota.sent(now)
    quota.refused(admitted_at=now)
    assert quota.learn(retry_after_s, now)
    return quota


def test_without_a_refusal_everything_passes():
    quota = Quota()
    assert fill(quota, 0) == 1000
    assert quota.passes_at(0) == float("-inf")


def test_what_was_sent_and_not_refused_is_the_quota():
    quota = learned(10)
    assert (quota.limit, quota.window_s) == (10, 60)
    assert 60 <= quota.passes_at(20) <= 60.2


def test_refusals_that_come_one_by_one_lower_it_to_the_right_number():
    quota = Quota()
    for _ in range(12):
        quota.sent(1)
    for _ in range(3):
        quota.refused(admitted_at=1)
        quota.learn(40, 1.1)
    assert quota.limit == 9


def test_what_was_sent_before_the_window_does_not_count():
    quota = Quota()
    for at in (1, 2, 3, 70, 71):
        quota.sent(at)
    quota.learn(45, 75)
    assert quota.limit == 2


def test_a_place_that_is_kept_for_another_is_not_there():
    quota = learned(10)
    assert fill(quota, 61, most=7) == 7
    assert quota.passes_at(62, kept=2) == 62
    assert quota.passes_at(62, kept=3) > 120


def test_the_next_window_begins_with_its_first_attempt():
    quota = learned(10)
    assert fill(quota, 100) == 10
    assert quota.passes_at(100) == 160


def test_a_window_that_was_used_up_is_followed_by_a_trial_with_a_little_more():
    quota = learned(40)
    assert [fill(quota, 100), fill(quota, 200), fill(quota, 300)] == [40, 42, 44]
    assert quota.limit == 42


def test_a_trial_that_is_refused_makes_the_next_one_rarer():
    quota = learned(10)
    sizes = []
    for window in range(1, 12):
        now = 100.0 * window
        sent = fill(quota, now)
        sizes.append(sent)
        if sent > 10:
            quota.refused(admitted_at=now)
            quota.learn(60, now + 0.05)
    assert sizes == [10, 11, 10, 10, 11, 10, 10, 10, 10, 11, 10]
    assert quota.limit == 10


def test_a_retry_after_in_whole_seconds_loses_no_attempt_of_the_windows_first_second():
    quota = learned(10)
    assert fill(quota, 100, most=11) == 10
    quota.refused(admitted_at=100)
    quota.learn(60, 100.9)
    assert quota.limit == 9


def test_the_window_is_long_enough_for_the_retry_after():
    assert learned(5, retry_after_s=9).window_s == 10
    assert learned(5, retry_after_s=3000).window_s == 3600
    assert learned(5, retry_after_s=10**6).window_s == 86_400


def test_it_knows_when_the_next_window_may_begin():
    assert Quota().turns_at(5) is None
    quota = learned(10)
    assert 60 <= quota.turns_at(20) <= 60.2
    assert quota.turns_at(100) == 160


def test_a_sleep_ends_the_window():
    quota = learned(10)
    quota.clock_jumped(3600)
    assert fill(quota, 21) == 10


def test_the_smaller_quota_is_resumed():
    quota = learned(10)
    quota.resume(limit=20, window_s=60)
    assert quota.limit == 10
    quota.resume(limit=5, window_s=60)
    assert quota.limit == 5
