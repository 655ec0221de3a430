"""Bedrock's formats: Converse, and Invoke with Claude. Their streams are AWS's binary messages."""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.dialect import eventstream
from hivemind_addon.sim.dialect.messages import Messages
from hivemind_addon.sim.dialect.reply import Headers, Problem, Reply, Shape, StreamEvent, Words, json

_DAY_S = 86_400
_PADDING = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Bedrock(Shape):
    """AWS's errors: their name is in a header, and the body is a message. No header tells of a limit or a delay."""

    words = Words.of("bedrock")
    stream_type = eventstream.CONTENT_TYPE
    statuses = MappingProxyType({401: 403, 402: 400, 413: 400, 502: 503, 504: 503, 529: 503})

    def error_object(self, problem: Problem) -> dict[str, object]:
        name = self.words.error(problem)
        message = problem.message
        if problem.limit is not None:
            what = "requests" if problem.limit.dimension is Dimension.REQUESTS else "tokens"
            per_day = " per day" if problem.limit.window_s >= _DAY_S else ""
            message = f"Too many {what}{per_day}, please wait before trying again."
        return {"name": name, "message": message}

    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:  # noqa: ARG002 - a header names it
        return json({"message": error["message"]})

    def error_headers(self, error: Mapping[str, object]) -> Headers:
        return (("x-amzn-errortype", str(error["name"])),)

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        name, said = str(error["name"]), {"message": error["message"]}
        if name == "ModelErrorException":
            name = "ModelStreamErrorException"
            said |= {"originalStatusCode": 500, "originalMessage": error["message"]}
        return StreamEvent(eventstream.exception(name[0].lower() + name[1:], json(said)))

    def identity_headers(self, request_id: str, organization: str) -> Headers:  # noqa: ARG002 - no header has it
        return (("request-id", request_id), ("x-amzn-requestid", request_id))

    def retry_after_headers(self, retry_after_s: float, *, exact: bool = False) -> Headers:  # noqa: ARG002 - see the class
        """None."""
        return ()


class Converse(Bedrock):
    """The usage comes last, after the end of the message."""

    def whole_body(self, reply: Reply) -> bytes:
        content: list[dict[str, object]] = []
        if text := reply.text():
            content.append({"text": text})
        if call := reply.call:
            value = msgspec.json.decode(call.arguments)
            content.append({"toolUse": {"toolUseId": call.id, "name": call.name, "input": value}})
        message = {"role": "assistant", "content": content}
        return json({"output": {"message": message}, "stopReason": _stop_reason(reply), **_metadata(reply)})

    def events(self, reply: Reply) -> Iterator[StreamEvent]:
        yield _event("messageStart", role="assistant")
        index = 0
        if reply.text():
            for text, tokens in reply.deltas():
                yield _event("contentBlockDelta", tokens, contentBlockIndex=0, delta={"text": text})
            yield _event("contentBlockStop", contentBlockIndex=0)
            index = 1
        if call := reply.call:
            start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
            yield _event("contentBlockStart", contentBlockIndex=index, start=start)
            for text, tokens in reply.call_deltas():
                yield _event("contentBlockDelta", tokens, contentBlockIndex=index, delta={"toolUse": {"input": text}})
            yield _event("contentBlockStop", contentBlockIndex=index)
        yield _event("messageStop", stopReason=_stop_reason(reply))
        yield _event("metadata", **_metadata(reply))


class Invoke(Bedrock):
    """The answer is Claude's own, and so are the events: each in base64, in a message that says no more."""

    _claude = Messages()

    def whole_body(self, reply: Reply) -> bytes:
        return self._claude.whole_body(reply)

    def events(self, reply: Reply) -> Iterator[StreamEvent]:
        for each in self._claude.events(reply):
            data = each.data.partition(b"\ndata: ")[2].rstrip()
            if data == b'{"type":"ping"}':
                continue
            if data == b'{"type":"message_stop"}':
                data = json({"type": "message_stop", "amazon-bedrock-invocationMetrics": _invocation(reply)})
            payload = {"bytes": b64encode(data).decode(), "p": _padding(data)}
            yield StreamEvent(eventstream.event("chunk", json(payload)), each.output_tokens)


def _event(kind: str, output_tokens: int = 0, /, **fields: object) -> StreamEvent:
    payload = json({**fields, "p": _padding(json(fields))})
    return StreamEvent(eventstream.event(kind, payload), output_tokens)


def _padding(data: bytes) -> str:
    """So much that its length tells little of the text; it means nothing."""
    return _PADDING[: len(data) * 7 % len(_PADDING)]


def _stop_reason(reply: Reply) -> str:
    if reply.call:
        return "tool_use"
    return "max_tokens" if reply.truncated else "end_turn"


def _metadata(reply: Reply) -> dict[str, object]:
    usage = {
        "inputTokens": reply.input_tokens,
        "outputTokens": reply.output_tokens,
        "totalTokens": reply.prompt_tokens + reply.output_tokens,
        "cacheReadInputTokens": reply.cached_tokens,
        "cacheWriteInputTokens": reply.written_tokens,
    }
    return {"usage": usage, "metrics": {"latencyMs": 1}}


def _invocation(reply: Reply) -> dict[str, int]:
    return {
        "inputTokenCount": reply.input_tokens,
        "outputTokenCount": reply.output_tokens,
        "cacheReadInputTokenCount": reply.cached_tokens,
        "cacheWriteInputTokenCount": reply.written_tokens,
        "invocationLatency": 1,
        "firstByteLatency": 1,
    }
