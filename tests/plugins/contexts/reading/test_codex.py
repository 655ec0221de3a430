import json
from datetime import UTC, datetime
from pathlib import Path

from hivemind_addon.plugins.contexts.reading.codex import place, rollout
from tests.plugins.contexts.samples import RESPONSES, WALL, context

SESSION = "11111111-2222-4333-8444-555555555555"


def written(body=RESPONSES):
    kept = context(body=body, dialect="openai-responses")
    return [json.loads(line) for line in rollout(kept, project=Path("/w"), session=SESSION).splitlines()]


def test_the_first_line_names_the_session_and_the_others_are_its_items():
    first, *items = written()
    assert first["type"] == "session_meta"
    assert (first["payload"]["id"], first["payload"]["cwd"]) == (SESSION, "/w")
    assert {line["timestamp"] for line in (first, *items)} == {"2026-11-22T11:01:57.250Z"}
    assert {line["type"] for line in items} == {"response_item"}
    assert [line["payload"]["type"] for line in items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
        "message",
    ]


def test_items_stay_as_they_were_but_for_what_the_api_lets_out():
    items = [line["payload"] for line in written()[1:]]
    assert items[1:4] == RESPONSES["input"][4:7]
    assert items[0] == {
        "role": "user",
        "type": "message",
        "content": [{"type": "input_text", "text": "Read r.txt."}],
    }
    assert items[-1]["content"] == [{"type": "input_text", "text": "The user has opened r.txt."}]


def test_what_codex_says_of_itself_before_the_first_question_is_left_to_it():
    assert "environment_context" not in json.dumps(written())
    assert "Be brief" not in json.dumps(written())


def test_a_question_that_only_quotes_codex_is_a_question():
    asked = [{"role": "user", "content": [{"type": "input_text", "text": "What is <environment_context>?"}]}]
    assert len(written({**RESPONSES, "input": asked})) == 2
    both = [{"type": "input_text", "text": "# AGENTS.md instructions for /w"}, {"type": "input_text", "text": "Go."}]
    assert len(written({**RESPONSES, "input": [{"role": "user", "content": both}]})) == 2


def test_a_plain_text_is_a_question_too():
    (_, item) = written({**RESPONSES, "input": "Read r.txt."})
    assert item["payload"]["content"] == [{"type": "input_text", "text": "Read r.txt."}]


def test_a_rollout_lies_where_codex_looks_for_it(tmp_path):
    at = datetime.fromtimestamp(WALL, UTC)
    name = f"rollout-2026-11-22T11-01-57-{SESSION}.jsonl"
    assert place(at, SESSION, {"CODEX_HOME": str(tmp_path)}) == tmp_path / "sessions" / "2026" / "11" / "22" / name
    assert place(at, SESSION, {}).is_relative_to(Path.home() / ".codex")
