"""States in which a pool sends nothing: breaker (the provider is down), account block (it refuses the account).

The breaker sends one probe at a time:

    CLOSED    ── TRIPPED: the failures speak for an outage ──────────────────────────► OPEN
    OPEN      ── PROBED: the probe was due, and an attempt was admitted ─────────────► HALF_OPEN
    HALF_OPEN ── ALIVE: the probe, or another late attempt, shows a sign of life ────► CLOSED
    HALF_OPEN ── DEAD: the probe failed hard; the next one after twice the time ─────► OPEN
    HALF_OPEN ── UNKNOWN: the probe was cancelled; the next one at once ─────────────► OPEN
    OPEN      ── ALIVE: an attempt that was in flight is answered ───────────────────► CLOSED

**Down or lossy.** A provider that loses every second call at random is not down as long as the others are answered:
then it is best to go on. So a sequential probability ratio test (Wald) weighs the failures: each hard failure speaks
for an outage by log(0.99 / usual share of failures), each attempt still alive long after others sent with it have
failed speaks against, and any answer ends the row. The usual share is learned. A session counts for at most half of the
needed evidence, because its failures may be its own; failures that did not reach the provider always count in full.

**HALF_OPEN always ends.** A probe that neither fails nor is answered for longer than failures take is a sign of life
too: the provider works on the request. So time alone ends HALF_OPEN, whatever happens to the probe.

A hard failure is OVERLOADED or FAILED. SUCCESS, THROTTLED and IGNORED prove the provider alive; CANCELLED proves
nothing.

**The account block.** The provider refuses the account for hours or days.

    OPEN     ── hit: a refusal that ends with a window, not with a pause ──► STANDING
    STANDING ── the end has come, or five minutes have passed ──► PROBING: a request goes first
    PROBING  ── that request is answered, or a person lifts the block ──► OPEN
    PROBING  ── that request is refused again ──► STANDING
    PROBING  ── that request ends in any other way ──► PROBING: the next request goes first

A ticket is held if its client will still wait at the block's end. All other clients get the end at once: they can stop
or sleep, but a client held for hours only times out. If the provider states no end, no ticket is held. The stated end
may be wrong, or the reason may go earlier (somebody buys credit or restores a seat): so a request tests the block every
five minutes. Requests in flight at the hit prove nothing.
"""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from hivemind_addon.kernel.retry import ActiveBlock
from hivemind_addon.kernel.values.snapshot import AccountBlockView, BreakerState
from hivemind_addon.kernel.values.ticket import OutcomeKind

_NEVER = float("inf")
_JITTER = 0.25
_DOWN_SHARE = 0.99
"""Share of calls that fail while a provider is down."""
_USUAL_SHARE = (0.15, 0.75)
"""Bounds of the share of calls that fail while a provider is up; its start and lower bound depend on the settings."""
_UNREACHED_SHARE = 0.1
"""Usual share of calls that do not reach the provider."""
_EVIDENCE = math.log(1000)
"""Log-odds for an outage at which the breaker opens."""
_SHARE_OVER = 50.0
"""Attempts over which the usual share is averaged."""
_LEAST_SILENCE_S = 0.25
_SILENCE_FACTOR = 1.5
"""An attempt that is silent for this many times the duration of failures, plus a moment, is alive."""
_LEAST_PROBE_S = 1.0


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    """When the breaker opens and how often it probes."""

    failures_to_open: int = 6
    """Hard failures in a row that show an outage where nothing else is known; fewer where failures are rare, more
    where they are usual."""
    first_probe_s: float = 1.0
    """From opening to the first probe; doubles with each probe that fails, ±25 %."""
    max_probe_s: float = 15.0


class Signal(Enum):
    """Causes of state changes."""

    TRIPPED = "tripped"
    PROBED = "probed"
    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"


