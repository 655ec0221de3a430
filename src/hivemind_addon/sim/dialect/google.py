"""Google's formats: Gemini (its API and Vertex), the same in Code Assist's envelope, and Messages as Vertex has it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.dialect.messages import Messages
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
)

_DAY_S = 86_400
_MODEL = {
    "version": "1",
    "inputTokenLimit": 1_048_576,
    "outputTokenLimit": 65_536,
    "supportedGenerationMethods": ["generateContent", "countTokens"],
}
_TYPE = "type.googleapis.com/google.rpc."
_METRICS = {
    Dimension.REQUESTS: ("generate_content_free_tier_requests", "GenerateRequestsPer{}PerProjectPerModel-FreeTier"),
    Dimension.INPUT_TOKENS: (
        "generate_content_free_tier_input_token_count",
        "GenerateContentInputTokensPerModelPer{}-FreeTier",
    ),
    Dimension.OUTPUT_TOKENS: ("generate_content_output_token_count", "GenerateContentOutputTokensPerModelPer{}"),
    Dimension.TOTAL_TOKENS: ("generate_content_token_count", "GenerateContentTokensPerModelPer{}"),
}
"""Dimension → the metric of a quota, and its id with a place for the window."""


class Google(Shape):
    """Google's errors: code, status and message; the delay and the quota are among their details. No header tells of
    a limit.
    """

    words = Words.of("google")
    statuses = MappingProxyType({402: 429, 413: 400, 529: 503})

    def error_object(self, problem: Problem) -> dict[str, object]:
        error: dict[str, object] = {
            "code": problem.status,
            "message": _message(problem),
            "status": self.words.error(problem),
        }
        if details := self.details(problem):
            error["details"] = details
        return error

    def details(self, problem: Problem) -> list[dict[str, object]]:
        """Of an error that says when to come back: the quota that is used up, and the delay."""
        if problem.retry_after_s is None:
            return []
        delay: dict[str, object] = {"@type": f"{_TYPE}RetryInfo", "retryDelay": _seconds(problem.retry_after_s)}
        if problem.limit is None:
            return [delay]
        metric, quota = _quota(problem.limit)
        violation = {"quotaMetric": metric, "quotaId": quota, "quotaValue": str(problem.limit.amount)}
        failure: dict[str, object] = {"@type": f"{_TYPE}QuotaFailure", "violations": [violation]}
        return [failure, delay]

    def error_body(self, error: Mapping[str, object], request_id: str) -> bytes:  # noqa: ARG002 - a header names it
        return _spread({"error": error})

    def retry_after_headers(self, retry_after_s: float, *, exact: bool = False) -> Headers:  # noqa: ARG002 - in the body
        """None."""
        return ()


class Gemini(Google):
    """Nameless events without a last one of their own; each tells the usage so far. An error inside a stream is bare
    JSON over several lines.
    """

    error_comes_alone = True

    def whole_body(self, reply: Reply) -> bytes:
        parts: list[dict[str, object]] = []
        if text := reply.text():
            parts.append({"text": text})
        parts += _call_parts(reply)
        return json(self.wrapped(reply, _answer(reply, parts, reply.output_tokens, ended=True)))

    def events(self, reply: Reply) -> Iterable[StreamEvent]:
        for fields, tokens in answers(reply):
            yield StreamEvent(b"data: " + json(self.wrapped(reply, fields)) + b"\r\n\r\n", tokens)

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        return StreamEvent(_spread({"error": error}))

    def wrapped(self, reply: Reply, fields: dict[str, object]) -> dict[str, object]:  # noqa: ARG002 - see CodeAssist
        """What stands around an answer: nothing."""
        return fields


class GeminiArray(Gemini):
    """The stream is one array."""

    stream_type = "application/json; charset=UTF-8"

    def events(self, reply: Reply) -> Iterable[StreamEvent]:
        events = [StreamEvent(b",\r\n" + _spread(fields), tokens) for fields, tokens in answers(reply)]
        events[0] = StreamEvent(b"[" + events[0].data.removeprefix(b",\r\n"), events[0].output_tokens)
        events[-1] = StreamEvent(events[-1].data + b"]", events[-1].output_tokens)
        return events

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        return StreamEvent(b",\r\n" + _spread({"error": error}) + b"]")

    def opening_error_event(self, error: Mapping[str, object]) -> StreamEvent:
        return StreamEvent(b"[" + _spread({"error": error}) + b"]")


class CodeAssist(Gemini):
    """Each answer is in an envelope; errors name the service."""

    def details(self, problem: Problem) -> list[dict[str, object]]:
        """The reason too, of a rate limit."""
        details = super().details(problem)
        if problem.status != 429 or not details:
            return details
        reason = "RATE_LIMIT_EXCEEDED"
        if problem.limit and problem.limit.window_s >= _DAY_S:
            reason = "QUOTA_EXHAUSTED"
        about: dict[str, object] = {
            "@type": f"{_TYPE}ErrorInfo",
            "reason": reason,
            "domain": "cloudcode-pa.googleapis.com",
        }
        return [about, *details]

    def wrapped(self, reply: Reply, fields: dict[str, object]) -> dict[str, object]:
        return {"response": fields, "traceId": reply.id("trace-"), "metadata": {}}


class VertexMessages(Google, Messages):
    """Anthropic's answers and streams; an error answer is Google's."""

    words = msgspec.structs.replace(Google.words, models=Messages.words.models)
    identity_headers = Messages.identity_headers

    def error_event(self, error: Mapping[str, object]) -> StreamEvent:
        """In a stream it is the model's own."""
        kind = "overloaded_error" if error["code"] == 503 else "api_error"
        return super().error_event({"type": kind, "message": error["message"]})


