"""Limits that a profile states, because no header reports them and only refusals would reveal them.

Each limit keeps the attempts of the last span. A ticket goes when it fits beside them, so that no span of that length
holds more than stated, wherever it begins: this is safe for fixed windows, sliding windows and buckets. Limits belong
to the account: the groups that a limit names draw on it together.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hivemind_addon.kernel.values.snapshot import MeterView
from hivemind_addon.kernel.values.ticket import Dimension, Ticket

_ON_THE_WAY_S = 0.25
"""Two attempts may arrive closer together than they were sent, by up to this."""
KIND = "stated"


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """At most `amount` units in any span of `per_s` seconds."""

    limit: str
    """Name shown to people: `secondary`."""
    amount: float
    """Units that may be taken in any span."""
    per_s: float
    """Length of the span."""
    reads: int = 1
    """Units that a read-only call takes: by GET, HEAD or OPTIONS, or on a path of `safe_paths`."""
    writes: int = 1
    """Units that any other call takes."""
    groups: tuple[str, ...] = ()
    """Groups that draw on the limit together; empty: all."""

    def units_of(self, ticket: Ticket) -> float:
        """Units that an attempt takes; at most `amount`, so that every ticket goes some day."""
        return min(self.reads if ticket.only_reads else self.writes, self.amount)


class _Log:
    """Attempts sent in a limit's last span."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, float]] = deque()
        """When, and how many units."""
        self._units = 0.0

    def add(self, units: float, now: float) -> None:
        if units:
            self._sent.append((now, units))
            self._units += units

    def units(self, since: float) -> float:
        """Units sent after `since`; older attempts are forgotten."""
        while self._sent and self._sent[0][0] <= since:
            self._units -= self._sent.popleft()[1]
        return self._units if self._sent else 0.0

    def freed_at(self, units: float) -> float:
        """When the last of the attempts was sent that must be forgotten to free `units`."""
        for at, gone in self._sent:
            units -= gone
            if units <= 0:
                return at
        return self._sent[-1][0]


class StatedLimits:
    """Stated limits of an account. Each pool calls `state` with its profile's limits, and `sent` for every attempt."""

    def __init__(self) -> None:
        self.limits: dict[str, StatedLimit] = {}
        """By name; most profiles state none. Changed by `state` only."""
        self._logs: dict[str, _Log] = {}

    def __repr__(self) -> str:
        return f"<StatedLimits {', '.join(self.limits)}>"

    def state(self, limits: Sequence[StatedLimit]) -> None:
        """Replace the limits; attempts already sent stay counted."""
        self.limits = {limit.limit: limit for limit in limits}
        self._logs = {name: self._logs.get(name) or _Log() for name in self.limits}

    def of(self, group: str) -> Iterator[StatedLimit]:
        """The limits that a group draws on."""
        return (limit for limit in self.limits.values() if not limit.groups or group in limit.groups)

    def sent(self, ticket: Ticket, group: str, now: float) -> None:
        """Count an attempt."""
        for limit in self.of(group):
            self._logs[limit.limit].add(limit.units_of(ticket), now)

    def opens_at(self, ticket: Ticket, group: str, now: float) -> float:
        """When an attempt fits into all limits."""
        return max((self._opens_at(limit, limit.units_of(ticket), now) for limit in self.of(group)), default=now)

    def _opens_at(self, limit: StatedLimit, units: float, now: float) -> float:
        log, span_s = self._logs[limit.limit], limit.per_s + _ON_THE_WAY_S
        lacking = log.units(now - span_s) + units - limit.amount
        return log.freed_at(lacking) + span_s if lacking > 0 else now

    def cost_s(self, group: str, ticket: Ticket | None = None) -> float:
        """Seconds of the narrowest limit that an attempt takes; without a ticket: a unit."""
        takes = (
            (1.0 if ticket is None else limit.units_of(ticket)) / limit.amount * limit.per_s for limit in self.of(group)
        )
        return max(takes, default=0.0)

    def left(self, limit: StatedLimit, now: float) -> float:
        """Units of a limit that may still be taken."""
        return limit.amount - self._logs[limit.limit].units(now - limit.per_s - _ON_THE_WAY_S)

    def as_bucket(self, limit: StatedLimit, now: float) -> float:
        """Level of a bucket of the same rate that has room for a unit whenever the limit has."""
        waits_s = self._opens_at(limit, 1.0, now) - now
        return 1.0 - waits_s * limit.amount / limit.per_s if waits_s > 0 else self.left(limit, now)

    def views(self, group: str, groups: Sequence[str], now: float) -> tuple[MeterView, ...]:
        """The limits of a group; `groups`: all groups of the account."""
        return tuple(
            MeterView(
                name=limit.limit,
                kind=KIND,
                limit=limit.amount,
                level=max(0.0, self.left(limit, now)),
                full_in_s=limit.per_s if self.left(limit, now) < limit.amount else 0.0,
                window_s=limit.per_s,
                dimension=Dimension.REQUESTS,
                shared_by=_several(sorted(other for other in groups if not limit.groups or other in limit.groups)),
            )
            for limit in self.of(group)
        )


def _several(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(groups) if len(groups) > 1 else ()
