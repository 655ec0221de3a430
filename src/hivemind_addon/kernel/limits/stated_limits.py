"""Limits that a profile states, because no header tells them and nobody should have to be refused to learn of them.

Of each the sendings of its last span are kept. A ticket goes when it fits beside them, so that no span of that length,
wherever it begins, holds more than was stated: whether the service counts fixed windows, sliding ones or a bucket.
They are of the account: pools whose groups a limit names draw on it together.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hivemind_addon.kernel.values.snapshot import MeterView
from hivemind_addon.kernel.values.ticket import Dimension, Ticket

_ON_THE_WAY_S = 0.25
"""By so much two sendings may come closer together on their way."""
KIND = "stated"


@dataclass(frozen=True, slots=True)
class StatedLimit:
    """So much in any span of so many seconds."""

    limit: str
    """Name shown to people: `secondary`."""
    amount: float
    """Units that may be taken in it."""
    per_s: float
    """The span."""
    reads: int = 1
    """Units that a call takes which changes nothing: by GET, HEAD or OPTIONS, or on one of `safe_paths`."""
    writes: int = 1
    """Units that any other call takes."""
    groups: tuple[str, ...] = ()
    """Groups that draw on it together; empty: all."""

    def units_of(self, ticket: Ticket) -> float:
        """What one attempt takes; at most all of it, so that it goes some day."""
        return min(self.reads if ticket.only_reads else self.writes, self.amount)


class _Log:
    """The sendings of a limit's last span."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, float]] = deque()
        """When, and how much."""
        self._units = 0.0

    def add(self, units: float, now: float) -> None:
        if units:
            self._sent.append((now, units))
            self._units += units

    def units(self, since: float) -> float:
        """What was sent after an instant; what was sent before is forgotten."""
        while self._sent and self._sent[0][0] <= since:
            self._units -= self._sent.popleft()[1]
        return self._units if self._sent else 0.0

    def freed_at(self, units: float) -> float:
        """When the last of the oldest was sent that have to be forgotten for so many units."""
        for at, gone in self._sent:
            units -= gone
            if units <= 0:
                return at
        return self._sent[-1][0]


class StatedLimits:
    """One account's. Each of its pools says what its profile states, and tells of all its attempts."""

    def __init__(self) -> None:
        self.limits: dict[str, StatedLimit] = {}
        """By name; most profiles state none. Only `state` changes it."""
        self._logs: dict[str, _Log] = {}

    def __repr__(self) -> str:
        return f"<StatedLimits {', '.join(self.limits)}>"

    def state(self, limits: Sequence[StatedLimit]) -> None:
        """From now on these hold; what was sent stays counted."""
        self.limits = {one.limit: one for one in limits}
        self._logs = {name: self._logs.get(name) or _Log() for name in self.limits}

    def of(self, group: str) -> Iterator[StatedLimit]:
        """Those that a group draws on."""
        return (one for one in self.limits.values() if not one.groups or group in one.groups)

    def sent(self, ticket: Ticket, group: str, now: float) -> None:
        """An attempt goes."""
        for limit in self.of(group):
            self._logs[limit.limit].add(limit.units_of(ticket), now)

    def opens_at(self, ticket: Ticket, group: str, now: float) -> float:
        """When one more attempt fits into all of them."""
        return max((self._opens_at(one, one.units_of(ticket), now) for one in self.of(group)), default=now)

    def _opens_at(self, limit: StatedLimit, units: float, now: float) -> float:
        log, span_s = self._logs[limit.limit], limit.per_s + _ON_THE_WAY_S
        lacking = log.units(now - span_s) + units - limit.amount
        return log.freed_at(lacking) + span_s if lacking > 0 else now

    def cost_s(self, group: str, ticket: Ticket | None = None) -> float:
        """Seconds of the narrowest of them that an attempt takes; without a ticket: one unit."""
        takes = ((1.0 if ticket is None else one.units_of(ticket)) / one.amount * one.per_s for one in self.of(group))
        return max(takes, default=0.0)

    def left(self, limit: StatedLimit, now: float) -> float:
        """What may still be taken of one of them."""
        return limit.amount - self._logs[limit.limit].units(now - limit.per_s - _ON_THE_WAY_S)

    def as_bucket(self, limit: StatedLimit, now: float) -> float:
        """What a bucket of the same rate would have now, that has room for one when the limit has."""
        waits_s = self._opens_at(limit, 1.0, now) - now
        return 1.0 - waits_s * limit.amount / limit.per_s if waits_s > 0 else self.left(limit, now)

    def views(self, group: str, groups: Sequence[str], now: float) -> tuple[MeterView, ...]:
        """Those of a group, at one instant. `groups`: all of the account."""
        return tuple(
            MeterView(
                name=one.limit,
                kind=KIND,
                limit=one.amount,
                level=max(0.0, self.left(one, now)),
                full_in_s=one.per_s if self.left(one, now) < one.amount else 0.0,
                window_s=one.per_s,
                dimension=Dimension.REQUESTS,
                shared_by=_several(sorted(other for other in groups if not one.groups or other in one.groups)),
            )
            for one in self.of(group)
        )


def _several(groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(groups) if len(groups) > 1 else ()
