import pytest

from hivemind_addon.tools.locks.model import Lease, LeaseError, NotGranted
from hivemind_addon.tools.locks.sqlite_store import wait_for_lease
from tests.locks.store import asks, machine, store  # noqa: F401 - fixtures

# ruff: noqa: F811 - fixtures, again


def waiting(store, clock, request, wait_s, *, then=lambda: False, tell=lambda _: None):
    def pause(seconds):
        clock.advance(seconds)
        return then()

    return wait_for_lease(store, request, clock=clock, wait_s=wait_s, pause=pause, tell=tell)


def test_it_waits_until_it_is_its_turn(store, clock):
    held = store.acquire(asks("a", "x"), clock.monotonic())
    heard = []
    begun = clock.monotonic()

    def then():
        if clock.monotonic() > begun + 20 and store.standings(clock.monotonic())[0].leases[0].id == held.id:
            store.release(held.id, clock.monotonic())
        return False

    got = waiting(store, clock, asks("b", "x"), None, then=then, tell=heard.append)
    assert isinstance(got, Lease)
    assert clock.monotonic() < begun + 21
    assert [one.ahead for one in heard] == [("x",)]
    assert store.standings(clock.monotonic())[0].waiting == ()


@pytest.mark.parametrize("wait_s", [0.0, 3.0])
def test_it_waits_no_longer_than_told_and_leaves_the_line(store, clock, wait_s):
    store.acquire(asks("a", "x"), clock.monotonic())
    begun = clock.monotonic()
    assert isinstance(waiting(store, clock, asks("b", "x"), wait_s), NotGranted)
    assert clock.monotonic() == pytest.approx(begun + wait_s)
    assert store.standings(clock.monotonic())[0].waiting == ()


def test_who_gives_up_leaves_the_line(store, clock):
    store.acquire(asks("a", "x"), clock.monotonic())
    assert isinstance(waiting(store, clock, asks("b", "x"), None, then=lambda: True), NotGranted)
    assert store.standings(clock.monotonic())[0].waiting == ()


def test_who_is_interrupted_leaves_the_line(store, clock):
    store.acquire(asks("a", "x"), clock.monotonic())

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        waiting(store, clock, asks("b", "x"), None, then=interrupt)
    assert store.standings(clock.monotonic())[0].waiting == ()


def test_what_is_wrong_with_the_request_is_said_at_once(store, clock):
    with pytest.raises(LeaseError, match="no name"):
        waiting(store, clock, asks("b", ""), None)
