"""When refusals tell to come back, and whether that is true. Pure.

A retry-after is believed as long as what is sent before its end is refused: each one that is, speaks for the teller,
and each one as large that passes, against it. One of a minute or more is tried on the way, until one was refused so
late in it that the teller is proved. Where who comes when told is refused again, what is told is stretched.
"""

import math
from collections import deque
from collections.abc import Sequence

from hivemind_addon.kernel.inference.limiter_models import Sent

_NEVER = float("inf")
LONGEST_S = 86_400.0
"""No wait is taken for longer."""
ROUNDING_S = 1.25
"""A retry-after in whole seconds is up to one too long, and its way here takes a moment."""
_ROUNDED = 0.3
"""Or by so much of it, where it is short."""
_TOLD_TRUST = 2.0
_TOLD_KEPT = 1.0
"""A refusal before the instant that was told speaks for the teller."""
_PROVED = 0.4
"""One that is refused after so much of the time that was told proves the teller."""
_FIRST_LOOK = 1 / 8
"""After so much of a told time that is long one goes to see; then after twice as long."""
_TOLD_BROKEN = 3.0
"""An attempt that passed before it speaks against."""
_STRETCH = 1.5
_MOST_STRETCH = 10.0
_TOLD_MOST = 8.0
_MEASURES = 3
_LONG_TOLD_S = 60.0
"""What is told for so long is tried on the way."""


class RetryAfters:
    """What refusals tell of when to come back, and how far that has proved to be true."""

    def __init__(self) -> None:
        self.ends: deque[float] = deque(maxlen=32)
        """Ends that refusals told, those that are one counted once."""
        self.waits_s: deque[float] = deque(maxlen=32)
        """How far away these ends were."""
        self.until = -_NEVER
        """The farthest instant that was told."""
        self.longest_s = 0.0
        self._at = -_NEVER
        """When a refusal told one last."""
        self._units: tuple[float, ...] = ()
        """Of the attempt that was told so."""
        self._is_proved = False
        """Whether one was refused late in a time that was told."""
        self._score = _TOLD_TRUST
        self._stretch = 1.0
        """A retry-after is so many times too short."""
        self._passed_early = (0.0,) * _MEASURES
        """The most units of an attempt that passed before the instant that was told."""
        self._look: Sent | None = None
        """The last one that went to see whether a told instant is true."""
        self._row_since = self._refused_sent_at = -_NEVER
        """Since when all that was sent was refused, and when the last one of these was sent."""

    def __repr__(self) -> str:
        return f"<RetryAfters until {self.until:.1f}, score {self._score:g}>"

    @property
    def is_trusted(self) -> bool:
        """Whether more speaks for them than against them."""
        return self._score > 0

    @property
    def is_proved(self) -> bool:
        """Whether one was ever refused late in a time that was told, and more speaks for them than against them."""
        return self._is_proved and self._score > 0

    @property
    def are_exact(self) -> bool:
        """Whether what they tell can be held against what a hypothesis computes."""
        return self._score > 0 and self._stretch <= 1

    def trust(self, now: float) -> float:
        """How likely nothing passes before the instant that was told."""
        return 1 / (1 + math.exp(-self._score)) if now < self.until else 0.0

    def believes(self, units: Sequence[float]) -> bool:
        """Whether they tell the truth, as far as attempts have shown that were as large."""
        is_larger = any(mine > theirs for mine, theirs in zip(units, self._passed_early, strict=True))
        return is_larger or self._score > 0

    def passed(self, sent: Sent) -> None:
        """An attempt was taken: perhaps before it was told to come."""
        if sent.sent_at > self._row_since:
            self._row_since = -_NEVER
        is_early = self._at < sent.sent_at < self.until - min(ROUNDING_S, _ROUNDED * self.longest_s)
        # A smaller one may pass sooner.
        if is_early and all(unit >= told for unit, told in zip(sent.units, self._units, strict=True)):
            self._passed_early = tuple(map(max, zip(sent.units, self._passed_early, strict=True)))
            self._score = max(-_TOLD_MOST, self._score - _TOLD_BROKEN)

    def refused(self, sent: Sent, retry_after_s: float, now: float, *, row_length: int, is_first: bool) -> None:
        """An attempt was refused, the `row_length`-th time in a row, and told to come after so long; 0: it was not."""
        if is_first or self._row_since == -_NEVER:
            self._row_since = now
        self._refused_sent_at = sent.sent_at
        if self._at < sent.sent_at < self.until:
            self._score = min(_TOLD_MOST, self._score + _TOLD_KEPT)
            # At once after it was told so it shows little.
            self._is_proved |= sent.sent_at - self._row_since > _PROVED * (self.until - self._row_since)
        if retry_after_s <= 0:
            return
        if row_length > 1 and sent.sent_at >= self.until:
            # It came back when it was told to, and was refused again.
            self._stretch = min(self._stretch * _STRETCH, _MOST_STRETCH)
        until = now + min(retry_after_s * self._stretch, LONGEST_S)
        sent.told_at = now + min(retry_after_s, LONGEST_S)
        self.longest_s = max(self.longest_s, retry_after_s)
        if until >= self.until:
            self.until, self._units = until, sent.units
        self._at = now
        if not self.ends or abs(self.ends[-1] - until) > ROUNDING_S:
            self.ends.append(until)
            self.waits_s.append(retry_after_s)

    def look_at(self, now: float) -> float:
        """When one goes to see whether a told instant is true, of a teller of which that is not known yet."""
        if self._is_proved or now >= self.until or self._row_since == -_NEVER:
            return _NEVER
        told_s, tried_s = self.until - self._row_since, self._refused_sent_at - self._row_since
        look_at = self._row_since + max(_FIRST_LOOK * told_s, 2 * tried_s)
        return look_at if told_s >= _LONG_TOLD_S and look_at < self.until else _NEVER

    def looks(self, sent: Sent) -> None:
        """An attempt goes to see."""
        self._look = sent

    def is_look(self, sent: Sent) -> bool:
        """Whether an attempt went to see."""
        return sent is self._look
