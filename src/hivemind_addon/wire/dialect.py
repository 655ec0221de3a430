"""The three wire formats: what an event of a stream means, how an error is read, and how one is written.

Readers are lenient: gateways mix the shapes, so an error object is found wherever one of the formats puts it,
and what cannot be read is content, which passes through.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from hivemind_addon.profile.model import DialectName
from hivemind_addon.wire.sse import SseEvent

ROLE_ONLY_DELTA = "role-only-delta"
"""What a profile's `bookkeeping_events` call a chat chunk without content; chat chunks have no event names."""

_MAX_MESSAGE_CHARS = 2000
_MAX_WORD_CHARS = 200
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
# The last two are what msgspec lets through for broken text and for thousands of nested brackets.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_object(data: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object, each still JSON; None when it is no object."""
    try:
        return _OBJECT.decode(data)
    except _UNREADABLE:
        return None


def read_value(raw: bytes | msgspec.Raw | None) -> object:
    """One JSON value; None when it is absent or cannot be read."""
    if raw is None:
        return None
    try:
        return _ANY.decode(raw)
    except _UNREADABLE:
        return None


class EventClass(Enum):
    """What an event of a stream means for its delivery."""

    BOOKKEEPING = "bookkeeping"
    """Nothing that a client acts on: kept back, so that an error behind it can still be retried."""
    CONTENT = "content"
    ERROR = "error"
    TERMINAL = "terminal"
    """The answer is complete."""


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """An error object as the provider wrote it; what is absent is empty."""

    type: str = ""
    code: str = ""
    """A number is written in digits."""
    message: str = ""
    """At most 2,000 characters."""
    details_code: str = ""
    """`details.error_code`."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the error is called, the most specific name first."""
        return tuple(name for name in (self.details_code, self.code, self.type) if name)


class Dialect(ABC):
    """One wire format. Stateless; nothing here raises on what a provider sends."""

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
    def error_body(self, status: int, error: str, message: str) -> bytes:
        """An error answer; an empty `error` becomes the one that usually comes with the status."""

    @abstractmethod
    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        """One event that ends a stream whose head was sent; `retry_after_s` None: coming back is useless."""

    def ends_without_terminal(self, event: SseEvent) -> bool:  # noqa: ARG002 - only one dialect needs to look
        """Whether a stream whose last event is this one is complete although no terminal event followed."""
        return False

    def error_in_body(self, body: bytes) -> ErrorFacts | None:
        """The error object of a whole answer; None when the body holds none or is no JSON."""
        top = read_object(body)
        if top is None:
            # Google's OpenAI-compatible endpoint wraps its error in a list.
            top = _first_of_list(body)
        return None if top is None else _explicit_error(top)


def _first_of_list(body: bytes) -> dict[str, msgspec.Raw] | None:
    try:
        items = _LIST.decode(body)
    except _UNREADABLE:
        return None
    return read_object(items[0]) if items else None


def _explicit_error(top: Mapping[str, msgspec.Raw]) -> ErrorFacts | None:
    error = top.get("error")
    if error is None and "response" in top:
        error = (read_object(top["response"]) or {}).get("error")
    if error is not None:
        members = read_object(error)
        if members is not None:
            return _facts(members)
        value = read_value(error)
        if isinstance(value, str) and value:
            return ErrorFacts(message=value[:_MAX_MESSAGE_CHARS])
        if value:
            return ErrorFacts()
    if read_value(top.get("object")) == "error" or read_value(top.get("type")) == "error":
        return _facts(top)
    return None


def _facts(members: Mapping[str, msgspec.Raw]) -> ErrorFacts:
    details = members.get("details")
    detail_members = read_object(details) if details is not None else None
    return ErrorFacts(
        type=_word(members.get("type")),
        code=_word(members.get("code")),
        message=_word(members.get("message"), _MAX_MESSAGE_CHARS),
        details_code=_word((detail_members or {}).get("error_code")),
    )


