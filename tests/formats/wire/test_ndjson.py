import itertools

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire.ndjson import NdjsonParser
from hivemind_addon.formats.wire.sse import MAX_EVENT_BYTES

STREAM = b'{"a":1}\n\n{"b":"\xc3\xa4"}\r\n  \n{"c":3}'


def lines(*chunks):
    parser = NdjsonParser()
    events = [event for chunk in chunks for event in parser.feed(chunk)] + parser.finish()
    assert all(event.event == "" for event in events)
    return [event.data.strip() for event in events]


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_way_to_cut_the_bytes_gives_the_same_lines(cuts):
    places = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert lines(*chunks) == [b'{"a":1}', b'{"b":"\xc3\xa4"}', b'{"c":3}']


def test_a_line_is_given_out_when_it_is_complete():
    parser = NdjsonParser()
    assert parser.feed(b'{"a"') == []
    assert [event.data for event in parser.feed(b":1}\n{")] == [b'{"a":1}']
    assert [event.data for event in parser.finish()] == [b"{"]
    assert parser.finish() == []


def test_an_endless_line_costs_bounded_memory():
    parser = NdjsonParser()
    for _ in range(40):
        parser.feed(b"x" * 65536)
    (event,) = parser.feed(b"\nrest")
    assert len(event.data) == MAX_EVENT_BYTES


def test_a_line_that_is_blank_as_far_as_it_is_kept_is_dropped_for_any_cut():
    line = b" " * (MAX_EVENT_BYTES + 10) + b"x\n"
    assert lines(line) == lines(line[:10], line[10:-5], line[-5:]) == []
