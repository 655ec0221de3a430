"""What several processes may do that are cut off from each other, all together: no more than the whole."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.learned import LearnedMeter, LearnedPool, MeterKind, Saved
from hivemind_addon.kernel.limits.slots import ConcurrencySettings
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.decision import Admitted, Refused
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.kernel.values.spend import AccountState, Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, Dimension, Reading, Usage
from hivemind_addon.plugins.cluster.limit_share import scaled_hints, scaled_learned, scaled_settings
from tests.kernel.samples import POOL, SUCCESS, hints, requests_reading, ticket

SETTINGS = PoolSettings(concurrency=ConcurrencySettings(initial=50, maximum=50))


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 100))
def test_shares_of_a_concurrency_limit_come_to_the_limit_or_to_one_each(initial, maximum, members):
    whole = PoolSettings(profile="p", concurrency=ConcurrencySettings(initial=initial, maximum=maximum))
    scaled = scaled_settings(whole, 1 / members)
    assert members * scaled.concurrency.maximum <= max(members, maximum)
    assert members * scaled.concurrency.initial <= max(members, initial)
    assert scaled.concurrency.initial >= 1
    assert scaled_settings(whole, 1.0) == whole
    assert (scaled.profile, scaled.retry, scaled.breaker) == ("p", whole.retry, whole.breaker)


def test_headers_tell_of_a_share_of_their_limits():
    told = hints(replace(requests_reading(limit=50, remaining=20, reset_in_s=30.0), granularity=10.0))
    (reading,) = scaled_hints(told, 0.25).readings
    assert reading == Reading(
        "requests", Dimension.REQUESTS, 60, limit=12.5, remaining=5, reset_in_s=30.0, granularity=2.5
    )
    assert scaled_hints(told, 1.0) is told
    assert scaled_hints(hints(requests_reading(limit=2)), 0.25).readings[0].limit == 1, "or nobody could send anything"
    for odd in (None, -1, 0, math.nan):
        assert repr(scaled_hints(hints(requests_reading(limit=odd)), 0.25).readings[0].limit) == repr(odd)


def test_what_was_learned_is_scaled_for_a_scheduler_to_begin_with():
    pool = LearnedPool(
        host=POOL.host,
        account=POOL.account,
        model_group=POOL.model_group,
        meters=(LearnedMeter("requests", Dimension.REQUESTS, MeterKind.WINDOW, 60, 60),),
        throttles=HiddenLimit(measure=0, amount=2, window_s=10.0),
        overloads=HiddenLimit(measure=0, amount=12),
    )
    saved = Saved(pools=(pool,), accounts=(), same_account={"key-2": "key-1"})
    scheduler = Scheduler(rng=random.Random(0))
    scheduler.restore(scaled_learned(saved, 1 / 4), 0.0)
    assert scaled_learned(saved.to_json(), 1 / 4) == scheduler.export()
    scheduler.submit(ticket(), SETTINGS, 0.0)
    scheduler.poll(0.0)
    assert [told.limit for told in scheduler.pools_told()] == [3]
    assert scheduler.snapshot(0.0).pools[0].meters[0].limit == 15
    assert scheduler.account_of("key-2") == "key-1"
    other = Scheduler(rng=random.Random(0))
    other.restore(scaled_learned({"version": 99}, 1 / 4), 0.0)
    assert [type(event) for event in other.drain_events()] == [OddityNoted]


def spend_all(scheduler: Scheduler, budget: Budget, expected: int, actual: int, now: float) -> int:
    """What a process spends of a budget, one call after the other, until it is refused."""
    spent = 0
    for number in range(1000):
        made = replace(ticket(f"t{now}-{number}", at=now), budgets=(budget,), expected=Spend(expected))
        scheduler.submit(made, SETTINGS, now)
        (decision,) = scheduler.poll(now)
        if isinstance(decision, Refused):
            return spent
        assert isinstance(decision, Admitted)
        scheduler.settle(decision.attempt, AttemptResult(SUCCESS, Usage(output_tokens=actual, reported=True)), now)
        spent += actual
    raise AssertionError("it is never refused")


@given(
    limit=st.integers(1, 3000),
    spent=st.integers(0, 2000),
    members=st.integers(1, 7),
    expected=st.integers(7, 50),
    restored_first=st.booleans(),
)
def test_all_shares_of_a_budget_come_to_what_is_left_of_it(limit, spent, members, expected, restored_first):
    """Of one that was begun, of one that nobody has begun, and of the next period of either."""
    begun = Budget(Scope.AGENT, "a", Period.HOUR, tokens=limit)
    fresh = Budget(Scope.GROUP, "g", Period.HOUR, tokens=limit)
    left = {begun: max(0, limit - spent), fresh: limit}
    for budget in (begun, fresh):
        for at in (0.0, 4000.0):
            taken = 0
            for _ in range(members):
                scheduler = Scheduler(rng=random.Random(0))
                if restored_first:
                    scheduler.restore_budgets([AccountState(begun, 60.0, Spend(spent), Spend())], 0.0)
                scheduler.share_budgets(1 / members, 0.0)
                if not restored_first:
                    scheduler.restore_budgets([AccountState(begun, 60.0, Spend(spent), Spend())], 0.0)
                taken += spend_all(scheduler, budget, expected, expected, at)
            room = left[budget] if at == 0 else limit
            assert taken <= room
            assert taken > room - members * (expected + 1), "and no less than whole calls and tokens make it"
