"""The simulated provider that answers as recorded: each attempt of a captured call gets the recorded answer.

    POST … with `x-sim-call: <id of a captured call>`      the first attempt gets the first recorded answer, and so on

Status, error, retry-after and the times of head and chunks are those of the capture; the words are not. Attempts beyond
the recorded attempts get the last answer again; if that was a failure that waiting may cure, they get a success.
Headers state the recorded limits, counted anew.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from hivemind_addon.kernel.values.events import HIDDEN
from hivemind_addon.kernel.values.ticket import Dimension, OutcomeKind, PoolKey, Usage
from hivemind_addon.plugins.captures.model import Capture, CapturedAttempt, CapturedCall, CapturedChunk
from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim.dialect import PLAYED, Headers, LimitView, Reply, SimDialect
from hivemind_addon.sim.exchange import Incoming, Player
from hivemind_addon.sim.faults import Hangup
from hivemind_addon.sim.plan import Data, Drop, End, Head, PauseStep, Step
from hivemind_addon.sim.replay.reconstruct import recorded_limits
from hivemind_addon.sim.server import SimServer

if TYPE_CHECKING:
    from hivemind_addon.sim.limits import SimAllowance

CALL_HEADER = "x-sim-call"
_UNKNOWN = CapturedAttempt(
    number=1,
    at_s=0.0,
    waited_s=0.0,
    kind=OutcomeKind.SUCCESS,
    reason="200",
    status=200,
    head_after_s=1.0,
    ended_after_s=3.0,
    chunks=(CapturedChunk(1.0, 1), CapturedChunk(2.0, 1), CapturedChunk(3.0, 1)),
    usage=Usage(input_tokens=1000, output_tokens=50, reported=True),
)
"""What an attempt gets of which nobody knows what it would have got: a usual answer."""
_REFUSED = CapturedAttempt(
    number=1,
    at_s=0.0,
    waited_s=0.0,
    kind=OutcomeKind.THROTTLED,
    reason="429 rate_limit_error",
    status=429,
    head_after_s=0.0,
    ended_after_s=0.0,
)
"""What a known limit says of which no refusal was recorded."""
_CURABLE = (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED, OutcomeKind.FAILED)


def dialect_of(call: CapturedCall) -> SimDialect:
    """Of the simulator, in which a call is played again; the usual one for those that are not."""
    return PLAYED.get(call.dialect, SimDialect.MESSAGES)


class RecordedServer(SimServer):
    """Answers the calls of one capture, `pace` times as fast."""

    def __init__(self, capture: Capture, *, pace: float = 1.0) -> None:
        super().__init__()
        self.attempts = 0
        """Of captured calls, until now."""
        self._pace = pace
        self._calls = {call.id: call for call in capture.calls}
        self._met: Counter[str] = Counter()
        """Attempts by call."""
        self._allowances: dict[PoolKey, list[SimAllowance]] = {}
        self._doors = {pool: _Door(pool, capture, pace) for pool in {call.pool for call in capture.calls}}

    def __repr__(self) -> str:
        return f"<RecordedServer {self.url} {len(self._calls)} calls, {self.attempts} attempts>"

    async def answer(self, incoming: Incoming, player: Player) -> None:
        """See Service."""
        call = self._calls.get(incoming.headers.get(CALL_HEADER, ""))
        if call is None:
            await super().answer(incoming, player)
            return
        self.attempts += 1
        number, door = self._met[call.id], self._doors[call.pool]
        if not door.lets_in(call, asyncio.get_running_loop().time()):
            for step in steps(
                call, door.refusal, number=number + 1, pace=self._pace, told=self._told(call, door.refusal)
            ):
                await player.play(step)
            return
        self._met[call.id] += 1
        attempt = recorded_attempt(door.admitted(call), number)
        headers = self._told(call, attempt)
        try:
            for step in steps(call, attempt, number=number + 1, pace=self._pace, told=headers):
                await player.play(step)
        finally:
            door.inside -= 1

    def _told(self, call: CapturedCall, attempt: CapturedAttempt) -> Headers:
        """The limits' headers, after this attempt was counted."""
        now = asyncio.get_running_loop().time()
        allowances = self._allowances.get(call.pool)
        if allowances is None:
            allowances = [limit.allowance(now) for limit in self._doors[call.pool].told]
            self._allowances[call.pool] = allowances
        if attempt.kind is OutcomeKind.SUCCESS:
            usage = attempt.usage or Usage()
            for allowance in allowances:
                allowance.take(_taken(usage, allowance.limit.dimension), now)
        views = [
            LimitView(
                allowance.limit.dimension,
                allowance.limit.amount,
                max(0.0, allowance.level(now)),
                max(0.0, allowance.full_in_s(now)),
            )
            for allowance in allowances
        ]
        # The headers hold instants that the proxy compares with its own clock.
        return wire.SHAPES[dialect_of(call)].limit_headers(views, time.time())  # noqa: TID251 - see above


