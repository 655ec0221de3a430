"""Anthropic's Messages."""

import re

import msgspec

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import (
    Dialect,
    EventClass,
    event_name,
    members_at,
    sse_event,
    tokens_at,
    with_delay,
)
from hivemind_addon.proxy.wire.error import ErrorFacts, explicit_error, unreadable_error
from hivemind_addon.proxy.wire.parts import Assembly, Values, block_parts, members_of, objects_in, word_of
from hivemind_addon.proxy.wire.request import UNREADABLE, RequestBody
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_object

_LEGACY_USER_ID = re.compile(r"_session_([0-9A-Za-z-]+)$")


class _Metadata(msgspec.Struct):
    user_id: str = ""


class _ClaudeUser(msgspec.Struct):
    session_id: str = ""
    parent_session_id: str = ""


_METADATA = msgspec.json.Decoder(_Metadata)
_CLAUDE_USER = msgspec.json.Decoder(_ClaudeUser)


class _AnthropicMessages(Dialect):
    """`event:` names everything, so almost no JSON is read."""

    name = DialectName.ANTHROPIC_MESSAGES

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        name = event_name(event)
        if name == "error":
            return EventClass.ERROR
        if name == "message_stop":
            return EventClass.TERMINAL
        return EventClass.BOOKKEEPING if name in bookkeeping else EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        return self.classify(event, frozenset())

    def is_only_content(self, event: SseEvent) -> bool:
        return event.event == "content_block_delta"

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        if event_name(event) != "error":
            return None
        return explicit_error(read_object(event.data) or {}) or unreadable_error(event.data)

    def error_body(self, status: int, error: str, message: str, resets_at: int | None = None) -> bytes:  # noqa: ARG002
        return msgspec.json.encode(_error(error or _usual_error(status), message))

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        return sse_event("error", _error(error or "api_error", with_delay(message, retry_after_s)))

    def session_hints(self, body: RequestBody) -> tuple[str, str]:
        metadata = body.read("metadata", _METADATA, body.outer.metadata)
        return _claude_sessions(metadata.user_id) if metadata else ("", "")

    def usage_of(self, top: Values, before: Usage | None = None) -> Usage | None:
        members = members_at(top, "usage")
        input_tokens = tokens_at(members, "input_tokens")
        output_tokens = tokens_at(members, "output_tokens")
        if input_tokens is None and output_tokens is None:
            return None
        base = before or Usage()
        cache_read_tokens = tokens_at(members, "cache_read_input_tokens")
        cache_write_tokens = tokens_at(members, "cache_creation_input_tokens")
        return Usage(
            # Gateways that tell the input at the beginning may send zeros in the end.
            input_tokens=input_tokens or base.input_tokens,
            cache_read_tokens=cache_read_tokens or base.cache_read_tokens,
            cache_write_tokens=cache_write_tokens or base.cache_write_tokens,
            output_tokens=base.output_tokens if output_tokens is None else output_tokens,
            reported=True,
        )

    def usage_of_event(self, event: SseEvent, before: Usage | None) -> tuple[Usage, bool] | None:
        if event.event not in {"", "message_start", "message_delta"} or b'"usage"' not in event.data:
            return None
        top = read_object(event.data) or {}
        message = members_at(top, "message")
        usage = self.usage_of(message or top, before)
        return None if usage is None else (usage, not message)

    def read_answer(self, top: Values, answer: Assembly) -> None:
        blocks = objects_in(top.get("content"))
        answer.out.parts = [part for block in blocks for part in block_parts(block, "text")]
        answer.out.stop = word_of(top.get("stop_reason"))

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:
        index = top.get("index")
        match name:
            case "message_start":
                answer.out.model = word_of(members_of(top.get("message")).get("model"))
            case "content_block_start":
                block = members_of(top.get("content_block"))
                for part in block_parts(block, "text"):
                    begun = answer.part(index, part.heading)
                    begun.text = "" if part.text == "{}" else part.text
            case "content_block_delta":
                delta = members_of(top.get("delta"))
                for key, heading in (("text", "text"), ("thinking", "thinking"), ("partial_json", "tool call")):
                    if isinstance(piece := delta.get(key), str):
                        answer.part(index, heading).text += piece
            case "message_delta":
                answer.out.stop = word_of(members_of(top.get("delta")).get("stop_reason")) or answer.out.stop


def _usual_error(status: int) -> str:
    names = {
        401: "authentication_error",
        402: "billing_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
    return names.get(status, "api_error" if status >= 500 else "invalid_request_error")


def _error(error: str, message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": error, "message": message}}


def _claude_sessions(user_id: str) -> tuple[str, str]:
    """Session and parent's in Claude Code's user id: JSON with `session_id` (2026), `user_…_session_…` before."""
    if user_id.startswith("{"):
        try:
            user = _CLAUDE_USER.decode(user_id.encode("utf-8", "replace"))
        except UNREADABLE:
            return user_id, ""
        return user.session_id or user_id, user.parent_session_id
    legacy = _LEGACY_USER_ID.search(user_id)
    return (legacy[1] if legacy else user_id), ""


DIALECT = _AnthropicMessages()
