import shlex

import pytest

from hivemind_addon.proxy.profile.model import DialectName
from hivemind_addon.tools.checkpoints.export import curl_command
from tests.checkpoint.samples import BODIES, URLS, checkpoint


@pytest.mark.parametrize(
    ("dialect", "key"),
    [
        (DialectName.ANTHROPIC_MESSAGES, "x-api-key: ${ANTHROPIC_API_KEY}"),
        (DialectName.OPENAI_RESPONSES, "authorization: Bearer ${OPENAI_API_KEY}"),
        (DialectName.OPENAI_CHAT, "authorization: Bearer ${OPENAI_API_KEY}"),
    ],
)
def test_it_sends_the_file_with_the_readers_own_key(dialect, key):
    command = curl_command(checkpoint(dialect=dialect), "body.json")
    words = shlex.split(command)
    assert words[0] == "curl"
    assert URLS[dialect] in words
    assert words[words.index(key) - 1] == "-H"
    assert f'"{key}"' in command, "the shell puts the key in"
    assert "content-type: application/json" in words
    assert words[-2:] == ["--data-binary", "@body.json"]
    assert dialect in BODIES


def test_what_says_how_the_body_is_meant_goes_with_it_and_a_logins_beta_does_not():
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-1,oauth-2025-04-20,b-2", "user-agent": "x"}
    words = shlex.split(curl_command(checkpoint(headers=headers)))
    assert "anthropic-version: 2023-06-01" in words
    assert "anthropic-beta: a-1,b-2" in words
    assert not any(word.startswith("user-agent") for word in words)


def test_a_local_model_needs_no_key():
    body = b'{"model": "llama", "messages": [{"role": "user", "content": "hello"}]}'
    local = checkpoint(body=body, dialect=DialectName.OLLAMA, url="http://127.0.0.1:11434/api/chat")
    assert "KEY" not in curl_command(local)
