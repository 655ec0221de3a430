"""What the pools of one account have in common: limits that count the calls of all of them, and one order over them.

    told by headers      meters.py
    told by refusals     here: whether a refusal depends on what its own pool has upstream and has sent, or on all pools
    who goes next        here: one order over the heads of the pools

Beside the hidden limits of each pool there is one more pair of them (`hidden_limits.py`), that hears of the attempts of
all pools. Which of them counts is judged at each refusal, by the same attempts: whichever explains them better, the
best hypothesis about the account, or the best ones about each pool on its own. To take the other's place it has to be
better by some margin. Chance is nobody's limit, and an outage of one model is the account's no more than its pool's.

**The order** over the heads of pools that draw on a common limit is fair among agents, whatever model they ask for.
Each pool's own order says who its next ticket is. Among these the one with the smallest key goes: start-time fair
queueing (`shares.py`), with agents as they are known to the account.

    start = max(now when the ticket came, what its agent has been served)      its first admission fixes it
    now   = the latest start of those that were served, and on by each one's part of what is served
    key   = start - bonus, then the older ticket

So equal agents are served in the order in which their calls came, and one that has many calls waiting is behind all
others with each further one.
"""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hivemind_addon.kernel.inference.hidden_limits import HiddenLimits
from hivemind_addon.kernel.inference.hypotheses import OF_OVERLOADS, OF_THROTTLES
from hivemind_addon.kernel.limits.learned import COMMON_CONCURRENCY, COMMON_RATE, LearnedPool
from hivemind_addon.kernel.limits.meters import CommonMeters
from hivemind_addon.kernel.limits.stated_limits import StatedLimits
from hivemind_addon.kernel.values.ticket import Attempt, Demand, Outcome, OutcomeKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hivemind_addon.kernel.limits.capacity import Capacity
from hivemind_addon.kernel.order.lanes import QueueEntry

_LONG_AGO = float("-inf")
_PACE = 0.5
"""Of the ideal system's, as in `shares.py`."""
_FORGET_FROM = 256
"""Agents that are remembered before the first look for ones that are worth nothing any more."""


class CommonOrder:
    """One account's."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._served_s: dict[str, float] = {}
        """By agent: where its next start is at least."""
        self._came_s: dict[str, float] = {}
        """By ticket: `now` when it came; once it was sent, its start."""
        self._sent: set[str] = set()
        self._charged_s: dict[str, float] = {}
        """For attempts in flight, by ticket."""
        self._forget_at = _FORGET_FROM

    def __repr__(self) -> str:
        return f"<CommonOrder at {self._now_s:.3f} s, {len(self._came_s)} tickets>"

    def came(self, ticket_id: str) -> None:
        """A ticket waits from now on."""
        self._came_s[ticket_id] = self._now_s

    def gone(self, ticket_id: str) -> None:
        """It has ended."""
        self._came_s.pop(ticket_id, None)
        self._sent.discard(ticket_id)

    def key(self, entry: QueueEntry) -> tuple[float, float, float]:
        """What a pool's next ticket is sorted by."""
        if entry.front:
            return (_LONG_AGO, entry.front, entry.since)
        return (self._start_s(entry) - entry.bonus_s, entry.since, entry.order)

    def served(self, entry: QueueEntry, cost_s: float) -> None:
        """A ticket goes, and is expected to take so much. `settle` it when its attempt ends."""
        ticket, came_s, served_s, now_s = entry.ticket, self._came_s, self._served_s, self._now_s
        ticket_id = ticket.id
        owed_s = served_s.get(ticket.agent, _LONG_AGO)
        start_s = came_s.get(ticket_id, now_s)
        if ticket_id not in self._sent:
            if owed_s > start_s:
                start_s = owed_s
            came_s[ticket_id] = start_s
            self._sent.add(ticket_id)
        # As in an ideal system that serves all who are here at once: newcomers do not go before others for ever.
        now_s = (start_s if start_s > now_s else now_s) + _PACE * cost_s / len(came_s)
        self._now_s = now_s
        served_s[ticket.agent] = (owed_s if owed_s > start_s else start_s) + cost_s / entry.weight
        self._charged_s[ticket_id] = cost_s
        if len(served_s) > self._forget_at:
            self._served_s = {agent: at_s for agent, at_s in served_s.items() if at_s > now_s}
            self._forget_at = max(_FORGET_FROM, 2 * len(self._served_s))

    def settle(self, entry: QueueEntry, cost_s: float) -> None:
        """An attempt ended, and took so much."""
        ticket = entry.ticket
        charged_s = self._charged_s.pop(ticket.id, cost_s)
        if ticket.agent in self._served_s:
            self._served_s[ticket.agent] += (cost_s - charged_s) / entry.weight

    def _start_s(self, entry: QueueEntry) -> float:
        ticket = entry.ticket
        came_s = self._came_s.get(ticket.id, self._now_s)
        return came_s if ticket.id in self._sent else max(came_s, self._served_s.get(ticket.agent, _LONG_AGO))


