"""What is garbage and what only looks like it. A false alarm pays for an answer twice, so most of this is legal."""

import json
from pathlib import Path

import pytest
from mitmproxy import http
from mitmproxy.io import FlowReader
from msgspec import Raw

from hivemind_addon.formats.profile.load import format_for, load_profiles
from hivemind_addon.formats.wire.answer import AnswerReader, Phase
from hivemind_addon.formats.wire.dialect import dialect_of
from hivemind_addon.formats.wire.garbage import garbage_in, is_after_tool
from hivemind_addon.formats.wire.transcript import answer_of
from tests.dialects import ANTHROPIC, CHAT, OLLAMA, RESPONSES

TESTS = Path(__file__).parents[2]
PROFILES = load_profiles(None)


def judged(dialect, body, *, after_tool=False):
    return garbage_in(answer_of(dialect, json.dumps(body).encode()), after_tool=after_tool)


def message(*content, stop="end_turn"):
    return {"type": "message", "content": list(content), "stop_reason": stop}


def text(words):
    return {"type": "text", "text": words}


def chat(content, stop="stop", **more):
    return {"choices": [{"message": {"role": "assistant", "content": content} | more, "finish_reason": stop}]}


def call(arguments, stop="tool_calls"):
    return chat(None, stop, tool_calls=[{"id": "c", "function": {"name": "Write", "arguments": arguments}}])


PATCH = "*** Begin Patch\n*** Update File: a.c\n@@\n-int main() {\n+int main(void) {\n*** End Patch"
LOOP = "I will check the file again. "
BIG = json.dumps({"path": "a.json", "text": "0, 0, 0, " * 4000})
UNSTOPPED = "And so on, and so on, and then " * 400
CSV = "".join(f"{number},0,0,0,0\n" for number in range(3000))

GARBAGE = {
    "nothing, after a person's words": (ANTHROPIC, message(), "empty answer"),
    "nothing, and no reason": (ANTHROPIC, message(text(""), stop=None), "empty answer"),
    "a tool call that is not there": (ANTHROPIC, message(stop="tool_use"), "empty answer"),
    "nothing, in chat": (CHAT, chat(""), "empty answer"),
    "nothing, in Responses": (RESPONSES, {"status": "completed", "output": []}, "empty answer"),
    "nothing, of Ollama": (
        OLLAMA,
        {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"},
        "empty answer",
    ),
    "a loop that only the maximum ended": (
        ANTHROPIC,
        message(text("Let me see. " + LOOP * 200), stop="max_tokens"),
        "endless repetition",
    ),
    "one character, to the maximum": (CHAT, chat("!" * 5000, "length"), "endless repetition"),
    "a loop in a tool call": (CHAT, call('{"text": "' + LOOP * 200, "length"), "endless repetition"),
    "a loop that ended by itself": (CHAT, chat(UNSTOPPED), "endless repetition"),
    "replacement characters": (CHAT, chat("The file \ufffd\ufffd" + "\ufffd" * 40), "encoding junk"),
    "control characters": (ANTHROPIC, message(text("\x00\x01\x02" * 30)), "encoding junk"),
    "half the arguments": (CHAT, call('{"path": "a.py", "text": "import o'), "truncated tool arguments"),
    "half the arguments, the stream says stop": (CHAT, call('{"path": "a.py"', "stop"), "truncated tool arguments"),
    "half the arguments, with a bracket in a text": (CHAT, call('{"text": "a}'), "truncated tool arguments"),
    "half the arguments, with a quote in a text": (CHAT, call('{"text": "a \\"}'), "truncated tool arguments"),
    "half a JSON text": (CHAT, chat('{"verdict": "good", "reasons": ["a", '), "truncated JSON"),
}

LEGAL = {
    "a model that has nothing to add to a result": (ANTHROPIC, message(), True),
    "the same in chat": (CHAT, chat(""), True),
    "the maximum went into hidden thinking": (CHAT, chat("", "length"), False),
    "a maximum of one token": (ANTHROPIC, message(stop="max_tokens"), False),
    "a stop sequence at once": (ANTHROPIC, message(stop="stop_sequence"), False),
    "a refusal": (ANTHROPIC, message(stop="refusal"), False),
    "a filter": (CHAT, chat("", "content_filter"), False),
    "a turn that pauses": (ANTHROPIC, message(stop="pause_turn"), False),
    "a model that was loaded": (OLLAMA, {"message": {"content": ""}, "done": True, "done_reason": "load"}, False),
    "thinking alone": (ANTHROPIC, message({"type": "thinking", "thinking": "Hm."}), False),
    "thinking that nobody may read": (ANTHROPIC, message({"type": "redacted_thinking", "data": "x"}), False),
    "a search that the provider runs": (ANTHROPIC, message({"type": "web_search_tool_result", "content": []}), False),
    "encrypted thinking alone": (
        RESPONSES,
        {"status": "completed", "output": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]},
        False,
    ),
    "sound": (CHAT, chat(None, audio={"id": "a", "data": "x"}), False),
    "one word": (CHAT, chat("Yes"), False),
    "a tool without arguments": (CHAT, call(""), False),
    "a tool call cut at the maximum": (CHAT, call('{"path": "a.py", "te', "length"), False),
    "a patch is no JSON": (
        RESPONSES,
        {"status": "completed", "output": [{"type": "custom_tool_call", "name": "apply_patch", "input": PATCH}]},
        False,
    ),
    "a program for a tool": (
        RESPONSES,
        {
            "status": "completed",
            "output": [{"type": "custom_tool_call", "name": "exec", "input": "{ const a = {b: 1}; text(a) }"}],
        },
        False,
    ),
    "JSON that is followed by words": (CHAT, chat('{"a": 1}\n\nThis isn\'t all: "'), False),
    "a template": (CHAT, chat("{% for x in y %}"), False),
    "a code block": (CHAT, chat("{\n  int i;"), False),
    "a ruler": (CHAT, chat("Title\n" + "=" * 1500 + "\nand text\n"), False),
    "a table": (CHAT, chat("| a | b |\n|---|---|\n" + "| 0 | 0 |\n" * 150), False),
    "a table, cut": (CHAT, chat(CSV, "length"), False),
    "zeros for a file": (CHAT, call(BIG), False),
    "a long list that ended": (CHAT, chat(CSV), False),
    "what a person wanted repeated": (CHAT, chat("All work and no play makes Jack a dull boy.\n" * 100), False),
    "a few marks that could not be read": (CHAT, chat("The bytes are \ufffd and \ufffd. " * 5 + "x" * 300), False),
    "colours of a terminal": (CHAT, chat("\x1b[31mred\x1b[0m " * 50), False),
    "Chinese and emoji": (CHAT, chat("\u4f60\u597d\U0001f600" * 50), False),
}


