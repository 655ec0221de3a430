import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.json_values import readable
from hivemind_addon.formats.wire import frames
from hivemind_addon.formats.wire.answer import AnswerReader, Phase
from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.formats.wire.frames import Asked, Asking, Told, read_asked, read_told


def text(**members):
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("frame", "asked"),
    [
        (text(type="response.create", model="m"), Asked(Asking.TURN)),
        (text(type="response.create", generate=False), Asked(Asking.WARM_UP)),
        (text(type="response.create", generate=None), Asked(Asking.TURN)),
        (
            text(type="response.create", stream_id="a", previous_response_id="r"),
            Asked(Asking.TURN, "a", "r"),
        ),
        (text(type="response.create", previous_response_id=None), Asked(Asking.TURN)),
        (
            text(
                type="response.create",
                client_metadata={"X-OpenAI-Kind": "memory", "x-api-key": "t", "x-codex-odd": {"a": 1}},
            ),
            Asked(Asking.TURN, told={"x-openai-kind": "memory"}),
        ),
        (text(type="response.processed"), Asked(Asking.OTHER)),
        (b"[1]", Asked(Asking.OTHER)),
        (b'{"type":"response.create"', Asked(Asking.OTHER)),
    ],
)
def test_what_a_clients_frame_wants(frame, asked):
    assert read_asked(frame) == asked


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (text(type="response.completed", stream_id="a"), Told("response.completed", "a")),
        (text(type="error", error={}), Told("error")),
        (text(type="error", status=429, headers={"Retry-After": 3}), Told("error", None, 429, {"retry-after": "3"})),
        (text(type="error", status="429", headers=7), Told("error")),
        (text(type="response.created", status=429), Told("response.created")),
        (b"no", Told("")),
    ],
)
def test_what_a_servers_frame_tells(frame, told):
    assert read_told(frame) == told


@given(st.binary() | st.text().map(str.encode))
def test_anything_may_be_in_a_frame(frame):
    told = read_told(frame)
    assert frames.harmless(frame, told) == frame
    assert read_asked(frame).what is Asking.OTHER


@pytest.mark.parametrize(
    ("frame", "plain"),
    [
        (rb'{"type":"response.create","input":"\ud83d"}', '{"type": "response.create", "input": "?"}'),
        (
            rb'{"type":"response.create","input":[{"a":"x\udc00"}]}',
            '{"type": "response.create", "input": [{"a": "x?"}]}',
        ),
        (b'{"type":"response.create","t":[NaN,-Infinity]}', '{"type": "response.create", "t": [null, null]}'),
        (b'\xef\xbb\xbf{"type":"response.create"}', '{"type": "response.create"}'),
        (b'{"type": "response.create","n":1%b}' % (b"0" * 5000), None),
        (b'{"type":"response.create",}', ""),
        (b'{"type":"response.create"}{}', ""),
        (b'{"type":"response.create"}\0', ""),
        (b"{'type':'response.create'}", ""),
        (b'{"type":"response.create"/**/}', ""),
        (b'{"type":"response.create","n":[NaN,1e999]}', ""),
        (b'{"type":"response.create","n":%b}' % (b"[" * 5000 + b"]" * 5000), ""),
        (b'[{"type":"response.create"}]', ""),
        (b'"response.create"', ""),
        ('{"type":"response.create"}'.encode("utf-16"), ""),
        (b"\xff\xfe", ""),
        (b"\x81\xa4type\xafresponse.create", ""),
    ],
)
def test_a_clients_frame_is_read_as_others_write_it_or_is_known_to_be_unreadable(frame, plain):
    """None: as it came; empty: it is unreadable."""
    assert readable(frame) == (frame if plain is None else plain.encode() or None)
    if plain:
        assert read_asked(readable(frame)).what is Asking.TURN
        assert json.loads(frames.as_request(frame))["stream"] is True
        assert json.loads(frames.going_on_from(frame, "r1")) == json.loads(plain) | {"previous_response_id": "r1"}
        assert read_told(frame).name == "response.create"


@given(st.dictionaries(st.text(), st.integers() | st.floats() | st.text() | st.none()))
def test_what_python_writes_is_readable_and_unambiguous(members):
    frame = json.dumps(members | {"type": "response.create"}).encode()
    assert frames.is_ambiguous(frame) is False
    assert read_asked(readable(frame)).what is Asking.TURN


def test_a_name_that_stands_twice_is_ambiguous_and_one_that_stands_deeper_is_not():
    assert frames.is_ambiguous(b'{"type":"x","t\\u0079pe":"response.create"}')
    assert not frames.is_ambiguous(b'{"type":"x","a":{"type":"y","type":"z"},"b":[{"type":1}]}')


def test_an_event_is_what_its_frame_is_though_it_has_lines_of_its_own():
    body = {"type": "response.output_text.delta", "delta": "one\ntwo"}
    event = frames.as_event("response.output_text.delta", json.dumps(body, indent=2).encode())
    reader = AnswerReader(dialect_named("openai-responses"), "")
    reader.feed(event)
    assert reader.phase is Phase.CONTENT
    assert event.count(b"\n") == 3


def test_a_refusal_keeps_its_words_and_never_the_deadly_ones():
    body = text(error={"type": "server_is_overloaded", "code": "server_is_overloaded", "message": "wait"})
    frame = json.loads(frames.refusal(503, {"retry-after": "12"}, body, "a"))
    assert frame["error"] == {
        "type": "rate_limit_exceeded",
        "code": "rate_limit_exceeded",
        "message": "wait. Please try again in 12 s.",
    }
    assert (frame["status"], frame["headers"], frame["stream_id"]) == (429, {"retry-after": "12"}, "a")
    spent = {"type": "usage_limit_reached", "resets_at": 5, "message": "x"}
    frame = json.loads(frames.refusal(429, {"retry-after": "9"}, text(error=spent), ""))
    assert frame == {"type": "error", "status": 429, "error": spent, "headers": {"retry-after": "9"}}
    assert json.loads(frames.refusal(500, {}, b"<html>", ""))["error"]["code"] == "server_error"


def test_a_turn_is_streamed_though_its_frame_need_not_say_so():
    assert json.loads(frames.as_request(text(model="m")))["stream"] is True
    said = text(model="m", stream=True)
    assert frames.as_request(said) is said
