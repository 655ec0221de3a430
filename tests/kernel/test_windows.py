from hivemind_addon.kernel.limits.capacity import Windows
from hivemind_addon.kernel.values.events import WindowUsed
from hivemind_addon.kernel.values.snapshot import WindowView
from hivemind_addon.kernel.values.ticket import Hints, WindowReading
from tests.kernel.samples import Bench

FIVE_HOURS = WindowReading("5h", used=0.41, status="allowed", resets_in_s=600.0)


def reading(**changes):
    return WindowReading("5h", **({"used": 0.41, "status": "allowed", "resets_in_s": 600.0} | changes))


def test_the_first_word_each_tenth_and_each_new_status_are_news():
    windows = Windows()
    assert windows.learn(reading(), 0)
    assert not windows.learn(reading(used=0.49), 1)
    assert windows.learn(reading(used=0.5), 2)
    assert windows.learn(reading(used=0.5, status="allowed_warning"), 3)
    assert windows.learn(reading(used=1.02, status="rejected"), 4)
    assert windows.learn(reading(used=float("nan"), status="rejected"), 5), "not known any more"


def test_a_window_is_shown_until_it_begins_anew():
    windows = Windows()
    windows.learn(FIVE_HOURS, 100)
    assert windows.views(200) == (WindowView("5h", 0.41, "allowed", 500.0, None),)
    assert windows.views(700) == ()


def test_one_without_a_reset_is_shown_for_good():
    windows = Windows()
    windows.learn(reading(resets_in_s=None), 0)
    assert windows.views(1e9)


def test_a_provider_with_countless_windows_is_not_believed():
    windows = Windows()
    for number in range(100):
        windows.learn(WindowReading(f"w{number}"), 0)
    assert len(windows.views(0)) == 32


def test_a_pool_shows_them_and_tells_of_them_and_paces_by_nothing():
    bench = Bench()
    bench.submit("a")
    told = Hints(windows=(reading(used=0.99, status="allowed_warning"),))
    bench.scheduler.observe(bench.running["a"], told, 0)
    bench.scheduler.observe(bench.running["a"], told, 0)
    bench.poll()
    (event,) = bench.of(WindowUsed)
    assert (event.window, event.used, event.status, event.resets_in_s) == ("5h", 0.99, "allowed_warning", 600.0)
    assert bench.pool.windows == (WindowView("5h", 0.99, "allowed_warning", 600.0, None),)
    assert bench.submit("b", "c") == ["b", "c"]
