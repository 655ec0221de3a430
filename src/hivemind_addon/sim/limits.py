"""What the simulated provider keeps count of: limits and its prompt cache. Pure; all times are the caller's.

Bucket: refills continuously at limit / window, up to the limit. Window: the whole limit is back at each
window's end; the first window begins with the first call. Written apart from the scheduler's own meters, so
that each can be checked against the other.

An entry of the prompt cache can be read once the answer of the call that wrote it has begun; it lives for the cache's
time from the start of the last call that wrote or read it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from hivemind_addon.kernel.values.ticket import Dimension

_TOLERANCE = 1e-6
"""Share of a limit. Who waits exactly as long as `fits_in_s` said must fit, in spite of rounding."""


class LimitKind(Enum):
    """How a limit replenishes."""

    BUCKET = "bucket"
    WINDOW = "window"


class ModelScope(Enum):
    """Which models of a key a limit counts together."""

    KEY = "key"
    """All."""
    FAMILY = "family"
    """Those of one of the provider's families; a model of none is a family of its own."""
    MODEL = "model"
    """Each model by itself."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of an account."""

    dimension: Dimension
    amount: int
    """Per window."""
    window_s: float = 60
    kind: LimitKind = LimitKind.BUCKET
    told: bool = True
    """Whether headers tell of it; False: a hidden one, such as a burst limit."""
    scope: ModelScope = ModelScope.KEY
    left: float | None = None
    """Units that are free as the run begins; None: all."""
    full_in_s: float = 0.0
    """Until the first window ends, where not all are free."""


class SimAllowance:
    """What one limit still allows. Time must not go back between calls. A late charge drives it below 0."""

    def __init__(self, limit: Limit, now: float) -> None:
        self.limit = limit
        self._level = float(limit.amount) if limit.left is None else limit.left
        self._at = now
        if limit.left is not None and limit.kind is LimitKind.WINDOW:
            self._at -= limit.window_s - min(limit.full_in_s, limit.window_s)
        """Bucket: the instant of `_level`. Window: its beginning."""

    def __repr__(self) -> str:
        limit = self.limit
        return f"<Allowance {limit.dimension.value} {self._level:.0f}/{limit.amount} at {self._at:.3f}>"

    def level(self, now: float) -> float:
        """What may still be taken; negative after a late charge."""
        passed_s = now - self._at
        if self.limit.kind is LimitKind.BUCKET:
            self._level = min(float(self.limit.amount), self._level + passed_s * self._rate)
            self._at = now
        elif passed_s >= self.limit.window_s:
            self._level = float(self.limit.amount)
            self._at += math.floor(passed_s / self.limit.window_s) * self.limit.window_s
        return self._level

    def fits(self, amount: float, now: float) -> bool:
        """Whether this much may be taken now."""
        return self.level(now) >= amount - _TOLERANCE * self.limit.amount

    def take(self, amount: float, now: float) -> None:
        """Charge it, whether it fits or not. Below zero: give it back."""
        self._level = min(float(self.limit.amount), self.level(now) - amount)

    def exhaust(self, amount: float, now: float) -> None:
        """Charge it, but not below zero: how a refused call counts."""
        level = self.level(now)
        self._level = max(min(level, 0.0), level - amount)

    def fits_in_s(self, amount: float, now: float) -> float:
        """Seconds until this much fits; infinite when it is more than the limit."""
        if self.fits(amount, now):
            return 0.0
        if amount > self.limit.amount:
            return math.inf
        if self.limit.kind is LimitKind.WINDOW:
            return self._at + self.limit.window_s - now
        return (amount - self._level) / self._rate

    def full_in_s(self, now: float) -> float:
        """Seconds until the whole limit is back. Window: until its end, also when nothing was taken."""
        level = self.level(now)
        if self.limit.kind is LimitKind.WINDOW:
            return self._at + self.limit.window_s - now
        return (self.limit.amount - level) / self._rate

    @property
    def _rate(self) -> float:
        return self.limit.amount / self.limit.window_s


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a prompt, up to one of its marks."""

    key: str
    """Equal for equal beginnings only."""
    tokens: int
    """From the prompt's first token to the mark."""


@dataclass(slots=True)
class _Entry:
    usable_at: float
    expires_at: float


class SimPromptCache:
    """What one provider has cached. Time must not go back between calls."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._entries: dict[str, _Entry] = {}

    def __repr__(self) -> str:
        return f"<PromptCache {len(self._entries)} entries>"

    def cached_tokens(self, prefixes: Sequence[Prefix], now: float) -> int:
        """How many tokens a call that starts now reads from it."""
        return max((prefix.tokens for prefix in prefixes if self._is_usable(prefix.key, now)), default=0)

    def write(self, prefixes: Sequence[Prefix], now: float, *, usable_at: float) -> None:
        """A call that starts now was let through; its answer begins at `usable_at`."""
        for prefix in prefixes:
            entry = self._entries.get(prefix.key)
            if entry is None or entry.expires_at <= now:
                self._entries[prefix.key] = _Entry(usable_at, now + self._ttl_s)
            else:
                entry.usable_at = min(entry.usable_at, usable_at)
                entry.expires_at = now + self._ttl_s

    def _is_usable(self, key: str, now: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.usable_at <= now < entry.expires_at


class SimMachine:
    """One machine that loads models as calls need them: first come, first served; one call of each model at a time.

    A call whose client leaves is worked on.
    """

    def __init__(self, models: int, load_s: float) -> None:
        self._models = models
        self._load_s = load_s
        self._free_at: dict[str, float] = {}
        """By loaded model: the end of all its calls so far."""
        self._next_at = 0.0
        """When the call that came last is at the front, its model loaded."""

    def __repr__(self) -> str:
        return f"<SimMachine with {', '.join(self._free_at)}>"

    def waits_s(self, model: str, service_s: float, now: float) -> float:
        """How long a call waits that comes now, and then takes `service_s`."""
        at = max(now, self._next_at)
        if model not in self._free_at:
            if len(self._free_at) == self._models:
                evicted = min(self._free_at, key=self._free_at.__getitem__)
                at = max(at, self._free_at.pop(evicted))
            at += self._load_s
        self._next_at = at
        begins_at = max(at, self._free_at.get(model, at))
        self._free_at[model] = begins_at + service_s
        return begins_at - now
