"""Limits that the pools of an account share, evidence against that, and an order over the pools' next tickets.

    limits by headers       meters.py
    limits by refusals      here: `Share`
    who goes next           here: an order over the heads of the pools

**The account is the unit.** A new pool draws on the account's share: slots, hidden limits (`hidden_limits.py`) and
announced waits. A pool is separated when others are admitted while the pool is refused: the pool then has a share of
its own, also in later runs until the limits are too old. The pool rejoins only if the refusals prove to be an outage
(`breaker.py`): limits of a pool's own are learned in the same way, and cost some refusals at most. The evidence is the
row of the pool's refusals, with no pass between, and the passes of other pools that the same limit would have refused:

    rate limit with a wait     the other attempt was sent within the announced wait
    rate limit without         the other attempt was sent after the first refusal
    overload                   the other attempt found as many attempts in flight

An overload that no pass contradicts may be the account's, and does not count. If one limit refused all pools, each
order of refusals and passes would be equally likely, refusals of other pools included. So the odds against that are the
number of these orders (Fisher's exact test). Where no wait was announced, attempts between two turns of the limit count
once.

**Announced waits.** The first refusal that announces a wait holds the request. One more attempt of the share goes as a
probe. If the probe is refused, the wait holds all pools of the share; if it passes, the wait holds the refused pool at
most. Waits of about the same length that came true before hold at once.

**Clients that left.** Some providers work on for nobody. A slot of an attempt whose client left is free at once, until
a refusal within the known limit shows the contrary (`LeftSlots`).

**The order** over the heads of pools that draw on a common limit is fair among agents, whichever model they use: the
same starts as within a pool (`order/shares.py`), of all the account's tickets.
"""

import itertools
from collections import deque
from math import comb
from typing import TYPE_CHECKING, NamedTuple

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import OF_OVERLOADS, OF_THROTTLES
from hivemind_addon.kernel.inference.limiter_models import HiddenLimit
from hivemind_addon.kernel.limits.machine import MachineSettings, ModelMachine
from hivemind_addon.kernel.limits.meters import CommonMeters
from hivemind_addon.kernel.limits.slots import ConcurrencySettings, Slots
from hivemind_addon.kernel.limits.stated_limits import StatedLimits
from hivemind_addon.kernel.order.shares import StartTimes
from hivemind_addon.kernel.values.ticket import Attempt, Demand, OutcomeKind, PoolKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hivemind_addon.kernel.limits.capacity import Capacity

_LONG_AGO, _NEVER = float("-inf"), float("inf")

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
"""EndedAttempt attempts kept for a separation."""
_REPLAYED = 24
"""Attempts of a separated pool that teach the pool's own limits."""


class EndedAttempt(NamedTuple):
    """An attempt that ended."""

    by: "Capacity"
    attempt: Attempt
    kind: OutcomeKind | None
    """None: still in flight, or refused for another reason than the limits of shares."""
    charged: Demand | None
    at: float
    """Infinite: still in flight."""
    until: float = _NEVER
    """End of the wait that a refusal announced; infinite: none."""

    def has_passed(self, verdict_s: float, now: float) -> bool:
        """Whether the provider took the attempt, as it does if no refusal comes for `verdict_s`."""
        attempt = self.attempt
        return attempt.has_passed or (self.at == _NEVER and now - attempt.admitted_at >= verdict_s)

    def forbids(self, attempt: Attempt, *, is_alone: bool = False) -> bool:
        """Whether the limit behind this refusal would have refused another attempt too.

        `is_alone`: the limit counts the attempts of this pool only.
        """
        refused = self.attempt
        if self.kind is OutcomeKind.OVERLOADED:
            return attempt.own >= refused.own if is_alone else attempt.in_flight >= refused.in_flight
        return self.at < attempt.admitted_at < self.until


_BELIEVED = 30
"""Mean service times for which a refusal shows that the provider works on when a client left."""


