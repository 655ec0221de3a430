"""What the agents that use most have used, each by its name, and all others together: a bounded number of counters.

Each counter only grows while its agent is one of the most. One that overtakes another takes its place and begins at
zero: what it used before stays with the others, and what the other one used ends with its counter. So no rate jumps.
"""

from hivemind_addon.kernel.values.events import AttemptEnded
from hivemind_addon.proxy.record.attempt_usage import Used

OTHER = "other"
MOST_AGENTS = 200
"""That may be asked for."""
_MOST_KNOWN = 5_000
"""Agents whose totals are kept."""
_MARGIN = 1.1
"""So much more must one have used that takes another's place: two that are alike do not change all the time."""


class AgentUse:
    """The counters. `most`: how many agents have their own; 0: none is kept."""

    def __init__(self) -> None:
        self._most = 0
        self._known: dict[str, int] = {}
        """Booked tokens of each agent; the one that was seen last is at the end."""
        self._own: dict[str, Used] = {}
        self._other = Used()

    @property
    def most(self) -> int:
        """How many agents have counters of their own."""
        return self._most

    @most.setter
    def most(self, most: int) -> None:
        if most != self._most:
            self._most, self._known, self._own, self._other = most, {}, {}, Used()

    def add(self, agent: str, event: AttemptEnded) -> None:
        """An attempt of an agent has ended."""
        if not self._most:
            return
        self._known[agent] = known = self._known.pop(agent, 0) + event.spend.tokens
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(one for one in self._known if one not in self._own)]
        own = self._own.get(agent)
        if own is None and self._is_one_of_the_most(known):
            own = self._own[agent] = Used()
        (own or self._other).add_attempt(event)

    def _is_one_of_the_most(self, known: int) -> bool:
        """Whether there is room; made, where the one that uses least has used less."""
        if len(self._own) < self._most:
            return True
        least = min(self._own, key=self._known.__getitem__)
        if known <= self._known[least] * _MARGIN:
            return False
        del self._own[least]
        return True

    def view(self) -> dict[str, Used]:
        """By agent, and OTHER, whose name no agent has; empty: none is kept."""
        if not self._most:
            return {}
        named = {f"{OTHER}_" if name == OTHER else name: used for name, used in self._own.items()}
        return named | {OTHER: self._other}
