"""When a call that an agent made now would be sent: as told, beside when it was sent."""

from statistics import median

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.forecast import Callers
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.command import CommandResult, Declined, ForeseeWait, Pause, SetLimit, SetPriority
from hivemind_addon.kernel.values.events import AttemptStarted
from hivemind_addon.kernel.values.spend import Budget, Scope, Spend
from hivemind_addon.kernel.values.ticket import CallKind, Demand, Dimension, Priority, Reading
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.policy import Policy
from hivemind_addon.sim.world import World
from tests.kernel.samples import OVERLOADED, POOL, THROTTLED, Bench, after, requests_reading, ticket


def foreseen(bench, agent="new", **asked):
    (view,) = bench.scheduler.command(ForeseeWait(agent, **asked), bench.now).waits
    assert view.pool == POOL
    return view.starts_in_s, view.before, "" if view.reason is None else view.reason.value


def full(bench, *ticket_ids):
    """The one slot is taken by an attempt that has run for 1 s; 10 s is the mean."""
    bench.submit("first")
    bench.scheduler.command(SetLimit(1), bench.now)
    bench.advance(10)
    bench.settle("first")
    bench.submit(*ticket_ids)
    bench.advance(1)


def test_where_nothing_is_in_the_way_it_goes_at_once():
    bench = Bench()
    bench.submit("a")
    assert foreseen(bench) == (0.0, 0, "")


def test_before_the_first_call_nothing_is_known():
    assert Bench().scheduler.command(ForeseeWait("new"), 0) == CommandResult()


def test_where_all_slots_are_taken_it_waits_for_the_first_that_ends():
    bench = Bench(slots=1)
    full(bench, "a", "b")
    assert foreseen(bench) == (pytest.approx(19), 1, "concurrency limit")


def test_asking_changes_nothing():
    bench = Bench(slots=1)
    full(bench, "a", "b", "c")
    before, wakeup_at = bench.scheduler.snapshot(bench.now), bench.scheduler.next_wakeup()
    for _ in range(3):
        foreseen(bench, "b")
        foreseen(bench, "unheard-of")
    assert bench.scheduler.snapshot(bench.now) == before
    assert bench.scheduler.next_wakeup() == wakeup_at
    assert bench.scheduler.drain_events() == []


def test_a_meter_tells_the_instant():
    bench = Bench(slots=8)
    bench.submit("a", "b")
    bench.observe("a", requests_reading(limit=2, remaining=0, reset_in_s=30))
    starts_in_s, before, reason = foreseen(bench)
    assert (before, reason) == (0, "rate limit")
    bench.submit("new")
    waiting = bench.pool.tickets[-1]
    assert waiting.state == "queued"
    assert starts_in_s == pytest.approx(bench.scheduler.next_wakeup() - bench.now)


def test_a_larger_call_waits_longer():
    bench = Bench(slots=8)
    bench.submit("a")
    tokens = Reading("input-tokens", Dimension.INPUT_TOKENS, 60, limit=1000, remaining=500, reset_in_s=30)
    bench.observe("a", tokens)
    assert foreseen(bench, input_tokens=400) == (0.0, 0, "")
    starts_in_s, _, reason = foreseen(bench, input_tokens=900)
    assert starts_in_s > 20
    assert reason == "rate limit"
    bench.submit("huge", demand=Demand(input_tokens=900))
    assert foreseen(bench, input_tokens=20) == (0.0, 0, ""), "within the slack of the one that waits"
    assert foreseen(bench, input_tokens=400)[0] > 20, "which others may not delay further"


def test_a_call_is_as_large_as_the_last_one_of_its_agent():
    bench = Bench(slots=8)
    bench.submit("big", demand=Demand(input_tokens=900))
    bench.submit("small", demand=Demand(input_tokens=100))
    bench.observe("big", Reading("input-tokens", Dimension.INPUT_TOKENS, 60, limit=2000, remaining=500, reset_in_s=40))
    assert foreseen(bench, "small") == (0.0, 0, "")
    assert foreseen(bench, "big")[0] > 0


def test_the_providers_own_pause_is_waited_for():
    bench = Bench()
    bench.submit(*"abcdefgh")
    for ticket_id in tuple(bench.running):
        bench.settle(ticket_id, after(THROTTLED, 20))
    starts_in_s, _, reason = foreseen(bench)
    assert starts_in_s is None or 0 <= starts_in_s <= 20.5, "now and then one goes before, to see"
    assert reason == "told to wait"


def test_while_the_provider_is_down_it_waits_for_the_probe():
    bench = Bench(slots=8)
    bench.submit(*"abcdefg")
    for ticket_id in "abcdefg":
        bench.settle(ticket_id, OVERLOADED)
    starts_in_s, _, reason = foreseen(bench)
    assert bench.pool.breaker == "open"
    assert reason == "provider down"
    assert starts_in_s is None or starts_in_s >= bench.pool.breaker_tries_in_s, "older tickets probe first"


def test_a_pause_has_no_end_that_is_known():
    bench = Bench()
    bench.submit("a")
    bench.scheduler.command(Pause(), bench.now)
    assert foreseen(bench) == (None, 0, "paused by a person")


def test_a_spent_account_refuses_until_its_end():
    bench = Bench()
    bench.submit("a")
    bench.settle("a", replace(THROTTLED, reason="5-hour window", account_block_s=3600))
    assert foreseen(bench) == (pytest.approx(3600), 0, "the account's limit is spent")


