"""Leases in one SQLite file, for all processes of a machine. No daemon: each call removes what is over.

Order. Waiters stand in one line, by arrival. A name's free place is given to the first waiter in the line that wants
the name; so a place that an earlier waiter wants is kept for it, even while its other names are taken. That leaves
places idle, but no waiter is passed, so none starves, and no two wait for each other's names.

Time. Every instant is one of `Clock.awake()`: neither setting the wall clock nor a sleep of the machine changes
anything. After a restart of the machine that clock begins again: leases of watched processes are over then, and those
that only time ends get their whole time again, from the first look on.

Cost. Asking again writes nothing but a mark, once a second, that the waiter still asks: `turn` grows with each change
that could let a waiter through, and the others need only to read.
"""

import math
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Struct, structs

from hivemind_addon.plugins.fleets.leases import holder as holders
from hivemind_addon.plugins.fleets.leases.database import LeaseFile, reading
from hivemind_addon.plugins.fleets.leases.holder import boot as this_boot
from hivemind_addon.plugins.fleets.leases.model import (
    MAX_LEASES,
    Grant,
    Holder,
    Lease,
    LeaseError,
    LeaseOver,
    LeaseState,
    NotGranted,
    Request,
    check_ttl,
    checked_names,
)
from hivemind_addon.proxy.system.clock import Clock
from hivemind_addon.proxy.system.folders import state_folder

FORGOTTEN_AFTER_S = 5.0
"""A waiter that has not asked for so long loses its place."""
_MARK_EVERY_S = 1.0
_LOOK_EVERY_S = 0.05
_SLACK_S = 60.0
"""More than lies between reading the clock and having the file."""
_LAST = 1 << 62
"""A place behind everybody's."""
_LEASE = "lease.id, lease.agent, lease.pid, lease.started, lease.value, lease.token, lease.expires_at"
_HOLDERS = "select distinct agent, pid, started from lease join held on held.lease = lease.id where name in"
_WAITERS = "select distinct agent, pid, started from waiter join wanted using (place) where place < ? and name in"
_FIRST = "select agent, pid, started, min(place) from waiter join wanted using (place) where place < ? and name in"


class _PlaceInLine(Struct, frozen=True):
    """Where a waiter stands."""

    place: int
    marked_at: float
    """When it was last written down that it asks."""


class _LastAnswer(Struct, frozen=True):
    """The last answer to a waiter, and what it depends on."""

    request: Request
    answer: NotGranted
    line: _PlaceInLine
    turn: int
    until: float
    """When the next lease ends by its time, or a waiter has been silent for too long."""
    watched: tuple[Holder, ...]
    """Whose end could let it through."""


def default_lease_file() -> Path:
    """`leases.db` in the user's state folder."""
    return state_folder() / "leases.db"


