"""One wire format as data. `formats/<name>.yaml` holds the packaged ones; a profile names one, or changes its keys.

A *pointer* says where in a JSON value something stands (RFC 6901: `/usage/prompt_tokens`); `*` stands for every item
of a list, or every member of an object. Where several are listed, the first at which anything stands counts, unless a
field says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hivemind_addon.formats.base.typed import BadValue


class Framing(Enum):
    """How a streamed answer is cut into events."""

    SSE = "sse"
    NDJSON = "ndjson"
    JSON_ARRAY = "json-array"
    """One array whose elements come one after the other."""
    AWS_EVENTSTREAM = "aws-eventstream"
    """Amazon's binary messages."""


class Wording(Enum):
    """How the words of a conversation are taken out of bodies, for people, and for counting."""

    MESSAGES = "messages"
    """Content blocks with a `type`, as Anthropic has them."""
    CHAT = "chat"
    """Choices with a message or a delta, as OpenAI's Chat Completions have them."""
    RESPONSES = "responses"
    """Items, as OpenAI's Responses have them."""
    OLLAMA = "ollama"
    PLACES = "places"
    """What stands at the format's `says`."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What each event of a stream is wrapped in. An event without it is read as it is."""

    at: str
    """Member that holds the event itself."""
    base64: bool = False
    """Whether it is a text in base64."""


@dataclass(frozen=True, slots=True)
class TextPlace:
    """A text within a text: who wrote it put two things in one place."""

    at: str
    """Pointer to the text."""
    member: str = ""
    """It is a JSON object: the text of this member counts."""
    match: str = ""
    """Regular expression; what its first group finds counts, and nothing where it finds nothing."""


@dataclass(frozen=True, slots=True)
class ResultPlace:
    """Where a message has what a tool's call brought."""

    at: str = ""
    """Pointer within the message to the objects of which one may be it; empty: the message itself."""
    where: Mapping[str, str] = field(default_factory=dict)
    """Member of the object → the text that must stand there."""
    content: str = "content"
    """Member of the object: what the call brought."""
    call: str = ""
    """Member of the object: the call's id; empty: the format has none."""
    stub: str = ""
    """Where nothing but an object may stand in its place: the member of it that is a text; empty: a text may."""


@dataclass(frozen=True, slots=True)
class RequestPlaces:
    """Where a request says what. A pointer leads through objects only."""

    model: tuple[str, ...] = ("/model",)
    """Its model; what a profile's `model_paths` find in the path counts before it."""
    stream: tuple[str, ...] = ("/stream",)
    """Whether its answer is to be streamed."""
    stream_paths: tuple[str, ...] = ()
    """Path globs of requests whose answers are streamed, whatever they say."""
    streams_unasked: bool = False
    """Whether an answer is streamed where the request does not say."""
    max_output: tuple[str, ...] = ("/max_tokens",)
    """Bounds of the output. Negative ones mean that there is none."""
    messages: tuple[str, ...] = ("/messages", "/prompt")
    """The conversation: a list, or a text."""
    preamble: tuple[str, ...] = ("/system", "/instructions", "/tools", "/functions")
    """What stands before the conversation; all of them count."""
    tools: tuple[str, ...] = ("/tools", "/functions")
    """Lists of tools."""
    media: tuple[str, ...] = ()
    """Lists of images beside the conversation."""
    continues: tuple[str, ...] = ()
    """Names of an earlier answer whose conversation the provider puts before these messages."""
    sessions: tuple[TextPlace, ...] = ()
    """Names of the session that it belongs to."""
    parents: tuple[TextPlace, ...] = ()
    """Names of the session that started this one."""
    tool_results: tuple[ResultPlace, ...] = ()
    """Where one of its messages has what tools' calls brought; all of them count. Empty: nothing can be taken out."""
    edits: tuple[str, ...] = ()
    """Lists of what the provider is to do with the context itself: one that names anything but `harmless_edits` is not
    touched by us."""
    harmless_edits: tuple[str, ...] = ()
    """Globs of the types of those that leave tool results alone."""
    names: tuple[str, ...] = ("/prompt_cache_key", "/user_prompt_id", "/client_metadata", "/request", "/project")
    """Members that a profile's `body#member` may ask for: texts, or objects with texts."""
    tier: tuple[str, ...] = ("/speed", "/service_tier")
    """Members that ask for a service tier, which has its own prices; the first text counts."""


