"""What is asked of a journal: which requests there were, what became of one; runs, limits and accounts."""

# ruff: noqa: S608 - names and conditions are of our own, and every value is bound

from collections.abc import Iterator, Sequence
from itertools import batched

from msgspec import Struct

from hivemind_addon.proxy.journal.tables import (
    AttemptRow,
    BudgetRow,
    HappeningRow,
    LimitRow,
    TicketRow,
    WaitRow,
)
from hivemind_addon.tools.history.filters import LOST, RequestFilter, Span, SqlConditions, booked, is_broad
from hivemind_addon.tools.history.reader import JournalReader

_FEW = 5
"""Names that are suggested."""
_AT_ONCE = 500
"""Values in one statement."""
_SHORTEST_PREFIX = 3
_BEHIND_ALL = "\U0010ffff"
TOKENS_IN = "coalesce(a.input_tokens, 0) + coalesce(a.cache_read_tokens, 0) + coalesce(a.cache_write_tokens, 0)"
"""All input of an attempt `a`."""


class RunRecord(Struct, frozen=True):
    """One start of the proxy."""

    id: int
    began: float
    seen: float
    """When it last wrote."""
    ended: float | None
    """None: it runs, or it died."""
    pid: int
    version: str
    port: int = 0
    """Where it listened; 0: that is not known."""
    listened: bool = True
    """Whether it ever did: one that was killed while it started has served nobody."""


class RequestSummary(TicketRow, kw_only=True):
    """One request with what it has used so far."""

    tokens_in: int
    """All input, cached or not."""
    tokens_cached: int
    """Of these, what was read from the provider's cache."""
    tokens_out: int
    tokens: int
    """What its attempts were booked with: what was not reported was counted or expected."""
    micro_usd: int


class NamedRequests(Struct, frozen=True):
    """What a name means."""

    what: str
    """`request`, `task`, `Idempotency-Key`, or empty: nothing is called so."""
    name: str
    """In full."""
    tickets: tuple[TicketRow, ...] = ()
    """The newest, oldest first."""
    has_more: bool = False
    """Whether there are older ones."""
    alike: tuple[str, ...] = ()
    """What begins alike, where nothing is called so, or too much begins so."""


class Biography(Struct, frozen=True):
    """All that is known of one request."""

    ticket: TicketRow
    run: RunRecord | None
    """The proxy's that had it."""
    attempts: tuple[AttemptRow, ...]
    waits: tuple[WaitRow, ...]
    happenings: tuple[HappeningRow, ...]

    @property
    def tokens_in(self) -> int:
        """All input of its attempts, cached or not."""
        return sum(map(tokens_in, self.attempts))

    @property
    def tokens_out(self) -> int:
        """Of its attempts."""
        return sum(one.output_tokens or 0 for one in self.attempts)

    @property
    def micro_usd(self) -> int:
        """Booked for its attempts."""
        return sum(one.micro_usd for one in self.attempts)


def tokens_in(attempt: AttemptRow) -> int:
    """All input, cached or not."""
    return (attempt.input_tokens or 0) + (attempt.cache_read_tokens or 0) + (attempt.cache_write_tokens or 0)


def requests(journal: JournalReader, wanted: RequestFilter, most: int) -> list[RequestSummary]:
    """The newest requests, newest first."""
    where, order = SqlConditions(), "t.arrived"
    if wanted != RequestFilter(span=wanted.span) and is_broad(journal, wanted):
        # Who is looked for may be rare, or nobody.
        where.through("t.id")
        order = "+t.arrived"
    where.within(order, wanted.span)
    where.selects(journal, wanted)
    found = journal.answers(
        RequestSummary,
        f"""
        SELECT t.*, coalesce(sum({TOKENS_IN}), 0) AS tokens_in, coalesce(sum(a.cache_read_tokens), 0) AS tokens_cached,
            coalesce(sum(a.output_tokens), 0) AS tokens_out, coalesce(sum({booked(journal, "tokens")}), 0) AS tokens,
            coalesce(sum({booked(journal, "micro_usd")}), 0) AS micro_usd
        FROM (SELECT * FROM ticket t{where} ORDER BY {order} DESC LIMIT ?) t LEFT JOIN attempt a ON a.ticket = t.id
        GROUP BY t.id ORDER BY t.arrived DESC, t.id
        """,
        (*where.values, most),
    )
    for ticket in found:
        _bury(ticket, journal)
    return found


def find(journal: JournalReader, name: str, most: int) -> NamedRequests:
    """The request, task or Idempotency-Key of this name; a request's id may be cut, where it stays the only one."""
    for what, column in (("request", "id"), ("task", "task"), ("Idempotency-Key", "idempotency_key")):
        if name and (tickets := _called(journal, column, name, most)):
            return NamedRequests(what, name, tuple(reversed(tickets[:most])), has_more=len(tickets) > most)
    ids = _beginning(journal, "id", name) if len(name) >= _SHORTEST_PREFIX else []
    if len(ids) == 1:
        return NamedRequests("request", ids[0], tuple(_called(journal, "id", ids[0], 1)))
    return NamedRequests("", name, alike=tuple(_alike(journal, name)))


