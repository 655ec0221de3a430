"""Tickets and events → captured calls, and what became known between them.

An observer, and pure: all times are passed with the events. What it keeps is bounded by what is in flight.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from hivemind_addon.kernel.limits.learned import LearnedPool
from hivemind_addon.kernel.values.events import (
    HIDDEN_LIMIT,
    ConcurrencyChanged,
    Event,
    MeterLearned,
    PoolsMerged,
    TicketEnded,
)
from hivemind_addon.kernel.values.snapshot import MeterView, PoolView, RequestState, Snapshot
from hivemind_addon.kernel.values.ticket import Attempt, AttemptResult, OutcomeKind, PoolKey, Reading, Ticket
from hivemind_addon.plugins.captures.model import (
    MAX_CHUNKS,
    VERSION,
    CapturedAttempt,
    CapturedCall,
    CapturedChunk,
    ConcurrencyMove,
    LimitSeen,
)

CALL_KEY = "hivemind_call"
BESIDE_KEY = "hivemind_capture"
"""Of what a captured flow carries."""
_OK = 200
_BEGINNING = "as the capture began"
_PLAIN_ACCOUNTS = ("anonymous", "unread")
_MAX_NEWS = 1000
"""Between two calls; what comes above it is not kept."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Two pools proved to be one."""

    pool: PoolKey
    merged: PoolKey
    """The one that is no more."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What stands beside each call in a file: of which recording it is, and what became known since the one before.

    So a file that is cut anywhere still tells all that precedes.
    """

    version: int = VERSION
    began_wall: float = 0.0
    proxy_version: str = ""
    profiles: tuple[str, ...] = ()
    content: bool = True
    limits: tuple[LimitSeen, ...] = ()
    moves: tuple[ConcurrencyMove, ...] = ()
    merges: tuple[Merge, ...] = ()
    learned: tuple[LearnedPool, ...] = ()
    """What the scheduler knew as the recording began."""


@dataclass(frozen=True, slots=True)
class Served:
    """How a call is served."""

    profile: str
    """Name of the provider's."""
    dialect: str
    delivery: str
    """`stream` or `whole`."""
    max_tokens: int | None = None
    """The most output that the request allows; None: the request does not say."""


@dataclass(slots=True)
class _News:
    limits: list[LimitSeen] = field(default_factory=list)
    moves: list[ConcurrencyMove] = field(default_factory=list)
    merges: list[Merge] = field(default_factory=list)
    learned: list[LearnedPool] = field(default_factory=list)


class Tape:
    """Of one call. All instants are monotonic ones; `attempts` tells them since the capture's begin."""

    def __init__(self, arrived_at: float, began_at: float) -> None:
        """`began_at`: of the capture."""
        self._began_at = began_at
        self._free_at = arrived_at
        """When the call began to wait for its next attempt."""
        self._status: int | None = None
        self._head_at: float | None = None
        self._readings: tuple[Reading, ...] = ()
        self._chunks: list[tuple[float, int]] = []
        """Of the running attempt."""
        self._attempts: list[CapturedAttempt] = []

    def __repr__(self) -> str:
        return f"<Tape of {len(self._attempts)} attempts, {len(self._chunks)} chunks of the next>"

    @property
    def attempts(self) -> tuple[CapturedAttempt, ...]:
        """Those that have ended."""
        return tuple(self._attempts)

    @property
    def ended_s(self) -> float:
        """When the last of them did; before any: when the call arrived."""
        return self._free_at - self._began_at

    def head(self, status: int, now: float, readings: tuple[Reading, ...] = ()) -> None:
        """An answer's head came, and stated these limits."""
        self._status, self._head_at, self._readings = status, now, readings
        self._chunks.clear()

    def chunk(self, size: int, now: float) -> None:
        """A piece of its body came."""
        self._chunks.append((now, size))
        if len(self._chunks) > MAX_CHUNKS:
            self._chunks = [_merged(self._chunks[place : place + 2]) for place in range(0, len(self._chunks), 2)]

    def settled(self, attempt: Attempt, result: AttemptResult, now: float) -> None:
        """The running attempt ended."""
        sent_at, outcome = max(attempt.admitted_at, self._began_at), result.outcome
        if self._status is None and sent_at > attempt.admitted_at and outcome.kind is OutcomeKind.SUCCESS:
            self._status, self._head_at = outcome.status or _OK, sent_at  # the head came before the capture began
        self._attempts.append(
            CapturedAttempt(
                number=attempt.number,
                at_s=sent_at - self._began_at,
                waited_s=max(0.0, sent_at - self._free_at),
                kind=outcome.kind,
                reason=outcome.reason,
                ended_after_s=now - sent_at,
                status=self._status,
                head_after_s=None if self._head_at is None else self._head_at - sent_at,
                chunks=tuple(CapturedChunk(at - sent_at, size) for at, size in self._chunks),
                usage=result.usage,
                charged=result.charged,
                retry_after_s=outcome.retry_after_s,
                readings=self._readings,
            )
        )
        self._free_at = now
        self._status, self._head_at, self._readings = None, None, ()
        self._chunks.clear()


def _merged(chunks: list[tuple[float, int]]) -> tuple[float, int]:
    """One chunk that comes when the last of them came: no byte is there before its time."""
    return chunks[-1][0], sum(size for _, size in chunks)


