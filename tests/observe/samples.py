"""Events of every kind."""

from msgspec import structs

from hivemind_addon.api import events
from hivemind_addon.api.spend import Budget, Period, Scope, Spend
from hivemind_addon.api.ticket import Demand, Outcome, OutcomeKind, PoolKey, Reason, Ticket

POOL = PoolKey("host.test", "key-1", "model")
TICKET = Ticket(
    id="ticket-1",
    pool=POOL,
    agent="agent-1",
    session="s",
    model="m",
    demand=Demand(),
    arrived_at=0,
    deadline_at=9,
    shed_at=8,
)
_VALUES = {
    "ticket": TICKET,
    "ticket_id": "ticket-1",
    "pool": POOL,
    "reason": "because",
    "text": "paused by a person",
    "what": "a header without a number",
    "outcome": Outcome(OutcomeKind.SUCCESS, "200"),
    "usage": None,
    "end": "delivered",
    "until": 3.5,
    "budget": Budget(Scope.GROUP, "reviewers", Period.DAY, micro_usd=5_000_000),
    "unit": "micro_usd",
    "spent": 4_300_000,
    "limit": 5_000_000,
    "checkpoint_id": "ticket-1",
}
_OF_A_KIND = {
    events.Held: {"reason": Reason.METER},
    events.BudgetBooked: {"spent": Spend(1, 2), "reserved": Spend(1, 2), "added": Spend(1, 2)},
    events.AttemptEnded: {"spend": Spend(1, 2)},
}


def make(kind, **changes):
    values = _VALUES | _OF_A_KIND.get(kind, {}) | changes
    return kind(**{field.name: values.get(field.name, 1) for field in structs.fields(kind)})
