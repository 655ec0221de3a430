"""Sums over a journal: the cost of requests, grouped by a column of theirs, and attempts that were made again."""

# ruff: noqa: S608 - all names are of this project, and every value is bound

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from hivemind_addon.tools.history.filters import RequestFilter, SqlConditions, selection
from hivemind_addon.tools.history.history import USED
from hivemind_addon.tools.history.reader import JournalReader, Value
from hivemind_addon.tools.history.views import ENDS

Sums = dict[str, Any]
"""Column → value; also `name`."""


class GroupBy(Enum):
    """The groups of requests that get a sum each."""

    AGENT = "agent"
    GROUP = "group"
    TASK = "task"
    SESSION = "session"
    LINEAGE = "lineage"
    MODEL = "model"
    POOL = "pool"
    DAY = "day"


_OF_REQUESTS = {
    "requests": "count(*)",
    **{end.replace(" ", "_"): f"""sum("end" = '{end}')""" for end in ENDS},
    "unfinished": "sum(\"end\" = '')",
    "waited_s": "sum(waited_s)",
}
_OF_ATTEMPTS = {
    "attempts": "count(*)",
    "retries": "sum(attempt > 1)",  # all except the first of each request
    **{name: f"sum({name})" for name in USED},
    **{f"wasted_{unit}": f"sum((outcome != 'success') * {unit})" for unit in ("tokens", "micro_usd")},
}
_NOTHING: Sums = {**dict.fromkeys((*_OF_REQUESTS, *_OF_ATTEMPTS), 0), "waited_s": 0.0}


def costs(journal: JournalReader, wanted: RequestFilter, by: GroupBy) -> list[Sums]:
    """A row of sums for each group; `name` is the group, empty for requests that name none.

    Requests count at their arrival; their attempts, with tokens and money, where these began.
    """
    found: list[Sums] = []
    for view, key, instant, columns in (
        ("requests", "id", "arrived", _OF_REQUESTS),
        ("costs", "ticket", "began", _OF_ATTEMPTS),
    ):
        where = selection(journal, wanted, key, instant)
        # The plus keeps SQLite from walking along an index. Days are of this machine's time.
        name = f"date({instant}, 'unixepoch', 'localtime')" if by is GroupBy.DAY else f'+"{by.value}"'
        sums = ", ".join(f"{sql} AS {column}" for column, sql in columns.items())
        found += journal.rows(f"SELECT {name} AS name, {sums} FROM {view}{where} GROUP BY 1", where.values)
    return merged(found, by)


def merged(rows: Iterable[Sums], by: GroupBy) -> list[Sums]:
    """The sum of the rows of each name, the most expensive first; days in their order."""
    by_name: defaultdict[str, list[Sums]] = defaultdict(list)
    for row in rows:
        by_name[row["name"]].append(row)
    sums = [total(same, name) for name, same in sorted(by_name.items())]
    return (
        sums
        if by is GroupBy.DAY
        else sorted(sums, key=lambda row: (-row["micro_usd"], -row["tokens"], -row["requests"]))
    )


def total(rows: Sequence[Sums], name: str = "total") -> Sums:
    """The sum of all rows."""
    return {"name": name} | {
        column: sum((row.get(column, 0) for row in rows), zero) for column, zero in _NOTHING.items()
    }


def retry_reasons(journal: JournalReader, wanted: RequestFilter) -> list[dict[str, Value]]:
    """Reasons for which attempts were followed by another, the most frequent reason first."""
    where = _retried(wanted)
    return journal.rows(
        f"""
        SELECT retry_reason AS reason, count(*) AS retries, count(DISTINCT ticket) AS requests,
            count(DISTINCT CASE WHEN "end" = 'delivered' THEN ticket END) AS delivered
        FROM retries{where} GROUP BY retry_reason ORDER BY retries DESC, reason
        """,
        where.values,
    )


def retried(journal: JournalReader, wanted: RequestFilter, most: int) -> list[dict[str, Value]]:
    """The newest requests that were tried again, newest first, with the sums of their failed attempts."""
    where = _retried(wanted)
    return journal.rows(
        f"""
        SELECT ticket AS id, agent, pool, model, arrived, "end", tries AS attempts,
            group_concat(retry_reason, '; ') AS reasons, sum(backed_off_s) AS waited_s, sum(micro_usd) AS micro_usd,
            sum(tokens) AS tokens
        FROM retries{where} GROUP BY ticket ORDER BY arrived DESC, ticket LIMIT ?
        """,
        (*where.values, most),
    )


def _retried(wanted: RequestFilter) -> SqlConditions:
    where = SqlConditions()
    where.within("began", wanted.span)
    where.selects(wanted)
    return where
