"""What one process's scheduler has, another one's goes on with: tickets, attempts, accounts; and all of it can be sent."""

import dataclasses
import random
import typing
from collections import Counter
from enum import Enum
from types import UnionType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel.limits.owner import owner_of
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings, PoolTold
from hivemind_addon.kernel.retry import History
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import SetBudget
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Refused, Shed, Verdict
from hivemind_addon.kernel.values.events import BudgetSpent, Event, TicketEnded
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import (
    Attempt,
    AttemptResult,
    ContractError,
    Demand,
    Endpoint,
    Hints,
    Ticket,
    Usage,
)
from tests.kernel.samples import (
    FAILED,
    OVERLOADED,
    POOL,
    SUCCESS,
    THROTTLED,
    Bench,
    after,
    requests_reading,
    ticket,
)

OTHER = replace(POOL, account="key-2")
LIMIT = 3
SETTINGS = PoolSettings(concurrency=ConcurrencySettings(initial=LIMIT, maximum=LIMIT))
EVERYONE = Budget(Scope.EVERYONE, "", Period.RUN, tokens=10**6)
HOURLY = Budget(Scope.AGENT, "a", Period.HOUR, tokens=10**6)


@dataclasses.dataclass
class Client:
    """What a proxy knows of one of its tickets."""

    ticket: Ticket
    history: History = dataclasses.field(default_factory=History)
    not_before: float | None = None
    attempt: Attempt | None = None


class Takeovers:
    """One scheduler after another, and the proxy that has the clients and tells each new one what there is."""

    def __init__(self) -> None:
        self.now = 100.0
        self.scheduler = Scheduler(rng=random.Random(0))
        self.clients: dict[str, Client] = {}
        self.ends: Counter[str] = Counter()
        self.submitted = 0
        self.spent = 0
        self.standings = self.scheduler.standings(self.now)
        self.untold: list[tuple[int, float]] = []
        """What was spent since these were kept, and when."""

    def submit(self, *, either: bool) -> None:
        self.submitted += 1
        made = replace(
            ticket(f"t{self.submitted}", session="a", at=self.now),
            budgets=(EVERYONE, HOURLY),
            expected=Spend(50),
            endpoints=(Endpoint(POOL), Endpoint(OTHER)) if either else (),
        )
        self.clients[made.id] = Client(made)
        self.scheduler.submit(made, SETTINGS, self.now)

    def settle(self, ticket_id: str, outcome, tokens: int) -> None:
        client = self.clients[ticket_id]
        used = Usage(output_tokens=tokens, reported=True)
        verdict = self.scheduler.settle(client.attempt, AttemptResult(outcome, used), self.now)
        client.attempt = None
        client.history = client.history.ended(outcome, owner_of(outcome, 0), provider_down=False)
        self.spent += tokens
        self.untold.append((tokens, self.now))
        if isinstance(verdict, Backoff):
            client.not_before = verdict.until

    def keep(self) -> None:
        self.standings, self.untold = self.scheduler.standings(self.now), []
        self._kept_at = self.now

    def take_over(self) -> None:
        """The scheduler is gone; a new one is told what was kept, and what the proxy has."""
        self._read_events()
        self.scheduler = Scheduler(rng=random.Random(1))
        self.scheduler.restore_budgets(
            [replace(one, age_s=one.age_s + self.now - self._kept_at) for one in self.standings], self.now
        )
        for tokens, at in self.untold:
            self.scheduler.book((EVERYONE, HOURLY), Spend(tokens), self.now - at, self.now)
        for client in self.clients.values():
            if client.attempt is not None:
                flying = client.attempt
                client.attempt = self.scheduler.take_in_flight(
                    flying.ticket, SETTINGS, flying.demand, client.history, self.now, admitted_at=flying.admitted_at
                )
                assert client.attempt.number == flying.number
            else:
                self.scheduler.submit(
                    client.ticket, SETTINGS, self.now, history=client.history, not_before=client.not_before
                )
        self.keep()

    def poll(self) -> None:
        for decision in self.scheduler.poll(self.now):
            assert isinstance(decision, Admitted)
            client = self.clients[decision.attempt.ticket.id]
            backs_off = client.not_before is not None and client.not_before > self.now
            assert not backs_off or client.ticket.endpoints, "only at an equal endpoint it may go sooner"
            client.ticket, client.attempt = decision.attempt.ticket, decision.attempt
            client.history, client.not_before = client.history.started(), None
            assert decision.attempt.number == client.history.attempts
            together = [one for one in self.clients.values() if one.attempt and one.ticket.pool == client.ticket.pool]
            assert len(together) <= LIMIT
        self._read_events()

    def _read_events(self) -> None:
        for event in self.scheduler.drain_events():
            if isinstance(event, TicketEnded):
                self.ends[event.ticket_id] += 1
                del self.clients[event.ticket_id]

    @property
    def running(self) -> list[str]:
        return [name for name, client in self.clients.items() if client.attempt is not None]

    _kept_at = 100.0


