"""Flows that the scheduler never saw → captured calls: read by the same parsers, timed by mitmproxy's own stamps.

What nobody recorded stays unknown: each flow is one call with one attempt, and its stream came in one piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hivemind_addon.formats.profile.load import is_call
from hivemind_addon.formats.wire.answer_in_progress import AnswerInProgress
from hivemind_addon.formats.wire.description import describe_request
from hivemind_addon.formats.wire.estimate import Estimator
from hivemind_addon.formats.wire.outcome import TransportTrouble, judge_transport
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from hivemind_addon.kernel.values.ticket import Hints, OutcomeKind, PoolKey
from hivemind_addon.plugins.captures.model import CapturedAttempt, CapturedCall, CapturedChunk, LimitSeen
from hivemind_addon.plugins.captures.recording import Circumstances, unnamed
from hivemind_addon.proxy.host.flow_parts import destination, peer_of, plain_headers, plain_request

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mitmproxy import http

    from hivemind_addon.formats.profile.load import Profiles
    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.formats.wire.description import Description
    from hivemind_addon.kernel.values.ticket import Outcome, Reading, Usage

_CLIENT_WENT = ("client disconnected", "killed")


class StoppedClock:
    """A clock that stands at the instant when an answer came."""

    def __init__(self, wall: float) -> None:
        self._wall = wall

    def monotonic(self) -> float:
        """0."""
        return 0.0

    def awake(self) -> float:
        """0."""
        return 0.0

    def wall(self) -> float:
        """That instant, in epoch seconds."""
        return self._wall


class ForeignCalls:
    """Reads the model calls of one file."""

    def __init__(self, profiles: Profiles) -> None:
        self._profiles = profiles
        self._estimator = Estimator(Tokenizer())
        self._limits: dict[tuple[PoolKey, str], float] = {}

    def __repr__(self) -> str:
        return f"<ForeignCalls, {len(self._limits)} limits seen>"

    def read(self, flows: Iterable[http.HTTPFlow]) -> Iterator[tuple[CapturedCall, Circumstances]]:
        """The calls among these flows, oldest first; others are passed over."""
        ordered = sorted(flows, key=lambda flow: flow.request.timestamp_start)
        began_wall = ordered[0].request.timestamp_start if ordered else 0.0
        for flow in ordered:
            path = flow.request.path
            profile = self._profiles.match_host(*destination(flow)) or self._profiles.for_path(path)
            if profile is not None and is_call(profile, flow.request.method, path):
                yield self._call(flow, profile, began_wall)

    def _call(self, flow: http.HTTPFlow, profile: Profile, began_wall: float) -> tuple[CapturedCall, Circumstances]:
        request, response = flow.request, flow.response
        user = str((flow.metadata.get("proxyauth") or ("",))[0])
        told = describe_request(profile, plain_request(flow), self._estimator, user=user, peer=peer_of(flow))
        facts, who, pool = told.facts, told.who, unnamed(told.pool)
        at_s = request.timestamp_start - began_wall
        attempt, hints = self._attempt(flow, profile, told, at_s)
        if attempt.usage is not None and attempt.usage.reported and attempt.kind is OutcomeKind.SUCCESS:
            self._estimator.learn(profile, facts, who.session, attempt.usage, told.size.estimate)
        ended_s = at_s + attempt.ended_after_s
        call = CapturedCall(
            id=flow.id,
            at_s=at_s,
            ended_s=ended_s,
            agent=who.agent,
            session=who.session,
            pool=pool,
            model=facts.model,
            end=_end(flow, attempt.kind),
            reason="" if attempt.kind is OutcomeKind.SUCCESS else attempt.reason,
            attempts=(attempt,),
            parent_session=who.parent_session,
            kind=told.kind,
            dialect=told.dialect.name,
            profile=profile.name,
            streamed=facts.stream,
            demand=told.size.estimate.demand,
            cached_tokens=told.size.estimate.expected.cache_read_tokens,
            cold_tokens=told.size.cold_tokens,
            prefix=told.size.prefix,
            prefix_tokens=told.size.prefix_tokens,
            patience_s=told.requester.known_patience_s or profile.patience.default_s,
            request_hash=told.prints.whole,
            request_bytes=len(request.raw_content or b""),
            max_tokens=facts.max_output_tokens,
        )
        seen_s = at_s + (attempt.head_after_s or attempt.ended_after_s)
        limits = tuple(self._news(pool, hints.readings, seen_s)) if response else ()
        has_words = bool(request.raw_content)
        return call, Circumstances(began_wall=began_wall, profiles=(profile.name,), content=has_words, limits=limits)

    def _attempt(
        self, flow: http.HTTPFlow, profile: Profile, told: Description, at_s: float
    ) -> tuple[CapturedAttempt, Hints]:
        began, response = flow.request.timestamp_start, flow.response
        if response is None:
            ended = flow.error.timestamp if flow.error else began
            outcome = judge_transport(TransportTrouble.CLOSED_BEFORE_HEAD)
            return _attempt(outcome, at_s, max(0.0, ended - began)), Hints()
        body = response.raw_content or b""
        expected = told.size.estimate.expected
        answer = AnswerInProgress(profile, told.dialect, StoppedClock(response.timestamp_start))
        answer.head(response.status_code, plain_headers(response.headers.fields))
        is_stream = answer.read(body)
        usage: Usage | None = None
        if is_stream:
            if flow.error is None:
                answer.finish()
            outcome = answer.judge_stream()
            usage = answer.usage(outcome, self._estimator.count, expected)
        elif flow.error is not None:
            outcome = judge_transport(TransportTrouble.CUT)
        else:
            outcome, usage = answer.judge_body(response.status_code, body, self._estimator.count, expected)
        head_after_s = max(0.0, response.timestamp_start - began)
        ended = flow.error.timestamp if flow.error else response.timestamp_end or response.timestamp_start
        ended_after_s = max(head_after_s, ended - began)
        return _attempt(
            outcome,
            at_s,
            ended_after_s,
            status=response.status_code,
            head_after_s=head_after_s,
            chunks=(CapturedChunk(ended_after_s, len(body)),) if body else (),
            usage=usage,
            readings=answer.hints.readings,
        ), answer.hints

    def _news(self, pool: PoolKey, readings: Iterable[Reading], at_s: float) -> Iterator[LimitSeen]:
        """Limits that are new, or have changed."""
        for reading in readings:
            key = (pool, reading.meter)
            if reading.limit is not None and self._limits.get(key) != reading.limit:
                self._limits[key] = reading.limit
                yield LimitSeen(
                    at_s, pool, reading.meter, "unknown", reading.limit, reading.window_s, reading.dimension
                )


def _attempt(
    outcome: Outcome,
    at_s: float,
    ended_after_s: float,
    *,
    status: int | None = None,
    head_after_s: float | None = None,
    chunks: tuple[CapturedChunk, ...] = (),
    usage: Usage | None = None,
    readings: tuple[Reading, ...] = (),
) -> CapturedAttempt:
    return CapturedAttempt(
        number=1,
        at_s=at_s,
        waited_s=0.0,
        kind=outcome.kind,
        reason=outcome.reason,
        ended_after_s=ended_after_s,
        status=status,
        head_after_s=head_after_s,
        chunks=chunks,
        usage=usage,
        retry_after_s=outcome.retry_after_s,
        readings=readings,
    )


def _end(flow: http.HTTPFlow, kind: OutcomeKind) -> str:
    """As the scheduler would call it."""
    if kind is OutcomeKind.SUCCESS:
        return "delivered"
    words = flow.error.msg.lower() if flow.error else ""
    return "cancelled" if any(word in words for word in _CLIENT_WENT) else "gave up"
