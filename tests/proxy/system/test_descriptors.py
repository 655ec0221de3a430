import asyncio
import resource

from hivemind_addon.proxy.system import descriptors
from hivemind_addon.proxy.system.descriptors import ConnectionPlaces, most_at_once, raise_limit
from tests.cases import each


class Limits:
    """A system's limit, which it raises as far as `grants` says."""

    def __init__(self, soft, hard, grants=10**9):
        self.soft, self.hard, self.grants = soft, hard, grants

    def getrlimit(self, _):
        return self.soft, self.hard

    def setrlimit(self, _, limits):
        if limits[0] > self.grants:
            raise ValueError("not allowed to raise maximum limit")
        self.soft, self.hard = limits

    RLIMIT_NOFILE = resource.RLIMIT_NOFILE
    RLIM_INFINITY = resource.RLIM_INFINITY


@each(
    ("limits", "raised"),
    [
        (Limits(256, Limits.RLIM_INFINITY), 65_536),
        (Limits(256, Limits.RLIM_INFINITY, grants=10_240), 10_240),  # macOS
        (Limits(1024, 4096), 4096),
        (Limits(1024, 1_048_576), 65_536),
        (Limits(256, 256), 256),
        (Limits(500_000, 500_000), 500_000),
        (Limits(Limits.RLIM_INFINITY, Limits.RLIM_INFINITY), None),
        (Limits(256, 1024, grants=0), 256),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may(monkeypatch, limits, raised):
    hard = limits.hard
    monkeypatch.setattr(descriptors, "resource", limits)
    assert raise_limit() == raised
    assert limits.hard == hard


def test_some_are_served_however_few_files_there_are():
    assert [most_at_once(limit) for limit in (None, 1, 64, 256, 1024, 65_536)] == [None, 1, 5, 32, 288, 21_792]


def fill(places):
    for number in range(places.most):
        assert not places.are_full
        places.give(f"c{number}")
    assert places.are_full


async def waiter(places, name):
    waiting = asyncio.ensure_future(places.wait(name))
    await asyncio.wait([waiting], timeout=0)
    return waiting


async def test_who_comes_when_all_places_are_taken_waits_in_order():
    places = ConnectionPlaces(256)
    fill(places)
    first, second = await waiter(places, "first"), await waiter(places, "second")
    assert (first.done(), places.waiting) == (False, 2)
    places.give_back("c3")
    assert await first is True
    assert not second.done()
    late = await waiter(places, "late")
    places.give_back("first")
    assert await second is True
    assert not late.done()
    late.cancel()


async def test_no_more_wait_than_are_served():
    places = ConnectionPlaces(256)
    fill(places)
    waiting = [await waiter(places, f"w{number}") for number in range(places.most)]
    assert not any(one.done() for one in waiting)
    assert await places.wait("too many") is False
    for number in range(places.most):
        places.give_back(f"c{number}")
    assert all(await asyncio.gather(*waiting))
    assert places.are_full


async def test_who_waits_too_long_is_refused_and_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(descriptors, "_LONGEST_WAIT_S", 0)
    places = ConnectionPlaces(256)
    fill(places)
    assert await places.wait("late") is False
    places.give_back("late")
    places.give_back("c0")
    assert not places.are_full


async def test_who_leaves_while_it_waits_gets_no_place():
    places = ConnectionPlaces(256)
    fill(places)
    gone, waiting = await waiter(places, "gone"), await waiter(places, "waiting")
    gone.cancel()
    places.give_back("c0")  # before it has heard of that
    assert await waiting is True
    await asyncio.wait([gone])
    places.give_back("c1")
    assert not places.are_full


async def test_a_connection_that_ended_without_a_word_keeps_no_place():
    places = ConnectionPlaces(256)
    fill(places)
    waiting = await waiter(places, "waiting")
    places.keep({f"c{number}" for number in range(1, places.most)})
    assert await waiting is True


def test_served_waiting_and_upstream_connections_together_stay_below_the_limit():
    for limit in (256, 1024, 65_536):
        places = ConnectionPlaces(limit)
        assert 3 * places.most + 100 < limit
