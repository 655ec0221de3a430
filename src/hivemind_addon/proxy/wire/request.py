"""A request's body → what the scheduler needs of it. Tolerates anything; a 1 MB body costs under 1 ms.

Only the outer layers of the JSON are decoded; messages stay raw slices of the body, and their text is decoded
when it is counted (`text_of`), which happens only to what is new and short.
"""

import hashlib
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct, field
from msgspec.structs import replace

if TYPE_CHECKING:
    from hivemind_addon.proxy.wire.dialect import Dialect

NO_RAW = Raw()
_NULL = b"null"
_QUOTE = b'"'
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

MAX_BODY_BYTES = 32 * 1024 * 1024
"""No provider takes more (Anthropic: 32 MB, 2026-08): decoding it would only stall the event loop."""

_MAX_NAME_CHARS = 200

_MEDIA_BYTES = 8192
"""Smaller images cost about as many tokens when they are taken for text, so they are not looked for."""

_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NEWEST_BYTES = 16_384
_CACHE_MARK_NAME = b'"cache_control"'
_CACHE_MARK = re.compile(_CACHE_MARK_NAME + rb"\s*:\s*(?:null|\{[^{}]*\})")
_FINGERPRINT_CHARS = 16
_NO_ITEMS = b"[]"


class OuterLayer(Struct):
    """Of a body. Every value is raw, so that one of a wrong type spoils no other."""

    model: Raw = NO_RAW
    stream: Raw = NO_RAW
    max_tokens: Raw = NO_RAW
    max_completion_tokens: Raw = NO_RAW
    max_output_tokens: Raw = NO_RAW
    messages: Raw = NO_RAW
    input: Raw = NO_RAW
    system: Raw = NO_RAW
    instructions: Raw = NO_RAW
    tools: Raw = NO_RAW
    functions: Raw = NO_RAW
    metadata: Raw = NO_RAW
    prompt_cache_key: Raw = NO_RAW
    user: Raw = NO_RAW
    previous_response_id: Raw = NO_RAW
    prompt: Raw = NO_RAW
    options: Raw = NO_RAW
    images: Raw = NO_RAW
    client_metadata: Raw = NO_RAW
    request: Raw = NO_RAW
    user_prompt_id: Raw = NO_RAW


class _UsualOuterLayer(OuterLayer):
    """Of nearly every body: all that every request asks for is read in the one pass over its JSON."""

    # Instead of Raw.
    model: str | None = None  # type: ignore[assignment]
    stream: bool | None = None  # type: ignore[assignment]
    max_tokens: int | None = None  # type: ignore[assignment]
    max_completion_tokens: int | None = None  # type: ignore[assignment]
    max_output_tokens: int | None = None  # type: ignore[assignment]
    messages: list[Raw] = []  # type: ignore[assignment]
    input: list[Raw] = []  # type: ignore[assignment]


# Decoders hold no state between calls; building one costs more than most calls.
_BODY = msgspec.json.Decoder(OuterLayer)
_USUAL_BODY = msgspec.json.Decoder(_UsualOuterLayer)
_RAWS = msgspec.json.Decoder(list[Raw])
_STR = msgspec.json.Decoder(str)
_INT = msgspec.json.Decoder(int)
_BOOL = msgspec.json.Decoder(bool)


