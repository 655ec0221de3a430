"""Requests of a journal and all that belongs to them; runs, limits and accounts."""

# ruff: noqa: S608 - all names are of this project, and every value is bound

from collections.abc import Iterator, Sequence
from itertools import batched

from msgspec import Struct

from hivemind_addon.proxy.journal.tables import AttemptRow, BudgetRow, HappeningRow, LimitRow, TicketRow, WaitRow
from hivemind_addon.tools.history.filters import RequestFilter, Span, SqlConditions, is_broad
from hivemind_addon.tools.history.reader import JournalReader, Value

_FEW = 5
"""Names that are suggested."""
_AT_ONCE = 500
"""Values in a statement."""
_SHORTEST_PREFIX = 3
_BEHIND_ALL = "\U0010ffff"
USED = ("tokens_in", "tokens_cached", "tokens_out", "tokens", "micro_usd")
"""The columns of the view `attempts` that are summed up."""


class RunRecord(Struct, frozen=True):
    """A start of the proxy."""

    id: int
    began: float
    seen: float
    """When the run wrote last."""
    ended: float | None
    """None: the proxy runs, or died."""
    pid: int
    version: str
    port: int = 0
    """Where the proxy listened; 0: unknown."""
    listened: bool = True
    """False: the proxy was killed while starting, and has served nobody."""
    fate: str = ""
    lasted_s: float = 0.0


class RequestRecord(TicketRow, kw_only=True):
    """A request with the sums of its attempts, as in the view `attempts`."""

    tokens_in: int = 0
    tokens_cached: int = 0
    tokens_out: int = 0
    tokens: int = 0
    micro_usd: int = 0


class NamedRequests(Struct, frozen=True):
    """The requests that a name stands for."""

    what: str
    """`request`, `task`, `Idempotency-Key`, or empty: nothing has that name."""
    name: str
    """In full."""
    tickets: tuple[RequestRecord, ...] = ()
    """The newest, oldest first."""
    has_more: bool = False
    """Whether there are older requests."""
    alike: tuple[str, ...] = ()
    """Names with the same beginning, if nothing has that name, or if the beginning is ambiguous."""


class Biography(Struct, frozen=True):
    """Everything about a request."""

    ticket: RequestRecord
    run: RunRecord | None
    """Of the proxy that had the request."""
    attempts: tuple[AttemptRow, ...]
    waits: tuple[WaitRow, ...]
    happenings: tuple[HappeningRow, ...]


def requests(journal: JournalReader, wanted: RequestFilter, most: int) -> list[RequestRecord]:
    """The newest requests, newest first."""
    where, order = SqlConditions(), "arrived"
    if wanted != RequestFilter(span=wanted.span) and is_broad(journal, wanted):
        # The index leads to the newest requests first, but rare ones may be selected, or none.
        where.add("id >= ''")
        order = "+arrived"
    where.within(order, wanted.span)
    where.selects(wanted)
    return _records(journal, f"{where} ORDER BY {order} DESC LIMIT ?", (*where.values, most))


def find(journal: JournalReader, name: str, most: int) -> NamedRequests:
    """The request, task or Idempotency-Key with this name; a unique beginning of a request's id is enough."""
    for what, column in (("request", "id"), ("task", "task"), ("Idempotency-Key", "idempotency_key")):
        if name and (found := _called(journal, column, name, most + 1)):
            return NamedRequests(what, name, tuple(reversed(found[:most])), has_more=len(found) > most)
    ids = _beginning(journal, "id", name) if len(name) >= _SHORTEST_PREFIX else []
    if len(ids) == 1:
        return NamedRequests("request", ids[0], tuple(_called(journal, "id", ids[0], 1)))
    return NamedRequests("", name, alike=tuple(_alike(journal, name)))


