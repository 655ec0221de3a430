"""Reads a request's body for the scheduler. Accepts any body; 1 MB costs under 1 ms.

Only the outer layers of the JSON are decoded. Messages stay raw slices of the body. Their text is decoded when the text
is counted (`text_of`), which happens only to new, short messages.
"""

import hashlib
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

from hivemind_addon.formats.base.json_values import UNREADABLE, read_object, read_value, readable
from hivemind_addon.formats.base.patterns import matching_path
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.format import RequestPlaces, TextPlace

NO_RAW = Raw()
_NULL = b"null"
_QUOTE = b'"'

MAX_BODY_BYTES = 32 * 1024 * 1024
"""No provider accepts more (Anthropic: 32 MB, 2026-08): decoding more would only stall the event loop."""

_MAX_NAME_CHARS = 200
_ABSURD_TOKENS = 1e9

_MEDIA_BYTES = 8192
"""Smaller images cost about as many tokens as the same bytes of text, so the code does not look for them."""

_RUN_BYTES = _MEDIA_BYTES // 4
"""Embedded media contain no blank, and each covers a block of this size that begins at a multiple of this size."""
_MEDIA_MARKS = (b"base64", b'"images"', b'"inlineData"', b'"inline_data"', b'"bytes"')

_NEWEST_BYTES = 16_384
_OPENING_BYTES = 512
_CACHE_MARK_NAME = b'"cache_control"'
_LONG_MARK = b'"1h"'
_CACHE_MARK = re.compile(_CACHE_MARK_NAME + rb"\s*:\s*(?:null|\{[^{}]*\})")
_TEXT_TYPE = b'"type":"text"'
_TEXT_LIST_BYTES = len('[{"type":"text","text":}]')
_FINGERPRINT_CHARS = 16
_NO_ITEMS = b"[]"


type Way = tuple[str, ...]
"""The members that lead to a value."""


class _Group:
    """Places of a body that are read together."""

    __slots__ = ("first", "get", "head", "nothing", "ways")

    def __init__(self, ways: Sequence[Way]) -> None:
        self.ways = tuple(ways)
        self.get: Callable[[Any], tuple[Any, ...]] | None = None
        """Reads all places from the outer layer; None: some places are deeper."""
        self.head: Callable[[Any], Any] | None = None
        """Reads the only member of the outer layer that contains all places; None: no such member."""
        self.first: Callable[[Any], Any] = lambda _: None
        """Reads the first place, if in the outer layer; most bodies fill no other."""
        self.nothing = (NO_RAW,) * len(self.ways)

    def compile(self, attributes: Mapping[str, str]) -> None:
        """Make the readers. `attributes`: member of the outer layer → attribute of the struct."""
        if self.ways and len(self.ways[0]) == 1:
            self.first = attrgetter(attributes[self.ways[0][0]])
        if any(len(way) != 1 for way in self.ways):
            heads = {way[0] for way in self.ways}
            if len(heads) == 1 and all(len(way) > 1 for way in self.ways):
                self.head = attrgetter(attributes[heads.pop()])
            return
        names = [attributes[way[0]] for way in self.ways]
        if len(names) > 1:
            self.get = attrgetter(*names)
        else:
            self.get = (lambda outer: (self.first(outer),)) if names else lambda _: ()


class _Text(NamedTuple):
    member: str
    match: re.Pattern[str] | None


