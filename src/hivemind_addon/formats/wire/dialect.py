"""A wire format, ready to read: everything that `WireFormat` says of it, taken apart once.

Readers are lenient: what cannot be read is content, which passes through. An event is a server-sent one, a line of an
NDJSON stream, an item of an array, a binary message: all but the first have no name, or one of their own kind.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Protocol

import msgspec

from hivemind_addon.formats.base.json_values import UNREADABLE, read_object, read_value
from hivemind_addon.formats.base.memo import by_thing
from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import Framing, UsagePlaces, WireFormat, Wording
from hivemind_addon.formats.profile.formats import format_named
from hivemind_addon.formats.wire.aws_eventstream import PRELUDE_BYTES, EventStreamParser, is_prelude
from hivemind_addon.formats.wire.conversation_parts import Assembly, Part, Values, message_parts
from hivemind_addon.formats.wire.envelope import Unwrapper
from hivemind_addon.formats.wire.error import ERROR_MARK, ErrorFacts, explicit_error, unreadable_error, word
from hivemind_addon.formats.wire.error_form import error_body, error_event, error_headers, usual_error
from hivemind_addon.formats.wire.json_array import JsonArrayParser
from hivemind_addon.formats.wire.ndjson import NdjsonParser
from hivemind_addon.formats.wire.request import RequestPlan
from hivemind_addon.formats.wire.runs import LEAST_BYTES, ContentMarks, IsRun, run_test
from hivemind_addon.formats.wire.sse import BOM, SseEvent, SseParser
from hivemind_addon.formats.wire.wordings.chat import ChatWording
from hivemind_addon.formats.wire.wordings.messages import MessagesWording
from hivemind_addon.formats.wire.wordings.ollama import OllamaWording
from hivemind_addon.formats.wire.wordings.places import PlacesWording
from hivemind_addon.formats.wire.wordings.responses import ResponsesWording
from hivemind_addon.kernel.values.ticket import Usage

MAX_TOKENS = 20_000_000
"""Twice the longest context that any provider offers (10 million, 2026-08)."""
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""One of them begins a stream of server-sent events."""
_NUMBER = msgspec.json.Decoder(float | int | None)
_MOST_NAMES = 200
_NOTHING_USED = Usage()

type Steps = tuple[str, ...]
"""The members that lead to a value."""
type Parser = SseParser | NdjsonParser | JsonArrayParser | EventStreamParser


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
        self._long = len(self._done) + LEAST_BYTES if self._done else 0
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
        self._marks = ContentMarks(events)
        self._sure_names: dict[str, bool] = {}
        self._sure_raw: set[bytes] = set()
        """Those of them that are sure, as streams have them."""
        # An envelope in base64 hides what is in it, and what another one has before it is not known.
        shows = envelope is None or (not envelope.base64 and self._marks.tell_several)
        self._run_tests: dict[Framing, IsRun | None] = {
            one: run_test(one, events, self._marks, self._sure_raw) for one in (form.framing.values() if shows else ())
        }
        self._usage = _UsageReader(form.usage)

    def __repr__(self) -> str:
        return f"<Dialect {self.name}>"

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

    def run_test(self, media_type: str = "") -> IsRun | None:
        """Whether a piece of such an answer, after content and between two events, is a run; None: none is."""
        return self._run_tests.get(self.framing_of(media_type))

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
        return top if envelope is None or envelope.base64 else members_on(top, _steps(envelope.at)) or top

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
                    self._sure_raw.clear()
                sure = self._sure_names[name] = self._is_sure(name)
                if sure:
                    self._sure_raw.add(name.encode())
            return sure and (len(data) >= self._long or not self._is_done(data))
        return self._marks.tell and len(data) >= LEAST_BYTES and self._marks.fit(data)

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
        self,
        status: int,
        error: str,
        message: str,
        resets_at: int | None = None,
        retry_after_s: float | None = None,
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
        return (
            top is not None
            and not self._carries_content(top)
            and any(members_on(top, one) for one in self._usage.in_events)
        )

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

    # Usage.

    def usage_of(self, top: Values, before: Usage | None = None) -> Usage | None:
        """The usage that an answer tells, what it leaves out taken from `before`; None: none. UntrueUsageError.

        `Usage.input_tokens` is uncached input.
        """
        return self._usage.of_answer(top, before)

    def usage_of_event(self, event: SseEvent, before: Usage | None) -> tuple[Usage, bool] | None:
        """The usage that an event tells, and whether of the output, too; cheap for those that tell none.

        Raises UntrueUsageError.
        """
        return self._usage.of_event(event, before)

    def had_input(self, usage: Usage) -> bool:
        """Whether a usage has input, as every answer had."""
        return usage.total_input_tokens > 0 or (self.form.usage.may_lack_input and usage.output_tokens > 0)

    # Conversations, for people.

    def read_answer(self, top: Values, answer: Assembly) -> None:
        """Put together an answer that is one JSON object."""
        self.wording.read_answer(top, answer)

    def read_event(self, name: str, top: Values, answer: Assembly) -> None:
        """Put the next event of a streamed answer to what came before."""
        self.wording.read_event(name, top, answer)

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


