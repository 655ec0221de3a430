from msgspec.structs import replace

from hivemind_addon.kernel.values.snapshot import (
    AccountBlockView,
    BudgetView,
    Counters,
    MeterView,
    PoolView,
    Snapshot,
    WindowView,
)
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import PoolKey
from hivemind_addon.proxy.record.contexts import Contexts
from hivemind_addon.proxy.record.gauges import GAUGES, MAX_BUDGETS, gauges_of
from tests.proxy.record.test_contexts import Watched

POOL = PoolView(
    key=PoolKey("host.test", "key-1", "*"),
    account_name=None,
    in_flight=3,
    bypassing=1,
    limit=8,
    queued=5,
    breaker="half-open",
    blocked_for_s=2.5,
    meters=(MeterView(name="requests", kind="window", limit=50, level=7, full_in_s=30),),
    tickets=(),
    account_block=AccountBlockView(reason="spent", ends_in_s=60),
    windows=(WindowView(name="5h", used=0.62, status="allowed", resets_in_s=None, length_s=None),),
    paused=True,
    longest_wait_s=42.0,
)


def values(snapshot, label=str, contexts=None):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges_of(lambda: snapshot, label, contexts or Contexts(), lambda key, now: (1200.0, 34.0))
        for sample in family.samples
    }


def snapshot(*pools, budgets=(), stopping=False):
    return Snapshot(at=0, stopping=stopping, pools=pools, counters=Counters(), budgets=budgets)


def budget(name, spent, limit=100):
    return BudgetView(
        budget=Budget(Scope.AGENT, name, Period.DAY, tokens=limit),
        spent=Spend(tokens=spent),
        reserved=Spend(tokens=5),
        renews_in_s=1,
    )


def test_a_pool_is_told_whole():
    told = values(snapshot(POOL))
    name = str(POOL.key)
    assert {key[0]: value for key, value in told.items() if key[1:] == (name,)} == {
        "hivemind_queued": 5,
        "hivemind_longest_wait_seconds": 42,
        "hivemind_in_flight": 3,
        "hivemind_bypassing": 1,
        "hivemind_concurrency_limit": 8,
        "hivemind_paused": 1,
        "hivemind_blocked_seconds": 2.5,
        "hivemind_account_block": 1,
        "hivemind_account_block_seconds": 60,
    }
    assert told["hivemind_meter_level", name, "requests"] == 7
    assert told["hivemind_window_used_ratio", name, "5h"] == 0.62
    assert told["hivemind_breaker_state", name, "half-open"] == 1
    assert told["hivemind_breaker_state", name, "closed"] == 0


def test_our_own_maximum_is_told_while_it_keeps_attempts_from_going():
    told = values(snapshot(replace(POOL, maximum_from="the key")))
    assert told["hivemind_concurrency_maximum", str(POOL.key), "the key"] == POOL.limit


def test_what_is_not_known_is_not_told():
    told = values(snapshot(POOL))
    unknown = ("hivemind_concurrency_cap", "hivemind_concurrency_maximum", "hivemind_window_reset_seconds")
    assert not [key for key in told if key[0] in unknown]


def test_a_pool_without_a_label_is_left_out():
    assert not [key for key in values(snapshot(POOL), lambda _: None) if key[0] == "hivemind_queued"]


def test_budgets_are_told_and_the_fullest_are_those_that_are_told():
    told = values(snapshot(budgets=tuple(budget(f"agent-{number}", number) for number in range(MAX_BUDGETS + 20))))
    spent = {key[1]: value for key, value in told.items() if key[0] == "hivemind_budget_spent_tokens"}
    assert len(spent) == MAX_BUDGETS
    assert "agent agent-119" in spent
    assert "agent agent-19" not in spent
    assert told["hivemind_budget_limit_tokens", "agent agent-50", "day"] == 100
    assert not [key for key in told if key[0] == "hivemind_budget_limit_dollars"]


def test_a_scheduler_that_fails_is_down_and_nothing_else_is_known():
    def fails():
        raise RuntimeError("injected")

    (family,) = gauges_of(fails, str, Contexts(), lambda key, now: (0.0, 0.0))
    assert [(sample.name, sample.value) for sample in family.samples] == [("hivemind_scheduler_up", 0)]


def test_contexts_are_told_together_those_that_are_still_going_on():
    watched = Watched()
    for session, tokens in (("old", 190_000), ("full", 170_000), ("half", 100_000)):
        watched.now += 540
        watched.ask(tokens, session=session)
    told = values(replace(snapshot(POOL), at=watched.now), contexts=watched.contexts)
    assert told[("hivemind_contexts",)] == 2
    assert told[("hivemind_contexts_full",)] == 1
    assert told[("hivemind_context_fullest_ratio",)] == 0.85
    assert ("hivemind_context_fullest_ratio",) not in values(snapshot(POOL))


def test_only_what_is_described_is_told():
    assert {key[0] for key in values(snapshot(POOL, budgets=(budget("a", 1),)))} <= set(GAUGES)