class _Door:
    """Limits of a pool that no header states, which were known as the capture began: they refuse anew."""

    def __init__(self, pool: PoolKey, capture: Capture, pace: float) -> None:
        limits, cap = recorded_limits(capture, pool)
        paced = [
            replace(limit, amount=round(limit.amount * pace), left=None if limit.left is None else limit.left * pace)
            for limit in limits  # in the same window: the profile says how long that is
        ]
        self.told = [limit for limit in paced if limit.told]
        """Those in headers."""
        at_begin = {one.meter for one in capture.limits if one.pool == pool and one.left is not None}
        self._hidden = [limit for limit in paced if not limit.told and at_begin.intersection(HIDDEN)]
        self._cap = cap
        self._allowances: list[SimAllowance] | None = None
        self.inside = 0
        """Attempts that were let in and have not ended."""
        refusals = (one for call in capture.calls if call.pool == pool for one in call.attempts if _is_refusal(one))
        self.refusal = next(refusals, _REFUSED)

    def __repr__(self) -> str:
        return f"<_Door {self.inside} inside, {self._hidden}>"

    def lets_in(self, call: CapturedCall, now: float) -> bool:
        """Whether a call's attempt fits; it is counted then."""
        if self._allowances is None:
            self._allowances = [limit.allowance(now) for limit in self._hidden]
        units = [(one, getattr(call.demand, one.limit.dimension.value)) for one in self._allowances]
        if (self._cap and self.inside >= self._cap) or not all(one.fits(amount, now) for one, amount in units):
            return False
        for one, amount in units:
            one.take(amount, now)
        self.inside += 1
        return True

    def admitted(self, call: CapturedCall) -> CapturedCall:
        """The call without the refusals that these limits replace."""
        if not self._hidden and not self._cap:
            return call
        return replace(call, attempts=tuple(one for one in call.attempts if not _is_refusal(one)))


def _is_refusal(attempt: CapturedAttempt) -> bool:
    return attempt.status is not None and attempt.kind in (OutcomeKind.THROTTLED, OutcomeKind.OVERLOADED)


def recorded_attempt(call: CapturedCall, number: int) -> CapturedAttempt:
    """What an attempt of a call meets; `number` counts from 0."""
    if number < len(call.attempts):
        return call.attempts[number]
    last = call.attempts[-1] if call.attempts else None
    return _UNKNOWN if last is None or last.kind in _CURABLE else last


def steps(
    call: CapturedCall, attempt: CapturedAttempt, *, number: int, pace: float = 1.0, told: Headers = ()
) -> Iterator[Step]:
    """The steps of an attempt on the wire, in order. The head includes the given headers of limits."""
    clock = _Elapsed(pace)
    dialect = dialect_of(call)
    if attempt.head_after_s is None or attempt.status is None:
        yield from clock.until(attempt.ended_after_s)
        yield Drop(Hangup.CLOSE)
        return
    yield from clock.until(attempt.head_after_s)
    if attempt.status != 200:
        error = _error(attempt)
        body = wire.SHAPES[dialect].error_body(
            wire.error_object(dialect, attempt.status, message=error, error=error), "req_r"
        )
        more: Headers = ()
        if attempt.retry_after_s is not None:
            more = wire.SHAPES[dialect].retry_after_headers(attempt.retry_after_s / pace)
        yield Head(attempt.status, (("content-type", "application/json"), *more, *told), len(body))
        yield from (Data(body), End())
        return
    reply = _reply(call, attempt, number)
    if not call.streamed:
        yield from _whole(reply, attempt, clock, told)
    else:
        yield from _streamed(reply, attempt, clock, told)


