"""The hard wall: the provider refuses the account for hours or days, and everybody is told so at once.

    OPEN     ── hit: a refusal that ends with a window, not with a pause ──► STANDING
    STANDING ── its end has come ──► PROBING: one request goes first, the others wait for its answer
    PROBING  ── that one is answered ──► OPEN
    PROBING  ── it hits the wall again ──► STANDING
    PROBING  ── it ends in any other way ──► PROBING: the next one goes first

While the wall stands nothing is sent and nothing is held: a client that is told at once, with the end, can stop or
sleep; one that is held for hours only times out. Requests that were on their way when it was hit prove nothing.
"""

import math
from dataclasses import dataclass

from hivemind_addon.api.snapshot import WallView

_NEVER = float("inf")
_SHORTEST_S = 1.0
_LONGEST_S = 32 * 86_400.0
_SAME_S = 2.0
"""Ends that differ by less are one end: each answer rounds it anew."""


@dataclass(frozen=True, slots=True)
class Closure:
    """Why the account is refused, and until when."""

    reason: str
    until: float
    """Monotonic instant."""


class Wall:
    """One pool's wall."""

    def __init__(self) -> None:
        self._closure: Closure | None = None
        self._probe: str | None = None
        """The ticket that goes first."""

    def __repr__(self) -> str:
        return "<Wall open>" if self._closure is None else f"<Wall until {self._closure.until:.3f}>"

    def stands(self, now: float) -> Closure | None:
        """Why and until when everybody is refused; None: nobody is."""
        return self._closure if self._closure is not None and now < self._closure.until else None

    @property
    def passes_at(self) -> float:
        """From when on it lets an attempt go: always, at its end, or not before the one that went first is answered."""
        if self._closure is None:
            return -_NEVER
        return self._closure.until if self._probe is None else _NEVER

    def hit(self, reason: str, wall_s: float, now: float) -> bool:
        """The provider refuses for so many seconds more. True: this is news."""
        lasts_s = min(max(wall_s, _SHORTEST_S), _LONGEST_S) if math.isfinite(wall_s) else _SHORTEST_S
        until = now + lasts_s
        known = self.stands(now)
        if known is not None and until <= known.until + _SAME_S:
            return False
        self._closure = Closure(reason, until)
        self._probe = None
        return True

    def sent(self, ticket_id: str) -> None:
        """An attempt was admitted: past a wall's end it is the one that goes first."""
        if self._closure is not None:
            self._probe = ticket_id

    def answered(self, ticket_id: str) -> bool:
        """An attempt got an answer that is no refusal. True: that has opened the wall."""
        if self._closure is None or self._probe != ticket_id:
            return False
        self._closure = self._probe = None
        return True

    def ended(self, ticket_id: str) -> None:
        """An attempt has ended; if it went first without having proved anything, the next one does."""
        if self._probe == ticket_id:
            self._probe = None

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        if self._closure is not None:
            self._closure = Closure(self._closure.reason, self._closure.until - delta_s)

    def absorb(self, other: "Wall") -> None:
        """Another pool turned out to be of the same account."""
        theirs = other._closure  # noqa: SLF001  its own kind
        if theirs is not None and (self._closure is None or theirs.until > self._closure.until):
            self._closure, self._probe = theirs, None

    def view(self, now: float) -> WallView | None:
        """The wall at one instant."""
        if self._closure is None:
            return None
        return WallView(reason=self._closure.reason, ends_in_s=max(0.0, self._closure.until - now))