def biographies(journal: JournalReader, tickets: Sequence[RequestRecord]) -> Iterator[Biography]:
    """Everything about these requests, in their order."""
    runs_by_id = {run.id: run for run in runs(journal)}
    for some in batched(tickets, _AT_ONCE):
        ids = [ticket.id for ticket in some]
        those = f"WHERE ticket IN ({', '.join('?' * len(ids))}) AND ticket != '' ORDER BY"
        attempts = journal.records(AttemptRow, "attempts", f"{those} attempt", ids)
        waits = journal.records(WaitRow, "wait", f"{those} began", ids)
        happenings = journal.records(HappeningRow, "happening", f"{those} at, happening.id", ids)
        for ticket in some:
            yield Biography(
                ticket=ticket,
                run=runs_by_id.get(ticket.run),
                attempts=tuple(row for row in attempts if row.ticket == ticket.id),
                waits=tuple(row for row in waits if row.ticket == ticket.id),
                happenings=tuple(row for row in happenings if row.ticket == ticket.id),
            )


def runs(journal: JournalReader, span: Span = Span()) -> list[RunRecord]:  # noqa: B008 - it is frozen
    """Starts of proxies that ran in the span, in order."""
    where = SqlConditions()
    where.within("coalesce(ended, seen)", Span(since=span.since))
    where.within("began", Span(until=span.until))
    return journal.records(RunRecord, "runs", f"{where} ORDER BY id", where.values)


def limits(journal: JournalReader, pool: str, span: Span) -> list[LimitRow]:
    """Limits as they were learned, oldest first; `pool` is a glob."""
    where = SqlConditions()
    where.within("at", span)
    where.matches(pool, "pool", "substr(pool, 1, instr(pool, '/') - 1)")  # a pool's name begins with the host
    return journal.records(LimitRow, '"limit"', f"{where} ORDER BY at, id", where.values)


def accounts(journal: JournalReader) -> list[BudgetRow]:
    """The last state of every budget."""
    return journal.records(BudgetRow, "budget", "ORDER BY scope, name, per")


def happenings(journal: JournalReader, span: Span, condition: str = "") -> list[HappeningRow]:
    """Happenings of the span that fulfil an SQL condition, oldest first."""
    where = SqlConditions()
    where.within("at", span)
    where.add(condition or "1")
    return journal.records(HappeningRow, "happening", f"{where} ORDER BY at, id", where.values)


def budget_changes(journal: JournalReader, span: Span) -> list[HappeningRow]:
    """Budgets that were spent, or nearly so, and changes that persons made, oldest first."""
    changes = "event = 'PersonActed' AND instr(text, 'budget')"
    return happenings(journal, span, f"(event IN ('BudgetWarned', 'BudgetSpent', 'PriceMissing') OR {changes})")


def _records(journal: JournalReader, rest: str, values: Sequence[Value]) -> list[RequestRecord]:
    """The newest first; `rest` follows `FROM requests`."""
    sums = ", ".join(f"coalesce(sum(a.{name}), 0) AS {name}" for name in USED)
    return journal.answers(
        RequestRecord,
        f"""
        SELECT r.*, {sums} FROM (SELECT * FROM requests {rest}) r LEFT JOIN attempts a ON a.ticket = r.id
        GROUP BY r.id ORDER BY r.arrived DESC, r.id
        """,
        values,
    )


def _called(journal: JournalReader, column: str, name: str, most: int) -> list[RequestRecord]:
    return _records(journal, f"WHERE {column} = ? AND {column} != '' ORDER BY arrived DESC LIMIT ?", (name, most))


def _beginning(journal: JournalReader, column: str, prefix: str) -> list[str]:
    sql = f"""
        SELECT DISTINCT {column} FROM ticket WHERE {column} >= ? AND {column} < ? AND {column} != ''
        ORDER BY {column} LIMIT ?
        """
    return [str(name) for (name,) in journal.tuples(sql, (prefix, prefix + _BEHIND_ALL, _FEW))]


def _alike(journal: JournalReader, name: str) -> list[str]:
    """Names that share the longest beginning of this name."""
    for length in range(len(name), _SHORTEST_PREFIX - 1, -1):
        beginning = name[:length]
        names = (one for column in ("id", "task", "idempotency_key") for one in _beginning(journal, column, beginning))
        if alike := list(dict.fromkeys(names))[:_FEW]:
            return alike
    return []
