"""What the file alone has to do; the rest is in test_stores.py."""

import pytest

from hivemind_addon.plugins.fleets.leases import sqlite_store
from hivemind_addon.plugins.fleets.leases.model import LeaseOver
from tests.plugins.fleets.leases.store import asks, machine, store  # noqa: F401 - fixtures
from tests.plugins.fleets.leases.test_stores import names, refused

# ruff: noqa: F811 - fixtures, again


def test_a_clock_that_begins_again_neither_frees_nor_keeps_for_ever(machine, store):
    """Another boot: the watched are gone, the others have their whole time again. No boot's name: the same by instants."""
    store.acquire(asks("a", "x", ttl_s=100), 1_000_000)
    unwatched = asks("b", "y", ttl_s=100)
    store.acquire(sqlite_store.Request(("y",), sqlite_store.Holder("b", 0, ""), 100), 1_000_000)
    machine.boot = "boot-2"
    assert names(store.acquire(asks("c", "x"), 5)) == ["x"]
    assert refused(store.acquire(unwatched, 104)) == ["y"]
    assert names(store.acquire(unwatched, 105.1)) == ["y"]
    # The clock goes back and the boot has no other name.
    assert refused(store.acquire(asks("d", "y"), 1)) == ["y"]
    assert names(store.acquire(asks("d", "y"), 101.1)) == ["y"]


def test_an_older_reading_of_the_clock_does_no_harm(store):
    """Two processes: who read the clock first may have the file last."""
    store.acquire(asks("a", "x", ttl_s=10), 100)
    store.acquire(asks("b", "x"), 100, waiter="b")
    assert refused(store.acquire(asks("c", "x"), 95, waiter="c")) == ["x"]
    assert [one.agent for one in store.standings(96)[0].waiting] == ["b", "c"]
    (standing,) = store.standings(109.9)
    assert [one.left_s for one in standing.leases] == [pytest.approx(0.1)]


def test_asking_again_writes_nothing_while_nothing_changes(machine, store):
    store.acquire(asks("a", "x"), 0)
    store.acquire(asks("b", "x"), 0, waiter="b")
    with machine.store() as other, other._file.using() as connection:
        before = connection.execute("pragma data_version").fetchone()
        for hundredths in range(1, 90):
            store.acquire(asks("b", "x"), hundredths / 100, waiter="b")
        assert connection.execute("pragma data_version").fetchone() == before


def test_a_file_that_was_removed_ends_all_leases(machine, store):
    lease = store.acquire(asks("a", "x"), 0)
    machine.path.unlink()
    with pytest.raises(LeaseOver):
        store.renew(lease.id, 60, 0)
    assert names(store.acquire(asks("b", "x"), 0)) == ["x"]
