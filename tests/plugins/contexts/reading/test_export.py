import json
import shlex
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.plugins.contexts.reading.export import CannotExport, ExportForm, curl_command, export
from hivemind_addon.plugins.contexts.reading.show import lines
from hivemind_addon.plugins.contexts.store import NotKept
from tests.cases import each
from tests.dialects import ALL
from tests.plugins.contexts.samples import BODIES, URLS, context

MESSAGES_, RESPONSES_, CHAT_ = BODIES


def exported(form, dialect="anthropic", project="/w/my project", **more):
    environment = {"CLAUDE_CONFIG_DIR": "/claude", "CODEX_HOME": "/codex"}
    return export(context(dialect=dialect), form, project=Path(project), environment=environment, **more)


@each(
    ("form", "dialect", "home", "resume"),
    [
        (ExportForm.CLAUDE_CODE, MESSAGES_, "/claude", ["claude", "--resume"]),
        (ExportForm.CODEX, RESPONSES_, "/codex", ["codex", "resume"]),
    ],
)
def test_a_session_has_its_place_and_the_command_that_resumes_it(form, dialect, home, resume):
    one, other = exported(form, dialect), exported(form, dialect)
    assert one.session != other.session
    assert str(uuid.UUID(one.session)) == one.session
    assert str(one.place).startswith(f"{home}/")
    assert one.place.name.endswith(f"{one.session}.jsonl")
    assert shlex.split(one.command) == ["cd", "/w/my project", "&&", *resume, one.session]
    assert one.session in one.content.decode()
    assert exported(form, dialect, session=other.session).session == other.session


@each(
    ("form", "dialect"),
    [
        (ExportForm.CLAUDE_CODE, RESPONSES_),
        (ExportForm.CLAUDE_CODE, CHAT_),
        (ExportForm.CODEX, MESSAGES_),
        (ExportForm.CODEX, CHAT_),
    ],
)
def test_what_an_agent_cannot_take_is_refused_and_another_form_is_named(form, dialect):
    with pytest.raises(CannotExport, match="`--as text`"):
        exported(form, dialect)


@each("dialect", BODIES)
def test_every_conversation_is_a_request_and_a_prompt(dialect):
    request, prompt = exported(ExportForm.API, dialect), exported(ExportForm.TEXT, dialect)
    assert json.loads(request.content) == BODIES[dialect]
    assert request.command.startswith("curl ")
    assert request.command.endswith("@FILE")
    assert b"# A conversation to be continued" in prompt.content
    for one in (request, prompt):
        assert one.place is None
        assert not one.session


WORDS = st.sampled_from(
    ("user", "assistant", "system", "tool", "message", "text", "tool_use", "tool_result", "function_call", "reasoning")
)
KEYS = st.sampled_from(
    ("role", "type", "content", "text", "input", "output", "name", "summary", "tool_calls", "function")
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(
    conversation=st.lists(ODD, min_size=1, max_size=5),
    dialect=st.sampled_from([one.name for one in ALL]),
    form=st.sampled_from(ExportForm),
)
def test_whatever_a_client_sends_is_exported_and_shown_or_refused_in_words(conversation, dialect, form):
    body = json.dumps({"model": "m", "messages": conversation, "input": conversation}).encode()
    with suppress(NotKept, CannotExport):
        kept = context(body=body, dialect=dialect)
        assert "\n".join(lines(kept, full=True))
        exported = export(kept, form, project=Path("/w"), environment={})
        if exported.place is not None:
            assert all(isinstance(json.loads(line), dict) for line in exported.content.splitlines())


@each(
    ("dialect", "key"),
    [
        ("anthropic", "x-api-key: ${ANTHROPIC_API_KEY}"),
        ("openai-responses", "authorization: Bearer ${OPENAI_API_KEY}"),
        ("openai-chat", "authorization: Bearer ${OPENAI_API_KEY}"),
    ],
)
def test_it_sends_the_file_with_the_readers_own_key(dialect, key):
    command = curl_command(context(dialect=dialect))
    words = shlex.split(command)
    assert words[0] == "curl"
    assert URLS[dialect] in words
    assert words[words.index(key) - 1] == "-H"
    assert f'"{key}"' in command, "the shell puts the key in"
    assert "content-type: application/json" in words
    assert words[-2:] == ["--data-binary", "@FILE"]
    assert dialect in BODIES


def test_what_says_how_the_body_is_meant_goes_with_it_and_a_logins_beta_does_not():
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-1,oauth-2025-04-20,b-2", "user-agent": "x"}
    words = shlex.split(curl_command(context(headers=headers)))
    assert "anthropic-version: 2023-06-01" in words
    assert "anthropic-beta: a-1,b-2" in words
    assert not any(word.startswith("user-agent") for word in words)


def test_a_local_model_needs_no_key():
    body = b'{"model": "llama", "messages": [{"role": "user", "content": "hello"}]}'
    local = context(body=body, dialect="ollama", url="http://127.0.0.1:11434/api/chat")
    assert "KEY" not in curl_command(local)
