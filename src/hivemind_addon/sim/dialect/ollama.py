"""Ollama's own chat format: one JSON object a line. It tells of no limits."""

from collections.abc import Iterator, Mapping

import msgspec

from hivemind_addon.sim.dialect.reply import Problem, Reply, Shape, StreamEvent, Words, json

_CREATED_AT = "2026-01-01T00:00:00Z"
_TOKEN_NS = 10_000_000


class Ollama(Shape):
    """Errors are a text, also in the middle of a stream."""

    words = Words.of("ollama")
    stream_type = "application/x-ndjson"

    def whole_body(self, reply: Reply) -> bytes:
        message = _message(reply.text())
        if calls := _calls(reply):
            message["tool_calls"] = calls
        return json(_end(reply, message))

    def events(self, reply: Reply) -> Iterator[StreamEvent]:
        for text, tokens in reply.deltas():
            yield StreamEvent(_line(_chunk(reply, _message(text))), tokens)
        if calls := _calls(reply):
            # It comes in one piece, however long.
            tokens = sum(tokens for _, tokens in reply.call_deltas())
            yield StreamEvent(_line(_chunk(reply, _message("") | {"tool_calls": calls})), tokens)
        yield StreamEvent(_line(_end(reply, _message(""))))

    def error_object(self, problem: Problem) -> dict[str, object]:
        message = problem.message
        if problem.status == 503:
            message = "server busy, please try again. maximum pending requests exceeded"
        return {"error": f"{problem.error}: {message}" if problem.error else message}

    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:  # noqa: ARG002 - it names no answer
        return json(error)

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        return StreamEvent(_line(error))


def _message(text: str) -> dict[str, object]:
    return {"role": "assistant", "content": text}


def _calls(reply: Reply) -> list[dict[str, object]]:
    if (call := reply.call) is None:
        return []
    return [{"function": {"name": call.name, "arguments": msgspec.json.decode(call.arguments)}}]


def _chunk(reply: Reply, message: Mapping[str, object]) -> dict[str, object]:
    return {"model": reply.model, "created_at": _CREATED_AT, "message": message, "done": False}


def _end(reply: Reply, message: Mapping[str, object]) -> dict[str, object]:
    into_ns, out_ns = reply.prompt_tokens * _TOKEN_NS // 100, reply.output_tokens * _TOKEN_NS
    return _chunk(reply, message) | {
        "done": True,
        "done_reason": "length" if reply.truncated else "stop",
        "total_duration": into_ns + out_ns,
        "load_duration": 0,
        "prompt_eval_count": reply.prompt_tokens,
        "prompt_eval_duration": into_ns,
        "eval_count": reply.output_tokens,
        "eval_duration": out_ns,
    }


def _line(fields: Mapping[str, object]) -> bytes:
    return json(fields) + b"\n"
