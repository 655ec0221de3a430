"""When the tokens of a ticket that is to come have to be counted: where it could change what is decided."""

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.values.spend import Budget, Price, Scope, Spend
from hivemind_addon.kernel.values.ticket import Demand, Dimension, Reading
from tests.kernel.samples import Bench, requests_reading, ticket

DEMAND = Demand(input_tokens=1000, output_tokens=5000, total_tokens=6000)
PRICE = Price(input=1, cache_write=1, cache_read=1, output=1)


def told(dimension, remaining, *, bench=None):
    """A bench whose pool has a meter with so much left."""
    bench = bench or Bench(slots=2)
    bench.submit("first")
    bench.observe("first", Reading("m", dimension, 60.0, limit=10_000_000, remaining=remaining, reset_in_s=60.0))
    bench.settle("first")
    return bench


def must_count(bench, **changes):
    return bench.scheduler.must_count(replace(ticket("t", demand=DEMAND), **changes), bench.now)


def test_nothing_is_known_to_be_near_where_no_limit_is_known():
    assert not must_count(Bench())


@pytest.mark.parametrize(
    ("dimension", "remaining", "is_near"),
    [
        (Dimension.INPUT_TOKENS, 20_001, False),
        (Dimension.INPUT_TOKENS, 19_999, True),
        (Dimension.TOTAL_TOKENS, 120_001, False),
        (Dimension.TOTAL_TOKENS, 119_999, True),
        # What is reserved for an answer is not counted in the request.
        (Dimension.OUTPUT_TOKENS, 10, False),
    ],
)
def test_a_limit_that_counts_input_is_near_when_less_than_twenty_such_tickets_are_left_of_it(
    dimension, remaining, is_near
):
    assert must_count(told(dimension, remaining)) is is_near


def test_requests_alone_need_no_tokens():
    bench = Bench()
    bench.submit("first")
    bench.observe("first", requests_reading(limit=50, remaining=0, reset_in_s=60))
    assert not must_count(bench)


def test_what_waits_already_comes_first():
    bench = told(Dimension.INPUT_TOKENS, 25_000)
    bench.submit("a", "b")
    assert not must_count(bench)
    bench.submit(*(f"waits-{number}" for number in range(10)))
    assert must_count(bench)


def test_a_rate_that_only_refusals_tell_of_is_learned_from_true_demands(monkeypatch):
    bench = told(Dimension.INPUT_TOKENS, 1_000_000)
    monkeypatch.setattr(Capacity, "is_rate_hidden", True)
    assert must_count(bench)


def test_a_budget_is_near_when_less_than_twenty_such_tickets_are_left_of_it():
    bench = Bench()

    def is_near(spend, price=None, **limits):
        return must_count(bench, budgets=(Budget(Scope.EVERYONE, "", **limits),), expected=spend, price=price)

    assert not is_near(Spend(tokens=1000), tokens=20_000)
    assert is_near(Spend(tokens=1000), tokens=19_999)
    assert not is_near(Spend(1000, 50), price=PRICE, micro_usd=1000)
    assert is_near(Spend(1000, 50), price=PRICE, micro_usd=999)


def test_what_others_spent_and_reserved_of_a_budget_counts_and_asking_changes_nothing():
    bench = Bench()
    budget = Budget(Scope.EVERYONE, "", tokens=30_000)
    paid = {"budgets": (budget,), "expected": Spend(tokens=1000)}
    bench.submit()
    assert not must_count(bench, **paid)
    assert not bench.scheduler.snapshot(0.0).budgets
    bench.scheduler.submit(
        replace(ticket("other"), budgets=(budget,), expected=Spend(tokens=11_000)), bench.settings, 0
    )
    bench.poll()
    assert must_count(bench, **paid)