STEPS = st.one_of(
    st.tuples(st.just("submit"), st.booleans()),
    st.tuples(st.just("settle"), st.integers(0, 9), st.sampled_from([SUCCESS, FAILED, THROTTLED, after(FAILED, 9.0)])),
    st.tuples(st.just("advance"), st.floats(0, 20)),
    st.just(("keep",)),
    st.just(("take over",)),
)


@given(st.lists(STEPS, max_size=40))
def test_taken_apart_and_put_together_nothing_is_lost_and_no_limit_is_passed(steps):
    world = Takeovers()
    for step in steps:
        match step:
            case ("submit", either):
                world.submit(either=either)
            case ("settle", number, outcome):
                if running := world.running:
                    world.settle(running[number % len(running)], outcome, tokens=10 + number)
            case ("advance", seconds):
                world.now += seconds
            case ("keep",):
                world.keep()
            case _:
                world.take_over()
        world.poll()
    world.take_over()
    world.poll()
    for _ in range(10 * world.submitted):
        for name in world.running:
            world.settle(name, SUCCESS, tokens=7)
        world.poll()
        if world.scheduler.is_idle:
            break
        if not world.running:
            world.now = world.scheduler.next_wakeup()
            world.poll()
    assert world.scheduler.is_idle
    assert dict(world.ends) == {f"t{n}": 1 for n in range(1, world.submitted + 1)}
    views = {view.budget.per: view for view in world.scheduler.snapshot(world.now).budgets}
    assert views[Period.RUN].spent.tokens == world.spent if world.spent else True
    assert all(view.reserved == Spend() for view in views.values())
    for pool in world.scheduler._pools.values():
        assert all(meter.reserved == 0 for meter in pool.capacity.meters)


def announced(bench: Bench, *names: str, **more: object) -> None:
    for name in names:
        made = replace(ticket(name, session=name, at=bench.now), **more)
        bench.running[name] = bench.scheduler.take_in_flight(
            made, bench.settings, made.demand, History().started(), bench.now
        )


def test_more_than_the_limit_may_be_in_flight_elsewhere_and_then_nobody_goes():
    bench = Bench(slots=2)
    announced(bench, "a", "b", "c")
    assert (bench.pool.limit, bench.pool.in_flight) == (2, 3)
    assert bench.submit("d") == []
    bench.settle("a")
    assert list(bench.running) == ["b", "c"]
    bench.settle("b")
    assert list(bench.running) == ["c", "d"]
    with pytest.raises(ContractError):
        announced(bench, "c")


def test_who_fails_after_it_was_sent_elsewhere_goes_before_what_came_after_it():
    bench = Bench(slots=1)
    announced(bench, "a")
    bench.submit("b", "c")
    bench.advance(20.0)
    bench.settle("a", FAILED)
    assert list(bench.running) == ["b"]
    bench.advance(5.0)
    bench.settle("b")
    assert list(bench.running) == ["a"]


def test_slots_that_were_proved_elsewhere_need_no_proof():
    """Else who comes would wait until almost all that is in flight has ended."""
    bench = Bench(settings=PoolSettings(concurrency=ConcurrencySettings(initial=1, maximum=50)))
    announced(bench, *(f"t{n}" for n in range(20)))
    bench.submit("new")
    assert bench.pool.limit == 20
    assert bench.advance(0.1) == ["new"]


