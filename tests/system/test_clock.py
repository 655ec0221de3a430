from hivemind_addon.system.clock import SystemClock


def test_monotonic_time_never_goes_back():
    clock = SystemClock()
    first = clock.monotonic()
    assert clock.monotonic() >= first


def test_wall_time_is_an_epoch():
    assert SystemClock().wall() > 1.7e9


def test_how_long_the_machine_slept_does_not_move_while_it_is_awake():
    clock = SystemClock()
    if clock.asleep() is not None:
        # The least of a few: between the two clocks that it reads the machine may be busy with others.
        first, second = (min(clock.asleep() for _ in range(9)) for _ in range(2))
        assert second >= 0
        assert abs(second - first) < 0.5
