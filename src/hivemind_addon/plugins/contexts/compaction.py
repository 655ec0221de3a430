"""Which old tool results are taken out of a request, so that its context fits: by its messages alone.

A conversation grows at its end, and each request repeats all of it. So a request says which requests came before it:
they ended where the model began to answer. What was taken out of each of them follows from their sizes in the same way:

    for each request that the messages tell of, the oldest first:
        is it longer than `at`, with the stubs that there are?     no: they stay as they are
        stubs for the oldest results but the newest `keep`, until no more than `to` is left

So there is no state. All requests of a conversation have the same stubs, byte for byte, also after a restart and in
another process, and the provider's prompt cache stays warm until `at` is passed again. The sizes must stay the same,
too: they are bytes, and by the profile's own constant tokens; what usage teaches would move the threshold under a
conversation. Marks of a prompt cache, which agents move, do not count.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from hivemind_addon.formats.base.json_values import read_value
from hivemind_addon.formats.base.patterns import glob_matches
from hivemind_addon.formats.base.pointer import Pointer
from hivemind_addon.formats.profile.grants import Compaction
from hivemind_addon.formats.profile.model import ContextEditing, Tokens
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.request import is_answer, lasting_weight, without_cache_marks
from hivemind_addon.formats.wire.tool_results import (
    Conversation,
    Extent,
    ToolResult,
    items_at,
    members_at,
    plain_text,
    read_results,
    spliced,
)

LEAST_BYTES = 1000
"""A shorter result stays: its stub would save little."""
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_STUB_BYTES = 250
"""About what a stub has."""
_MEDIA_TOKENS = 1500
"""As `formats/wire/estimate.py` takes them."""
_ID_CHARS = 12
STUB = (
    "[hivemind took this tool result out to keep the context short ({chars:,} characters). "
    'The tool "recall" gives it back with the id "{id}", and so does the command `hivemind context recall {id}`.]'
)


class TakenOut(Struct, frozen=True):
    """A tool result that was taken out of a request."""

    id: str
    """By which it can be read; the same for the same result."""
    call_id: str
    """The tool call's, as its provider names it; empty: it has none."""
    value: bytes
    """The result, as JSON."""

    @property
    def text(self) -> str:
        """What it says."""
        return plain_text(self.value)


class Shortened(Struct, frozen=True):
    """A request's body without some results."""

    body: bytes
    taken: Sequence[TakenOut]
    """What is not in it, in its order."""


def shorten(
    body: bytes, dialect: Dialect, settings: Compaction, *, window_tokens: int, tokens: Tokens, preamble_bytes: int
) -> Shortened | None:
    """The body of a request, JSON, with stubs for its old tool results; None: it stays as it is.

    `preamble_bytes`: of what stands before the conversation. `tokens`: how the profile counts. What cannot be
    understood stays; nothing is raised.
    """
    window = window_tokens * tokens.bytes_per_token / tokens.scale
    if len(body) <= settings.at * window:
        return None
    readable = body
    conversation = read_results(body, dialect)
    if conversation is None:
        readable = _LONE_SURROGATE.sub(rb"\\ufffd", body)  # of the same length
        conversation = read_results(readable, dialect) if readable != body else None
    if conversation is None:
        return None
    media_bytes = _MEDIA_TOKENS * tokens.bytes_per_token / tokens.scale
    taken = _Plan(readable, conversation, settings, window=window, media_bytes=media_bytes).play(preamble_bytes)
    if not taken:
        return None
    out = [TakenOut(_id_of(one), one.call_id, one.value) for one in taken]
    stubs = [(one.span, one.stub(_stub(result))) for one, result in zip(taken, out, strict=True)]
    return Shortened(spliced(body, stubs), out)


