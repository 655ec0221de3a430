"""Limits that the pools of an account share, evidence against that, and an order over the pools' next tickets.

    limits by headers       meters.py
    limits by refusals      here: `Share`
    who goes next           here: an order over the heads of the pools

**The account is the unit.** A new pool draws on the account's share: slots, hidden limits (`hidden_limits.py`) and
announced waits. A pool is separated when others are admitted while the pool is refused: the pool then has a share of
its own. The evidence is the row of a pool's refusals, with no pass between, and the passes of other pools that the same
limit would have refused:

    rate limit with a wait     the other attempt was sent within the announced wait
    rate limit without         the other attempt was sent after the refusal
    overload                   the other attempt found as many attempts in flight

If one limit refused all pools, each order of `k` refusals and `m` passes would be equally likely. So the odds against
that are the number of these orders. Where no wait was announced, refusals of other pools clear the passes.

**Announced waits.** The first refusal that announces a wait holds the request. One more attempt of the share goes as a
probe. If the probe is refused, the wait holds all pools of the share; if it passes, the wait holds the refused pool at
most. Waits of about the same length that came true before hold at once.

**The order** over the heads of pools that draw on a common limit is fair among agents, whichever model they use: the
same starts as within a pool (`order/shares.py`), of all the account's tickets.
"""

import itertools
from collections import deque
from dataclasses import dataclass, field
from math import comb
from typing import TYPE_CHECKING, NamedTuple

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import OF_OVERLOADS, OF_THROTTLES
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.meters import CommonMeters
from hivemind_addon.kernel.limits.slots import ConcurrencySettings, Slots
from hivemind_addon.kernel.limits.stated_limits import StatedLimits
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.values.ticket import Attempt, Demand, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hivemind_addon.kernel.limits.capacity import Capacity
    from hivemind_addon.kernel.pool import Pool

_LONG_AGO = float("-inf")

_SAME_WAIT = 2.0
"""Factor up to which a longer wait is believed like the longest that came true."""
_ROUNDED = 0.1
"""Share of a wait by which its end may be rounded up."""


class AnnouncedWait:
    """The wait that refusals announce for a share."""

    def __init__(self) -> None:
        self._from = self._until = _LONG_AGO
        self._by: Capacity | None = None
        """The refused pool."""
        self._holds_all = False
        self._probed_at: float | None = None
        self._is_refuted = False
        """Whether another pool's attempt passed within the wait."""
        self._came_true_s = 0.0
        """Longest wait within which a second attempt was refused, since one passed."""

    def __repr__(self) -> str:
        return f"<AnnouncedWait until {self._until:.1f}>"

    def sent(self, now: float) -> None:
        """Note an attempt, which is the probe of a wait that nothing has confirmed."""
        if now < self._until and self._probed_at is None:
            self._probed_at = now

    def refused(self, member: "Capacity", attempt: Attempt, wait_s: float, now: float) -> None:
        """Learn from a refusal; `wait_s` is 0 if the refusal announces no wait."""
        if is_confirmed := self._from < attempt.admitted_at < self._until:
            self._came_true_s = max(self._came_true_s, self._until - self._from)
            self._holds_all, self._is_refuted = True, False
        if wait_s > 0 and now + wait_s >= self._until:
            self._from, self._until, self._by, self._probed_at = now, now + wait_s, member, None
            self._holds_all = is_confirmed or wait_s <= _SAME_WAIT * self._came_true_s
            self._is_refuted = False

    def passed(self, member: "Capacity", attempt: Attempt) -> None:
        """Learn from an attempt that passed, perhaps within the wait."""
        if self._from < attempt.admitted_at < self._until - _ROUNDED * (self._until - self._from):
            self._holds_all, self._came_true_s = False, 0.0
            if member is self._by:
                self._until = _LONG_AGO
            else:
                self._is_refuted = True

    def ends_at(self, member: "Capacity", verdict_s: float, now: float) -> float:
        """When the wait lets a pool send; an attempt that is not refused for `verdict_s` has passed."""
        if now >= self._until:
            return now
        if self._holds_all or (self._is_refuted and member is self._by):
            return self._until
        return now if self._is_refuted or self._probed_at is None else self._probed_at + verdict_s


_REMEMBERED = 256
"""Ended attempts kept for a separation."""
_REPLAYED = 24
"""Attempts of a separated pool that teach the pool's own limits."""


class Ended(NamedTuple):
    """An attempt that ended."""

    attempt: Attempt
    kind: OutcomeKind | None
    """None: still in flight."""
    charged: Demand | None
    at: float


