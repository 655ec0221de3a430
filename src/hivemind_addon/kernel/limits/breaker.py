"""The breaker of a pool: while the provider is down, one probe at a time is sent.

    CLOSED    ── enough failures in a row ───────────────────────────────────────────► OPEN
    OPEN      ── the probe was due, and an attempt was admitted ─────────────────────► HALF_OPEN
    HALF_OPEN ── the probe, or another late attempt, shows a sign of life ───────────► CLOSED
    HALF_OPEN ── the probe failed hard; the next probe after twice the time ─────────► OPEN
    HALF_OPEN ── the probe was cancelled; the next probe at once ────────────────────► OPEN
    OPEN      ── an attempt that was in flight is answered ──────────────────────────► CLOSED

**Down or lossy.** A provider that loses every second call at random is not down as long as the others are answered. So
the breaker opens after `failures_to_open` hard failures without an answer between them. Each attempt sent since the
first of them needs one failure more while it may still be answered, and `failures_to_open` more once it lives long
after the others have failed. A session counts for at most half of the failures, because its failures may be its own;
failures that did not reach the provider always count.

**HALF_OPEN always ends.** A probe that neither fails nor is answered for longer than failures take is a sign of life.

A hard failure is OVERLOADED or FAILED. SUCCESS, THROTTLED and IGNORED prove the provider alive; CANCELLED proves
nothing.
"""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hivemind_addon.kernel.values.snapshot import BreakerState
from hivemind_addon.kernel.values.ticket import OutcomeKind

