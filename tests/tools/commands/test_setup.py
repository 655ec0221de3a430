"""What is said and printed; real tools read what is written in tests/e2e/test_fleets.py."""

import json
import shlex
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner

from hivemind_addon.tools.cli import main


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "COPILOT_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.proxy.system.folders.LONGEST_SOCKET_PATH", 1000)
    monkeypatch.setenv("PATH", str(tmp_path / "no-bin"))
    return home


@pytest.fixture
def ca(home):
    (home / ".mitmproxy").mkdir()
    trustme.CA().cert_pem.write_to_path(home / ".mitmproxy" / "mitmproxy-ca-cert.pem")


def run(*arguments):
    return CliRunner().invoke(main, ["setup", *arguments, "-p", "9"])


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_examples_of_its_page_run(home):
    page = (Path(__file__).parents[3] / "docs" / "setup.md").read_text()
    (home / ".cursor").mkdir()
    lines = page.split("```sh\n")[1].partition("```")[0].splitlines()
    said = []
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "hivemind"
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
        said.append(result.stdout)
    assert "nothing to do" in said[2]
    assert files(home) == []


def test_what_is_needed_is_printed_and_nothing_is_written(home, ca):
    before = files(home)
    result = run("claude-code")
    assert result.exit_code == 0
    assert str(home / ".claude" / "settings.json") in result.stdout
    assert '"HTTPS_PROXY": "http://claude-code:x@127.0.0.1:9"' in result.stdout
    assert "- it reaches its provider only while the proxy runs" in result.stdout
    assert files(home) == before


def test_as_json(home, ca):
    (plan,) = json.loads(run("codex", "--json").stdout)
    assert plan["tool"] == "codex"
    assert [Path(file["path"]).name for file in plan["files"]] == [".env", "config.toml"]
    assert plan["files"][1]["content"].startswith("[mcp_servers.hivemind]\n")


def test_it_is_written_once_and_taken_out_again(home, ca):
    (home / ".claude").mkdir()
    text = '{\n  "model": "opus"\n}\n'
    (home / ".claude" / "settings.json").write_text(text)
    first = run("claude-code", "--write")
    assert first.exit_code == 0
    assert '+    "HTTPS_PROXY": "http://claude-code:x@127.0.0.1:9"' in first.stdout
    assert "as it was: " in first.stdout
    assert "`hivemind run`" in first.stdout
    assert json.loads((home / ".claude.json").read_text())["mcpServers"]["hivemind"]
    again = run("claude-code", "--write")
    assert again.stdout.count("nothing to do") == 2
    assert len(again.stdout.splitlines()) == 2
    removed = run("claude-code", "--remove")
    assert removed.exit_code == 0
    assert (home / ".claude" / "settings.json").read_text() == text
    assert not (home / ".claude.json").exists()
    assert run("claude-code", "--remove").stdout.count("nothing to do") == 2


def test_what_the_user_has_set_stays_and_its_value_is_not_shown(home, ca):
    (home / ".claude").mkdir()
    (home / ".claude" / "settings.json").write_text('{"env": {"HTTPS_PROXY": "http://me:s3cret@corporate:1"}}')
    result = run("claude-code", "--write")
    assert result.exit_code == 0
    assert "env.HTTPS_PROXY is set otherwise, and stays" in result.stderr
    assert "s3cret" not in result.stderr
    assert json.loads((home / ".claude" / "settings.json").read_text())["env"]["HTTPS_PROXY"].endswith("corporate:1")


def test_another_port_replaces_what_was_written_before(home, ca):
    run("codex", "--write")
    assert CliRunner().invoke(main, ["setup", "codex", "--write", "-p", "10"]).exit_code == 0
    assert "127.0.0.1:10\n" in (home / ".codex" / ".env").read_text()
    run("codex", "--remove")
    assert files(home / ".codex") == [name for name in files(home / ".codex") if "hivemind-backup" in name]


def test_a_broken_file_stops_that_file_only(home, ca):
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text("a = \n")
    result = run("codex", "--write")
    assert result.exit_code == 1
    assert "config.toml is no TOML" in result.stderr
    assert "Traceback" not in result.output
    assert (home / ".codex" / "config.toml").read_text() == "a = \n"
    assert (home / ".codex" / ".env").exists()


def test_comments_are_left_and_what_to_add_is_said(home):
    (home / ".cursor").mkdir()
    text = '{\n  // mine\n  "mcpServers": {}\n}\n'
    (home / ".cursor" / "mcp.json").write_text(text)
    result = run("cursor", "--write")
    assert result.exit_code == 1
    assert "add this by hand:\n{\n" in result.stderr
    assert (home / ".cursor" / "mcp.json").read_text() == text


def test_all_is_what_is_found(home):
    (home / ".cursor").mkdir()
    (home / ".gemini").mkdir()
    result = run("all", "--write", "--mcp-only")
    assert result.exit_code == 0
    assert "claude-code: not found on this machine, skipped" in result.stderr
    assert files(home) == [".cursor/mcp.json", ".gemini/settings.json"]
    run("all", "--remove", "--mcp-only")
    assert files(home) == []


def test_without_a_certificate_the_cure_is_named(home):
    result = run("claude-code", "--write")
    assert result.exit_code == 1
    assert "hivemind run" in result.stderr
    assert files(home) == []
    assert run("claude-code", "--write", "--mcp-only").exit_code == 0


def test_a_folder_that_cannot_be_written_is_named(home):
    (home / ".cursor").write_text("a file")
    result = run("cursor", "--write")
    assert result.exit_code == 1
    assert ".cursor" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "arguments", [["nothing"], [], ["codex", "--write", "--remove"], ["codex", "--json", "--write"]]
)
def test_misuse_is_said(arguments):
    assert run(*arguments).exit_code == 2


def test_a_tool_finds_the_command_without_this_shells_path(home, monkeypatch, tmp_path):
    started = tmp_path / "venv" / "hivemind"
    started.parent.mkdir()
    started.touch()
    monkeypatch.setattr("sys.argv", [str(tmp_path / "__main__.py")])
    monkeypatch.setattr("sys.executable", str(started.with_name("python")))
    (plan,) = json.loads(run("cursor", "--json").stdout)
    assert json.loads(plan["files"][0]["content"])["mcpServers"]["hivemind"]["command"] == str(started)


def test_a_projects_files_lie_in_this_folder(home, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run("cursor", "--write", "--project").exit_code == 0
    assert (
        json.loads((tmp_path / ".cursor" / "mcp.json").read_text())["mcpServers"]["hivemind"]["command"] == "hivemind"
    )
