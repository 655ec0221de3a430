"""What the engine alone has to do; the rest is in test_stores.py."""

import os
import signal
from threading import Barrier, Event, Lock, Thread

import pytest
from redis import exceptions
from redis.crc import key_slot

from hivemind_addon.plugins.fleets.leases.engine_store import EngineLeases
from hivemind_addon.plugins.fleets.leases.holder import holder_of
from hivemind_addon.plugins.fleets.leases.lease_keeper import keep
from hivemind_addon.plugins.fleets.leases.model import (
    Holder,
    Lease,
    LeaseError,
    LeaseOver,
    NotGranted,
    Request,
    StoreGone,
)
from hivemind_addon.plugins.fleets.leases.waiting import wait_for_lease
from hivemind_addon.proxy.system.clock import SystemClock
from hivemind_addon.proxy.system.engine_url import parse_engine_url
from tests.engine_server import EngineServer
from tests.plugins.fleets.leases.store import EngineMachine, asks
from tests.plugins.fleets.leases.test_lease_keeper import Watched
from tests.plugins.fleets.leases.test_stores import names, refused, token


@pytest.fixture
def machine(engine):
    return EngineMachine(engine)


@pytest.fixture
def own_server():
    server = EngineServer().start()
    yield server
    server.stop()


def real(server, *, patience_s=4.0, **more):
    """A store by the engine's own clock."""
    return EngineLeases(parse_engine_url(server.unix_url), "test", patience_s=patience_s, **more)


def unwatched(agent, *names, ttl_s=60.0, capacity=1):
    return Request(names, Holder(agent, 0, ""), ttl_s, capacity)


# Tokens and clocks -----------------------------------------------------------------------------------------------------


def test_after_a_start_with_nothing_tokens_go_on_growing_and_the_holder_learns_of_its_loss(own_server, clock):
    with real(own_server) as mine, real(own_server) as theirs:
        before = [mine.acquire(unwatched("a", "x"), 0)]
        for _ in range(50):  # faster than the clock, were it counted in coarser steps
            before.append(mine.acquire(unwatched("a", "y"), 0))
            mine.release(before[-1].id, 0)
        own_server.restart()
        after = theirs.acquire(unwatched("b", "x"), 0)
        assert token(after) > max(map(token, before))
        lost = []
        keep(mine, before[0], Watched(clock, clock.awake() + 100), ttl_s=60, clock=clock, lost=lost.append)
        assert len(lost) == 1
        assert "the engine has lost it" in lost[0]
        assert theirs.standings(0)[0].leases[0].id == after.id


def test_no_token_is_below_one_that_its_holder_has_seen_even_of_an_engine_whose_clock_is_behind(machine, engine):
    with machine.store() as store:
        first = store.acquire(asks("a", "x"), 1_000_000)
        engine.send("FLUSHALL")
        second = store.acquire(asks("a", "x"), 5)
        assert token(second) > token(first)
        assert store.standings(5)[0].last_token == token(second)


def test_an_engine_whose_clock_is_set_back_keeps_no_lease_for_longer(machine):
    with machine.store() as store:
        first = store.acquire(asks("a", "x", ttl_s=10), 1000)
        assert refused(store.acquire(asks("b", "x"), 1006)) == ["x"]
        assert refused(store.acquire(asks("b", "x"), 400)) == ["x"]
        assert refused(store.acquire(asks("b", "x"), 403.9)) == ["x"]
        second = store.acquire(asks("b", "x"), 404.2)
        assert token(second) > token(first)


def test_no_clock_of_a_client_changes_anything(own_server, clock):
    with real(own_server) as one, real(own_server) as other:
        lease = one.acquire(unwatched("a", "x"), 1e9)
        assert refused(other.acquire(unwatched("b", "x"), 1e12)) == ["x"]
        assert other.standings(-1e9)[0].leases[0].left_s == pytest.approx(60, abs=30)

        def set_the_clock():
            clock.set(-86_400 * 365 if clock.awake() % 2 else 86_400 * 365)

        lost = []
        watched = Watched(clock, clock.awake() + 30, set_the_clock)
        keep(one, lease, watched, ttl_s=60, clock=clock, lost=lost.append)
        assert lost == []
        assert other.standings(0) == []


# Races -----------------------------------------------------------------------------------------------------------------


