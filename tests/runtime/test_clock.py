from hivemind_addon.runtime.clock import SystemClock


def test_monotonic_time_never_goes_back():
    clock = SystemClock()
    first = clock.monotonic()
    assert clock.monotonic() >= first


def test_wall_time_is_an_epoch():
    assert SystemClock().wall() > 1.7e9