_NEVER = float("inf")
_JITTER = 0.25
_LEAST_SILENCE_S = 0.25
_SILENCE_FACTOR = 1.5
"""An attempt that is silent for this many times the duration of failures, plus a moment, is alive."""
_LEAST_PROBE_S = 1.0


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When the breaker opens and how often it probes."""

    failures_to_open: int = 6
    """Hard failures in a row that show an outage; more while other attempts may still be answered."""
    first_probe_s: float = 1.0
    """From opening to the first probe; doubles with each probe that fails, ±25 %."""
    max_probe_s: float = 15.0


_ALIVE = (OutcomeKind.SUCCESS, OutcomeKind.THROTTLED, OutcomeKind.IGNORED)


class Breaker:
    """Breaker of a pool."""

    def __init__(self, settings: BreakerSettings, *, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self.state = BreakerState.CLOSED
        self.last_probe_session: str | None = None
        """Session of the last probe; the next probe is another session's where possible."""
        self._row: Counter[tuple[str, bool]] = Counter()
        """Hard failures since the last sign of life, by session, and by whether they reached the provider."""
        self.row_since = _NEVER
        """When the row's first attempt was admitted; infinite if there is none. Changed by this class only."""
        self._failed_after_s = 0.0
        """Longest duration of a failure in the row."""
        self._lived_at = -_NEVER
        """Admission of the newest answered attempt: failures of older attempts show no outage."""
        self._probe_at = _NEVER
        self._probe_sent_at = _NEVER
        self._interval_s = settings.first_probe_s

    @property
    def failures(self) -> int:
        """Hard failures in a row."""
        return self._row.total()

    @property
    def is_one_sessions(self) -> bool:
        """Whether several failures in a row are all of one session, so that session or provider may be the cause."""
        return self._row.total() > 1 and len({session for session, _ in self._row}) == 1

    @property
    def passes_at(self) -> float:
        """When the breaker lets an attempt go: always, when the probe is due, or when the probe has lived for long."""
        if self.state is BreakerState.CLOSED:
            return -_NEVER
        if self.state is BreakerState.OPEN:
            return self._probe_at
        return self._probe_sent_at + max(_LEAST_PROBE_S, 2 * self._silence_s)

    def probe_started(self, session: str, now: float) -> None:
        """Make the attempt that was admitted in OPEN the probe."""
        self.last_probe_session = session
        self._probe_sent_at = now
        self.state = BreakerState.HALF_OPEN

    def look_at_probe(self, now: float) -> bool:
        """Close if the probe has lived long enough. True if the state changed."""
        if self.state is not BreakerState.HALF_OPEN or now < self.passes_at:
            return False
        self._revive()
        return True

    def answered(self, *, admitted_at: float) -> bool:
        """Learn that an attempt's answer began. True if the state changed."""
        self._lived_at = max(self._lived_at, admitted_at)
        if admitted_at < self.row_since:
            return False  # the provider took the attempt before the failures began
        changed = self.state is not BreakerState.CLOSED
        self._revive()
        return changed

    def attempt_ended(
        self,
        kind: OutcomeKind,
        *,
        session: str,
        probe: bool,
        admitted_at: float,
        now: float,
        unreached: bool = False,
        pending: Iterable[float] = (),
        elsewhere: int = 0,
    ) -> bool:
        """Learn from an attempt's end. True if the state changed.

        `unreached`: the attempt never got to the provider. `pending`: admissions of the attempts in flight.
        `elsewhere`: failures in a row of other pools with the same limits, which count from the second failure here on.
        """
        if kind in _ALIVE:
            return self.answered(admitted_at=admitted_at)
        if probe and self.state is BreakerState.HALF_OPEN:
            self._judge_probe(kind, now)
            return True
        is_old = admitted_at < self._lived_at
        if self.state is not BreakerState.CLOSED or kind is OutcomeKind.CANCELLED or is_old:
            return False
        silent_since = now - _LEAST_SILENCE_S - _SILENCE_FACTOR * max(self._failed_after_s, now - admitted_at)
        pending = tuple(pending)
        if kind is OutcomeKind.OVERLOADED and any(sent_at < silent_since for sent_at in pending):
            return False  # the provider works on others
        self._row[session, not unreached] += 1
        self.row_since = min(self.row_since, admitted_at)
        self._failed_after_s = max(self._failed_after_s, now - admitted_at)
        sent_since = [sent_at for sent_at in pending if sent_at >= self.row_since]
        living = sum(sent_at < silent_since for sent_at in sent_since)
        needed = self._settings.failures_to_open * (1 + living) + len(sent_since) - living
        if not self._are_enough(max(2, needed - elsewhere)):
            return False
        self._interval_s = self._settings.first_probe_s
        self._probe_at = self._next_probe_at(now)
        self.state = BreakerState.OPEN
        return True

    def configure(self, settings: BreakerSettings, now: float) -> None:
        """Continue with other settings; the next probe is due no later than they allow."""
        self._settings = settings
        self._interval_s = min(self._interval_s, settings.max_probe_s)
        self._probe_at = min(self._probe_at, self._next_probe_at(now))

    def _are_enough(self, needed: int) -> bool:
        """Whether the failures in a row are that many, where a session counts for at most half, and never alone."""
        reached = [failures for (_, is_reached), failures in self._row.items() if is_reached]
        unreached = self._row.total() - sum(reached)
        counted = unreached + sum(min(failures, (needed + 1) // 2) for failures in reached)
        return counted >= needed and (unreached > 0 or len(reached) > 1)

    @property
    def _silence_s(self) -> float:
        """An attempt that is silent for longer is alive."""
        return _LEAST_SILENCE_S + _SILENCE_FACTOR * self._failed_after_s

    def _judge_probe(self, kind: OutcomeKind, now: float) -> None:
        if kind is OutcomeKind.CANCELLED:
            self._probe_at = now
        else:
            self._interval_s = min(self._interval_s * 2, self._settings.max_probe_s)
            self._probe_at = self._next_probe_at(now)
        self.state = BreakerState.OPEN

    def _revive(self) -> None:
        self._row.clear()
        self.row_since = _NEVER
        self._failed_after_s = 0.0
        self.state = BreakerState.CLOSED

    def _next_probe_at(self, now: float) -> float:
        return now + self._interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)
