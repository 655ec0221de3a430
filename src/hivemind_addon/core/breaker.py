"""The breaker: holds everything while a provider is down, and sends one probe at a time.

    CLOSED    ── TRIPPED: too many hard failures, of two sessions at least ──► OPEN
    OPEN      ── PROBED: its instant has come, one attempt was admitted ──► HALF_OPEN
    HALF_OPEN ── ALIVE: the probe had any answer of a living provider ──► CLOSED
    HALF_OPEN ── DEAD: the probe failed hard; the next one after twice the time ──► OPEN
    HALF_OPEN ── UNKNOWN: the probe was cancelled; the next one at once ──► OPEN

A hard failure is OVERLOADED or FAILED. SUCCESS, THROTTLED and IGNORED prove the provider alive and end the row;
CANCELLED proves nothing. Too many are six in a row, or 70 % of the last twenty attempts; of these no session counts
for more than half, because one session's failures may be its own. An attempt that did not even reach the provider
(no network, name not found) is nobody's own: three of them in a row open it, whoever sent them. An attempt that was
admitted before the breaker last changed teaches nothing; while it is not CLOSED only the probe does.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from hivemind_addon.core.ticket import OutcomeKind

_JITTER = 0.25
_RECENT = 20
"""Attempts whose share of failures is looked at."""
_FAILED_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When the breaker opens and how often it probes."""

    failures_to_open: int = 6
    """Consecutive hard failures, of at least two sessions; half as many that did not reach the provider."""
    first_probe_s: float = 1.0
    """From opening to the first probe; doubles with each probe that fails, ±25 %."""
    max_probe_s: float = 15.0


class BreakerState(Enum):
    """Whether attempts may go."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    """Exactly one attempt, the probe, was admitted since it opened."""


class Signal(Enum):
    """What may change the state."""

    TRIPPED = "tripped"
    PROBED = "probed"
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


TRANSITIONS: Mapping[tuple[BreakerState, Signal], BreakerState] = MappingProxyType(
    {
        (BreakerState.CLOSED, Signal.TRIPPED): BreakerState.OPEN,
        (BreakerState.OPEN, Signal.PROBED): BreakerState.HALF_OPEN,
        (BreakerState.HALF_OPEN, Signal.ALIVE): BreakerState.CLOSED,
        (BreakerState.HALF_OPEN, Signal.DEAD): BreakerState.OPEN,
        (BreakerState.HALF_OPEN, Signal.UNKNOWN): BreakerState.OPEN,
    }
)

_MEANING: Mapping[OutcomeKind, Signal] = MappingProxyType(
    {
        OutcomeKind.SUCCESS: Signal.ALIVE,
        OutcomeKind.THROTTLED: Signal.ALIVE,
        OutcomeKind.IGNORED: Signal.ALIVE,
        OutcomeKind.OVERLOADED: Signal.DEAD,
        OutcomeKind.FAILED: Signal.DEAD,
        OutcomeKind.CANCELLED: Signal.UNKNOWN,
    }
)


class Breaker:
    """One pool's breaker."""

    def __init__(self, settings: BreakerSettings, *, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self.state = BreakerState.CLOSED
        self.last_probe_session: str | None = None
        """Whose ticket was the last probe; the next one is another's where possible."""
        self._changed_at = float("-inf")
        self._row: Counter[str] = Counter()
        """Hard failures since the provider last answered, by session."""
        self._unreached = 0
        """Of these, how many of the last ones did not reach the provider."""
        self._recent: deque[str | None] = deque(maxlen=_RECENT)
        """The last attempts: the session of one that failed hard, None for one that was answered."""
        self._probe_at = float("inf")
        self._interval_s = settings.first_probe_s

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value}, {self._row.total()} failures of {len(self._row)} sessions>"

    @property
    def passes_at(self) -> float:
        """From when on it lets an attempt go: always, at the probe's instant, or not before the probe ends."""
        match self.state:
            case BreakerState.CLOSED:
                return float("-inf")
            case BreakerState.OPEN:
                return self._probe_at
            case BreakerState.HALF_OPEN:
                return float("inf")

    def probe_started(self, session: str, now: float) -> None:
        """The attempt that was admitted while it was OPEN is the probe."""
        self.last_probe_session = session
        self._move(Signal.PROBED, now)

    def attempt_ended(
        self, kind: OutcomeKind, *, session: str, probe: bool, admitted_at: float, now: float, unreached: bool = False
    ) -> bool:
        """Learn from an attempt's end; `unreached`: it never got to the provider. True when the state changed."""
        signal = _MEANING[kind]
        if probe:
            self._judge_probe(signal, now)
            return True
        if self.state is BreakerState.CLOSED and admitted_at >= self._changed_at:
            return self._count(signal, session, now, unreached=unreached)
        return False

    def clock_jumped(self, delta_s: float) -> None:
        """So much time passed while everything slept."""
        self._probe_at -= delta_s
        self._changed_at -= delta_s

    def _count(self, signal: Signal, session: str, now: float, *, unreached: bool) -> bool:
        if signal is Signal.ALIVE:
            self._row.clear()
            self._unreached = 0
            self._recent.append(None)
        elif signal is Signal.DEAD:
            self._row[session] += 1
            self._unreached = self._unreached + 1 if unreached else 0
            self._recent.append(session)
            if self._is_too_much:
                self._interval_s = self._settings.first_probe_s
                self._probe_at = self._next_probe_at(now)
                self._move(Signal.TRIPPED, now)
                return True
        return False

    @property
    def _is_too_much(self) -> bool:
        most = self._settings.failures_to_open
        recent = Counter(session for session in self._recent if session is not None)
        return (
            self._unreached >= math.ceil(most / 2)
            or _weigh(self._row.values(), most) >= most
            or _weigh(recent.values(), _RECENT * _FAILED_SHARE) >= _RECENT * _FAILED_SHARE
        )

    def _judge_probe(self, signal: Signal, now: float) -> None:
        if signal is Signal.ALIVE:
            self._row.clear()
            self._recent.clear()
            self._unreached = 0
        elif signal is Signal.DEAD:
            self._interval_s = min(self._interval_s * 2, self._settings.max_probe_s)
            self._probe_at = self._next_probe_at(now)
        else:
            self._probe_at = now
        self._move(signal, now)

    def _next_probe_at(self, now: float) -> float:
        return now + self._interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)

    def _move(self, signal: Signal, now: float) -> None:
        self.state = TRANSITIONS[self.state, signal]
        self._changed_at = now


def _weigh(failures: Iterable[int], enough: float) -> int:
    """The sum of the sessions' failures, none of which counts for more than half of what is enough."""
    most = math.ceil(enough / 2)
    return sum(min(count, most) for count in failures)