class RequestBody:
    """Reads one body that is a JSON object, value by value; what cannot be read is None, and an oddity."""

    def __init__(self, data: bytes) -> None:
        """One of UNREADABLE, where the whole is no JSON object."""
        self.outer: OuterLayer
        try:
            self.outer = _USUAL_BODY.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):  # one value may be the reason
            self.outer = _BODY.decode(data)
        self.oddities: list[str] = []

    def __repr__(self) -> str:
        return f"<RequestBody {len(self.oddities)} oddities>"

    def read[T](self, name: str, decoder: msgspec.json.Decoder[T], raw: Raw | None) -> T | None:
        """The value; `name` is for the oddity."""
        if raw is None or not len(raw) or (len(raw) == len(_NULL) and memoryview(raw) == _NULL):
            return None
        try:
            return decoder.decode(raw)
        except UNREADABLE as error:
            self.note(f"{name}: {_short(error)}")
            return None

    def text(self, name: str) -> str | None:
        """The text of that name."""
        value = getattr(self.outer, name)
        return value if isinstance(value, str) else self.read(name, _STR, value)

    def number(self, name: str, raw: Raw | None = None) -> int | None:
        """The whole number of that name, or of that value."""
        value = getattr(self.outer, name) if raw is None else raw
        return value if isinstance(value, int) else self.read(name, _INT, value)

    def flag(self, name: str) -> bool | None:
        """True or false."""
        value = getattr(self.outer, name)
        return value if isinstance(value, bool) else self.read(name, _BOOL, value)

    def count(self, name: str) -> int:
        """How many items the list of that name has."""
        items = self.read(name, _RAWS, getattr(self.outer, name))
        return len(items) if items else 0

    def items(self, name: str) -> tuple[Raw, ...]:
        """The items of that name; a plain text is one."""
        raw = getattr(self.outer, name)
        if isinstance(raw, list):
            return tuple(raw)
        if len(raw) and memoryview(raw)[:1] == _QUOTE:
            return (raw,)  # Responses takes a plain text as well
        raws = self.read(name, _RAWS, raw)
        return tuple(raws) if raws else ()

    def note(self, oddity: str) -> None:
        """Something that could not be understood, in words."""
        self.oddities.append(f"request body: {oddity}")


class RequestFacts(Struct, frozen=True, gc=False):
    """What a request's body says. The defaults stand for what it does not say, or not understandably."""

    model: str = ""
    stream: bool = False
    max_output_tokens: int | None = None
    prompt_bytes: int = 0
    """Size of the JSON that becomes input tokens: messages, system, tools; embedded media left out."""
    media: int = 0
    """Embedded images and documents, which cost tokens by their dimensions and not by their bytes."""
    messages: tuple[Raw, ...] = ()
    """The conversation's items, raw JSON, oldest first: slices that keep the body alive."""
    message_bytes: Sequence[int] = ()
    """The size of each message, embedded media left out."""
    preamble: tuple[Raw, ...] = ()
    """System prompt, tools and instructions, raw JSON."""
    preamble_bytes: int = 0
    session_hint: str = ""
    """What the body says about the session it belongs to; empty: nothing."""
    parent_hint: str = ""
    """What the body says about the session that started this one; empty: nothing."""
    has_tools: bool = False
    members: Mapping[str, str] = {}
    """Texts of the body that name sessions: `prompt_cache_key`, `request.session_id`; where agents put them differs."""
    counts: dict[int, int] = field(default_factory=dict)
    """Message index → our count of the text from there on (-1: of the whole prompt): counted once, as it is dear."""
    continues: bool = False
    """The body names an earlier answer, whose conversation the provider puts before these messages."""
    oddities: tuple[str, ...] = ()
    """What could not be understood, in words."""

    def __repr__(self) -> str:
        return f"<RequestFacts {self.model!r}, {len(self.message_bytes)} messages, {self.prompt_bytes} bytes>"

    def without_text(self) -> "RequestFacts":
        """The same in a few bytes for each message: what is kept of it while it waits and is answered."""
        sizes = array("I", self.message_bytes)
        return replace(self, messages=(), preamble=(), members={}, message_bytes=sizes)


class _Item(msgspec.Struct):
    role: str = ""
    type: str = ""


_RAW_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_ITEM = msgspec.json.Decoder(_Item)
_ANY = msgspec.json.Decoder()


def read_request(body: bytes, dialect: "Dialect") -> RequestFacts:
    """Never raises: what is not understood gets its default and one oddity text."""
    if not body:
        return RequestFacts(oddities=("request body: empty",))
    if len(body) > MAX_BODY_BYTES:
        return RequestFacts(prompt_bytes=len(body), oddities=(f"request body: {len(body)} bytes, not read",))
    try:
        return _facts(RequestBody(body), dialect)
    except UNREADABLE as error:
        # JavaScript may write half of a surrogate pair, which JSON allows and the decoder does not.
        repaired = _LONE_SURROGATE.sub(rb"\\ufffd", body)
        if repaired != body:
            return read_request(repaired, dialect)
        return RequestFacts(prompt_bytes=len(body), oddities=(f"request body: {_short(error)}",))


