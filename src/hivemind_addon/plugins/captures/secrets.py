"""Credentials and personal names in texts, replaced by placeholders: the same one for the same secret.

Two ways lead to a placeholder: what somebody knows to be a secret (a header's value) is learned and then replaced
wherever it stands, and what looks like one is found by its shape. Shapes are looked for by a literal that each of them
has: a search for it passes a megabyte in a fraction of a millisecond, a regular expression alone would take fifty.

A model streams a secret out in pieces, of which each alone looks like nothing (`clean_stream`): the pieces of one text
are joined, and what is found in it is taken out of all of them.

    data: {"delta": {"text": "KEY=sk-ant-"}}        data: {"delta": {"text": "KEY=redacted-ab12-1"}}
    data: {"delta": {"text": "api03-Ab1Ab1"}}   →   data: {"delta": {"text": ""}}
"""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec

from hivemind_addon.formats.base.json_values import read_value

_LEAST_KNOWN = 6
"""A learned value that is shorter is replaced where it was, and nowhere else: as a word of prose it means nothing."""
_LEAST_CHARS = 6
"""No secret is shorter."""
_LONG_BYTES = 4096
_MOST_KNOWN = 10_000
_EMAIL_CHARS = 64
_ESCAPE = rb"(?<=\\[nrtbf])|(?<=\\u[0-9A-Fa-f]{4})"
"""In JSON the letter before a word may be part of a line's end."""
_BEFORE = rb"(?:" + _ESCAPE + rb"|(?<![A-Za-z0-9]))"
_WORD = rb"[A-Za-z0-9_\-]"


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one kind of secret looks."""

    literals: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    """Begins at a literal, `back` bytes before it at most. Its last group, where it has one, is the secret."""
    back: int = 0


def _shape(*literals: str, then: bytes, back: int = 0) -> _Shape:
    either = b"|".join(re.escape(literal.encode()) for literal in literals)
    return _Shape(
        tuple(literal.encode() for literal in literals), re.compile(_BEFORE + b"(?:" + either + b")" + then), back
    )


_SHAPES = (
    # OpenAI, Anthropic, OpenRouter; Stripe.
    _shape("sk-", then=_WORD + rb"{12,512}"),
    _shape("sk_live_", "rk_live_", "sk_test_", "rk_test_", "whsec_", then=rb"[A-Za-z0-9]{10,}"),
    _shape("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", then=rb"\w{16,}"),
    _shape(
        "glpat-", "gldt-", "xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xapp-", "xai-", "pypi-", then=_WORD + rb"{10,}"
    ),
    _shape("hf_", "gsk_", "npm_", "dop_v1_", "AIza", "ya29.", "nvapi-", "pplx-", then=_WORD + rb"{16,}"),
    _shape("AKIA", "ASIA", then=rb"[A-Z0-9]{16}"),
    # A JWT: its first two parts are JSON in base64.
    _shape("eyJ", then=rb"[\w\-]{6,8000}\.[\w\-]{6,8000}(?:\.[\w\-]*)?"),
    # To its end; to the end of the text, where that is missing.
    _shape(
        "-----BEGIN ",
        then=rb"[A-Z ]{0,40}(?:PRIVATE KEY|CERTIFICATE)(?:[\s\S]{0,20000}?-----END [A-Z ]{0,60}-----|[\s\S]{0,20000})",
    ),
    _Shape((b"earer ", b"EARER "), re.compile(rb"(?i:bearer\s+)([\w.~+/=\-]{8,})"), back=1),
    _Shape(
        (b"uthorization",), re.compile(rb"uthorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[A-Za-z]+\s+)?([^\s\"'\\,;]{6,})")
    ),
    _Shape((b"://",), re.compile(rb"://([^\s/:@\"'\\<>]*:[^\s/@\"'\\<>]+)(?=@)")),
    # Assignments, as environments and .env files have them.
    _Shape(
        (b"SECRET", b"TOKEN", b"PASSWORD", b"PASSWD", b"API_KEY", b"APIKEY", b"ACCESS_KEY", b"PRIVATE_KEY"),
        re.compile(rb"[A-Z]{1,20}(?:_[A-Z]{1,20}){0,8}\\?[\"']?\s*[=:]\s*\\?[\"']?([^\s\"'\\,;]{8,})"),
    ),
    # Whose Claude Code it is: body#metadata.user_id, in its two forms (2026).
    _shape("user_", then=rb"([0-9a-f]{64})"),
    _Shape((b"account_",), re.compile(rb"account_([0-9a-f]{8}-[0-9a-f-]{27})")),
    _Shape(
        (b"account_uuid", b"device_id", b"organization_uuid"),
        re.compile(rb"(?:account_uuid|device_id|organization_uuid)\\*\"\s*:\s*\\*\"([\w\-]{8,})"),
    ),
)
_LOCAL = re.compile(rb"(?:" + _ESCAPE + rb"|(?<![A-Za-z0-9._%+\-\\]))[A-Za-z0-9._%+\-]{1,64}@")
_DOMAIN = re.compile(rb"(?:[A-Za-z0-9\-]{1,63}\.){1,8}[A-Za-z]{2,24}")
_PLACEHOLDER = re.compile(rb"redacted-[0-9a-f]{4}-\d+\Z")


class Redactor:
    """One for each recording. Not thread-safe."""

    def __init__(self, tag: str, *, breathe: Callable[[], None] = lambda: None) -> None:
        """`tag`: four hex digits, which tell its placeholders from another recording's.

        `breathe` is called now and then within long texts, so that other threads can run.
        """
        self._tag = tag
        self._breathe = breathe
        self._placeholders: dict[bytes, bytes] = {}
        self._known: dict[bytes, bytes] = {}
        """Learned values → placeholder, of those that are replaced wherever they stand."""

    def __repr__(self) -> str:
        return f"<Redactor, {len(self._placeholders)} secrets>"

    def placeholder(self, secret: bytes) -> bytes:
        """What stands for it."""
        if _PLACEHOLDER.match(secret):
            return secret
        known = self._placeholders.get(secret)
        if known is None:
            known = b"redacted-%s-%d" % (self._tag.encode(), len(self._placeholders) + 1)
            if len(self._placeholders) < _MOST_KNOWN:
                self._placeholders[secret] = known
        return known

    def learn(self, secret: bytes) -> bytes:
        """Its placeholder; from now on it is replaced in every text."""
        placeholder = self.placeholder(secret)
        if len(secret) >= _LEAST_KNOWN and placeholder != secret and len(self._known) < _MOST_KNOWN:
            self._known[secret] = placeholder
        return placeholder

    def spans(self, text: bytes) -> list[tuple[int, int]]:
        """Where something is known or looks like a secret, from left to right; none overlaps another."""
        if len(text) < _LEAST_CHARS:
            return []
        found = list(_found(text, self._breathe if len(text) > _LONG_BYTES else _go_on))
        for secret in self._known:
            found += [(place, place + len(secret)) for place in _places(text, secret)]
        spans: list[tuple[int, int]] = []
        for start, stop in sorted(found, key=lambda span: (span[0], -span[1])):
            if spans and start < spans[-1][1]:
                spans[-1] = (spans[-1][0], max(stop, spans[-1][1]))
            else:
                spans.append((start, stop))
        return spans

    def clean(self, text: bytes) -> bytes:
        """The text without them."""
        pieces: list[bytes] = []
        end = 0
        for start, stop in self.spans(text):
            pieces += (text[end:start], self.placeholder(text[start:stop]))
            end = stop
        return b"".join((*pieces, text[end:])) if pieces else text

    def clean_text(self, text: str) -> str:
        """Likewise."""
        encoded = text.encode("utf-8", "surrogateescape")
        cleaned = self.clean(encoded)
        return text if cleaned is encoded else cleaned.decode("utf-8", "surrogateescape")


def _go_on() -> None:
    """Nobody waits for a short text."""


def _found(text: bytes, breathe: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """Where secrets stand, in no order; they may overlap."""
    for shape in _SHAPES:
        for literal in shape.literals:
            breathe()
            for place in _places(text, literal):
                if match := shape.pattern.match(text, max(0, place - shape.back)):
                    yield match.span(match.lastindex or 0)
    for place in _places(text, b"@"):
        if span := _email_around(text, place):
            yield span


def _places(text: bytes, literal: bytes) -> Iterator[int]:
    place = text.find(literal)
    while place >= 0:
        yield place
        place = text.find(literal, place + 1)


def _email_around(text: bytes, place: int) -> tuple[int, int] | None:
    """Of an address whose `@` is at a place."""
    domain = _DOMAIN.match(text, place + 1)
    local = _LOCAL.search(text, max(0, place - _EMAIL_CHARS), place + 1) if domain else None
    return (local.start(), domain.end()) if domain and local else None


_TEXTS = frozenset(
    ("text", "partial_json", "thinking", "content", "reasoning_content", "reasoning", "arguments", "delta", "response")
)
"""Members that hold a piece, in all dialects."""
_NAMES = ("type", "index", "output_index", "content_index", "item_id")
"""Members of an event, or of a choice within it, that tell which text a piece is of."""


@dataclass(frozen=True, slots=True)
class _Piece:
    line: int
    holder: dict[str, object]
    member: str
    text: bytes


def clean_stream(body: bytes, redactor: Redactor) -> bytes:
    """A body of server-sent events or of JSON lines without the secrets that lie across its pieces."""
    lines = body.split(b"\n")
    events: dict[int, tuple[bytes, object]] = {}
    texts: defaultdict[tuple[object, ...], list[_Piece]] = defaultdict(list)
    for number, line in enumerate(lines):
        start = 5 if line.startswith(b"data:") else 0
        if not line[start:].lstrip().startswith(b"{"):
            continue
        event = read_value(line[start:])
        events[number] = (line[:start], event)
        for key, holder, member, text in _pieces(event):
            texts[key].append(_Piece(number, holder, member, text.encode("utf-8", "surrogatepass")))
    changed: set[int] = set()
    for pieces in texts.values():
        changed |= _clean(pieces, redactor)
    for number in changed:
        prefix, event = events[number]
        end = b"\r" if lines[number].endswith(b"\r") else b""
        lines[number] = prefix + (b" " if prefix else b"") + msgspec.json.encode(event) + end
    return b"\n".join(lines) if changed else body


def _pieces(event: object) -> Iterator[tuple[tuple[object, ...], dict[str, object], str, str]]:
    """Which text, the object that holds a piece of it, by which name, and the piece."""
    values: list[tuple[object, tuple[object, ...]]] = [(event, ())]
    while values:
        value, key = values.pop()
        if isinstance(value, list):
            values += [(one, key) for one in reversed(value)]
        elif isinstance(value, dict):
            told = [value.get(name) for name in _NAMES]
            key = (*key, *(one if isinstance(one, str | int) else None for one in told))
            for name, one in value.items():
                if isinstance(one, str) and name in _TEXTS:
                    yield (*key, name), value, name, one
            values += [(one, (*key, name)) for name, one in reversed(value.items()) if isinstance(one, dict | list)]


def _clean(pieces: Sequence[_Piece], redactor: Redactor) -> set[int]:
    """Take out what lies across them; the lines that have changed."""
    joined = b"".join(piece.text for piece in pieces)
    begins = [0, *accumulate(len(piece.text) for piece in pieces)]
    across = [(start, stop) for start, stop in redactor.spans(joined) if stop > begins[bisect_right(begins, start)]]
    changed: set[int] = set()
    for piece, (begin, end) in zip(pieces, pairwise(begins), strict=True):
        text, done = b"", begin
        for start, stop in across:
            if start >= end or stop <= begin:
                continue
            text += joined[done : max(done, start)]
            if start >= begin:
                text += redactor.placeholder(joined[start:stop])
            done = min(stop, end)
            changed.add(piece.line)
        piece.holder[piece.member] = (text + joined[done:end]).decode("utf-8", "surrogatepass")
    return changed
