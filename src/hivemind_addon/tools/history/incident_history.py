"""The incidents that a journal tells of, and what each of them did to the requests of its time."""

# ruff: noqa: S608 - names and conditions are of our own, and every value is bound

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.proxy.journal.tables import HappeningRow
from hivemind_addon.tools.history.filters import LOST, Span, SqlConditions, booked, end_of, outcome_of
from hivemind_addon.tools.history.history import happenings as happenings_of
from hivemind_addon.tools.history.history import runs
from hivemind_addon.tools.history.incidents import (
    EVENTS,
    HARD,
    QUIET_S,
    ROW,
    AttemptEnd,
    Incident,
    TimelineLine,
    failure_rows,
    incidents,
    timeline,
)
from hivemind_addon.tools.history.reader import JournalReader

_LONGEST_ATTEMPT_S = 3600.0
"""An attempt that ended in an incident began at most so long before."""
_LONGEST_TICKET_S = 6 * 3600.0
"""A request that lived in an incident came at most so long before."""
_FAILED = (*sorted(HARD), OutcomeKind.THROTTLED.value, LOST)
_DULL = (
    "ConcurrencyChanged",
    "WindowUsed",
    "AccountNamed",
    "Superseded",
    "Moved",
    "OddityNoted",
    "BudgetWarned",
    "PriceMissing",
    "ContextFull",
    "ContextShrank",
)
"""What a timeline does not tell."""
_FIELD_OF_END = {
    "delivered": "delivered",
    "shed": "shed",
    "gave_up": "gave up",
    "refused": "refused",
    "cancelled": "cancelled",
    "lost": LOST,
    "unfinished": "",
}
_END_OF_TIME = 1e12
"""Epoch seconds; infinity is no value of SQLite's."""


class Aftermath(Struct, frozen=True):
    """What became of the requests that were there in an incident, and of their attempts that failed in it."""

    requests: int
    waited: int
    """Of these, how many began to wait in it."""
    failed_attempts: int
    reasons: dict[str, int]
    """Of these attempts, the most frequent first."""
    retried: int
    """Requests with such an attempt that were tried again, in it or later."""
    rescued: int
    """Requests with such an attempt that were delivered after all."""
    delivered: int
    shed: int
    """Told to come back."""
    gave_up: int
    refused: int
    cancelled: int
    lost: int
    """Cut off by the death of a proxy."""
    unfinished: int
    tokens: int
    """Booked for the attempts that failed; expected of those that are lost."""
    micro_usd: int


def read_incidents(journal: JournalReader, span: Span, now: float) -> list[Incident]:
    """Those that were in the span, oldest first."""
    where = SqlConditions()
    where.one_of("h.event", EVENTS)
    told = journal.answers(
        HappeningRow,
        f"""
        SELECT h.run, h.at, h.event, h.ticket, h.text, h.fields,
            CASE WHEN h.pool = '' THEN coalesce(t.pool, '') ELSE h.pool END AS pool
        FROM happening h LEFT JOIN ticket t ON h.ticket != '' AND t.id = h.ticket{where} ORDER BY h.at, h.id
        """,
        where.values,
    )
    rows = failure_rows(_ends(journal, span))
    found = incidents(told, runs(journal), rows, now=now, live=journal.live_run)
    return [one for one in found if one.began < span.until and (one.ended is None or one.ended >= span.since)]


def read_timeline(journal: JournalReader, incident: Incident, most: int) -> list[TimelineLine]:
    """What happened in it, in at most about so many lines."""
    until = float("inf") if incident.ended is None else incident.ended + 1.0
    told = happenings_of(journal, Span(incident.began - 1.0, until))
    return timeline(incident, [one for one in told if one.event not in _DULL], most)


