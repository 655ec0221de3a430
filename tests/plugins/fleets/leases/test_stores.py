"""Who gets what, when, in either store; real processes are in tests/e2e/test_tasks.py, a model in test_stores_machine.py."""

import pytest

from hivemind_addon.plugins.fleets.leases import engine_store, sqlite_store
from hivemind_addon.plugins.fleets.leases.model import (
    MAX_NAMES,
    MAX_TTL_S,
    MAX_VALUE_CHARS,
    Holder,
    Lease,
    LeaseError,
    LeaseOver,
    NotGranted,
    Request,
    check_name,
    checked_names,
)
from hivemind_addon.plugins.fleets.leases.waiting import wait_for_lease
from tests.cases import each
from tests.plugins.fleets.leases.store import asks, holder


def names(lease):
    assert isinstance(lease, Lease)
    return [grant.name for grant in lease.grants]


def token(lease):
    assert isinstance(lease, Lease)
    return lease.grants[0].token


def refused(answer):
    assert isinstance(answer, NotGranted)
    return list(answer.ahead)


def test_all_names_or_none(store):
    first = store.acquire(asks("a", "y", "x"), 0)
    assert names(first) == ["x", "y"]
    assert (first.holder, first.left_s) == (holder("a"), 60)
    answer = store.acquire(asks("b", "y", "z"), 1)
    assert refused(answer) == ["y"]
    assert answer.holders == (holder("a"),)
    assert names(store.acquire(asks("c", "z"), 1)) == ["z"]


def test_a_lease_ends_with_its_time_and_not_before(store):
    lease = store.acquire(asks("a", "x", ttl_s=10), 0)
    assert refused(store.acquire(asks("b", "x"), 9.999)) == ["x"]
    taken = store.acquire(asks("b", "x"), 10)
    assert names(taken) == ["x"]
    with pytest.raises(LeaseOver, match="is over"):
        store.renew(lease.id, 10, 10)


def test_a_renewed_lease_has_its_time_from_then_on(store):
    lease = store.acquire(asks("a", "x", ttl_s=10, value="here"), 0)
    renewed = store.renew(lease.id, 20, 9)
    assert (renewed.id, renewed.grants, renewed.left_s, renewed.value) == (lease.id, lease.grants, 20, "here")
    assert refused(store.acquire(asks("b", "x"), 28)) == ["x"]
    assert names(store.acquire(asks("b", "x"), 29)) == ["x"]


def test_a_lease_that_is_cut_short_is_told_to_who_waits(store):
    lease = store.acquire(asks("a", "x", ttl_s=1000), 0)
    assert refused(store.acquire(asks("b", "x"), 0, waiter="b")) == ["x"]
    store.renew(lease.id, 0.5, 0)
    assert names(store.acquire(asks("b", "x"), 0.5, waiter="b")) == ["x"]


def test_a_dead_holders_names_are_free_at_once(machine, store):
    lease = store.acquire(asks("a", "x", "y"), 0)
    machine.dead.add("a")
    with pytest.raises(LeaseOver):
        store.renew(lease.id, 60, 0)
    assert names(store.acquire(asks("b", "x"), 0)) == ["x"]
    assert [one.name for one in store.standings(0)] == ["x"]


def test_a_waiter_sees_its_holders_death_without_anybody_writing_it(machine, store):
    store.acquire(asks("a", "x"), 0)
    assert refused(store.acquire(asks("b", "x"), 0, waiter="b")) == ["x"]
    assert refused(store.acquire(asks("b", "x"), 0.1, waiter="b")) == ["x"]
    machine.dead.add("a")
    assert names(store.acquire(asks("b", "x"), 0.2, waiter="b")) == ["x"]


def test_tokens_grow_over_everything(machine, store):
    first = store.acquire(asks("a", "x"), 0)
    store.release(first.id, 0)
    second = store.acquire(asks("a", "x", "y"), 0)
    store.close()
    with machine.store() as again:
        again.release(second.id, 0)
        assert again.standings(0) == []
        third = again.acquire(asks("b", "y"), 0)
        assert token(first) < token(second) < token(third)
        assert again.standings(0, ["x"])[0].last_token == token(third)


def test_those_who_wait_are_served_in_the_order_of_their_coming(store):
    lease = store.acquire(asks("a", "x"), 0)
    for agent in "bcd":
        assert refused(store.acquire(asks(agent, "x"), 1, waiter=agent)) == ["x"]
    store.release(lease.id, 2)
    assert refused(store.acquire(asks("d", "x"), 2, waiter="d")) == ["x"]
    assert refused(store.acquire(asks("e", "x"), 2)) == ["x"]
    assert [one.agent for one in store.standings(2)[0].waiting] == ["b", "c", "d"]
    assert names(store.acquire(asks("b", "x"), 2, waiter="b")) == ["x"]
    assert [one.agent for one in store.standings(2)[0].waiting] == ["c", "d"]