class RequestPlan:
    """The places of one body format, parsed once: the members that the one pass over a body reads."""

    def __init__(self, places: RequestPlaces) -> None:
        self.model, self.stream, self.max_output, self.messages, self.preamble, self.tools, self.media = groups = [
            _Group([_way(one) for one in pointers])
            for pointers in (
                places.model,
                places.stream,
                places.max_output,
                places.messages,
                places.preamble,
                places.tools,
                places.media,
            )
        ]
        self.continues, self.names, self.tier = (
            _Group([_way(one) for one in ones]) for ones in (places.continues, places.names, places.tier)
        )
        self.sessions, self.parents = (
            _Group([_way(one.at) for one in ones]) for ones in (places.sessions, places.parents)
        )
        self.session_texts, self.parent_texts = _texts(places.sessions), _texts(places.parents)
        self.stream_paths = places.stream_paths
        self.streams_unasked = places.streams_unasked
        groups += [self.continues, self.names, self.tier, self.sessions, self.parents]
        members = dict.fromkeys(way[0] for group in groups for way in group.ways)
        # Every value is raw, so that a value of a wrong type spoils no other.
        raw: dict[str, tuple[str, Any, Any]] = {name: (f"m{at}", Raw, NO_RAW) for at, name in enumerate(members)}
        self.attributes = {name: attribute for name, (attribute, _, _) in raw.items()}
        for group in groups:
            group.compile(self.attributes)
        # Enough for most bodies: the values that every request needs are read in the same pass.
        usual = dict(raw)
        for group, kind in ((self.model, str), (self.stream, bool), (self.max_output, int)):
            usual |= {way[0]: (self.attributes[way[0]], kind | None, None) for way in group.ways if len(way) == 1}
        for way in self.messages.ways[:1]:
            if len(way) == 1:
                usual[way[0]] = (self.attributes[way[0]], list[Raw], field(default_factory=list))
        # Decoders hold no state between calls; building a decoder costs more than most calls.
        self.usual = _decoder(usual)
        self.raw = _decoder(raw)


def _way(pointer: str) -> Way:
    return Pointer.parse(pointer).steps


def _texts(places: Sequence[TextPlace]) -> tuple[_Text, ...]:
    return tuple(_Text(one.member, re.compile(one.match) if one.match else None) for one in places)


def _decoder(members: Mapping[str, tuple[str, Any, Any]]) -> msgspec.json.Decoder[Any]:
    names = {attribute: name for name, (attribute, _, _) in members.items()}
    return msgspec.json.Decoder(msgspec.defstruct("Body", list(members.values()), rename=names))


_RAWS = msgspec.json.Decoder(list[Raw])
_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_STR = msgspec.json.Decoder(str)
_INT = msgspec.json.Decoder(int)
_BOOL = msgspec.json.Decoder(bool)


class RequestBody:
    """Reads a body that is a JSON object, value by value; an unreadable value becomes None and an oddity."""

    def __init__(self, data: bytes, plan: RequestPlan) -> None:
        """Raises one of UNREADABLE if the body is no JSON object."""
        self._attributes = plan.attributes
        try:
            self.outer = plan.usual.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):  # a single value may be the reason
            self.outer = plan.raw.decode(data)
        self._inner: dict[Way, Mapping[str, Raw]] = {}
        self.oddities: list[str] = []

    def all(self, group: _Group) -> Sequence[Any]:
        """The value at each place, raw or decoded; NO_RAW, None or an empty list where there is no value."""
        if group.get is not None:
            return group.get(self.outer)
        if group.head is not None and not len(group.head(self.outer)):
            return group.nothing
        return [self._at(way) for way in group.ways]

    def _at(self, way: Way) -> Any:
        if len(way) == 1:
            return getattr(self.outer, self._attributes[way[0]])
        return self.members(way[:-1]).get(way[-1], NO_RAW)

    def members(self, way: Way) -> Mapping[str, Raw]:
        """The members of the object at a place; none if there is no object."""
        known = self._inner.get(way)
        if known is None:
            known = self.read(way, _MEMBERS, self._at(way)) or {}
            self._inner[way] = known
        return known

    def read[T](self, way: Way, decoder: msgspec.json.Decoder[T], raw: Raw | None) -> T | None:
        """The decoded value at a place; None: no value, or an unreadable value."""
        if raw is None or not len(raw) or (len(raw) == len(_NULL) and memoryview(raw) == _NULL):
            return None
        try:
            return decoder.decode(raw)
        except UNREADABLE as error:
            self.note(f"{'.'.join(way)}: {_short(error)}")
            return None

    def items(self, way: Way, raw: Any) -> tuple[Raw, ...]:
        """The items of a list; a plain text counts as a list of this text."""
        if isinstance(raw, list):
            return tuple(raw)
        if len(raw) and memoryview(raw)[:1] == _QUOTE:
            return (raw,)  # Responses accepts a plain text as well
        raws = self.read(way, _RAWS, raw)
        return tuple(raws) if raws else ()

    def name(self, group: _Group, texts: Sequence[_Text]) -> str:
        """The first text found; empty: no text."""
        raws = self.all(group)
        if not any(map(len, raws)):
            return ""
        for way, raw, (member, match) in zip(group.ways, raws, texts, strict=True):
            if not len(raw):
                continue
            text = self.read(way, _STR, raw) or ""
            if member:
                inner = read_object(text.encode("utf-8", "replace")) if text.startswith("{") else None
                text = _short_text((inner or {}).get(member, NO_RAW), _MAX_NAME_CHARS)
            elif match is not None:
                found = match.search(text)
                text = found[1] or "" if found else ""
            if text:
                return text
        return ""

    def note(self, oddity: str) -> None:
        """Record something that could not be understood, in words."""
        if (whole := f"request body: {oddity}") not in self.oddities:
            self.oddities.append(whole)