def test_what_the_provider_refuses_because_of_others_teaches_no_limit_and_no_more_is_tried_for_a_while():
    """Six go at once, a refusal takes 0.2 s; who shares the key is not known here, as when a member was cut off."""
    bench = Bench(settings=PoolSettings(concurrency=ConcurrencySettings(initial=4, maximum=100)))
    ends: list[tuple[float, str]] = []
    refused, delivered, taken = 0, 0, set()
    bench.submit(*(f"t{n}" for n in range(24)))
    known = set()
    while bench.now < 60.0:
        for name in set(bench.running) - known:
            if len(taken) < 6:
                taken.add(name)
            ends.append((bench.now + (1.0 if name in taken else 0.2), name))
        known = set(bench.running)
        for end in [end for end in ends if end[0] <= bench.now]:
            ends.remove(end)
            known.discard(end[1])
            if end[1] in taken:
                taken.discard(end[1])
                bench.settle(end[1])
                delivered += 1
                bench.submit(f"{end[1]}+")
            else:
                bench.settle(end[1], OVERLOADED, by_others=True)
                refused += 1
        bench.advance(0.01)
    assert not bench.pool.learned
    assert refused < 0.15 * delivered, (refused, delivered)
    assert delivered > 0.9 * 60 * 6, (refused, delivered)


def test_who_is_in_flight_elsewhere_holds_nobody_up_where_a_level_is_not_known_yet():
    """One by one is for those whose heads will tell; the others' may have come long ago."""
    taught = Bench()
    taught.submit("x")
    taught.observe("x", requests_reading(limit=50, remaining=40, reset_in_s=30.0))
    bench = Bench(slots=20)
    bench.scheduler.restore(taught.scheduler.export(), 0.0)
    announced(bench, "a", "b", "c")
    assert bench.submit("d", "e") == ["d"]
    bench.observe("d", requests_reading(limit=50, remaining=30, reset_in_s=20.0))
    assert "e" in bench.running
    assert bench.pool.meters[0].level == 29, "the header knows of all that were sent before"


def test_what_is_in_flight_is_paid_from_a_budget_that_has_nothing_left():
    bench = Bench()
    budget = replace(HOURLY, tokens=60)
    announced(bench, "a", "b", budgets=(budget,), expected=Spend(50))
    (view,) = bench.scheduler.snapshot(0.0).budgets
    assert view.reserved == Spend(100)
    bench.scheduler.submit(replace(ticket("c"), budgets=(budget,), expected=Spend(20)), bench.settings, 0.0)
    assert bench.poll() == []
    bench.settle("a", usage=Usage(output_tokens=5, reported=True))
    bench.settle("b", usage=Usage(output_tokens=5, reported=True))
    assert "c" in bench.running


def test_a_period_goes_on_from_when_its_first_attempt_was_sent_elsewhere():
    scheduler = Scheduler(rng=random.Random(0))
    made = replace(ticket(), budgets=(HOURLY, EVERYONE), expected=Spend(50))
    attempt = scheduler.take_in_flight(made, SETTINGS, Demand(), History().started(), 1000.0, admitted_at=400.0)
    scheduler.settle(attempt, AttemptResult(SUCCESS, Usage(output_tokens=3, reported=True)), 1000.0)
    assert {one.budget.per: (one.age_s, one.spent) for one in scheduler.standings(1000.0)} == {
        Period.HOUR: (600.0, Spend(3)),
        Period.RUN: (600.0, Spend(3)),
    }
    assert [one.budget.per for one in scheduler.standings(4000.0)] == [Period.RUN]


def test_what_was_spent_elsewhere_counts_in_what_persons_gave_and_what_was_presumed_is_taken_back():
    bench = Bench()
    bench.scheduler.command(SetBudget(Scope.GROUP, "g", Period.DAY, tokens=100), 0.0)
    bench.now = 10_000.0
    bench.scheduler.book((HOURLY,), Spend(90), 5.0, bench.now, agent="a", group="g")
    assert {one.age_s for one in bench.scheduler.standings(bench.now)} == {5.0}
    bench.scheduler.book((HOURLY,), Spend(7), 3600.0, bench.now, agent="a", group="g")
    bench.poll()
    assert [event.budget.scope for event in bench.of(BudgetSpent)] == []
    told = {view.budget.holder: view.spent.tokens for view in bench.scheduler.snapshot(bench.now).budgets}
    assert told == {"agent a": 90, "group g": 97}, "an hour ago is over, a day is not"
    bench.scheduler.book((HOURLY,), Spend(-90), 5.0, bench.now, agent="a", group="g")
    bench.scheduler.book((HOURLY,), Spend(-90), 5.0, bench.now, agent="a", group="g")
    assert {view.spent.tokens for view in bench.scheduler.snapshot(bench.now).budgets} == {0}


