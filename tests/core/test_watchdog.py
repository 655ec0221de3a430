from hivemind_addon.core.ticket import PoolKey
from hivemind_addon.core.watchdog import FirstBytes

POOL = PoolKey(host="api.test", account="key-1", model_group="m")


def silent_s(first_bytes, pool=POOL):
    return first_bytes.silent_s(pool, least_s=120, factor=10)


def after(*seconds):
    first_bytes = FirstBytes()
    for one in seconds:
        first_bytes.note(POOL, one)
    return first_bytes


def test_an_unknown_pool_has_the_least_patience():
    assert silent_s(FirstBytes()) == 120


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


def test_old_answers_are_forgotten():
    assert silent_s(after(*[60.0] * 100, *[1.0] * 200)) == 120


def test_pools_do_not_learn_from_each_other():
    other = PoolKey(host="other.test", account="key-1", model_group="m")
    assert silent_s(after(*[60.0] * 100), other) == 120


def test_the_number_of_pools_is_bounded():
    first_bytes = after(*[60.0] * 100)
    for index in range(300):
        first_bytes.note(PoolKey(host=f"h{index}", account="a", model_group="m"), 1.0)
    assert silent_s(first_bytes) == 120
