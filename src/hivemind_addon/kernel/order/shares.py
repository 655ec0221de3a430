"""Start-time fair queueing among agents (Goyal, Vin and Cheng 1996): when each ticket's turn comes, in virtual time.

All times are seconds of the shared resource; `now` is the virtual time. The ticket with the smallest `start - bonus`
goes. The bonus is the caller's: bounded, for reasons other than fairness.

    start = max(now at the ticket's arrival, the agent's next start)   fixed by the first admission
    next start of the agent = start + cost / weight                    when the ticket goes; corrected at the end
    now = max(now, smallest start of the waiting tickets)              when a ticket goes
    now += cost / tickets / 2                                          then; half the pace of an ideal system

An agent of weight 2 moves half as far per second of cost, so it is served twice as much. An agent that rested gets
nothing of the past back: the next ticket starts at `now`. When a ticket comes
and no other waits or is in flight, nobody owes anything.
As `now` moves with all service, an endless row of newcomers cannot keep an older ticket waiting for ever.

With bonuses that differ by at most B and costs of at most C, `now` is at most B + C ahead of the smallest start. So
before a ticket of an agent that owes nothing, each other agent is served at most 2 (B + C).
"""

from hivemind_addon.kernel.order.entry import QueueEntry

_LONG_AGO = float("-inf")
_PACE = 0.5
"""Share of the ideal system's pace."""
_FORGET_FROM = 256
"""Agents kept before the first sweep of those whose service no longer matters."""


class StartTimes:
    """The starts of the tickets that wait for one resource or are in flight, and of their agents."""

    def __init__(self, *, has_shares: bool = True) -> None:
        """`has_shares` False: each start is 0, so tickets go as they came, and a retried ticket keeps the place."""
        self._now_s, self._has_shares = 0.0, has_shares
        self._latest_s = 0.0
        """The latest next start of any agent so far."""
        self._agents_s: dict[str, float] = {}
        """By agent: least start of the next ticket."""
        self._tickets_s: dict[str, float] = {}
        """By ticket: `now` at arrival; once sent, the start."""
        self._forget_at = _FORGET_FROM

    def came(self, entry: QueueEntry, start_s: float | None = None) -> None:
        """Add a ticket that waits from now on. `start_s`: the start of an earlier ticket for the same request."""
        if not self._tickets_s:
            self._now_s = max(self._now_s, self._latest_s)
        self._tickets_s[entry.ticket.id] = self._now_s if start_s is None else start_s

    def gone(self, entry: QueueEntry) -> float | None:
        """Remove an ended ticket. Returns the start, for a later ticket with the same request."""
        start_s = None if entry.ticket.id not in self._tickets_s else self.start_s(entry)
        self._tickets_s.pop(entry.ticket.id, None)
        return start_s

    def start_s(self, entry: QueueEntry) -> float:
        """The start of a ticket."""
        if not self._has_shares:
            return 0.0
        ticket = entry.ticket
        came_s = self._tickets_s.get(ticket.id, self._now_s)
        return came_s if entry.was_sent else max(came_s, self._agents_s.get(ticket.agent, _LONG_AGO))

    def key(self, entry: QueueEntry) -> tuple[float, float, float]:
        """The sort key of the next ticket of one of several queues."""
        if entry.front:
            return (_LONG_AGO, entry.front, entry.since)
        return (self.start_s(entry) - entry.bonus_s, entry.since, entry.order)

    def serve(self, entry: QueueEntry, first_s: float) -> None:
        """Charge `charged_s` for a ticket that goes. `first_s`: the smallest start of the waiting tickets."""
        agent, agents_s, now_s, start_s = entry.ticket.agent, self._agents_s, self._now_s, self.start_s(entry)
        self._tickets_s[entry.ticket.id] = start_s
        now_s = max(now_s, min(first_s, start_s)) + _PACE * entry.charged_s / len(self._tickets_s)
        self._now_s = now_s
        agents_s[agent] = max(start_s, agents_s.get(agent, _LONG_AGO))
        self._charge(entry, entry.charged_s)
        if len(agents_s) > self._forget_at:
            self._agents_s = {agent: at_s for agent, at_s in agents_s.items() if at_s > now_s}
            self._forget_at = max(_FORGET_FROM, 2 * len(self._agents_s))

    def settle(self, entry: QueueEntry, cost_s: float) -> None:
        """Correct the charge to the actual cost of an ended attempt."""
        if entry.ticket.agent in self._agents_s:
            self._charge(entry, cost_s - entry.charged_s)

    def _charge(self, entry: QueueEntry, cost_s: float) -> None:
        self._agents_s[entry.ticket.agent] += cost_s / entry.weight
        self._latest_s = max(self._latest_s, self._agents_s[entry.ticket.agent])
