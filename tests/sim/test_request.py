"""What is read from a request, and the task that it may be about."""

import json
import subprocess

from hivemind_addon.plugins.contexts.reading.answer import UNKNOWN_RESULT
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.request import MAX_BODY_BYTES, credential, facts, input_tokens
from hivemind_addon.sim.route import SimTarget
from hivemind_addon.sim.task import SimTask, next_turn, task_in
from tests.cases import each

from .clients import call_body

KEY = {"x-api-key": "sk-sim-1"}


def read(body: bytes, headers: dict[str, str] | None = None, dialect: SimDialect = SimDialect.MESSAGES):
    return facts(SimTarget(dialect), {**KEY, **(headers or {})}, body, len(body))


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


@each(
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
    unfit = facts(SimTarget(SimDialect.MESSAGES), KEY, b"{}", MAX_BODY_BYTES + 1).unfit
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
    assert facts(SimTarget(SimDialect.OLLAMA), {}, body, len(body)).unfit is None
    assert read(body, dialect=SimDialect.OLLAMA).stream
    unstreamed = body.replace(b"{", b'{"stream": false, ', 1)
    assert not read(unstreamed, dialect=SimDialect.OLLAMA).stream


# Task -----------------------------------------------------------------------------------------------------------------


TASK = SimTask("claude-3", 3, "result.txt")
PROMPT = {"role": "user", "content": TASK.prompt}


def messages(results: int, *, tool: str = "Bash") -> dict:
    turns = []
    for number in range(results):
        turns.append({"role": "assistant", "content": [{"type": "text"}, {"type": "tool_use", "id": f"{number}"}]})
        turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"{number}"}]})
    return {"model": "m", "messages": [PROMPT, *turns], "tools": [{"name": "Read"}, {"name": tool}]}


def responses(results: int, *, tool: str = "exec_command", kind: str = "function_call") -> dict:
    turns = []
    for number in range(results):
        turns += [{"type": kind, "call_id": f"{number}"}, {"type": f"{kind}_output", "output": ""}]
    prompt = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": TASK.prompt}]}
    return {
        "model": "m",
        "input": [prompt, *turns],
        "tools": [{"type": "web_search"}, {"type": "function", "name": tool}],
    }


def chat(results: int, *, tool: str = "bash") -> dict:
    turns = []
    for _ in range(results):
        turns += [{"role": "assistant", "content": None}, {"role": "tool", "content": ""}]
    tools = [{"type": "function", "function": {"name": tool}}]
    return {"model": "m", "messages": [PROMPT, *turns], "tools": tools}


def gemini(results: int) -> dict:
    turns = []
    for _ in range(results):
        call = {"functionCall": {"name": "run_shell_command", "args": {}}}
        turns.append({"role": "model", "parts": [{"text": "Now"}, call]})
        turns.append({"role": "user", "parts": [{"functionResponse": {"name": "run_shell_command"}}]})
    tools = [{"functionDeclarations": [{"name": "read_file"}, {"name": "run_shell_command"}]}]
    return {"contents": [{"role": "user", "parts": [{"text": TASK.prompt}]}, *turns], "tools": tools}


def code_assist(results: int) -> dict:
    return {"model": "m", "project": "p", "request": gemini(results)}


def converse(results: int) -> dict:
    turns = []
    for number in range(results):
        turns.append({"role": "assistant", "content": [{"text": "Now"}, {"toolUse": {"toolUseId": f"{number}"}}]})
        turns.append({"role": "user", "content": [{"toolResult": {"toolUseId": f"{number}", "content": []}}]})
    tools = [{"toolSpec": {"name": "read"}}, {"toolSpec": {"name": "bash"}}, {"cachePoint": {"type": "default"}}]
    prompt = {"role": "user", "content": [{"text": TASK.prompt}]}
    return {"messages": [prompt, *turns], "toolConfig": {"tools": tools}}


CONVERSATIONS = [
    (SimDialect.MESSAGES, messages),
    (SimDialect.RESPONSES, responses),
    (SimDialect.CHAT, chat),
    (SimDialect.OLLAMA, chat),
    (SimDialect.VERTEX_MESSAGES, messages),
    (SimDialect.GEMINI, gemini),
    (SimDialect.CODE_ASSIST, code_assist),
    (SimDialect.INVOKE, messages),
    (SimDialect.CONVERSE, converse),
    (SimDialect.COHERE, chat),
]


def turn_of(dialect: SimDialect, fields: dict):
    body = json.dumps(fields).encode()
    task = task_in(body)
    assert task == TASK
    return next_turn(task, dialect, body)


@each(("dialect", "conversation"), CONVERSATIONS)
def test_the_task_leads_to_its_file(dialect, conversation, tmp_path):
    (tmp_path / TASK.file).unlink(missing_ok=True)
    for number in range(TASK.lines):
        call = turn_of(dialect, conversation(number)).call
        arguments = json.loads(call.arguments)
        subprocess.run(arguments.get("command") or arguments["cmd"], shell=True, check=True, cwd=tmp_path, timeout=120)
    assert (tmp_path / TASK.file).read_text() == TASK.content
    assert turn_of(dialect, conversation(TASK.lines)).call is None