def _facts(body: RequestBody, dialect: "Dialect") -> RequestFacts:
    outer = body.outer
    messages = body.items(dialect.conversation)
    if not messages and len(outer.prompt):
        messages = body.items("prompt")
    preamble = tuple([raw for raw in (outer.system, outer.instructions, outer.tools, outer.functions) if len(raw)])
    continues = bool(body.text("previous_response_id"))
    preamble_bytes = sum(map(len, preamble))
    sizes, media = _weigh(messages)
    session_hint, parent_hint = dialect.session_hints(body)
    return RequestFacts(
        model=_model(body),
        stream=_is_streamed(body, dialect),
        max_output_tokens=dialect.max_output_tokens(body),
        prompt_bytes=sum(sizes) + preamble_bytes,
        media=media + (body.count("images") if len(outer.images) else 0),
        messages=messages,
        message_bytes=sizes,
        preamble=preamble,
        preamble_bytes=preamble_bytes,
        session_hint=session_hint,
        parent_hint=parent_hint,
        has_tools=_has_items(outer.tools) or _has_items(outer.functions),
        members=_members(body),
        continues=continues,
        oddities=tuple(body.oddities),
    )


def _has_items(raw: Raw) -> bool:
    return len(raw) > len(_NO_ITEMS) and bytes(raw) != _NULL


def _is_streamed(body: RequestBody, dialect: "Dialect") -> bool:
    asked = body.flag("stream")
    return dialect.streams_unasked if asked is None else asked


def _members(body: RequestBody) -> Mapping[str, str]:
    """The short texts that may name a session, those of small objects by `outer.member`."""
    outer = body.outer
    named = (("prompt_cache_key", outer.prompt_cache_key), ("user_prompt_id", outer.user_prompt_id))
    found = {name: text for name, raw in named if len(raw) and (text := _short_text(raw, _MAX_NAME_CHARS))}
    # Only these, for in `request` there is the whole conversation (Gemini's Code Assist).
    for name, raw in (("client_metadata", outer.client_metadata), ("request", outer.request)):
        if not len(raw):
            continue
        try:
            inner = _RAW_MEMBERS.decode(raw)
        except UNREADABLE:
            continue
        found |= {f"{name}.{key}": text for key, one in inner.items() if (text := _short_text(one, _MAX_NAME_CHARS))}
    return found


def _model(body: RequestBody) -> str:
    name = body.text("model") or ""
    if len(name) <= _MAX_NAME_CHARS and name.isprintable():
        return name
    body.note("model: no name")
    return ""


def _short_text(raw: Raw, max_chars: int) -> str:
    """The text where it is one, and not much longer than so many characters."""
    if not 2 < len(raw) <= max_chars * 4 or memoryview(raw)[:1] != _QUOTE:
        return ""
    try:
        return _STR.decode(raw)
    except UNREADABLE:
        return ""


def _short(error: Exception) -> str:
    """What an exception says, in a line."""
    return " ".join(str(error).split())[:80]


class Fingerprints(Struct, frozen=True, gc=False):
    """Hashes of what a request says. Never its text."""

    prefix: str
    """Of what conversations share in a prompt cache: model, tools and system prompt, without cache marks."""
    prefix_bytes: int
    """Of tools and system prompt."""
    is_marked: bool
    """Whether the request has a part of them cached (`cache_control`)."""
    whole: str
    """Of all that makes the answer: the same request sent again has the same. Of a long conversation the sizes of its
    messages and the newest of their text stand for the rest. Empty where there is no message to tell by."""


