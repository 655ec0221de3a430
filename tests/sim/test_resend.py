import random

from hivemind_addon.lab.sim.resend import SdkBackoff


def test_a_retry_after_is_obeyed_up_to_a_minute():
    rng = random.Random(1)
    assert SdkBackoff().wait_s(0, 7.0, rng) == 7.0
    assert SdkBackoff().wait_s(0, 60.0, rng) == 60.0
    for useless in (None, 0.0, -3.0, 61.0, float("nan"), float("inf")):
        assert SdkBackoff().wait_s(0, useless, rng) <= SdkBackoff().first_s


def test_backoff_doubles_up_to_its_maximum_with_a_quarter_of_jitter():
    for retry, most in enumerate((0.5, 1, 2, 4, 8, 8)):
        waits = [SdkBackoff().wait_s(retry, None, random.Random(seed)) for seed in range(50)]
        assert 0.75 * most <= min(waits) < max(waits) <= most