def test_who_waits_for_two_is_not_passed_by_those_who_want_one(store):
    x = store.acquire(asks("a", "x"), 0)
    assert refused(store.acquire(asks("b", "x", "y"), 0, waiter="b")) == ["x"]
    assert refused(store.acquire(asks("c", "y"), 0, waiter="c")) == ["y"]
    assert names(store.acquire(asks("d", "z"), 0)) == ["z"]
    store.release(x.id, 1)
    assert names(store.acquire(asks("b", "x", "y"), 1, waiter="b")) == ["x", "y"]


def test_a_waiter_that_no_longer_asks_loses_its_place(store):
    lease = store.acquire(asks("a", "x"), 0)
    store.acquire(asks("b", "x"), 0, waiter="b")
    store.acquire(asks("c", "x"), 3, waiter="c")
    store.release(lease.id, 3)
    assert refused(store.acquire(asks("c", "x"), 4.9, waiter="c")) == ["x"]
    assert names(store.acquire(asks("c", "x"), 5.1, waiter="c")) == ["x"]


def test_a_waiter_that_goes_on_asking_keeps_its_place(store):
    lease = store.acquire(asks("a", "x", ttl_s=1000), 0)
    store.acquire(asks("b", "x"), 0, waiter="b")
    for tenths in range(200):
        store.acquire(asks("b", "x"), tenths / 10, waiter="b")
    store.release(lease.id, 20)
    assert refused(store.acquire(asks("c", "x"), 20)) == ["x"]


def test_a_dead_waiter_loses_its_place_at_once(machine, store):
    lease = store.acquire(asks("a", "x"), 0)
    store.acquire(asks("b", "x"), 0, waiter="b")
    store.release(lease.id, 0)
    assert refused(store.acquire(asks("c", "x"), 0)) == ["x"]
    machine.dead.add("b")
    assert names(store.acquire(asks("c", "x"), 0)) == ["x"]


def test_nothing_is_given_to_the_dead(machine, store):
    lease = store.acquire(asks("a", "x"), 0)
    store.acquire(asks("b", "x"), 0, waiter="b")
    machine.dead.add("b")
    store.release(lease.id, 0)
    with pytest.raises(LeaseError, match="is gone"):
        store.acquire(asks("b", "x"), 0, waiter="b")
    assert names(store.acquire(asks("c", "x"), 0)) == ["x"]


def test_who_asks_for_something_else_stands_at_the_end(store):
    x, y = store.acquire(asks("a", "x"), 0), store.acquire(asks("a", "y"), 0)
    store.acquire(asks("b", "x"), 0, waiter="b")
    store.acquire(asks("c", "y"), 0, waiter="c")
    assert refused(store.acquire(asks("b", "y"), 0, waiter="b")) == ["y"]
    store.release(x.id, 0)
    store.release(y.id, 0)
    assert names(store.acquire(asks("d", "x"), 0)) == ["x"]
    assert refused(store.acquire(asks("b", "y"), 0, waiter="b")) == ["y"]
    assert names(store.acquire(asks("c", "y"), 0, waiter="c")) == ["y"]


def test_at_most_so_many(store):
    three = [store.acquire(asks(agent, "phase", capacity=3), 0) for agent in "abc"]
    assert len({token(one) for one in three}) == 3
    assert refused(store.acquire(asks("d", "phase", capacity=3), 0, waiter="d")) == ["phase"]
    store.release(three[1].id, 0)
    assert refused(store.acquire(asks("e", "phase", capacity=3), 0)) == ["phase"]
    assert names(store.acquire(asks("d", "phase", capacity=3), 0, waiter="d")) == ["phase"]
    standing = store.standings(0)[0]
    assert (standing.capacity, len(standing.leases)) == (3, 3)


def test_who_counts_the_places_differently_is_told_so(store):
    lease = store.acquire(asks("a", "x", capacity=3), 0)
    with pytest.raises(LeaseError, match="a has 'x' as at most 3 at once, not 2"):
        store.acquire(asks("b", "x", capacity=2), 0)
    store.release(lease.id, 0)
    assert names(store.acquire(asks("b", "x", capacity=2), 0)) == ["x"]


def test_a_leader_tells_its_value(store):
    store.acquire(asks("a", "planner", value="http://127.0.0.1:7000"), 0)
    store.acquire(asks("b", "planner"), 1, waiter="b")
    (standing,) = store.standings(1, ["planner"])
    assert [(one.holder.agent, one.value, one.left_s) for one in standing.leases] == [
        ("a", "http://127.0.0.1:7000", 59)
    ]
    assert [one.agent for one in standing.waiting] == ["b"]
    assert store.standings(1, ["nobody"])[0].leases == ()


