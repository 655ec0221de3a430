"""Anthropic's Messages."""

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.dialect.reply import (
    Headers,
    LimitView,
    Problem,
    Reply,
    Shape,
    StreamEvent,
    Words,
    json,
    rounded_up,
    sse,
)

_NAMES = {
    Dimension.REQUESTS: "requests",
    Dimension.INPUT_TOKENS: "input-tokens",
    Dimension.OUTPUT_TOKENS: "output-tokens",
    Dimension.TOTAL_TOKENS: "tokens",
}
_UNIFIED = "anthropic-ratelimit-unified"
_CLAIMS = {"5h": "five_hour", "7d": "seven_day", "7d_oi": "seven_day_overage_included"}


class Messages(Shape):
    """Named events; every error has a type."""

    words = Words.of("anthropic")

    def whole_body(self, reply: Reply) -> bytes:
        content: list[dict[str, object]] = []
        if text := reply.text():
            content.append({"type": "text", "text": text})
        if call := reply.call:
            value = msgspec.json.decode(call.arguments)
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": value})
        message = _message(reply, content)
        return json({**message, "stop_reason": _stop_reason(reply), "usage": _usage(reply, reply.output_tokens)})

    def events(self, reply: Reply) -> Iterator[StreamEvent]:
        yield _event("message_start", message={**_message(reply, []), "usage": _usage(reply, 1)})
        yield PING
        index = 0
        if reply.text():
            yield _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
            for text, tokens in reply.deltas():
                yield _event("content_block_delta", tokens, index=0, delta={"type": "text_delta", "text": text})
            yield _event("content_block_stop", index=0)
            index = 1
        if call := reply.call:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            yield _event("content_block_start", index=index, content_block=block)
            for text, tokens in reply.call_deltas():
                delta = {"type": "input_json_delta", "partial_json": text}
                yield _event("content_block_delta", tokens, index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event(
            "message_delta",
            delta={"stop_reason": _stop_reason(reply), "stop_sequence": None},
            usage=_usage(reply, reply.output_tokens),
        )
        yield _event("message_stop")

    def error_object(self, problem: Problem) -> dict[str, object]:
        return {"type": self.words.error(problem), "message": problem.message}

    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:
        return json({"type": "error", "error": error, "request_id": request_id})

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        return StreamEvent(sse({"type": "error", "error": error}, "error"))

    def identity_headers(self, request_id: str, organization: str) -> Headers:
        return (("request-id", request_id), ("anthropic-organization-id", organization))

    def limit_headers(self, limits: Sequence[LimitView], wall_now: float) -> Headers:
        """RFC 3339 instants in whole seconds, tokens rounded to thousands, and a `tokens` line that adds input and
        output where no total is limited.
        """
        headers: list[tuple[str, str]] = []
        for view in _with_total([view for view in limits if not view.plan]):
            name = f"anthropic-ratelimit-{_NAMES[view.dimension]}"
            remaining = max(0.0, view.remaining)
            shown = int(remaining) if view.dimension is Dimension.REQUESTS else round(remaining / 1000) * 1000
            whole_at = wall_now + view.full_in_s
            resets = datetime.fromtimestamp(math.floor(whole_at) if view.is_cut else rounded_up(whole_at), UTC)
            headers += [
                (f"{name}-limit", str(view.amount)),
                (f"{name}-remaining", str(shown)),
                (f"{name}-reset", f"{resets:%Y-%m-%dT%H:%M:%SZ}"),
            ]
        return (*headers, *_plan_headers([view for view in limits if view.plan], wall_now))


def _plan_headers(plans: Sequence[LimitView], wall_now: float) -> Headers:
    """As subscriptions are told of their windows (seen 2026): shares, and instants in epoch seconds. The window that
    binds stands for all of them.
    """
    if not plans:
        return ()

    def told(view: LimitView) -> tuple[str, str]:
        return "rejected" if view.remaining < 1 else "allowed", str(rounded_up(wall_now + view.full_in_s))

    headers = []
    binding = max(plans, key=lambda view: (view.remaining < 1, view.full_in_s if view.remaining < 1 else view.used))
    for name, view in (("", binding), *((f"-{view.plan}", view) for view in plans)):
        status, reset = told(view)
        headers += [(f"{_UNIFIED}{name}-status", status), (f"{_UNIFIED}{name}-reset", reset)]
        if name:
            headers.append((f"{_UNIFIED}{name}-utilization", f"{view.used:.2f}"))
    claim = _CLAIMS.get(binding.plan, binding.plan)
    return (*headers, (f"{_UNIFIED}-representative-claim", claim))


def _message(reply: Reply, content: Sequence[object]) -> dict[str, object]:
    return {
        "id": reply.id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _event(kind: str, output_tokens: int = 0, /, **fields: object) -> StreamEvent:
    return StreamEvent(sse({"type": kind, **fields}, kind), output_tokens)


PING = _event("ping")
"""What keeps a connection alive."""


def _stop_reason(reply: Reply) -> str:
    if reply.call:
        return "tool_use"
    return "max_tokens" if reply.truncated else "end_turn"


def _usage(reply: Reply, output_tokens: int) -> dict[str, int]:
    return {
        "input_tokens": reply.input_tokens,
        "cache_creation_input_tokens": reply.written_tokens,
        "cache_read_input_tokens": reply.cached_tokens,
        "output_tokens": output_tokens,
    }


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
            is_cut=into.is_cut,
        )
