import json

from msgspec import Raw

from hivemind_addon.formats.wire.dialect import dialect_named
from hivemind_addon.plugins.contexts.chain import answer_id, items_of, named_answer, put_together

RESPONSES, MESSAGES = dialect_named("openai-responses"), dialect_named("anthropic")
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
CALLED = {"type": "function_call", "call_id": "c-1", "name": "shell", "arguments": "{}"}


def encoded(**members):
    return json.dumps(members).encode()


def streamed(*events):
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def answer(*, listed=()):
    return streamed(
        {"type": "response.created", "response": {"id": "resp_1", "output": []}},
        {"type": "response.output_text.delta", "delta": "x" * 40_000},
        {"type": "response.output_item.done", "output_index": 1, "item": CALLED},
        {"type": "response.output_item.done", "output_index": 0, "item": SAID},
        {"type": "response.completed", "response": {"id": "resp_1", "output": list(listed)}},
    )


def values(raws):
    return [json.loads(bytes(raw)) for raw in raws]


def test_a_request_is_put_together_from_what_was_asked_said_and_asked_then():
    body = encoded(model="m", previous_response_id="resp_1", input=[{"role": "user", "content": "two"}])
    assert named_answer(body) == "resp_1"
    earlier = encoded(model="m", instructions="old", input="one")
    whole = json.loads(put_together(body, earlier, [Raw(json.dumps(SAID))]))
    one, two = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
    assert whole == {"model": "m", "input": [one, SAID, two]}
    assert named_answer(put_together(body, earlier)) == ""


def test_a_frame_becomes_a_request_whose_warm_up_said_nothing():
    frame = {"type": "response.create", "stream_id": "a", "generate": True, "input": [{"n": 2}], "tools": []}
    warm_up = encoded(type="response.create", generate=False, input=[{"n": 1}])
    assert json.loads(put_together(encoded(**frame), warm_up)) == {"input": [{"n": 1}, {"n": 2}], "tools": []}


def test_what_cannot_be_read_is_not_put_together():
    assert put_together(b"no", encoded(input=[])) is None
    assert put_together(encoded(input=[]), b"[]") is None
    assert named_answer(b"no") == named_answer(encoded(previous_response_id=None)) == ""


def test_the_items_of_an_answer_are_told_streamed_and_plain():
    assert values(items_of(RESPONSES, answer())) == [SAID, CALLED]
    assert values(items_of(RESPONSES, answer(listed=[CALLED]))) == [CALLED]
    assert values(items_of(RESPONSES, encoded(id="resp_1", output=[SAID]))) == [SAID]
    assert items_of(RESPONSES, b"") == items_of(RESPONSES, b"event: x\ndata: no\n\n") == []


def test_an_answer_has_a_name_where_later_requests_may_name_it():
    assert answer_id(RESPONSES, answer()) == "resp_1"
    assert answer_id(RESPONSES, encoded(id="resp_2", output=[])) == "resp_2"
    assert answer_id(MESSAGES, encoded(id="msg_1")) == ""
    assert answer_id(RESPONSES, b"nothing") == ""