class _Plan:
    """A conversation, played through from its beginning. Sizes are bytes of text."""

    def __init__(
        self, body: bytes, conversation: Conversation, settings: Compaction, *, window: float, media_bytes: float
    ) -> None:
        self._body = body
        self._messages = conversation.messages
        self._results = conversation.results
        self._keep = settings.keep
        self._window, self._at, self._to = window, settings.at * window, settings.to * window
        self._media_bytes = media_bytes
        self._gains = [self._gain(one.value) for one in self._results]
        self._looked_at = 0
        """So many of the oldest results are taken out, or too short for it."""
        self._taken: list[ToolResult] = []

    def play(self, size: float) -> Sequence[ToolResult]:
        """What is taken out of the newest request. `size`: of what stands before the conversation."""
        known, was_asked = 0, False
        for index, span in enumerate(self._messages):
            raw = self._body[span.start : span.end]
            answers = is_answer(Raw(raw))
            if answers and was_asked:
                size -= self._make_room(size, known)
            was_asked = not answers
            size += self._weight(raw)
            while known < len(self._results) and self._results[known].message == index:
                known += 1
        if was_asked:
            self._make_room(size, known)
        return self._taken

    def _make_room(self, size: float, known: int) -> float:
        """How much shorter a request becomes that is so long, and has so many results."""
        candidates = range(self._looked_at, known - self._keep)
        worth = sum(self._gains[one] for one in candidates)
        # The cache is lost from the first new stub on: for little gain only where nothing else helps.
        if size <= self._at or (worth < (self._at - self._to) / 2 and size <= self._window):
            return 0
        gained = 0.0
        for one in candidates:
            if size - gained <= self._to:
                break
            self._looked_at = one + 1
            if self._gains[one]:
                gained += self._gains[one]
                self._taken.append(self._results[one])
        return gained

    def _gain(self, value: bytes) -> float:
        weight = self._weight(value)
        return weight - _STUB_BYTES if weight >= LEAST_BYTES else 0.0

    def _weight(self, raw: bytes) -> float:
        size, media = lasting_weight(raw)
        return size + media * self._media_bytes


def _stub(result: TakenOut) -> str:
    return STUB.format(id=result.id, chars=len(result.text))


def _id_of(result: ToolResult) -> str:
    """Of the result and its call: the same file, read twice, is two results."""
    sha = hashlib.sha256(result.call_id.encode(errors="replace") + b"\0")
    for piece in without_cache_marks(result.value)[0]:
        sha.update(piece)
    return sha.hexdigest()[:_ID_CHARS]


# The provider's own way -----------------------------------------------------------------------------------------------


def is_edited_elsewhere(body: bytes, dialect: Dialect) -> bool:
    """Whether a client has the provider do something with its tool results, or with its whole context."""
    request = dialect.form.request
    for pointer in request.edits:
        span = _found(body, Pointer.parse(pointer).steps)
        edits = read_value(body[span.start : span.end]) if span else None
        if edits is None:
            continue
        kinds = (
            [one.get("type") if isinstance(one, dict) else None for one in edits] if isinstance(edits, list) else [""]
        )
        if not all(any(glob_matches(glob, str(kind)) for glob in request.harmless_edits) for kind in kinds):
            return True
    return False


def ask_provider(body: bytes, editing: ContextEditing, settings: Compaction, *, window_tokens: int) -> bytes | None:
    """The body with the provider's own edit asked for, behind those that are, and all else as it came.

    None: it is no JSON object, or has something else where edits belong.
    """
    at, to = (round(share * window_tokens) for share in (settings.at, settings.to))
    values = {"at_tokens": at, "least_tokens": max(1, (at - to) // 2), "keep": settings.keep}
    edit = _filled(editing.edit, values)
    steps = Pointer.parse(editing.at).steps
    listed = _found(body, steps)
    if listed is not None:
        items = items_at(body, listed)
        return None if items is None else _with(body, listed, items, msgspec.json.encode(edit))
    depth = next(depth for depth in reversed(range(len(steps))) if _found(body, steps[:depth]) is not None)
    parent = _found(body, steps[:depth])
    members = members_at(body, parent) if parent else None
    if parent is None or members is None:
        return None
    value: Any = [edit]
    for step in reversed(steps[depth + 1 :]):
        value = {step: value}
    member = b"%b:%b" % (msgspec.json.encode(steps[depth]), msgspec.json.encode(value))
    return _with(body, parent, list(members.values()), member)


def _with(body: bytes, whole: Extent, inner: Sequence[Extent], added: bytes) -> bytes:
    """A list or an object with something behind all that is in it."""
    end = inner[-1].end if inner else body.index(body[whole.start : whole.end].lstrip()[:1], whole.start) + 1
    return spliced(body, [(Extent(end, end), b"," * bool(inner) + added)])


def _found(body: bytes, steps: Sequence[str]) -> Extent | None:
    span: Extent | None = Extent(0, len(body))
    for step in steps:
        span = (members_at(body, span) or {}).get(step) if span else None
    return span


def _filled(template: Any, values: Mapping[str, int]) -> Any:
    match template:
        case Mapping():
            return {name: _filled(one, values) for name, one in template.items()}
        case list():
            return [_filled(one, values) for one in template]
        case str() if template[:1] == "{" and template[1:-1] in values:
            return values[template[1:-1]]
    return template
