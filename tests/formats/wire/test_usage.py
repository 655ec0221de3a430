import json
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.formats.base.json_values import read_object
from hivemind_addon.formats.wire.answer import AnswerReader
from hivemind_addon.formats.wire.dialect import Dialect
from hivemind_addon.formats.wire.sse import SseEvent
from hivemind_addon.kernel.values.ticket import Usage
from tests.cases import each
from tests.dialects import ALL, ANTHROPIC, CHAT, COHERE, GEMINI, OLLAMA, RESPONSES

DATA = Path(__file__).parent / "data"
EXPECTED = Usage(input_tokens=60, cache_read_tokens=40, output_tokens=9)
"""What the attempts of these tests were expected to use."""
WORDS = {"choices": [{"index": 0, "delta": {"content": "x" * 30}}]}
"""Of 30 tokens: each character counts as one."""
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def stream(name: Dialect, *events: object) -> AnswerReader:
    watched = AnswerReader(name, "")
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        watched.feed(f"data: {data}\n\n".encode())
    return watched


def booked(watched: AnswerReader) -> Usage | None:
    return watched.usage(len, EXPECTED, has_run=False)


def reported(name: Dialect, answer: Mapping[str, object]) -> Usage:
    return name.usage.usage(name.usage.in_answer(answer), 0)


def chat(prompt: object, completion: object, **more: object) -> dict[str, object]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **more}}


def claude(kind: str, **usage: object) -> dict[str, object]:
    return {"type": kind, "message": {"usage": usage}} if kind == "message_start" else {"type": kind, "usage": usage}


SAID = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x" * 30}}
EMPTY = {"type": "message_stop"}
STREAMS = {
    "reported at the end": (CHAT, [WORDS, STOP, chat(123, 45)], Usage(123, 0, 0, 45, reported=True)),
    "zeros after it": (CHAT, [WORDS, STOP, chat(123, 45), chat(0, 0)], Usage(123, 0, 0, 45, reported=True)),
    "null after it": (CHAT, [WORDS, chat(123, 45), {**STOP, "usage": None}], Usage(123, 0, 0, 45, reported=True)),
    "fewer than we count, and no more words": (
        CHAT,
        [WORDS, chat(123, 20), STOP, chat(0, 0), {"choices": []}],
        Usage(123, 0, 0, 20, reported=True),
    ),
    "fewer than we count, and more words": (CHAT, [WORDS, chat(123, 20), WORDS, STOP], Usage(123, 0, 0, 60)),
    "zeros before it": (CHAT, [chat(0, 0), WORDS, STOP, chat(123, 45)], Usage(123, 0, 0, 45, reported=True)),
    "reported twice": (CHAT, [WORDS, STOP, chat(123, 45), chat(123, 45)], Usage(123, 0, 0, 45, reported=True)),
    "after [DONE], in one piece": (
        CHAT,
        [WORDS, STOP, "[DONE]\n\ndata: " + json.dumps(chat(123, 45))],
        Usage(123, 0, 0, 45, reported=True),
    ),
    "in each event": (
        CHAT,
        [{**WORDS, "usage": chat(123, 20)["usage"]}, {**WORDS, "usage": chat(123, 45)["usage"]}],
        Usage(123, 0, 0, 45, reported=True),
    ),
    "only before the words": (CHAT, [chat(123, 1), WORDS, STOP], Usage(123, 0, 0, 30)),
    "only before fewer words": (CHAT, [chat(123, 45), WORDS, STOP], Usage(123, 0, 0, 45, reported=True)),
    "cut before it": (CHAT, [WORDS], Usage(60, 40, 0, 30)),
    "no input": (CHAT, [WORDS, STOP, chat(0, 45)], Usage(60, 40, 0, 45)),
    "no output": (CHAT, [WORDS, STOP, chat(123, 0)], Usage(123, 0, 0, 30)),
    "no output, and no words": (CHAT, [STOP, chat(123, 0)], Usage(123, 0, 0, 0, reported=True)),
    "only cached input": (
        CHAT,
        [WORDS, STOP, chat(None, 45, prompt_tokens_details={"cached_tokens": 70})],
        Usage(30, 70, 0, 45),
    ),
    "thinking beside the output": (
        CHAT,
        [WORDS, STOP, chat(100, 1499, total_tokens=4408, completion_tokens_details={"reasoning_tokens": 2809})],
        Usage(100, 0, 0, 4308, reported=True),
    ),
    "nothing at all": (CHAT, [], None),
    "beginning and end": (
        ANTHROPIC,
        [claude("message_start", input_tokens=5, output_tokens=1), SAID, claude("message_delta", output_tokens=45)],
        Usage(5, 0, 0, 45, reported=True),
    ),
    "each part from where it is": (
        ANTHROPIC,
        [
            claude("message_start", input_tokens=5, cache_read_input_tokens=7, output_tokens=1),
            SAID,
            claude("message_delta", output_tokens=10, input_tokens=6, cache_read_input_tokens=None),
            claude("message_delta", output_tokens=45, input_tokens=0),
        ],
        Usage(6, 7, 0, 45, reported=True),
    ),
    "no beginning": (ANTHROPIC, [SAID, claude("message_delta", output_tokens=45), EMPTY], Usage(60, 40, 0, 45)),
    "zeros in the beginning": (
        ANTHROPIC,
        [claude("message_start", input_tokens=0, output_tokens=0), SAID, claude("message_delta", output_tokens=45)],
        Usage(60, 40, 0, 45),
    ),
    "cut after the words": (
        ANTHROPIC,
        [claude("message_start", input_tokens=54_000, output_tokens=1), SAID],
        Usage(54_000, 0, 0, 30),
    ),
    "cut before the words": (
        ANTHROPIC,
        [claude("message_start", input_tokens=54_000, output_tokens=1)],
        Usage(54_000, 0, 0, 1, reported=True),
    ),
    "an untrue input": (
        ANTHROPIC,
        [claude("message_start", input_tokens=-5), SAID, claude("message_delta", output_tokens=45)],
        Usage(60, 40, 0, 45),
    ),
}