class LeftSlots:
    """Slots of attempts whose clients left, each held for the rest of a mean service time where refusals say so."""

    def __init__(self) -> None:
        self._free_at: list[float] = []
        self._believed_until = _LONG_AGO

    def left(self, admitted_at: float, mean_s: float, now: float) -> None:
        """Note that the client of an attempt left."""
        self._free_at = [at for at in self._free_at if at + mean_s > now]
        self._free_at.append(max(admitted_at + mean_s, now + mean_s / 2))

    def held(self, now: float) -> int:
        """The slots that are held."""
        return sum(at > now for at in self._free_at) if now < self._believed_until else 0

    def opens_at(self, now: float) -> float:
        """When the first of them is free."""
        return min((at for at in self._free_at if at > now), default=_NEVER)

    def explain(self, in_flight: int, cap: int, mean_s: float, now: float) -> bool:
        """Whether they explain a refusal that the known cap does not; `in_flight`: with the refused attempt."""
        late = [at for at in self._free_at if at + mean_s > now]
        if not in_flight + self.held(now) <= cap < in_flight + len(late):
            return False
        # So many are not free yet: probably those of the clients that left last.
        self._free_at = [max(at, now + mean_s / 2) for at in late[in_flight - cap - 1 :]]
        self._believed_until = now + _BELIEVED * mean_s
        return True


class Share:
    """The limits by refusals of one or several pools."""

    def __init__(self, concurrency: ConcurrencySettings, why: str = "") -> None:
        self.throttles = HiddenLimits(OF_THROTTLES)
        """The limit inferred from rate limits' refusals."""
        self.overloads = HiddenLimits(OF_OVERLOADS)
        """The limit inferred from overloads."""
        self.slots = Slots(concurrency)
        self.wait = AnnouncedWait()
        self.left_slots = LeftSlots()
        self.in_flight = 0
        """Attempts in flight of all members, bypassing attempts included."""
        self.went_at = _LONG_AGO
        """When the newest attempt of a member was answered, or a new request was sent."""
        self.members: dict[Capacity, None] = {}
        self.ended: deque[EndedAttempt] = deque(maxlen=_REMEMBERED)
        """The newest ended attempts of all members, with the ends."""
        self.why = why
        """Why the share belongs to a single pool; empty: it is the account's."""
        self.since = _LONG_AGO
        """When the pool was separated."""

    def __repr__(self) -> str:
        return f"<Share of {len(self.members)} pools, {self.throttles!r}, {self.overloads!r}>"

    @property
    def is_provider_down(self) -> bool:
        """Whether any member sends only probes: then no refusal is evidence of a cap."""
        return any(member.is_provider_down for member in self.members)

    @property
    def is_refused_by_chance(self) -> bool:
        """Whether chance alone explains the refusals of all members, as far as is known."""
        return all(member.refused.are_chance or not member.refused for member in self.members)

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

    def replay(self, member: "Capacity", ended: "Iterable[EndedAttempt]") -> None:
        """Teach the hidden limits of a separated pool by the newest of the pool's attempts."""
        sent = sorted((one for one in ended if one.by is member), key=lambda one: one.attempt.stamp)[-_REPLAYED:]
        sent += (EndedAttempt(member, attempt, None, None, _NEVER) for attempt in member.flights.attempts)
        for _, attempt, kind, charged, at, _ in sent:
            for hidden, refusal in ((self.throttles, OutcomeKind.THROTTLED), (self.overloads, OutcomeKind.OVERLOADED)):
                hidden.sent(attempt.stamp, attempt.demand, attempt.own, attempt.admitted_at)
                if kind is refusal:
                    hidden.refused(attempt.stamp, 0.0, at)
                elif kind is OutcomeKind.SUCCESS:
                    hidden.passed(attempt.stamp, at)
                if at < _NEVER:
                    was_taken = kind not in (None, OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED) or kind is refusal
                    hidden.ended(attempt.stamp, at, charged=charged, was_taken=was_taken)


_ODDS = 6
"""Odds at which a pool is separated."""
_ODDS_UNTOLD = 30
"""The same where a limit may have opened between a refusal and a pass: no wait was announced, and the pool's requests
have passed before."""
_ODDS_AGAIN = 3
"""The same after another pool was separated: then more are likely."""


