"""The model's last answer goes on with its conversation, and nobody pretends to know what its tools did."""

import json
from pathlib import Path

from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.plugins.contexts.reading.answer import UNKNOWN_RESULT, answer_blocks, answer_items
from hivemind_addon.plugins.contexts.reading.claude_code import session_file
from hivemind_addon.plugins.contexts.reading.codex import rollout
from hivemind_addon.plugins.contexts.reading.prompt import prompt_of
from tests.plugins.contexts.samples import context

SESSION = "11111111-2222-4333-8444-555555555555"
CALL = {"type": "tool_use", "id": "t-2", "name": "Bash", "input": {"command": "rm r.txt"}}
BLOCKS = [
    {"type": "thinking", "thinking": "I see it.", "signature": "c2ln"},
    {"type": "text", "text": "Now I remove it.", "citations": [{"cited_text": "line 1"}]},
    CALL,
    {"type": "tool_use", "id": "t-3", "name": "Stop", "input": {}},
]
PLAIN = json.dumps({"type": "message", "role": "assistant", "content": BLOCKS, "stop_reason": "tool_use"}).encode()


def sse(*events):
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def begun(index, **block):
    return {"type": "content_block_start", "index": index, "content_block": block}


def more(index, **delta):
    return {"type": "content_block_delta", "index": index, "delta": delta}


STREAM = sse(
    {"type": "message_start", "message": {"role": "assistant", "content": []}},
    begun(0, type="thinking", thinking="", signature=""),
    more(0, type="thinking_delta", thinking="I see "),
    more(0, type="thinking_delta", thinking="it."),
    more(0, type="signature_delta", signature="c2ln"),
    begun(1, type="text", text=""),
    more(1, type="text_delta", text="Now I remove "),
    more(1, type="text_delta", text="it."),
    more(1, type="citations_delta", citation={"cited_text": "line 1"}),
    begun(2, type="tool_use", id="t-2", name="Bash", input={}),
    more(2, type="input_json_delta", partial_json='{"command": '),
    more(2, type="input_json_delta", partial_json='"rm r.txt"}'),
    begun(3, type="tool_use", id="t-3", name="Stop", input={}),
    begun(4, type="text", text=""),
    {"type": "message_stop"},
)
ITEMS = [
    {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Now I remove it."}]},
    {"type": "function_call", "call_id": "c-2", "name": "shell", "arguments": '{"cmd":"rm r.txt"}'},
    {"type": "custom_tool_call", "call_id": "c-3", "name": "exec", "input": "text(1)"},
    {"type": "web_search_call", "status": "completed"},
]
ITEM_STREAM = sse(
    {"type": "response.created", "response": {"output": []}},
    *({"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(ITEMS)),
    {"type": "response.completed", "response": {"output": ITEMS}},
)


def claude_lines(answer, **more_):
    text = session_file(context(answer=answer, **more_), project=Path("/w"), session=SESSION)
    return [json.loads(line)["message"] for line in text.splitlines()]


def codex_items(answer):
    kept = context(dialect="openai-responses", answer=answer)
    return [json.loads(line)["payload"] for line in rollout(kept, project=Path("/w"), session=SESSION).splitlines()]


def test_a_streamed_answer_is_the_same_as_a_plain_one():
    assert answer_blocks(context(answer=PLAIN)) == BLOCKS
    assert answer_blocks(context(answer=STREAM)) == BLOCKS
    plain = json.dumps({"output": ITEMS}).encode()
    for answer in (plain, ITEM_STREAM):
        assert answer_items(context(dialect="openai-responses", answer=answer)) == ITEMS
    for broken in (b"", b"\xff", b"[]", b'{"error": {"type": "x"}}', b"data: {\n\n"):
        assert answer_blocks(context(answer=broken)) == answer_items(context(answer=broken)) == []


def test_claude_code_gets_the_answer_and_is_told_that_its_calls_may_have_run():
    before, (answer, results) = claude_lines(b""), claude_lines(STREAM)[-2:]
    assert len(claude_lines(STREAM)) == len(before) + 2
    assert (answer["role"], answer["content"], answer["stop_reason"]) == ("assistant", BLOCKS, "tool_use")
    assert [one["tool_use_id"] for one in results["content"]] == ["t-2", "t-3"]
    assert {(one["content"], one["is_error"]) for one in results["content"]} == {(UNKNOWN_RESULT, True)}
    said = json.dumps({"content": [{"type": "text", "text": "Done."}]}).encode()
    assert claude_lines(said)[-1]["stop_reason"] == "end_turn"
    assert claude_lines(STREAM, kind=CallKind.COMPACTION) == claude_lines(b"", kind=CallKind.COMPACTION)


def test_codex_gets_the_answer_and_is_told_that_its_calls_may_have_run():
    items = codex_items(ITEM_STREAM)
    assert items[-7:-2] == ITEMS
    assert items[-2:] == [
        {"type": "function_call_output", "call_id": "c-2", "output": UNKNOWN_RESULT},
        {"type": "custom_tool_call_output", "call_id": "c-3", "output": UNKNOWN_RESULT},
    ]


def test_a_prompt_ends_with_the_answer_and_with_what_is_not_known():
    prompt = prompt_of(context(answer=STREAM))
    assert prompt.index("Now I remove it.") < prompt.index("rm r.txt") < prompt.index(UNKNOWN_RESULT)
    said = json.dumps({"content": [{"type": "text", "text": "Done."}]}).encode()
    assert prompt_of(context(answer=said)).endswith("## Assistant\n\nDone.\n")
