"""Rows of the journal's tables as values, and the SQL that writes many of them at once.

A row's fields are its table's columns, in their order (`proxy/journal/schema.py`). Rows that grow with their ticket are
written whole, again and again: so a batch that failed is simply written once more.
"""

from functools import cache
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

SIZES = (64, 32, 16, 8, 4, 2, 1)
"""Rows of one statement: few different ones stay prepared, and each statement hands the processor to the event loop and
back, which costs more than its rows do."""


class TicketRow(Struct):
    """One request."""

    id: str
    run: int
    task: str
    idempotency_key: str
    agent: str
    group: str
    session: str
    parent_session: str
    lineage: str
    pool: str
    host: str
    account: str
    model: str
    kind: str
    priority: str
    streamed: bool
    arrived: float
    admitted: float | None = None
    ended: float | None = None
    end: str = ""
    reason: str = ""
    attempts: int = 0
    ambiguous_resends: int = 0
    waited_s: float = 0.0
    unpriced: bool = False


class AttemptRow(Struct):
    """One try upstream."""

    ticket: str
    attempt: int
    began: float
    ended: float | None = None
    waited_s: float = 0.0
    in_flight: int = 0
    outcome: str = ""
    reason: str = ""
    status: int | None = None
    ambiguous: bool = False
    input_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    output_tokens: int | None = None
    reported: bool | None = None
    expected_tokens: int = 0
    expected_micro_usd: int = 0
    tokens: int = 0
    micro_usd: int = 0
    retry_at: float | None = None
    retry_reason: str = ""


class WaitRow(Struct):
    """One wait of a ticket."""

    ticket: str
    began: float
    reason: str
    position: int


class HappeningRow(Struct):
    """What is no routine of tickets."""

    run: int
    at: float
    event: str
    pool: str
    ticket: str
    text: str
    fields: str


class LimitRow(Struct):
    """A limit, as it was learned."""

    run: int
    at: float
    pool: str
    meter: str
    kind: str
    limit: float
    window_s: float | None
    dimension: str


class BudgetRow(Struct):
    """How an account stands."""

    scope: str
    name: str
    per: str
    port: int
    """Whose it is, per run; of other periods 0: they are all ports'."""
    run: int
    limit_tokens: int | None
    limit_micro_usd: int | None
    began: float
    spent_tokens: int
    spent_micro_usd: int
    reserved_tokens: int
    reserved_micro_usd: int
    added_tokens: int
    added_micro_usd: int
    limit_calls: int | None = None
    spent_calls: int = 0
    reserved_calls: int = 0
    added_calls: int = 0
    spent_unpriced_tokens: int = 0
    reserved_unpriced_tokens: int = 0


Row = TicketRow | AttemptRow | WaitRow | HappeningRow | LimitRow | BudgetRow

_NAMES: dict[type[Row], tuple[str, tuple[str, ...], frozenset[str]]] = {
    TicketRow: (
        "ticket",
        ("id",),
        # Columns that never change and have an index are left alone.
        frozenset(TicketRow.__struct_fields__) - {"id", "task", "idempotency_key", "agent", "session", "arrived"},
    ),
    AttemptRow: ("attempt", ("ticket", "attempt"), frozenset(AttemptRow.__struct_fields__) - {"began"}),
    WaitRow: ("wait", ("ticket", "began"), frozenset({"reason", "position"})),
    HappeningRow: ("happening", (), frozenset()),
    LimitRow: ("limit", (), frozenset()),
    BudgetRow: ("budget", ("scope", "name", "per", "port"), frozenset(BudgetRow.__struct_fields__)),
}
"""Table, key, and what a later row of the same key changes."""


def statements(rows: list[Any]) -> list[tuple[str, tuple[object, ...]]]:
    """The statements that write these rows, which are of one table."""
    found: list[tuple[str, tuple[object, ...]]] = []
    kind: type[Row] = type(rows[0]) if rows else TicketRow
    done = 0
    for size in SIZES:
        while len(rows) - done >= size:
            some = rows[done : done + size]
            found.append((_sql(kind, size), tuple(chain.from_iterable(map(astuple, some)))))
            done += size
    return found


@cache
def _sql(kind: type[Row], size: int) -> str:
    table, key, changing = _NAMES[kind]
    columns = kind.__struct_fields__
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join([f"({', '.join('?' * len(columns))})"] * size)
    sql = f'INSERT INTO "{table}" ({names}) VALUES {values}'  # noqa: S608 - names of ours
    if key:
        sets = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name in changing - set(key))
        sql += f" ON CONFLICT ({', '.join(key)}) DO UPDATE SET {sets}"
    return sql
