"""By how much fifty agents overshoot the budget that all of them share: the bound, and what is left to lose by it."""

import itertools
from collections import defaultdict

import pytest
from msgspec.structs import replace

from hivemind_addon.formats.wire.estimate import OutputSizes
from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.values.events import AttemptEnded, AttemptStarted, Submitted, TicketEnded
from hivemind_addon.kernel.values.spend import Budget, Scope, Spend
from hivemind_addon.kernel.values.ticket import Usage
from hivemind_addon.sim.library import cases
from hivemind_addon.sim.provider import ProviderSettings
from hivemind_addon.sim.workload import Crowd, Scenario
from hivemind_addon.sim.world import World

FLEET = Scenario(
    "fleet",
    (
        Crowd("talker", 40, 40, output_tokens=(50, 900), tokens_per_s=80, prompt_tokens=(100, 2000), caches=True),
        Crowd("writer", 10, 40, output_tokens=(500, 8000), tokens_per_s=80, prompt_tokens=(100, 900)),
    ),
    ProviderSettings(concurrency=40, faults=cases()["stress"].scenario.provider.faults, cache_ttl_s=300),
    input_error=0.1,
)
LIMITS = {"tokens": 5_000_000, "micro_usd": 10_000_000}
SEEDS = range(2)


class BudgetedFleet(World):
    """Everyone's budget, with what the intake would expect of each call; and what came of it, summed up beside."""

    def __init__(self, seed, unit):
        super().__init__(FLEET, seed=seed, listen=self.hear)
        self.unit = unit
        self.limit = LIMITS[unit]
        self.budget = Budget(Scope.EVERYONE, "", **{unit: self.limit})
        self.sizes = OutputSizes(window=200)
        self.sizes_of = defaultdict(lambda: OutputSizes(window=40))
        """By session, as the estimator has them."""
        self.tickets = {}
        self.spent = self.reserved = 0
        self.flying = {}
        self.crossed_with = {}
        """What was in flight when `spent + reserved` crossed the limit for the last time, and what each exceeded."""
        self.refused = 0

    def _ticket(self, call):
        ticket = super()._ticket(call)
        p95 = self.sizes_of[ticket.session].p95_tokens or self.sizes.p95_tokens
        new, caches = ticket.demand.input_tokens, call.agent.crowd.caches
        expected = Usage(
            input_tokens=0 if caches else new,
            cache_write_tokens=new if caches else 0,
            cache_read_tokens=ticket.cached_tokens,
            output_tokens=ticket.demand.output_tokens if p95 is None else p95,
        )
        price = call.agent.price
        return replace(ticket, budgets=(self.budget,), price=price, expected=spend_of(expected, price))

    def hear(self, event):
        match event:
            case Submitted(ticket=ticket):
                self.tickets[ticket.id] = ticket
            case AttemptStarted(ticket_id=ticket_id):
                self.flying[ticket_id] = getattr(self.tickets[ticket_id].expected, self.unit)
                self.reserved += self.flying[ticket_id]
                assert self.spent + self.reserved <= self.limit
            case AttemptEnded(ticket_id=ticket_id, spend=spend, usage=usage):
                was_within = self.spent + self.reserved <= self.limit
                in_flight = dict.fromkeys(self.flying, 0)
                expected, actual = self.flying.pop(ticket_id), getattr(spend, self.unit)
                self.reserved -= expected
                self.spent += actual
                if was_within and self.spent + self.reserved > self.limit:
                    self.crossed_with = in_flight
                if ticket_id in self.crossed_with:
                    self.crossed_with[ticket_id] = actual - expected
                if usage is not None and usage.reported:
                    self.sizes.learn(usage.output_tokens)
                    self.sizes_of[self.tickets[ticket_id].session].learn(usage.output_tokens)
            case TicketEnded(end="refused"):
                self.refused += 1


@pytest.fixture(scope="module", params=itertools.product(LIMITS, SEEDS), ids=lambda param: "-".join(map(str, param)))
def fleet(request):
    unit, seed = request.param
    world = BudgetedFleet(seed, unit)
    world.run()
    return world


def test_no_fleet_overshoots_by_more_than_what_was_in_flight_took_more_than_was_reserved(fleet):
    assert fleet.refused >= 40, "the budget stopped nearly everybody; faults the others"
    assert fleet.spent - fleet.limit <= max(0, sum(fleet.crossed_with.values()))


def test_what_is_reserved_is_near_enough_to_what_is_taken_that_little_is_overshot_and_little_left(fleet):
    assert 0.98 < fleet.spent / fleet.limit < 1.06


def test_the_books_are_right_to_the_token(fleet):
    (view,) = fleet.scheduler.snapshot(fleet.now).budgets
    assert getattr(view.spent, fleet.unit) == fleet.spent
    assert view.reserved == Spend()