def test_a_spent_budget_refuses_until_it_renews():
    bench = Bench()
    budget = Budget(Scope.AGENT, "poor", tokens=10)
    made = replace(ticket("a", session="poor"), budgets=(budget,), expected=Spend(tokens=10))
    bench.scheduler.submit(made, bench.settings, bench.now)
    bench.poll()
    assert foreseen(bench, "poor") == (None, 0, "its budget is reserved by running requests")
    bench.settle("a", charged=Demand(input_tokens=10, total_tokens=10))
    assert foreseen(bench, "poor") == (None, 0, "budget spent")
    assert foreseen(bench, "rich") == (0.0, 0, "")


def test_who_has_priority_goes_before_those_that_wait():
    bench = Bench(slots=1)
    full(bench, "a", "b", "c", "d")
    assert foreseen(bench)[1] == 3
    bench.scheduler.command(SetPriority("new", Priority.CRITICAL), bench.now)
    assert foreseen(bench) == (pytest.approx(9), 0, "concurrency limit")


def test_an_agents_own_calls_of_the_same_session_go_first():
    bench = Bench(slots=1)
    full(bench, "filler", "a")
    bench.submit("a2", "a3", session="a")
    assert foreseen(bench, "a")[1] == 3
    assert foreseen(bench, "new")[1] < 3


def test_one_that_backs_off_for_long_does_not_go_first():
    bench = Bench(slots=1)
    full(bench, "a")
    bench.settle("a", replace(OVERLOADED, retry_after_s=300))
    bench.advance(301)
    bench.settle("a")
    bench.submit("b", "c")
    view = foreseen(bench)
    assert view[1] == 1
    assert view[0] is not None


def test_titles_and_summaries_are_no_ones_next_call():
    bench = Bench(slots=8)
    bench.submit("a", demand=Demand(input_tokens=900))
    title = replace(ticket("t", session="a", demand=Demand(input_tokens=1)), kind=CallKind.AUXILIARY)
    bench.scheduler.submit(title, bench.settings, bench.now)
    bench.poll()
    bench.observe("a", Reading("input-tokens", Dimension.INPUT_TOKENS, 60, limit=2000, remaining=500, reset_in_s=40))
    assert foreseen(bench, "a")[0] > 0


def test_what_cannot_be_foreseen_is_declined():
    bench = Bench()
    bench.submit("a")
    for asked, why in (
        (ForeseeWait(""), Declined.NO_CALL_NAMED),
        (ForeseeWait("a", pool=""), Declined.NO_CALL_NAMED),
        (ForeseeWait("a", input_tokens=-1), Declined.NEGATIVE_TOKENS),
        (ForeseeWait("a", pool="nowhere"), Declined.NO_SUCH_POOL),
    ):
        assert bench.scheduler.command(asked, bench.now).declined is why


def test_the_pools_that_an_agent_used_come_with_the_last_one_first():
    bench = Bench()
    other = replace(POOL, model_group="other")
    bench.submit("a")
    bench.now = 1.0
    bench.scheduler.submit(ticket("a2", session="a", at=1.0, pool=other), bench.settings, bench.now)
    bench.scheduler.submit(ticket("b", session="b", at=1.0, pool=other), bench.settings, bench.now)
    bench.poll()

    def pools(agent, glob="*"):
        return [view.pool for view in bench.scheduler.command(ForeseeWait(agent, pool=glob), 1.0).waits]

    assert pools("a") == [other, POOL]
    assert pools("b") == [other]
    assert pools("new") == [POOL, other]
    assert pools("a", "api.test/*/m") == [POOL]
    assert pools("b", "api.test/*/m") == [POOL], "of one that used none of these, all of these"


class Foreseeing(Scheduler):
    """Asks before each call when it would go, and keeps how far that was off."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._told = {}
        self.told_and_waited = []

    def submit(self, made, settings, now):
        asked = ForeseeWait(made.agent, session=made.session, pool=str(made.pool))
        if waits := self.command(asked, now).waits:
            self._told[made.id] = waits[0].starts_in_s, now
        super().submit(made, settings, now)

    def note(self, event):
        super().note(event)
        if isinstance(event, AttemptStarted) and event.attempt == 1 and (told := self._told.pop(event.ticket_id, None)):
            self.told_and_waited.append((told[0], event.at - told[1]))


@pytest.mark.parametrize("name", ["micro-5", "latency-spike", "replay-11", "micro-50"])
def test_simulated_loads(name):
    """Calls that come later change what was told, so the bound is on the median; at once is at once."""
    foreseeing = []

    def admission(rng):
        foreseeing.append(Foreseeing(rng=rng))
        return foreseeing[-1]

    World(cases()[name].scenario, seed=1, policy=Policy("foreseeing", "asks first", admission)).run()
    asked = foreseeing[0].told_and_waited
    calls = [(told, waited) for told, waited in asked if told is not None]
    assert len(calls) >= 0.95 * len(asked) > 20
    assert all(waited < 1 for told, waited in calls if told == 0)
    waits = [(told, waited) for told, waited in calls if told > 0]
    if waits:
        assert median(abs(told - waited) for told, waited in waits) <= 0.1 * median(waited for _, waited in waits)


# What the next call of an agent will look like -----------------------------------------------------------------------


def test_a_new_session_of_an_agent_has_nothing_in_the_cache():
    callers = Callers()
    going_on = replace(ticket("b2", session="b"), demand=Demand(input_tokens=700), cached_tokens=9000, cold_tokens=9000)
    callers.called(going_on)
    next_turn = callers.next_call(ForeseeWait("b"), POOL, 5.0)
    assert (next_turn.cached_tokens, next_turn.demand) == (9000, going_on.demand)
    new = callers.next_call(ForeseeWait("b", session="another"), POOL, 5.0)
    assert (new.cached_tokens, new.demand) == (0, going_on.demand)


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
    assert callers.called_at("s499") == 3.0
