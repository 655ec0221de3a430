"""Pools that are equal: where a ticket waits first, and when it goes to another one."""

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.values.command import Pause, Resume
from hivemind_addon.kernel.values.decision import Backoff, Finished, GiveUp
from hivemind_addon.kernel.values.events import AttemptStarted, Moved, TicketEnded
from hivemind_addon.kernel.values.ticket import Demand, Endpoint, Hints, PoolKey
from tests.kernel.samples import FAILED, IGNORED, SUCCESS, THROTTLED, Bench, after, brittle, ticket

EAST, WEST = (PoolKey(host=f"{name}.test", account=name, model_group="m") for name in ("east", "west"))
BOTH = (Endpoint(EAST), Endpoint(WEST))
SPENT = replace(IGNORED, reason="429 spent", status=429, account_block_s=7200.0)
WARM_TOKENS = 40_000


class TwoPools(Bench):
    """Tickets go to either."""

    def ask(self, ticket_id, *, session=None, parent="", endpoints=BOTH, cached=0, patience_s=600.0):
        made = ticket(
            ticket_id,
            session=session or ticket_id,
            at=self.now,
            patience_s=patience_s,
            demand=Demand(input_tokens=2000),
        )
        made = replace(
            made,
            agent="a",
            pool=EAST,
            parent_session=parent,
            endpoints=endpoints,
            cached_tokens=cached,
            cold_tokens=cached,
        )
        self.scheduler.submit(made, self.settings, self.now)
        self.poll()
        return self.where(ticket_id)

    def where(self, ticket_id):
        """Its endpoint, while it is in flight."""
        attempt = self.running.get(ticket_id)
        return None if attempt is None else attempt.ticket.pool.account

    def answer(self, ticket_id):
        """It is answered, and its prompt cache warm."""
        self.scheduler.observe(self.running[ticket_id], Hints(), self.now)
        assert self.settle(ticket_id) == Finished()

    def view(self, pool):
        return next(one for one in self.scheduler.snapshot(self.now).pools if one.key == pool)


def test_new_trees_are_spread_and_a_tree_stays_together():
    bench = TwoPools()
    assert [bench.ask("a"), bench.ask("b")] == ["east", "west"]
    assert bench.ask("child", parent="b") == "west"
    assert bench.ask("again", session="a") == "east"


def test_weights_say_how_new_trees_are_spread():
    bench = TwoPools(slots=20)
    heavy = (Endpoint(EAST, weight=3.0), Endpoint(WEST, weight=1.0))
    places = [bench.ask(f"t{number}", endpoints=heavy) for number in range(12)]
    assert (places.count("east"), places.count("west")) == (9, 3)


def test_a_session_that_is_over_counts_no_more():
    """After the time that its prompt cache lives."""
    bench = TwoPools(slots=20)
    assert [bench.ask(name) for name in "abc"] == ["east", "west", "east"]
    bench.advance(200.0)
    assert bench.ask("again", session="b") == "west"
    bench.advance(200.0)
    assert [bench.ask(name) for name in "xyz"] == ["east", "east", "west"]  # b is in the west still


def test_who_loses_nothing_goes_at_once_where_there_is_room():
    bench = TwoPools(slots=1)
    assert [bench.ask("a"), bench.ask("b"), bench.ask("new")] == ["east", "west", None]
    bench.settle("b")
    assert bench.where("new") == "west"


def test_a_warm_conversation_stays_until_the_other_one_has_idled_for_its_price():
    """40,000 tokens are read in some seconds: that long the idle endpoint waits before it takes the conversation."""
    bench = TwoPools(slots=1)
    bench.ask("a1", session="a")
    bench.now += 60.0
    bench.answer("a1")
    assert bench.ask("blocker", session="a") == "east"
    assert bench.ask("a2", session="a", cached=WARM_TOKENS) is None
    bench.advance(0.2)
    assert bench.where("a2") is None
    for _ in range(20):
        bench.advance(1.0)
    assert bench.where("a2") == "west"
    (moved,) = bench.of(Moved)
    assert (moved.left, moved.pool) == (EAST, WEST)
    bench.settle("blocker")
    bench.answer("a2")
    assert bench.ask("a3", session="a", cached=WARM_TOKENS) == "west"


def test_who_waits_for_an_attempt_that_hangs_goes_in_the_end():
    """The forecast says that it ends soon, again and again."""
    bench = TwoPools(slots=1)
    bench.ask("a1", session="a")
    bench.answer("a1")
    bench.ask("hangs", session="a")
    bench.ask("a2", session="a", cached=WARM_TOKENS)
    for _ in range(60):
        bench.advance(0.5)
    assert bench.where("a2") == "west"


def test_nobody_waits_for_an_outage_while_the_other_one_serves():
    bench = TwoPools(settings=brittle(2))
    for number in range(6):
        bench.ask(f"t{number}")
    for ticket_id in [one for one in bench.running if bench.where(one) == "east"]:
        assert isinstance(bench.settle(ticket_id, FAILED), Backoff)
    assert bench.view(EAST).breaker == "open"
    assert {bench.where(f"t{number}") for number in range(6)} == {"west"}
    assert bench.ask("new") == "west"


def test_the_block_of_one_is_not_felt_while_the_other_one_serves():
    """Neither by whom it refused, nor by those that waited for it, nor by whoever comes."""
    bench = TwoPools(slots=2)
    places = {name: bench.ask(name) for name in "abcd"}
    waiting = [bench.ask(name) for name in "ef"]
    assert waiting == [None, None]
    refused = next(name for name, place in places.items() if place == "east")
    assert isinstance(bench.settle(refused, SPENT), Backoff)
    assert bench.view(EAST).account_block is not None
    assert bench.view(EAST).queued == 0
    while bench.running:
        bench.settle(next(iter(bench.running)))
    assert {event.end for event in bench.of(TicketEnded)} == {"delivered"}
    assert bench.ask("late") == "west"


