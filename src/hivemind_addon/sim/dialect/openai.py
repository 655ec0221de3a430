"""What both of OpenAI's formats share (errors, headers, models), and Chat Completions, which Ollama, vLLM and others
serve too.
"""

from collections.abc import Iterator, Mapping, Sequence

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.dialect.reply import (
    Headers,
    LimitView,
    Problem,
    Reply,
    Shape,
    StreamEvent,
    Words,
    duration,
    json,
    rounded_up,
    sse,
)

_NAMES = {Dimension.REQUESTS: "requests", Dimension.TOTAL_TOKENS: "tokens"}


class OpenAI(Shape):
    """Errors are an object with message, type and code."""

    words = Words.of("openai")

    def error_object(self, problem: Problem) -> dict[str, object]:
        return {
            "message": problem.message,
            "type": self.words.error(problem),
            "param": None,
            "code": problem.error or self.words.codes.get(problem.status),
        }

    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:  # noqa: ARG002 - a header names it
        return json({"error": error})

    def identity_headers(self, request_id: str, organization: str) -> Headers:
        return (
            ("request-id", request_id),
            ("x-request-id", request_id),
            ("openai-organization", organization),
        )

    def limit_headers(self, limits: Sequence[LimitView], wall_now: float) -> Headers:  # noqa: ARG002 - no instants here
        """Durations, of requests and total tokens only."""
        headers: list[tuple[str, str]] = []
        for view in limits:
            if view.plan or (unit := _NAMES.get(view.dimension)) is None:
                continue
            headers += [
                (f"x-ratelimit-limit-{unit}", str(view.amount)),
                (f"x-ratelimit-remaining-{unit}", str(max(0, int(view.remaining)))),
                (f"x-ratelimit-reset-{unit}", duration(view.full_in_s)),
            ]
        return tuple(headers)

    def retry_after_headers(self, retry_after_s: float, *, exact: bool = False) -> Headers:  # noqa: ARG002 - in ms
        """In whole seconds, and in milliseconds."""
        return (
            ("retry-after", str(rounded_up(retry_after_s))),
            ("retry-after-ms", str(rounded_up(retry_after_s * 1000))),
        )


class Chat(OpenAI):
    """Nameless chunks and a closing `[DONE]`."""

    def whole_body(self, reply: Reply) -> bytes:
        message: dict[str, object] = {"role": "assistant", "content": reply.text(), "refusal": None}
        if call := reply.call:
            function = {"name": call.name, "arguments": call.arguments}
            message["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(reply)}
        return json(
            {
                "id": reply.id("chatcmpl-"),
                "object": "chat.completion",
                "created": 0,
                "model": reply.model,
                "choices": [choice],
                "usage": _usage(reply),
            }
        )

    def events(self, reply: Reply) -> Iterator[StreamEvent]:
        yield _chunk(reply, {"role": "assistant", "content": ""})
        for text, tokens in reply.deltas():
            yield _chunk(reply, {"content": text}, tokens=tokens)
        if call := reply.call:
            function = {"name": call.name, "arguments": ""}
            yield _chunk(reply, {"tool_calls": [{"index": 0, "id": call.id, "type": "function", "function": function}]})
            for text, tokens in reply.call_deltas():
                yield _chunk(reply, {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}, tokens=tokens)
        yield _chunk(reply, {}, finish_reason=_finish_reason(reply))
        if reply.include_usage:
            yield StreamEvent(sse({**_chunk_fields(reply), "choices": [], "usage": _usage(reply)}))
        yield StreamEvent(b"data: [DONE]\n\n")

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        return StreamEvent(sse({"error": error}))


def _chunk(
    reply: Reply, delta: Mapping[str, object], *, finish_reason: str | None = None, tokens: int = 0
) -> StreamEvent:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return StreamEvent(sse({**_chunk_fields(reply), "choices": [choice]}), tokens)


def _chunk_fields(reply: Reply) -> dict[str, object]:
    return {
        "id": reply.id("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": 0,
        "model": reply.model,
    }


def _finish_reason(reply: Reply) -> str:
    if reply.call:
        return "tool_calls"
    return "length" if reply.truncated else "stop"


def _usage(reply: Reply) -> dict[str, object]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }
