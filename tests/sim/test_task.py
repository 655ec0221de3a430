import json
import subprocess

from hivemind_addon.lab.sim.dialect import SimDialect
from hivemind_addon.lab.sim.request import facts
from hivemind_addon.lab.sim.task import SimTask, next_turn, task_in
from tests.cases import over

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


CONVERSATIONS = [
    (SimDialect.MESSAGES, messages),
    (SimDialect.RESPONSES, responses),
    (SimDialect.CHAT, chat),
    (SimDialect.OLLAMA, chat),
]


def turn_of(dialect: SimDialect, fields: dict):
    body = json.dumps(fields).encode()
    task = task_in(body)
    assert task == TASK
    return next_turn(task, dialect, body)


@over(("dialect", "conversation"), CONVERSATIONS)
def test_the_task_leads_to_its_file(dialect, conversation, tmp_path):
    (tmp_path / TASK.file).unlink(missing_ok=True)
    for number in range(TASK.lines):
        call = turn_of(dialect, conversation(number)).call
        arguments = json.loads(call.arguments)
        subprocess.run(arguments.get("command") or arguments["cmd"], shell=True, check=True, cwd=tmp_path, timeout=120)
    assert (tmp_path / TASK.file).read_text() == TASK.content
    assert turn_of(dialect, conversation(TASK.lines)).call is None


@over(("dialect", "conversation"), CONVERSATIONS)
def test_a_request_that_is_sent_again_gets_the_same_turn(dialect, conversation):
    assert turn_of(dialect, conversation(1)) == turn_of(dialect, conversation(1))
    assert turn_of(dialect, conversation(1)) != turn_of(dialect, conversation(2))


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


def test_without_a_shell_it_says_so():
    turn = turn_of(SimDialect.MESSAGES, messages(0, tool="Glob"))
    assert turn.call is None
    assert "Read, Glob" in turn.text


def test_a_title_for_the_task_is_plain_json():
    asked = {"model": "m", "messages": [{"role": "user", "content": f"A title for: {TASK.prompt}"}]}
    assert "title" in json.loads(turn_of(SimDialect.MESSAGES, asked).text)


def test_other_requests_are_about_no_task():
    assert task_in(b'{"messages": [{"role": "user", "content": "hello"}]}') is None
    assert task_in(b"Append one line at a time to the file") is None


def test_a_request_carries_its_turn():
    body = json.dumps(messages(0)).encode()
    read = facts(SimDialect.MESSAGES, {"x-api-key": "k"}, body, len(body))
    assert read.unfit is None
    assert read.turn is not None
    assert read.turn.call.name == "Bash"
    assert read.agent == "claude-3"
