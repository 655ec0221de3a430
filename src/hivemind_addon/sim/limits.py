"""The state of the simulated provider: limits of many kinds, slots, bans, a prompt cache. Pure: the caller gives `now`.

    Limit (a value, as YAML says it) ──allowance──► SimAllowance: level, fits, take, fits_in_s, full_in_s

Each kind is small and exact, and shares no code with the scheduler's meters and models, so that tests can check both
against each other. A late charge drives an allowance below zero. `fits_in_s` assumes that nobody else comes, and that
the amount does not change.

An entry of the prompt cache can be read once the answer of the call that wrote the entry has begun. The entry lives for
the cache's time from the start of the last call that wrote or read the entry.
"""

import heapq
import math
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from hivemind_addon.kernel.values.ticket import Dimension

_TOLERANCE = 1e-6
"""Share of a limit: a call that waits exactly `fits_in_s` must fit, in spite of rounding."""
_DUST_S = 1e-9
"""Two instants that differ by less are equal: sums lose digits."""


class LimitKind(Enum):
    """How a limit replenishes."""

    BUCKET = "bucket"
    """All the time, at amount ÷ window."""
    WINDOW = "window"
    """The whole amount with the next window; `WindowKind` says when that begins."""


class WindowKind(Enum):
    """Which calls a window counts together."""

    BEAT = "beat"
    """The first window begins with the first call, each other when the last window ends, calls or not."""
    CLOCK = "clock"
    """The same, but the run begins within a window: the seed draws where, unless `full_in_s` says."""
    OPENED = "opened"
    """Each window begins with the first call after the last window."""
    LOG = "log"
    """A sliding log: at each instant, the calls of the last `window_s` count."""
    COUNTER = "counter"
    """A sliding counter: this window of the beat, and the last window by the share that the last `window_s` overlap."""


class ModelScope(Enum):
    """Which calls of a key a limit counts together."""

    KEY = "key"
    """All."""
    FAMILY = "family"
    """Those for each of the provider's families of models; a model without a family stands alone."""
    MODEL = "model"
    """Those for each model."""
    USER = "user"
    """Those of each end user, for all models."""


class RetryAfter(Enum):
    """How the wait that a refusal states follows from the true wait."""

    ROUNDED_UP = "rounded-up"
    """As the dialect usually does: in whole seconds, or in milliseconds where a header has them."""
    EXACT = "exact"
    CUT = "cut"
    """Whole seconds, rounded down."""
    MISSING = "missing"
    """No refusal says when to come back."""
    SHORT = "short"
    """0.3 times as long."""
    LONG = "long"
    """10 times as long."""
    ALWAYS_60 = "always-60"
    """60 s, true or not."""

    def of(self, wait_s: float) -> float | None:
        """The seconds that a refusal states when the call would pass after `wait_s`; None: none are stated."""
        factor = {RetryAfter.SHORT: 0.3, RetryAfter.LONG: 10.0}.get(self, 1.0)
        match self:
            case RetryAfter.MISSING:
                return None
            case RetryAfter.ALWAYS_60:
                return 60.0
            case RetryAfter.CUT:
                return float(math.floor(wait_s))
            case _:
                return factor * wait_s


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A limit gets another amount."""

    at_s: float
    """Since the first call."""
    amount: int
    """Per window, from then on."""


@dataclass(frozen=True, slots=True)
class LimitReport:
    """How headers differ from the truth about a limit."""

    amount: int | None = None
    """They report a limit of this amount, which counts the same calls and refuses none; none: the true amount."""
    window_s: float | None = None
    """The same for the window."""
    age_s: float = 0.0
    """They report the state of so many seconds ago; the instants of resets stay true."""
    on_refusals: bool = True
    """false: only answers report the limit, not refusals."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of an account."""

    dimension: Dimension
    """What is counted."""
    amount: int
    """Per window."""
    window_s: float = 60
    """The window."""
    kind: LimitKind = LimitKind.BUCKET
    """How units come back."""
    told: bool = True
    """Whether headers report the limit; false: a hidden limit, such as a burst limit."""
    scope: ModelScope = ModelScope.KEY
    """Which calls count together."""
    left: float | None = None
    """Units that are free as the run begins; None: all."""
    full_in_s: float = 0.0
    """Until the first window ends, where not all are free or windows go by the clock."""
    windows: WindowKind = WindowKind.BEAT
    """Of a limit of windows."""
    burst: float | None = None
    """Units that a bucket holds; none: the whole amount. 1 makes the bucket a spacing."""
    growth: float = 0.0
    """Above zero: the limit grows with use. Each `window_s` may take `amount`, or so many times the units that the
    `window_s` before took, as where a provider refuses a sharp increase of usage."""
    counts_refusals: bool = False
    """Whether a refused call is charged like any other."""
    changes: tuple[LimitChange, ...] = ()
    """Other amounts, later."""
    plan: str = ""
    """The limit is this window of a plan, in the headers' own words: 5h, 7d and 7d_oi of Anthropic's subscriptions
    (Messages), primary and secondary of Codex (Responses). Headers report the share used, and refusals the end."""
    reports: LimitReport = LimitReport()
    """How headers report the limit, if they do."""

    @property
    def is_exact(self) -> bool:
        """Whether the limit says more than bucket or window, so that `on` leaves the limit alone."""
        return self.windows is not WindowKind.BEAT or self.burst is not None or self.growth > 0 or bool(self.plan)

    def on(self, kind: LimitKind) -> "Limit":
        """The same limit with this kind; an exact limit stays."""
        return self if self.is_exact else replace(self, kind=kind)

    @property
    def told_as(self) -> "Limit":
        """The limit that headers report; windows begin as the true limit's do."""
        shown = self.reports
        if shown.amount is None and shown.window_s is None:
            return self
        return replace(self, amount=shown.amount or self.amount, window_s=shown.window_s or self.window_s)

    def allowance(self, now: float, *, begun_at: float | None = None) -> "SimAllowance":
        """The allowance at the first call that the limit counts. `begun_at`: of the first call of all."""
        begun_at = now if begun_at is None else begun_at
        if self.growth > 0:
            return _Growth(self, now, begun_at)
        if self.kind is LimitKind.BUCKET:
            return _Bucket(self, now, begun_at)
        if self.windows is WindowKind.LOG:
            return _Log(self, now, begun_at)
        return (_Counter if self.windows is WindowKind.COUNTER else _Window)(self, now, begun_at)


