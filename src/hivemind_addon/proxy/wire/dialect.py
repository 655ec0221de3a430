"""The wire formats: what an event of a stream means, how an error is read, and how one is written.

Readers are lenient: what cannot be read is content, which passes through. An event is a server-sent one, or a line of
an NDJSON stream, which has no name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum

import msgspec

from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire import error as errors
from hivemind_addon.proxy.wire.error import ErrorFacts, explicit_error, unreadable_error, word
from hivemind_addon.proxy.wire.ndjson import NDJSON, NdjsonParser
from hivemind_addon.proxy.wire.sse import SSE, SseEvent, SseParser
from hivemind_addon.system.json_values import read_object, read_value

ROLE_ONLY_DELTA = "role-only-delta"
"""What a profile's `bookkeeping_events` call a chat chunk without content; chat chunks have no event names."""


class EventClass(Enum):
    """What an event of a stream means for its delivery."""

    BOOKKEEPING = "bookkeeping"
    """Nothing that a client acts on: kept back, so that an error behind it can still be retried."""
    CONTENT = "content"
    ERROR = "error"
    TERMINAL = "terminal"
    """The answer is complete."""


class Dialect(ABC):
    """One wire format. Stateless; nothing here raises on what a provider sends."""

    media_type = SSE
    """The `content-type` of its streamed answers."""

    def parser(self) -> SseParser | NdjsonParser:
        """Cuts a streamed answer into events."""
        return SseParser()

    @property
    def takes_comments(self) -> bool:
        """Whether a stream has something that its client overlooks: what a keep-alive is made of."""
        return self.media_type == SSE

    @abstractmethod
    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        """What the event means before the first content; `bookkeeping` are the profile's names."""

    @abstractmethod
    def classify_after_content(self, event: SseEvent) -> EventClass:
        """ERROR, TERMINAL or CONTENT, at the cost of a look: for every event once content was seen."""

    @abstractmethod
    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        """The error that the event carries; None when it is no error event."""

    @abstractmethod
    def text_of(self, event: SseEvent) -> str:
        """Generated text and tool arguments of the event; empty when it carries none."""

    @abstractmethod
    def error_body(self, status: int, error: str, message: str, resets_at: int | None = None) -> bytes:
        """An error answer; an empty `error` becomes the one that usually comes with the status.

        `resets_at`: the epoch second at which a spent limit comes back, for formats that have a place for it.
        """

    @abstractmethod
    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        """One event that ends a stream whose head was sent; `retry_after_s` None: coming back is useless."""

    def ends_without_terminal(self, event: SseEvent) -> bool:  # noqa: ARG002 - only one dialect needs to look
        """Whether a stream whose last event is this one is complete although no terminal event followed."""
        return False

    def error_in_body(self, body: bytes) -> ErrorFacts | None:
        """The error object of a whole answer; None when the body holds none or is no JSON."""
        return errors.error_in_body(body)


def event_name(event: SseEvent) -> str:
    """The event's name, else the `type` inside its data (some gateways drop the `event:` line)."""
    if event.event:
        return event.event
    return word((read_object(event.data) or {}).get("type"))


def _is_done(data: bytes) -> bool:
    return len(data) < 16 and data.strip() == b"[DONE]"


def _sse(name: str, value: object) -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def _with_delay(message: str, retry_after_s: float | None) -> str:
    """The words that clients read a delay from."""
    if retry_after_s is None:
        return message
    return f"{message.rstrip('. ')}. Please try again in {retry_after_s:.10g} s.".lstrip(". ")


class _AnthropicMessages(Dialect):
    """`event:` names everything, so almost no JSON is read."""

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        name = event_name(event)
        if name == "error":
            return EventClass.ERROR
        if name == "message_stop":
            return EventClass.TERMINAL
        return EventClass.BOOKKEEPING if name in bookkeeping else EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        return self.classify(event, frozenset())

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        if event_name(event) != "error":
            return None
        return explicit_error(read_object(event.data) or {}) or unreadable_error(event.data)

    def text_of(self, event: SseEvent) -> str:
        if event.event not in {"", "content_block_delta"}:
            return ""
        delta = read_value((read_object(event.data) or {}).get("delta"))
        if not isinstance(delta, dict):
            return ""
        return _joined(delta.get(name) for name in ("text", "thinking", "partial_json"))

    def error_body(self, status: int, error: str, message: str, resets_at: int | None = None) -> bytes:  # noqa: ARG002
        return msgspec.json.encode(_anthropic_error(error or _anthropic_type(status), message))

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        return _sse("error", _anthropic_error(error or "api_error", _with_delay(message, retry_after_s)))


def _anthropic_type(status: int) -> str:
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


def _anthropic_error(error: str, message: str) -> dict[str, object]:
    return {"type": "error", "error": {"type": error, "message": message}}


def _joined(parts: Iterable[object]) -> str:
    """The strings among the parts, joined."""
    return "".join(part for part in parts if isinstance(part, str))


