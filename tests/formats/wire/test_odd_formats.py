"""Whatever a user's format says: it is refused when it is read, or read by without an exception."""

from dataclasses import fields
from pathlib import Path

from hivemind_addon.formats.base.typed import DocumentError, convert
from hivemind_addon.formats.profile.format import (
    ErrorForm,
    ErrorPlaces,
    EventRules,
    RequestPlaces,
    UsagePlaces,
    WireFormat,
)
from hivemind_addon.formats.profile.formats import whole_format
from hivemind_addon.formats.profile.rules import FORMAT_RULES
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.error import error_in_body
from hivemind_addon.formats.wire.request import read_request
from hivemind_addon.formats.wire.sse import SseEvent
from hivemind_addon.formats.wire.transcript import answer_of, request_of
from tests.cases import each

FILE = Path("mine.yaml")
PARTS = {
    "request": RequestPlaces,
    "events": EventRules,
    "usage": UsagePlaces,
    "error": ErrorPlaces,
    "error_form": ErrorForm,
}
ODD = ([], [""], ["/"], ["/*"], ["/a/*/b"], ["x"], {}, "", "{x}", ["[DONE]"], {"/a": "("}, {"429": ""}, {"at": "/a"})
EVENTS = (
    SseEvent("", b'{"a":1,"error":{"x":1},"usage":{"a":1}}'),
    SseEvent("x", b"[1]"),
    SseEvent("error", b"{}"),
    SseEvent("", b'{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3}}'),
)
BODIES = (
    b'{"model":"m","messages":[{"role":"user","content":"x"}]}',
    b"{}",
    b"[]",
    b'{"prompt":"x","request":{"a":1}}',
)


def read_by(form: WireFormat) -> None:
    dialect = Dialect(form)
    for event in EVENTS:
        dialect.classify(event)
        dialect.classify_after_content(event)
        dialect.is_only_content(event)
        dialect.error_of(event)
        dialect.ends_without_terminal(event)
        dialect.usage.in_event(event)
    dialect.parser().feed(b"data: {}\n\n")
    for body in BODIES:
        read_request(body, dialect.plan, "/x")
        request_of(dialect, body)
        answer_of(dialect, body)
        error_in_body(body, form.error)
    dialect.error_body(429, "", "m", 5, 3.0)
    dialect.error_headers(429, "", 5, 3.0)
    dialect.error_event("", "m", 3.0)
    dialect.error_event("e", "m", None)


@each("part", [*PARTS, ""])
def test_a_format_is_refused_or_read_by(part):
    read = refused = 0
    for field in fields(PARTS.get(part, WireFormat)):
        for value in ODD:
            changed = {part: {field.name: value}} if part else {field.name: value}
            written = whole_format({"extends": "gemini", **changed}, FILE, "format")
            try:
                form = convert(WireFormat, written, FILE, rules=FORMAT_RULES)
            except DocumentError:
                refused += 1
                continue
            read += 1
            read_by(form)
    assert read, "some of it is right"
    assert refused, "and most of it is not"