def test_garbage_is_found(subtests):
    for name, (dialect, body, what) in GARBAGE.items():
        with subtests.test(name):
            assert judged(dialect, body) == what


def test_what_only_looks_like_it_is_left_alone(subtests):
    for name, (dialect, body, after_tool) in LEGAL.items():
        with subtests.test(name):
            assert judged(dialect, body, after_tool=after_tool) == ""


def test_a_tools_result_is_known_in_every_format(subtests):
    cases = [
        ('{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"ok"}]}', True),
        ('{"role":"tool","content":"ok"}', True),
        ('{"type":"function_call_output","output":"ok"}', True),
        ('{"type":"custom_tool_call_output","output":"ok"}', True),
        ('{"role":"user","content":"what is a \\"tool\\"?"}', False),
    ]
    for last, is_result in cases:
        with subtests.test(last=last, is_result=is_result):
            assert is_after_tool([Raw(b'{"role":"user","content":"hello"}'), Raw(last.encode())]) is is_result
            assert not is_after_tool([])


def of_stream(dialect, body, encoding=""):
    """Garbage of a streamed answer; None: it is not complete."""
    reader = AnswerReader(dialect, encoding)
    reader.feed(body)
    reader.finish()
    return garbage_in(reader.answer(), after_tool=False) if reader.phase is Phase.COMPLETE else None


def long_stream(piece, times, stop):
    events = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece(n)}}
        for n in range(times)
    ]
    events.append({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": times}})
    events.append({"type": "message_stop"})
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events)


def test_of_a_long_answer_its_end_is_judged_and_only_for_repetition():
    loop = long_stream(lambda n: ("again ", "and ", "and ")[n % 3] if n > 9 else str(n), 30_000, "max_tokens")
    assert of_stream(ANTHROPIC, loop) == "endless repetition"
    sound = long_stream(lambda n: f"line {n}\n", 30_000, "max_tokens")
    assert of_stream(ANTHROPIC, sound) == ""
    json_text = long_stream(lambda n: '{"a": [' if not n else f"{n}, ", 30_000, "end_turn")
    assert of_stream(ANTHROPIC, json_text) == "", "its beginning is not known any more"


@pytest.mark.parametrize("capture", ["claude-code", "codex", "mixed"])
def test_there_is_no_false_alarm_on_what_was_recorded_of_agents(capture):
    seen = 0
    with (TESTS / "captures" / f"{capture}.flow").open("rb") as file:
        for flow in FlowReader(file).stream():
            if not isinstance(flow, http.HTTPFlow) or flow.response is None or flow.response.status_code != 200:
                continue
            profile = PROFILES.match_host(flow.request.host, flow.request.port)
            dialect = dialect_of(format_for(profile, flow.request.path))
            what = of_stream(dialect, flow.response.content)
            seen += what is not None
            assert not what, f"{flow.request.path}: {flow.response.text}"
    assert seen >= 9


def test_there_is_no_false_alarm_on_answers_of_providers():
    seen = 0
    for path in sorted((TESTS / "formats" / "wire" / "data").rglob("*.*")):
        dialect = (
            OLLAMA
            if path.parent.name == "ollama"
            else ANTHROPIC
            if path.parent.name.startswith("anthropic")
            else RESPONSES
            if path.stem.startswith(("response", "compact")) or path.parent.name == "codex"
            else CHAT
        )
        if path.suffix == ".json":
            recorded = json.loads(path.read_text())
            if recorded.get("status", 200) != 200 or "error" in recorded["body"]:
                continue
            what = judged(dialect, recorded["body"])
        else:
            what = of_stream(dialect, path.read_bytes())
            if what is None:
                continue
        seen += 1
        assert what == "", path
    assert seen >= 15