@dataclass(frozen=True, slots=True)
class EventRules:
    """What an event of a stream means for its delivery. An event's name is its own, else the `type` in its data."""

    bookkeeping: tuple[str, ...] = ()
    """Names of events upon which no client acts: kept back before the first content, so that an error behind them can
    still be retried."""
    opening: tuple[str, ...] = ()
    """Names of those that begin a part of the answer: bookkeeping that is read with the words."""
    error: tuple[str, ...] = ("error",)
    """Names of errors."""
    terminal: tuple[str, ...] = ()
    """Names of those that complete the answer."""
    done: str = ""
    """Data that completes the answer: `[DONE]`."""
    done_if: tuple[str, ...] = ()
    """Pointers: where one is true, the event completes the answer."""
    content: tuple[str, ...] = ()
    """Pointers: an event without anything at one of them is bookkeeping, too, and one with an error object is an error
    whatever its name. Empty: names alone tell."""
    not_content: tuple[str, ...] = ()
    """Last members of such pointers that do not count: `role`."""
    complete_if: tuple[str, ...] = ()
    """Pointers: an event with anything there says why the answer has ended. Where nothing but bookkeeping follows, the
    answer is complete without a terminal event, however its body ends, and after some quiet seconds if it does not."""
    complete_after_usage: bool = False
    """It is complete, too, where its last event tells usage and has no content."""
    surely_content: tuple[str, ...] = ()
    """Globs of names which after the first content need not be read: they are content, and tell no usage."""
    surely_content_with: tuple[str, ...] = ()
    """For events without a name: pieces of JSON that such an event has, all of them."""
    surely_content_without: tuple[str, ...] = ()
    """Pieces of JSON that it does not have, unless before `:null`."""


@dataclass(frozen=True, slots=True)
class UsagePlaces:
    """Where an answer tells its tokens."""

    at: tuple[str, ...] = ("/usage",)
    """Pointers to the object, in an answer that is one JSON object."""
    in_events: tuple[str, ...] = ("/usage",)
    """The same in an event of a stream. Of each number the last counts that is not zero."""
    events: tuple[str, ...] = ()
    """Names of the events that tell it; empty: any. One without a name may always."""
    input: tuple[str, ...] = ("/input_tokens",)
    """Pointers within the object; what stands at them is summed."""
    output: tuple[str, ...] = ("/output_tokens",)
    """The same."""
    cache_read: tuple[str, ...] = ()
    """Input that came from the prompt cache."""
    cache_write: tuple[str, ...] = ()
    """Input that was written to the prompt cache."""
    cache_write_1h: tuple[str, ...] = ()
    """The part of it that is kept for an hour."""
    tier: tuple[str, ...] = ("/service_tier",)
    """Pointers from the top to the service tier, in an answer and in its events; the first text counts."""
    input_includes_cache: bool = False
    """Whether `input` counts the cached tokens, too."""
    total: tuple[str, ...] = ("/total_tokens",)
    """Input and output. What it exceeds their sum by is output, too: thinking that is reported apart."""


@dataclass(frozen=True, slots=True)
class ErrorPlaces:
    """Where an error says what, beside the usual places: `/error/type`, `/error/code`, `/error/message`, and the like
    in `/response/error` or at the top of what says `type: error`, a text in `/error`. A delay or a reset is found by
    the name of its member, wherever that is in the error.
    """

    at: tuple[str, ...] = ()
    """Pointers: an answer or an event with anything there is an error, even with the status 200."""
    unless: Mapping[str, str] = field(default_factory=dict)
    """Pointer → regular expression: where it matches, there is none."""
    names: tuple[str, ...] = ()
    """What it is called; every place counts, the most specific first, and all of these before the usual ones."""
    name_headers: tuple[str, ...] = ()
    """Headers with its name, as far as the first `:`."""
    message: tuple[str, ...] = ()
    """What it says to people."""