@each("case", [*STREAMS])
def test_each_part_of_a_stream_is_booked_from_its_best_source(case):
    name, events, usage = STREAMS[case]
    assert booked(stream(name, *events)) == usage


LIES = ["-1", "true", '"12"', "1e308", "1e999", "9" * 30, "20000001", "1.5", "[3]", "{}", "null", "0"]
ANSWERS = {
    "chat": (CHAT, {"usage": {"prompt_tokens": 123, "completion_tokens": 45}}, Usage(123, 0, 0, 45, reported=True)),
    "cache": (
        CHAT,
        {
            "usage": {
                "prompt_tokens": 10,
                "completion_tokens": 1,
                "prompt_tokens_details": {"cached_tokens": 99, "cache_write_tokens": 5},
            }
        },
        Usage(0, 10, 0, 1, reported=True),
    ),
    "a total, no input": (CHAT, {"usage": {"completion_tokens": 45, "total_tokens": 168}}, Usage(123, 0, 0, 45, True)),
    "a total, no output": (CHAT, {"usage": {"prompt_tokens": 123, "total_tokens": 168}}, Usage(123, 0, 0, 45, True)),
    "only a total": (CHAT, {"usage": {"total_tokens": 8}}, Usage(8, 0, 0, 0, reported=True)),
    "a total of the output": (CHAT, {"usage": {"completion_tokens": 45, "total_tokens": 45}}, Usage(output_tokens=45)),
    "nothing": (CHAT, {"usage": {}}, Usage()),
    "thoughts in the output": (
        GEMINI,
        {
            "usageMetadata": {
                "promptTokenCount": 10,
                "candidatesTokenCount": 5,
                "thoughtsTokenCount": 7,
                "totalTokenCount": 22,
            }
        },
        Usage(10, 0, 0, 12, reported=True),
    ),
    "thoughts in the total": (
        GEMINI,
        {"usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 22}},
        Usage(10, 0, 0, 12, reported=True),
    ),
    "numbers with a point": (
        RESPONSES,
        {"usage": {"input_tokens": 7.0, "output_tokens": 2.0, "total_tokens": 9.0}},
        Usage(7, 0, 0, 2, reported=True),
    ),
    "Ollama": (OLLAMA, {"prompt_eval_count": 26, "eval_count": 4}, Usage(26, 0, 0, 4, reported=True)),
    "Cohere": (
        COHERE,
        {"usage": {"tokens": {"input_tokens": 9, "output_tokens": 3}, "cached_tokens": 4}},
        Usage(5, 4, 0, 3, reported=True),
    ),
}


@each("case", [*ANSWERS])
def test_each_part_of_a_whole_answer_is_booked_from_its_best_source(case):
    name, answer, usage = ANSWERS[case]
    assert reported(name, answer) == usage, "its members are read"
    assert reported(name, read_object(json.dumps(answer).encode())) == usage, "its members are JSON"


@each("lie", LIES)
def test_an_untrue_number_loses_that_number_alone(lie):
    cases = [
        (f'"prompt_tokens":{lie},"completion_tokens":3', Usage(0, 0, 0, 3)),
        (f'"prompt_tokens":9,"completion_tokens":{lie}', Usage(9, 0, 0, 0, reported=True)),
        (
            f'"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{{"cached_tokens":{lie}}}',
            Usage(9, 0, 0, 3, reported=True),
        ),
        (f'"prompt_tokens":9,"completion_tokens":3,"total_tokens":{lie}', Usage(9, 0, 0, 3, reported=True)),
    ]
    for members, usage in cases:
        assert reported(CHAT, read_object(f'{{"usage":{{{members}}}}}'.encode())) == usage


RECORDED = [
    (ANTHROPIC, "anthropic/message.sse", Usage(25, 5000, 1000, 89, reported=True, tier="standard")),
    (ANTHROPIC, "anthropic/cut.sse", Usage(25, 5000, 1000, 11, tier="standard")),
    (CHAT, "openai/chat.sse", Usage(60, 40, 0, 11)),
    (CHAT, "openai/chat_with_usage.sse", Usage(15, 4, 0, 10, reported=True)),
    (CHAT, "groq/chat.sse", Usage(9, 0, 0, 2, reported=True)),
    (CHAT, "deepseek/chat.sse", Usage(4, 16, 0, 5, reported=True)),
    (RESPONSES, "openai/response.sse", Usage(28, 300, 0, 52, reported=True)),
    (RESPONSES, "openai/response_incomplete.sse", Usage(28, 300, 0, 52, reported=True)),
    (RESPONSES, "openai/response_failed.sse", None),
    (OLLAMA, "ollama/chat.ndjson", Usage(26, 0, 0, 4, reported=True)),
    (OLLAMA, "ollama/generate.ndjson", Usage(60, 40, 0, 3)),
    (ANTHROPIC, "anthropic/message.json", Usage(12, 18432, 2048, 7, reported=True, tier="standard")),
    (CHAT, "openai/chat.json", Usage(86, 1920, 0, 300, reported=True)),
    (CHAT, "groq/chat.json", Usage(9, 0, 0, 2, reported=True)),
    (RESPONSES, "openai/response.json", Usage(18, 300, 10, 52, reported=True)),
    (CHAT, "together/chat.json", None),
    (ANTHROPIC, "anthropic/rate_limit.json", None),
    (RESPONSES, "openai/response_failed.json", None),
    (RESPONSES, "openai/compact.json", Usage(200, 4800, 0, 400, reported=True)),
    (OLLAMA, "ollama/chat.json", Usage(26, 0, 0, 4, reported=True)),
    (OLLAMA, "ollama/busy.json", None),
]


def whole(name, top):
    usage = name.usage.usage(name.usage.in_answer(name.inner(top)), 0)
    return usage if usage.total_input_tokens else None


@each("name, path, usage", RECORDED)
def test_recorded_answers_are_booked_as_they_report(name, path, usage):
    recorded = (DATA / path).read_bytes()
    if path.endswith(".json"):
        assert whole(name, json.loads(recorded)["body"]) == usage
        return
    nameless = b"\n".join(line for line in recorded.split(b"\n") if not line.startswith(b"event:"))
    for body in (recorded, nameless):  # some gateways drop the names
        watched = AnswerReader(name, "")
        watched.feed(body)
        assert booked(watched) == usage


numbers = st.integers(0, 2 * 10**7)


@given(st.integers(1, 2 * 10**7), numbers, numbers, numbers)
def test_openai_input_is_split_without_loss(prompt, completion, cached, written):
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    for name, keys in ((CHAT, ("prompt", "completion")), (RESPONSES, ("input", "output"))):
        value = {f"{keys[0]}_tokens": prompt, f"{keys[1]}_tokens": completion, f"{keys[0]}_tokens_details": details}
        usage = whole(name, {"usage": value})
        assert (usage.total_input_tokens, usage.output_tokens, usage.reported) == (prompt, completion, True)
        assert min(usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens) >= 0


KEYS = st.sampled_from(
    [
        *("usage", "message", "response", "x_groq", "input_tokens", "prompt_tokens", "output_tokens", "total_tokens"),
        *("completion_tokens", "prompt_tokens_details", "cached_tokens", "cache_read_input_tokens"),
    ]
)
values = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(max_size=3) | st.booleans(),
    lambda inner: st.dictionaries(KEYS, inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=10,
)
hostile = st.one_of(st.binary(max_size=50), st.dictionaries(KEYS, values).map(lambda value: json.dumps(value).encode()))


@given(
    st.sampled_from(ALL),
    st.sampled_from(["", "message_start", "message_delta", "response.completed", "x"]),
    hostile,
)
def test_nothing_raises_on_hostile_data_and_numbers_stay_plausible(name, event_name, data):
    reader = name.usage
    for report in (reader.in_event(SseEvent(event_name, data)), reader.in_answer(read_object(data) or {})):
        usage = reader.usage(report, 5, EXPECTED)
        numbers = (usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.output_tokens)
        assert all(0 <= number <= 10**8 for number in numbers)
        assert usage.total_input_tokens
        assert usage.output_tokens >= 5
