"""The incidents in a journal, and the effect of each on the requests of that time."""

# ruff: noqa: S608 - all names are of this project, and every value is bound

import json
from collections.abc import Sequence
from typing import Any

from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.proxy.api.page_questions import StoryLine
from hivemind_addon.proxy.journal.tables import HappeningRow
from hivemind_addon.tools.history.filters import RequestFilter, Span, SqlConditions, selection
from hivemind_addon.tools.history.history import happenings, runs
from hivemind_addon.tools.history.incidents import (
    EVENTS,
    HARD,
    QUIET_S,
    ROW,
    AttemptEnd,
    Incident,
    failure_rows,
    incidents,
    timeline,
)
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.views import LOST

_LONGEST_ATTEMPT_S = 3600.0
"""An attempt that ended in an incident began at most so long before."""
_LONGEST_TICKET_S = 6 * 3600.0
"""A request that lived in an incident came at most so long before."""
_FAILED = (*sorted(HARD), OutcomeKind.THROTTLED.value, LOST)
_DULL = """event NOT IN ('ConcurrencyChanged', 'WindowUsed', 'AccountNamed', 'Superseded', 'Moved', 'OddityNoted',
    'BudgetWarned', 'PriceMissing', 'ContextFull', 'ContextShrank')"""
"""Left out of a timeline."""
_END_OF_TIME = 1e12
"""Epoch seconds; SQLite has no infinity."""


def read_incidents(journal: JournalReader, span: Span, now: float) -> list[Incident]:
    """The incidents of the span, oldest first."""
    where = SqlConditions()
    where.one_of("h.event", EVENTS)
    events = journal.answers(
        HappeningRow,
        f"""
        SELECT h.run, h.at, h.event, h.ticket, h.text, h.fields,
            CASE WHEN h.pool = '' THEN coalesce(t.pool, '') ELSE h.pool END AS pool
        FROM happening h LEFT JOIN ticket t ON h.ticket != '' AND t.id = h.ticket{where} ORDER BY h.at, h.id
        """,
        where.values,
    )
    rows = failure_rows(_ends(journal, span))
    found = incidents(events, runs(journal), rows, now=now, live=journal.live_run)
    return [one for one in found if one.began < span.until and (one.ended is None or one.ended >= span.since)]


def read_timeline(journal: JournalReader, incident: Incident, most: int) -> list[StoryLine]:
    """The happenings of the incident, in at most about so many lines."""
    until = float("inf") if incident.ended is None else incident.ended + 1.0
    return timeline(incident, happenings(journal, Span(incident.began - 1.0, until), _DULL), most)


def read_aftermath(journal: JournalReader, incident: Incident) -> dict[str, Any]:
    """Sums of the requests that lived during an incident, and of their attempts that failed then.

    A breaker opens after some failures: those of the minute before count, too. `waited`: requests that began to wait
    then; `retried`, `rescued`: requests with a failed attempt that were tried again, or delivered, even later.
    """
    began = incident.began - QUIET_S
    ended = _END_OF_TIME if incident.ended is None else incident.ended
    where = SqlConditions()
    where.within("arrived", Span(began - _LONGEST_TICKET_S, ended))
    where.add("(ended IS NULL OR ended >= ?)", began)
    if incident.pool:
        where.add("pool = ?", incident.pool)
    ends = {end.replace(" ", "_"): end for end in ("delivered", "shed", "gave up", "refused", "cancelled", LOST)}
    ends["unfinished"] = ""
    counts = (f"""count(*) FILTER (WHERE "end" = '{end}') AS {name}""" for name, end in ends.items())
    [sums] = journal.rows(
        f"""
        WITH there AS (SELECT id, "end", attempts AS tries FROM requests{where}),
        failed AS (
            SELECT a.*, t."end", t.tries FROM there t JOIN attempts a ON a.ticket = t.id
            WHERE a.outcome IN ({", ".join("?" * len(_FAILED))}) AND coalesce(a.ended, a.began) BETWEEN ? AND ?
        ),
        reasons AS (
            SELECT CASE WHEN reason = '' THEN outcome ELSE reason END AS reason, count(*) AS number FROM failed
            GROUP BY 1 ORDER BY 2 DESC, 1
        )
        SELECT count(*) AS requests, count(*) FILTER (
                WHERE EXISTS (SELECT 1 FROM wait w WHERE w.ticket = there.id AND w.began BETWEEN ? AND ?)
            ) AS waited, (SELECT count(*) FROM failed) AS failed_attempts,
            (SELECT json_group_object(reason, number) FROM reasons) AS reasons,
            (SELECT count(DISTINCT ticket) FROM failed WHERE tries > attempt) AS retried,
            (SELECT count(DISTINCT ticket) FROM failed WHERE "end" = 'delivered') AS rescued, {", ".join(counts)},
            (SELECT CAST(total(tokens) AS INTEGER) FROM failed) AS tokens,
            (SELECT CAST(total(micro_usd) AS INTEGER) FROM failed) AS micro_usd
        FROM there
        """,
        (*where.values, *_FAILED, began, ended, began, ended),
    )
    return sums | {"reasons": json.loads(str(sums["reasons"]))}


def _ends(journal: JournalReader, span: Span) -> list[AttemptEnd]:
    """The ends of attempts, in order, wherever so many failed that ten may have failed in a row."""
    around = Span(span.since - _LONGEST_ATTEMPT_S, span.until + _LONGEST_ATTEMPT_S)
    where = selection(journal, RequestFilter(around), "ticket", "began")
    where.one_of("outcome", sorted(HARD))
    where.add("ended IS NOT NULL")
    failures = _attempt_ends(journal, where)
    ends = list(failures)
    for pool, crowd in _crowds(failures):
        where = SqlConditions()
        where.within("began", Span(crowd.since - _LONGEST_ATTEMPT_S, crowd.until))
        where.within("ended", crowd)
        where.add("pool = ?", pool)
        where.add(f"outcome NOT IN ('', {', '.join('?' * len(HARD))})", *sorted(HARD))
        ends += _attempt_ends(journal, where)
    return sorted(ends, key=lambda end: end.ended)


def _attempt_ends(journal: JournalReader, where: SqlConditions) -> list[AttemptEnd]:
    return journal.answers(
        AttemptEnd, f"SELECT ended, pool, outcome, reason FROM costs{where} ORDER BY ended", where.values
    )


def _crowds(failures: Sequence[AttemptEnd]) -> list[tuple[str, Span]]:
    """Pools, and the times in which so many of their failures followed each other closely."""
    by_pool: dict[str, list[list[AttemptEnd]]] = {}
    for end in failures:
        crowds = by_pool.setdefault(end.pool, [])
        if not crowds or end.ended - crowds[-1][-1].ended > QUIET_S:
            crowds.append([])
        crowds[-1].append(end)
    crowded = (crowd for crowds in by_pool.values() for crowd in crowds if len(crowd) >= ROW)
    return [(crowd[0].pool, Span(crowd[0].ended, crowd[-1].ended + QUIET_S)) for crowd in crowded]