_CAP_MARGIN = 1.5
_RATE_MARGIN = 3.0
"""Log-likelihood by which one explains better, to take the other's place. Few attempts tell of a cap: it is kept from
then on, and nothing more is refused."""


@dataclass(slots=True)
class Evidence:
    """Whether what refuses is a limit of the account, or of each of its pools."""

    margin: float
    is_common: bool = False

    def judge(self, account: HiddenLimits, pools: "Sequence[HiddenLimits]", now: float) -> None:
        """There was a refusal, and all have heard of it."""
        since = account.remembers_since
        common, is_a_limit = account.explains(since, now)
        own = sum(pool.explains(since, now)[0] for pool in pools)
        if is_a_limit and common - own >= self.margin:
            self.is_common = True
        elif own - common >= self.margin:
            self.is_common = False


class Sharing:
    """One account's. Each pool's capacity joins once, and tells of all its attempts."""

    def __init__(self, stamps: "itertools.count[int] | None" = None) -> None:
        """`stamps`: of all accounts, since two of them may prove to be one."""
        self.meters = CommonMeters()
        self.stated = StatedLimits()
        self.order = CommonOrder()
        self.concurrency = Evidence(_CAP_MARGIN)
        self.rate = Evidence(_RATE_MARGIN)
        self.members: list[Capacity] = []
        self.throttles = HiddenLimits(OF_THROTTLES)
        """Of all pools; while there is one only it hears of nothing, and so does `overloads`."""
        self.overloads = HiddenLimits(OF_OVERLOADS)
        self.has_one_cap = False
        """Whether the overload of all pools counts as one."""
        self.has_one_rate = False
        """Whether the rate limits' refusals of all pools count as one's."""
        self.was_in_force = False
        """When its pools were last polled."""
        self._stamps = itertools.count(1) if stamps is None else stamps

    def __repr__(self) -> str:
        return f"<Sharing of {len(self.members)} pools, {self.concurrency!r}, {self.rate!r}, {self.meters!r}>"

    @property
    def in_flight(self) -> int:
        """Attempts of all pools."""
        return sum(member.in_flight for member in self.members)

    def _decide(self) -> None:
        several = len(self.members) > 1
        self.has_one_cap, self.has_one_rate = several and self.concurrency.is_common, several and self.rate.is_common
        for member in self.members:
            member.choose_hidden()

    @property
    def is_in_force(self) -> bool:
        """Whether what one pool sends may keep another one from sending."""
        if self.meters.is_in_use:
            return True
        return len(self.members) > 1 and (self.has_one_cap or self.has_one_rate or bool(self.stated.limits))

    def next_stamp(self) -> int:
        """Counts the admissions and settles of all pools."""
        return next(self._stamps)

    def join(self, member: "Capacity") -> None:
        """A pool is of this account."""
        self.members.append(member)
        self._decide()

    def leave(self, member: "Capacity") -> None:
        """It is no longer."""
        self.members.remove(member)
        self._decide()

    @property
    def in_common(self) -> tuple[str, ...]:
        """Of what refusals told: what is known to be all pools', for `resume`."""
        kinds = {COMMON_CONCURRENCY: self.concurrency, COMMON_RATE: self.rate}
        return tuple(name for name, evidence in kinds.items() if evidence.is_common)

    def resume(self, learned: LearnedPool, now: float) -> None:
        """An earlier run has learned a pool's limits, and whose they are."""
        if COMMON_CONCURRENCY in learned.common:
            self.concurrency.is_common = True
            self.overloads.resume(learned.overloads, now)
        if COMMON_RATE in learned.common:
            self.rate.is_common = True
            self.throttles.resume(learned.throttles, now)
        self._decide()

    # An attempt's way ------------------------------------------------------------------------------------------------

    def sent(self, attempt: Attempt, now: float) -> None:
        """An attempt of one of several pools was admitted; it is in flight."""
        for hidden in (self.throttles, self.overloads):
            hidden.sent(attempt.stamp, attempt.demand, self.in_flight, now)

    def passed(self, attempt: Attempt, now: float) -> None:
        """The provider has taken it."""
        for hidden in (self.throttles, self.overloads):
            hidden.passed(attempt.stamp, now)

    def ended(self, attempt: Attempt, charged: Demand | None, now: float) -> None:
        """It was answered, and is over; `charged`: what the provider takes for it, where that is known."""
        self.throttles.ended(attempt.stamp, now, charged=charged)
        self.overloads.ended(attempt.stamp, now)

    def judge(self, member: "Capacity", outcome: Outcome, now: float) -> None:
        """An attempt ended, and both pairs have heard of it: whose limits do refusals speak for?"""
        if len(self.members) < 2:
            return
        if outcome.kind is OutcomeKind.OVERLOADED:
            self.concurrency.judge(self.overloads, [one.overloads for one in self.members], now)
        elif outcome.kind is OutcomeKind.THROTTLED and not len(member.meters):
            self.rate.judge(self.throttles, [one.throttles for one in self.members], now)
        self._decide()

    def forget_since(self, at: float, now: float) -> None:
        """What was refused since an instant was an outage and no limit."""
        for hidden in (self.throttles, self.overloads):
            hidden.forget_since(at, now)
