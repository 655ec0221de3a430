"""What is summed up over a journal: what requests cost, by whatever they are grouped by, and what was tried again."""

# ruff: noqa: S608 - names and conditions are of our own, and every value is bound

from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct

from hivemind_addon.tools.history.filters import LOST, RequestFilter, SqlConditions, booked, end_of, is_broad
from hivemind_addon.tools.history.history import TOKENS_IN
from hivemind_addon.tools.history.reader import JournalReader, Value


class GroupBy(Enum):
    """What sums are made for."""

    AGENT = "agent"
    GROUP = "group"
    TASK = "task"
    SESSION = "session"
    LINEAGE = "lineage"
    MODEL = "model"
    POOL = "pool"
    DAY = "day"

    def of(self, instant: str) -> str:
        """The SQL of it; `instant` is the column that a day is of, in this machine's time.

        The plus keeps SQLite from walking along an index, which leads all over the disk.
        """
        return f"date({instant}, 'unixepoch', 'localtime')" if self is GroupBy.DAY else f'+t."{self.value}"'


class CostSum(Struct, frozen=True):
    """What requests came to. They count where they arrived, their attempts and what these took where they began."""

    name: str = ""
    """Whose; empty where the requests name nothing."""
    requests: int = 0
    delivered: int = 0
    gave_up: int = 0
    """Failed, and were not to be tried again."""
    refused: int = 0
    """For good: a budget was spent, or the account is refused."""
    lost: int = 0
    """Cut off by the death of their proxy."""
    shed: int = 0
    """Told to come back."""
    cancelled: int = 0
    """Their client went, or a person ended them."""
    unfinished: int = 0
    waited_s: float = 0.0
    attempts: int = 0
    retries: int = 0
    """Attempts but the first of each request."""
    tokens_in: int = 0
    """All input, cached or not, as reported or counted."""
    tokens_cached: int = 0
    """Of these, what was read from the provider's cache."""
    tokens_out: int = 0
    tokens: int = 0
    """What was booked: where nothing was reported, what was expected."""
    micro_usd: int = 0
    wasted_tokens: int = 0
    """Of the tokens, what attempts took that came to nothing: they failed, were lost, or their client went."""
    wasted_micro_usd: int = 0

    def __add__(self, other: "CostSum") -> "CostSum":
        """Under the first one's name."""
        sums = {
            name: getattr(self, name) + getattr(other, name) for name in CostSum.__struct_fields__ if name != "name"
        }
        return CostSum(name=self.name, **sums)


class RetryReason(Struct, frozen=True):
    """One reason for which attempts were made again."""

    reason: str
    retries: int
    requests: int
    delivered: int
    """Of these requests."""


class RetriedRequest(Struct, frozen=True):
    """One request that was tried again."""

    id: str
    agent: str
    pool: str
    model: str
    arrived: float
    end: str
    attempts: int
    reasons: str
    """Of each attempt that was followed by another, in order, by `; `."""
    waited_s: float
    """For the retries: from each failure to the instant of the next attempt."""
    micro_usd: int
    """Of the attempts that failed."""
    tokens: int


def costs(journal: JournalReader, wanted: RequestFilter, by: GroupBy) -> list[CostSum]:
    """Sums, what cost most first; days in their order."""
    return merged((*_of_tickets(journal, wanted, by), *_of_attempts(journal, wanted, by)), by)


def merged(costs: Iterable[CostSum], by: GroupBy) -> list[CostSum]:
    """Those of one name together, in the order of `costs`."""
    sums: dict[str, CostSum] = {}
    for cost in costs:
        sums[cost.name] = sums[cost.name] + cost if cost.name in sums else cost
    if by is GroupBy.DAY:
        return sorted(sums.values(), key=lambda cost: cost.name)
    return sorted(sums.values(), key=lambda cost: (-cost.micro_usd, -cost.tokens, -cost.requests, cost.name))


def total(sums: Sequence[CostSum]) -> CostSum:
    """All of them together."""
    return sum(sums, CostSum(name="total"))


