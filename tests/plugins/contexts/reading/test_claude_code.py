import json
import uuid
from pathlib import Path

from hivemind_addon.kernel.values.ticket import CallKind
from hivemind_addon.plugins.contexts.reading.claude_code import folder_name, place, session_file
from tests.cases import each
from tests.plugins.contexts.samples import MESSAGES, context

SESSION = "11111111-2222-4333-8444-555555555555"


def written(**changes):
    text = session_file(context(**changes), project=Path("/w/project"), session=SESSION)
    return [json.loads(line) for line in text.splitlines()]


def test_each_message_is_a_line_that_follows_the_one_before():
    lines = written()
    assert [line["type"] for line in lines] == ["user", "assistant", "user", "user"]
    assert [line["parentUuid"] for line in lines] == [None, *(line["uuid"] for line in lines[:-1])]
    assert len({uuid.UUID(line["uuid"]) for line in lines}) == 4
    assert [line["timestamp"] for line in lines] == sorted(line["timestamp"] for line in lines)
    assert lines[-1]["timestamp"] == "2026-11-22T11:01:57.249Z"
    for line in lines:
        assert (line["sessionId"], line["cwd"], line["version"]) == (SESSION, "/w/project", "2.1.330")
        assert line["isSidechain"] is False


def test_all_that_was_said_is_there_and_no_mark_of_a_cache():
    question, answer, result, word = (line["message"] for line in written())
    assert question["content"] == [{"type": "text", "text": "Read r.txt."}]
    assert answer["content"] == MESSAGES["messages"][2]["content"]
    assert (answer["role"], answer["model"], answer["stop_reason"]) == ("assistant", "claude-opus-5-5", "tool_use")
    (block,) = result["content"]
    assert block == {
        "type": "tool_result",
        "tool_use_id": "t-1",
        "content": [{"type": "text", "text": "```\nline 1\n```"}],
    }
    assert word["content"] == "<system-reminder>\nThe user has opened r.txt.\n</system-reminder>"


def test_what_the_program_says_of_itself_at_the_beginning_is_left_to_it():
    assert "Environment" not in json.dumps(written())
    assert "careful program" not in json.dumps(written())


def test_a_plain_answer_becomes_blocks_and_every_answer_has_a_name_of_its_own():
    said = [{"role": "user", "content": "a"}, *({"role": "assistant", "content": "b"} for _ in range(2))]
    lines = written(body={**MESSAGES, "messages": said})
    assert lines[1]["message"]["content"] == [{"type": "text", "text": "b"}]
    assert lines[1]["message"]["stop_reason"] == "end_turn"
    assert lines[1]["message"]["id"] != lines[2]["message"]["id"]


def test_nobody_said_what_asks_for_a_summary():
    ask = {"role": "user", "content": "Your task is to create a detailed summary of the conversation so far"}
    body = {**MESSAGES, "messages": [*MESSAGES["messages"][:4], ask]}
    assert len(written(body=body)) == 4
    assert len(written(body=body, kind=CallKind.COMPACTION)) == 3


def test_what_is_no_message_is_left_out():
    body = b'{"messages": [7, {"role": "user", "content": "a"}, {"role": "tool"}, {"content": 1}]}'
    assert [line["message"]["content"] for line in written(body=body)] == ["a"]


@each(
    ("path", "name"),
    [
        ("/tmp/ckx/work", "-tmp-ckx-work"),
        ("/home/ann/my_app.v2", "-home-ann-my-app-v2"),
        ("/home/é/😀", "-home-----"),
        ("/" + "a" * 199, "-" + "a" * 199),
        # Seen with 2.1.330.
        ("/tmp/ckx/long/" + "a" * 100 + "/" + "b" * 100, f"-tmp-ckx-long-{'a' * 100}-{'b' * 85}-7fh2aq"),
    ],
)
def test_a_projects_folder_is_named_as_claude_code_names_it(path, name):
    assert folder_name(path) == name


def test_a_session_lies_where_claude_code_looks_for_it(tmp_path):
    found = place(Path("/w"), SESSION, {"CLAUDE_CONFIG_DIR": str(tmp_path)})
    assert found == tmp_path / "projects" / "-w" / f"{SESSION}.jsonl"
    assert place(Path("/w"), SESSION, {}).parent == Path.home() / ".claude" / "projects" / "-w"
