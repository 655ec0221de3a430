from hivemind_addon.formats.wire.watchdog import Durations
from hivemind_addon.kernel.values.ticket import PoolKey

POOL = PoolKey(host="api.test", account="key-1", model_group="m")


def silent_s(first_bytes, pool=POOL):
    return first_bytes.silent_s(pool, least_s=120, factor=10)


def after(*seconds):
    first_bytes = Durations()
    for one in seconds:
        first_bytes.note(POOL, one)
    return first_bytes


def test_an_unknown_pool_has_the_least_patience():
    assert silent_s(Durations()) == 120


def test_quick_answers_change_nothing():
    assert silent_s(after(*[2.0] * 100)) == 120


def test_slow_answers_are_waited_for_ten_times_as_long():
    assert silent_s(after(*[30.0] * 100)) == 300


def test_one_of_a_hundred_does_not_count():
    assert silent_s(after(*[2.0] * 99, 500.0)) == 120
    assert silent_s(after(*[2.0] * 98, 500.0, 500.0)) == 5000


def test_a_few_answers_say_nothing():
    assert silent_s(after(*[60.0] * 19)) == 120
    assert silent_s(after(*[60.0] * 20)) == 600


def overdue_s(durations, *, attempt=1):
    return durations.overdue_s(POOL, least_s=120, factor=3, attempt=attempt)


def test_a_plain_answer_is_waited_for_as_long_as_it_takes_while_few_are_known():
    assert overdue_s(after(*[60.0] * 19)) == float("inf")
    assert overdue_s(after(*[60.0] * 20)) == 180
    assert overdue_s(after(*[2.0] * 20)) == 120


def test_each_attempt_at_a_plain_answer_may_take_twice_as_long():
    assert [overdue_s(after(*[60.0] * 20), attempt=attempt) for attempt in (1, 2, 3)] == [180, 360, 720]


def test_old_answers_are_forgotten():
    assert silent_s(after(*[60.0] * 100, *[1.0] * 200)) == 120


def test_pools_do_not_learn_from_each_other():
    other = PoolKey(host="other.test", account="key-1", model_group="m")
    assert silent_s(after(*[60.0] * 100), other) == 120


def test_of_many_pools_those_are_forgotten_that_are_used_no_longer():
    for still_used, expected_s in ((False, 120), (True, 600)):
        first_bytes = after(*[60.0] * 100)
        for index in range(300):
            first_bytes.note(PoolKey(host=f"h{index}", account="a", model_group="m"), 1.0)
            if still_used:
                first_bytes.note(POOL, 60.0)
        assert silent_s(first_bytes) == expected_s
