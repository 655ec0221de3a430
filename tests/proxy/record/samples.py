"""Events of every kind, and those of a ticket's life."""

from msgspec import structs

from hivemind_addon.kernel.budget import spend_of
from hivemind_addon.kernel.values import events
from hivemind_addon.kernel.values.spend import Budget, Period, Price, Scope, Spend
from hivemind_addon.kernel.values.ticket import Demand, Outcome, OutcomeKind, PoolKey, Reason, Ticket, Usage

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
    "context_id": "ticket-1",
    "agent": "agent-1",
    "session": "s",
    "model": "m",
}
_OF_A_KIND = {
    events.Held: {"reason": Reason.METER},
    events.WaitOverruled: {"reason": Reason.BLOCKED},
    events.BudgetBooked: {"spent": Spend(1, 2), "reserved": Spend(1, 2), "added": Spend(1, 2)},
    events.AttemptEnded: {"spend": Spend(1, 2)},
    events.ContextShrank: {"spend": Spend(1, 2)},
}


def make(kind, **changes):
    values = _VALUES | _OF_A_KIND.get(kind, {}) | changes
    return kind(**{field.name: values.get(field.name, 1) for field in structs.fields(kind)})


PRICE = Price(input=3_000_000, cache_write=3_750_000, cache_read=300_000, output=15_000_000)
USAGE = Usage(input_tokens=1000, cache_read_tokens=2000, output_tokens=100, reported=True)


def submitted(ticket_id="t", at=0.0, *, agent="a", session="s", parent="", price=PRICE):
    changes = {"id": ticket_id, "agent": agent, "session": session, "parent_session": parent, "price": price}
    times = {"arrived_at": at, "deadline_at": at + 100, "shed_at": at + 90}
    return events.Submitted(at=at, ticket=structs.replace(TICKET, **changes, **times))


def held(ticket_id="t", at=0.0, *, reason=Reason.METER, position=1):
    return make(events.Held, ticket_id=ticket_id, at=at, reason=reason, position=position)


def started(ticket_id="t", at=0.0, *, attempt=1, waited_s=0.0, in_flight=1):
    return make(
        events.AttemptStarted, ticket_id=ticket_id, at=at, attempt=attempt, waited_s=waited_s, in_flight=in_flight
    )


def ended(ticket_id="t", at=0.0, *, kind=OutcomeKind.SUCCESS, said="said", attempt=1, usage=USAGE, spend=None, **more):
    if spend is None:
        spend = spend_of(usage, PRICE) if usage else Spend()
    values = {"outcome": Outcome(kind, said), "usage": usage, "spend": spend, "attempt": attempt}
    return make(events.AttemptEnded, ticket_id=ticket_id, at=at, **values | more)


def over(ticket_id="t", at=0.0, *, end="delivered", reason="", attempts=1, waited_s=0.0):
    values = {"end": end, "reason": reason, "attempts": attempts, "waited_s": waited_s}
    return make(events.TicketEnded, ticket_id=ticket_id, at=at, ambiguous_resends=0, last_outcome="", **values)
