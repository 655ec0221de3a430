from hivemind_addon.lab.sim.dialect import SimDialect
from hivemind_addon.lab.sim.request import MAX_BODY_BYTES, credential, facts, input_tokens
from tests.cases import over

from .clients import call_body

KEY = {"x-api-key": "sk-sim-1"}


def read(body: bytes, headers: dict[str, str] | None = None, dialect: SimDialect = SimDialect.MESSAGES):
    return facts(dialect, {**KEY, **(headers or {})}, body, len(body))


def test_a_call_is_read_with_what_limits_need():
    body = call_body(stream=True)
    read_facts = read(body)
    assert (read_facts.credential, read_facts.model, read_facts.stream) == ("sk-sim-1", "sim-1", True)
    assert read_facts.max_tokens == 100
    assert read_facts.input_tokens == len(body) // 4
    assert read_facts.unfit is None


def test_the_newer_chat_maximum_wins():
    assert read(call_body(max_completion_tokens=7), dialect=SimDialect.CHAT).max_tokens == 7


def test_chat_usage_is_asked_for_in_the_stream_options():
    assert read(call_body(stream_options={"include_usage": True})).include_usage
    assert not read(call_body(stream_options=None)).include_usage


def test_request_headers_steer_the_answer():
    steered = read(
        call_body(text="x" * 400),
        {
            "x-sim-chunks": "3",
            "x-sim-interval-ms": "250",
            "x-sim-latency-ms": "1500",
            "x-sim-cached-tokens": "20",
            "x-sim-agent": "anna",
        },
    )
    assert (steered.chunks, steered.interval_s, steered.latency_s) == (3, 0.25, 1.5)
    assert (steered.cached_tokens, steered.agent) == (20, "anna")


def test_no_more_is_cached_than_there_is():
    body = call_body()
    assert read(body, {"x-sim-cached-tokens": "999999"}).cached_tokens == input_tokens(body)


def test_either_header_holds_the_key():
    assert credential({"x-api-key": "a"}) == "a"
    assert credential({"authorization": "Bearer b"}) == "b"
    assert credential({}) == ""


@over(
    ("body", "headers", "status"),
    [
        (b"not json", {}, 400),
        (b"[]", {}, 400),
        (b'{"model": "m"}', {}, 400),
        (b'{"model": 1, "messages": []}', {}, 400),
        (b"\xff\xfe", {}, 400),
        (call_body(), {"x-sim-chunks": "many"}, 400),
        (call_body(), {"x-api-key": ""}, 401),
    ],
)
def test_a_wrong_request_is_told_so(body, headers, status):
    unfit = read(body, headers).unfit
    assert unfit is not None
    assert unfit.status == status


def test_a_body_beyond_the_bound_is_too_large():
    unfit = facts(SimDialect.MESSAGES, KEY, b"{}", MAX_BODY_BYTES + 1).unfit
    assert unfit is not None
    assert unfit.status == 413


def test_each_dialect_has_its_own_maximum():
    assert read(call_body(input="hello", max_output_tokens=9), dialect=SimDialect.RESPONSES).max_tokens == 9
    assert read(call_body(options={"num_predict": 5}), dialect=SimDialect.OLLAMA).max_tokens == 5
    assert read(call_body(), dialect=SimDialect.OLLAMA).max_tokens is None


def test_responses_needs_an_input():
    unfit = read(call_body(), dialect=SimDialect.RESPONSES).unfit
    assert unfit is not None
    assert (unfit.status, unfit.message) == (400, "input is missing")


def test_a_local_server_streams_unless_told_otherwise_and_asks_for_no_key():
    body = call_body()
    assert facts(SimDialect.OLLAMA, {}, body, len(body)).unfit is None
    assert read(body, dialect=SimDialect.OLLAMA).stream
    unstreamed = body.replace(b"{", b'{"stream": false, ', 1)
    assert not read(unstreamed, dialect=SimDialect.OLLAMA).stream
