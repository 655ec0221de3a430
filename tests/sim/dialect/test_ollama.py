import json
from dataclasses import replace

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim import dialect as wire
from hivemind_addon.lab.sim.dialect import LimitView, SimDialect

from .samples import REPLY, TURN

OLLAMA = replace(REPLY, dialect=SimDialect.OLLAMA)


def lines_of(events: list[wire.StreamEvent]) -> list[dict]:
    return [json.loads(event.data) for event in events]


def test_each_event_is_one_line():
    assert all(event.data.endswith(b"\n") and event.data.count(b"\n") == 1 for event in wire.stream_events(OLLAMA))
    assert wire.stream_type(SimDialect.OLLAMA) == "application/x-ndjson"


def test_the_last_line_counts():
    *lines, last = lines_of(wire.stream_events(OLLAMA))
    assert not any(line["done"] for line in lines)
    assert last["done"]
    assert (last["prompt_eval_count"], last["eval_count"], last["done_reason"]) == (50, 5, "stop")
    whole = json.loads(wire.whole_body(OLLAMA))
    assert "".join(line["message"]["content"] for line in lines) == whole["message"]["content"] == OLLAMA.text()


def test_a_tool_call_comes_whole_with_an_object_as_its_arguments():
    reply = replace(OLLAMA, turn=TURN, output_tokens=TURN.output_tokens)
    calls = [
        line["message"]["tool_calls"] for line in lines_of(wire.stream_events(reply)) if "tool_calls" in line["message"]
    ]
    assert calls == [[{"function": {"name": "Bash", "arguments": {"command": "echo done"}}}]]
    assert json.loads(wire.whole_body(reply))["message"]["tool_calls"] == calls[0]
    assert sum(event.output_tokens for event in wire.stream_events(reply)) == TURN.output_tokens


def test_errors_are_texts_also_in_a_stream():
    error = wire.error_object(SimDialect.OLLAMA, 500, message="m")
    assert json.loads(wire.error_body(SimDialect.OLLAMA, error, "r")) == {"error": "m"}
    assert wire.error_event(SimDialect.OLLAMA, error).data == b'{"error":"m"}\n'
    assert "maximum pending requests exceeded" in str(wire.error_object(SimDialect.OLLAMA, 503, message="m"))


def test_it_tells_of_no_limits():
    assert wire.limit_headers(SimDialect.OLLAMA, [LimitView(Dimension.REQUESTS, 1, 1, 1)], 0) == ()
