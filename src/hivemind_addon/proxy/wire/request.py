"""A request's body → what the scheduler needs of it. Tolerates anything; a 1 MB body costs under 1 ms.

Only the outer layers of the JSON are decoded; messages stay raw slices of the body, and their text is decoded
when it is counted (`text_of`), which happens only to what is new and short.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec
from msgspec import Raw

from hivemind_addon.proxy.profile.model import DialectName

MAX_BODY_BYTES = 32 * 1024 * 1024
"""No provider takes more (Anthropic: 32 MB, 2026-08): decoding it would only stall the event loop."""

_MAX_NAME_CHARS = 200

_MEDIA_BYTES = 8192
"""Smaller images cost about as many tokens when they are taken for text, so they are not looked for."""

_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_NEWEST_BYTES = 65_536
_CACHE_MARK = re.compile(rb'"cache_control"\s*:\s*(?:null|\{[^{}]*\})')
_FINGERPRINT_CHARS = 16
_LEGACY_USER_ID = re.compile(r"_session_([0-9A-Za-z-]+)$")
_NO_RAW = Raw()
_NULL = b"null"
_NO_ITEMS = b"[]"
_QUOTE = b'"'


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a request's body says. The defaults stand for what it does not say, or not understandably."""

    model: str = ""
    stream: bool = False
    max_output_tokens: int | None = None
    prompt_bytes: int = 0
    """Size of the JSON that becomes input tokens: messages, system, tools; embedded media left out."""
    media: int = 0
    """Embedded images and documents, which cost tokens by their dimensions and not by their bytes."""
    messages: tuple[Raw, ...] = field(default=(), repr=False)
    """The conversation's items, raw JSON, oldest first: slices that keep the body alive."""
    message_bytes: tuple[int, ...] = field(default=(), repr=False)
    """The size of each message, embedded media left out."""
    preamble: tuple[Raw, ...] = field(default=(), repr=False)
    """System prompt, tools and instructions, raw JSON."""
    session_hint: str = ""
    """What the body says about the session it belongs to; empty: nothing."""
    parent_hint: str = ""
    """What the body says about the session that started this one; empty: nothing."""
    has_tools: bool = False
    members: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Texts of the body that name sessions: `prompt_cache_key`, `request.session_id`; where agents put them differs."""
    counts: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    """Message index → our count of the text from there on (-1: of the whole prompt): counted once, as it is dear."""
    continues: bool = False
    """The body names an earlier answer, whose conversation the provider puts before these messages."""
    oddities: tuple[str, ...] = ()
    """What could not be understood, in words."""


class _Body(msgspec.Struct):
    """The outer layer. Every value is raw, so that one of a wrong type spoils no other."""

    model: Raw = _NO_RAW
    stream: Raw = _NO_RAW
    max_tokens: Raw = _NO_RAW
    max_completion_tokens: Raw = _NO_RAW
    max_output_tokens: Raw = _NO_RAW
    messages: Raw = _NO_RAW
    input: Raw = _NO_RAW
    system: Raw = _NO_RAW
    instructions: Raw = _NO_RAW
    tools: Raw = _NO_RAW
    functions: Raw = _NO_RAW
    metadata: Raw = _NO_RAW
    prompt_cache_key: Raw = _NO_RAW
    user: Raw = _NO_RAW
    previous_response_id: Raw = _NO_RAW
    prompt: Raw = _NO_RAW
    options: Raw = _NO_RAW
    images: Raw = _NO_RAW
    client_metadata: Raw = _NO_RAW
    request: Raw = _NO_RAW
    user_prompt_id: Raw = _NO_RAW


class _UsualBody(_Body):
    """The outer layer of nearly every body: reading the messages with it saves a second pass over all of them."""

    messages: list[Raw] = []  # type: ignore[assignment]  # instead of Raw


class _Metadata(msgspec.Struct):
    user_id: str = ""


class _Options(msgspec.Struct):
    num_predict: Raw = _NO_RAW


class _ClaudeUser(msgspec.Struct):
    session_id: str = ""
    parent_session_id: str = ""


class _Item(msgspec.Struct):
    role: str = ""
    type: str = ""


# Decoders hold no state between calls; building one costs more than most calls.
_BODY = msgspec.json.Decoder(_Body)
_USUAL_BODY = msgspec.json.Decoder(_UsualBody)
_RAWS = msgspec.json.Decoder(list[Raw])
_STR = msgspec.json.Decoder(str)
_INT = msgspec.json.Decoder(int)
_BOOL = msgspec.json.Decoder(bool)
_OPTIONS = msgspec.json.Decoder(_Options)
_RAW_MEMBERS = msgspec.json.Decoder(dict[str, Raw])
_METADATA = msgspec.json.Decoder(_Metadata)
_CLAUDE_USER = msgspec.json.Decoder(_ClaudeUser)
_ITEM = msgspec.json.Decoder(_Item)
_ANY = msgspec.json.Decoder()

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_request(body: bytes, dialect: DialectName) -> RequestFacts:
    """Never raises: what is not understood gets its default and one oddity text."""
    if not body:
        return RequestFacts(oddities=("request body: empty",))
    if len(body) > MAX_BODY_BYTES:
        return RequestFacts(prompt_bytes=len(body), oddities=(f"request body: {len(body)} bytes, not read",))
    try:
        outer = _read_outer(body)
    except _UNREADABLE as error:
        # JavaScript may write half of a surrogate pair, which JSON allows and the decoder does not.
        repaired = _LONE_SURROGATE.sub(rb"\\ufffd", body)
        if repaired != body:
            return read_request(repaired, dialect)
        return RequestFacts(prompt_bytes=len(body), oddities=(f"request body: {_short(error)}",))
    return _Reading(outer, dialect).facts()


def _read_outer(body: bytes) -> _Body:
    try:
        return _USUAL_BODY.decode(body)
    except msgspec.ValidationError:
        return _BODY.decode(body)


class _Reading:
    """One body that is a JSON object."""

    def __init__(self, body: _Body, dialect: DialectName) -> None:
        self._body = body
        self._dialect = dialect
        self._oddities: list[str] = []

    def facts(self) -> RequestFacts:
        body = self._body
        responses = self._dialect is DialectName.OPENAI_RESPONSES
        messages = self._messages(body.input if responses else body.messages, "input" if responses else "messages")
        if not messages and len(body.prompt):
            messages = self._messages(body.prompt, "prompt")
        preamble = tuple(raw for raw in (body.system, body.instructions, body.tools, body.functions) if len(raw))
        earlier = self._read("previous_response_id", _STR, body.previous_response_id)
        weights = [_weigh(raw) for raw in messages]
        sizes = tuple(size for size, _ in weights)
        session_hint, parent_hint = self._session_hints()
        return RequestFacts(
            model=self._model(),
            stream=self._stream(),
            max_output_tokens=self._max_output_tokens(),
            prompt_bytes=sum(sizes) + sum(len(raw) for raw in preamble),
            media=sum(media for _, media in weights) + self._images(),
            messages=messages,
            message_bytes=sizes,
            preamble=preamble,
            session_hint=session_hint,
            parent_hint=parent_hint,
            has_tools=any(len(raw) > len(_NO_ITEMS) and bytes(raw) != _NULL for raw in (body.tools, body.functions)),
            members=self._members(),
            continues=bool(earlier),
            oddities=tuple(self._oddities),
        )

    def _read[T](self, name: str, decoder: msgspec.json.Decoder[T], raw: Raw) -> T | None:
        if not len(raw) or (len(raw) == len(_NULL) and memoryview(raw) == _NULL):
            return None
        try:
            return decoder.decode(raw)
        except _UNREADABLE as error:
            self._oddities.append(f"request body: {name}: {_short(error)}")
            return None

    def _images(self) -> int:
        images = self._read("images", _RAWS, self._body.images)
        return len(images) if images else 0

    def _stream(self) -> bool:
        asked = self._read("stream", _BOOL, self._body.stream)
        return self._dialect is DialectName.OLLAMA if asked is None else asked

    def _members(self) -> Mapping[str, str]:
        """The short texts that may name a session, those of small objects by `outer.member`."""
        body = self._body
        found: dict[str, str] = {}
        for name, raw in (("prompt_cache_key", body.prompt_cache_key), ("user_prompt_id", body.user_prompt_id)):
            if text := _short_text(raw):
                found[name] = text
        # Only these, for in `request` there is the whole conversation (Gemini's Code Assist).
        for outer, raw in (("client_metadata", body.client_metadata), ("request", body.request)):
            if not len(raw):
                continue
            try:
                inner = _RAW_MEMBERS.decode(raw)
            except _UNREADABLE:
                continue
            found |= {f"{outer}.{name}": text for name, one in inner.items() if (text := _short_text(one))}
        return found

    def _model(self) -> str:
        name = self._read("model", _STR, self._body.model) or ""
        if len(name) <= _MAX_NAME_CHARS and name.isprintable():
            return name
        self._oddities.append("request body: model: no name")
        return ""

    def _messages(self, raw: Raw | list[Raw], name: str) -> tuple[Raw, ...]:
        if isinstance(raw, list):
            return tuple(raw)
        if len(raw) and memoryview(raw)[:1] == _QUOTE:
            return (raw,)  # Responses takes a plain text as well
        raws = self._read(name, _RAWS, raw)
        return tuple(raws) if raws else ()

    def _max_output_tokens(self) -> int | None:
        body = self._body
        names: tuple[str, ...] = ("max_tokens",)
        if self._dialect is DialectName.OPENAI_CHAT:
            names = ("max_completion_tokens", "max_tokens")
        elif self._dialect is DialectName.OPENAI_RESPONSES:
            names = ("max_output_tokens",)
        elif self._dialect is DialectName.OLLAMA:
            options = self._read("options", _OPTIONS, body.options)
            most = self._read("options.num_predict", _INT, options.num_predict) if options else None
            return most if most is not None and 0 < most < 1e9 else None  # -1 and -2: as much as there is room for
        for name in names:
            value = self._read(name, _INT, getattr(body, name))
            if value is None:
                continue
            if 0 <= value < 1e9:
                return value
            self._oddities.append(f"request body: {name}: {value:.3g} is absurd")
        return None

    def _session_hints(self) -> tuple[str, str]:
        """What the body says about its session, and about the one that started it."""
        body = self._body
        if self._dialect is not DialectName.ANTHROPIC_MESSAGES:
            key = self._read("prompt_cache_key", _STR, body.prompt_cache_key)
            return key or self._read("user", _STR, body.user) or "", ""
        metadata = self._read("metadata", _METADATA, body.metadata)
        return _claude_sessions(metadata.user_id) if metadata else ("", "")


def _short_text(raw: Raw) -> str:
    if not 2 < len(raw) <= _MAX_NAME_CHARS * 4 or memoryview(raw)[:1] != _QUOTE:
        return ""
    try:
        return _STR.decode(raw)
    except _UNREADABLE:
        return ""


def _claude_sessions(user_id: str) -> tuple[str, str]:
    """Session and parent's in Claude Code's user id: JSON with `session_id` (2026), `user_…_session_…` before."""
    if user_id.startswith("{"):
        try:
            user = _CLAUDE_USER.decode(user_id.encode("utf-8", "replace"))
        except _UNREADABLE:
            return user_id, ""
        return user.session_id or user_id, user.parent_session_id
    legacy = _LEGACY_USER_ID.search(user_id)
    return (legacy[1] if legacy else user_id), ""


@dataclass(frozen=True, slots=True)
class Fingerprints:
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
        pieces = list(_without_cache_marks(bytes(raw)))
        is_marked = is_marked or len(pieces) > 1
        for piece in pieces:
            sha.update(piece)
        size_bytes += len(raw)
    prefix = sha.hexdigest()[:_FINGERPRINT_CHARS]
    rest = facts.messages[len(instructions) :]
    sha.update(b"\0" + b" ".join(b"%d" % len(raw) for raw in rest))
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
    except _UNREADABLE:
        return bytes(raw).decode("utf-8", "replace")
    return "\n".join(text for key, text in _strings(value) if not _is_media(key, text))


def is_answer(raw: Raw) -> bool:
    """Whether a message was written by the model, so that the provider has counted it as output before."""
    try:
        item = _ITEM.decode(raw)
    except _UNREADABLE:
        return False
    return item.role == "assistant" or item.type in {"reasoning", "function_call", "custom_tool_call"}


def _is_instruction(raw: Raw) -> bool:
    """Whether a message is part of the system prompt, as OpenAI's formats have it."""
    try:
        return _ITEM.decode(raw).role in {"system", "developer"}
    except _UNREADABLE:
        return False


def _weigh(raw: Raw) -> tuple[int, int]:
    """Bytes of one message without its embedded media, and the number of these."""
    size = len(raw)
    if size <= _MEDIA_BYTES:
        return size, 0
    text = bytes(raw)
    if b"base64" not in text and b'"images"' not in text:
        return size, 0
    try:
        value = _ANY.decode(raw)
    except _UNREADABLE:
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


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:80]
