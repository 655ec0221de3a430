import json
from contextlib import suppress

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.json_values import (
    decode,
    packed_decoder,
    read_list,
    read_number,
    read_object,
    read_value,
    readable,
)
from tests.cases import each

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=5),
    max_leaves=12,
)
HOSTILE = st.one_of(
    st.binary(max_size=40),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"[" * 3000, b'{"a":' * 3000, b'{"a":1e999}', b'{"a":"\xff"}', b""]),
)


@given(HOSTILE)
def test_readers_answer_none_for_what_they_cannot_read(data):
    members = read_object(data)
    assert members is None or all(isinstance(key, str) for key in members)
    items = read_list(data)
    assert items is None or isinstance(items, list)
    number = read_number(data)
    assert number is None or isinstance(number, float)
    read_value(data)
    plain = readable(data)
    assert (plain is None) == (members is None)
    assert plain is None or read_object(plain).keys() == members.keys()
    for read in (decode, packed_decoder(dict[str, list[str]])):
        with suppress(msgspec.DecodeError):
            read(data)


@each(
    ("data", "value"),
    [
        (b'{"a": "h\xffi"}', "h\ufffdi"),
        (b'{"a": "h\\ud83di"}', "h?i"),
        (b'\xef\xbb\xbf{"a": NaN}', None),
        (b'{"a": "\\ud83d\\ude00"}', "\U0001f600"),
    ],
)
def test_json_that_strict_readers_refuse_is_read_all_the_same(data, value):
    assert read_value(data) == json.loads(readable(data)) == decode(data, dict[str, str | None]) == {"a": value}


def test_what_is_absent_has_no_value():
    assert read_value(None) is None
    assert read_number(None) is None


def test_members_stay_json():
    assert {name: bytes(raw) for name, raw in read_object(b'{"a": {"b": 1}, "c": "d"}').items()} == {
        "a": b'{"b": 1}',
        "c": b'"d"',
    }
    assert [bytes(raw) for raw in read_list(b'[1, {"a": 2}]')] == [b"1", b'{"a": 2}']


@each(
    ("raw", "number"), [(b"1", 1), (b"2.5", 2.5), (b'"37.5"', 37.5), (b"true", None), (b'"soon"', None), (b"[1]", None)]
)
def test_a_number_may_be_written_as_a_text(raw, number):
    assert read_number(raw) == number
