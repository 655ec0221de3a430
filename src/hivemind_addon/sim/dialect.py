"""The shapes in which the simulated provider speaks: answers, streams, errors and rate-limit headers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

import msgspec

from hivemind_addon.core.ticket import Dimension

Headers = tuple[tuple[str, str], ...]
"""Lower-case names, in order."""


class Dialect(Enum):
    """The shape of a request and its answer; chosen by the path."""

    MESSAGES = "anthropic-messages"
    CHAT = "openai-chat"


@dataclass(frozen=True, slots=True)
class Reply:
    """A successful answer, before it has a shape. Its text names the attempt that made it."""

    dialect: Dialect
    request_id: str
    attempt: int
    digest: str
    """Of the request's body."""
    model: str
    input_tokens: int
    """Uncached."""
    cached_tokens: int
    output_tokens: int
    tokens_per_delta: int
    truncated: bool
    """Whether the request's maximum ended it."""
    include_usage: bool
    """Chat only: whether a stream ends with a usage chunk."""
    written_tokens: int = 0
    """Input that went into the prompt cache; neither in `input_tokens` nor in `cached_tokens`."""

    def deltas(self) -> Iterator[tuple[str, int]]:
        """The text in pieces, each with the output tokens that it counts."""
        yield (
            f"{self.request_id} attempt {self.attempt} for {self.digest}:",
            min(self.tokens_per_delta, self.output_tokens),
        )
        for done in range(self.tokens_per_delta, self.output_tokens, self.tokens_per_delta):
            yield f" w{done}", min(self.tokens_per_delta, self.output_tokens - done)

    def text(self) -> str:
        """The whole text."""
        return "".join(text for text, _ in self.deltas())


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One server-sent event as it goes out."""

    data: bytes
    output_tokens: int = 0
    """What this event delivers; above zero for content only."""


@dataclass(frozen=True, slots=True)
class LimitView:
    """One limit at one instant, for the headers."""

    dimension: Dimension
    amount: int
    remaining: float
    full_in_s: float


def whole_body(reply: Reply) -> bytes:
    """The unstreamed answer."""
    match reply.dialect:
        case Dialect.MESSAGES:
            return _json(
                {
                    "id": reply.request_id.replace("req_", "msg_"),
                    "type": "message",
                    "role": "assistant",
                    "model": reply.model,
                    "content": [{"type": "text", "text": reply.text()}],
                    "stop_reason": _stop_reason(reply),
                    "stop_sequence": None,
                    "usage": _messages_usage(reply, reply.output_tokens),
                }
            )
        case Dialect.CHAT:
            message = {"role": "assistant", "content": reply.text(), "refusal": None}
            choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _stop_reason(reply)}
            return _json(
                {
                    "id": reply.request_id.replace("req_", "chatcmpl-"),
                    "object": "chat.completion",
                    "created": 0,
                    "model": reply.model,
                    "choices": [choice],
                    "usage": _chat_usage(reply),
                }
            )


def stream_events(reply: Reply) -> list[StreamEvent]:
    """The streamed answer, event by event, its end included."""
    match reply.dialect:
        case Dialect.MESSAGES:
            return list(_messages_events(reply))
        case Dialect.CHAT:
            return list(_chat_events(reply))


def error_object(dialect: Dialect, status: int, *, message: str, error: str | None = None) -> dict[str, object]:
    """The error object of a status. `error`: its type (and code), where it is not the usual one."""
    match dialect:
        case Dialect.MESSAGES:
            return {"type": error or _MESSAGES_ERRORS.get(status, "api_error"), "message": message}
        case Dialect.CHAT:
            usual_type, usual_code = _CHAT_ERRORS.get(status, _CHAT_ERROR)
            return {
                "message": message,
                "type": error or usual_type,
                "param": None,
                "code": error or usual_code,
            }


def spent_credit(dialect: Dialect) -> dict[str, object]:
    """The error object of an account without money."""
    match dialect:
        case Dialect.MESSAGES:
            return {
                "type": "rate_limit_error",
                "message": "Your organization has reached its spend limit.",
                "details": {"error_code": "enforced_spend_limit_reached"},
            }
        case Dialect.CHAT:
            return {
                "message": "You exceeded your current quota, please check your plan and billing details.",
                "type": "insufficient_quota",
                "param": None,
                "code": "insufficient_quota",
            }


def error_body(dialect: Dialect, error: Mapping[str, object], request_id: str) -> bytes:
    """An error answer's body."""
    match dialect:
        case Dialect.MESSAGES:
            return _json({"type": "error", "error": error, "request_id": request_id})
        case Dialect.CHAT:
            return _json({"error": error})