class Sharing:
    """Limits and order shared by an account's pools. Each pool's capacity joins once and reports every attempt."""

    def __init__(self, stamps: "itertools.count[int] | None" = None) -> None:
        """`stamps`: the counter of all accounts, since two accounts may prove to be the same."""
        self.meters = CommonMeters()
        self.stated = StatedLimits()
        self.order = StartTimes()
        self.machine: ModelMachine | None = None
        """The machine that serves all models; None: changes of the model cost nothing."""
        self.members: dict[Capacity, None] = {}
        self.waiting: dict[PoolKey, None] = {}
        """Keys of the pools with waiting tickets, as of their last polls. Changed by the scheduler only."""
        self._common: Share | None = None
        self._stamps = itertools.count(1) if stamps is None else stamps

    def __repr__(self) -> str:
        return f"<Sharing of {len(self.members)} pools, {self._common!r}, {self.meters!r}>"

    def next_stamp(self) -> int:
        """Count an admission or settle of any pool."""
        return next(self._stamps)

    def serve_on(self, machine: MachineSettings | None) -> None:
        """Say whether one machine serves all models of the account."""
        if machine != (self.machine and self.machine.settings):
            self.machine = None if machine is None else ModelMachine(machine)

    def join(self, member: "Capacity", concurrency: ConcurrencySettings) -> Share:
        """Add a pool to the account. Returns the account's share, which the pool draws on."""
        self.members[member] = None
        share = self._common = self._common or Share(concurrency)
        share.join(member)
        return share

    def leave(self, member: "Capacity") -> None:
        """Remove a pool from the account."""
        del self.members[member]
        if self.machine is not None:
            self.machine.left(member.flights)
        member.share.leave(member)

    def separate(
        self, member: "Capacity", concurrency: ConcurrencySettings, why: str, row: "Sequence[EndedAttempt]" = ()
    ) -> Share:
        """Give a pool a share of its own. `row`: the refusals that the account's limits did not cause."""
        common = member.share
        if row:
            common.throttles.take_back(stamps := [one.attempt.stamp for one in row], row[-1].at)
            common.overloads.take_back(stamps, row[-1].at)
        common.leave(member)
        share = Share(concurrency, why)
        share.since = row[-1].at if row else _LONG_AGO
        share.join(member)
        share.replay(member, common.ended)
        if row and row[-1].kind is OutcomeKind.OVERLOADED:
            own = min(one.attempt.own for one in row)
            share.overloads.resume(HiddenLimit(0, max(1.0, own - 0.5)), row[-1].at)
        return share

    def rejoin(self, member: "Capacity") -> Share:
        """Let a separated pool draw on the account's share again."""
        assert self._common is not None
        member.share.leave(member)
        self._common.join(member)
        return self._common

    def evidence(
        self, member: "Capacity", kind: OutcomeKind, verdict_s: float, now: float
    ) -> "tuple[str, Sequence[EndedAttempt]]":
        """Why a refused pool has to be separated, empty if it has not, and the row of the pool's refusals.

        `verdict_s`: an attempt that is not refused for so long has passed.
        """
        common, is_overload = self._common, kind is OutcomeKind.OVERLOADED
        if common is None or member.share is not common or len(common.members) < 2:
            return "", ()
        seen = [*common.ended]
        for other in common.members:
            seen += (EndedAttempt(other, attempt, None, None, _NEVER) for attempt in other.flights.attempts)
        seen.sort(key=lambda one: one.attempt.stamp)
        row: list[EndedAttempt] = []
        own: list[Attempt] = []
        since = 0
        for one in reversed([one for one in seen if one.by is member]):
            # A refusal of a single attempt shows no cap.
            if one.kind is kind and (not is_overload or one.attempt.own > 1):
                if any(one.forbids(passed, is_alone=True) for passed in own):
                    break
                row.insert(0, one)
            elif one.attempt.has_passed:
                if is_overload and any(refusal.forbids(one.attempt, is_alone=True) for refusal in row):
                    since = one.attempt.stamp
                    break
                own.append(one.attempt)
        others = [one for one in seen if one.by is not member and one.attempt.stamp > since]
        refused = [one for one in others if one.kind is kind]
        passed = [one for one in others if one.kind is not kind and one.has_passed(verdict_s, now)]
        if is_overload:
            # A refusal that no pass contradicts may be the account's.
            row = [one for one in row if any(one.forbids(other.attempt) for other in passed)]
        if len(row) < 2:
            return "", ()
        ones = [(one, "refused") for one in row]
        for seen, what in ((refused, "other refused"), (passed, "passed")):
            ones += ((one, what) for one in seen if any(refusal.forbids(one.attempt) for refusal in row))
        order = [what for _, what in sorted(ones, key=lambda pair: pair[0].attempt.stamp)]
        is_told = is_overload or row[-1].until < _NEVER
        if not is_told:
            # What happens between two turns of a limit has one cause.
            order = [what for what, _ in itertools.groupby(order)]
        is_sure = is_told or member.refused.is_new
        odds = _ODDS_AGAIN if len(common.members) < len(self.members) else _ODDS if is_sure else _ODDS_UNTOLD
        count, passes, refusals = (order.count(what) for what in ("refused", "passed", "other refused"))
        if comb(count + passes + refusals, count) < odds * comb(count + refusals, count):
            return "", ()
        return f"refused {count} times while {passes} calls of other models were admitted", row
