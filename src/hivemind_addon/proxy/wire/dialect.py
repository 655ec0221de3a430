"""What there is to know about a wire format; `dialects/` has a file for each of them.

Readers are lenient: what cannot be read is content, which passes through. An event is a server-sent one, or a line of
an NDJSON stream, which has no name.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

import msgspec

from hivemind_addon.api.ticket import Usage
from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.proxy.wire.error import ErrorFacts, word
from hivemind_addon.proxy.wire.ndjson import NdjsonParser
from hivemind_addon.proxy.wire.parts import Assembly, Values
from hivemind_addon.proxy.wire.request import UNREADABLE, RequestBody
from hivemind_addon.proxy.wire.sse import SSE, SseEvent, SseParser
from hivemind_addon.system.json_values import read_object

ROLE_ONLY_DELTA = "role-only-delta"
"""What a profile's `bookkeeping_events` call a chat chunk without content; chat chunks have no event names."""

MAX_TOKENS = 20_000_000
"""Twice the longest context that any provider offers (10 million, 2026-08)."""
Members = Mapping[str, msgspec.Raw]
"""A JSON object's members, still JSON."""
_NUMBER = msgspec.json.Decoder(float | int | None)


class UntrueUsageError(ValueError):
    """A number of tokens that no answer has: negative, not whole, or more than any model takes.

    Such a usage counts as none, with all of its numbers. It would be booked, and learned from.
    """


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

    name: ClassVar[DialectName]
    media_type = SSE
    """The `content-type` of its streamed answers."""
    conversation = "messages"
    """The member of a request that holds the conversation."""
    streams_unasked = False
    """Whether an answer is streamed where the request does not say."""
    max_output_names: tuple[str, ...] = ("max_tokens",)
    """The members of a request that bound the output; the first that is there counts."""

    # Streamed answers and errors.

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
    def is_only_content(self, event: SseEvent) -> bool:
        """Whether an event after content surely is CONTENT and tells no usage. In doubt it is not: it is read."""

    @abstractmethod
    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        """The error that the event carries; None when it is no error event."""

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

    # Requests.

    def max_output_tokens(self, body: RequestBody) -> int | None:
        """The bound that a request sets to its output."""
        for name in self.max_output_names:
            value = body.number(name)
            if value is None:
                continue
            if 0 <= value < 1e9:
                return value
            body.note(f"{name}: {value:.3g} is absurd")
        return None

    def session_hints(self, body: RequestBody) -> tuple[str, str]:
        """What a request says about its session, and about the one that started it; empty: nothing."""
        return body.text("prompt_cache_key") or body.text("user") or "", ""

    # Usage.

    @abstractmethod
    def usage_of(self, top: Values, before: Usage | None = None) -> Usage | None:
        """The usage that an answer tells, what it leaves out taken from `before`; None: none. UntrueUsageError.

        `Usage.input_tokens` is uncached input. OpenAI's formats count cached tokens (read and written) inside
        `prompt_tokens` / `input_tokens`, so these are taken out; Anthropic counts them beside it.
        """

    @abstractmethod
    def usage_of_event(self, event: SseEvent, before: Usage | None) -> tuple[Usage, bool] | None:
        """The usage that an event tells, and whether of the output, too; cheap for those that tell none.

        Raises UntrueUsageError.
        """

    def had_input(self, usage: Usage) -> bool:
        """Whether a usage has input, as every answer had."""
        return usage.total_input_tokens > 0

    # Answers, for people.

    @abstractmethod
    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""

    @abstractmethod
    def read_event(self, name: str, top: Values, answer: Assembly) -> None:
        """Put the next event of a streamed answer to what came before."""


def event_name(event: SseEvent) -> str:
    """The event's name, else the `type` inside its data (some gateways drop the `event:` line)."""
    if event.event:
        return event.event
    return word((read_object(event.data) or {}).get("type"))


def is_done(data: bytes) -> bool:
    """Whether an event is OpenAI's closing one."""
    return len(data) < 16 and data.strip() == b"[DONE]"


def sse_event(name: str, value: object) -> bytes:
    """An event as it is sent; an empty name is left out."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(value) + b"\n\n"


def with_delay(message: str, retry_after_s: float | None) -> str:
    """The words that clients read a delay from."""
    if retry_after_s is None:
        return message
    return f"{message.rstrip('. ')}. Please try again in {retry_after_s:.10g} s.".lstrip(". ")


def members_at(top: Values, name: str) -> Values:
    """The members of the object of that name, read or still JSON; none where there is no object."""
    value = top.get(name)
    if isinstance(value, msgspec.Raw):
        value = read_object(value)
    return value if isinstance(value, dict) else {}


def tokens_at(members: Values, name: str) -> int | None:
    """A number of tokens, read or still JSON; None: none is told. UntrueUsageError."""
    value = members.get(name)
    if value is None:
        return None
    if isinstance(value, msgspec.Raw):
        try:
            value = _NUMBER.decode(value)
        except UNREADABLE as error:
            raise UntrueUsageError from error
        if value is None:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UntrueUsageError
    if value != int(value) or not 0 <= value <= MAX_TOKENS:
        raise UntrueUsageError
    return int(value)