def error_event(dialect: Dialect, error: Mapping[str, object]) -> StreamEvent:
    """An error inside a stream that began well."""
    match dialect:
        case Dialect.MESSAGES:
            return StreamEvent(_sse({"type": "error", "error": error}, "error"))
        case Dialect.CHAT:
            return StreamEvent(_sse({"error": error}))


def models_body(dialect: Dialect) -> bytes:
    """The list of models: one."""
    match dialect:
        case Dialect.MESSAGES:
            model = {
                "type": "model",
                "id": "sim-1",
                "display_name": "Sim 1",
                "created_at": "2026-01-01T00:00:00Z",
            }
            return _json({"data": [model], "has_more": False, "first_id": "sim-1", "last_id": "sim-1"})
        case Dialect.CHAT:
            entry = {"id": "sim-1", "object": "model", "created": 0, "owned_by": "sim"}
            return _json({"object": "list", "data": [entry]})


def identity_headers(dialect: Dialect, request_id: str, organization: str) -> Headers:
    """Who answered, and the answer's own name."""
    match dialect:
        case Dialect.MESSAGES:
            return (("request-id", request_id), ("anthropic-organization-id", organization))
        case Dialect.CHAT:
            return (
                ("request-id", request_id),
                ("x-request-id", request_id),
                ("openai-organization", organization),
            )


def limit_headers(dialect: Dialect, limits: Sequence[LimitView], wall_now: float) -> Headers:
    """The rate-limit headers. `wall_now`: seconds since the epoch.

    Messages: RFC 3339 instants in whole seconds (rounded up), tokens rounded to thousands, and a `tokens`
    line that adds input and output where no total is limited. Chat: durations, of requests and total tokens only.
    """
    headers: list[tuple[str, str]] = []
    match dialect:
        case Dialect.MESSAGES:
            for view in _with_total(limits):
                name = f"anthropic-ratelimit-{_MESSAGES_NAMES[view.dimension]}"
                remaining = max(0.0, view.remaining)
                shown = int(remaining) if view.dimension is Dimension.REQUESTS else round(remaining / 1000) * 1000
                resets = datetime.fromtimestamp(_rounded_up(wall_now + view.full_in_s), UTC)
                headers += [
                    (f"{name}-limit", str(view.amount)),
                    (f"{name}-remaining", str(shown)),
                    (f"{name}-reset", f"{resets:%Y-%m-%dT%H:%M:%SZ}"),
                ]
        case Dialect.CHAT:
            for view in limits:
                if (unit := _CHAT_NAMES.get(view.dimension)) is None:
                    continue
                headers += [
                    (f"x-ratelimit-limit-{unit}", str(view.amount)),
                    (f"x-ratelimit-remaining-{unit}", str(max(0, int(view.remaining)))),
                    (f"x-ratelimit-reset-{unit}", duration(view.full_in_s)),
                ]
    return tuple(headers)


def retry_after_headers(dialect: Dialect, retry_after_s: float) -> Headers:
    """When to come back, never too early: whole seconds, and for Chat milliseconds too."""
    seconds = ("retry-after", str(_rounded_up(retry_after_s)))
    match dialect:
        case Dialect.MESSAGES:
            return (seconds,)
        case Dialect.CHAT:
            return (seconds, ("retry-after-ms", str(_rounded_up(retry_after_s * 1000))))


def duration(seconds: float) -> str:
    """As Go writes it, in whole milliseconds rounded up: `12ms`, `1s`, `1.5s`, `6m0s`, `1h0m0s`."""
    milliseconds = _rounded_up(max(0.0, seconds) * 1000)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest_ms = divmod(milliseconds, 60_000)
    rest = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + rest


def _rounded_up(value: float) -> int:
    """Up, but not for what floating point added."""
    return math.ceil(value - 1e-6)


