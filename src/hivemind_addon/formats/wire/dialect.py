"""A wire format, ready to read: everything that `WireFormat` says of it, taken apart once.

Readers are lenient: what cannot be read is content, which passes through. An event is a server-sent one, a line of an
NDJSON stream, an item of an array, a binary message: all but the first have no name, or one of their own kind.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

import msgspec

from hivemind_addon.formats.base.json_values import read_object, read_value
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import EventRules, Framing, WireFormat, Wording
from hivemind_addon.formats.profile.formats import format_named
from hivemind_addon.formats.wire.aws_eventstream import PRELUDE_BYTES, EventStreamParser, is_prelude
from hivemind_addon.formats.wire.conversation_parts import Assembly, Part, Values, message_parts
from hivemind_addon.formats.wire.envelope import Unwrapper
from hivemind_addon.formats.wire.error import ERROR_MARK, ErrorFacts, explicit_error, unreadable_error, word
from hivemind_addon.formats.wire.error_form import error_body, error_event, error_headers, usual_error
from hivemind_addon.formats.wire.json_array import JsonArrayParser
from hivemind_addon.formats.wire.ndjson import NdjsonParser
from hivemind_addon.formats.wire.request import RequestPlan
from hivemind_addon.formats.wire.sse import BOM, SseEvent, SseParser
from hivemind_addon.formats.wire.usage import UsageReader
from hivemind_addon.formats.wire.wordings.chat import ChatWording
from hivemind_addon.formats.wire.wordings.messages import MessagesWording
from hivemind_addon.formats.wire.wordings.ollama import OllamaWording
from hivemind_addon.formats.wire.wordings.places import PlacesWording
from hivemind_addon.formats.wire.wordings.responses import ResponsesWording

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""One of them begins a stream of server-sent events."""
_LEAST_BYTES = 16
"""Of the data of an event without a name that surely is content: shorter data may be `[DONE]`."""
_MOST_NAMES = 200

type Steps = tuple[str, ...]
"""The members that lead to a value."""
type Parser = SseParser | NdjsonParser | JsonArrayParser | EventStreamParser


class EventClass(Enum):
    """What an event of a stream means for its delivery."""

    BOOKKEEPING = "bookkeeping"
    """Nothing that a client acts on: kept back, so that an error behind it can still be retried."""
    CONTENT = "content"
    ERROR = "error"
    TERMINAL = "terminal"
    """The answer is complete."""


class WordingReader(Protocol):
    """Takes the words out of answers."""

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:
        """Put the next event of a streamed answer to what came before."""


_WORDINGS: Mapping[Wording, type[WordingReader]] = {
    Wording.MESSAGES: MessagesWording,
    Wording.CHAT: ChatWording,
    Wording.RESPONSES: ResponsesWording,
    Wording.OLLAMA: OllamaWording,
}


class _ContentMarks:
    """The words whose presence or absence shows that an event without a name surely is content."""

    def __init__(self, rules: EventRules) -> None:
        self._with = tuple(one.encode() for one in rules.surely_content_with)
        stops = [f'"{one.rpartition("/")[2]}"' for one in rules.complete_if] if rules.surely_content_without else ()
        without = dict.fromkeys((*rules.surely_content_without, *stops))
        self._without = tuple((mark := one.encode(), mark + b":null") for one in without)

    def fit(self, data: bytes) -> bool:
        """Whether the event surely is content: of one that is long enough not to be `[DONE]`."""
        for mark, null in self._without:
            if mark in data and data.count(mark) != data.count(null):
                return False
        return bool(self._without) and all(map(data.__contains__, self._with))


