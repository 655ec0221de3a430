"""One start of the proxy after the other: what a run finds of those before it, and what it leaves."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hivemind_addon.kernel.values.spend import AccountState, Budget, Period, Scope, Spend
from hivemind_addon.proxy.journal.tables import BudgetRow
from hivemind_addon.proxy.system.database import is_damage, transaction

GOES_ON_S = 3600.0
"""A budget `per run` goes on where the last run on its port died, or ended less than this ago: a restart forgives
nothing."""

_OF_A_PORT = ("orders", "jobs")

Statement = tuple[str, tuple[object, ...]]

_LOST_TICKETS = """
UPDATE ticket SET "end" = 'lost', reason = ?,
    ended = max(arrived, coalesce((SELECT run.seen FROM run WHERE run.id = ticket.run), arrived))
WHERE "end" = ''
"""


@dataclass(frozen=True, slots=True)
class Inherited:
    """What earlier runs have left."""

    kept: Mapping[str, str] = field(default_factory=dict)
    """Name → JSON: what the scheduler exported last."""
    budgets: tuple[BudgetRow, ...] = ()
    """Of periods that go on; what was in flight is counted as spent, since it may have been billed."""

    run_goes_on: bool = False
    """The last run on this port died, or ended just now: its budgets `per run` go on."""

    def standings(self, wall: float) -> list[AccountState]:
        """The accounts, for the core; an account that cannot be understood is left out."""
        return [standing for row in self.budgets if (standing := _standing(row, wall)) is not None]


def inherit(connection: sqlite3.Connection, wall: float, *, port: int = 0, fresh: bool = False) -> Inherited:
    """Read what is to outlive a run, as far as a damaged journal still has it. Changes nothing.

    Orders, and budgets `per run`, are of the runs on the same port; `fresh`: of none.
    """
    columns = ", ".join(f'"{name}"' for name in BudgetRow.__struct_fields__)
    rows = [BudgetRow(*row) for row in _all(connection, f"SELECT {columns} FROM budget")]  # noqa: S608 - ours
    ends = [
        ended for (ended,) in _all(connection, "SELECT ended FROM run WHERE port = ? ORDER BY id DESC LIMIT 1", port)
    ]
    every = dict(_all(connection, "SELECT name, value FROM kept"))
    kept = {name: value for name, value in every.items() if not name.startswith(_OF_A_PORT)}
    told = {of_port(name, port): name for name in _OF_A_PORT if of_port(name, port) in every}
    if not any(":" in name for name in every):  # written when nothing belonged to a port
        told = {name: name for name in _OF_A_PORT if name in every}
    if not fresh:
        kept |= {name: every[stored] for stored, name in told.items()}
    goes_on = not fresh and (not ends or ends[0] is None or wall - ends[0] < GOES_ON_S)
    return Inherited(
        kept=kept,
        budgets=tuple(
            _without_flights(row) for row in rows if row.per != Period.RUN.value or (goes_on and row.port == port)
        ),
        run_goes_on=goes_on,
    )


def begin(connection: sqlite3.Connection, *, pid: int, version: str, wall: float, goes_on: bool, port: int = 0) -> int:
    """A new run; what earlier ones have not finished is lost. Answers the run's id.

    `goes_on`: budgets per run are the last run's on this port. Other ports' stay as they are.
    """
    with transaction(connection):
        for sql, values in lost("its proxy died"):
            connection.execute(sql, values)
        run = connection.execute(
            "INSERT INTO run (began, seen, pid, version, port, listened) VALUES (?, ?, ?, ?, ?, 0) RETURNING id",
            (wall, wall, pid, version, port),
        ).fetchone()[0]
        connection.execute(
            "UPDATE budget SET spent_tokens = spent_tokens + reserved_tokens, reserved_tokens = 0,"
            " spent_micro_usd = spent_micro_usd + reserved_micro_usd, reserved_micro_usd = 0,"
            " spent_calls = spent_calls + reserved_calls, reserved_calls = 0,"
            " spent_unpriced_tokens = spent_unpriced_tokens + reserved_unpriced_tokens, reserved_unpriced_tokens = 0"
        )
        if not goes_on:
            connection.execute("DELETE FROM budget WHERE per = ? AND port = ?", (Period.RUN.value, port))
    return int(run)


def seen(run: int, wall: float, *, listens: bool = False) -> Statement:
    """The run is alive, and `listens`, or has."""
    return "UPDATE run SET seen = max(seen, ?), listened = max(listened, ?) WHERE id = ?", (wall, listens, run)


def has(connection: sqlite3.Connection, run: int, began: float) -> bool:
    """Whether this run is of this journal."""
    return connection.execute("SELECT 1 FROM run WHERE id = ? AND began = ?", (run, began)).fetchone() is not None


def end(run: int, wall: float, why: str) -> list[Statement]:
    """The run ends as it should."""
    return [*lost(why), ("UPDATE run SET seen = ?, ended = ? WHERE id = ?", (wall, wall, run))]


def of_port(name: str, port: int) -> str:
    """Under which name something is kept: what belongs to a port has its number."""
    return f"{name}:{port}" if port and name in _OF_A_PORT else name


def forget_orders(port: int) -> list[Statement]:
    """What was ordered on a port is over."""
    return [("DELETE FROM kept WHERE name = ?", (of_port(name, port),)) for name in _OF_A_PORT]


def keep(name: str, value: str, wall: float) -> Statement:
    """What the scheduler exported."""
    sql = "INSERT INTO kept (name, at, value) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET at = ?, value = ?"
    return sql, (name, wall, value, wall, value)


def lost(why: str) -> list[Statement]:
    """Everything that has not ended is lost: it may have run, and may have been billed."""
    return [
        ("UPDATE attempt SET outcome = 'lost', reason = ?, ambiguous = 1 WHERE outcome = ''", (why,)),
        (_LOST_TICKETS, (why,)),
    ]


def _all(connection: sqlite3.Connection, sql: str, *values: object) -> list[Any]:
    try:
        return connection.execute(sql, values).fetchall()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return []


def _without_flights(row: BudgetRow) -> BudgetRow:
    row.spent_tokens += row.reserved_tokens
    row.spent_micro_usd += row.reserved_micro_usd
    row.spent_calls += row.reserved_calls
    row.spent_unpriced_tokens += row.reserved_unpriced_tokens
    row.reserved_tokens = row.reserved_micro_usd = row.reserved_calls = row.reserved_unpriced_tokens = 0
    return row


def _standing(row: BudgetRow, wall: float) -> AccountState | None:
    try:
        budget = Budget(
            scope=Scope(row.scope),
            name=row.name,
            per=Period(row.per),
            tokens=row.limit_tokens,
            micro_usd=row.limit_micro_usd,
            calls=row.limit_calls,
        )
    except ValueError:
        return None
    return AccountState(
        budget=budget,
        age_s=max(0.0, wall - row.began),
        spent=Spend(row.spent_tokens, row.spent_micro_usd, row.spent_calls, row.spent_unpriced_tokens),
        added=Spend(row.added_tokens, row.added_micro_usd, row.added_calls),
    )