class Share:
    """The limits by refusals of one or several pools."""

    def __init__(self, concurrency: ConcurrencySettings, why: str = "") -> None:
        self.throttles = HiddenLimits(OF_THROTTLES)
        """The limit inferred from rate limits' refusals."""
        self.overloads = HiddenLimits(OF_OVERLOADS)
        """The limit inferred from overloads."""
        self.slots = Slots(concurrency)
        self.wait = AnnouncedWait()
        self.in_flight = 0
        """Attempts in flight of all members, bypassing attempts included."""
        self.went_at = _LONG_AGO
        """When the newest attempt of a member was answered, or a new request was sent."""
        self.members: dict[Capacity, None] = {}
        self.ended: deque[Ended] = deque(maxlen=_REMEMBERED)
        """The newest ended attempts of all members, with the ends."""
        self.why = why
        """Why the share belongs to a single pool; empty: it is the account's."""

    def __repr__(self) -> str:
        return f"<Share of {len(self.members)} pools, {self.throttles!r}, {self.overloads!r}>"

    @property
    def is_provider_down(self) -> bool:
        """Whether any member sends only probes: then no refusal is evidence of a cap."""
        return any(member.is_provider_down for member in self.members)

    @property
    def words(self) -> str:
        """`limits shared with 2 other models`, or why there are no others."""
        if self.why:
            return f"limits of its own: {self.why}"
        others = len(self.members) - 1
        return f"limits shared with {others} other model{'' if others == 1 else 's'}" if others else "limits of its own"

    def join(self, member: "Capacity") -> None:
        """Add a pool with the attempts in flight."""
        self.members[member] = None
        self.in_flight += member.in_flight

    def leave(self, member: "Capacity") -> None:
        """Remove a pool."""
        del self.members[member]
        self.in_flight -= member.in_flight

    def replay(self, member: "Capacity", ended: "Iterable[Ended]") -> None:
        """Teach the hidden limits of a separated pool by the newest of the pool's attempts."""
        own = {one.attempt.stamp: one for one in ended if one.attempt.ticket.pool == member.key}
        sent = [one for _, one in sorted(own.items())[-_REPLAYED:]]
        sent += (Ended(attempt, None, None, float("inf")) for attempt in member.flights.attempts)
        for attempt, kind, charged, at in sent:
            sent_at = attempt.admitted_at
            in_flight = sum(other.attempt.stamp <= attempt.stamp and sent_at < other.at for other in sent)
            for hidden, refusal in ((self.throttles, OutcomeKind.THROTTLED), (self.overloads, OutcomeKind.OVERLOADED)):
                hidden.sent(attempt.stamp, attempt.demand, in_flight, sent_at)
                if kind is refusal:
                    hidden.refused(attempt.stamp, 0.0, at)
                elif kind is OutcomeKind.SUCCESS:
                    hidden.passed(attempt.stamp, at)
                if kind is not None:
                    was_taken = kind not in (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED) or kind is refusal
                    hidden.ended(attempt.stamp, at, charged=charged, was_taken=was_taken)


_ODDS = 6
"""Odds at which a pool is separated."""
_ODDS_UNTOLD = 30
"""The same where a limit may have opened between a refusal and a pass: no wait was announced."""
_ODDS_AGAIN = 3
"""The same after another pool was separated: then more are likely."""
_MOST_PASSES = 64
_MOST_ROWS = 16
"""The most rows of refusals to remember of an account: the newest."""


@dataclass(slots=True)
class _Row:
    """Refusals of a pool, with no pass between."""

    kind: OutcomeKind
    at: float
    """When the last refusal came."""
    until: float
    """End of the announced wait; infinite: none was announced."""
    own: int
    """Fewest attempts in flight of the pool at a refusal."""
    beside: int
    """Fewest attempts in flight of the share when a refused attempt was sent."""
    stamps: list[int] = field(default_factory=list)
    passes: set[int] = field(default_factory=set)
    """Stamps of other pools' attempts between the refusals of the row."""

    def forbids(self, attempt: Attempt) -> bool:
        """Whether the limit behind this row would have refused another pool's attempt, if common."""
        if self.kind is OutcomeKind.OVERLOADED:
            return attempt.stamp > self.stamps[0] and attempt.in_flight >= self.beside
        return self.at < attempt.admitted_at < self.until