@pytest.mark.parametrize("status", [401, 402])
def test_a_key_that_is_refused_blocks_its_endpoint_for_minutes(status):
    bench = TwoPools()
    bench.ask("a")
    assert isinstance(bench.settle("a", replace(IGNORED, reason=str(status), status=status)), Backoff)
    assert bench.where("a") == "west"
    assert bench.view(EAST).account_block.ends_in_s == 300


def test_where_all_are_blocked_the_last_refusal_is_the_clients():
    bench = TwoPools()
    bench.ask("a")
    assert isinstance(bench.settle("a", SPENT), Backoff)
    assert isinstance(bench.settle("a", SPENT), GiveUp)


def test_a_request_that_is_wrong_itself_is_not_tried_elsewhere():
    bench = TwoPools()
    bench.ask("a")
    assert isinstance(bench.settle("a", IGNORED), GiveUp)


def test_who_is_told_to_wait_goes_to_the_other_one():
    bench = TwoPools()
    bench.ask("a")
    bench.settle("a", after(THROTTLED, 30.0))
    assert bench.where("a") == "west"
    assert [event.attempt for event in bench.of(AttemptStarted)] == [1, 2]


def test_a_request_that_fails_everywhere_is_not_sent_back_and_forth_without_a_pause():
    bench = TwoPools()
    bench.ask("a")
    bench.settle("a", FAILED)
    assert bench.where("a") == "west"
    bench.settle("a", FAILED)
    assert bench.where("a") is None


def test_one_that_is_paused_sends_nothing_and_the_other_one_takes_all():
    bench = TwoPools()
    bench.scheduler.command(Pause("east.test"), bench.now)
    assert [bench.ask(f"t{number}") for number in range(3)] == ["west"] * 3


def test_who_stops_moves_nobody_and_wakes_for_nobody():
    bench = TwoPools(slots=1)
    bench.ask("a1", session="a")
    bench.now += 60.0
    bench.answer("a1")
    bench.ask("blocker", session="a")
    bench.ask("a2", session="a", cached=WARM_TOKENS)
    bench.scheduler.close(bench.now)
    bench.poll()
    assert [one.ticket.id for one in bench.shed] == ["a2"]
    assert bench.scheduler.next_wakeup() is None


def test_a_ticket_goes_nowhere_that_it_does_not_name():
    bench = TwoPools(slots=1)
    only = (Endpoint(EAST),)
    assert [bench.ask("a", endpoints=only), bench.ask("b", endpoints=only)] == ["east", None]
    bench.settle("a", SUCCESS)
    assert bench.where("b") == "east"


def test_who_waits_where_a_person_pauses_goes_on_behind_those_of_the_other_one():
    """Which never idles: each that it serves is followed by another one."""
    bench = TwoPools(slots=1)
    assert [bench.ask(name) for name in "ab"] == ["east", "west"]
    assert [bench.ask("a2", session="a", cached=WARM_TOKENS), bench.ask("b2", session="b")] == [None, None]
    bench.scheduler.command(Pause("east.test"), bench.now)
    for number in range(3, 20):
        bench.ask(f"b{number}", session="b")
        bench.settle(next(one for one in bench.running if bench.where(one) == "west"))
        bench.advance(1.0)
    assert [event.ticket_id for event in bench.of(Moved)] == ["a2"]
    assert "a2" in [event.ticket_id for event in bench.of(AttemptStarted)]


def keys_of_one(slots):
    """Two keys of one host, and another host; the first one's organisation is that of a key outside."""
    outside, first, second = (PoolKey(host="one.test", account=name, model_group="m") for name in ("out", "k1", "k2"))
    bench = TwoPools(slots=slots)
    made = ticket("other", session="other", at=bench.now, demand=Demand(input_tokens=2000), pool=outside)
    bench.scheduler.submit(made, bench.settings, bench.now)
    bench.poll()
    bench.observe("other", account="org")
    return bench, outside, first, second


def test_who_waits_in_a_pool_that_proves_to_be_another_one_still_goes_elsewhere():
    bench, outside, first, _ = keys_of_one(slots=1)
    either = (Endpoint(first), Endpoint(WEST))
    assert [bench.ask(name, endpoints=either) for name in ("a", "b")] == ["k1", "west"]
    assert bench.ask("a2", session="a", endpoints=either) is None
    bench.observe("a", account="org")
    assert (bench.view(outside).in_flight, bench.view(outside).queued) == (2, 1)
    bench.settle("b")
    assert bench.where("a2") == "west"


def test_a_refusal_is_the_clients_where_all_its_endpoints_are_one_account():
    bench, outside, first, second = keys_of_one(slots=4)
    assert bench.ask("a", endpoints=(Endpoint(first), Endpoint(second))) == "k1"
    assert bench.ask("b", endpoints=(Endpoint(first), Endpoint(second))) == "k2"
    bench.observe("a", account="org")
    bench.observe("b", account="org")
    assert isinstance(bench.settle("a", replace(IGNORED, reason="401", status=401)), GiveUp)
    assert bench.view(outside).account_block is None


def test_who_is_blocked_in_one_waits_for_a_person_in_the_other():
    bench = TwoPools(slots=1)
    bench.ask("a")
    bench.scheduler.command(Pause("west.test"), bench.now)
    assert isinstance(bench.settle("a", SPENT), Backoff)
    assert (bench.view(WEST).queued, bench.of(TicketEnded)) == (1, [])
    bench.scheduler.command(Resume("west.test"), bench.now)
    bench.advance(1.0)
    assert bench.where("a") == "west"
