"""Cohere's own chat format, version 2."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from hivemind_addon.sim.dialect.reply import Problem, Reply, Shape, StreamEvent, Words, json, sse


class Cohere(Shape):
    """Named events, the last with the usage; what is said before a tool call is a plan. Errors are a message. It tells
    of no limits.
    """

    words = Words.of("cohere")
    statuses = MappingProxyType({529: 503})

    def whole_body(self, reply: Reply) -> bytes:
        message: dict[str, object] = {"role": "assistant"}
        if call := reply.call:
            message["tool_plan"] = reply.text()
            function = {"name": call.name, "arguments": call.arguments}
            message["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
        else:
            message["content"] = [{"type": "text", "text": reply.text()}]
        return json(
            {"id": reply.id(""), "finish_reason": _finish_reason(reply), "message": message, "usage": _usage(reply)}
        )

    def events(self, reply: Reply) -> Iterator[StreamEvent]:
        yield _event("message-start", id=reply.id(""), delta={"message": _message(role="assistant")})
        if call := reply.call:
            for text, tokens in reply.deltas():
                yield _event("tool-plan-delta", tokens, delta={"message": {"tool_plan": text}})
            begun = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
            yield _event("tool-call-start", index=0, delta={"message": {"tool_calls": begun}})
            for text, tokens in reply.call_deltas():
                delta = {"message": {"tool_calls": {"function": {"arguments": text}}}}
                yield _event("tool-call-delta", tokens, index=0, delta=delta)
            yield _event("tool-call-end", index=0)
        else:
            yield _event("content-start", index=0, delta={"message": {"content": {"type": "text", "text": ""}}})
            for text, tokens in reply.deltas():
                yield _event("content-delta", tokens, index=0, delta={"message": {"content": {"text": text}}})
            yield _event("content-end", index=0)
        yield _event("message-end", delta={"finish_reason": _finish_reason(reply), "usage": _usage(reply)})

    def error_object(self, problem: Problem) -> dict[str, object]:
        message = problem.message
        if problem.limit is not None:
            message = f"You are past the per minute request limit, please wait and try again later. {message}"
        return {"message": f"{problem.error}: {message}" if problem.error else message}

    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:
        return json({"id": request_id, **error})

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        return _event("message-end", delta={"finish_reason": "ERROR", "error": error["message"]})


def _message(**fields: object) -> dict[str, object]:
    return {"content": [], "tool_plan": "", "tool_calls": [], "citations": [], **fields}


def _event(kind: str, output_tokens: int = 0, /, **fields: object) -> StreamEvent:
    return StreamEvent(sse({"type": kind, **fields}, kind), output_tokens)


def _finish_reason(reply: Reply) -> str:
    if reply.call:
        return "TOOL_CALL"
    return "MAX_TOKENS" if reply.truncated else "COMPLETE"


def _usage(reply: Reply) -> dict[str, object]:
    counted = {"input_tokens": reply.prompt_tokens, "output_tokens": reply.output_tokens}
    return {"billed_units": counted, "tokens": counted, "cached_tokens": reply.cached_tokens}