class Sharing:
    """Limits and order shared by an account's pools. Each pool's capacity joins once and reports every attempt."""

    def __init__(self, stamps: "itertools.count[int] | None" = None) -> None:
        """`stamps`: the counter of all accounts, since two accounts may prove to be the same."""
        self.meters = CommonMeters()
        self.stated = StatedLimits()
        self.order = StartTimes()
        self.members: dict[Capacity, None] = {}
        self.waiting: dict[Pool, None] = {}
        """Pools with waiting tickets, as of their last polls. Changed by the scheduler only."""
        self._common: Share | None = None
        self._rows: dict[Capacity, _Row] = {}
        self._has_separated = False
        self._stamps = itertools.count(1) if stamps is None else stamps

    def __repr__(self) -> str:
        return f"<Sharing of {len(self.members)} pools, {self._common!r}, {self.meters!r}>"

    def next_stamp(self) -> int:
        """Count an admission or settle of any pool."""
        return next(self._stamps)

    def join(self, member: "Capacity", concurrency: ConcurrencySettings) -> Share:
        """Add a pool to the account. Returns the account's share, which the pool draws on."""
        self.members[member] = None
        share = self._common = self._common or Share(concurrency)
        share.join(member)
        return share

    def leave(self, member: "Capacity") -> None:
        """Remove a pool from the account."""
        del self.members[member]
        member.share.leave(member)
        self._rows.pop(member, None)

    def separate(self, member: "Capacity", concurrency: ConcurrencySettings, why: str) -> Share:
        """Give a pool a share of its own."""
        row = self._rows.pop(member, None)
        common = member.share
        if row is not None:
            common.throttles.take_back(row.stamps, row.at)
            common.overloads.take_back(row.stamps, row.at)
        common.leave(member)
        self._has_separated = True
        share = Share(concurrency, why)
        share.join(member)
        share.replay(member, common.ended)
        if row is not None and row.kind is OutcomeKind.OVERLOADED:
            share.overloads.resume(HiddenLimit(0, max(1.0, row.own - 0.5)), row.at)
        return share

    # The evidence ----------------------------------------------------------------------------------------------------

    def refused(self, member: "Capacity", attempt: Attempt, kind: OutcomeKind, wait_s: float, now: float) -> str:
        """Learn from a refusal of a pool. Returns why the pool has to be separated; empty: it has not."""
        if len(self.members) < 2 or member.share is not self._common:
            return ""
        row, own = self._rows.pop(member, None), len(member.flights) + 1
        for other_row in self._rows.values():
            other_row.passes.discard(attempt.stamp)
        if kind is OutcomeKind.THROTTLED and not wait_s:
            for other in (*self._rows.values(), *((row,) if row else ())):
                if other.kind is kind and other.forbids(attempt):
                    other.passes.clear()
        until = now + wait_s if wait_s else float("inf")
        if row is None or row.kind is not kind:
            row = _Row(kind, now, until, own, attempt.in_flight)
        row.at, row.until = now, until
        row.own, row.beside = min(own, row.own), min(attempt.in_flight, row.beside)
        row.stamps.append(attempt.stamp)
        self._rows[member] = row
        if len(self._rows) > _MOST_ROWS:
            del self._rows[next(iter(self._rows))]
        verdict_s = (member.throttles if kind is OutcomeKind.THROTTLED else member.overloads).verdict_s
        for other in self._common.members:
            if other is not member:
                for sent in other.flights.attempts:
                    # An attempt that is not refused for so long has passed.
                    if now - sent.admitted_at >= verdict_s and row.forbids(sent):
                        row.passes.add(sent.stamp)
        refusals = len(row.stamps)
        is_told = kind is OutcomeKind.OVERLOADED or wait_s > 0
        odds = _ODDS_AGAIN if self._has_separated else _ODDS if is_told else _ODDS_UNTOLD
        if refusals < 2 or comb(refusals + len(row.passes), refusals) < odds:
            return ""
        return f"refused {refusals} times while {len(row.passes)} calls of other models were admitted"

    def passed(self, member: "Capacity", attempt: Attempt) -> None:
        """Learn that the provider took an attempt of a pool."""
        if member.share is not self._common:
            return
        for refused, row in list(self._rows.items()):
            if refused is not member:
                if row.forbids(attempt) and len(row.passes) < _MOST_PASSES:
                    row.passes.add(attempt.stamp)
            elif attempt.admitted_at > row.at and (
                attempt.admitted_at < row.until if row.kind is OutcomeKind.THROTTLED else len(member.flights) >= row.own
            ):
                del self._rows[member]
