"""Tickets and events, and a look into the file that became of them."""

import sqlite3
from contextlib import closing

from hivemind_addon.kernel.values.events import AttemptEnded, AttemptStarted, BudgetBooked, Held, Submitted, TicketEnded
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import Demand, Outcome, OutcomeKind, PoolKey, Reason, Ticket, Usage

POOL = PoolKey(host="api.anthropic.com", account="org-1", model_group="sonnet")
DONE = Outcome(OutcomeKind.SUCCESS, "200", status=200)


def ticket(name="t1", *, at=1000.0, **changes):
    given = {
        "id": name,
        "pool": POOL,
        "agent": "agent-1",
        "session": "s1",
        "model": "claude-sonnet-4-5",
        "demand": Demand(input_tokens=10),
        "arrived_at": at,
        "deadline_at": at + 600,
        "shed_at": at + 590,
        "expected": Spend(120, 30),
    }
    return Ticket(**given | changes)


def submitted(name="t1", *, at=1000.0, **changes):
    return Submitted(at=at, ticket=ticket(name, at=at, **changes))


def held(name="t1", *, at=1000.0):
    return Held(at=at, ticket_id=name, pool=POOL, reason=Reason.CONCURRENCY, position=3)


def started(name="t1", attempt=1, *, at=1002.0):
    return AttemptStarted(at=at, ticket_id=name, pool=POOL, attempt=attempt, waited_s=2.0, in_flight=4)


def settled(name="t1", attempt=1, *, at=1007.0, outcome=DONE, usage=None, spend=None):
    return AttemptEnded(
        at=at,
        ticket_id=name,
        pool=POOL,
        attempt=attempt,
        outcome=outcome,
        usage=usage or Usage(input_tokens=100, output_tokens=9, reported=True),
        duration_s=5.0,
        spend=spend or Spend(109, 27),
    )


def ended(name="t1", *, at=1008.0, end="delivered", attempts=1, pool=POOL, **changes):
    return TicketEnded(
        at=at,
        ticket_id=name,
        pool=pool,
        end=end,
        reason="done",
        attempts=attempts,
        ambiguous_resends=0,
        waited_s=2.0,
        **changes,
    )


def life(name="t1", **changes):
    """All that becomes of a request that goes well."""
    return [submitted(name, **changes), held(name), started(name), settled(name), ended(name)]


def booked(*, at=1000.0, began_at=400.0, spent=70, reserved=30, per=Period.DAY, limit=500, added=0, name="agent-1"):
    return BudgetBooked(
        at=at,
        budget=Budget(Scope.AGENT, name, per, tokens=limit),
        began_at=began_at,
        spent=Spend(spent, 0),
        reserved=Spend(reserved, 0),
        added=Spend(added, 0),
    )


def asked(path, sql, *values):
    """The rows of a query, as dictionaries."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql, values)]


def column(path, table, name, order="rowid"):
    """One column of a whole table."""
    return [next(iter(row.values())) for row in asked(path, f'SELECT "{name}" FROM "{table}" ORDER BY {order}')]