TRANSITIONS: Mapping[tuple[BreakerState, Signal], BreakerState] = MappingProxyType(
    {
        (BreakerState.CLOSED, Signal.TRIPPED): BreakerState.OPEN,
        (BreakerState.OPEN, Signal.PROBED): BreakerState.HALF_OPEN,
        (BreakerState.OPEN, Signal.ALIVE): BreakerState.CLOSED,
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


@dataclass(frozen=True, slots=True)
class _Failure:
    admitted_at: float
    session: str
    unreached: bool


class Breaker:
    """Breaker of a pool."""

    def __init__(self, settings: BreakerSettings, *, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self.state = BreakerState.CLOSED
        self.last_probe_session: str | None = None
        """Session of the last probe; the next probe is another session's where possible."""
        self._row: list[_Failure] = []
        """Hard failures since the provider's last sign of life."""
        self._row_since = _NEVER
        """When the row's first attempt was admitted."""
        self._failed_after_s = 0.0
        """Longest duration of a failure in the row."""
        self._lived_at = -_NEVER
        """Admission of the newest answered attempt: failures of older attempts show no outage."""
        self._least_share, self._share = _first_shares(settings)
        """Shares of calls that fail while the provider is up: lower bound and present value."""
        self._probe_at = _NEVER
        self._probe_sent_at = _NEVER
        self._interval_s = settings.first_probe_s

    def __repr__(self) -> str:
        return f"<Breaker {self.state.value}, {len(self._row)} failures, {self._share:.0%} are usual>"

    @property
    def row_since(self) -> float:
        """When the first attempt of the failures in a row was admitted; infinite if there is none."""
        return self._row_since

    @property
    def is_one_sessions(self) -> bool:
        """Whether several failures in a row are all of one session, so that session or provider may be the cause."""
        return len(self._row) > 1 and len({failure.session for failure in self._row}) == 1

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
        self._move(Signal.PROBED)

    def look_at_probe(self, now: float) -> bool:
        """Close if the probe has lived long enough. True if the state changed."""
        if self.state is not BreakerState.HALF_OPEN or now < self.passes_at:
            return False
        self._revive()
        return True

    def answered(self, *, admitted_at: float) -> bool:
        """Learn that an attempt's answer began. True if the state changed."""
        if admitted_at > self._lived_at:
            self._lived_at = admitted_at
        if admitted_at < self._row_since:
            # The provider took the attempt before the failures began.
            if self._share > self._least_share:
                self._learn_share(failed=0, attempts=1)
            return False
        if self.state is not BreakerState.CLOSED:
            self._revive()
            return True
        self._learn_share(failed=len(self._row), attempts=len(self._row) + 1)
        self._clear()
        return False

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
    ) -> bool:
        """Learn from an attempt's end. True if the state changed.

        `unreached`: the attempt never got to the provider. `pending`: admissions of the attempts in flight.
        """
        signal = _MEANING[kind]
        if signal is Signal.ALIVE:
            return self.answered(admitted_at=admitted_at)
        if probe and self.state is BreakerState.HALF_OPEN:
            return self._judge_probe(signal, now)
        if self.state is BreakerState.CLOSED and signal is Signal.DEAD:
            if admitted_at < self._lived_at:
                self._learn_share(failed=1, attempts=1)
                return False
            pending = tuple(pending)
            if kind is OutcomeKind.OVERLOADED and self._works(pending, now - admitted_at, now):
                return False
            self._row.append(_Failure(admitted_at, session, unreached))
            self._row_since = min(self._row_since, admitted_at)
            self._failed_after_s = max(self._failed_after_s, now - admitted_at)
            if self._is_down(pending, now):
                self._interval_s = self._settings.first_probe_s
                self._probe_at = self._next_probe_at(now)
                self._move(Signal.TRIPPED)
                return True
        return False

    def configure(self, settings: BreakerSettings, now: float) -> None:
        """Continue with other settings; the next probe is due no later than they allow.

        The usual share of failures is learned anew if `failures_to_open` has changed.
        """
        if settings.failures_to_open != self._settings.failures_to_open:
            self._least_share, self._share = _first_shares(settings)
        self._settings = settings
        self._interval_s = min(self._interval_s, settings.max_probe_s)
        self._probe_at = min(self._probe_at, self._next_probe_at(now))

    @property
    def _silence_s(self) -> float:
        """An attempt that is silent for longer is alive."""
        return _LEAST_SILENCE_S + _SILENCE_FACTOR * self._failed_after_s

    def _works(self, pending: Iterable[float], refused_after_s: float, now: float) -> bool:
        """Whether the provider works on other attempts: then a refusal for overload is no outage."""
        silence_s = _LEAST_SILENCE_S + _SILENCE_FACTOR * max(self._failed_after_s, refused_after_s)
        return any(now - admitted_at > silence_s for admitted_at in pending)

    def _is_down(self, pending: Iterable[float], now: float) -> bool:
        """Whether the failures show an outage."""
        living = undecided = 0
        for admitted_at in pending:
            if admitted_at >= self._row_since:
                if now - admitted_at > self._silence_s:
                    living += 1
                else:
                    undecided += 1
        by_session: dict[str, float] = {}
        unreached = 0.0
        for failure in self._row:
            if failure.unreached:
                unreached += math.log(_DOWN_SHARE / _UNREACHED_SHARE)
            else:
                worth = by_session.get(failure.session, 0.0) + math.log(_DOWN_SHARE / self._share)
                by_session[failure.session] = min(worth, _EVIDENCE / 2)
        against = living * math.log((1 - self._share) / (1 - _DOWN_SHARE))
        # Recent attempts may still be answered: most of their weight counts as alive until they fail.
        against += undecided * (1 - self._share) * math.log(_DOWN_SHARE / self._share)
        return unreached + sum(by_session.values()) - against >= _EVIDENCE - 1e-9

    def _judge_probe(self, signal: Signal, now: float) -> bool:
        if signal is Signal.DEAD:
            self._interval_s = min(self._interval_s * 2, self._settings.max_probe_s)
            self._probe_at = self._next_probe_at(now)
        else:
            self._probe_at = now
        self._move(signal)
        return True

    def _learn_share(self, *, failed: int, attempts: int) -> None:
        over = attempts if attempts > _SHARE_OVER else _SHARE_OVER
        share = self._share + (failed - attempts * self._share) / over
        if share < self._least_share:
            share = self._least_share
        self._share = share if share < _USUAL_SHARE[1] else _USUAL_SHARE[1]

    def _revive(self) -> None:
        self._clear()
        self._move(Signal.ALIVE)

    def _clear(self) -> None:
        self._row.clear()
        self._row_since = _NEVER
        self._failed_after_s = 0.0

    def _next_probe_at(self, now: float) -> float:
        return now + self._interval_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER)

    def _move(self, signal: Signal) -> None:
        self.state = TRANSITIONS[self.state, signal]


def _first_shares(settings: BreakerSettings) -> tuple[float, float]:
    """Least and first usual share of failures; from the first, `failures_to_open` in a row are enough evidence."""
    first = _DOWN_SHARE * math.exp(-_EVIDENCE / max(1, settings.failures_to_open))
    return min(first, _USUAL_SHARE[0]), min(first, _USUAL_SHARE[1])


_SHORTEST_S = 1.0
_LONGEST_S = 32 * 86_400.0
_SAME_S = 2.0
"""Ends that differ by less are equal: each answer rounds them anew."""
_LOOK_S = 300.0
"""Interval of the requests that test the block."""


class AccountBlock:
    """Account block of a pool."""

    def __init__(self) -> None:
        self.closure: ActiveBlock | None = None
        """The block, until a request sent after the end is answered; None: all may go. Changed by this class only."""
        self._looks_at = _NEVER
        """When the next request tests the block, at the latest at the end."""
        self._probe: str | None = None
        """The ticket that goes first."""

    def __repr__(self) -> str:
        return "<AccountBlock open>" if self.closure is None else f"<AccountBlock until {self.closure.until:.3f}>"

    def stands(self, now: float) -> ActiveBlock | None:
        """The block's reason and end; None if no block stands, as far as is known."""
        return self.closure if self.closure is not None and now < self.closure.until else None

    @property
    def passes_at(self) -> float:
        """When the block lets an attempt go: always, at the next test, or not before the test is answered."""
        if self.closure is None:
            return -_NEVER
        return self._looks_at if self._probe is None else _NEVER

    def ends_at(self, now: float) -> float:
        """When the block lets all attempts go, as stated; infinite: when the request that goes first is answered."""
        if self.closure is None:
            return -_NEVER
        return self.closure.until if self._probe is None or now < self.closure.until else _NEVER

    def hit(self, reason: str, account_block_s: float, now: float) -> bool:
        """Note that the provider refuses the account for so many seconds; 0: no end stated. True if this is news."""
        has_end = account_block_s != 0
        lasts_s = min(max(account_block_s, _SHORTEST_S), _LONGEST_S) if math.isfinite(account_block_s) else _SHORTEST_S
        until = now + (lasts_s if has_end else _LOOK_S)
        known = self.stands(now)
        if known is not None and (not has_end or (known.is_end_told and until <= known.until + _SAME_S)):
            self._looks_at = min(known.until, now + _LOOK_S)
            return False
        self.closure, self._probe = ActiveBlock(reason, until, is_end_told=has_end), None
        self._looks_at = min(until, now + _LOOK_S)
        return True

    def lift(self) -> bool:
        """End the block at a person's command. True if there was a block."""
        was_blocked = self.closure is not None
        self.closure = self._probe = None
        return was_blocked

    def sent(self, ticket_id: str) -> None:
        """Let an admitted attempt test the block, if there is a block."""
        if self.closure is not None:
            self._probe = ticket_id

    def answered(self, ticket_id: str) -> bool:
        """Note an answer that is no refusal. True if the answer ends the block."""
        if self.closure is None or self._probe != ticket_id:
            return False
        self.closure = self._probe = None
        return True

    def ended(self, ticket_id: str) -> None:
        """Note an attempt's end; if a test proved nothing, the next attempt tests."""
        if self._probe == ticket_id:
            self._probe = None

    def view(self, now: float) -> AccountBlockView | None:
        """The block for views; None if there is none."""
        if self.closure is None:
            return None
        return AccountBlockView(reason=self.closure.reason, ends_in_s=max(0.0, self.closure.until - now))