@each(("dialect", "conversation"), CONVERSATIONS)
def test_a_request_that_is_sent_again_gets_the_same_turn(dialect, conversation):
    assert turn_of(dialect, conversation(1)) == turn_of(dialect, conversation(1))
    assert turn_of(dialect, conversation(1)) != turn_of(dialect, conversation(2))


@each("lines", (0, 1, 2, 3))
def test_where_a_result_was_not_recorded_the_model_looks_before_it_goes_on(lines):
    asked = messages(2)
    asked["messages"][-1]["content"][0]["content"] = UNKNOWN_RESULT
    look = turn_of(SimDialect.MESSAGES, asked).call
    assert json.loads(look.arguments)["command"] == "cat result.txt || true"
    result = {
        "type": "tool_result",
        "tool_use_id": look.id,
        "content": [{"type": "text", "text": TASK.beginning(lines)}],
    }
    asked["messages"] += [{"role": "assistant", "content": []}, {"role": "user", "content": [result]}]
    call = turn_of(SimDialect.MESSAGES, asked).call
    assert (call and json.loads(call.arguments)["command"]) == (TASK.command(lines + 1) if lines < TASK.lines else None)
    unrecorded = responses(1)
    unrecorded["input"][-1]["output"] = UNKNOWN_RESULT
    assert "cat result.txt" in turn_of(SimDialect.RESPONSES, unrecorded).call.arguments


def test_every_call_has_a_name_of_its_own():
    ids = {turn_of(SimDialect.MESSAGES, messages(number)).call.id for number in range(TASK.lines)}
    assert len(ids) == TASK.lines


def test_older_codex_takes_a_list_as_its_command():
    call = turn_of(SimDialect.RESPONSES, responses(0, tool="shell")).call
    assert json.loads(call.arguments) == {"command": ["bash", "-c", "echo 'claude-3 line 1' >> result.txt"]}


def test_results_of_freeform_tools_count_too():
    assert "line 3 of 3" in turn_of(SimDialect.RESPONSES, responses(2, kind="custom_tool_call")).text


def test_newer_codex_gets_a_script_for_its_freeform_tool():
    namespace = {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]}
    fields = responses(1)
    fields["tools"] = []
    fields["input"].insert(0, {"type": "additional_tools", "tools": [namespace]})
    call = turn_of(SimDialect.RESPONSES, fields).call
    assert (call.name, call.namespace, call.freeform) == ("exec", "functions", True)
    assert call.arguments.startswith(
        """const ran = await tools.exec_command({"cmd":"echo 'claude-3 line 2' >> result.txt"});"""
    )


def test_an_agent_without_tools_gets_the_whole_file_with_one_line_more():
    system = {"role": "system", "content": "Answer with a *file listing*. The test greps for claude-3 line 3."}
    for number in range(1, TASK.lines + 1):
        asked = {"model": "m", "messages": [system, PROMPT, {"role": "user", "content": TASK.beginning(number - 1)}]}
        turn = turn_of(SimDialect.CHAT, asked)
        assert turn.call is None
        assert turn.text.endswith(f"\n\nresult.txt\n```\n{TASK.beginning(number)}```\n")
    assert TASK.beginning(TASK.lines) == TASK.content


def test_an_agent_that_ends_by_a_command_is_led_to_it():
    asked = chat(TASK.lines)
    asked["messages"].insert(0, {"role": "system", "content": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT to end"})
    command = json.loads(turn_of(SimDialect.CHAT, asked).call.arguments)["command"]
    assert command == "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def test_without_a_shell_it_says_so():
    turn = turn_of(SimDialect.MESSAGES, messages(0, tool="Glob"))
    assert turn.call is None
    assert "Read, Glob" in turn.text


def test_a_title_for_the_task_is_plain_json():
    asked = {"model": "m", "messages": [{"role": "user", "content": f"A title for: {TASK.prompt}"}]}
    assert "title" in json.loads(turn_of(SimDialect.MESSAGES, asked).text)


def test_who_brings_a_schema_gets_what_fits_it():
    properties = {"why": {"type": "string"}, "score": {"type": "INTEGER", "minimum": 3}, "kind": {"enum": ["a", "b"]}}
    schema = {"type": "object", "properties": properties}
    asked = gemini(0) | {"generationConfig": {"responseJsonSchema": schema}}
    assert json.loads(turn_of(SimDialect.GEMINI, asked).text) == {"why": "simulated", "score": 3, "kind": "a"}


def test_other_requests_are_about_no_task():
    assert task_in(b'{"messages": [{"role": "user", "content": "hello"}]}') is None
    assert task_in(b"Append one line at a time to the file") is None


def test_a_request_carries_its_turn():
    body = json.dumps(messages(0)).encode()
    read = facts(SimTarget(SimDialect.MESSAGES), {"x-api-key": "k"}, body, len(body))
    assert read.unfit is None
    assert read.turn is not None
    assert read.turn.call.name == "Bash"
    assert read.agent == "claude-3"