def read_aftermath(journal: JournalReader, incident: Incident) -> Aftermath:
    """What it did. A breaker opens after some failures: those of the minute before it are counted in."""
    began = incident.began - QUIET_S
    ended = _END_OF_TIME if incident.ended is None else incident.ended
    where = SqlConditions()
    where.within("t.arrived", Span(began - _LONGEST_TICKET_S, ended))
    where.add("(t.ended IS NULL OR t.ended >= ?)", began)
    if incident.pool:
        where.add("t.pool = ?", incident.pool)
    those = f"""
        WITH there AS (SELECT t.id, t.run, {end_of(journal)} AS final, t.attempts AS tries FROM ticket t{where}),
        failed AS (
            SELECT a.*, {outcome_of(journal)} AS fate, {booked(journal, "tokens")} AS cost,
            {booked(journal, "micro_usd")} AS price, t.final, t.tries FROM there t JOIN attempt a ON a.ticket = t.id
            WHERE fate IN ({", ".join("?" * len(_FAILED))}) AND coalesce(a.ended, a.began) BETWEEN ? AND ?
        )
        """
    values = (*where.values, *_FAILED, began, ended)
    ends = journal.counts(f"{those} SELECT final, count(*) FROM there GROUP BY 1", values)
    reasons = journal.counts(
        f"""{those} SELECT CASE WHEN reason = '' THEN fate ELSE reason END, count(*) FROM failed
        GROUP BY 1 ORDER BY 2 DESC, 1""",
        values,
    )
    ((waited,),) = journal.tuples(
        f"""{those} SELECT count(*) FROM there
        WHERE EXISTS (SELECT 1 FROM wait w WHERE w.ticket = there.id AND w.began BETWEEN ? AND ?)""",
        (*values, began, ended),
    )
    ((retried, rescued, tokens, micro_usd),) = journal.tuples(
        f"""{those} SELECT count(DISTINCT CASE WHEN tries > attempt THEN ticket END),
        count(DISTINCT CASE WHEN final = 'delivered' THEN ticket END),
        CAST(total(cost) AS INTEGER), CAST(total(price) AS INTEGER) FROM failed""",
        values,
    )
    return msgspec.convert(
        {
            "requests": sum(ends.values()),
            "waited": waited,
            "failed_attempts": sum(reasons.values()),
            "reasons": reasons,
            "retried": retried,
            "rescued": rescued,
            **{field: ends.get(end, 0) for field, end in _FIELD_OF_END.items()},
            "tokens": tokens,
            "micro_usd": micro_usd,
        },
        Aftermath,
    )


def _ends(journal: JournalReader, span: Span) -> list[AttemptEnd]:
    """How attempts ended, in that order, wherever so many failed that they may have done so in a row."""
    where = SqlConditions()
    where.within("a.began", Span(span.since - _LONGEST_ATTEMPT_S, span.until + _LONGEST_ATTEMPT_S))
    where.one_of("a.outcome", sorted(HARD))
    where.add("a.ended IS NOT NULL")
    failures = _attempt_ends(journal, where)
    ends = list(failures)
    for pool, spans in _crowds(failures).items():
        for crowd in spans:
            where = SqlConditions()
            where.within("a.began", Span(crowd.since - _LONGEST_ATTEMPT_S, crowd.until))
            where.within("a.ended", crowd)
            where.add("t.pool = ?", pool)
            where.add(f"a.outcome NOT IN ('', {', '.join('?' * len(HARD))})", *sorted(HARD))
            ends += _attempt_ends(journal, where)
    return sorted(ends, key=lambda end: end.ended)


def _attempt_ends(journal: JournalReader, where: SqlConditions) -> list[AttemptEnd]:
    return journal.answers(
        AttemptEnd,
        f"""
        SELECT a.ended, t.pool, a.outcome, a.reason FROM attempt a JOIN ticket t ON t.id = a.ticket{where}
        ORDER BY a.ended
        """,
        where.values,
    )


def _crowds(failures: Sequence[AttemptEnd]) -> dict[str, list[Span]]:
    """Times in which a pool's failures followed each other closely, and were enough for a row."""
    by_pool: dict[str, list[list[AttemptEnd]]] = {}
    for one in failures:
        crowds = by_pool.setdefault(one.pool, [[]])
        if crowds[-1] and one.ended - crowds[-1][-1].ended > QUIET_S:
            crowds.append([])
        crowds[-1].append(one)
    return {
        pool: [Span(crowd[0].ended, crowd[-1].ended + QUIET_S) for crowd in crowds if len(crowd) >= ROW]
        for pool, crowds in by_pool.items()
    }
