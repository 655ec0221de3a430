"""Events → rows of the journal: pure. What has changed since the last write is gathered here, and written as a whole.

What must be known of a ticket to write its row stays until its end; so everything that has not ended can be written
again into another file.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BudgetBooked,
    ContextKept,
    Event,
    Held,
    MeterLearned,
    Moved,
    Submitted,
    TicketEnded,
)
from hivemind_addon.kernel.values.spend import Period
from hivemind_addon.kernel.values.ticket import Ticket
from hivemind_addon.proxy.api.event_text import event_line, line_of
from hivemind_addon.proxy.api.words import plain
from hivemind_addon.proxy.journal.tables import (
    AttemptRow,
    BudgetRow,
    HappeningRow,
    LimitRow,
    Row,
    TicketRow,
    WaitRow,
    statements,
)

KEPT = 20_000
"""Open tickets, sessions, accounts and limits that are remembered, each; the oldest is forgotten first."""
_SAME = 0.01
"""A limit that has moved by less than this share since it was written is the same; a pace always moves a little."""
_LONGEST = 2**63 - 1
"""Of SQLite's whole numbers."""
_FIELDS_CHARS = 4000


class _Open:
    """A ticket that has not ended."""

    __slots__ = ("attempt", "ticket")

    def __init__(self, ticket: TicketRow) -> None:
        self.ticket = ticket
        self.attempt: AttemptRow | None = None
        """Its newest."""


