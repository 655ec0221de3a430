"""Events → mitmproxy's log: one line for each change that is worth a person's attention, with the ticket's id."""

import logging
from typing import assert_never

from hivemind_addon.core.events import (
    AccountNamed,
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BreakerChanged,
    BudgetSpent,
    BudgetWarned,
    ClockJumped,
    CommittedStreamFailed,
    ConcurrencyChanged,
    Event,
    GuardTripped,
    Held,
    MeterLearned,
    OddityNoted,
    PersonActed,
    PoolBlocked,
    PoolsMerged,
    StateUnsaved,
    Submitted,
    Superseded,
    TicketEnded,
    WallHit,
    WallOpened,
    WindowUsed,
)
from hivemind_addon.core.spend import amount
from hivemind_addon.words import lasting

logger = logging.getLogger("hivemind")


_ODDITIES_KEPT = 1000
ROUTINE = (Submitted, AttemptStarted, AttemptEnded)
"""What every request brings, told at DEBUG only."""


class LogObserver:
    """Writes events as log lines; the same oddity of the same pool only once."""

    def __init__(self) -> None:
        self._oddities: set[tuple[object, str]] = set()

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if isinstance(event, ROUTINE) and not logger.isEnabledFor(logging.DEBUG):
            return  # not even worded: three of the four events of most requests
        if isinstance(event, OddityNoted):
            oddity = (event.pool, event.what)
            if oddity in self._oddities or len(self._oddities) >= _ODDITIES_KEPT:
                return
            self._oddities.add(oddity)
        level, line = describe(event)
        if logger.isEnabledFor(level):
            logger.log(level, "hivemind: %s", line)


def describe(event: Event) -> tuple[int, str]:
    """An event's log level and its line."""
    match event:
        case Submitted(_, ticket):
            return logging.DEBUG, f"{ticket.id} submitted by {ticket.agent} for {ticket.pool}"
        case Held():
            return logging.DEBUG, f"{event.ticket_id} held, {event.reason.value}, place {event.position}"
        case AttemptStarted():
            return logging.DEBUG, (
                f"{event.ticket_id} attempt {event.attempt} after {event.waited_s:.1f} s, {event.in_flight} in flight"
            )
        case AttemptEnded():
            return logging.DEBUG, (
                f"{event.ticket_id} attempt {event.attempt}: {event.outcome.reason} in {event.duration_s:.1f} s"
            )
        case BackedOff():
            wait_s = event.until - event.at
            return logging.INFO, (
                f"{event.ticket_id} attempt {event.attempt} failed ({event.reason}); again in {wait_s:.1f} s"
            )
        case TicketEnded():
            level = logging.DEBUG if event.end in ("delivered", "cancelled") else logging.WARNING
            return level, (
                f"{event.ticket_id} {event.end} ({event.reason}) after {event.attempts} attempts, "
                f"{event.waited_s:.1f} s waited"
            )
        case ConcurrencyChanged():
            return logging.DEBUG, f"{event.pool}: concurrency limit {event.limit} ({event.reason})"
        case BreakerChanged():
            return logging.WARNING, f"{event.pool}: breaker {event.state} ({event.reason})"
        case PoolBlocked():
            return logging.INFO, f"{event.pool}: told to wait {event.until - event.at:.1f} s ({event.reason})"
        case WallHit():
            return logging.WARNING, (
                f"{event.pool}: the account is refused for {lasting(event.until - event.at)} ({event.reason}); "
                "everybody is told, nothing is sent until then or a restart"
            )
        case WallOpened():
            return logging.WARNING, f"{event.pool}: the account is served again"
        case WindowUsed():
            level = logging.INFO if event.status in ("", "allowed") else logging.WARNING
            return level, f"{event.pool}: {_window(event)}"
        case MeterLearned():
            return logging.DEBUG, f"{event.pool}: {event.meter} is a {event.kind} of {event.limit:g}"
        case AccountNamed():
            return logging.DEBUG, f"{event.pool}: the account is {event.name}"
        case BudgetWarned() | BudgetSpent():
            share = "has spent its budget" if isinstance(event, BudgetSpent) else "has spent most of its budget"
            spent, limit = amount(event.unit, event.spent), amount(event.unit, event.limit)
            return logging.WARNING, f"{event.budget.holder} {share}: {spent} of {limit} per {event.budget.per.value}"
        case PoolsMerged():
            return logging.INFO, f"{event.pool}: {event.merged} is the same account"
        case Superseded():
            return logging.INFO, f"{event.ticket_id} is ended: its client came back with {event.by_ticket_id}"
        case ClockJumped():
            return logging.WARNING, f"the clock jumped by {event.delta_s:.0f} s"
        case OddityNoted():
            return logging.WARNING, f"{event.ticket_id or event.pool}: {event.what}"
        case PersonActed():
            subject = event.ticket_id or event.pool
            return logging.WARNING, f"{subject}: {event.text}" if subject else event.text
        case StateUnsaved():
            if event.reason:
                return logging.WARNING, f"cannot keep what was learned: {event.reason}"
            return logging.WARNING, "what was learned is kept again"
        case CommittedStreamFailed():
            return logging.WARNING, f"{event.ticket_id} failed after its keep-alives: {event.reason}"
        case GuardTripped():
            # The guard itself logs the traceback.
            return logging.DEBUG, f"guard trip in {event.where}: {event.error}"
        case _:
            assert_never(event)


def _window(event: WindowUsed) -> str:
    used = "" if event.used is None else f" {event.used:.0%} used"
    status = f" ({event.status})" if event.status else ""
    reset = "" if event.resets_in_s is None else f", anew in {lasting(event.resets_in_s)}"
    return f"window {event.window}{used}{status}{reset}"
