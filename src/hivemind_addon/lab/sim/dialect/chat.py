"""OpenAI's Chat Completions; Ollama, vLLM and others serve it too."""

from collections.abc import Iterator, Mapping

from hivemind_addon.lab.sim.dialect.openai import OpenAI
from hivemind_addon.lab.sim.dialect.reply import Reply, StreamEvent
from hivemind_addon.lab.sim.dialect.shape import json, sse


class Chat(OpenAI):
    """Nameless chunks and a closing `[DONE]`."""

    def whole_body(self, reply: Reply) -> bytes:
        """See Shape."""
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

    def stream_events(self, reply: Reply) -> list[StreamEvent]:
        """See Shape."""
        return list(_events(reply))

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        """See Shape."""
        return StreamEvent(sse({"error": error}))


def _events(reply: Reply) -> Iterator[StreamEvent]:
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