class Rows:
    """What is to be written. `take` events, then write `batches` and say `written`."""

    def __init__(self, port: int = 0) -> None:
        """`port`: whose budgets per run these are; 0: nobody knows."""
        self._port = port
        self.run = 0
        """In the file that is written now."""
        self._open: dict[str, _Open] = {}
        self._expected: dict[str, tuple[int, int]] = {}
        """Ticket → what an attempt of it is expected to take."""
        self._roots: dict[tuple[str, str], str] = {}
        """Agent and session → the root of the session's tree."""
        self._budgets: dict[tuple[str, str, str], BudgetRow] = {}
        self.opened: list[tuple[BudgetRow, float]] = []
        """The first word on accounts that go on with nothing: what their holders had spent before is to be asked for,
        and from when on (epoch seconds)."""
        self._booked_at: dict[tuple[str, str, str], float] = {}
        self._limits: dict[tuple[str, str], LimitRow] = {}
        self._tickets: dict[str, TicketRow] = {}
        self._attempts: dict[tuple[str, int], AttemptRow] = {}
        self._waits: list[WaitRow] = []
        self._happenings: list[HappeningRow] = []
        self._new_limits: list[LimitRow] = []
        self._new_budgets: dict[tuple[str, str, str], BudgetRow] = {}
        self._take: dict[type[Event], Callable[[Any, float], None]] = {
            Submitted: self._submitted,
            Held: self._held,
            AttemptStarted: self._started,
            AttemptEnded: self._attempt_ended,
            BackedOff: self._backed_off,
            Moved: self._moved,
            TicketEnded: self._ended,
            BudgetBooked: self._booked,
            MeterLearned: self._learned,
            ContextKept: self._kept_context,
        }
        """All others are happenings."""

    def __len__(self) -> int:
        return sum(map(len, self._unwritten()))

    def begin(self, run: int, budgets: Iterable[BudgetRow] = ()) -> None:
        """Write into another file from now on: also what has not ended yet. `budgets`: what that file has already."""
        self.run = run
        for row in budgets:
            self._budgets.setdefault((row.scope, row.name, row.per), row)
        for key, one in self._open.items():
            self._tickets[key] = one.ticket
            if one.attempt is not None:
                self._attempts[key, one.attempt.attempt] = one.attempt
        self._new_budgets.update(self._budgets)
        for rows in (self._tickets.values(), self._happenings, self._new_limits, self._new_budgets.values()):
            for numbered in rows:
                numbered.run = run

    def take(self, event: Event, wall: float) -> None:
        """One event; `wall`: its instant in epoch seconds."""
        self._take.get(type(event), self._happened)(event, wall)

    def happened(self, what: str, text: str, wall: float) -> None:
        """Something that is no event of the scheduler: the journal's own."""
        self._happenings.append(HappeningRow(self.run, wall, what, "", "", text, "{}"))

    def batches(self) -> list[tuple[str, tuple[object, ...]]]:
        """The statements that write everything that has changed."""
        return [statement for rows in self._unwritten() if rows for statement in statements(list(rows))]

    def each(self) -> list[Row]:
        """Every row that has changed, for when they cannot be written together."""
        return [row for rows in self._unwritten() for row in rows]

    def written(self) -> None:
        """All of it is in the file."""
        for changed in (self._tickets, self._attempts, self._new_budgets):
            changed.clear()
        for new in (self._waits, self._happenings, self._new_limits):
            new.clear()

    def _unwritten(self) -> tuple[Any, ...]:
        return (
            self._tickets.values(),
            self._attempts.values(),
            self._waits,
            self._happenings,
            self._new_limits,
            self._new_budgets.values(),
        )

    # Tickets ---------------------------------------------------------------------------------------------------------

    def _submitted(self, event: Submitted, wall: float) -> None:
        ticket = event.ticket
        pool, arrived = ticket.pool, wall - event.at + ticket.arrived_at
        row = TicketRow(
            id=ticket.id,
            run=self.run,
            task=plain(ticket.task),
            idempotency_key=plain(ticket.idempotency_key),
            agent=plain(ticket.agent),
            group=plain(ticket.group),
            session=plain(ticket.session),
            parent_session=plain(ticket.parent_session),
            lineage=plain(self._root(ticket)),
            pool=plain(str(pool)),
            host=plain(pool.host),
            account=plain(pool.account),
            model=plain(ticket.model),
            kind=ticket.kind.value,
            priority=ticket.priority.name.lower(),
            streamed=ticket.streamed,
            arrived=_real(arrived),
            unpriced=ticket.price is None,
        )
        _remember(self._open, ticket.id, _Open(row))
        _remember(self._expected, ticket.id, (_whole(ticket.expected.tokens), _whole(ticket.expected.micro_usd)))
        self._tickets[ticket.id] = row

    def _root(self, ticket: Ticket) -> str:
        """The session that began the tree, as far as its members have been seen."""
        here = ticket.agent, ticket.session
        parent = ticket.parent_session
        if parent and parent != ticket.session:
            root = self._roots.get((ticket.agent, parent), parent)
        else:
            root = self._roots.get(here, ticket.session)
        _remember(self._roots, here, root)
        return root

    def _held(self, event: Held, wall: float) -> None:
        if event.ticket_id in self._open:
            self._waits.append(WaitRow(event.ticket_id, wall, event.reason.value, event.position))

    def _started(self, event: AttemptStarted, wall: float) -> None:
        row = self._attempt(event.ticket_id, event.attempt, wall)
        row.waited_s, row.in_flight = _real(event.waited_s), event.in_flight
        if one := self._open.get(event.ticket_id):
            if one.ticket.admitted is None:
                one.ticket.admitted = wall
            one.ticket.attempts = event.attempt
            self._tickets[event.ticket_id] = one.ticket

    def _attempt_ended(self, event: AttemptEnded, wall: float) -> None:
        row = self._attempt(event.ticket_id, event.attempt, wall - event.duration_s)
        outcome, usage = event.outcome, event.usage
        row.ended, row.outcome, row.reason = wall, outcome.kind.value, plain(outcome.reason)
        row.status, row.ambiguous = outcome.status, outcome.ambiguous
        if usage is not None:
            row.input_tokens, row.output_tokens = _whole(usage.input_tokens), _whole(usage.output_tokens)
            row.cache_read_tokens = _whole(usage.cache_read_tokens)
            row.cache_write_tokens = _whole(usage.cache_write_tokens)
            row.reported = usage.reported
        row.tokens, row.micro_usd = _whole(event.spend.tokens), _whole(event.spend.micro_usd)

    def _backed_off(self, event: BackedOff, wall: float) -> None:
        row = self._attempt(event.ticket_id, event.attempt, wall)
        row.retry_at, row.retry_reason = _real(wall - event.at + event.until), plain(event.reason)

    def _moved(self, event: Moved, wall: float) -> None:
        """A request whose row names another endpoint from now on; that it was moved is told beside it."""
        if one := self._open.get(event.ticket_id):
            pool, row = event.pool, one.ticket
            row.pool, row.host, row.account = plain(str(pool)), plain(pool.host), plain(pool.account)
            self._tickets[event.ticket_id] = row
        self._happened(event, wall)

    def _attempt(self, ticket_id: str, attempt: int, began: float) -> AttemptRow:
        """The attempt's row, which is to be written."""
        one = self._open.get(ticket_id)
        row = self._attempts.get((ticket_id, attempt))
        if row is None and one is not None and one.attempt is not None and one.attempt.attempt == attempt:
            row = one.attempt
        if row is None:
            tokens, micro_usd = self._expected.get(ticket_id, (0, 0))
            row = AttemptRow(ticket_id, attempt, _real(began), expected_tokens=tokens, expected_micro_usd=micro_usd)
        if one is not None:
            one.attempt = row
        self._attempts[ticket_id, attempt] = row
        return row

    def _ended(self, event: TicketEnded, wall: float) -> None:
        one = self._open.pop(event.ticket_id, None)
        self._expected.pop(event.ticket_id, None)
        if one is None:
            return
        row, pool = one.ticket, event.pool
        # Of a pool that was found to be another's it is that one's now.
        row.pool, row.host, row.account = plain(str(pool)), plain(pool.host), plain(pool.account)
        row.ended, row.end = wall, event.end
        row.reason = plain(f"{event.reason}: {event.last_outcome}" if event.last_outcome else event.reason)
        row.attempts, row.ambiguous_resends = event.attempts, event.ambiguous_resends
        row.waited_s = _real(event.waited_s)
        self._tickets[event.ticket_id] = row

    # The rest --------------------------------------------------------------------------------------------------------

    def _booked(self, event: BudgetBooked, wall: float) -> None:
        budget = event.budget
        key = budget.scope.value, plain(budget.name), budget.per.value
        if event.at < self._booked_at.get(key, -math.inf):
            return  # it had to wait for room, and a newer one had none to wait for
        row = BudgetRow(
            *key,
            self._port if budget.per is Period.RUN else 0,
            self.run,
            None if budget.tokens is None else _whole(budget.tokens),
            None if budget.micro_usd is None else _whole(budget.micro_usd),
            _real(wall - event.at + event.began_at),
            _whole(event.spent.tokens),
            _whole(event.spent.micro_usd),
            _whole(event.reserved.tokens),
            _whole(event.reserved.micro_usd),
            _whole(event.added.tokens),
            _whole(event.added.micro_usd),
            None if budget.calls is None else _whole(budget.calls),
            _whole(event.spent.calls),
            _whole(event.reserved.calls),
            _whole(event.added.calls),
            _whole(event.spent.unpriced_tokens),
            _whole(event.reserved.unpriced_tokens),
        )
        if key not in self._booked_at:
            known = self._budgets.get(key)
            known_until = -math.inf if known is None else known.began + budget.per.length_s
            if known_until <= row.began:
                self.opened.append((row, known_until))
        _remember(self._booked_at, key, event.at)
        _remember(self._budgets, key, row)
        self._new_budgets[key] = row

    def _kept_context(self, event: ContextKept, wall: float) -> None:
        if not event.is_routine:  # the file of contexts tells of those
            self._happened(event, wall)

    def _happened(self, event: Event, wall: float) -> None:
        pool = getattr(event, "pool", None)
        fields = event_line(event, wall).decode(errors="replace").strip()
        self._happenings.append(
            HappeningRow(
                self.run,
                wall,
                type(event).__name__,
                "" if pool is None else plain(str(pool)),
                getattr(event, "ticket_id", None) or "",
                plain(line_of(event)),
                fields if len(fields) <= _FIELDS_CHARS else "{}",
            )
        )

    def _learned(self, event: MeterLearned, wall: float) -> None:
        dimension = "" if event.dimension is None else event.dimension.value
        window_s = None if event.window_s is None else _real(event.window_s)
        row = LimitRow(
            self.run, wall, plain(str(event.pool)), event.meter, event.kind, _real(event.limit), window_s, dimension
        )
        known = self._limits.get((row.pool, row.meter))
        if (
            known is not None
            and (known.kind, known.window_s, known.dimension) == (row.kind, row.window_s, row.dimension)
            and abs(row.limit - known.limit) <= _SAME * known.limit
        ):
            return
        _remember(self._limits, (row.pool, row.meter), row)
        self._new_limits.append(row)


def _remember[Key, Value](things: dict[Key, Value], key: Key, value: Value) -> None:
    """As the newest; beyond the bound the oldest is forgotten."""
    things.pop(key, None)
    things[key] = value
    if len(things) > KEPT:
        del things[next(iter(things))]


def _whole(number: int) -> int:
    """What SQLite can hold of a number that a provider said."""
    return max(-_LONGEST, min(_LONGEST, number))


def _real(number: float) -> float:
    return 0.0 if math.isnan(number) else number
