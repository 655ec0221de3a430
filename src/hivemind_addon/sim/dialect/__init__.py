"""The shapes in which the simulated provider speaks: answers, streams, errors and rate-limit headers."""

from collections.abc import Mapping

from hivemind_addon.sim.dialect.bedrock import Converse, Invoke
from hivemind_addon.sim.dialect.cohere import Cohere
from hivemind_addon.sim.dialect.google import CodeAssist, Gemini, GeminiArray, VertexMessages
from hivemind_addon.sim.dialect.messages import Messages
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

SHAPES: Mapping[SimDialect, Shape] = {
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
    return SHAPES[reply.dialect].whole_body(reply)


def stream_events(reply: Reply) -> list[StreamEvent]:
    """The streamed answer, event by event, its end included."""
    return list(SHAPES[reply.dialect].events(reply))


def error_object(
    dialect: SimDialect,
    status: int,
    *,
    message: str,
    error: str | None = None,
    retry_after_s: float | None = None,
    limit: LimitView | None = None,
    wall_now: float = 0.0,
) -> dict[str, object]:
    """The content of an error answer. See Problem."""
    shape = SHAPES[dialect]
    return shape.error_object(
        Problem(shape.statuses.get(status, status), message, error, retry_after_s, limit, wall_now)
    )