class RequestFacts(Struct, frozen=True, gc=False):
    """The content of a request's body. The defaults stand for values that are missing or not understood."""

    model: str = ""
    stream: bool = False
    max_output_tokens: int | None = None
    prompt_bytes: int = 0
    """Size of the JSON that becomes input tokens: messages, system, tools; embedded media left out."""
    media: int = 0
    """Embedded images and documents. Their tokens depend on their dimensions, not on their bytes."""
    messages: tuple[Raw, ...] = ()
    """The conversation's items, raw JSON, oldest first: slices that keep the body alive."""
    message_bytes: Sequence[int] = ()
    """The size of each message, embedded media left out."""
    preamble: tuple[Raw, ...] = ()
    """System prompt, tools and instructions, raw JSON."""
    preamble_bytes: int = 0
    session_hint: str = ""
    """The session that the body names; empty: none."""
    parent_hint: str = ""
    """The parent session that the body names, which started this session; empty: none."""
    has_tools: bool = False
    members: Mapping[str, str] = {}
    """Texts of the body that name sessions: `prompt_cache_key`, `request.session_id`; agents differ in the place."""
    counts: dict[int, int] = field(default_factory=dict)
    """Message index → token count of the text from there on (-1: of the whole prompt); kept, as counting is dear."""
    tier: str = ""
    """The service tier that the body asks for; empty: none."""
    continues: bool = False
    """The body names an earlier answer, whose conversation the provider puts before these messages."""
    oddities: tuple[str, ...] = ()
    """The parts that could not be understood, in words."""

    def __repr__(self) -> str:
        return f"<RequestFacts {self.model!r}, {len(self.message_bytes)} messages, {self.prompt_bytes} bytes>"

    def without_text(self) -> "RequestFacts":
        """The same facts in a few bytes per message, to keep while the request waits and is answered."""
        sizes = array("I", self.message_bytes)
        return replace(self, messages=(), preamble=(), members={}, message_bytes=sizes)


class _Item(msgspec.Struct):
    role: str = ""
    type: str = ""


_ITEM = msgspec.json.Decoder(_Item)


def read_request(body: bytes, plan: RequestPlan, path: str = "") -> RequestFacts:
    """Read a body; never raises. Parts not understood get the default and an oddity. `path`: the request's."""
    if not body:
        return RequestFacts(oddities=("request body: empty",))
    if len(body) > MAX_BODY_BYTES:
        return RequestFacts(prompt_bytes=len(body), oddities=(f"request body: {len(body)} bytes, not read",))
    try:
        return _facts(RequestBody(body, plan), plan, path)
    except UNREADABLE as error:
        plain = readable(body)
        if plain is not None and plain != body:
            return read_request(plain, plan, path)
        return RequestFacts(prompt_bytes=len(body), oddities=(f"request body: {_short(error)}",))


