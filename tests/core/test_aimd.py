from hivemind_addon.core.aimd import AimdLimit, ConcurrencySettings


def limit_of(initial: int = 4, maximum: int = 256) -> AimdLimit:
    return AimdLimit(ConcurrencySettings(initial=initial, maximum=maximum))


def test_slow_start_adds_one_slot_per_success():
    aimd = limit_of(4)
    for _ in range(3):
        aimd.success(filled=True)
    assert aimd.limit == 7


def test_an_idle_pool_proves_nothing():
    aimd = limit_of(4)
    aimd.success(filled=False)
    assert aimd.limit == 4


def test_half_the_limit_in_flight_fills_it():
    aimd = limit_of(5)
    assert not aimd.fills(2)
    assert aimd.fills(3)


def test_an_overload_multiplies_and_ends_slow_start():
    aimd = limit_of(10)
    aimd.overload(admitted_at=0, now=1)
    assert aimd.limit == 7
    for _ in range(7):
        aimd.success(filled=True)
    assert aimd.limit == 8


def test_one_generation_decreases_once():
    aimd = limit_of(100)
    for admitted_at in (0, 0.5, 0.9):
        aimd.overload(admitted_at=admitted_at, now=1)
    assert aimd.limit == 70
    aimd.overload(admitted_at=1.1, now=2)
    assert aimd.limit == 49


def test_it_never_falls_below_one_nor_rises_above_the_maximum():
    aimd = limit_of(2, maximum=3)
    for second in range(5):
        aimd.overload(admitted_at=second, now=second)
    assert aimd.limit == 1
    for _ in range(50):
        aimd.success(filled=True)
    assert aimd.limit == 3


def test_after_an_outage_it_starts_at_two_and_grows_fast():
    aimd = limit_of(50)
    aimd.overload(admitted_at=0, now=1)
    aimd.recover()
    assert aimd.limit == 2
    aimd.success(filled=True)
    assert aimd.limit == 3


def test_after_an_outage_a_limit_of_one_stays_one():
    aimd = limit_of(1)
    aimd.recover()
    assert aimd.limit == 1
