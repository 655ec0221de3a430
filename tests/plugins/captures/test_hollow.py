import json

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.plugins.captures.hollow import hollow

KEY = b"k" * 16
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def test_words_go_and_structure_stays():
    body = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 100,
        "stream": True,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Fix it", "cache_control": {"type": "ephemeral"}}]}
        ],
    }
    hollowed = json.loads(hollow(json.dumps(body).encode(), KEY))
    text = hollowed["messages"][0]["content"][0].pop("text")
    assert text.startswith("(6 bytes ")
    body["messages"][0]["content"][0].pop("text")
    assert hollowed == body


def test_a_users_own_keys_go_too():
    body = {"tools": [{"name": "lookup", "input_schema": {"properties": {"customer_ssn": {"type": "string"}}}}]}
    assert b"customer" not in hollow(json.dumps(body).encode(), KEY)
    assert b"lookup" not in hollow(json.dumps(body).encode(), KEY)


def test_the_same_text_has_the_same_hash_within_one_recording_only():
    one, two = hollow(b'["secret", "secret", "other"]', KEY), hollow(b'["secret"]', b"j" * 16)
    first, second, third = json.loads(one)
    assert first == second != third
    assert json.loads(two)[0] != first


def test_a_stream_keeps_its_events_numbers_and_line_ends():
    stream = (
        b'event: content_block_delta\r\ndata: {"type":"text_delta","index":3,"text":"hush"}\r\n\r\n: comment hush\n'
        b"data: [DONE]\n\ndata: hush hush\n\nhush: hush\n"
    )
    hollowed = hollow(stream, KEY)
    assert b"hush" not in hollowed
    assert hollowed.startswith(b'event: content_block_delta\r\ndata: {"type":"text_delta","index":3,"text":"(4 bytes ')
    assert b"data: [DONE]\n" in hollowed
    assert hollowed.count(b"\n") == stream.count(b"\n")


def test_lines_of_json_are_a_stream_as_well():
    hollowed = hollow(b'{"message":{"content":"hush"},"done":false}\n{"done":true,"eval_count":7}\n', KEY)
    assert b"hush" not in hollowed
    assert hollowed.splitlines()[1] == b'{"done":true,"eval_count":7}'


def test_what_is_no_json_is_told_by_its_size():
    assert hollow(b"<html>hush</html>", KEY).startswith(b"(17 bytes ")
    assert hollow(b"", KEY) == b""


@given(JSON.filter(lambda value: isinstance(value, dict | list)), st.text("hush", min_size=12, max_size=20))
def test_no_word_survives_wherever_it_stands(value, word):
    body = json.dumps({"system": word, "messages": [value, word, {"content": word}], "type": word * 6}).encode()
    hollowed = hollow(body, KEY)
    assert word.encode() not in hollowed
    assert json.loads(hollowed)