def model(name: str) -> dict[str, object]:
    """A model as the list shows it."""
    return {"name": f"models/{name}", "displayName": name, **_MODEL}


def answers(reply: Reply) -> Iterator[tuple[dict[str, object], int]]:
    """The streamed answer piece by piece, each with the output tokens that it delivers."""
    done = 0
    for text, tokens in reply.deltas():
        done += tokens
        yield _answer(reply, [{"text": text}], done), tokens
    if parts := _call_parts(reply):
        # It comes in one piece, however long.
        tokens = sum(tokens for _, tokens in reply.call_deltas())
        done += tokens
        yield _answer(reply, parts, done), tokens
    yield _answer(reply, [{"text": ""}], reply.output_tokens, ended=True), 0


def _answer(
    reply: Reply, parts: Sequence[Mapping[str, object]], output_tokens: int, *, ended: bool = False
) -> dict[str, object]:
    candidate: dict[str, object] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if ended:
        candidate["finishReason"] = "MAX_TOKENS" if reply.truncated else "STOP"
    # Thoughts are counted, not shown: who wants to see them has to ask.
    thoughts = min(output_tokens, reply.output_tokens // 4)
    usage: dict[str, object] = {
        "promptTokenCount": reply.prompt_tokens,
        "candidatesTokenCount": output_tokens - thoughts,
        "thoughtsTokenCount": thoughts,
        "totalTokenCount": reply.prompt_tokens + output_tokens,
    }
    if reply.cached_tokens:
        usage["cachedContentTokenCount"] = reply.cached_tokens
    return {
        "candidates": [candidate],
        "usageMetadata": usage,
        "modelVersion": reply.model,
        "responseId": reply.id("sim-"),
    }


def _call_parts(reply: Reply) -> list[dict[str, object]]:
    if (call := reply.call) is None:
        return []
    return [{"functionCall": {"name": call.name, "args": msgspec.json.decode(call.arguments)}}]


def _message(problem: Problem) -> str:
    if problem.status == 503:
        return "The model is overloaded. Please try again later."
    if problem.status != 429 or problem.limit is None:
        return problem.message
    if problem.retry_after_s is None:
        return "Resource exhausted. Please try again later."
    metric, _ = _quota(problem.limit)
    return (
        "You exceeded your current quota, please check your plan and billing details.\n"
        f"* Quota exceeded for metric: {metric}, limit: {problem.limit.amount}\n"
        f"Please retry in {_seconds(problem.retry_after_s)}."
    )


def _quota(limit: LimitView) -> tuple[str, str]:
    metric, quota = _METRICS[limit.dimension]
    return f"generativelanguage.googleapis.com/{metric}", quota.format("Day" if limit.window_s >= _DAY_S else "Minute")


def _seconds(seconds: float) -> str:
    """As protobuf writes a duration, in whole milliseconds rounded up: `38s`, `38.2s`."""
    written = f"{rounded_up(max(0.0, seconds) * 1000) / 1000:.3f}"
    return written.rstrip("0").rstrip(".") + "s"


def _spread(fields: object) -> bytes:
    """JSON over several lines, as Google writes it."""
    return msgspec.json.format(json(fields), indent=2) + b"\n"