class SimAllowance(ABC):
    """The units that a limit still allows. Time must not go back between calls. Late charges make levels negative."""

    def __init__(self, limit: Limit, now: float, begun_at: float) -> None:
        self.limit = limit
        self.amount = float(limit.amount)
        """At present."""
        self._changes = deque(sorted((begun_at + change.at_s, change.amount) for change in limit.changes))
        self._now = now
        """The instant of the last call."""
        self._begun_at = begun_at
        self._start()

    def __repr__(self) -> str:
        limit = self.limit
        return f"<{type(self).__name__} of {limit.amount} {limit.dimension.value} in {limit.window_s:g} s>"

    def level(self, now: float) -> float:
        """Units that may still be taken; negative after a late charge."""
        while self._changes and self._changes[0][0] <= now:
            self._now, amount = self._changes.popleft()
            self._pass()
            self._resize(float(amount))
        self._now = now
        self._pass()
        return self._free()

    def fits(self, units: float, now: float) -> bool:
        """Whether so many units may be taken now."""
        return self.level(now) >= units - _TOLERANCE * self.amount

    def take(self, units: float, now: float) -> None:
        """Charge units, whether they fit or not. Below zero: give units back."""
        self.level(now)
        self._take(units)

    def exhaust(self, units: float, now: float) -> None:
        """Charge units, but leave a level of zero at least: how a refused call counts."""
        self._take(min(units, max(0.0, self.level(now))))

    def refuse(self, units: float, now: float) -> None:
        """A call of so many units was refused, by this limit or another."""
        if self.limit.counts_refusals:
            self.take(units, now)

    def fits_in_s(self, units: float, now: float) -> float:
        """Seconds until so many units fit; infinite when they exceed the limit."""
        return 0.0 if self.fits(units, now) else self._wait_s(units)

    @abstractmethod
    def full_in_s(self, now: float) -> float:
        """Seconds until the whole limit is back. Window: until the end, also when nothing was taken."""

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _pass(self) -> None:
        """It is `_now`; the amount stays."""

    @abstractmethod
    def _free(self) -> float: ...

    @abstractmethod
    def _take(self, units: float) -> None: ...

    @abstractmethod
    def _wait_s(self, units: float) -> float:
        """Of units that do not fit."""

    def _resize(self, amount: float) -> None:
        self.amount = amount


class _Bucket(SimAllowance):
    def _start(self) -> None:
        self._size = self.amount if self.limit.burst is None else self.limit.burst
        self._level, self._at = self._size if self.limit.left is None else self.limit.left, self._now

    @property
    def _rate(self) -> float:
        return self.amount / self.limit.window_s

    def _pass(self) -> None:
        self._level = min(self._size, self._level + (self._now - self._at) * self._rate)
        self._at = self._now

    def _free(self) -> float:
        return self._level

    def _take(self, units: float) -> None:
        self._level = min(self._size, self._level - units)

    def refuse(self, units: float, now: float) -> None:
        if self.limit.counts_refusals:
            self._level = max(-self._size, self.level(now) - units)  # no storm closes it for longer than it fills

    def _resize(self, amount: float) -> None:
        self._size *= amount / self.amount
        self.amount = amount
        self._level = min(self._level, self._size)

    def _wait_s(self, units: float) -> float:
        return math.inf if units > self._size else (units - self._level) / self._rate

    def full_in_s(self, now: float) -> float:
        return (self._size - self.level(now)) / self._rate