def biographies(journal: JournalReader, tickets: Sequence[TicketRow]) -> Iterator[Biography]:
    """Everything of these requests, in their order."""
    runs_by_id = {run.id: run for run in runs(journal)}
    for some in batched(tickets, _AT_ONCE):
        ids = [ticket.id for ticket in some]
        marks = ", ".join("?" * len(ids))
        attempts = journal.records(AttemptRow, "attempt", f"WHERE ticket IN ({marks}) ORDER BY attempt", ids)
        waits = journal.records(WaitRow, "wait", f"WHERE ticket IN ({marks}) ORDER BY began", ids)
        beside = f"WHERE ticket IN ({marks}) AND ticket != '' ORDER BY at, happening.id"
        happenings = journal.records(HappeningRow, "happening", beside, ids)
        for ticket in some:
            _bury(ticket, journal)
            yield Biography(
                ticket=ticket,
                run=runs_by_id.get(ticket.run),
                attempts=tuple(
                    _given_up(one) if ticket.end == LOST else one for one in attempts if one.ticket == ticket.id
                ),
                waits=tuple(one for one in waits if one.ticket == ticket.id),
                happenings=tuple(one for one in happenings if one.ticket == ticket.id),
            )


def runs(journal: JournalReader, span: Span = Span()) -> list[RunRecord]:  # noqa: B008 - it is frozen
    """Starts of the proxy, as far as it ran in the span, in their order."""
    where = SqlConditions()
    if span.since > float("-inf"):
        where.add("coalesce(ended, seen) >= ?", span.since)
    where.within("began", Span(until=span.until))
    return journal.records(RunRecord, "run", f"{where} ORDER BY id", where.values)


def limits(journal: JournalReader, wanted: RequestFilter) -> list[LimitRow]:
    """Limits as they were learned, oldest first."""
    where = SqlConditions()
    where.within("at", wanted.span)
    # A pool's name begins with its host.
    where.matches(wanted.pool, "pool", "substr(pool, 1, instr(pool, '/') - 1)")
    return journal.records(LimitRow, '"limit"', f"{where} ORDER BY at, id", where.values)


def accounts(journal: JournalReader) -> list[BudgetRow]:
    """How every budget stood last."""
    return journal.records(BudgetRow, "budget", "ORDER BY scope, name, per")


def happenings(journal: JournalReader, span: Span, events: Sequence[str] = ()) -> list[HappeningRow]:
    """What happened, oldest first; `events`: only of these names."""
    where = SqlConditions()
    where.within("at", span)
    if events:
        where.one_of("event", events)
    return journal.records(HappeningRow, "happening", f"{where} ORDER BY at, id", where.values)


def budget_changes(journal: JournalReader, span: Span) -> list[HappeningRow]:
    """Budgets that were spent, or nearly so, and what persons did to them, oldest first."""
    told = happenings(journal, span, ("BudgetWarned", "BudgetSpent", "PriceMissing", "PersonActed"))
    return [one for one in told if one.event != "PersonActed" or "budget" in one.text]


def _bury(ticket: TicketRow, journal: JournalReader) -> None:
    """The next proxy that starts writes so; until then it is known all the same."""
    if not ticket.end and ticket.run != journal.live_run:
        ticket.end = LOST


def _given_up(attempt: AttemptRow) -> AttemptRow:
    """As its proxy's death left it: what it took nobody knows, so it counts with what was expected."""
    if not attempt.outcome:
        attempt.outcome = LOST
    if attempt.outcome == LOST:
        attempt.tokens, attempt.micro_usd = attempt.expected_tokens, attempt.expected_micro_usd
    return attempt


def _called(journal: JournalReader, column: str, name: str, most: int) -> list[TicketRow]:
    """Newest first, and one more than `most` where there are more."""
    rest = f"WHERE {column} = ? AND {column} != '' ORDER BY arrived DESC LIMIT ?"
    return journal.records(TicketRow, "ticket", rest, (name, most + 1))


def _beginning(journal: JournalReader, column: str, prefix: str) -> list[str]:
    sql = f"""
        SELECT DISTINCT {column} FROM ticket WHERE {column} >= ? AND {column} < ? AND {column} != ''
        ORDER BY {column} LIMIT ?
        """
    return [str(name) for (name,) in journal.tuples(sql, (prefix, prefix + _BEHIND_ALL, _FEW))]


def _alike(journal: JournalReader, name: str) -> list[str]:
    """What begins as the name does, as far as anything does."""
    for length in range(len(name), _SHORTEST_PREFIX - 1, -1):
        names = (
            one for column in ("id", "task", "idempotency_key") for one in _beginning(journal, column, name[:length])
        )
        if alike := list(dict.fromkeys(names))[:_FEW]:
            return alike
    return []