def test_of_a_crowd_no_more_hold_than_may_and_each_token_is_greater_than_those_before(engine):
    """Each thread has a connection of its own, as a machine has."""
    inside, most, order, lock, all_here = set(), [0], [], Lock(), Barrier(8)

    def work(number):
        with real(engine, host=f"host-{number}") as store:
            all_here.wait(60)
            for turn in range(5):
                capacity, name = (3, "phase") if turn % 2 else (1, "lock")
                request = unwatched(f"one-{number}", name, "both" if capacity == 1 else name, capacity=capacity)
                lease = wait_for_lease(store, request, clock=SystemClock(), wait_s=60, pause=Event().wait)
                with lock:
                    inside.add((name, number))
                    order.append((name, token(lease)))
                    held = sum(one[0] == name for one in inside)
                    assert held <= capacity
                    most[0] = max(most[0], held)
                with lock:
                    inside.remove((name, number))
                store.release(lease.id, 0)

    threads = [Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    locks = [its_token for name, its_token in order if name == "lock"]
    assert len(order) == 40
    assert locks == sorted(locks)
    assert len({its_token for _, its_token in order}) == 40


# Many machines ---------------------------------------------------------------------------------------------------------


def test_a_holder_of_another_machine_is_named_with_it_and_ends_by_its_time(engine):
    far, near = EngineMachine(engine, "far"), EngineMachine(engine, "near")
    with far.store() as there, near.store() as here:
        there.acquire(asks("a", "x", ttl_s=10), 0)
        answer = here.acquire(asks("b", "x"), 1, waiter="b")
        assert [(one.agent, one.host) for one in answer.holders] == [("a", "far")]
        assert [one.host for one in there.standings(1)[0].waiting] == ["near"]
        far.dead.add("a")  # only its own machine knows
        assert refused(here.acquire(asks("b", "x"), 9.9, waiter="b")) == ["x"]
        assert names(here.acquire(asks("b", "x"), 10.1, waiter="b")) == ["x"]


def test_nothing_is_known_of_a_process_of_another_machine(own_server):
    """One with its id here may have ended long ago."""
    mine = holder_of("a", os.getpid())
    start, _, place = mine.started.split("/")
    strange = Holder("b", 2**22 - 1, f"{start}/another-boot/{place}")
    gone = Holder("c", 2**22 - 1, mine.started)
    with real(own_server) as store:
        assert isinstance(store.acquire(Request(("x",), strange, 60.0), 0), Lease)
        assert isinstance(store.acquire(Request(("x",), mine, 60.0), 0), NotGranted)
        with pytest.raises(LeaseError, match="is gone"):
            store.acquire(Request(("y",), gone, 60.0), 0)


def test_two_clusters_in_one_engine_do_not_know_of_each_other(engine):
    address = parse_engine_url(engine.unix_url)
    with EngineLeases(address, "one") as one, EngineLeases(address, "two") as two:
        assert names(one.acquire(unwatched("a", "x"), 0)) == ["x"]
        assert names(two.acquire(unwatched("b", "x"), 0)) == ["x"]
        slots = {key_slot(key.encode()) for key in one._keys}
        assert len(slots) == 1
        assert all(key.startswith("hivemind:{one}:locks:") for key in one._keys)


# The engine away ---------------------------------------------------------------------------------------------------------


def test_an_engine_that_is_away_is_one_line_with_the_cure_and_without_the_password(own_server):
    url = own_server.url.replace("//", "//me:hush@")
    with EngineLeases(parse_engine_url(url), "test") as wrong:
        with pytest.raises(LeaseError, match=r"refuses the user or the password.* HIVEMIND_CLUSTER_PASSWORD") as caught:
            wrong.standings(0)
        assert not isinstance(caught.value, StoreGone)
        assert "hush" not in str(caught.value)
    own_server.kill()
    with EngineLeases(parse_engine_url(own_server.url), "test") as store:
        for ask in (
            lambda: store.acquire(unwatched("a", "x"), 0),
            lambda: store.renew("id", 1, 0),
            lambda: store.standings(0),
        ):
            with pytest.raises(
                StoreGone,
                match=r"the engine valkey://127.0.0.1:\d+/0 .*refused.*; start it, or say another one by --cluster",
            ) as caught:
                ask()
            assert "\n" not in str(caught.value)
        own_server.start()
        assert names(store.acquire(unwatched("a", "x"), 0)) == ["x"]
        own_server.restart()  # its connection is dead: opened again without a word
        assert names(store.acquire(unwatched("a", "x"), 0)) == ["x"]


def test_a_silent_engine_is_not_waited_for_longer_than_told(own_server):
    with real(own_server, patience_s=0.2) as store:
        lease = store.acquire(unwatched("a", "x"), 0)
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreGone):
                store.renew(lease.id, 60, 0)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)