class Dialect:
    """One wire format. Holds nothing of any stream; nothing here raises on what a provider sends."""

    def __init__(self, form: WireFormat) -> None:
        events = form.events
        self.form = form
        self.name = form.name
        """The packaged format's, for what is recorded."""
        self.plan = RequestPlan(form.request)
        self.media_types = tuple(form.framing)
        self.wording: WordingReader = _WORDINGS[form.wording]() if form.wording in _WORDINGS else PlacesWording(form)
        envelope = form.envelope
        self.unwrapper = Unwrapper(envelope.at, base64=envelope.base64) if envelope else None
        """Takes its events out of what they are wrapped in; None: they are not."""
        self._done = events.done.encode()
        self._long = len(self._done) + _LEAST_BYTES if self._done else 0
        """Longer data cannot be the closing one."""
        self._kinds = {
            **dict.fromkeys((*events.bookkeeping, *events.opening), EventClass.BOOKKEEPING),
            **dict.fromkeys(events.terminal, EventClass.TERMINAL),
            **dict.fromkeys(events.error, EventClass.ERROR),
        }
        self._content = tuple(map(_steps, events.content))
        self._not_content = frozenset(events.not_content)
        self._done_if = tuple(map(Pointer.parse, events.done_if))
        self._complete_if = tuple((_mark(_steps(one)[-1]), Pointer.parse(one)) for one in events.complete_if)
        error_marks = {ERROR_MARK, *(_mark(_steps(one)[0]) for one in form.error.at)}
        self._worth_a_look = (*error_marks, *(_mark(_steps(one)[-1]) for one in events.done_if))
        self._marks = _ContentMarks(events)
        self._sure_names: dict[str, bool] = {}
        self.usage = UsageReader(form.usage)

    # Streamed answers and errors.

    def parser(self, media_type: str = "") -> Parser:
        """Cuts a streamed answer of a media type into events; of the format's usual one where it has no such."""
        match self.framing_of(media_type):
            case Framing.SSE:
                return SseParser(bare_json=self.form.bare_json)
            case Framing.NDJSON:
                return NdjsonParser()
            case Framing.JSON_ARRAY:
                return JsonArrayParser()
            case Framing.AWS_EVENTSTREAM:
                return EventStreamParser()

    def framing_of(self, media_type: str) -> Framing:
        """How a streamed answer of a media type is cut into events; the usual way where the format has no such."""
        framings = self.form.framing
        return framings.get(media_type) or next(iter(framings.values()))

    def may_keep_alive(self, path: str) -> bool:
        """Whether the client of a held stream overlooks the format's `keep_alive`. `path`: the request's."""
        needed = self.form.keep_alive_query
        return bool(self.form.keep_alive) and (not needed or needed in path.partition("?")[2].split("&"))

    def inner(self, top: Values) -> Values:
        """The members of a whole answer without its envelope; base64 is for events alone."""
        envelope = self.form.envelope
        inner = None if envelope is None or envelope.base64 else Pointer.parse(envelope.at).find(top)
        return inner if isinstance(inner, dict) and inner else top

    def classify(self, event: SseEvent) -> EventClass:
        """What the event means before the first content."""
        data = event.data
        if len(data) < self._long and self._is_done(data):
            return EventClass.TERMINAL
        if not self._content:
            kind = self._kinds.get(event_name(event), EventClass.CONTENT)
            # The end may say that it failed; and an error of a gateway has no name that the format knows.
            may_fail = bool(self.form.error.at) if kind is EventClass.TERMINAL else kind is EventClass.CONTENT
            return EventClass.ERROR if may_fail and self.error_of(event) is not None else kind
        named = self._kinds.get(event.event)
        top = read_object(data)
        if named is EventClass.ERROR or (top is not None and explicit_error(top, self.form.error) is not None):
            return EventClass.ERROR
        if named is not None:
            return named
        if top is None:
            return EventClass.CONTENT if data.strip() else EventClass.BOOKKEEPING
        if any(one.find(top) is True for one in self._done_if):
            return EventClass.TERMINAL
        return EventClass.CONTENT if self._carries_content(top) else EventClass.BOOKKEEPING

    def classify_after_content(self, event: SseEvent) -> EventClass:
        """ERROR, TERMINAL or CONTENT, at the cost of a look: for every event once content was seen."""
        data = event.data
        if self._content and event.event not in self._kinds:
            # Inside generated text the quotes are escaped: a mark is a key or a value of the event itself.
            for mark in self._worth_a_look:
                if mark in data:
                    break
            else:
                is_done = len(data) < self._long and self._is_done(data)
                return EventClass.TERMINAL if is_done else EventClass.CONTENT
        kind = self.classify(event)
        return EventClass.CONTENT if kind is EventClass.BOOKKEEPING else kind

    def opens(self, event: SseEvent) -> bool:
        """Whether the event begins a part of the answer."""
        return bool(self.form.events.opening) and event_name(event) in self.form.events.opening

    def is_only_content(self, event: SseEvent) -> bool:
        """Whether an event after content surely is CONTENT and tells no usage. In doubt it is not: it is read."""
        name, data = event.event, event.data
        if name:
            sure = self._sure_names.get(name)
            if sure is None:
                if len(self._sure_names) >= _MOST_NAMES:
                    self._sure_names.clear()
                sure = self._sure_names[name] = self._is_sure(name)
            return sure and (len(data) >= self._long or not self._is_done(data))
        return len(data) >= _LEAST_BYTES and self._marks.fit(data)

    def _is_sure(self, name: str) -> bool:
        return any(glob_matches(glob, name) for glob in self.form.events.surely_content)

    def error_of(self, event: SseEvent) -> ErrorFacts | None:
        """The error that the event carries; None when it is no error event."""
        name = event_name(event)
        is_named = self._kinds.get(name) is EventClass.ERROR
        if not is_named and self._is_sure(name):
            return None
        facts = explicit_error(read_object(event.data) or {}, self.form.error)
        return unreadable_error(event.data) if facts is None and is_named else facts

    def error_body(
        self, status: int, error: str, message: str, resets_at: int | None = None, retry_after_s: float | None = None
    ) -> bytes:
        """An error answer; an empty `error` becomes the one that usually comes with the status.

        `resets_at`: the epoch second at which a spent limit comes back, for formats that have a place for it.
        """
        return error_body(self.form.error_form, status, error, message, resets_at, retry_after_s)

    def error_headers(
        self, status: int, error: str, resets_at: int | None = None, retry_after_s: float | None = None
    ) -> dict[str, str]:
        """What the head of such an answer has, beside what every refusal has."""
        return error_headers(self.form.error_form, status, error, resets_at, retry_after_s)

    def usual_error(self, status: int) -> str:
        """What an error with this status is called; empty: its clients do not look at names."""
        return usual_error(self.form.error_form, status)

    def error_event(self, error: str, message: str, retry_after_s: float | None) -> bytes:
        """One event that ends a stream whose head was sent; `retry_after_s` None: coming back is useless."""
        framing = next(iter(self.form.framing.values()))
        return error_event(self.form.error_form, framing, error, message, retry_after_s)

    def stops(self, event: SseEvent) -> bool:
        """Whether the event says why the answer has ended: what may follow is bookkeeping, or another choice."""
        ways = [way for mark, way in self._complete_if if mark in event.data]
        top = read_object(event.data) if ways else None
        return top is not None and any(way.find(top) for way in ways)

    def ends_without_terminal(self, event: SseEvent) -> bool:
        """Whether a stream whose last event is this one is complete although no terminal event followed."""
        if self.stops(event):
            return True
        top = read_object(event.data) if self.form.events.complete_after_usage else None
        return top is not None and not self._carries_content(top) and bool(self.usage.in_event(event))

    def media_type_in(self, start: bytes) -> str | None:
        """The media type that a body's first bytes are framed as; empty: it is no stream; None: it is not told yet.

        Gateways send events as `application/json`, and one object as `text/event-stream` (2026-11). An object may be
        the first line of a stream.
        """
        if start.startswith(b"\0") and Framing.AWS_EVENTSTREAM in self.form.framing.values():
            if len(start) < PRELUDE_BYTES:
                return None
            return self._media_type_of(Framing.AWS_EVENTSTREAM) if is_prelude(start) else ""
        start = start.removeprefix(BOM).lstrip()
        if start.startswith(_FIELDS):
            framing = Framing.SSE
        elif any(one.startswith(start) for one in (*_FIELDS, BOM)):
            return None
        elif start.startswith((b"{", b"[")):
            framing = Framing.NDJSON if start.startswith(b"{") else Framing.JSON_ARRAY
        else:
            return ""
        return self._media_type_of(framing)

    def _media_type_of(self, framing: Framing) -> str:
        return next((one for one, known in self.form.framing.items() if known is framing), "")

    def _is_done(self, data: bytes) -> bool:
        return data.strip() == self._done

    def _carries_content(self, top: Mapping[str, msgspec.Raw]) -> bool:
        """Whether anything stands at one of the places of content, or what cannot be understood on the way."""
        return any(
            one[0] in top and _carries(read_value(top[one[0]]), one[1:], self._not_content) for one in self._content
        )

    # Conversations, for people.

    def message_parts(self, message: Values) -> list[Part]:
        """The pieces of one message of a request."""
        if isinstance(self.wording, PlacesWording):
            return list(self.wording.message_parts(message))
        return list(message_parts(message))


dialect_of = by_thing(Dialect)
"""The reader of a format."""


def dialect_named(name: str) -> Dialect:
    """The reader of a packaged format, by the name under which it was recorded; OpenAI's chat where none has it."""
    return dialect_of(format_named(name))


def _steps(text: str) -> Steps:
    return Pointer.parse(text).steps


def event_name(event: SseEvent) -> str:
    """The event's name, else the `type` inside its data (some gateways drop the `event:` line)."""
    if event.event:
        return event.event
    return word((read_object(event.data) or {}).get("type"))


def _mark(name: str) -> bytes:
    return msgspec.json.encode(name)


def _carries(value: object, way: Steps, not_content: frozenset[str]) -> bool:
    if not way or value is None:
        return bool(value)
    name, rest = way[0], way[1:]
    if name != "*":
        return _carries(value.get(name), rest, not_content) if isinstance(value, dict) else True
    if isinstance(value, list):
        return any(_carries(one, rest, not_content) for one in value)
    if isinstance(value, dict):
        return any(_carries(one, rest, not_content) for key, one in value.items() if rest or key not in not_content)
    return bool(rest)
