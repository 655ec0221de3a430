from hivemind_addon.proxy.system.clock import SystemClock


def test_time_goes_on_in_a_sleep_of_which_being_awake_counts_nothing():
    clock = SystemClock()
    # The least of a few: between the two clocks that it reads the machine may be busy with others.
    asleep_s = [min(clock.monotonic() - clock.awake() for _ in range(9)) for _ in range(2)]
    assert asleep_s[0] > -0.1
    assert abs(asleep_s[1] - asleep_s[0]) < 0.5