def _without_cache_marks(text: bytes) -> Iterator[memoryview]:
    """The pieces between the members `cache_control`, whose comma goes with them."""
    view = memoryview(text)
    start = 0
    for mark in _CACHE_MARK.finditer(text):
        end = mark.start()
        while text[end - 1 : end].isspace():
            end -= 1
        yield view[start : end - (text[end - 1 : end] == b",")]
        start = mark.end()
    yield view[start:]


def fingerprints(facts: RequestFacts, salt: str) -> Fingerprints:
    """Hash a request: its instructions and the newest of its messages. `salt`: whose it is, for `whole`."""
    instructions = tuple(takewhile(_is_instruction, facts.messages))
    sha = hashlib.sha256(facts.model.encode("utf-8", "surrogatepass"))
    size_bytes = 0
    is_marked = False
    for raw in (*facts.preamble, *instructions):
        sha.update(b"\0")
        text = bytes(raw)
        pieces = list(_without_cache_marks(text)) if _CACHE_MARK_NAME in text else [text]
        is_marked = is_marked or len(pieces) > 1
        for piece in pieces:
            sha.update(piece)
        size_bytes += len(text)
    prefix = sha.hexdigest()[:_FINGERPRINT_CHARS]
    rest = facts.messages[len(instructions) :]
    sha.update(array("Q", map(len, rest)))
    hashed_bytes = 0
    for raw in reversed(rest):
        sha.update(memoryview(raw)[-_NEWEST_BYTES:])
        hashed_bytes += len(raw)
        if hashed_bytes >= _NEWEST_BYTES:
            break
    sha.update(salt.encode("utf-8", "surrogatepass"))
    # Of a request that cannot be read nothing is known: no other one is the same.
    whole = sha.hexdigest()[:_FINGERPRINT_CHARS] if facts.messages else ""
    return Fingerprints(prefix=prefix, prefix_bytes=size_bytes, is_marked=is_marked, whole=whole)


def text_of(raw: Raw) -> str:
    """The text of one message, of tools or a system prompt: keys and strings, embedded media left out.

    The raw JSON itself where it cannot be decoded.
    """
    try:
        value = _ANY.decode(raw)
    except UNREADABLE:
        return bytes(raw).decode("utf-8", "replace")
    return "\n".join(text for key, text in _strings(value) if not _is_media(key, text))


def is_answer(raw: Raw) -> bool:
    """Whether a message was written by the model, so that the provider has counted it as output before."""
    try:
        item = _ITEM.decode(raw)
    except UNREADABLE:
        return False
    return item.role == "assistant" or item.type in {"reasoning", "function_call", "custom_tool_call"}


def _is_instruction(raw: Raw) -> bool:
    """Whether a message is part of the system prompt, as OpenAI's formats have it."""
    try:
        return _ITEM.decode(raw).role in {"system", "developer"}
    except UNREADABLE:
        return False


def _weigh(messages: tuple[Raw, ...]) -> tuple[tuple[int, ...], int]:
    """Bytes of each message without its embedded media, and the number of all these."""
    sizes, media = list(map(len, messages)), 0
    for index, size in enumerate(sizes):
        if size > _MEDIA_BYTES:
            sizes[index], found = _weigh_long(messages[index], size)
            media += found
    return tuple(sizes), media


def _weigh_long(raw: Raw, size: int) -> tuple[int, int]:
    text = bytes(raw)
    if b"base64" not in text and b'"images"' not in text:
        return size, 0
    try:
        value = _ANY.decode(raw)
    except UNREADABLE:
        return size, 0
    media = [len(text) for key, text in _strings(value) if _is_media(key, text)]
    return size - sum(media), len(media)


def _is_media(key: str, text: str) -> bool:
    # Anthropic: {"type": "base64", "data": "…"}; OpenAI: "data:image/png;base64,…"; Ollama: {"images": ["…"]}.
    return len(text) > _MEDIA_BYTES // 2 and (key in {"data", "images"} or text.startswith("data:"))


def _strings(value: object) -> Iterator[tuple[str, str]]:
    """Every string of a decoded value with the key it stands under; keys count as strings of their own."""
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