def _whole(reply: Reply, attempt: CapturedAttempt, clock: "_Elapsed", told: Headers) -> Iterator[Step]:
    body = wire.whole_body(reply)
    yield Head(200, (("content-type", "application/json"), *told), len(body))
    yield from clock.until(attempt.ended_after_s)
    if attempt.kind is OutcomeKind.FAILED:
        yield from (Data(body[: len(body) // 2]), Drop(Hangup.CLOSE))
    else:
        yield from (Data(body), End())


def _streamed(reply: Reply, attempt: CapturedAttempt, clock: "_Elapsed", told: Headers) -> Iterator[Step]:
    events = wire.stream_events(reply)
    fails = attempt.kind not in (OutcomeKind.SUCCESS, OutcomeKind.CANCELLED)
    if fails:
        # As far as it came: its chunks tell no more than how many bytes that was.
        events = events[: len(events) // 2 if len(attempt.chunks) > 1 else 0]
    yield Head(200, (("content-type", wire.SHAPES[reply.dialect].stream_type), *told))
    all_bytes = sum(chunk.size for chunk in attempt.chunks) or 1
    sent, size = 0, 0
    for chunk in attempt.chunks:
        yield from clock.until(chunk.after_s)
        size += chunk.size
        upto = len(events) * size // all_bytes
        if upto > sent:
            yield Data(b"".join(event.data for event in events[sent:upto]))
            sent = upto
    yield from clock.until(attempt.ended_after_s)
    if rest := b"".join(event.data for event in events[sent:]):
        yield Data(rest)
    if not fails:
        yield End()
    elif attempt.reason.startswith("stream"):
        status = 529 if attempt.kind is OutcomeKind.OVERLOADED else 500
        error = wire.error_object(reply.dialect, status, message=attempt.reason, error=_error(attempt))
        yield from (Data(wire.SHAPES[reply.dialect].error_event(error).data), End())
    else:
        yield Drop(Hangup.CLOSE)


class _Elapsed:
    """Turns instants since the attempt's begin into pauses."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self._at_s = 0.0

    def until(self, after_s: float) -> Iterator[Step]:
        """Let time pass, if that instant is not past."""
        if after_s > self._at_s:
            yield PauseStep((after_s - self._at_s) / self._pace)
            self._at_s = after_s


def _reply(call: CapturedCall, attempt: CapturedAttempt, number: int) -> Reply:
    usage = attempt.usage or Usage(input_tokens=call.demand.input_tokens or 1, output_tokens=1)
    output_tokens = max(1, usage.output_tokens)
    return Reply(
        dialect=dialect_of(call),
        request_id=f"req_{call.id}",
        attempt=number,
        digest=call.request_hash,
        model=call.model,
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cache_read_tokens,
        written_tokens=usage.cache_write_tokens,
        output_tokens=output_tokens,
        tokens_per_delta=max(1, output_tokens // max(1, len(attempt.chunks))),
        truncated=False,
        include_usage=True,
    )


def _error(attempt: CapturedAttempt) -> str:
    """The error's name, in the reason that was noted: `429 rate_limit_error`, `stream overloaded_error`."""
    words = attempt.reason.split()
    return words[1] if len(words) > 1 else attempt.reason


def _taken(usage: Usage, dimension: Dimension) -> int:
    match dimension:
        case Dimension.REQUESTS:
            return 1
        case Dimension.INPUT_TOKENS:
            return usage.input_tokens + usage.cache_write_tokens
        case Dimension.OUTPUT_TOKENS:
            return usage.output_tokens
        case Dimension.TOTAL_TOKENS:
            return usage.total_input_tokens + usage.output_tokens
