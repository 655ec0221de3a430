"""The shapes in which the simulated provider speaks: answers, streams, errors and rate-limit headers."""

from collections.abc import Mapping, Sequence

from hivemind_addon.sim.dialect.bedrock import Converse, Invoke
from hivemind_addon.sim.dialect.cohere import Cohere
from hivemind_addon.sim.dialect.google import CodeAssist, Gemini, GeminiArray, VertexMessages
from hivemind_addon.sim.dialect.messages import PING, Messages
from hivemind_addon.sim.dialect.ollama import Ollama
from hivemind_addon.sim.dialect.openai import Chat
from hivemind_addon.sim.dialect.reply import (
    PLAYED,
    Headers,
    LimitView,
    Problem,
    Reply,
    Shape,
    SimDialect,
    StreamEvent,
    TaskTurn,
    ToolCall,
    duration,
)
from hivemind_addon.sim.dialect.responses import Responses

__all__ = ["PLAYED", "Headers", "LimitView", "Reply", "SimDialect", "StreamEvent", "TaskTurn", "ToolCall", "duration"]

_SHAPES: Mapping[SimDialect, Shape] = {
    SimDialect.MESSAGES: Messages(),
    SimDialect.CHAT: Chat(),
    SimDialect.RESPONSES: Responses(),
    SimDialect.OLLAMA: Ollama(),
    SimDialect.GEMINI: Gemini(),
    SimDialect.GEMINI_ARRAY: GeminiArray(),
    SimDialect.CODE_ASSIST: CodeAssist(),
    SimDialect.VERTEX_MESSAGES: VertexMessages(),
    SimDialect.CONVERSE: Converse(),
    SimDialect.INVOKE: Invoke(),
    SimDialect.COHERE: Cohere(),
}


def whole_body(reply: Reply) -> bytes:
    """The unstreamed answer."""
    return _SHAPES[reply.dialect].whole_body(reply)


def stream_events(reply: Reply) -> list[StreamEvent]:
    """The streamed answer, event by event, its end included."""
    return _SHAPES[reply.dialect].stream_events(reply)


def stream_type(dialect: SimDialect) -> str:
    """The content type of a streamed answer."""
    return _SHAPES[dialect].stream_type


def ping() -> bytes:
    """A sign of life inside a stream; Messages has one."""
    return PING.data


def error_object(
    dialect: SimDialect,
    status: int,
    *,
    message: str,
    error: str | None = None,
    retry_after_s: float | None = None,
    limit: LimitView | None = None,
) -> dict[str, object]:
    """What an error answer says. See Problem."""
    problem = Problem(status_of(dialect, status), message, error, retry_after_s, limit)
    return _SHAPES[dialect].error_object(problem)


def status_of(dialect: SimDialect, status: int) -> int:
    """The status that this provider uses where another one would use `status`."""
    return _SHAPES[dialect].status(status)


def error_headers(dialect: SimDialect, error: Mapping[str, object]) -> Headers:
    """What the head of an error answer says of it."""
    return _SHAPES[dialect].error_headers(error)


def spent_credit(dialect: SimDialect) -> dict[str, object]:
    """The error object of an account without money."""
    return _SHAPES[dialect].spent_credit()


def error_body(dialect: SimDialect, error: Mapping[str, object], request_id: str) -> bytes:
    """An error answer's body."""
    return _SHAPES[dialect].error_body(error, request_id)


def error_event(dialect: SimDialect, error: Mapping[str, object], *, opening: bool = False) -> StreamEvent:
    """An error inside a stream that began well. `opening`: before any other event."""
    shape = _SHAPES[dialect]
    return shape.opening_error_event(error) if opening else shape.error_event(error)


def error_comes_alone(dialect: SimDialect) -> bool:
    """Whether an error inside a stream has to arrive apart from the events before it."""
    return _SHAPES[dialect].error_comes_alone


def models_body(dialect: SimDialect) -> bytes:
    """The list of models: one."""
    return _SHAPES[dialect].models_body()


def identity_headers(dialect: SimDialect, request_id: str, organization: str) -> Headers:
    """Who answered, and the answer's own name."""
    return _SHAPES[dialect].identity_headers(request_id, organization)


def limit_headers(dialect: SimDialect, limits: Sequence[LimitView], wall_now: float) -> Headers:
    """The rate-limit headers. `wall_now`: seconds since the epoch."""
    return _SHAPES[dialect].limit_headers(limits, wall_now)


def retry_after_headers(dialect: SimDialect, retry_after_s: float) -> Headers:
    """When to come back, never too early."""
    return _SHAPES[dialect].retry_after_headers(retry_after_s)
