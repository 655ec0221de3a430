"""The order over the heads of pools that draw on a common limit: fair among agents, whatever model they ask for.

Each pool's own order says who its next ticket is. Among these the one with the smallest key goes: start-time fair
queueing (`shares.py`), with agents as they are known to the account.

    start = max(now when the ticket came, what its agent has been served)      its first admission fixes it
    now   = the latest start of those that were served, and on by each one's part of what is served
    key   = start - bonus, then the older ticket

So equal agents are served in the order in which their calls came, and one that has many calls waiting is behind all
others with each further one.
"""

from hivemind_addon.proxy.core.lanes import Place

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

    def key(self, place: Place) -> tuple[float, float, float]:
        """What a pool's next ticket is sorted by."""
        if place.front:
            return (_LONG_AGO, place.front, place.since)
        return (self._start_s(place) - place.bonus_s, place.since, place.order)

    def served(self, place: Place, cost_s: float) -> None:
        """A ticket goes, and is expected to take so much. `settle` it when its attempt ends."""
        ticket = place.ticket
        owed_s = self._served_s.get(ticket.agent, _LONG_AGO)
        if ticket.id not in self._sent:
            self._came_s[ticket.id] = self._start_s(place)
            self._sent.add(ticket.id)
        start_s = self._came_s[ticket.id]
        # As in an ideal system that serves all who are here at once: newcomers do not go before others for ever.
        self._now_s = max(self._now_s, start_s) + _PACE * cost_s / max(1, len(self._came_s))
        self._served_s[ticket.agent] = max(start_s, owed_s) + cost_s / place.weight
        self._charged_s[ticket.id] = cost_s
        if len(self._served_s) > self._forget_at:
            self._served_s = {agent: at_s for agent, at_s in self._served_s.items() if at_s > self._now_s}
            self._forget_at = max(_FORGET_FROM, 2 * len(self._served_s))

    def settle(self, place: Place, cost_s: float) -> None:
        """An attempt ended, and took so much."""
        ticket = place.ticket
        charged_s = self._charged_s.pop(ticket.id, cost_s)
        if ticket.agent in self._served_s:
            self._served_s[ticket.agent] += (cost_s - charged_s) / place.weight

    def _start_s(self, place: Place) -> float:
        ticket = place.ticket
        came_s = self._came_s.get(ticket.id, self._now_s)
        return came_s if ticket.id in self._sent else max(came_s, self._served_s.get(ticket.agent, _LONG_AGO))
