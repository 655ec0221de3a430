import json
import re
import struct
from zlib import crc32

import pytest

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.wire.aws_eventstream import EventStreamParser
from hivemind_addon.formats.wire.error import explicit_error
from hivemind_addon.formats.wire.sse import MAX_EVENT_BYTES, SseEvent
from tests.formats.wire.eventstream import event_message, eventstream_message


def parse(*chunks):
    parser = EventStreamParser()
    return [event for chunk in chunks for event in parser.feed(chunk)], parser.broken


def error_of(message):
    ((event,), broken) = parse(message)
    assert (event.event, broken) == ("error", None)
    return json.loads(event.data)["error"]


def test_amazon_s_own_samples_are_read():
    """Written by Amazon's encoder: a message without anything; one with a number among its headers."""
    empty = bytes.fromhex("000000100000000005c248eb7d98c8ff")
    number = bytes.fromhex("0000002d0000001041c424b8") + b"\nevent-type\x04\x00\x00\xa0\x0c{'foo':'bar'}"
    number += bytes.fromhex("36f480a0")
    assert parse(empty + number) == ([SseEvent("", b""), SseEvent("", b"{'foo':'bar'}")], None)


def test_an_event_has_its_type_as_name():
    stream = event_message("messageStart", b'{"role":"assistant"}') + event_message("metadata", b"{}")
    assert parse(stream) == ([SseEvent("messageStart", b'{"role":"assistant"}'), SseEvent("metadata", b"{}")], None)


def test_headers_of_every_type_are_stepped_over():
    values = [b"\x00", b"\x01", b"\x02a", b"\x03ab", b"\x04abcd", b"\x05abcdefgh", b"\x06\x00\x03abc", b"\x07\x00\x01x"]
    values += [b"\x08abcdefgh", b"\x09" + bytes(16)]
    headers = {f"h{place}": value for place, value in enumerate(values)}
    assert parse(eventstream_message({**headers, ":event-type": "chunk"}, b"x"))[0] == [SseEvent("chunk", b"x")]


@pytest.mark.parametrize("value", [b"\x0aab", b"\x07\xff\xffshort", b"\x07", b"", b"\x05abc"])
def test_headers_that_cannot_be_read_count_as_absent(value):
    stream = eventstream_message({":event-type": "chunk", "x": value}, b"data")
    assert parse(stream) == ([SseEvent("chunk", b"data")], None)
    for headers in ({"x": value, ":event-type": "chunk"}, {":event-type": value}):
        assert parse(eventstream_message(headers, b"data")) == ([SseEvent("", b"data")], None)


def test_an_exception_is_an_error_with_what_it_says():
    headers = {
        ":exception-type": "modelStreamErrorException",
        ":content-type": "application/json",
        ":message-type": "exception",
    }
    payload = b'{"message":"Overloaded \\u00e4","originalStatusCode":529,"type":"mine","Message":"no"}'
    message = eventstream_message(headers, payload)
    assert error_of(message) == {
        "type": "modelStreamErrorException",
        "message": "Overloaded ä",
        "originalStatusCode": 529,
    }
    ((event,), _) = parse(message)
    facts = explicit_error(read_object(event.data))
    assert (facts.type, facts.message) == ("modelStreamErrorException", "Overloaded ä")


def test_an_exception_s_message_may_have_a_capital_or_no_object():
    headers = {":message-type": "exception", ":exception-type": "throttlingException"}
    for payload in (b'{"Message":"slow down"}', b"slow down"):
        assert error_of(eventstream_message(headers, payload)) == {
            "type": "throttlingException",
            "message": "slow down",
        }
    assert error_of(eventstream_message(headers, b"\xff{}"))["message"] == "\ufffd{}"
    assert error_of(eventstream_message(headers, b"{}"))["message"] == ""
    assert len(error_of(eventstream_message(headers, b"x" * MAX_EVENT_BYTES * 2))["message"]) == 2000


def test_an_error_says_everything_in_its_headers():
    headers = {":message-type": "error", ":error-code": "InternalError", ":error-message": "An internal error"}
    assert error_of(eventstream_message(headers, b"")) == {"type": "InternalError", "message": "An internal error"}


SOUND = event_message("chunk", b"{}")


def with_lengths(size, headers_bytes):
    head = struct.pack(">II", size, headers_bytes)
    return head + struct.pack(">I", crc32(head))


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (SOUND[:3] + b"\xff" + SOUND[4:], "head .* checksum"),
        (SOUND[:40] + b"\xff" + SOUND[41:], "message does not have its checksum"),
        (SOUND[:-1] + b"\xff", "message does not have its checksum"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "head .* checksum"),
        (with_lengths(15, 0), "length"),
        (with_lengths(100, 85), "length"),
        (with_lengths(200_000, 128 * 1024 + 1), "length"),
        (with_lengths(24 * 1024 * 1024 + 17, 0), "length"),
    ],
)
def test_behind_a_damaged_message_nothing_is_read(damaged, why):
    parser = EventStreamParser()
    assert parser.feed(SOUND + damaged + SOUND) == [SseEvent("chunk", b"{}")]
    assert re.search(why, parser.broken)
    assert parser.feed(SOUND) == []
    assert parser.finish() == []


def test_a_long_message_is_checked_and_its_data_cut():
    payload = bytes(range(256)) * (MAX_EVENT_BYTES // 128)
    long = event_message("chunk", payload)
    expected = [SseEvent("chunk", payload[:MAX_EVENT_BYTES]), SseEvent("chunk", b"{}")]
    chunks = [(long + SOUND)[at : at + 65536] for at in range(0, len(long + SOUND), 65536)]
    assert parse(long + SOUND) == parse(*chunks) == (expected, None)
    middle = len(long) - 1000  # beyond what is kept
    damaged = long[:middle] + bytes([long[middle] ^ 1]) + long[middle + 1 :]
    events, broken = parse(damaged[:100], damaged[100:] + SOUND)
    assert events == []
    assert broken