class _Window(SimAllowance):
    """The present window began at `_at`; infinite: no call has opened the window."""

    def _start(self) -> None:
        limit = self.limit
        self._opens = limit.windows is WindowKind.OPENED
        self._used = 0.0 if limit.left is None else self.amount - limit.left
        self._at = self._now
        if limit.windows is WindowKind.CLOCK:
            self._at = self._begun_at + limit.full_in_s % limit.window_s - limit.window_s
            self._pass()
        elif limit.left is not None:
            self._at -= limit.window_s - min(limit.full_in_s, limit.window_s)
        elif self._opens:
            self._at = math.inf

    def _pass(self) -> None:
        passed = (self._now - self._at + _DUST_S) / self.limit.window_s
        if passed >= 1:
            self._used = 0.0
            self._at = math.inf if self._opens else self._at + math.floor(passed) * self.limit.window_s

    def _free(self) -> float:
        return self.amount - self._used

    def _take(self, units: float) -> None:
        self._used = max(0.0, self._used + units)
        self._at = min(self._at, self._now)

    def _wait_s(self, units: float) -> float:
        return math.inf if units > self.amount else self.full_in_s(self._now)

    def full_in_s(self, now: float) -> float:
        self.level(now)
        return min(self._at, now) + self.limit.window_s - now


class _Counter(_Window):
    _last = 0.0
    """Units that the last window took."""

    def _pass(self) -> None:
        at, used = self._at, self._used
        super()._pass()
        if self._at > at:
            self._last = used if self._at < at + 1.5 * self.limit.window_s else 0.0

    @property
    def _overlap(self) -> float:
        """The share of the last window that the last `window_s` overlap."""
        return min(1.0, 1 - (self._now - self._at) / self.limit.window_s)

    def _free(self) -> float:
        return self.amount - self._used - self._last * self._overlap

    def _wait_s(self, units: float) -> float:
        passed = 1 - self._overlap
        for last, this, begins in ((self._last, self._used, 0.0), (self._used, 0.0, 1.0)):
            free = self.amount - this - units
            if free >= -_TOLERANCE * self.amount:
                share = max(0.0, 1 - max(0.0, free) / last) if last else 0.0
                return max(0.0, begins + share - passed) * self.limit.window_s
        return math.inf


class _Log(SimAllowance):
    _lengths = 1
    """Windows' lengths that the log goes back."""

    def _start(self) -> None:
        self._log: deque[tuple[float, float]] = deque()
        """Instants, and the units taken then."""
        self._used = 0.0

    def _pass(self) -> None:
        while self._log and self._log[0][0] + self._lengths * self.limit.window_s <= self._now + _DUST_S:
            self._used -= self._log.popleft()[1]

    def _free(self) -> float:
        return self.amount - self._used

    def _take(self, units: float) -> None:
        self._used = max(0.0, self._used + units)
        at = self._now
        while units < 0 and self._log:  # the newest units are given back
            at, taken = self._log.pop()
            units += taken
        if units > 0:
            self._log.append((at, units))

    def _wait_s(self, units: float) -> float:
        free = self._free()
        for at, taken in self._log:
            free += taken
            if free >= units - _TOLERANCE * self.amount:
                return at + self.limit.window_s - self._now
        return math.inf

    def full_in_s(self, now: float) -> float:
        """Until the oldest call falls out, which such limits report as their reset."""
        self.level(now)
        return max(0.0, self._log[0][0] + self.limit.window_s - now) if self._log else 0.0


class _Growth(_Log):
    _lengths = 2

    def _free(self) -> float:
        return self._free_at(self._now)

    def _free_at(self, now: float) -> float:
        began_at = now - self.limit.window_s + _DUST_S
        last = sum(units for at, units in self._log if began_at - self.limit.window_s < at <= began_at)
        this = sum(units for at, units in self._log if at > began_at)
        return max(self.amount, self.limit.growth * last) - this

    def _wait_s(self, units: float) -> float:
        # Only when units leave this length for the length before is there more to give.
        instants = (at + self.limit.window_s for at, _ in self._log)
        fits = (at for at in instants if at > self._now and self._free_at(at) >= units - _TOLERANCE * self.amount)
        return next((at - self._now for at in fits), math.inf)


