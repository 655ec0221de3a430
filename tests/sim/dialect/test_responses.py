import json
from dataclasses import replace

from openai import OpenAI

from hivemind_addon.lab.sim import dialect as wire
from hivemind_addon.lab.sim.dialect import SimDialect
from hivemind_addon.lab.sim.server import running_server
from tests.cases import over

from .samples import CALL, REPLY, TURN, data_of

RESPONSES = replace(REPLY, dialect=SimDialect.RESPONSES)


def test_events_are_named_and_numbered():
    events = wire.stream_events(RESPONSES)
    for number, event in enumerate(events):
        assert data_of(event)["sequence_number"] == number
        assert event.data.startswith(f"event: {data_of(event)['type']}\n".encode())


def test_the_last_event_holds_the_whole_answer():
    events = [data_of(event) for event in wire.stream_events(RESPONSES)]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"] == json.loads(wire.whole_body(RESPONSES))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert text == RESPONSES.text() == events[-1]["response"]["output"][0]["content"][0]["text"]


def test_usage_counts_cached_input_as_input():
    usage = json.loads(wire.whole_body(RESPONSES))["usage"]
    assert (usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (50, 10)
    assert (usage["output_tokens"], usage["total_tokens"]) == (5, 55)


@over(
    ("freeform", "kind", "name"),
    [(False, "function_call", "arguments"), (True, "custom_tool_call", "input")],
)
def test_a_tool_call_is_an_item_of_its_own(freeform, kind, name):
    reply = replace(RESPONSES, turn=replace(TURN, call=replace(CALL, freeform=freeform)))
    events = [data_of(event) for event in wire.stream_events(reply)]
    item = events[-1]["response"]["output"][1]
    assert (item["type"], item["call_id"], item[name]) == (kind, "call_1", CALL.arguments)
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"][1] == item
    pieces = [event["delta"] for event in events if event["type"].endswith((f"{name}.delta", "input.delta"))]
    assert "".join(pieces) == CALL.arguments


def test_a_truncated_stream_ends_incomplete():
    last = data_of(wire.stream_events(replace(RESPONSES, truncated=True))[-1])
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_an_error_in_a_stream_is_a_failed_response():
    error = wire.error_object(SimDialect.RESPONSES, 529, message="m")
    event = data_of(wire.error_event(SimDialect.RESPONSES, error))
    assert event["type"] == "response.failed"
    assert event["response"]["error"] == {"code": "server_is_overloaded", "message": "m"}


def test_openais_own_library_reads_it():
    with running_server() as server:
        client = OpenAI(api_key="sk-sim-1", base_url=f"{server.url}/v1", max_retries=0)
        whole = client.responses.create(model="sim-1", input="hello")
        assert whole.output_text.startswith("req_000001 attempt 1")
        with client.responses.stream(model="sim-1", input="hello") as stream:
            kinds = [event.type for event in stream]
            ended = stream.get_final_response()
        assert kinds.count("response.output_text.delta") == 8
        assert ended.output_text.startswith("req_000002 attempt 2")
        assert ended.usage.output_tokens == 8
