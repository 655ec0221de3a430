import dataclasses

import pytest

from hivemind_addon.formats.base.typed import DocumentError
from hivemind_addon.tools.launch import programs
from hivemind_addon.tools.launch.programs import base_urls, load_programs
from hivemind_addon.tools.launch.proxy_command import PATIENCE_S
from tests.cases import each


@pytest.fixture
def table():
    return load_programs()


@each(
    ("command", "name", "index"),
    [
        (["claude", "-p", "hello"], "claude", 0),
        (["/usr/local/bin/codex", "exec"], "codex", 0),
        (["npx", "-y", "@openai/codex@latest", "exec"], "codex", 2),
        (["npx", "@anthropic-ai/claude-code"], "claude", 1),
        (["node", "/x/node_modules/@openai/codex/bin/codex.js"], "codex", 1),
        (["gemini"], "gemini", 0),
        (["npx", "@github/copilot"], "copilot", 1),
    ],
)
def test_a_command_line_names_its_program(table, command, name, index):
    assert table.find(command) == (table.programs[name], index)


@each("command", [["python", "claude.py"], ["vim", "codex"], ["-p"], [], ["npx", "-y"]])
def test_what_only_mentions_one_is_unknown(table, command):
    assert table.find(command) is None
    assert table.patient(command) == (command, 0)


def test_codex_gets_its_patience_behind_its_name_when_nobody_watches(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    told, waits_s = table.patient(["npx", "codex", "exec", "--json", "fix it"])
    assert 0 < waits_s <= PATIENCE_S
    assert told[:2] == ["npx", "codex"]
    assert told[-3:] == ["exec", "--json", "fix it"]
    assert told[2:-3] == list(table.programs["codex"].arguments)
    assert f"stream_idle_timeout_ms={PATIENCE_S * 1000}" in told[5]
    assert table.patient(["codex"]) == (["codex"], 0)


@each(
    "arguments",
    [["-c", "model_provider=azure"], ["--config=model_provider=azure"], ["--oss"], ["--profile", "mine"], ["-p=mine"]],
)
def test_what_the_user_chose_is_left_alone(table, tmp_path, monkeypatch, arguments):
    monkeypatch.setenv("HOME", str(tmp_path))
    command = ["codex", "exec", *arguments, "hello"]
    assert table.patient(command) == (command, 0)


def test_so_is_what_the_configuration_file_chose(table, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / ".codex" / "config.toml"
    config.parent.mkdir()
    config.write_text('model_provider = "azure"')
    assert table.patient(["codex", "exec", "x"]) == (["codex", "exec", "x"], 0)
    config.write_text("no toml")
    assert len(table.patient(["codex", "exec", "x"])[0]) > 3


def test_base_urls_are_found_at_any_depth():
    settings = {"openai_base_url": "https://a", "model_providers": {"x": {"base_url": "http://b", "name": "base_url"}}}
    assert list(base_urls(settings)) == ["https://a", "http://b"]
    assert list(base_urls({"base_url": 3})) == []


def test_every_programs_ca_variable_is_one_that_is_set(table):
    for program in table.programs.values():
        assert set(program.ca) <= set(table.ca_variables)
        assert set(program.base_url_variables) <= set(table.base_url_variables)


def test_a_damaged_table_is_one_line(monkeypatch, tmp_path):
    table = tmp_path / "agents.yaml"
    table.write_text("ca_variables: []\nprogramms: {}\n")
    monkeypatch.setattr(programs, "_TABLE", table)
    with pytest.raises(DocumentError, match="did you mean programs"):
        load_programs.__wrapped__()


def test_the_longest_patience_is_the_proxys(table):
    waits = [
        int(value) / 1000
        for program in table.programs.values()
        for name, value in dataclasses.asdict(program)["patience"].items()
        if name.endswith("_MS")
    ]
    assert max(waits) == PATIENCE_S


def test_each_agent_kind_has_a_command_line_of_a_program_that_is_known_and_takes_the_prompt_as_one_word(table):
    assert set(table.kinds) == {"claude-code", "codex", "gemini", "aider", "opencode"}
    for program in table.kinds.values():
        assert table.find(program.headless) == (program, 0)
        assert sum("{prompt}" in word for word in program.headless) == 1