def _with_total(limits: Sequence[LimitView]) -> Iterator[LimitView]:
    yield from limits
    seen = {view.dimension: view for view in limits}
    into, out = seen.get(Dimension.INPUT_TOKENS), seen.get(Dimension.OUTPUT_TOKENS)
    if into and out and Dimension.TOTAL_TOKENS not in seen:
        yield LimitView(
            Dimension.TOTAL_TOKENS,
            into.amount + out.amount,
            max(0.0, into.remaining) + max(0.0, out.remaining),
            max(into.full_in_s, out.full_in_s),
        )


def _messages_events(reply: Reply) -> Iterator[StreamEvent]:
    message: dict[str, object] = {
        "id": reply.request_id.replace("req_", "msg_"),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _messages_usage(reply, 1),
    }
    yield _messages_event("message_start", message=message)
    yield _messages_event("ping")
    yield _messages_event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for text, tokens in reply.deltas():
        delta = {"type": "text_delta", "text": text}
        yield _messages_event("content_block_delta", tokens, index=0, delta=delta)
    yield _messages_event("content_block_stop", index=0)
    yield _messages_event(
        "message_delta",
        delta={"stop_reason": _stop_reason(reply), "stop_sequence": None},
        usage=_messages_usage(reply, reply.output_tokens),
    )
    yield _messages_event("message_stop")


def _messages_event(kind: str, output_tokens: int = 0, /, **fields: object) -> StreamEvent:
    return StreamEvent(_sse({"type": kind, **fields}, kind), output_tokens)


def _chat_events(reply: Reply) -> Iterator[StreamEvent]:
    yield _chat_chunk(reply, {"role": "assistant", "content": ""})
    for text, tokens in reply.deltas():
        yield _chat_chunk(reply, {"content": text}, tokens=tokens)
    yield _chat_chunk(reply, {}, finish_reason=_stop_reason(reply))
    if reply.include_usage:
        chunk = _chat_chunk_fields(reply)
        yield StreamEvent(_sse({**chunk, "choices": [], "usage": _chat_usage(reply)}))
    yield StreamEvent(b"data: [DONE]\n\n")


def _chat_chunk(
    reply: Reply, delta: Mapping[str, str], *, finish_reason: str | None = None, tokens: int = 0
) -> StreamEvent:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return StreamEvent(_sse({**_chat_chunk_fields(reply), "choices": [choice]}), tokens)


def _chat_chunk_fields(reply: Reply) -> dict[str, object]:
    return {
        "id": reply.request_id.replace("req_", "chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": 0,
        "model": reply.model,
    }


def _messages_usage(reply: Reply, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": reply.input_tokens,
        "cache_creation_input_tokens": reply.written_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": output_tokens,
    }


def _chat_usage(reply: Reply) -> dict[str, object]:
    prompt_tokens = reply.input_tokens + reply.cached_tokens + reply.written_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": prompt_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def _stop_reason(reply: Reply) -> str:
    match reply.dialect:
        case Dialect.MESSAGES:
            return "max_tokens" if reply.truncated else "end_turn"
        case Dialect.CHAT:
            return "length" if reply.truncated else "stop"


def _sse(fields: Mapping[str, object], event: str | None = None) -> bytes:
    head = f"event: {event}\n".encode() if event else b""
    return head + b"data: " + _json(fields) + b"\n\n"


_json = msgspec.json.Encoder().encode

_MESSAGES_NAMES = {
    Dimension.REQUESTS: "requests",
    Dimension.INPUT_TOKENS: "input-tokens",
    Dimension.OUTPUT_TOKENS: "output-tokens",
    Dimension.TOTAL_TOKENS: "tokens",
}
_CHAT_NAMES = {Dimension.REQUESTS: "requests", Dimension.TOTAL_TOKENS: "tokens"}
_MESSAGES_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_CHAT_ERROR: tuple[str, str | None] = ("server_error", None)
_CHAT_ERRORS: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("billing_error", "billing_hard_limit_reached"),
    403: ("invalid_request_error", "unsupported_country_region_territory"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("tokens", "rate_limit_exceeded"),
    503: ("service_unavailable_error", "server_is_overloaded"),
    529: ("service_unavailable_error", "server_is_overloaded"),
}
