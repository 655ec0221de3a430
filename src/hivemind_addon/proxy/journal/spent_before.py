"""What a holder had spent of a period before it had a budget for it, asked of the journal's own connection."""

# ruff: noqa: S608 - names and conditions are of our own, and every value is bound

import sqlite3
from typing import assert_never

from msgspec import Struct

from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.proxy.journal.runs import GOES_ON_S

_LOST = "a.outcome = 'lost'"
_CALLS = "sum(a.outcome IN ('lost', 'success', 'cancelled', 'ignored') OR a.ambiguous)"
"""As `calls_of` has it."""


class SpentBefore(Struct, frozen=True):
    """The period began with the first attempt in it."""

    began: float
    """In epoch seconds."""
    spent: Spend


def spent_before(
    connection: sqlite3.Connection, budget: Budget, *, since: float, until: float, port: int = 0
) -> SpentBefore | None:
    """What attempts took that ended before `until`, within the length of the budget's period; None: there were none.

    `since`: what began earlier counted in a period that is over. Both in epoch seconds. `port`: only what went through
    it counts in a budget per run.
    A lost attempt counts with what was expected of it, as in the budgets.
    """
    values: tuple[str | int, ...]
    whose, values = _whose(budget)
    if budget.per is Period.RUN:
        since = max(since, _run_began(connection, port))
        whose, values = f"{whose} AND t.run IN (SELECT id FROM run WHERE port = ?)", (*values, port)
    else:
        since = max(since, until - budget.per.length_s)
    tokens, micro_usd = (f"CASE WHEN {_LOST} THEN a.expected_{one} ELSE a.{one} END" for one in ("tokens", "micro_usd"))
    sums = f"sum({tokens}), sum({micro_usd}), {_CALLS}, sum(t.unpriced * {tokens})"
    began, *spent = connection.execute(
        f"SELECT min(a.began), {sums} FROM attempt a JOIN ticket t ON t.id = a.ticket"
        f" WHERE a.began >= ? AND a.began <= ? AND ({_LOST} OR a.ended <= ?){whose}",
        (since, until, until, *values),
    ).fetchone()
    return None if began is None else SpentBefore(began, Spend(*spent))


def _whose(budget: Budget) -> tuple[str, tuple[str, ...]]:
    match budget.scope:
        case Scope.AGENT:
            return " AND t.agent = ?", (budget.name,)
        case Scope.GROUP:
            return ' AND t."group" = ?', (budget.name,)
        case Scope.EVERYONE:
            return "", ()
        case _:
            assert_never(budget.scope)


def _run_began(connection: sqlite3.Connection, port: int) -> float:
    """When the fleet's run began: starts on a port that follow a death, or an end less than an hour ago, are of one."""
    first = float("inf")
    for began, ended in connection.execute("SELECT began, ended FROM run WHERE port = ? ORDER BY id DESC", (port,)):
        if first < float("inf") and ended is not None and first - ended >= GOES_ON_S:
            break
        first = began
    return first