def retry_reasons(journal: JournalReader, wanted: RequestFilter) -> list[RetryReason]:
    """Why attempts were followed by another one, the most frequent reason first."""
    where = _retried(journal, wanted)
    return journal.answers(
        RetryReason,
        f"""
        SELECT a.retry_reason AS reason, count(*) AS retries, count(DISTINCT t.id) AS requests,
            count(DISTINCT CASE WHEN t."end" = 'delivered' THEN t.id END) AS delivered
        FROM attempt a JOIN ticket t ON t.id = a.ticket{where}
        GROUP BY a.retry_reason ORDER BY retries DESC, reason
        """,
        where.values,
    )


def retried(journal: JournalReader, wanted: RequestFilter, most: int) -> list[RetriedRequest]:
    """The newest requests that were tried again, newest first."""
    where = _retried(journal, wanted)
    return journal.answers(
        RetriedRequest,
        f"""
        SELECT t.id, t.agent, t.pool, t.model, t.arrived, {end_of(journal)} AS "end", t.attempts,
            sum(a.tokens) AS tokens, group_concat(a.retry_reason, '; ') AS reasons, sum(a.micro_usd) AS micro_usd,
            sum(max(0, coalesce(a.retry_at - a.ended, 0))) AS waited_s
        FROM attempt a JOIN ticket t ON t.id = a.ticket{where}
        GROUP BY t.id ORDER BY t.arrived DESC, t.id LIMIT ?
        """,
        (*where.values, most),
    )


def _retried(journal: JournalReader, wanted: RequestFilter) -> SqlConditions:
    where = SqlConditions()
    where.within("a.began", wanted.span)
    where.selects(journal, wanted)
    where.add("a.retry_reason != ''")
    return where


def _of_tickets(journal: JournalReader, wanted: RequestFilter, by: GroupBy) -> list[CostSum]:
    where = rows_in("t.arrived", "t.id", journal, wanted)
    sql = f"""
        SELECT name, count(*) AS requests, sum(final = 'delivered') AS delivered,
            sum(final = 'gave up') AS gave_up, sum(final = 'refused') AS refused, sum(final = '{LOST}') AS lost,
            sum(final = 'shed') AS shed,
            sum(final = 'cancelled') AS cancelled, sum(final = '') AS unfinished, sum(waited_s) AS waited_s
        FROM (SELECT {by.of("t.arrived")} AS name, {end_of(journal)} AS final, t.waited_s FROM ticket t{where})
        GROUP BY 1
        """
    return _sums(journal, sql, where.values)


def _of_attempts(journal: JournalReader, wanted: RequestFilter, by: GroupBy) -> list[CostSum]:
    where = rows_in("a.began", "a.ticket", journal, wanted)
    in_vain = "(a.outcome != 'success')"
    sql = f"""
        SELECT {by.of("a.began")} AS name, count(*) AS attempts, sum(a.attempt > 1) AS retries,
            sum({TOKENS_IN}) AS tokens_in, sum(coalesce(a.cache_read_tokens, 0)) AS tokens_cached,
            sum(coalesce(a.output_tokens, 0)) AS tokens_out, sum({booked(journal, "tokens")}) AS tokens,
            sum({booked(journal, "micro_usd")}) AS micro_usd,
            sum({in_vain} * {booked(journal, "tokens")}) AS wasted_tokens,
            sum({in_vain} * {booked(journal, "micro_usd")}) AS wasted_micro_usd
        FROM attempt a JOIN ticket t ON t.id = a.ticket{where} GROUP BY 1
        """
    return _sums(journal, sql, where.values)


def rows_in(instant: str, key: str, journal: JournalReader, wanted: RequestFilter) -> SqlConditions:
    """The rows of the filter's span by the column of an instant, of a table with this key, in the quickest way."""
    where = SqlConditions()
    if is_broad(journal, wanted):
        where.through(key)
        instant = f"+{instant}"  # not by its index
    where.within(instant, wanted.span)
    where.selects(journal, wanted)
    return where


def _sums(journal: JournalReader, sql: str, values: Sequence[Value]) -> list[CostSum]:
    return journal.answers(CostSum, sql, values)
