"""What the next call of an agent will look like."""

from msgspec.structs import replace

from hivemind_addon.api.command import ForeseeWait
from hivemind_addon.api.ticket import CallKind, Demand
from hivemind_addon.proxy.core.forecast import Callers
from tests.core.samples import POOL, ticket


def test_the_next_turn_of_a_conversation_finds_its_history_in_the_cache():
    """Its first call is large, the next ones are not: that is learned from anybody's."""
    callers = Callers()
    first = replace(ticket("a1", session="a"), demand=Demand(input_tokens=9000), prefix="p", prefix_tokens=8000)
    callers.called(first)
    assert callers.next_call(ForeseeWait("a"), POOL, 5.0).demand.input_tokens == 9000
    going_on = replace(ticket("b2", session="b"), demand=Demand(input_tokens=700), cached_tokens=9000, cold_tokens=9000)
    callers.called(going_on)
    expected = callers.next_call(ForeseeWait("a"), POOL, 5.0)
    assert (expected.demand.input_tokens, expected.cached_tokens, expected.cold_tokens) == (700, 9000, 9000)
    new = callers.next_call(ForeseeWait("b", session="another"), POOL, 5.0)
    assert (new.cached_tokens, new.demand) == (0, going_on.demand)


def test_where_what_is_cached_counts_the_next_turn_is_as_large():
    callers = Callers()
    callers.called(replace(ticket("a2", session="a"), demand=Demand(input_tokens=9000), cached_tokens=8000))
    expected = callers.next_call(ForeseeWait("a"), POOL, 5.0)
    assert (expected.demand.input_tokens, expected.cached_tokens, expected.cold_tokens) == (9000, 9000, 0)


def test_who_is_not_known_calls_as_anybody_does():
    callers = Callers()
    assert callers.next_call(ForeseeWait("new"), POOL, 5.0).demand == Demand()
    callers.called(ticket("a", demand=Demand(input_tokens=300)))
    made = callers.next_call(ForeseeWait("new"), POOL, 5.0)
    assert (made.agent, made.session, made.demand.input_tokens, made.arrived_at) == ("new", "new", 300, 5.0)
    assert callers.called_at("new") is None


def test_what_is_asked_for_counts_and_the_rest_is_as_usual():
    callers = Callers()
    callers.called(ticket("a", session="a", demand=Demand(input_tokens=300, output_tokens=50, total_tokens=350)))
    made = callers.next_call(ForeseeWait("a", input_tokens=1000), POOL, 5.0)
    assert made.demand == Demand(requests=1, input_tokens=1000, output_tokens=50, total_tokens=1050)


def test_a_title_is_nobodys_last_call_and_old_sessions_are_forgotten():
    callers = Callers()
    callers.called(ticket("a", session="a", at=1.0))
    callers.called(replace(ticket("t", session="a", at=2.0), kind=CallKind.AUXILIARY))
    assert callers.called_at("a") == 1.0
    for number in range(500):
        callers.called(ticket(f"t{number}", session=f"s{number}", at=3.0))
    assert callers.called_at("a") is None
    assert repr(callers) == "<Callers: 500 sessions>"