class _OpenAI(Dialect):
    """What both OpenAI formats share: the error object."""

    def error_body(self, status: int, error: str, message: str, resets_at: int | None = None) -> bytes:
        value = _openai_error(error or _openai_type(status), message)
        if resets_at is not None:
            value["error"]["resets_at"] = resets_at  # where Codex looks for it
        return msgspec.json.encode(value)


def _openai_type(status: int) -> str:
    names = {429: "rate_limit_exceeded", 503: "server_is_overloaded", 529: "server_is_overloaded"}
    return names.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _openai_error(error: str, message: str) -> dict[str, dict[str, object]]:
    return {"error": {"message": message, "type": error, "param": None, "code": error}}


class _OpenAIChat(_OpenAI):
    """Nameless chunks; a closing `[DONE]`."""

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        if _is_done(event.data):
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
        return EventClass.TERMINAL if _is_done(event.data) else EventClass.CONTENT

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        facts = explicit_error(read_object(event.data) or {})
        if facts is None and event.event == "error":
            return unreadable_error(event.data)
        return facts

    def text_of(self, event: SseEvent) -> str:
        choices = read_value((read_object(event.data) or {}).get("choices"))
        if not isinstance(choices, list):
            return ""
        return "".join(_text_of_choice(choice) for choice in choices if isinstance(choice, dict))

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
        return _sse("", _openai_error(error or "server_error", _with_delay(message, retry_after_s)))


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


def _text_of_choice(choice: Mapping[str, object]) -> str:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return _joined([choice.get("text")])  # the legacy completions endpoint
    texts: list[object] = [delta.get(name) for name in ("content", "refusal")]
    # Two names for one thing; a server that sends both sends the same text twice.
    texts.append(delta.get("reasoning_content") or delta.get("reasoning"))
    calls = delta.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for function in [*functions, delta.get("function_call")]:
        if isinstance(function, dict):
            texts += [function.get("name"), function.get("arguments")]
    return _joined(texts)


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


class _OpenAIResponses(_OpenAI):
    """Every event names itself, in `event:` and in `type`."""

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        name = event_name(event)
        if name in {"error", "response.failed"}:
            return EventClass.ERROR
        if name in {"response.completed", "response.incomplete"} or _is_done(event.data):
            return EventClass.TERMINAL
        return EventClass.BOOKKEEPING if name in bookkeeping else EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        return self.classify(event, frozenset())

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        if event_name(event) not in {"error", "response.failed"}:
            return None
        return explicit_error(read_object(event.data) or {}) or unreadable_error(event.data)

    def text_of(self, event: SseEvent) -> str:
        name = event_name(event)
        if not name.endswith(".delta") or "audio" in name:
            return ""
        return _joined([read_value((read_object(event.data) or {}).get("delta"))])

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
            "error": {"code": code, "message": _with_delay(message, retry_after_s)},
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
        return _sse("response.failed", value)


class _Ollama(Dialect):
    """One JSON object a line, a chat's or a completion's; the last one says `done`."""

    media_type = NDJSON

    def parser(self) -> SseParser | NdjsonParser:
        return NdjsonParser()

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        top = read_object(event.data)
        if top is None:
            return EventClass.CONTENT
        if explicit_error(top) is not None:
            return EventClass.ERROR
        if read_value(top.get("done")) is True:
            return EventClass.TERMINAL
        if ROLE_ONLY_DELTA in bookkeeping and not any(_ollama_parts(top)):
            return EventClass.BOOKKEEPING
        return EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        # As in chat chunks: inside generated text the quotes are escaped.
        if b'"error"' in event.data or b'"done":true' in event.data or b'"done": true' in event.data:
            return self.classify(event, frozenset())
        return EventClass.CONTENT

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        return explicit_error(read_object(event.data) or {})

    def text_of(self, event: SseEvent) -> str:
        parts = _ollama_parts(read_object(event.data) or {})
        return "".join(part if isinstance(part, str) else msgspec.json.encode(part).decode() for part in parts if part)

    def error_body(self, status: int, error: str, message: str, resets_at: int | None = None) -> bytes:  # noqa: ARG002
        return msgspec.json.encode({"error": message or error or "failed"})

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        return msgspec.json.encode({"error": _with_delay(message or error or "failed", retry_after_s)}) + b"\n"


def _ollama_parts(top: Mapping[str, msgspec.Raw]) -> list[object]:
    """What a line generates: text, thinking, tool calls; of `/api/chat` and of `/api/generate`."""
    message = read_value(top.get("message"))
    inner = message if isinstance(message, dict) else {}
    outer = [read_value(top.get(name)) for name in ("response", "thinking")]
    return [*(inner.get(name) for name in ("thinking", "content", "tool_calls")), *outer]


_DIALECTS: Mapping[DialectName, Dialect] = {
    DialectName.ANTHROPIC_MESSAGES: _AnthropicMessages(),
    DialectName.OPENAI_CHAT: _OpenAIChat(),
    DialectName.OPENAI_RESPONSES: _OpenAIResponses(),
    DialectName.OLLAMA: _Ollama(),
}


def dialect_of(name: DialectName) -> Dialect:
    """The dialect of this name."""
    return _DIALECTS[name]