def _facts(body: RequestBody, plan: RequestPlan, path: str) -> RequestFacts:
    messages: tuple[Raw, ...] = ()
    for way, raw in zip(plan.messages.ways, body.all(plan.messages), strict=True):
        if len(raw) and (messages := body.items(way, raw)):
            break
    preamble = tuple(filter(len, body.all(plan.preamble)))
    preamble_bytes = sum(map(len, preamble))
    sizes, media = _weigh(messages)
    for way, raw in zip(plan.media.ways, body.all(plan.media), strict=True) if plan.media.ways else ():
        images = body.read(way, _RAWS, raw)
        media += len(images) if images else 0
    return RequestFacts(
        model=_model(body, plan),
        stream=_is_streamed(body, plan, path),
        max_output_tokens=_max_output_tokens(body, plan),
        prompt_bytes=sum(sizes) + preamble_bytes,
        media=media,
        messages=messages,
        message_bytes=sizes,
        preamble=preamble,
        preamble_bytes=preamble_bytes,
        session_hint=body.name(plan.sessions, plan.session_texts) if plan.session_texts else "",
        parent_hint=body.name(plan.parents, plan.parent_texts) if plan.parent_texts else "",
        has_tools=any(map(_has_items, filter(len, body.all(plan.tools)))),
        members=_members(body, plan),
        tier=next((_short_text(raw, _MAX_NAME_CHARS) for raw in body.all(plan.tier) if len(raw)), ""),
        continues=bool(plan.continues.ways) and _continues(body, plan),
        oddities=tuple(body.oddities),
    )


def _continues(body: RequestBody, plan: RequestPlan) -> bool:
    for way, raw in zip(plan.continues.ways, body.all(plan.continues), strict=True):
        earlier = body.read(way, _STR, raw) if len(raw) else ""
        if earlier:
            return True
    return False


def _has_items(raw: Raw) -> bool:
    return len(raw) > len(_NO_ITEMS) and bytes(raw) != _NULL


def _is_streamed(body: RequestBody, plan: RequestPlan, path: str) -> bool:
    if plan.stream_paths and matching_path(plan.stream_paths, path) is not None:
        return True
    first = plan.stream.first(body.outer)
    if isinstance(first, bool):
        return first
    for way, value in zip(plan.stream.ways, body.all(plan.stream), strict=True):
        asked = value if value is None or isinstance(value, bool) else body.read(way, _BOOL, value)
        if asked is not None:
            return asked
    return plan.streams_unasked


def _max_output_tokens(body: RequestBody, plan: RequestPlan) -> int | None:
    first = plan.max_output.first(body.outer)
    if isinstance(first, int) and 0 <= first < _ABSURD_TOKENS:
        return first
    for way, value in zip(plan.max_output.ways, body.all(plan.max_output), strict=True):
        most = value if value is None or isinstance(value, int) else body.read(way, _INT, value)
        if most is None or most < 0:  # as much as there is room for
            continue
        if most < _ABSURD_TOKENS:
            return most
        body.note(f"{'.'.join(way)}: {most:.3g} is absurd")
    return None


def _members(body: RequestBody, plan: RequestPlan) -> Mapping[str, str]:
    """The short texts that may name a session or an account; texts of small objects under `outer.member`."""
    found: dict[str, str] = {}
    raws = body.all(plan.names)
    if not any(map(len, raws)):
        return found
    for way, raw in zip(plan.names.ways, raws, strict=True):
        if not len(raw):
            continue
        name = way[-1]
        if memoryview(raw)[:1] == _QUOTE:
            if text := _short_text(raw, _MAX_NAME_CHARS):
                found[name] = text
        else:
            for key, one in (read_object(raw) or {}).items():
                if text := _short_text(one, _MAX_NAME_CHARS):
                    found[f"{name}.{key}"] = text
    return found


