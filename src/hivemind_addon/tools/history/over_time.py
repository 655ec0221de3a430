"""What a journal has, in equal parts of time: for charts. Summed by SQLite, which tells a row for a part."""

# ruff: noqa: S608 - names and conditions are of our own, and every value is bound

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec import Struct

from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.proxy.api.page_questions import PastCost, PastPart
from hivemind_addon.tools.history.filters import LOST, RequestFilter, Span, booked, end_of
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.sums import rows_in

MOST_AGENTS = 12
"""Who is told by name in an hour or a day; all others are one sum."""
_FAILED = ("gave up", "refused", LOST)
_BROKEN = (OutcomeKind.FAILED.value, LOST)
_WAIT_CLASS = """CASE WHEN waited_s < 1 THEN CAST(waited_s * 20 AS INTEGER) / 20.0
    WHEN waited_s < 10 THEN CAST(waited_s * 2 AS INTEGER) / 2.0
    WHEN waited_s < 100 THEN CAST(waited_s / 5 AS INTEGER) * 5.0
    ELSE CAST(waited_s / 50 AS INTEGER) * 50.0 END"""
"""Waits that are told as one: percentiles of a month need no sorting of its requests then."""


class _Waits(Struct, frozen=True):
    """Requests of one part that waited about as long."""

    part: int
    wait: float
    requests: int
    delivered: int
    shed: int
    failed: int


class _Attempts(Struct, frozen=True):
    """Attempts of one part."""

    part: int
    attempts: int
    throttled: int
    overloaded: int
    broken: int


class _Cost(Struct, frozen=True):
    part: float | str
    agent: str
    micro_usd: int
    tokens: int


def parts(journal: JournalReader, span: Span, part_s: float) -> list[PastPart]:
    """What there was in each part of the span, which begins with one; oldest first."""
    waits: defaultdict[int, list[_Waits]] = defaultdict(list)
    for row in _waits(journal, span, part_s):
        waits[row.part].append(row)
    attempts = {row.part: row for row in _attempts(journal, span, part_s)}
    return [
        _part(part * part_s, waits[part], attempts.get(part, _Attempts(part, 0, 0, 0, 0)))
        for part in sorted(waits.keys() | attempts.keys())
    ]


def costs(journal: JournalReader, span: Span, *, by_day: bool) -> list[PastCost]:
    """What the agents cost in each hour, or each day of this machine's time; what cost most first within it."""
    where = rows_in("a.began", "a.ticket", journal, RequestFilter(span=span))
    part = "date(a.began, 'unixepoch', 'localtime')" if by_day else "CAST(a.began / 3600 AS INTEGER) * 3600"
    rows = journal.answers(
        _Cost,
        f"""
        SELECT {part} AS part, +t.agent AS agent, CAST(total({booked(journal, "micro_usd")}) AS INTEGER) AS micro_usd,
            CAST(total({booked(journal, "tokens")}) AS INTEGER) AS tokens
        FROM attempt a JOIN ticket t ON t.id = a.ticket{where}
        GROUP BY 1, 2 ORDER BY 1, 3 DESC, 4 DESC, 2
        """,
        where.values,
    )
    by_part: defaultdict[float, list[_Cost]] = defaultdict(list)
    for row in rows:
        if row.micro_usd or row.tokens:
            by_part[_began(row.part)].append(row)
    return [one for began, some in sorted(by_part.items()) for one in _most(began, some)]


def _waits(journal: JournalReader, span: Span, part_s: float) -> list[_Waits]:
    where = rows_in("t.arrived", "t.id", journal, RequestFilter(span=span))
    return journal.answers(
        _Waits,
        f"""
        SELECT part, {_WAIT_CLASS} AS wait, count(*) AS requests, sum(final = 'delivered') AS delivered,
            sum(final = 'shed') AS shed, sum(final IN ({_marks(_FAILED)})) AS failed
        FROM (
            SELECT CAST(t.arrived / ? AS INTEGER) AS part, t.waited_s, {end_of(journal)} AS final FROM ticket t{where}
        )
        GROUP BY 1, 2
        """,
        (*_FAILED, part_s, *where.values),
    )


def _attempts(journal: JournalReader, span: Span, part_s: float) -> list[_Attempts]:
    where = rows_in("a.began", "a.ticket", journal, RequestFilter(span=span))
    return journal.answers(
        _Attempts,
        f"""
        SELECT CAST(a.began / ? AS INTEGER) AS part, count(*) AS attempts, sum(a.outcome = ?) AS throttled,
            sum(a.outcome = ?) AS overloaded, sum(a.outcome IN ({_marks(_BROKEN)})) AS broken
        FROM attempt a{where} GROUP BY 1
        """,
        (part_s, OutcomeKind.THROTTLED.value, OutcomeKind.OVERLOADED.value, *_BROKEN, *where.values),
    )


def _part(began: float, waits: Sequence[_Waits], attempts: _Attempts) -> PastPart:
    ordered = sorted(waits, key=lambda one: one.wait)
    return PastPart(
        began=began,
        requests=sum(one.requests for one in waits),
        delivered=sum(one.delivered for one in waits),
        shed=sum(one.shed for one in waits),
        failed=sum(one.failed for one in waits),
        wait_p50_s=_percentile(ordered, 0.5),
        wait_p95_s=_percentile(ordered, 0.95),
        attempts=attempts.attempts,
        throttled=attempts.throttled,
        overloaded=attempts.overloaded,
        broken=attempts.broken,
    )


def _percentile(ordered: Sequence[_Waits], share: float) -> float:
    left = share * sum(one.requests for one in ordered)
    for one in ordered:
        left -= one.requests
        if left <= 0:
            return one.wait
    return 0.0


def _began(part: float | str) -> float:
    """A day is a text, `2026-01-31`, in this machine's time."""
    return datetime.fromisoformat(part).timestamp() if isinstance(part, str) else part


def _most(began: float, rows: Sequence[_Cost]) -> Iterable[PastCost]:
    yield from (PastCost(began, one.agent, one.micro_usd, one.tokens) for one in rows[:MOST_AGENTS])
    if rest := rows[MOST_AGENTS:]:
        yield PastCost(began, "", sum(one.micro_usd for one in rest), sum(one.tokens for one in rest))


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