class SqliteLeases:
    """The leases of a file. For any thread; close it before a fork.

    Each call is atomic among all processes. They block: call them off an event loop.
    """

    patience_s = 0.0

    def __init__(
        self,
        path: Path,
        *,
        is_alive: Callable[[Holder], bool] = holders.is_alive,
        boot: Callable[[], str] = this_boot,
    ) -> None:
        """The file is made at the first call; only its owner may read it."""
        self._file = LeaseFile(path)
        self._is_alive = is_alive
        self._boot = boot
        self._told: dict[str, _LastAnswer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def instant(self, clock: Clock) -> float:
        """As long as the machine sleeps, nobody can take a lease from its holder."""
        return clock.awake()

    def close(self) -> None:
        """Let go of the file; leases stay."""
        self._file.close()

    def acquire(self, request: Request, now: float, *, waiter: str = "") -> Lease | NotGranted:
        """All names or none. Raises LeaseError.

        `waiter`: a secret of one who asks again and again, which keeps its place in the line as long as it asks at
        least every few seconds and its holder lives; empty: it does not wait.
        """
        names = checked_names(request)
        with self._file.using() as database:
            told = self._told.pop(waiter, None)
            told = told and self._still_waits(database, told, request, names, now)
            if told:
                self._told[waiter] = told
                return told.answer
            if not self._is_alive(request.holder):
                raise LeaseError(f"process {request.holder.pid}, which was to hold the lease, is gone")
            with self._file.in_turn(database):
                self._sweep(database, now)
                line = _line(database, waiter, request, names, now) if waiter else None
                self._bury(database, names)
                ahead = _taken(database, names, request.capacity, line.place if line else _LAST)
                if not ahead:
                    if line:  # its place becomes its lease: nothing changes for others
                        database.execute("delete from waiter where place = ?", (line.place,))
                    return self._grant(database, request, names, now)
                if waiter and line is None:
                    line = self._join(database, waiter, request, names, now)
                told = _refusal(database, request, ahead, line or _PlaceInLine(_LAST, now), now)
            if waiter:
                self._told[waiter] = told
            return told.answer

    def leave(self, waiter: str) -> None:
        """Wait no more."""
        with self._file.writing() as database:
            self._told.pop(waiter, None)
            _leave(database, waiter)

    def renew(self, lease_id: str, ttl_s: float, now: float) -> Lease:
        """Its time begins again. Raises LeaseOver: it may be another holder's by now."""
        check_ttl(ttl_s)
        with self._file.writing() as database:
            self._sweep(database, now)
            row = database.execute(f"select {_LEASE} from lease where id = ?", (lease_id,)).fetchone()  # noqa: S608
            if row is None or not self._is_alive(Holder(*row[1:4])):
                raise LeaseOver(f"lease {lease_id!r} is over: its time has passed, or it was released")
            database.execute("update lease set ttl_s = ?, expires_at = ? where id = ?", (ttl_s, now + ttl_s, lease_id))
            # It may end earlier now than the answers to waiters say.
            _next_turn(database)
            return _lease(database, (*row[:-1], now + ttl_s), now)

    def release(self, lease_id: str, now: float) -> None:
        """Raises LeaseOver."""
        with self._file.writing() as database:
            self._sweep(database, now)
            if not database.execute("delete from lease where id = ?", (lease_id,)).rowcount:
                raise LeaseOver(f"lease {lease_id!r} is not held (any more)")
            _next_turn(database)

    def standings(self, now: float, names: Sequence[str] = ()) -> list[LeaseState]:
        """Of these names, or of all that are held or waited for. Raises LeaseError."""
        with self._file.writing() as database:
            self._sweep(database, now)
            rows = database.execute("select name from held union select name from wanted").fetchall()
            known = {row[0] for row in rows}
            self._bury(database, sorted(known))
            rows = database.execute("select name from held union select name from wanted").fetchall()
            return [_standing(database, name, now) for name in sorted(names or (row[0] for row in rows))]

    def _still_waits(
        self, database: sqlite3.Connection, told: _LastAnswer, request: Request, names: Sequence[str], now: float
    ) -> _LastAnswer | None:
        """The answer to a waiter where reading is enough to know it; None: something has to be written.

        So a release costs a crowd one write, by the one whose turn it is, and not one by each.
        """
        if told.request != request or not told.line.marked_at <= now:
            return None
        if told.turn != _turn(database):
            with reading(database):
                ahead = _taken(database, names, request.capacity, told.line.place)
                if not ahead:
                    return None
                told = _refusal(database, request, ahead, told.line, now)
        if now >= told.until or not all(self._is_alive(holder) for holder in told.watched):
            return None
        if now < told.line.marked_at + _MARK_EVERY_S:
            return told
        with self._file.in_turn(database):
            marked = database.execute("update waiter set asked_at = ? where place = ?", (now, told.line.place)).rowcount
        return structs.replace(told, line=_PlaceInLine(told.line.place, now)) if marked else None

    def _sweep(self, database: sqlite3.Connection, now: float) -> None:
        """Take away what time has ended."""
        known = {"now": now, "boot": self._boot(), "silent": now - FORGOTTEN_AFTER_S, "slack": _SLACK_S}
        changes = (
            # Another boot: the processes are gone, and its instants mean nothing.
            "delete from lease where boot <> :boot and pid <> 0",
            "delete from waiter where boot <> :boot",
            # An instant later than this clock could have made it is of a boot that has no name.
            """update lease set expires_at = :now + ttl_s, boot = :boot
            where boot <> :boot or expires_at > :now + ttl_s + :slack""",
            "delete from lease where expires_at <= :now",
            "delete from waiter where asked_at <= :silent or asked_at > :now + :slack",
        )
        if sum(database.execute(statement, known).rowcount for statement in changes):
            _next_turn(database)

    def _bury(self, database: sqlite3.Connection, names: Sequence[str]) -> None:
        """Take away what the dead have of these names."""
        marks = _marks(names)
        held = database.execute(f"{_HOLDERS} ({marks})", tuple(names)).fetchall()
        wanted = database.execute(f"{_WAITERS} ({marks})", (_LAST, *names)).fetchall()
        for agent, pid, started in {*held, *wanted}:
            if not self._is_alive(Holder(agent, pid, started)):
                database.execute("delete from lease where pid = ? and started = ?", (pid, started))
                database.execute("delete from waiter where pid = ? and started = ?", (pid, started))
                _next_turn(database)

    def _grant(self, database: sqlite3.Connection, request: Request, names: Sequence[str], now: float) -> Lease:
        if _count(database, "select count(*) from lease") >= MAX_LEASES:
            raise LeaseError(f"{MAX_LEASES:,} leases are held; release some, or let their time pass")
        lease_id, it = secrets.token_hex(8), request.holder
        token = _count(database, "update state set token = token + 1 returning token")
        database.execute(
            "insert into lease(id, agent, pid, started, capacity, value, token, ttl_s, expires_at, boot) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(lease_id, it.agent, it.pid, it.started, request.capacity, request.value, token),
                *(request.ttl_s, now + request.ttl_s, self._boot()),
            ),
        )
        database.executemany("insert into held values (?, ?)", [(name, lease_id) for name in names])
        grants = tuple(Grant(name, token) for name in names)
        return Lease(id=lease_id, grants=grants, holder=it, left_s=request.ttl_s, value=request.value)

    def _join(
        self, database: sqlite3.Connection, waiter: str, request: Request, names: Sequence[str], now: float
    ) -> _PlaceInLine:
        """Stand at the end of the line."""
        it = request.holder
        place = database.execute(
            "insert into waiter(secret, agent, pid, started, capacity, asked_at, boot) values (?, ?, ?, ?, ?, ?, ?)",
            (waiter, it.agent, it.pid, it.started, request.capacity, now, self._boot()),
        ).lastrowid
        database.executemany("insert into wanted values (?, ?)", [(name, place) for name in names])
        return _PlaceInLine(place or _LAST, now)