def _word(raw: msgspec.Raw | None, max_chars: int = _MAX_WORD_CHARS) -> str:
    value = read_value(raw)
    if isinstance(value, str):
        return value[:max_chars]
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)[:max_chars]
    return ""


def _name_of(event: SseEvent) -> str:
    """The event's name, else the `type` inside its data (some gateways drop the `event:` line)."""
    if event.event:
        return event.event
    return _word((read_object(event.data) or {}).get("type"))


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
        name = _name_of(event)
        if name == "error":
            return EventClass.ERROR
        if name == "message_stop":
            return EventClass.TERMINAL
        return EventClass.BOOKKEEPING if name in bookkeeping else EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        return self.classify(event, frozenset())

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        if _name_of(event) != "error":
            return None
        return _explicit_error(read_object(event.data) or {}) or _unreadable_error(event)

    def text_of(self, event: SseEvent) -> str:
        if event.event not in {"", "content_block_delta"}:
            return ""
        delta = read_value((read_object(event.data) or {}).get("delta"))
        if not isinstance(delta, dict):
            return ""
        return _joined(delta.get(name) for name in ("text", "thinking", "partial_json"))

    def error_body(self, status: int, error: str, message: str) -> bytes:
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


def _unreadable_error(event: SseEvent) -> ErrorFacts:
    return ErrorFacts(message=event.data[:_MAX_WORD_CHARS].decode("utf-8", "replace"))


def _joined(parts: Iterable[object]) -> str:
    """The strings among the parts, joined."""
    return "".join(part for part in parts if isinstance(part, str))


class _OpenAI(Dialect):
    """What both OpenAI formats share: the error object."""

    def error_body(self, status: int, error: str, message: str) -> bytes:
        return msgspec.json.encode(_openai_error(error or _openai_type(status), message))


def _openai_type(status: int) -> str:
    names = {429: "rate_limit_exceeded", 503: "server_is_overloaded", 529: "server_is_overloaded"}
    return names.get(status, "server_error" if status >= 500 else "invalid_request_error")


def _openai_error(error: str, message: str) -> dict[str, object]:
    return {"error": {"message": message, "type": error, "param": None, "code": error}}


class _OpenAIChat(_OpenAI):
    """Nameless chunks; a closing `[DONE]`."""

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        if _is_done(event.data):
            return EventClass.TERMINAL
        top = read_object(event.data)
        if event.event == "error" or (top is not None and _explicit_error(top) is not None):
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
        facts = _explicit_error(read_object(event.data) or {})
        if facts is None and event.event == "error":
            return _unreadable_error(event)
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


class _OpenAIResponses(_OpenAI):
    """Every event names itself, in `event:` and in `type`."""

    def classify(self, event: SseEvent, bookkeeping: frozenset[str]) -> EventClass:
        name = _name_of(event)
        if name in {"error", "response.failed"}:
            return EventClass.ERROR
        if name in {"response.completed", "response.incomplete"} or _is_done(event.data):
            return EventClass.TERMINAL
        return EventClass.BOOKKEEPING if name in bookkeeping else EventClass.CONTENT

    def classify_after_content(self, event: SseEvent) -> EventClass:
        return self.classify(event, frozenset())

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        if _name_of(event) not in {"error", "response.failed"}:
            return None
        return _explicit_error(read_object(event.data) or {}) or _unreadable_error(event)

    def text_of(self, event: SseEvent) -> str:
        name = _name_of(event)
        if not name.endswith(".delta") or "audio" in name:
            return ""
        return _joined([read_value((read_object(event.data) or {}).get("delta"))])

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        # Codex comes back for this code alone, after the delay that it finds in the message.
        code = (error or "server_error") if retry_after_s is None else "rate_limit_exceeded"
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


_DIALECTS: Mapping[DialectName, Dialect] = {
    DialectName.ANTHROPIC_MESSAGES: _AnthropicMessages(),
    DialectName.OPENAI_CHAT: _OpenAIChat(),
    DialectName.OPENAI_RESPONSES: _OpenAIResponses(),
}


def dialect_of(name: DialectName) -> Dialect:
    """The dialect of this name."""
    return _DIALECTS[name]
