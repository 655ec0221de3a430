import asyncio

from hivemind_addon.compose import EVENTS_KEPT, make_runtime
from hivemind_addon.core.events import OddityNoted
from hivemind_addon.core.ticket import PoolKey


async def test_everything_meets_and_observers_hear_of_every_event():
    heard = []
    runtime = make_runtime(observers=(heard.append,))
    event = OddityNoted(at=0, pool=PoolKey("h", "a", "m"), ticket_id=None, what="odd")
    runtime.driver.note(event)
    assert heard == [event]
    assert list(runtime.events) == [event]
    assert runtime.events.maxlen == EVENTS_KEPT
    assert runtime.guard.trips == 0


async def test_two_runtimes_share_nothing():
    first, second = make_runtime(), make_runtime()
    first.guard.trip("here", RuntimeError())
    assert (first.guard.trips, second.guard.trips) == (1, 0)
    assert len(second.events) == 0
    assert first.estimator is not second.estimator
    assert asyncio.get_running_loop().is_running()
