"""Events → lines: one for each change that is worth a person's attention, with the ticket's id.

WARNING is for what a person may want to act on, INFO for what explains a slow hour, DEBUG for what every request
brings. A probe that fails in a long outage is news to nobody: the breaker is told when it opens and when it closes.
"""

import logging
from collections.abc import Iterator
from typing import NamedTuple, assert_never

from hivemind_addon.api.events import (
    AccountNamed,
    AttemptEnded,
    AttemptStarted,
    BackedOff,
    BreakerChanged,
    BudgetBooked,
    BudgetSpent,
    BudgetWarned,
    CheckpointKept,
    CommittedStreamFailed,
    ConcurrencyChanged,
    Event,
    GuardTripped,
    Held,
    MachineSlept,
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
from hivemind_addon.api.spend import amount
from hivemind_addon.api.ticket import PoolKey
from hivemind_addon.api.words import lasting
from hivemind_addon.proxy.observe.repeats import Repeats

_KEPT = 1000
"""Oddities, and limits, that are remembered as told."""
_SAME = 0.1
"""A limit that has moved by less than this share is no news; a pace moves a little all the time."""
_STUBBORN = (3, 6, 12, 24, 48, 96)
"""The attempts whose failure is told: one or two are nothing in a provider's day, and a probe may fail all night."""
_LONG_S = 10.0
_MINUTES_S = 600.0
"""From here on a wait is told in minutes, hours and days."""
"""A pause of this length is told; shorter ones belong to a busy key."""
_ROUTINE = (Submitted, AttemptStarted, AttemptEnded, BudgetBooked)
"""What every request brings, told at DEBUG only."""
_LEVEL_OF_END = {
    "delivered": logging.DEBUG,
    "cancelled": logging.DEBUG,
    # Its client comes back, to the place that is kept.
    "shed": logging.INFO,
    # The wall or the budget was told.
    "refused": logging.DEBUG,
}


class Line(NamedTuple):
    """What one event, or many of a kind, are in words."""

    level: int
    text: str
    ticket_id: str | None = None
    pool: PoolKey | None = None


class News:
    """What log, top and page tell: what was told already not again, and of a crowd only the first few."""

    def __init__(self) -> None:
        self._oddities: set[tuple[object, str]] = set()
        self._limits: dict[tuple[PoolKey, str], float] = {}
        """Told ones, by pool and meter."""
        self._repeats: Repeats[tuple[PoolKey | None, str]] = Repeats()

    def lines(self, event: Event, least: int = logging.INFO) -> Iterator[Line]:
        """The lines that an event brings, of at least this level. At DEBUG everything of a crowd is told."""
        for (pool, what), counted, within_s in self._repeats.over(event.at):
            where = f"{pool}: " if pool else ""
            yield Line(logging.INFO, f"{where}{counted} more {what} within {lasting(within_s)}", pool=pool)
        if isinstance(event, _ROUTINE) and least > logging.DEBUG:
            return  # not even worded: three of the four events of most requests
        level, text = describe(event)
        if level < least or not self._is_news(event):
            return
        pool = getattr(event, "pool", None)
        crowd = None if least <= logging.DEBUG else _crowd(event)
        if crowd is None or self._repeats.lets((pool, crowd), event.at):
            yield Line(level, text, getattr(event, "ticket_id", None), pool)

    def _is_news(self, event: Event) -> bool:
        match event:
            case OddityNoted(_, pool, _, what):
                if (pool, what) in self._oddities or len(self._oddities) >= _KEPT:
                    return False
                self._oddities.add((pool, what))
            case MeterLearned(_, pool, meter, _, limit):
                known = self._limits.get((pool, meter))
                if abs(limit - known) <= _SAME * known if known is not None else len(self._limits) >= _KEPT:
                    return False
                self._limits[pool, meter] = limit
            case _:
                pass
        return True


def _crowd(event: Event) -> str | None:
    """What many of its kind are called together; None: each one is told."""
    match event:
        case TicketEnded():
            return f"requests {event.end}"
        case BackedOff():
            return "failed attempts"
        case PoolBlocked():
            return "pauses"
        case Superseded():
            return "clients that came back early"
        case CommittedStreamFailed():
            return "failures after keep-alives"
        case WindowUsed():
            return f"changes of window {event.window}"
        case MeterLearned():
            return f"changes of {event.meter}"
        case _:
            return None


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
            again = f"in {wait_s:.1f} s" if wait_s > 0 else "when it is its turn"  # the breaker or a limit says when
            return logging.INFO if event.attempt in _STUBBORN else logging.DEBUG, (
                f"{event.ticket_id} attempt {event.attempt} failed ({event.reason}); again {again}"
            )
        case TicketEnded():
            level = _LEVEL_OF_END.get(event.end, logging.WARNING)
            attempts = f"{event.attempts} attempt{'s' * (event.attempts != 1)}"
            last = f": {event.last_outcome}" if event.last_outcome else ""
            return level, (
                f"{event.ticket_id} {event.end} ({event.reason}{last}) after {attempts}, {event.waited_s:.1f} s waited"
            )
        case ConcurrencyChanged():
            return logging.DEBUG, f"{event.pool}: concurrency limit {event.limit} ({event.reason})"
        case BreakerChanged():
            return _breaker(event)
        case PoolBlocked():
            wait_s = event.until - event.at
            level = logging.INFO if wait_s >= _LONG_S else logging.DEBUG
            how_long = lasting(wait_s) if wait_s >= _MINUTES_S else f"{wait_s:.1f} s"
            return level, f"{event.pool}: told to wait {how_long} ({event.reason})"
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
            limit = f"{event.limit:,.0f}" if event.limit >= 10 else f"{event.limit:.3g}"
            kind = f" ({event.kind})" if event.kind != "unknown" else ""
            return logging.INFO, f"{event.pool}: limit learned: {event.meter} {limit}{kind}"
        case AccountNamed():
            return logging.DEBUG, f"{event.pool}: the account is {event.name}"
        case BudgetWarned() | BudgetSpent():
            share = "has spent its budget" if isinstance(event, BudgetSpent) else "has spent most of its budget"
            spent, limit = amount(event.unit, event.spent), amount(event.unit, event.limit)
            return logging.WARNING, f"{event.budget.holder} {share}: {spent} of {limit} per {event.budget.per.value}"
        case BudgetBooked():
            spent = " and ".join(amount(unit, value) for unit, value in _spent(event))
            return logging.DEBUG, f"{event.budget.holder}: {spent} spent per {event.budget.per.value}"
        case CheckpointKept():
            if event.checkpoint_id:
                return logging.WARNING, f"{event.ticket_id}: its conversation is kept, `hivemind checkpoint list`"
            return logging.WARNING, f"{event.ticket_id}: its conversation could not be kept: {event.reason}"
        case PoolsMerged():
            return logging.INFO, f"{event.pool}: {event.merged} is the same account"
        case Superseded():
            return logging.INFO, f"{event.ticket_id} is ended: its client came back with {event.by_ticket_id}"
        case MachineSlept():
            return logging.WARNING, f"the machine slept for {lasting(event.slept_s)}"
        case OddityNoted():
            subject = event.ticket_id or event.pool
            return logging.WARNING, f"{subject}: {event.what}" if subject else event.what
        case PersonActed():
            subject = event.ticket_id or event.pool
            return logging.WARNING, f"{subject}: {event.text}" if subject else event.text
        case StateUnsaved():
            if event.reason:
                return logging.WARNING, f"the journal cannot be written: {event.reason}"
            return logging.WARNING, "the journal is written again"
        case CommittedStreamFailed():
            return logging.WARNING, f"{event.ticket_id} failed after its keep-alives: {event.reason}"
        case GuardTripped():
            # The guard itself logs the traceback.
            return logging.DEBUG, f"guard trip in {event.where}: {event.error}"
        case _:
            assert_never(event)


def _breaker(event: BreakerChanged) -> tuple[int, str]:
    match event.state:
        case "open" if event.before != "half-open":
            return (
                logging.WARNING,
                f"{event.pool}: breaker open ({event.reason}); requests wait, one at a time is tried",
            )
        case "closed":
            return logging.WARNING, f"{event.pool}: breaker closed, the provider answers again ({event.reason})"
        case _:
            return logging.DEBUG, f"{event.pool}: breaker {event.state} ({event.reason})"


def _spent(event: BudgetBooked) -> list[tuple[str, int]]:
    """Unit and amount; money only where there is any."""
    money = [("micro_usd", event.spent.micro_usd)] if event.spent.micro_usd else []
    return [("tokens", event.spent.tokens), *money]


def _window(event: WindowUsed) -> str:
    used = "" if event.used is None else f" {event.used:.0%} used"
    status = f" ({event.status})" if event.status else ""
    reset = "" if event.resets_in_s is None else f", anew in {lasting(event.resets_in_s)}"
    return f"window {event.window}{used}{status}{reset}"
