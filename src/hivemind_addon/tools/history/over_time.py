"""The content of a journal in equal parts of time, for charts. SQLite makes the sums, and answers a row for a part."""

# ruff: noqa: S608 - all names are of this project, and every value is bound

import msgspec

from hivemind_addon.proxy.api.page_questions import PastCost, PastPart
from hivemind_addon.tools.history.filters import RequestFilter, Span, selection
from hivemind_addon.tools.history.reader import JournalReader, Value

MOST_AGENTS = 12
"""Agents that an hour or a day names; the rest are one sum."""
_WAIT_CLASS = """CASE WHEN waited_s < 1 THEN CAST(waited_s * 20 AS INTEGER) / 20.0
    WHEN waited_s < 10 THEN CAST(waited_s * 2 AS INTEGER) / 2.0
    WHEN waited_s < 100 THEN CAST(waited_s / 5 AS INTEGER) * 5.0
    ELSE CAST(waited_s / 50 AS INTEGER) * 50.0 END"""
"""Waits that count as equal, so that percentiles of a month need no sorting of all requests."""


def parts(journal: JournalReader, span: Span, part_s: float) -> list[PastPart]:
    """The requests and attempts of each part of the span, oldest first. The span begins with a part."""
    wanted = RequestFilter(span=span)
    where = selection(journal, wanted, "id", "arrived")
    requests = f"""
        WITH waits AS (
            SELECT CAST(arrived / ? AS INTEGER) * ? AS began, {_WAIT_CLASS} AS wait, count(*) AS requests,
                sum("end" = 'delivered') AS delivered, sum("end" = 'shed') AS shed,
                sum("end" IN ('gave up', 'refused', 'lost')) AS failed
            FROM requests{where} GROUP BY 1, 2
        ),
        ranked AS (
            SELECT *, sum(requests) OVER (PARTITION BY began ORDER BY wait) AS rank,
                sum(requests) OVER (PARTITION BY began) AS last FROM waits
        )
        SELECT began, sum(requests) AS requests, sum(delivered) AS delivered, sum(shed) AS shed, sum(failed) AS failed,
            min(CASE WHEN rank >= 0.5 * last THEN wait END) AS wait_p50_s,
            min(CASE WHEN rank >= 0.95 * last THEN wait END) AS wait_p95_s
        FROM ranked GROUP BY began
        """
    found = journal.rows(requests, (part_s, part_s, *where.values))
    where = selection(journal, wanted, "ticket", "began")
    attempts = f"""
        SELECT CAST(began / ? AS INTEGER) * ? AS began, count(*) AS attempts, sum(outcome = 'throttled') AS throttled,
            sum(outcome = 'overloaded') AS overloaded, sum(outcome IN ('failed', 'lost')) AS broken
        FROM attempts{where} GROUP BY 1
        """
    found += journal.rows(attempts, (part_s, part_s, *where.values))
    by_part: dict[Value, dict[str, Value]] = {}
    for row in found:
        by_part.setdefault(row["began"], {}).update(row)
    return sorted(msgspec.convert([*by_part.values()], list[PastPart], strict=False), key=lambda part: part.began)


def costs(journal: JournalReader, span: Span, *, by_day: bool) -> list[PastCost]:
    """The agents' costs in each hour, or each day of this machine's time; within it the most expensive agent first."""
    where = selection(journal, RequestFilter(span=span), "ticket", "began")
    part = (
        "CAST(strftime('%s', date(began, 'unixepoch', 'localtime'), 'utc') AS REAL)"
        if by_day
        else "CAST(began / 3600 AS INTEGER) * 3600.0"
    )
    return journal.answers(
        PastCost,
        f"""
        WITH sums AS (
            SELECT {part} AS began, +agent AS agent, CAST(total(micro_usd) AS INTEGER) AS micro_usd,
                CAST(total(tokens) AS INTEGER) AS tokens
            FROM costs{where} GROUP BY 1, 2 HAVING total(micro_usd) OR total(tokens)
        ),
        ranked AS (
            SELECT *, row_number() OVER (PARTITION BY began ORDER BY micro_usd DESC, tokens DESC, agent) AS rank
            FROM sums
        )
        SELECT began, CASE WHEN rank > {MOST_AGENTS} THEN '' ELSE agent END AS agent, sum(micro_usd) AS micro_usd,
            sum(tokens) AS tokens
        FROM ranked GROUP BY began, min(rank, {MOST_AGENTS} + 1) ORDER BY began, rank
        """,
        where.values,
    )
