"""What every framing promises: the same events for any cut, no exception, bounded memory and time."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire.aws_eventstream import EventStreamParser
from hivemind_addon.formats.wire.json_array import JsonArrayParser
from hivemind_addon.formats.wire.ndjson import NdjsonParser
from hivemind_addon.formats.wire.sse import MAX_EVENT_BYTES, SseEvent, SseParser
from tests.cpu_time import least_cpu_s
from tests.formats.wire.eventstream import event_message, eventstream_message

type Parser = SseParser | NdjsonParser | JsonArrayParser | EventStreamParser

OBJECTS = [b"{}", b'{"a":"}]{["}', b'{"a":[{"b":"\\"}"},{}],"c":"\\\\"}', '{"ä":{"}":"\\u007d"}}'.encode()]
JSON_WORDS = [*OBJECTS, b"{", b"}", b'"', b"\\", b'\\"', b"[", b"]", b",", b"\n", b'{"error":{}}', b"null"]
SSE_WORDS = [
    b"data:",
    b"data: ",
    b"data",
    b"event: ",
    b"event: a",
    b": c",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\xef\xbb\xbf",
]
SOUND = event_message("chunk", b'{"bytes":""}')
FAILED = eventstream_message({":message-type": "exception", ":exception-type": "x"}, b'{"message":"y"}')
DAMAGED = SOUND[:-1] + bytes([SOUND[-1] ^ 1])


@dataclass(frozen=True)
class Framing:
    parser: Callable[[], Parser]
    words: list[bytes]
    """What means something to it: junk is made of it."""
    write: Callable[[bytes], bytes]
    """One event with this object."""
    between: list[bytes]
    """What may stand between events, and says nothing."""
    endless: bytes
    """The beginning of an event that does not end, however often `filler` follows."""
    filler: bytes = b"x"


def bare() -> SseParser:
    return SseParser(bare_json=True)


# A message that says it has 24 MiB, the most that one may have.
LONG = event_message("chunk", bytes(24 * 1024 * 1024))[:200]

FRAMINGS = {
    "sse": Framing(SseParser, SSE_WORDS, b"data: %s\n\n".__mod__, [b"", b"\n", b": c\r\n", b"{}\r"], b"data: "),
    "sse, many lines": Framing(
        SseParser, SSE_WORDS, b"data:%s\r\r".__mod__, [b""], b"data: ", b"x" * 500 + b"\ndata: "
    ),
    "sse+bare": Framing(
        bare, SSE_WORDS + JSON_WORDS, b"data: %s\n\n".__mod__, [b"", b"\r\n", b": {}\n", b"{x}\n", b"{x\n"], b'\n{"'
    ),
    "bare": Framing(
        bare,
        SSE_WORDS + JSON_WORDS,
        b"%s\n".__mod__,
        [b"", b"\n", b": {}\n", b"x\r\n"],
        b"{",
        b'\n{"%s":' % (b"x" * 100),
    ),
    "ndjson": Framing(NdjsonParser, JSON_WORDS, b"%s\n".__mod__, [b"", b"\n", b" \r\n"], b"{"),
    "json-array": Framing(
        JsonArrayParser, JSON_WORDS, b"%s".__mod__, [b"", b"[", b"]", b"\r\n,\n", b'", 7, "]}'], b'{"', b"\\"
    ),
    "aws-eventstream": Framing(
        EventStreamParser,
        [SOUND, SOUND, FAILED, DAMAGED, SOUND[:20], eventstream_message({"x": b"\xff"}, b"")],
        lambda data: event_message("", data),
        [b""],
        LONG,
    ),
}
every_framing = pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)
cuts = st.lists(st.integers(0, 400), max_size=30)


def wild(framing: Framing) -> st.SearchStrategy[bytes]:
    """Bytes that are meaningful in part."""
    return st.lists(st.sampled_from(framing.words) | st.binary(max_size=6), max_size=30).map(b"".join)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(place for place in cuts if place < len(stream)), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def read(framing: Framing, *chunks: bytes) -> tuple[list[SseEvent], str | None]:
    parser = framing.parser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    events += parser.finish()
    assert parser.finish() == []
    return events, parser.broken


def held(thing: object) -> int:
    """The bytes that a parser keeps."""
    if isinstance(thing, (bytes, bytearray, str)):
        return len(thing)
    if isinstance(thing, list):
        return sum(100 + held(one) for one in thing)
    return sum(held(getattr(thing, name)) for name in getattr(type(thing), "__slots__", ()))


@every_framing
@given(st.data(), cuts)
def test_any_cut_of_any_bytes_gives_the_same_events(framing, data, cuts):
    stream = data.draw(wild(framing))
    whole = read(framing, stream)
    assert read(framing, *cut(stream, cuts)) == whole
    assert read(framing, *(stream[i : i + 1] for i in range(len(stream)))) == whole


@every_framing
@given(st.data(), cuts)
def test_what_is_written_is_read_back_with_junk_between(framing, data, cuts):
    written = data.draw(st.lists(st.tuples(st.sampled_from(OBJECTS), st.sampled_from(framing.between)), max_size=8))
    stream = b"".join(between + framing.write(event) for event, between in written)
    expected = [SseEvent("", event) for event, _ in written]
    assert read(framing, *cut(stream, cuts)) == (expected, None)


@every_framing
def test_an_endless_event_costs_bounded_memory(framing):
    parser = framing.parser()
    parser.feed(framing.endless)
    filler = framing.filler * (65536 // len(framing.filler))
    for _ in range(40):
        parser.feed(filler)
    assert MAX_EVENT_BYTES / 2 < held(parser) < 2 * MAX_EVENT_BYTES
    assert parser.broken is None
    assert str(parser)


@every_framing
def test_an_event_in_many_pieces_is_not_copied_again_and_again(framing):
    """A quadratic parser needs minutes for it."""
    parser = framing.parser()
    parser.feed(framing.endless)

    def feed():
        for _ in range(100_000):
            parser.feed(b"abcd")

    assert least_cpu_s(feed, tries=1) < 5
