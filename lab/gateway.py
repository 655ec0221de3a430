"""A simulated provider that is made of limiters, of what it tells of them, and of chance. Pure.

The limiters are asked first, in their order; what they let pass chance may strike.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from hivemind_addon.kernel.values.ticket import Demand, Outcome, OutcomeKind, Reading
from lab.limiters import Cap, Limiter, RateLimiter

SUCCESS = Outcome(OutcomeKind.SUCCESS, "200", status=200)
RATE_LIMITED = Outcome(OutcomeKind.THROTTLED, "429 rate_limit_error", status=429, retryable=True)
TOO_MANY_AT_ONCE = Outcome(OutcomeKind.OVERLOADED, "429 concurrency", status=429, retryable=True)
OVERLOADED = Outcome(OutcomeKind.OVERLOADED, "529 overloaded_error", status=529, retryable=True)
UNAVAILABLE = Outcome(OutcomeKind.OVERLOADED, "503 overloaded", status=503, retryable=True)
BAD_GATEWAY = Outcome(OutcomeKind.FAILED, "502", status=502, retryable=True)
RESET = Outcome(OutcomeKind.FAILED, "connection reset", retryable=True, ambiguous=True)


class RetryAfter(Enum):
    """What a refusal says of when to come back, of the seconds that it would really take."""

    EXACT = "exact"
    ROUNDED_UP = "whole seconds, rounded up"
    ROUNDED_DOWN = "whole seconds, cut"
    MISSING = "missing"
    SHORT = "0.3 times as long"
    LONG = "10 times as long"
    ALWAYS_60 = "always 60"

    def of(self, wait_s: float) -> float | None:
        """The word of a refusal that waiting would cure in `wait_s`; infinite: nobody knows."""
        if self is RetryAfter.ALWAYS_60:
            return 60.0
        if math.isinf(wait_s):
            return None
        match self:
            case RetryAfter.EXACT:
                return wait_s
            case RetryAfter.ROUNDED_UP:
                return float(math.ceil(wait_s))
            case RetryAfter.ROUNDED_DOWN:
                return float(math.floor(wait_s))
            case RetryAfter.MISSING:
                return None
            case RetryAfter.SHORT:
                return 0.3 * wait_s
            case RetryAfter.LONG:
                return 10 * wait_s


@dataclass(frozen=True, slots=True)
class Rule:
    """A limiter, and how it refuses."""

    limiter: Limiter
    refusal: Outcome = RATE_LIMITED
    retry_after: RetryAfter = RetryAfter.EXACT


@dataclass(frozen=True, slots=True)
class Header:
    """What responses tell of a limiter, be it one that refuses or one that only counts."""

    limiter: RateLimiter
    window_s: float | None = None
    """The window that the profile states the limit for; None: the true one."""
    on_refusals: bool = True
    age_s: float = 0.0
    """How old what it tells is. Instants of a reset are told as instants, and stay true."""


@dataclass(frozen=True, slots=True)
class Chance:
    """A share of the attempts that no limit refuses ends badly all the same."""

    share: float
    outcome: Outcome
    late: bool = False
    """It strikes in the midst of the answer: limits have been taken from."""


@dataclass(frozen=True, slots=True)
class GatewayNeighbour:
    """Somebody else on the same key, whose calls pass as soon as they fit, and before all others: never refused."""

    calls_per_s: float
    service_s: float = 2.0


@dataclass(slots=True, eq=False)
class Gateway:
    """What the agents are before. New for each run."""

    rules: Sequence[Rule] = ()
    headers: Sequence[Header] = ()
    chances: Sequence[Chance] = ()
    neighbour: GatewayNeighbour | None = None
    changes: Sequence[tuple[float, RateLimiter | Cap, float]] = ()
    """At an instant, which limiter, to what limit."""
    _limiters: tuple[Limiter, ...] = field(init=False)
    _told: dict[str, list[tuple[float, Reading]]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        every: Iterable[Limiter] = (*(rule.limiter for rule in self.rules), *(one.limiter for one in self.headers))
        self._limiters = tuple(dict.fromkeys(every))

    @property
    def cap(self) -> Cap | None:
        """The limit on attempts at once, if there is any."""
        return next((rule.limiter for rule in self.rules if isinstance(rule.limiter, Cap)), None)

    def wait_s(self, now: float, demand: Demand) -> float:
        """Until an attempt passes every limiter, at the earliest."""
        return max((rule.limiter.wait_s(now, demand.of(rule.limiter.counts)) for rule in self.rules), default=0.0)

    def refusal(self, now: float, demand: Demand) -> Outcome | None:
        """What an attempt gets that does not pass, of the first limiter that it does not pass; None: it would."""
        for rule in self.rules:
            wait_s = rule.limiter.wait_s(now, demand.of(rule.limiter.counts))
            if wait_s > 0:
                return replace(rule.refusal, retry_after_s=rule.retry_after.of(wait_s))
        return None

    def refuse(self, now: float, demand: Demand) -> None:
        """An attempt was refused by a limiter."""
        for limiter in self._limiters:
            limiter.refuse(now, demand.of(limiter.counts))

    def take(self, now: float, demand: Demand) -> None:
        """An attempt passes."""
        for limiter in self._limiters:
            limiter.take(now, demand.of(limiter.counts))

    def end(self, now: float) -> None:
        """An attempt that passed has ended."""
        for limiter in self._limiters:
            limiter.end(now)

    def readings(self, now: float, *, refused: bool) -> tuple[Reading, ...]:
        """What the headers of a response say that is written now."""
        return tuple(
            self._reading(f"meter-{number}", header, now)
            for number, header in enumerate(self.headers)
            if header.on_refusals or not refused
        )

    def _reading(self, name: str, header: Header, now: float) -> Reading:
        standing = header.limiter.standing(now)
        fresh = Reading(
            meter=name,
            dimension=header.limiter.counts,
            window_s=header.window_s or header.limiter.length_s,
            limit=standing.limit,
            remaining=float(math.floor(standing.remaining)),
            reset_in_s=standing.reset_in_s,
        )
        if not header.age_s:
            return fresh
        told = self._told.setdefault(name, [])
        told.append((now, fresh))
        old_at, old = next((old for old in reversed(told) if old[0] <= now - header.age_s), told[0])
        return replace(old, reset_in_s=max(0.0, (old.reset_in_s or 0.0) - (now - old_at)))

    def strike(self, rng: random.Random) -> Chance | None:
        """What chance does to an attempt that no limiter refuses."""
        drawn = rng.random()
        for chance in self.chances:
            if drawn < chance.share:
                return chance
            drawn -= chance.share
        return None


Make = Callable[[random.Random], Gateway]
"""Makes a gateway anew for each run; the rng draws what no client can know, as the phase of a window."""


def refusing(
    limiter: Callable[[random.Random], Limiter],
    retry_after: RetryAfter = RetryAfter.EXACT,
    refusal: Outcome = RATE_LIMITED,
    chances: Sequence[Chance] = (),
    neighbour: GatewayNeighbour | None = None,
) -> Make:
    """One limiter that nothing tells of but its refusals."""
    return lambda rng: Gateway([Rule(limiter(rng), refusal, retry_after)], chances=chances, neighbour=neighbour)


def telling(
    limiter: Callable[[random.Random], RateLimiter],
    *,
    says: Callable[[random.Random], RateLimiter] | None = None,
    window_s: float | None = None,
    on_refusals: bool = True,
    age_s: float = 0.0,
    neighbour: GatewayNeighbour | None = None,
    chances: Sequence[Chance] = (),
) -> Make:
    """One limiter that headers tell of; or they tell of another one, which counts and refuses nothing."""

    def make(rng: random.Random) -> Gateway:
        phase = rng.random()
        rule = Rule(limiter(random.Random(phase)), retry_after=RetryAfter.ROUNDED_UP)
        told = rule.limiter if says is None else says(random.Random(phase))
        assert isinstance(told, RateLimiter)
        header = Header(told, window_s=window_s, on_refusals=on_refusals, age_s=age_s)
        return Gateway([rule], headers=[header], neighbour=neighbour, chances=chances)

    return make


def capped(
    slots: int,
    refusal: Outcome = OVERLOADED,
    *,
    linger_s: float = 0.0,
    chances: Sequence[Chance] = (),
    neighbour: GatewayNeighbour | None = None,
    moves: Sequence[tuple[float, int]] = (),
    retry_after: RetryAfter = RetryAfter.MISSING,
) -> Make:
    """So many at once, and from the instants of `moves` on so many others."""

    def make(_: random.Random) -> Gateway:
        cap = Cap(slots, linger_s=linger_s)
        changes = [(at, cap, float(limit)) for at, limit in moves]
        return Gateway([Rule(cap, refusal, retry_after)], chances=chances, neighbour=neighbour, changes=changes)

    return make


def several(*rules: Callable[[random.Random], Rule], told: int = 0) -> Make:
    """Several limits at once; headers tell of so many of them."""

    def make(rng: random.Random) -> Gateway:
        made = [rule(rng) for rule in rules]
        return Gateway(
            made, headers=[Header(rule.limiter) for rule in made[:told] if isinstance(rule.limiter, RateLimiter)]
        )

    return make


def moving(limiter: Callable[[random.Random], RateLimiter], at: float, limit: float, *, told: bool) -> Make:
    """One limiter that has another limit from an instant on."""

    def make(rng: random.Random) -> Gateway:
        made = limiter(rng)
        return Gateway([Rule(made)], headers=[Header(made)] if told else (), changes=[(at, made, limit)])

    return make


def by_chance(share: float, outcome: Outcome = OVERLOADED, retry_after_s: float | None = None) -> Chance:
    """A share of refusals that mean nothing."""
    return Chance(share, replace(outcome, retry_after_s=retry_after_s))


def striking(*chances: Chance) -> Make:
    """No limit at all but chance."""
    return lambda _: Gateway(chances=chances)
