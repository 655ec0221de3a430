"""Flows that the scheduler never saw → captured calls: read by the same parsers, timed by mitmproxy's own stamps.

What nobody recorded stays unknown: each flow is one call with one attempt, and its stream came in one piece.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hivemind_addon.api.ticket import Hints, OutcomeKind, PoolKey
from hivemind_addon.proxy.capture.model import CapturedAttempt, CapturedCall, CapturedChunk, LimitSeen
from hivemind_addon.proxy.capture.recording import Circumstances, unnamed
from hivemind_addon.proxy.mitm.attempt import JUDGED_BODY_MAX_BYTES, plain_headers
from hivemind_addon.proxy.mitm.request import destination, patience_of, plain_body
from hivemind_addon.proxy.profile.load import dialect_for, is_model_call, model_group, model_of
from hivemind_addon.proxy.profile.model import InputCharge
from hivemind_addon.proxy.wire.answer import AnswerReader, Phase
from hivemind_addon.proxy.wire.decoding import DecodeError, decode
from hivemind_addon.proxy.wire.dialects.registry import dialect_of
from hivemind_addon.proxy.wire.estimate import Estimator
from hivemind_addon.proxy.wire.hints import read_hints
from hivemind_addon.proxy.wire.identity import call_kind, identify
from hivemind_addon.proxy.wire.outcome import TransportTrouble, judge_answer, judge_stream_error, judge_transport
from hivemind_addon.proxy.wire.request import fingerprints, read_request
from hivemind_addon.proxy.wire.tokenizer import Tokenizer
from hivemind_addon.proxy.wire.usage import usage_in_body
from hivemind_addon.system.hosts import normal_host

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mitmproxy import http

    from hivemind_addon.api.ticket import Outcome, Reading, Usage
    from hivemind_addon.proxy.profile.load import Profiles
    from hivemind_addon.proxy.profile.model import DialectName, Profile

_CLIENT_WENT = ("client disconnected", "killed")


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
            if profile is not None and is_model_call(profile, flow.request.method, path):
                yield self._call(flow, profile, dialect_for(profile, path), began_wall)

    def _call(
        self, flow: http.HTTPFlow, profile: Profile, dialect: DialectName, began_wall: float
    ) -> tuple[CapturedCall, Circumstances]:
        request, response = flow.request, flow.response
        facts = read_request(plain_body(request), dialect)
        if profile.model_paths:
            facts = replace(facts, model=model_of(profile, request.path, facts.model))
        headers = plain_headers(request.headers)
        user = str((flow.metadata.get("proxyauth") or ("",))[0])
        peer = f"{flow.client_conn.peername[0]}:{flow.client_conn.peername[1]}" if flow.client_conn.peername else ""
        who = identify(profile, headers, facts, user, peer)
        host, port = destination(flow)
        default_port = 443 if request.scheme == "https" else 80
        pool = unnamed(
            PoolKey(
                host=normal_host(host) if port == default_port else f"{normal_host(host)}:{port}",
                account=who.account,
                model_group=model_group(profile, facts.model),
            )
        )
        expected = self._estimator.expect(profile, facts, who.session)
        demand = self._estimator.estimate(profile, facts, who.session)
        prints = fingerprints(facts, who.agent)
        at_s = request.timestamp_start - began_wall
        attempt, hints = self._attempt(flow, profile, dialect, at_s)
        if attempt.usage is not None and attempt.usage.reported and attempt.kind is OutcomeKind.SUCCESS:
            self._estimator.learn(profile, facts, who.session, attempt.usage)
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
            kind=call_kind(profile, headers, facts, request.path, has_parent=bool(who.parent_session)),
            dialect=dialect.value,
            profile=profile.name,
            streamed=facts.stream,
            demand=demand,
            cached_tokens=expected.cache_read_tokens,
            cold_tokens=expected.cache_read_tokens if profile.charge.input is InputCharge.UNCACHED else 0,
            prefix=prints.prefix if prints.is_marked or not profile.cache_needs_marks else "",
            patience_s=patience_of(headers, profile),
            request_hash=prints.whole,
            request_bytes=len(request.raw_content or b""),
        )
        seen_s = at_s + (attempt.head_after_s or attempt.ended_after_s)
        limits = tuple(self._news(pool, hints.readings, seen_s)) if response else ()
        has_words = bool(request.raw_content)
        return call, Circumstances(began_wall=began_wall, profiles=(profile.name,), content=has_words, limits=limits)

    def _attempt(
        self, flow: http.HTTPFlow, profile: Profile, dialect: DialectName, at_s: float
    ) -> tuple[CapturedAttempt, Hints]:
        began, response = flow.request.timestamp_start, flow.response
        if response is None:
            ended = flow.error.timestamp if flow.error else began
            outcome = judge_transport(TransportTrouble.CLOSED_BEFORE_HEAD)
            return _attempt(outcome, at_s, max(0.0, ended - began)), Hints()
        headers, body = plain_headers(response.headers), response.raw_content or b""
        wall = response.timestamp_start
        hints = read_hints(profile, headers, wall)
        head_after_s = max(0.0, response.timestamp_start - began)
        ended = flow.error.timestamp if flow.error else response.timestamp_end or response.timestamp_start
        ended_after_s = max(head_after_s, ended - began)
        outcome, usage = self._judge(flow, profile, dialect, headers, body, hints, wall)
        return _attempt(
            outcome,
            at_s,
            ended_after_s,
            status=response.status_code,
            head_after_s=head_after_s,
            chunks=(CapturedChunk(ended_after_s, len(body)),) if body else (),
            usage=usage,
        ), hints

    def _judge(
        self,
        flow: http.HTTPFlow,
        profile: Profile,
        dialect: DialectName,
        headers: dict[str, str],
        body: bytes,
        hints: Hints,
        wall: float,
    ) -> tuple[Outcome, Usage | None]:
        assert flow.response
        status, encoding = flow.response.status_code, headers.get("content-encoding", "")
        if status == 200 and headers.get("content-type", "").lower().startswith(dialect_of(dialect).media_type):
            reader = AnswerReader(profile, dialect, encoding)
            reader.feed(body)
            if flow.error is None:
                reader.finish()
            usage = reader.usage(self._estimator.count)
            if reader.error is not None:
                return judge_stream_error(profile, reader.error, hints, wall), usage
            if reader.phase is not Phase.COMPLETE and not reader.broken:
                return judge_transport(TransportTrouble.CUT), usage
            return judge_answer(profile, status, headers, None, hints, wall), usage
        if flow.error is not None:
            return judge_transport(TransportTrouble.CUT), None
        try:
            decoded = decode(body, encoding, JUDGED_BODY_MAX_BYTES) if len(body) <= JUDGED_BODY_MAX_BYTES else None
        except DecodeError:
            decoded = None
        return (
            judge_answer(profile, status, headers, decoded, hints, wall),
            usage_in_body(dialect, decoded) if decoded else None,
        )

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
    )


def _end(flow: http.HTTPFlow, kind: OutcomeKind) -> str:
    """As the scheduler would call it."""
    if kind is OutcomeKind.SUCCESS:
        return "delivered"
    words = flow.error.msg.lower() if flow.error else ""
    return "cancelled" if any(word in words for word in _CLIENT_WENT) else "gave up"