@dataclass(frozen=True, slots=True)
class ErrorForm:
    """How we write an error. In the texts of templates `{message}`, `{error}`, `{status}`, `{retry_after_s}`,
    `{retry_after_ms}` and `{resets_at}` stand for values; a text that is nothing else becomes a number where the value
    is one. A member with one that there is not is left out; an item of a list with one anywhere in it is, too, and so
    is a list of which nothing remains.
    """

    body: Mapping[str, Any] = field(default_factory=dict)
    """Template of an error answer."""
    event: Mapping[str, Any] = field(default_factory=dict)
    """Template of an event that ends a stream; empty: as `body`."""
    event_name: str = ""
    """Its name."""
    bare: bool = False
    """Whether the event is bare JSON in a stream of server-sent events: a line of its own."""
    tells_cuts: bool = False
    """Whether an answer that the provider cut ends with such an event: clients try again then, and not after a cut."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Templates of headers of an error answer."""
    usual: Mapping[str, str] = field(default_factory=dict)
    """Status (`"429"`, else `5xx` from 500 on, `4xx` below) → what its error is usually called."""
    usual_in_stream: str = ""
    """What an error in a stream is usually called. There `{status}` is the one with which it would come by `usual`."""
    again: str = ""
    """What an error in a stream is called after which the client is to come back; empty: as it is."""
    known_as: Mapping[str, str] = field(default_factory=dict)
    """Error → what clients of this format call it in a stream."""


@dataclass(frozen=True, slots=True)
class SaysPlace:
    """A piece of what was said."""

    at: str
    """Pointer to it: a text, or an object of which `text` is one."""
    text: str = ""
    """Pointer within it."""
    heading: str = "text"
    """`text`, `thinking`, `tool call` or `tool result`."""
    name: str = ""
    """Pointer within it to the tool's name."""
    only: str = ""
    """Pointer within it: it is meant only where something true stands there."""
    unless: str = ""
    """Pointer within it: it is not meant where something true stands there."""


@dataclass(frozen=True, slots=True)
class WireFormat:
    """One wire format."""

    name: str = ""
    """The preset's that it is, or that it changes."""
    framing: Mapping[str, Framing] = field(default_factory=lambda: {"text/event-stream": Framing.SSE})
    """Media type of a streamed answer → how it is cut into events."""
    bare_json: bool = False
    """Whether JSON that is no part of an event may stand between server-sent events: an error."""
    envelope: Envelope | None = None
    """What each event, and a whole answer, is wrapped in."""
    keep_alive: str = ": waiting\n\n"
    """What the client of a silent stream gets from time to time, and overlooks; empty: nothing."""
    keep_alive_clients: Mapping[str, str] = field(default_factory=dict)
    """Glob of user agents → the same for clients whose patience no comment renews; the first match counts."""
    keep_alive_query: str = ""
    """What a request's query must have for that, where without it the answer is framed in another way: `alt=sse`."""
    wording: Wording = Wording.PLACES
    """How conversations are read, for people, and to count what no usage tells."""
    says: tuple[SaysPlace, ...] = ()
    """With the wording `places`: what an answer, or one event of it, says; each of them counts."""
    said: tuple[SaysPlace, ...] = ()
    """The same for one message of a request."""
    stop: tuple[str, ...] = ()
    """Why an answer ended, in the provider's word."""
    request: RequestPlaces = field(default_factory=RequestPlaces)
    """Where a request says what."""
    events: EventRules = field(default_factory=EventRules)
    """What the events of a stream mean."""
    usage: UsagePlaces = field(default_factory=UsagePlaces)
    """Where tokens are told."""
    error: ErrorPlaces = field(default_factory=ErrorPlaces)
    """Where an error says what."""
    error_form: ErrorForm = field(default_factory=ErrorForm)
    """How we write one."""

    def __post_init__(self) -> None:
        """BadValue: no stream could be read."""
        if not self.framing:
            raise BadValue("framing names no media type", "write one, such as framing: {text/event-stream: sse}")
