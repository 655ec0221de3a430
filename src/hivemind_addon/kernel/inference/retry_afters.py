"""How far the retry-afters of refusals prove true. Pure.

A refusal before a retry-after's end is evidence for the retry-after, a pass of an attempt at least as large against. A
retry-after of a minute or more is tested before the end, until a late refusal proves it. If an attempt waits as
reported and is refused again, later retry-afters are stretched.
"""

import math
from collections import deque
from collections.abc import Sequence

from hivemind_addon.kernel.inference.limiter_models import Sent

_NEVER = float("inf")
LONGEST_S = 86_400.0
"""Longest wait that is believed."""
ROUNDING_S = 1.25
"""A retry-after in whole seconds is up to a second too long, and takes a moment to arrive."""
_ROUNDED = 0.3
"""Or this share of a short retry-after."""
_FIRST_SCORE = 2.0
_CONFIRMED = 1.0
"""Score for a refusal before the reported end."""
_PROVED = 0.4
"""A refusal after this share of the reported wait proves the retry-after."""
_FIRST_LOOK = 1 / 8
"""A long wait is tested after this share, and then after twice the time of the last test."""
_REFUTED = 3.0
"""Score lost when an attempt passes before the reported end."""
_STRETCH = 1.5
_MOST_STRETCH = 10.0
_MOST_SCORE = 8.0
_MEASURES = 3
_LONG_WAIT_S = 60.0
"""Shortest wait that is tested before its end."""


class RetryAfters:
    """The retry-afters that refusals report, and how far they have proved true."""

    def __init__(self) -> None:
        self.ends: deque[float] = deque(maxlen=32)
        """Reported ends, each counted once."""
        self.until = -_NEVER
        """Farthest reported end."""
        self.longest_s = 0.0
        self._at = -_NEVER
        """When a refusal last reported a retry-after."""
        self._units: tuple[float, ...] = ()
        """Of the attempt that received `until`."""
        self._is_proved = False
        """Whether an attempt was refused late in a reported wait."""
        self._score = _FIRST_SCORE
        self._stretch = 1.0
        """Factor by which retry-afters are too short."""
        self._passed_early = (0.0,) * _MEASURES
        """Most units of an attempt that passed before the reported end."""
        self._row_since = self._refused_sent_at = -_NEVER
        """Since when every attempt was refused, and when the last of these was sent."""

    @property
    def is_trusted(self) -> bool:
        """Whether the evidence for retry-afters outweighs the evidence against."""
        return self._score > 0

    @property
    def is_proved(self) -> bool:
        """Whether an attempt was ever refused late in a reported wait, and retry-afters are trusted."""
        return self._is_proved and self._score > 0

    def trust(self, now: float) -> float:
        """Probability that nothing passes before the reported end."""
        return 1 / (1 + math.exp(-self._score)) if now < self.until else 0.0

    def believes(self, units: Sequence[float]) -> bool:
        """Whether retry-afters are true for attempts of this size, as far as is known."""
        is_larger = any(mine > theirs for mine, theirs in zip(units, self._passed_early, strict=True))
        return is_larger or self._score > 0

    def passed(self, sent: Sent) -> None:
        """Learn from an attempt that passed, perhaps before the reported end."""
        if sent.sent_at > self._row_since:
            self._row_since = -_NEVER
        is_early = self._at < sent.sent_at < self.until - min(ROUNDING_S, _ROUNDED * self.longest_s)
        # A smaller attempt may pass sooner.
        if is_early and all(unit >= refused for unit, refused in zip(sent.units, self._units, strict=True)):
            self._passed_early = tuple(map(max, zip(sent.units, self._passed_early, strict=True)))
            self._score = max(-_MOST_SCORE, self._score - _REFUTED)

    def refused(self, sent: Sent, retry_after_s: float, now: float, *, row_length: int, is_first: bool) -> None:
        """Learn from the `row_length`-th refusal in a row; `retry_after_s` is 0 if the refusal reports none."""
        if is_first or self._row_since == -_NEVER:
            self._row_since = now
        self._refused_sent_at = sent.sent_at
        if self._at < sent.sent_at < self.until:
            self._score = min(_MOST_SCORE, self._score + _CONFIRMED)
            # A refusal right after the report proves little.
            self._is_proved |= sent.sent_at - self._row_since > _PROVED * (self.until - self._row_since)
        if retry_after_s <= 0:
            return
        if row_length > 1 and sent.sent_at >= self.until:
            # The attempt waited as long as reported and was refused again.
            self._stretch = min(self._stretch * _STRETCH, _MOST_STRETCH)
        until = now + min(retry_after_s * self._stretch, LONGEST_S)
        sent.told_at = now + min(retry_after_s, LONGEST_S)
        self.longest_s = max(self.longest_s, retry_after_s)
        if until >= self.until:
            self.until, self._units = until, sent.units
        self._at = now
        if not self.ends or abs(self.ends[-1] - until) > ROUNDING_S:
            self.ends.append(until)

    @property
    def row_s(self) -> float:
        """For how long every attempt was refused, up to the last that was sent."""
        return self._refused_sent_at - self._row_since if self._row_since > -_NEVER else 0.0

    def look_at(self, now: float) -> float:
        """When to test an unproved retry-after that is long; infinite: never."""
        if self._is_proved or now >= self.until or self._row_since == -_NEVER:
            return _NEVER
        wait_s, tried_s = self.until - self._row_since, self._refused_sent_at - self._row_since
        look_at = self._row_since + max(_FIRST_LOOK * wait_s, 2 * tried_s)
        return look_at if wait_s >= _LONG_WAIT_S and look_at < self.until else _NEVER
