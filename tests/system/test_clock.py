from hivemind_addon.system.clock import SystemClock


def test_monotonic_time_never_goes_back():
    clock = SystemClock()
    first = clock.monotonic()
    assert clock.monotonic() >= first


def test_wall_time_is_an_epoch():
    assert SystemClock().wall() > 1.7e9


def test_time_goes_on_in_a_sleep_of_which_being_awake_counts_nothing():
    clock = SystemClock()
    # The least of a few: between the two clocks that it reads the machine may be busy with others.
    asleep_s = [min(clock.monotonic() - clock.awake() for _ in range(9)) for _ in range(2)]
    assert asleep_s[0] > -0.1
    assert abs(asleep_s[1] - asleep_s[0]) < 0.5
