"""How an answer goes out, step by step, with its fault in the right place. Pure: served on a socket by
sim/server.py, and by virtual time.

The places of a stream are counted in events of the dialect: `message_start` is 0, or the role-only chunk.

`course_of` is the same in virtual time: when the head comes, when and how the answer ends.
"""

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import brotli  # type: ignore[import-untyped]
import zstandard

from hivemind_addon.formats.profile.model import Profile
from hivemind_addon.formats.wire.answer import LAST
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.error import ErrorFacts
from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.formats.wire.watchdog import LEAST_BEGUN_S
from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.plugins.captures.foreign import StoppedClock
from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim import faults
from hivemind_addon.sim.call import SimAnswer
from hivemind_addon.sim.dialect import Headers, SimDialect, StreamEvent
from hivemind_addon.sim.dialect.messages import PING
from hivemind_addon.sim.faults import Encoding, Fault, Hangup, KeepAlive
from hivemind_addon.sim.shapes import WAITS

_COMMENT = b": still here\n\n"
GAP_S = 0.01
"""Around an interruption, so that what comes before it arrives alone; an RST may overtake it otherwise."""
_LEFT_OPEN_S = 86_400
_STOP_FIRST = (SimDialect.MESSAGES, SimDialect.VERTEX_MESSAGES, SimDialect.CHAT)
"""The last event of their streams tells nothing but that the stream is over."""


class StreamReset(Enum):
    """Why an HTTP/2 stream is reset: the codes of RFC 9113."""

    INTERNAL_ERROR = 2
    REFUSED_STREAM = 7


@dataclass(frozen=True, slots=True)
class PauseStep:
    """Nothing happens for a while; what was written before is to be sent first."""

    pause_s: float


@dataclass(frozen=True, slots=True)
class Head:
    """The response's head."""

    status: int
    headers: Headers
    length: int | None = None
    """Of the body, in bytes; None: not said, so chunked on HTTP/1.1."""


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of the body."""

    data: bytes
    output_tokens: int = 0
    """What the piece delivers."""


@dataclass(frozen=True, slots=True)
class End:
    """The clean end of the message."""


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection ends, with everything that is on it. Always the last step."""

    how: Hangup


@dataclass(frozen=True, slots=True)
class DropStream:
    """RST_STREAM. HTTP/2 only; always the last step."""

    code: StreamReset


@dataclass(frozen=True, slots=True)
class Leave:
    """GOAWAY(NO_ERROR): what runs goes on, then the connection closes (HTTP/1.1: after this message)."""


@dataclass(frozen=True, slots=True)
class LeaveInError:
    """GOAWAY(INTERNAL_ERROR) and the end of the connection. HTTP/2 only; always the last step."""


Step = PauseStep | Head | Data | End | Drop | DropStream | Leave | LeaveInError


def steps(answer: SimAnswer, *, http2: bool) -> Iterator[Step]:
    """What happens, in order. Ends with End or with one of the drops."""
    fault = answer.fault
    if isinstance(fault, faults.OddEnd):
        yield from _oddly_ended(answer, fault.how, http2=http2)
        return
    if answer.latency_s > 0:
        yield PauseStep(answer.latency_s)
    match fault:
        case faults.NoHead(how):
            yield Drop(how)
            return
        case faults.RefusedStream():
            yield DropStream(StreamReset.REFUSED_STREAM) if http2 else Drop(Hangup.CLOSE)
            return
        case faults.Stall(stall_s) if not answer.streamed:
            yield PauseStep(stall_s)
        case faults.Hold(hold_s, keep_alive) if not answer.streamed or keep_alive is KeepAlive.NOTHING:
            yield PauseStep(hold_s)
        case _:
            pass
    if answer.streamed and answer.reply is not None:
        yield from _streamed(answer, wire.stream_events(answer.reply), http2=http2)
    else:
        yield from _whole(answer, http2=http2)