class Recording:
    """One recording, from its begin on. Of a call that had begun before, the rest is in it."""

    def __init__(
        self,
        snapshot: Snapshot,
        learned: Sequence[LearnedPool],
        *,
        began_wall: float,
        proxy_version: str,
        profiles: tuple[str, ...],
        content: bool,
    ) -> None:
        """`snapshot`: of the begin, whose limits are the first that are seen."""
        self._began_at = snapshot.at
        self._began_wall = began_wall
        self._proxy_version = proxy_version
        self._profiles = profiles
        self._content = content
        self._tapes: dict[str, Tape] = {}
        """Ticket id → its tape, of calls that are not recorded yet."""
        self._ends: dict[str, TicketEnded] = {}
        """Of these, the ones that have ended."""
        self._news = _News()
        views = {pool.key: pool for pool in snapshot.pools}
        self._news.learned += (_unnamed_limits(one, views.get(one.key)) for one in learned)
        for pool in snapshot.pools:
            self._news.moves.append(ConcurrencyMove(0.0, unnamed(pool.key), pool.limit, _BEGINNING))
            hidden = (one.meter for one in pool.learned if one.meter is not None)
            self._news.limits += [_at_begin(pool, meter) for meter in (*pool.meters, *hidden)]

    def __repr__(self) -> str:
        return f"<Recording, {len(self._tapes)} calls not yet in it>"

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        news, at_s = self._news, event.at - self._began_at
        match event:
            case TicketEnded() if event.ticket_id in self._tapes:
                self._ends[event.ticket_id] = event
            case MeterLearned() if len(news.limits) < _MAX_NEWS:
                news.limits.append(
                    LimitSeen(
                        at_s,
                        unnamed(event.pool),
                        event.meter,
                        event.kind,
                        event.limit,
                        event.window_s,
                        event.dimension,
                    )
                )
            case ConcurrencyChanged() if len(news.moves) < _MAX_NEWS:
                news.moves.append(ConcurrencyMove(at_s, unnamed(event.pool), event.limit, event.reason))
            case PoolsMerged():
                news.merges.append(Merge(unnamed(event.pool), unnamed(event.merged)))
            case _:
                pass

    def begin(self, ticket: Ticket) -> Tape:
        """A call arrived: its attempts are taped from now on. `end` must follow."""
        tape = self._tapes[ticket.id] = Tape(max(ticket.arrived_at, self._began_at), self._began_at)
        return tape

    def end(self, ticket: Ticket, served: Served, *, request_bytes: int) -> CapturedCall | None:
        """The call as a whole. None: it was never the scheduler's, or is recorded already."""
        tape, ended = self._tapes.pop(ticket.id, None), self._ends.pop(ticket.id, None)
        if tape is None or ended is None:
            return None
        arrived_at = max(ticket.arrived_at, self._began_at)
        return CapturedCall(
            id=ticket.id,
            at_s=arrived_at - self._began_at,
            ended_s=max(ended.at - self._began_at, tape.ended_s),
            agent=ticket.agent,
            session=ticket.session,
            pool=unnamed(ended.pool),
            model=ticket.model,
            end=ended.end,
            reason=ended.reason,
            waited_s=ended.waited_s,
            attempts=tape.attempts,
            parent_session=ticket.parent_session,
            kind=ticket.kind,
            priority=ticket.priority,
            weight=ticket.weight,
            dialect=served.dialect,
            profile=served.profile,
            streamed=ticket.streamed,
            delivery=served.delivery,
            demand=ticket.demand,
            cached_tokens=ticket.cached_tokens,
            cold_tokens=ticket.cold_tokens,
            prefix=ticket.prefix,
            prefix_tokens=ticket.prefix_tokens,
            patience_s=ticket.deadline_at - arrived_at,
            request_hash=ticket.request_hash,
            request_bytes=request_bytes,
            max_tokens=served.max_tokens,
        )

    def circumstances(self) -> Circumstances:
        """What stands beside the next call: each piece of news once."""
        news, self._news = self._news, _News()
        return Circumstances(
            began_wall=self._began_wall,
            proxy_version=self._proxy_version,
            profiles=self._profiles,
            content=self._content,
            limits=tuple(news.limits),
            moves=tuple(news.moves),
            merges=tuple(news.merges),
            learned=tuple(news.learned),
        )


def _at_begin(pool: PoolView, meter: MeterView) -> LimitSeen:
    """A limit as the recording begins; the recording has the attempts in flight, which take their units again."""
    held = 0
    if meter.dimension is not None:
        flying = (one.ticket.demand for one in pool.tickets if one.state is RequestState.IN_FLIGHT)
        held = sum(getattr(demand, meter.dimension.value) for demand in flying)
    return LimitSeen(
        0.0,
        unnamed(pool.key),
        meter.name,
        meter.kind,
        meter.limit,
        meter.window_s,
        meter.dimension,
        left=min(meter.limit, meter.level + held),
        full_in_s=meter.full_in_s,
    )


def _unnamed_limits(learned: LearnedPool, pool: PoolView | None) -> LearnedPool:
    """What is known of a pool, with the units that its hidden limit holds."""
    account = unnamed(learned.key).account
    for view in pool.learned if pool is not None else ():
        if pool is not None and view.meter is not None and view.meter.name == HIDDEN_LIMIT:
            seen = _at_begin(pool, view.meter)
            units = seen.limit - (seen.left or 0.0)
            return replace(learned, account=account, throttled_units=units, throttled_for_s=view.meter.full_in_s)
    return replace(learned, account=account)


def unnamed(pool: PoolKey) -> PoolKey:
    """The pool without its organisation's name: the same for the same one, in every recording."""
    account = pool.account
    if account.startswith("key-") or account in _PLAIN_ACCOUNTS:
        return pool
    return PoolKey(pool.host, f"account-{hashlib.sha256(account.encode()).hexdigest()[:12]}", pool.model_group)


def metadata(call: CapturedCall, beside: Circumstances) -> dict[str, Any]:
    """What a captured flow carries."""
    return {CALL_KEY: msgspec.to_builtins(call), BESIDE_KEY: msgspec.to_builtins(beside)}
