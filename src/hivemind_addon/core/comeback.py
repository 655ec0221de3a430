"""Places of tickets that were shed or whose client went, kept for the same request when it comes back.

A refusal asks the client to come back, and most do, with the same request under a new ticket; so do clients whose own
patience ended (Claude Code: after three minutes, see docs/endurance.md). It gets the place that the old one had: once
for each, and within ten minutes.
"""

from dataclasses import dataclass

from hivemind_addon.core.lanes import Standing
from hivemind_addon.core.ticket import Ticket

_KEPT_FOR_S = 600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    standing: Standing
    until: float


class Comebacks:
    """One pool's kept places, oldest first."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], list[_Kept]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def __repr__(self) -> str:
        return f"<Comebacks {len(self)} places kept>"

    def keep(self, ticket: Ticket, standing: Standing | None, now: float) -> None:
        """A ticket was shed, or its client went."""
        self._forget(now)
        if standing is not None and ticket.request_hash:
            kept = self._kept.pop((ticket.agent, ticket.request_hash), [])
            self._kept[ticket.agent, ticket.request_hash] = [*kept, _Kept(standing, now + _KEPT_FOR_S)]

    def claim(self, ticket: Ticket, now: float) -> Standing | None:
        """The place of an earlier ticket for the same request; None: it has none."""
        self._forget(now)
        kept = self._kept.get((ticket.agent, ticket.request_hash))
        if not kept:
            return None
        if len(kept) == 1:
            del self._kept[ticket.agent, ticket.request_hash]
        return kept.pop(0).standing

    def absorb(self, other: "Comebacks") -> None:
        """Another pool turned out to be of the same account. Its virtual time is another one: its places are void."""
        other._kept.clear()  # noqa: SLF001  its own kind

    def _forget(self, now: float) -> None:
        while self._kept:
            (name, kept) = next(iter(self._kept.items()))
            while kept and kept[0].until <= now:
                kept.pop(0)
            if kept:
                return
            del self._kept[name]
