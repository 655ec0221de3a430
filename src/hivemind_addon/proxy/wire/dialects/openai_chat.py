"""OpenAI's Chat Completions, and the many servers that speak it."""

from collections.abc import Mapping

import msgspec

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import (
    ROLE_ONLY_DELTA,
    EventClass,
    is_done,
    members_at,
    sse_event,
    with_delay,
)
from hivemind_addon.proxy.wire.dialects.openai import OpenAIDialect, openai_error, openai_usage
from hivemind_addon.proxy.wire.error import ErrorFacts, explicit_error, unreadable_error
from hivemind_addon.proxy.wire.parts import Assembly, Values, calls_in, members_of, message_parts, objects_in, word_of
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_object, read_value

_LEAST_CHUNK_BYTES = 16
"""What is shorter may be `[DONE]`."""


class _OpenAIChat(OpenAIDialect):
    """Nameless chunks; a closing `[DONE]`."""

    name = DialectName.OPENAI_CHAT
    max_output_names = ("max_completion_tokens", "max_tokens")

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        if is_done(event.data):
            return EventClass.TERMINAL
        top = read_object(event.data)
        if event.event == "error" or (top is not None and explicit_error(top) is not None):
            return EventClass.ERROR
        if event.event and event.event in bookkeeping:
            return EventClass.BOOKKEEPING
        if ROLE_ONLY_DELTA in bookkeeping and not _carries_content(top, event.data):
            return EventClass.BOOKKEEPING
        return EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        # Inside generated text the quotes are escaped: `"error"` is a key or a value of the chunk itself.
        if event.event == "error" or b'"error"' in event.data:
            return self.classify(event, frozenset())
        return EventClass.TERMINAL if is_done(event.data) else EventClass.CONTENT

    def is_only_content(self, event: SseEvent) -> bool:
        data = event.data
        if event.event or len(data) < _LEAST_CHUNK_BYTES or b'"error"' in data:
            return False
        usages = data.count(b'"usage"')
        return not usages or (usages == 1 and b'"usage":null' in data)

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        facts = explicit_error(read_object(event.data) or {})
        if facts is None and event.event == "error":
            return unreadable_error(event.data)
        return facts

    def ends_without_terminal(self, event: SseEvent) -> bool:
        # Some servers close after the finish reason, or after the usage, without [DONE].
        top = read_object(event.data)
        if top is None:
            return False
        choices = read_value(top.get("choices"))
        if not isinstance(choices, list):
            return False
        if not choices:
            return read_value(top.get("usage")) is not None
        return any(isinstance(choice, dict) and bool(choice.get("finish_reason")) for choice in choices)

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        return sse_event("", openai_error(error or "server_error", with_delay(message, retry_after_s)))

    def usage_of(self, top: Values, before: Usage | None = None) -> Usage | None:  # noqa: ARG002
        members = members_at(top, "usage") or members_at(members_at(top, "x_groq"), "usage")
        return openai_usage(members, "prompt", "completion")

    def usage_of_event(self, event: SseEvent, before: Usage | None) -> tuple[Usage, bool] | None:  # noqa: ARG002
        top = read_object(event.data) if b'"usage"' in event.data else None
        usage = self.usage_of(top) if top else None
        return None if usage is None else (usage, True)

    def read_answer(self, top: Values, answer: Assembly) -> None:
        out = answer.out
        for choice in objects_in(top.get("choices")):
            message = choice.get("message")
            spoken = message if isinstance(message, dict) else {"content": choice.get("text")}
            out.unsaid = out.unsaid or bool(spoken.get("audio"))
            out.parts += message_parts(spoken, heading="text")
            out.stop = word_of(choice.get("finish_reason")) or out.stop

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:  # noqa: ARG002
        answer.out.model = answer.out.model or word_of(top.get("model"))
        for choice in objects_in(top.get("choices")):
            place = choice.get("index", 0)
            delta = members_of(choice.get("delta")) or {"content": choice.get("text")}
            answer.out.unsaid = answer.out.unsaid or bool(delta.get("audio"))
            # Two names for one thing; a server that sends both sends the same text twice.
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            spoken = (thought, "thinking"), (delta.get("content"), "text"), (delta.get("refusal"), "text")
            for piece, heading in spoken:
                if isinstance(piece, str) and piece:
                    answer.part((place, heading), heading).text += piece
            for call in calls_in(delta):
                if function := members_of(call.get("function")):
                    part = answer.part((place, "call", call.get("index", 0)), "tool call")
                    if part.heading == "tool call":  # some servers repeat the name
                        part.heading = f"tool call {word_of(function.get('name'))}".rstrip()
                    part.text += word_of(function.get("arguments"))
            answer.out.stop = word_of(choice.get("finish_reason")) or answer.out.stop


def _carries_content(top: Mapping[str, msgspec.Raw] | None, data: bytes) -> bool:
    """Whether a chat chunk says more than who speaks. What cannot be read is content."""
    if top is None:
        return bool(data.strip())
    if "choices" not in top:
        return False
    choices = read_value(top["choices"])
    if not isinstance(choices, list):
        return True
    for choice in choices:
        if not isinstance(choice, dict) or choice.get("finish_reason") or choice.get("text"):
            return True
        delta = choice.get("delta")
        if isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role"):
            return True
    return False


DIALECT = _OpenAIChat()