def _whole(answer: SimAnswer, *, http2: bool) -> Iterator[Step]:
    body, headers = answer.body(), answer.headers
    tokens = answer.reply.output_tokens if answer.reply else 0
    length: int | None = len(body)
    half = len(body) // 2
    match answer.fault:
        case faults.Encoded(encoding):
            (body,) = _encoded([body], encoding)
            headers = (*headers, ("content-encoding", encoding.value))
            length = len(body)
        case faults.BodyCut(chunked=True):
            length = None
        case _:
            pass
    if isinstance(answer.fault, faults.Queue):
        yield Head(answer.status, headers)
        yield from _queued(answer.fault, streamed=False)
    else:
        yield Head(answer.status, headers, length)
    match answer.fault:
        case faults.HeadThenReset():
            yield from (PauseStep(GAP_S), Drop(Hangup.RESET))
        case faults.BodyCut() | faults.StreamCut() | faults.ResetStream() | faults.GoAway(error=True):
            yield Data(body[:half], tokens)
            yield from _interruption(answer.fault, http2=http2)
        case faults.GoAway():
            yield from (Data(body[:half]), Leave(), PauseStep(GAP_S), Data(body[half:], tokens), End())
        case _:
            yield from (Data(body, tokens), End())


def _streamed(answer: SimAnswer, events: list[StreamEvent], *, http2: bool) -> Iterator[Step]:
    fault, headers = answer.fault, answer.headers
    content = [index for index, event in enumerate(events) if event.output_tokens]
    if isinstance(fault, faults.Encoded):
        headers = (*headers, ("content-encoding", fault.encoding.value))
        pieces = _encoded((event.data for event in events), fault.encoding)
        events = [StreamEvent(data, event.output_tokens) for data, event in zip(pieces, events, strict=True)]
    yield Head(answer.status, headers)
    if isinstance(fault, faults.HeadThenReset):
        yield from (PauseStep(GAP_S), Drop(Hangup.RESET))
        return
    place = _place(fault, middle=content[len(content) // 2], end=len(events))
    for index, event in enumerate(events):
        if index == place and (yield from _at_place(answer, index, http2=http2)):
            return
        if event.output_tokens and index > content[0] and answer.interval_s > 0:
            yield PauseStep(answer.interval_s)
        yield Data(event.data, event.output_tokens)
    if place == len(events) and (yield from _at_place(answer, len(events), http2=http2)):
        return
    yield End()


def _oddly_ended(answer: SimAnswer, how: str, *, http2: bool) -> Iterator[Step]:
    """The steps of a good answer, with another head or end."""
    *plan, end = steps(replace(answer, fault=faults.OK), http2=http2)
    is_short = how in ("half-terminal", "no-terminal") and answer.streamed and answer.dialect in _STOP_FIRST
    if is_short and isinstance(last := plan.pop(), Data):
        plan.append(Data(last.data[: len(last.data) // 2 if how == "half-terminal" else 0]))
    other = ("content-type", "application/json" if answer.streamed else "text/event-stream")
    headers = (other, *answer.headers[1:]) if how == "other-label" else answer.headers
    size = sum(len(step.data) for step in plan if isinstance(step, Data))
    head = Head(answer.status, headers, size + 1 if how == "length-too-large" else None)
    yield from (head if isinstance(step, Head) else step for step in plan)
    if how == "left-open":
        yield PauseStep(_LEFT_OPEN_S)
    is_closed = how in ("no-last-chunk", "half-terminal", "length-too-large")
    yield from _interruption(faults.ResetStream() if http2 else answer.fault, http2=http2) if is_closed else (end,)


def _place(fault: Fault, *, middle: int, end: int) -> int | None:
    """The event before which the fault happens; `end`: after the last one."""
    match fault:
        case (
            faults.StreamCut(after_events=place)
            | faults.StreamError(at_event=place)
            | faults.Stall(at_event=place)
            | faults.GoAway(after_events=place)
            | faults.ResetStream(after_events=place)
        ):
            return middle if place is None else min(place, end)
        case faults.Hold(keep_alive=KeepAlive.COMMENTS | KeepAlive.BLANK_LINES) | faults.Queue():
            return 0
        case faults.Hold(keep_alive=KeepAlive.PINGS):
            return 1
        case faults.BodyCut() | faults.WordedRefusal():
            return middle
        case _:
            return None


def _at_place(answer: SimAnswer, index: int, *, http2: bool) -> Generator[Step, None, bool]:
    """The fault itself, after so many events; returns whether the answer is over."""
    match answer.fault:
        case faults.Stall(stall_s):
            yield PauseStep(stall_s)
            return False
        case faults.Hold() as hold:
            yield from _held(hold)
            return False
        case faults.Queue() as queue:
            yield from _queued(queue, streamed=True)
            return False
        case faults.GoAway(error=False):
            yield from (Leave(), PauseStep(GAP_S))
            return False
        case faults.WordedRefusal():
            yield from (Data(answer.error_body), End())
            return True
        case faults.StreamError(status=status) if answer.reply is not None:
            dialect = answer.reply.dialect
            shape = wire.SHAPES[dialect]
            if shape.error_comes_alone and index:
                yield PauseStep(GAP_S)
            error = wire.error_object(dialect, status, message="Overloaded")
            yield Data((shape.error_event if index else shape.opening_error_event)(error).data)
            yield End()
            return True
        case fault:
            yield from _interruption(fault, http2=http2)
            return True


def _held(hold: faults.Hold) -> Iterator[Step]:
    """The time of a hold, with a sign of life now and then."""
    signs = {KeepAlive.COMMENTS: _COMMENT, KeepAlive.BLANK_LINES: b"\n", KeepAlive.PINGS: PING.data}
    yield from _kept_alive(signs[hold.keep_alive], hold.hold_s, hold.every_s)


def _queued(queue: faults.Queue, *, streamed: bool) -> Iterator[Step]:
    """The time in a provider's queue, likewise."""
    shape = WAITS[queue.name]
    data = (shape.streamed if streamed else shape.whole).encode()
    wait_s = shape.wait_s if queue.wait_s is None else queue.wait_s
    every_s = shape.every_s if queue.every_s is None else queue.every_s
    yield from _kept_alive(data, wait_s, every_s)


def _kept_alive(data: bytes, left_s: float, every_s: float) -> Iterator[Step]:
    while left_s > 0:
        yield Data(data)
        yield PauseStep(min(every_s, left_s))
        left_s -= every_s


def _interruption(fault: Fault, *, http2: bool) -> Iterator[Step]:
    """The end of an answer in its middle."""
    yield PauseStep(GAP_S)
    match fault:
        case faults.ResetStream():
            yield DropStream(StreamReset.INTERNAL_ERROR) if http2 else Drop(Hangup.RESET)
        case faults.GoAway():
            yield LeaveInError() if http2 else Drop(Hangup.CLOSE)
        case faults.BodyCut(how=how) | faults.StreamCut(how=how):
            yield Drop(how)
        case _:
            yield Drop(Hangup.CLOSE)


def _encoded(pieces: Iterable[bytes], encoding: Encoding) -> Iterator[bytes]:
    """Each piece in the content coding, flushed, so that it can be read when it arrives; the last ends it."""
    compress: Callable[[bytes], bytes]
    flush: Callable[[], bytes]
    finish: Callable[[], bytes]
    match encoding:
        case Encoding.GZIP:
            gzip = zlib.compressobj(wbits=31)
            compress, flush, finish = gzip.compress, lambda: gzip.flush(zlib.Z_SYNC_FLUSH), gzip.flush
        case Encoding.BROTLI:
            br = brotli.Compressor()
            compress, flush, finish = br.process, br.flush, br.finish
        case Encoding.ZSTD:
            zstd = zstandard.ZstdCompressor().compressobj()
            compress, finish = zstd.compress, zstd.flush
            flush = lambda: zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)  # noqa: E731 - one of three bindings
    waiting: bytes | None = None
    for piece in pieces:
        if waiting is not None:
            yield compress(waiting) + flush()
        waiting = piece
    if waiting is not None:
        yield compress(waiting) + finish()


@dataclass(frozen=True, slots=True)
class Course:
    """How one answer goes, in seconds from its call's arrival at the provider."""

    end_s: float
    head_s: float | None
    trouble: TransportTrouble | None = None
    error: ErrorFacts | None = None
    """Inside a stream."""
    share: float = 1.0
    """Of the output, that is generated."""
    silent_from_s: float = 0.0
    silent_s: float = 0.0
    """The longest silence."""
    late_s: float = 0.0
    """From the end of generation until the answer counts as over."""

    @property
    def shows_content(self) -> bool:
        """Whether some of it reaches a streaming client before it fails."""
        return self.share > 0


def course_of(answer: SimAnswer, profile: Profile) -> Course:
    """What the answer's fault, if it has one, makes of it. `profile`: of the provider."""
    head_s = answer.latency_s
    tokens = answer.reply.output_tokens if answer.reply else 1
    generation_s = (tokens - 1) * answer.interval_s if answer.streamed else 0.0
    whole = Course(head_s + generation_s, head_s, silent_s=head_s)
    match answer.fault:
        case faults.NoHead():
            return Course(head_s, None, TransportTrouble.CLOSED_BEFORE_HEAD, share=0.0, silent_s=head_s)
        case faults.RefusedStream():
            return Course(head_s, None, TransportTrouble.REFUSED_STREAM, share=0.0, silent_s=head_s)
        case faults.HeadThenReset():
            return Course(head_s + GAP_S, head_s, TransportTrouble.CUT, share=0.0, silent_s=head_s)
        case faults.BodyCut() | faults.StreamCut() | faults.ResetStream() | faults.GoAway(error=True):
            return Course(head_s + generation_s / 2 + GAP_S, head_s, TransportTrouble.CUT, share=0.5)
        case faults.StreamError(at_event=place) if answer.streamed:
            early = place is not None
            end_s = head_s + (0.0 if early else generation_s / 2)
            return Course(end_s, head_s, error=ErrorFacts(type="overloaded_error"), share=0.0 if early else 0.5)
        case faults.Queue(name, wait_s):
            queue_s = WAITS[name].wait_s if wait_s is None else wait_s
            return Course(whole.end_s + queue_s, head_s, silent_s=head_s)
        case faults.WordedRefusal() if answer.reply is not None:
            return Course(head_s + generation_s / 2, head_s, error=ErrorFacts(type="overloaded_error"), share=0.5)
        case faults.Stall(stall_s):
            from_s = head_s + generation_s / 2
            return Course(whole.end_s + stall_s, head_s, silent_from_s=from_s, silent_s=stall_s)
        case faults.OddEnd():
            trouble, late_s = _as_read(answer, profile)
            return replace(whole, trouble=trouble, late_s=late_s)
        case _:
            return whole


def _as_read(answer: SimAnswer, profile: Profile) -> tuple[TransportTrouble | None, float]:
    """What the proxy's reader makes of the bytes, and how late. The end does not depend on the number of words."""
    assert answer.reply is not None
    short = replace(answer, reply=replace(answer.reply, output_tokens=1), latency_s=0, interval_s=0)
    head, *rest = steps(short, http2=False)
    assert isinstance(head, Head)
    body = b"".join(step.data for step in rest if isinstance(step, Data))
    reader = AnswerInProgress(profile, dialect_of(profile.format), StoppedClock(0), is_stream_asked=answer.streamed)
    reader.head(head.status, dict(head.headers))
    is_stream, is_left_open = reader.read(body), PauseStep(_LEFT_OPEN_S) in rest
    # With the last event of a stream, its client has everything and its slot is free.
    late_s = reader.ends_at if is_left_open and reader.phase not in LAST else 0.0
    if (is_left_open or rest[-1] != End()) and not reader.is_complete(body):
        return (TransportTrouble.STALLED, LEAST_BEGUN_S) if is_left_open else (TransportTrouble.CUT, 0.0)
    reader.finish()
    outcome = reader.judge_stream() if is_stream else reader.judge_body(head.status, body, len)[0]
    return None if outcome.kind is OutcomeKind.SUCCESS else TransportTrouble.CUT, late_s