class SimMeter:
    """A limit at work: the true allowance, and the allowance that headers report."""

    def __init__(self, limit: Limit, now: float, begun_at: float) -> None:
        self.limit = limit
        self.true = limit.allowance(now, begun_at=begun_at)
        told = limit.told_as
        self._told = self.true if told is limit else told.allowance(now, begun_at=begun_at)
        self.both = (self.true,) if self._told is self.true else (self.true, self._told)
        """The allowances that each charge goes to."""
        self._seen: deque[tuple[float, float, float]] = deque()
        """Instant, level and instant of the reset of each report that is still to be made."""

    def __repr__(self) -> str:
        return f"<SimMeter {self.true!r}>"

    def told(self, now: float) -> tuple[int, float, float]:
        """The amount, the rest, and the seconds until all is back, as a response that is written now reports them."""
        level, full_at = self._told.level(now), now + self._told.full_in_s(now)
        if age_s := self.limit.reports.age_s:
            self._seen.append((now, level, full_at))
            while len(self._seen) > 1 and self._seen[1][0] <= now - age_s:
                self._seen.popleft()
            _, level, full_at = self._seen[0]
        return round(self._told.amount), level, max(0.0, full_at - now)


@dataclass(frozen=True, slots=True)
class Ban:
    """After so many refusals within a time all calls are refused for a while."""

    refusals: int
    """So many refusals start the ban"""
    within_s: float
    """if they come within this time."""
    lasts_s: float
    """How long all calls are refused."""


class SimBan:
    """A ban at work."""

    def __init__(self, ban: Ban) -> None:
        self._ban = ban
        self._log: deque[float] = deque()
        self._until = -math.inf

    def __repr__(self) -> str:
        return f"<SimBan until {self._until:.1f} s, {len(self._log)} of {self._ban.refusals} refusals>"

    def wait_s(self, now: float) -> float:
        """Seconds until the ban is over; 0: there is none now."""
        return max(0.0, self._until - now)

    def refused(self, now: float) -> None:
        """A call was refused."""
        if now < self._until:
            return
        self._log.append(now)
        while self._log[0] < now - self._ban.within_s:
            self._log.popleft()
        if len(self._log) >= self._ban.refusals:
            self._until = now + self._ban.lasts_s
            self._log.clear()


class SimSlots:
    """Calls in flight and their tokens, by a key that stands for all calls which are counted together."""

    def __init__(self, linger_s: float) -> None:
        self._linger_s = linger_s
        self._calls: Counter[tuple[str, str]] = Counter()
        self._tokens: Counter[tuple[str, str]] = Counter()
        self._lingering: list[tuple[float, tuple[str, str], int]] = []

    def __repr__(self) -> str:
        return f"<SimSlots {self._calls.total()} taken, {len(self._lingering)} linger>"

    @property
    def total(self) -> int:
        """Calls in flight, those that linger left out."""
        return self._calls.total() - len(self._lingering)

    def begin(self, key: tuple[str, str], tokens: int) -> None:
        """A call with so many tokens takes a slot."""
        self._calls[key] += 1
        self._tokens[key] += tokens

    def end(self, key: tuple[str, str], tokens: int, now: float) -> None:
        """The call is over."""
        if self._linger_s:
            heapq.heappush(self._lingering, (now + self._linger_s, key, tokens))
            self._free(now)
        else:
            self._calls[key] -= 1
            self._tokens[key] -= tokens

    def waits_s(
        self, key: tuple[str, str], tokens: int, now: float, *, calls: int | None, most_tokens: int | None
    ) -> float:
        """Seconds until a call fits beside the others; infinite: until another call ends. A call alone always fits.

        `calls`, `most_tokens`: that may be in flight; None: any number.
        """
        if self._lingering:
            self._free(now)
        elif most_tokens is None:
            return 0.0 if calls is None or self._calls[key] < calls else math.inf
        taken, held = self._calls[key], self._tokens[key]

        def fits() -> bool:
            has_slot = calls is None or taken < calls
            return has_slot and (most_tokens is None or not taken or held + tokens <= most_tokens)

        if fits():
            return 0.0
        for at, _, freed in sorted(one for one in self._lingering if one[1] == key):
            taken, held = taken - 1, held - freed
            if fits():
                return at - now
        return math.inf

    def _free(self, now: float) -> None:
        while self._lingering and self._lingering[0][0] <= now + _DUST_S:
            _, key, tokens = heapq.heappop(self._lingering)
            self._calls[key] -= 1
            self._tokens[key] -= tokens

    def taken(self, key: tuple[str, str]) -> int:
        """Slots that are not free."""
        return self._calls[key]


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