def test_it_says_when_to_ask_again(store):
    store.acquire(asks("a", "x", ttl_s=10), 0)
    assert 0 < store.acquire(asks("b", "x"), 5).retry_in_s <= 1
    assert store.acquire(asks("b", "x"), 9.99).retry_in_s == pytest.approx(0.01)


def test_there_is_a_bound(store, monkeypatch):
    for module in (sqlite_store, engine_store):
        monkeypatch.setattr(module, "MAX_LEASES", 2)
    for name in "xy":
        store.acquire(asks("a", name), 0)
    with pytest.raises(LeaseError, match="2 leases are held"):
        store.acquire(asks("a", "z"), 0)
    assert [one.name for one in store.standings(0)] == ["x", "y"]


def waiting(store, clock, request, wait_s, *, then=lambda: False, tell=lambda _: None):
    def pause(seconds):
        clock.advance(seconds)
        return then()

    return wait_for_lease(store, request, clock=clock, wait_s=wait_s, pause=pause, tell=tell)


def test_it_waits_until_it_is_its_turn(store, clock):
    held = store.acquire(asks("a", "x"), clock.awake())
    heard = []
    begun = clock.awake()

    def then():
        if clock.awake() > begun + 20 and store.standings(clock.awake())[0].leases[0].id == held.id:
            store.release(held.id, clock.awake())
        return False

    got = waiting(store, clock, asks("b", "x"), None, then=then, tell=heard.append)
    assert isinstance(got, Lease)
    assert clock.awake() < begun + 21
    assert [one.ahead for one in heard] == [("x",)]
    assert store.standings(clock.awake())[0].waiting == ()


@pytest.mark.parametrize("wait_s", [0.0, 3.0])
def test_it_waits_no_longer_than_told_and_leaves_the_line(store, clock, wait_s):
    store.acquire(asks("a", "x"), clock.awake())
    begun = clock.awake()
    assert isinstance(waiting(store, clock, asks("b", "x"), wait_s), NotGranted)
    assert clock.awake() == pytest.approx(begun + wait_s)
    assert store.standings(clock.awake())[0].waiting == ()


def test_who_gives_up_leaves_the_line(store, clock):
    store.acquire(asks("a", "x"), clock.awake())
    assert isinstance(waiting(store, clock, asks("b", "x"), None, then=lambda: True), NotGranted)
    assert store.standings(clock.awake())[0].waiting == ()


def test_who_is_interrupted_leaves_the_line(store, clock):
    store.acquire(asks("a", "x"), clock.awake())

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        waiting(store, clock, asks("b", "x"), None, then=interrupt)
    assert store.standings(clock.awake())[0].waiting == ()


def test_what_is_wrong_with_the_request_is_said_at_once(store, clock):
    with pytest.raises(LeaseError, match="no name"):
        waiting(store, clock, asks("b", ""), None)


NOBODY = Holder("a", 0, "")


def test_names_come_once_each_in_canonical_order():
    assert checked_names(Request(("b", "a", "b"), NOBODY, 1)) == ("a", "b")


@each("name", ["", " a", "a ", "a\nb", "a\x00", "x" * 201, "\udcff"])
def test_what_cannot_be_printed_is_no_name(name):
    with pytest.raises(LeaseError, match="is no name"):
        check_name(name)


@each("name", ["a", "main branch", "repo/file.py", "gpu:0", "Brücke", "x" * 200])
def test_names_are_text(name):
    check_name(name)


@each(
    ("request_", "says"),
    [
        (Request((), NOBODY, 1), "needs a name"),
        (Request(tuple(map(str, range(MAX_NAMES + 1))), NOBODY, 1), "65 names"),
        (Request(("a",), NOBODY, 0), "0 s"),
        (Request(("a",), NOBODY, MAX_TTL_S * 2), "at most 2,592,000 s"),
        (Request(("a",), NOBODY, float("nan")), "nan s"),
        (Request(("a",), NOBODY, 1, capacity=0), "at most 0"),
        (Request(("a",), NOBODY, 1, capacity=10**12), "1 to 1,000,000"),
        (Request(("a",), NOBODY, 1, value="x" * (MAX_VALUE_CHARS + 1)), "4,097"),
        (Request(("a",), NOBODY, 1, value="\udcff"), "no text"),
        (Request(("a",), Holder("\udcff", 0, ""), 1), "no text"),
    ],
)
def test_what_is_out_of_bounds_is_said_in_one_line(request_, says):
    with pytest.raises(LeaseError, match=says) as caught:
        checked_names(request_)
    assert "\n" not in str(caught.value)