def test_a_lease_whose_grant_was_not_heard_of_is_given_back(machine, monkeypatch):
    with machine.store() as store:
        script = store._acquire

        def lose_the_answer(**arguments):
            script(**arguments)
            raise exceptions.TimeoutError

        monkeypatch.setattr(store, "_acquire", lose_the_answer)
        with pytest.raises(StoreGone):
            store.acquire(asks("a", "x"), 0)
        monkeypatch.setattr(store, "_acquire", script)
        assert names(store.acquire(asks("a", "x"), 0)) == ["x"]


def test_a_question_that_is_asked_twice_is_answered_once(machine, monkeypatch):
    """As the client library does where the connection breaks before the answer."""
    with machine.store() as store:
        script = store._acquire

        def ask_twice(**arguments):
            return [script(**arguments), script(**arguments)][1]

        monkeypatch.setattr(store, "_acquire", ask_twice)
        lease = store.acquire(asks("a", "x"), 0)
        assert [one.id for one in store.standings(0)[0].leases] == [lease.id]


def test_who_waits_goes_on_waiting_while_the_engine_is_away(own_server, clock):
    machine = EngineMachine(own_server)
    with machine.store() as store, machine.store() as other:
        other.acquire(asks("a", "x", ttl_s=600), clock.monotonic())
        steps = iter([own_server.kill, lambda: None, own_server.restart])
        told = []

        def pause(seconds):
            clock.advance(seconds)
            next(steps, lambda: None)()

        got = wait_for_lease(
            store, asks("b", "x"), clock=clock, wait_s=60, pause=pause, tell=told.append, tell_gone=told.append
        )
        assert names(got) == ["x"]  # nobody holds anything in an engine that has lost it
        assert [type(one) for one in told] == [NotGranted, StoreGone]
        own_server.kill()
        with pytest.raises(StoreGone):
            wait_for_lease(store, asks("c", "x"), clock=clock, wait_s=60, pause=pause)


@pytest.mark.parametrize(("away_s", "losses"), [(5, 0), (600, 1)])
def test_a_holder_goes_on_without_the_engine_until_its_lease_s_end_and_no_longer(clock, away_s, losses):
    server = EngineServer(persists=True).start()
    try:
        begun = clock.awake()
        with EngineMachine(server).store() as store:
            lease = store.acquire(asks("a", "x", ttl_s=12), begun)
            lost = []

            def come_and_go():
                if clock.awake() > begun + 21 and server.runs and not come_and_go.done:
                    server.kill()
                    come_and_go.done = True
                elif come_and_go.done and clock.awake() >= begun + 21 + away_s and not server.runs:
                    server.restart(empty=False)

            come_and_go.done = False
            keep(store, lease, Watched(clock, begun + 60, come_and_go), ttl_s=12, clock=clock, lost=lost.append)
            assert len(lost) == losses
            if losses:
                # Last renewed at the latest when it was killed; the end is its own clock's, to the moment.
                assert clock.awake() <= begun + 22 + 12
            else:
                assert clock.awake() == begun + 60
                assert store.standings(begun + 60) == []
    finally:
        server.stop()


def test_a_lease_that_was_taken_by_another_is_not_renewed(engine):
    with real(engine) as one:
        lease = one.acquire(unwatched("a", "x", ttl_s=0.001), 0)
        while isinstance(taken := one.acquire(unwatched("b", "x"), 0), NotGranted):
            pass
        with pytest.raises(LeaseOver):
            one.renew(lease.id, 60, 0)
        assert one.standings(0)[0].leases[0].id == taken.id


def test_the_rights_that_an_error_names_are_enough_and_others_cannot_be_had(own_server):
    assert own_server.send("ACL SETUSER me on >pw +@connection").startswith(b"+OK")
    url = own_server.url.replace("//", "//me:pw@")
    with EngineLeases(parse_engine_url(url), "test") as store:
        with pytest.raises(LeaseError, match=r"its ACL needs `(.*)`") as caught:
            store.standings(0)
        needs = str(caught.value).split("`")[1]
        assert own_server.send(f"ACL SETUSER me {needs}").startswith(b"+OK")
        lease = store.acquire(unwatched("a", "x"), 0)
        store.renew(lease.id, 60, 0)
        assert refused(store.acquire(unwatched("b", "x"), 0, waiter="b")) == ["x"]
        assert [one.name for one in store.standings(0)] == ["x"]
        store.release(lease.id, 0)
    with EngineLeases(parse_engine_url(url), "other") as strange, pytest.raises(LeaseError, match="does not let"):
        strange.standings(0)