class _UsageReader:
    """Where a format tells its tokens, taken apart."""

    def __init__(self, places: UsagePlaces) -> None:
        self.in_events = tuple(map(_steps, places.in_events))
        self._at = tuple(map(_steps, places.at))
        self._begun = tuple(map(_steps, places.begun_in_events))
        self._events = frozenset(places.events)
        self._adds_up = places.adds_up
        self._includes_cache = places.input_includes_cache
        self._input, self._output = _amount(places.input, add=True), _amount(places.output, add=True)
        self._cache_read, self._cache_write = _amount(places.cache_read), _amount(places.cache_write)
        numbers = [_mark(_steps(one)[-1]) for one in (*places.input, *places.output)]
        marks: dict[bytes, None] = {}
        for one in (*self.in_events, *self._begun):
            marks |= dict.fromkeys([_mark(one[-1])] if one else numbers)
        self._marks = tuple(marks)

    def of_answer(self, top: Values, before: Usage | None) -> Usage | None:
        for one in self._at:
            if members := members_on(top, one):
                return self._read(members, before)
        return None

    def of_event(self, event: SseEvent, before: Usage | None) -> tuple[Usage, bool] | None:
        if self._events and event.event and event.event not in self._events:
            return None
        data = event.data
        for mark in self._marks:
            if mark in data:
                break
        else:
            return None
        top = read_object(data)
        if top is None:
            return None
        for places, is_final in ((self._begun, False), (self.in_events, True)):
            for one in places:
                if members := members_on(top, one):
                    usage = self._read(members, before)
                    return None if usage is None else (usage, is_final)
        return None

    def _read(self, members: Values, before: Usage | None) -> Usage | None:
        input_tokens, output_tokens = self._input(members), self._output(members)
        if input_tokens is None and output_tokens is None:
            return None
        read_tokens, write_tokens = self._cache_read(members), self._cache_write(members)
        # What tells the input at the beginning may send zeros in the end.
        base = before if before is not None and self._adds_up else _NOTHING_USED
        total_tokens = input_tokens or base.input_tokens
        read_tokens, write_tokens = read_tokens or base.cache_read_tokens, write_tokens or base.cache_write_tokens
        if self._includes_cache:
            read_tokens = min(read_tokens, total_tokens)
            write_tokens = min(write_tokens, total_tokens - read_tokens)
            total_tokens -= read_tokens + write_tokens
        return Usage(
            input_tokens=total_tokens,
            cache_read_tokens=read_tokens,
            cache_write_tokens=write_tokens,
            output_tokens=base.output_tokens if output_tokens is None else output_tokens,
            reported=True,
        )


def _steps(text: str) -> Steps:
    return Pointer.parse(text).steps


def event_name(event: SseEvent) -> str:
    """The event's name, else the `type` inside its data (some gateways drop the `event:` line)."""
    if event.event:
        return event.event
    return word((read_object(event.data) or {}).get("type"))


def members_at(top: Values, name: str) -> Values:
    """The members of the object of that name, read or still JSON; none where there is no object."""
    value = top.get(name)
    if isinstance(value, msgspec.Raw):
        value = read_object(value)
    return value if isinstance(value, dict) else {}


def members_on(top: Values, way: Steps) -> Values:
    """The members of the object to which these lead; none where there is no object."""
    for name in way:
        top = members_at(top, name)
        if not top:
            break
    return top


def tokens_at(members: Values, name: str) -> int | None:
    """A number of tokens, read or still JSON; None: none is told. UntrueUsageError."""
    value = members.get(name)
    if type(value) is msgspec.Raw:
        try:
            value = _NUMBER.decode(value)
        except UNREADABLE as error:
            raise UntrueUsageError from error
    if type(value) is int and 0 <= value <= MAX_TOKENS:
        return value
    if value is None:
        return None
    if not isinstance(value, float) or value != int(value) or not 0 <= value <= MAX_TOKENS:
        raise UntrueUsageError
    return int(value)


def _amount(places: tuple[str, ...], *, add: bool = False) -> Callable[[Values], int | None]:
    """What finds a number of tokens among a usage's members: the sum of what stands at its places, or the first."""
    ways = tuple(map(_steps, places))
    if len(ways) == 1 and len(ways[0]) == 1:
        return partial(tokens_at, name=ways[0][0])

    def amount(members: Values) -> int | None:
        total = None
        for way in ways:
            if way[0] in members:
                told = tokens_at(members if len(way) == 1 else members_on(members, way[:-1]), way[-1])
                if told is not None:
                    if not add:
                        return told
                    total = told if total is None else total + told
        return total

    return amount


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
