import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire.sse import MAX_EVENT_BYTES, SseEvent, SseParser
from tests.cpu_time import least_cpu_s

# Bytes that mean something to the format come often.
wild = st.lists(
    st.one_of(
        st.sampled_from(
            [b"data:", b"data: ", b"data", b"event: ", b"event", b":", b"id: 1", b"\n", b"\r", b"\r\n", b"\n\n"]
        ),
        st.sampled_from([b"\xef\xbb\xbf", b"\xef", b" ", b"x", b"\x00", b"\xff"]),
        st.binary(max_size=8),
    ),
    max_size=40,
).map(b"".join)


def parse(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish()


@given(wild, st.lists(st.integers(0, 300)))
def test_any_cut_of_the_same_bytes_gives_the_same_events(stream, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert parse(*chunks) == parse(stream)


@given(wild)
def test_byte_by_byte_gives_the_same_events(stream):
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == parse(stream)


line = st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b""))
name = st.text(st.characters(blacklist_characters="\r\n", codec="utf-8"), max_size=20).filter(
    lambda s: not s.startswith(" ")
)


@given(
    st.lists(st.tuples(name, st.lists(line, min_size=1, max_size=4)), max_size=5),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_written_events_are_read_back(written, end):
    stream = b"".join(
        (b"event: " + event.encode() + end if event else b"")
        + b"".join(b"data: " + part + end for part in data)
        + b": a comment"
        + end
        + end
        for event, data in written
    )
    assert parse(stream) == [SseEvent(event, b"\n".join(data)) for event, data in written]


def test_a_byte_order_mark_is_dropped_at_the_start_only():
    assert parse(b"\xef\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [SseEvent("", b"a")]


def test_comments_and_blank_lines_are_no_events():
    assert parse(b"\n\n: OPENROUTER PROCESSING\n\n: keep-alive\n\nid: 3\nretry: 10\n\n") == []


def test_a_name_without_data_is_an_event():
    assert parse(b"event: ping\n\ndata: x\n\n") == [SseEvent("ping", b""), SseEvent("", b"x")]


def test_the_last_event_counts_without_its_blank_line_only_at_the_end():
    parser = SseParser()
    assert parser.feed(b"data: [DONE]") == []
    assert parser.finish() == [SseEvent("", b"[DONE]")]
    assert parser.finish() == []


def test_only_one_space_is_taken_off():
    assert parse(b"data:  a\ndata:b\ndata\n\n") == [SseEvent("", b" a\nb\n")]


def test_an_endless_event_is_cut_at_the_bound_for_any_chunking():
    stream = b"event: big\ndata: " + b"x" * (MAX_EVENT_BYTES + 5000) + b"\ndata: more\n\ndata: next\n\n"
    expected = [SseEvent("big", b"x" * MAX_EVENT_BYTES), SseEvent("", b"next")]
    assert parse(stream) == expected
    assert parse(*(stream[i : i + 4096] for i in range(0, len(stream), 4096))) == expected


def test_many_lines_of_one_event_are_cut_at_the_bound():
    (event,) = parse(*([b"data: " + b"y" * 1000 + b"\n"] * 2000), b"\n")
    assert len(event.data) == MAX_EVENT_BYTES


def test_a_line_without_end_keeps_bounded_memory():
    parser = SseParser()
    for _ in range(100):
        parser.feed(b"z" * 65536)
    assert len(parser._line) <= MAX_EVENT_BYTES + 16


def test_a_long_line_in_small_chunks_is_not_copied_again_and_again():
    """A quadratic parser needs minutes for it."""
    parser = SseParser()

    def feed():
        for _ in range(200_000):
            parser.feed(b"abcd")

    assert least_cpu_s(feed, tries=1) < 5


ERROR = b'{\n  "error": {\n    "code": 503,\n    "message": "}\\"{ full"\n  }\n}'


def parse_bare(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser(bare_json=True)
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"", b"\n\ndata: c\n\n"])
def test_a_bare_error_is_an_event_of_that_name(end):
    events = parse_bare(b'data: {"a":1}\n\n' + ERROR + end)
    assert events[0] == SseEvent("", b'{"a":1}')
    assert events[1].event == "error"
    assert json.loads(events[1].data) == json.loads(ERROR)
    assert events[2:] == ([SseEvent("", b"c")] if b"data" in end else [])


def test_other_bare_json_is_an_event_without_a_name_and_in_order():
    stream = b'\xef\xbb\xbf{"a":1}{"error":2}\ndata: b\n\n{"c":3} junk\n'
    assert parse_bare(stream) == [
        SseEvent("", b'{"a":1}'),
        SseEvent("error", b'{"error":2}'),
        SseEvent("", b"b"),
        SseEvent("", b'{"c":3}'),
    ]


def test_bare_json_is_skipped_unasked():
    assert parse(ERROR + b"\n\ndata: c\n\n") == [SseEvent("", b"c")]


def test_what_only_looks_like_bare_json_hides_nothing():
    assert parse_bare(b"{oops\ndata: a\n\n" + ERROR + b"\n")[0] == SseEvent("", b"a")
    assert [event.event for event in parse_bare(b"{oops\ndata: a\n\n" + ERROR)] == ["", "error"]
    assert parse_bare(b'{"oops\n{\ndata: a\n\n{"b":1}\n') == [SseEvent("", b"a"), SseEvent("", b'{"b":1}')]
    assert parse_bare(b"{oops}\n{}}\n{\n\n") == [SseEvent("", b"{}")]


def test_within_an_event_bare_json_is_no_event():
    assert parse_bare(b"event: x\n" + b'{"error":1}\ndata: a\n\n') == [SseEvent("x", b"a")]