def _model(body: RequestBody, plan: RequestPlan) -> str:
    first = plan.model.first(body.outer)
    if isinstance(first, str) and 0 < len(first) <= _MAX_NAME_CHARS and first.isprintable():
        return first
    for way, value in zip(plan.model.ways, body.all(plan.model), strict=True):
        name: str | None = value if value is None or isinstance(value, str) else body.read(way, _STR, value)
        if not name:
            continue
        if len(name) <= _MAX_NAME_CHARS and name.isprintable():
            return name
        body.note("model: no name")
    return ""


def _short_text(raw: Raw, max_chars: int) -> str:
    """The text, if the value is a text of about `max_chars` characters at most."""
    if not 2 < len(raw) <= max_chars * 4 or memoryview(raw)[:1] != _QUOTE:
        return ""
    try:
        return _STR.decode(raw)
    except UNREADABLE:
        return ""


def _short(error: Exception) -> str:
    """The message of an exception, in a line."""
    return " ".join(str(error).split())[:80]


class Fingerprints(Struct, frozen=True, gc=False):
    """Hashes of a request's content; the text is not kept."""

    prefix: str
    """Hash of the part that conversations share in a prompt cache: model, tools, system prompt, without cache marks."""
    prefix_bytes: int
    """Size of tools and system prompt."""
    is_marked: bool
    """Whether the request asks to cache a part of tools and system prompt (`cache_control`)."""
    is_marked_long: bool
    """Whether the request asks to cache them for an hour (`ttl: 1h`)."""
    whole: str
    """Hash of all that determines the answer: equal for a repeated request. Covers the newest text of a long
    conversation and the sizes of the messages. Empty without messages, which alone tell requests apart."""
    opening: int = 0
    """Hash of both ends of the first message after the instructions: tells the conversations of a session apart, in
    this process only. A cache mark changes this hash."""


def without_cache_marks(text: bytes) -> tuple[list[memoryview], bool]:
    """The pieces between the members `cache_control`, which lose their comma, and whether a mark says `1h`."""
    view = memoryview(text)
    pieces, start, is_long = [], 0, False
    for mark in _CACHE_MARK.finditer(text):
        end = mark.start()
        while text[end - 1 : end].isspace():
            end -= 1
        pieces.append(view[start : end - (text[end - 1 : end] == b",")])
        start = mark.end()
        is_long = is_long or _LONG_MARK in mark[0]
    pieces.append(view[start:])
    return pieces, is_long


def fingerprints(facts: RequestFacts, salt: str) -> Fingerprints:
    """Hash the instructions and the newest messages of a request. `salt`: the requester, for `whole`."""
    instructions = tuple(takewhile(_is_instruction, facts.messages))
    sha = hashlib.sha256(facts.model.encode("utf-8", "surrogatepass"))
    texts = list(map(bytes, (*facts.preamble, *instructions)))
    together = b"\0".join((b"", *texts))
    is_marked = is_marked_long = False
    if _CACHE_MARK_NAME in together:
        for text in texts:
            sha.update(b"\0")
            pieces, is_long = without_cache_marks(text)
            is_marked, is_marked_long = is_marked or len(pieces) > 1, is_marked_long or is_long
            for piece in pieces:
                sha.update(piece)
    else:
        sha.update(together)
    prefix = sha.hexdigest()[:_FINGERPRINT_CHARS]
    rest = facts.messages[len(instructions) :] if instructions else facts.messages
    sha.update(array("Q", map(len, rest)))
    hashed_bytes = 0
    for raw in reversed(rest):
        sha.update(memoryview(raw)[-_NEWEST_BYTES:])
        hashed_bytes += len(raw)
        if hashed_bytes >= _NEWEST_BYTES:
            break
    sha.update(salt.encode("utf-8", "surrogatepass"))
    # An unreadable request has no known content: no other request is the same.
    whole = sha.hexdigest()[:_FINGERPRINT_CHARS] if facts.messages else ""
    first = memoryview(rest[0]) if rest else memoryview(b"")
    opening = hash((bytes(first[:_OPENING_BYTES]), bytes(first[-_OPENING_BYTES:])))
    return Fingerprints(
        prefix=prefix,
        prefix_bytes=len(together) - len(texts),
        is_marked=is_marked,
        is_marked_long=is_marked_long,
        whole=whole,
        opening=opening,
    )


