import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.wire.dialect import event_name
from hivemind_addon.formats.wire.envelope import Unwrapper
from hivemind_addon.formats.wire.sse import SseEvent

CODE_ASSIST = Unwrapper("/response")
BEDROCK = Unwrapper("/bytes", base64=True)


def test_what_is_within_is_taken_out_as_it_was_written():
    event = SseEvent("", b'{"traceId": "x", "response": {"candidates" : []} , "consumed": 1}')
    assert CODE_ASSIST.unwrap(event) == SseEvent("", b'{"candidates" : []}')


def test_text_in_base64_is_an_event_that_names_itself():
    inner = b'{"type":"content_block_delta","index":0}'
    wrapped = json.dumps({"bytes": base64.b64encode(inner).decode(), "p": "abcd"}).encode()
    event = BEDROCK.unwrap(SseEvent("chunk", wrapped))
    assert event == SseEvent("", inner)
    assert event_name(event) == "content_block_delta"


def test_a_way_through_members_with_any_names():
    assert Unwrapper("/a~1b/~0").unwrap(SseEvent("x", b'{"a/b": {"~": {"c": 1}}}')) == SseEvent("x", b'{"c": 1}')


@pytest.mark.parametrize("unwrapper", [CODE_ASSIST, BEDROCK])
@pytest.mark.parametrize(
    "data",
    [
        b'{"error": {"code": 429}}',
        b'{"response": null, "bytes": null}',
        b'{"response": "{}", "bytes": "no base64"}',
        b'{"response": {}, "bytes": "e30="',
        b"[DONE]",
        b"[" * 100_000,
        b'{"response":' * 100_000,
        b"",
    ],
)
def test_what_has_no_envelope_passes(unwrapper, data):
    event = SseEvent("error", data)
    assert unwrapper.unwrap(event) is event


@given(
    st.binary()
    | st.lists(st.sampled_from([b'{"response":', b'{"bytes":"', b"{", b"}", b'"', b"e30", b"="])).map(b"".join)
)
def test_nothing_is_raised(data):
    for unwrapper in (CODE_ASSIST, BEDROCK):
        assert isinstance(unwrapper.unwrap(SseEvent("", data)), SseEvent)
