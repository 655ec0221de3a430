"""OpenAI's Responses, which Codex speaks."""

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.dialect import (
    EventClass,
    event_name,
    is_done,
    members_at,
    sse_event,
    with_delay,
)
from hivemind_addon.proxy.wire.dialects.openai import OpenAIDialect, openai_usage
from hivemind_addon.proxy.wire.error import ErrorFacts, explicit_error, unreadable_error
from hivemind_addon.proxy.wire.parts import Assembly, Values, error_text, members_of, message_parts, objects_in, word_of
from hivemind_addon.proxy.wire.sse import SseEvent
from hivemind_addon.system.json_values import read_object

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})
_SHOWN_BY_CODEX = "invalid_prompt"
"""The one code of a failed response upon which Codex stops and shows the message that came with it."""
_FINAL_ERRORS = frozenset(
    {
        "authentication_error",
        "billing_hard_limit_reached",
        "invalid_request_error",
        "not_found_error",
        "permission_error",
        "usage_limit_reached",
    }
)
"""No waiting cures these, which Codex does not know by their names."""


class _OpenAIResponses(OpenAIDialect):
    """Every event names itself, in `event:` and in `type`."""

    name = DialectName.OPENAI_RESPONSES
    conversation = "input"
    max_output_names = ("max_output_tokens",)

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        name = event_name(event)
        if name in {"error", "response.failed"}:
            return EventClass.ERROR
        if name in {"response.completed", "response.incomplete"} or is_done(event.data):
            return EventClass.TERMINAL
        return EventClass.BOOKKEEPING if name in bookkeeping else EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        return self.classify(event, frozenset())

    def is_only_content(self, event: SseEvent) -> bool:
        return event.event.endswith(".delta") and not is_done(event.data)

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        if event_name(event) not in {"error", "response.failed"}:
            return None
        return explicit_error(read_object(event.data) or {}) or unreadable_error(event.data)

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        # Codex comes back for any code but a few (codex-api/src/sse/responses.rs, 2026-08): for this one after the
        # delay that it finds in the message.
        code = "rate_limit_exceeded"
        if retry_after_s is None:
            code = _SHOWN_BY_CODEX if error in _FINAL_ERRORS else error or "server_error"
        response = {
            "id": "resp_hivemind",
            "object": "response",
            "created_at": 0,
            "status": "failed",
            "error": {"code": code, "message": with_delay(message, retry_after_s)},
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "model": "",
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }
        value = {"type": "response.failed", "sequence_number": 0, "response": response}
        return sse_event("response.failed", value)

    def usage_of(self, top: Values, before: Usage | None = None) -> Usage | None:  # noqa: ARG002
        return openai_usage(members_at(top, "usage"), "input", "output")

    def usage_of_event(self, event: SseEvent, before: Usage | None) -> tuple[Usage, bool] | None:  # noqa: ARG002
        if event.event not in _ENDS and (event.event or b'"usage"' not in event.data):
            return None
        top = members_at(read_object(event.data) or {}, "response")
        usage = self.usage_of(top) if top else None
        return None if usage is None else (usage, True)

    def read_answer(self, top: Values, answer: Assembly) -> None:
        out = answer.out
        out.model = word_of(top.get("model")) or out.model
        details = members_of(top.get("incomplete_details"))
        out.stop = word_of(details.get("reason")) or word_of(top.get("status")) or out.stop
        if error := error_text(top):
            out.error = error
        items = objects_in(top.get("output"))
        out.unsaid = out.unsaid or any(item.get("type") != "message" for item in items)
        parts = [part for item in items for part in message_parts(item, heading="text")]
        if parts:
            out.parts = parts

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:
        if name in {"response.created", "response.in_progress"}:
            answer.out.model = word_of(members_of(top.get("response")).get("model"))
        elif name in _ENDS:
            self.read_answer(members_of(top.get("response")), answer)
        elif name in {"response.output_item.added", "response.output_item.done"}:
            item, place = members_of(top.get("item")), top.get("output_index")
            for number, part in enumerate(message_parts(item, heading="text")):
                answer.part((place, number), part.heading).text = part.text  # when it is done, what was put together
        elif name.endswith(".delta") and isinstance(piece := top.get("delta"), str) and "audio" not in name:
            heading = "thinking" if "reasoning" in name else "tool call" if "call" in name else "text"
            answer.part((top.get("output_index"), 0), heading).text += piece


DIALECT = _OpenAIResponses()