def text_of(raw: Raw) -> str:
    """The text of a message, of tools or a system prompt: keys and strings, embedded media left out.

    The raw JSON where decoding fails.
    """
    value = read_value(raw)
    if value is None:
        return bytes(raw).decode("utf-8", "replace")
    return "\n".join(text for key, text in _strings(value) if not _is_media(key, text))


def is_answer(raw: Raw) -> bool:
    """Whether the model wrote a message, so that the provider has counted the message as output before."""
    try:
        item = _ITEM.decode(raw)
    except UNREADABLE:
        return False
    return item.role in {"assistant", "model"} or item.type in {"reasoning", "function_call", "custom_tool_call"}


def _is_instruction(raw: Raw) -> bool:
    """Whether a message is part of the system prompt, as OpenAI's formats allow."""
    try:
        return _ITEM.decode(raw).role in {"system", "developer"}
    except UNREADABLE:
        return False


def _weigh(messages: tuple[Raw, ...]) -> tuple[tuple[int, ...], int]:
    """Bytes of each message without embedded media, and the number of all media."""
    sizes, media = list(map(len, messages)), 0
    if max(sizes, default=0) <= _MEDIA_BYTES:
        return tuple(sizes), 0
    for index, size in enumerate(sizes):
        if size > _MEDIA_BYTES:
            sizes[index], found = weigh(messages[index])
            media += found
    return tuple(sizes), media


def weigh(raw: bytes | Raw) -> tuple[int, int]:
    """Bytes of a JSON value without embedded media, and the number of media."""
    size = len(raw)
    if size <= _MEDIA_BYTES:
        return size, 0
    text = bytes(raw)
    if not _has_long_run(text) or not any(mark in text for mark in _MEDIA_MARKS):
        return size, 0
    value = read_value(raw)
    media = [len(text) for key, text in _strings(value) if _is_media(key, text)]
    return size - sum(media), len(media)


def _has_long_run(text: bytes) -> bool:
    """Whether a long run has no blank. For nearly all text, a look at few bytes rules this out."""
    begins = range(0, len(text) - _RUN_BYTES + 1, _RUN_BYTES)
    return any(text.find(b" ", begin, begin + _RUN_BYTES) < 0 for begin in begins)


def lasting_weight(raw: bytes | Raw) -> tuple[int, int]:
    """The same as `weigh`, but stable for a message in all requests that repeat the message.

    Agents move their cache marks from message to message, and make a list of the text that they mark.
    """
    size, media = weigh(raw)
    text = bytes(raw)
    if _CACHE_MARK_NAME in text:
        size -= sum(len(mark[0]) + 1 for mark in _CACHE_MARK.finditer(text))
    return size - text.count(_TEXT_TYPE) * _TEXT_LIST_BYTES, media


def _is_media(key: str, text: str) -> bool:
    # Anthropic's {"type": "base64", "data": "…"}, Gemini's {"inlineData": {"data": "…"}}, Ollama's {"images": ["…"]},
    # Bedrock's {"source": {"bytes": "…"}}, OpenAI's "data:image/png;base64,…".
    return len(text) > _MEDIA_BYTES // 2 and (key in {"data", "images", "bytes"} or text.startswith("data:"))


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Every string of a decoded value with the key above; keys count as strings of their own."""
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        key, one = stack.pop()
        match one:
            case str():
                yield key, one
            case list():
                stack.extend((key, item) for item in reversed(one))
            case dict():
                for name, item in one.items():
                    yield "", name
                    stack.append((name, item))
            case _:
                pass