def _line(
    database: sqlite3.Connection, waiter: str, request: Request, names: Sequence[str], now: float
) -> _PlaceInLine | None:
    """Where a waiter stands; None: nowhere, or no more, since it asks for something else now."""
    row = database.execute("select place, capacity, asked_at from waiter where secret = ?", (waiter,)).fetchone()
    if row is None:
        return None
    place, capacity, marked_at = row
    wanted = [name for (name,) in database.execute("select name from wanted where place = ? order by name", (place,))]
    if wanted != list(names) or capacity != request.capacity:
        _leave(database, waiter)
        return None
    if now >= marked_at + _MARK_EVERY_S:
        database.execute("update waiter set asked_at = ? where place = ?", (now, place))
        marked_at = now
    return _PlaceInLine(place, marked_at)


def _taken(database: sqlite3.Connection, names: Sequence[str], capacity: int, place: int) -> list[str]:
    """The names without a free place for a waiter that stands there. Raises LeaseError: others count its places so."""
    taken = []
    for name in names:
        rows = database.execute(
            "select capacity, agent from lease join held on held.lease = lease.id where name = :name union all "
            "select capacity, agent from waiter join wanted using (place) where name = :name and place < :place",
            {"name": name, "place": place},
        ).fetchall()
        for theirs, agent in rows:
            if theirs != capacity:
                raise LeaseError(f"{agent or 'another'} has {name!r} as at most {theirs} at once, not {capacity}")
        if len(rows) >= capacity:
            taken.append(name)
    return taken


def _refusal(
    database: sqlite3.Connection, request: Request, ahead: Sequence[str], line: _PlaceInLine, now: float
) -> _LastAnswer:
    marks = _marks(ahead)
    held = [Holder(*row) for row in database.execute(f"{_HOLDERS} ({marks})", tuple(ahead))]
    # Of those before us only the first can be in the way by having died: the next become first.
    earlier = [Holder(*row[:3]) for row in database.execute(f"{_FIRST} ({marks}) group by name", (line.place, *ahead))]
    ends = database.execute("select min(expires_at) from lease").fetchone()[0]
    silent = database.execute("select min(asked_at) from waiter where place < ?", (line.place,)).fetchone()[0]
    until = min(ends if ends is not None else math.inf, silent + FORGOTTEN_AFTER_S if silent is not None else math.inf)
    return _LastAnswer(
        request=request,
        answer=NotGranted(tuple(ahead), tuple(held), max(0.001, min(_LOOK_EVERY_S, until - now))),
        line=line,
        turn=_turn(database),
        until=until,
        watched=tuple({*held, *earlier}),
    )


def _standing(database: sqlite3.Connection, name: str, now: float) -> LeaseState:
    rows = database.execute(
        f"select {_LEASE}, capacity from lease join held on held.lease = lease.id where name = ? order by token",  # noqa: S608
        (name,),
    ).fetchall()
    waiting = database.execute(
        "select agent, pid, started, capacity from waiter join wanted using (place) where name = ? order by place",
        (name,),
    ).fetchall()
    return LeaseState(
        name=name,
        capacity=next((row[-1] for row in (*rows, *waiting)), 1),
        leases=tuple(_lease(database, row[:-1], now) for row in rows),
        waiting=tuple(Holder(*row[:3]) for row in waiting),
        last_token=_count(database, "select token from state"),
    )


def _lease(database: sqlite3.Connection, row: tuple[Any, ...], now: float) -> Lease:
    """From a row of `_LEASE`."""
    lease_id, agent, pid, started, value, token, expires_at = row
    names = database.execute("select name from held where lease = ? order by name", (lease_id,))
    return Lease(
        id=lease_id,
        grants=tuple(Grant(name, token) for (name,) in names),
        holder=Holder(agent, pid, started),
        left_s=expires_at - now,
        value=value,
    )


def _leave(database: sqlite3.Connection, waiter: str) -> None:
    if database.execute("delete from waiter where secret = ?", (waiter,)).rowcount:
        _next_turn(database)


def _turn(database: sqlite3.Connection) -> int:
    return _count(database, "select turn from state")


def _next_turn(database: sqlite3.Connection) -> None:
    database.execute("update state set turn = turn + 1")


def _count(database: sqlite3.Connection, statement: str) -> int:
    return int(database.execute(statement).fetchone()[0])


def _marks(names: Iterable[str]) -> str:
    return ",".join("?" for _ in names)
