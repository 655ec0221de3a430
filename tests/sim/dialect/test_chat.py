import json
from dataclasses import replace

from hivemind_addon.lab.sim import dialect as wire
from hivemind_addon.lab.sim.dialect import SimDialect

from .samples import CALL, REPLY, TURN, data_of

CHAT = replace(REPLY, dialect=SimDialect.CHAT)


def test_a_streamed_chat_answer_ends_with_finish_and_done():
    *events, done = wire.stream_events(CHAT)
    chunks = [data_of(event) for event in events]
    assert done.data == b"data: [DONE]\n\n"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == json.loads(wire.whole_body(CHAT))["choices"][0]["message"]["content"]


def test_chat_usage_comes_in_a_chunk_of_its_own_and_only_when_asked_for():
    asked = [data_of(event) for event in wire.stream_events(replace(CHAT, include_usage=True))[:-1]]
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == json.loads(wire.whole_body(CHAT))["usage"]
    assert asked[-1]["usage"]["total_tokens"] == 55
    assert not any("usage" in data_of(event) for event in wire.stream_events(CHAT)[:-1])


def test_a_tool_call_comes_in_pieces_that_name_its_place():
    reply = replace(CHAT, turn=TURN)
    chunks = [data_of(event) for event in wire.stream_events(reply)[:-1]]
    calls = [
        chunk["choices"][0]["delta"]["tool_calls"][0]
        for chunk in chunks
        if "tool_calls" in str(chunk["choices"][0]["delta"])
    ]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("call_1", "Bash")
    assert "".join(call["function"]["arguments"] for call in calls) == CALL.arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    message = json.loads(wire.whole_body(reply))["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == CALL.arguments