def test_what_was_presumed_in_a_period_that_is_over_is_not_forgiven_in_the_next():
    bench = Bench()
    bench.scheduler.book((HOURLY,), Spend(90), 0.0, 0.0)
    bench.scheduler.book((HOURLY,), Spend(20), 0.0, 3700.0)
    bench.scheduler.book((HOURLY,), Spend(-90), 3599.0, 3599.0 + 200.0)
    assert [view.spent.tokens for view in bench.scheduler.snapshot(3800.0).budgets] == [20]


def test_of_a_client_whose_proxy_went_nothing_is_learned_and_its_place_is_kept():
    bench = Bench(slots=1)
    bench.submit("running")
    for name in ("first", "second"):
        made = replace(ticket(name, session=name, at=bench.now, request_hash=name), client="cli")
        bench.scheduler.submit(made, bench.settings, bench.now)
    bench.advance(60.0)
    assert bench.scheduler.cancel("first", bench.now, is_proxys=True)
    assert not bench.scheduler.cancel("first", bench.now, is_proxys=True)
    assert not bench.scheduler.cancel("running", bench.now, is_proxys=True)
    assert not bench.scheduler.export()["patience"]
    bench.scheduler.submit(
        ticket("again", session="first", at=bench.now, request_hash="first"), bench.settings, bench.now
    )
    bench.settle("running")
    assert list(bench.running) == ["again"]
    assert bench.of(TicketEnded)[0].reason == "its proxy went"


def test_who_was_tried_waits_again_at_the_endpoint_where_it_was():
    scheduler = Scheduler(rng=random.Random(0))
    for number in range(4):
        made = replace(
            ticket(f"t{number}", session=f"s{number}"), pool=OTHER, endpoints=(Endpoint(POOL), Endpoint(OTHER))
        )
        scheduler.submit(made, SETTINGS, 0.0, history=History().started())
    told = {one.key: one.in_flight for _ in [scheduler.poll(0.0)] for one in scheduler.pools_told()}
    assert told == {POOL: 1, OTHER: 3}, "the fourth finds no slot there, and moves"


def test_an_account_that_proved_to_be_another_one_is_that_for_who_has_not_heard_of_it():
    """Else each of both names would have all of the limit."""
    before = Bench(slots=2)
    before.submit("x")
    before.submit("y", pool=OTHER)
    for name in ("x", "y"):
        before.observe(name, account="org")
    bench = Bench(slots=2)
    bench.scheduler.restore(before.scheduler.export(), 0.0)
    bench.scheduler.bypass(OTHER, 1)
    announced(bench, "x")
    assert bench.submit("y", "z", pool=OTHER) == []
    assert [(told.key, told.in_flight) for told in bench.scheduler.pools_told()] == [(POOL, 2)]
    bench.scheduler.bypass(OTHER, -1)
    assert bench.poll() == ["y"]


def test_only_pools_that_were_polled_are_told_again():
    bench = Bench()
    bench.submit("a")
    assert [told.in_flight for told in bench.scheduler.drain_pools_told()] == [1]
    bench.poll()
    assert bench.scheduler.drain_pools_told() == []
    bench.scheduler.submit(ticket("b", pool=OTHER), bench.settings, 0.0)
    bench.poll()
    (told,) = bench.scheduler.drain_pools_told()
    assert told == PoolTold(key=OTHER, profile="", limit=4, in_flight=1, provider_down=False, nobody_answered=False)
    assert bench.scheduler.pools_told()[1] == told


# All of it crosses between processes -------------------------------------------------------------------------------------

_PLAIN = {
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=3),
    bool: st.booleans(),
    type(None): st.none(),
}


def values(kind: object) -> st.SearchStrategy:
    """Of a type, with every field of it filled in."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in (typing.Union, UnionType):
        return st.one_of(*map(values, parts))
    if origin is typing.Annotated:
        return values(parts[0])
    if origin is tuple:
        return st.lists(values(parts[0]), max_size=2).map(tuple)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else msgspec.structs.fields(kind)
    return st.builds(kind, **{field.name: values(field.type) for field in fields})


CROSSING = (Ticket, PoolSettings, Hints, AttemptResult, History, Verdict, Admitted | Shed | Refused, PoolTold, Event)


@given(st.tuples(*(values(kind) for kind in CROSSING)))
def test_what_crosses_is_the_same_on_the_other_side(crossing):
    for value, kind in zip(crossing, CROSSING, strict=True):
        data = msgspec.msgpack.encode(value)
        back = msgspec.msgpack.decode(data, type=kind)
        assert msgspec.msgpack.encode(back) == data
        assert type(back) is type(value)
