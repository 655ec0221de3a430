"""Two pools prove to be one: whatever state a ticket of the one that goes is in, it goes on, and ends."""

from msgspec.structs import replace

from hivemind_addon.kernel.order.entry import TRANSITIONS, WAITING, EntryState
from hivemind_addon.kernel.values.events import Held, TicketEnded
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import Usage
from tests.cases import each
from tests.kernel.samples import FAILED, POOL, Bench, after, ticket

OTHER = replace(POOL, account="key-2")
SHARED = Budget(scope=Scope.GROUP, name="g", per=Period.RUN, tokens=150)


class TwoKeys(Bench):
    """`POOL` has one attempt in flight, `mine`; `OTHER` has `flying`, and one slot."""

    def __init__(self) -> None:
        super().__init__(slots=1)
        self.send("mine")

    def send(self, name: str, **more: object) -> list[str]:
        self.scheduler.submit(replace(ticket(name, session=name, at=self.now), **more), self.settings, self.now)
        return self.poll()

    def merge(self) -> None:
        self.observe("mine", account="org")
        self.observe("flying", account="org")
        assert len(self.scheduler.snapshot(self.now).pools) == 1

    def finish(self) -> list[str]:
        for _ in range(100):
            for name in list(self.running):
                self.settle(name, usage=Usage(output_tokens=1, reported=True))
            if self.scheduler.is_idle:
                break
            if not self.running:
                self.advance_to_wakeup()
        assert self.scheduler.is_idle, "somebody waits for ever"
        assert {event.end for event in self.of(TicketEnded)} == {"delivered"}
        return [event.ticket_id for event in self.of(TicketEnded)]


def due(bench: TwoKeys) -> None:
    bench.send("flying", pool=OTHER)
    bench.send("it", pool=OTHER)


def backing_off(bench: TwoKeys) -> None:
    bench.send("it", pool=OTHER)
    bench.settle("it", after(FAILED, 30))
    bench.send("flying", pool=OTHER)


def returning(bench: TwoKeys) -> None:
    backing_off(bench)
    bench.advance(31)


def at_the_front(bench: TwoKeys) -> None:
    due(bench)
    assert bench.scheduler._pools[OTHER].queue.move_to_front("it", bench.now)


def following(bench: TwoKeys) -> None:
    bench.settings = Bench(slots=4).settings
    prompt = {"prefix": "p", "prefix_tokens": 50_000, "pool": OTHER}
    bench.send("flying", **prompt)
    bench.send("it", **prompt)


def unfunded(bench: TwoKeys) -> None:
    bench.settings = Bench(slots=4).settings
    money = {"budgets": (SHARED,), "expected": Spend(100), "pool": OTHER}
    bench.send("flying", **money)
    bench.send("it", **money)


@each(
    "state, arrange",
    [
        (EntryState.DUE, due),
        (EntryState.BACKING_OFF, backing_off),
        (EntryState.DUE, returning),
        (EntryState.DUE, at_the_front),
        (EntryState.ASIDE, following),
        (EntryState.UNFUNDED, unfunded),
    ],
)
def test_one_that_waits_in_any_state_goes_on_in_the_other_pool_and_ends(state, arrange):
    bench = TwoKeys()
    arrange(bench)
    entry = bench.scheduler._pools[OTHER].queue.entries.get("it")
    assert entry.state is state
    bench.merge()
    assert sorted(bench.finish()) == ["flying", "it", "mine"]
    waits = [event.ticket_id for event in bench.of(Held)]
    assert waits.count("it") <= 1 + entry.history.setbacks, "a wait is told once, in whichever pool it began"


def test_the_table_lets_all_that_waits_be_new_in_another_pool_and_wait_there():
    kept = {EntryState.BACKING_OFF, EntryState.UNFUNDED}
    assert all(EntryState.NEW in TRANSITIONS[state] for state in WAITING)
    assert TRANSITIONS[EntryState.NEW] >= kept


def test_what_a_person_moved_to_the_front_goes_first_there_too_and_of_equals_those_that_wait_there():
    bench = TwoKeys()
    bench.send("flying", pool=OTHER)
    bench.send("theirs", pool=OTHER)
    bench.send("ours")
    bench.send("moved", pool=OTHER)
    bench.scheduler._pools[OTHER].queue.move_to_front("moved", bench.now)
    bench.merge()
    assert bench.finish()[2:] == ["moved", "ours", "theirs"]


def test_one_that_is_tried_again_does_not_wait_for_the_virtual_time_of_the_pool_that_went():
    bench = TwoKeys()
    for number in range(200):
        bench.send(f"b{number}", pool=OTHER)
        bench.advance(10)
        bench.settle(f"b{number}")
    bench.send("flying", pool=OTHER)
    bench.merge()
    bench.send("later")
    bench.settle("flying", FAILED)
    bench.send("latest")
    bench.advance(5)
    assert bench.finish()[200:202] == ["mine", "flying"]
