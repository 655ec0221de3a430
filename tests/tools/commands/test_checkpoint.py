import csv
import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.proxy.checkpoint.store import CheckpointStore
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import checkpoint as commands
from tests.proxy.checkpoint.samples import CHAT, MESSAGES, WALL, checkpoint


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The state folder's own, with three conversations in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    store = CheckpointStore(tmp_path / "hivemind_addon" / "checkpoints")
    store.keep(checkpoint("aaa1", agent="ann", task="task-9"))
    store.keep(checkpoint("bbb1", agent="bob", dialect="openai-responses", wall=WALL + 60))
    store.keep(checkpoint("ccc1", agent="bob", dialect="openai-chat", wall=WALL + 120, session="s-2"))
    return store.folder


def run(*arguments, status=0, **more):
    done = CliRunner().invoke(main, ["checkpoint", *map(str, arguments)], **more)
    assert done.exit_code == status, done.output
    assert "Traceback" not in done.output
    return done.output


def test_list_has_the_newest_first_for_people_and_for_programs(folder):
    shown = run("list")
    assert shown.index("ccc1") < shown.index("bbb1") < shown.index("aaa1")
    assert "task-9" in shown
    assert "task" not in run("list", "--agent", "b*")
    heads = json.loads(run("list", "--json", "--agent", "b*"))
    assert [head["id"] for head in heads] == ["ccc1", "bbb1"]
    assert heads[0]["kept_wall"] == WALL + 120
    rows = list(csv.DictReader(run("list", "--csv").splitlines()))
    assert [(row["id"], row["kept_wall"]) for row in rows][::2] == [("ccc1", str(WALL + 120)), ("aaa1", str(WALL))]


def test_an_empty_list_says_where_it_looked(folder, tmp_path):
    assert f"no checkpoints of eve in {folder}" in run("list", "--agent", "eve")
    (tmp_path / "other").mkdir()
    assert json.loads(run("list", "--json", "--folder", tmp_path / "other")) == []
    assert "is no folder" in run("list", "--folder", tmp_path / "none", status=1)


@pytest.mark.parametrize(
    ("arguments", "environment", "port"),
    [((), {}, 8080), ((), {"HIVEMIND_PORT": "9090"}, 9090), (("-p", "7070"), {}, 7070)],
)
def test_they_are_those_of_the_proxy_on_a_port(folder, tmp_path, monkeypatch, arguments, environment, port):
    monkeypatch.delenv("HIVEMIND_PORT", raising=False)
    monkeypatch.setattr(commands, "journal_of", lambda port: tmp_path / str(port) / "journal.db")
    assert f"{tmp_path}/{port}/checkpoints" in run("list", *arguments, env=environment)


def test_show_reads_a_conversation_by_the_beginning_of_its_id(folder):
    shown = run("show", "a")
    assert "aaa1" in shown
    assert "Read r.txt." in shown
    assert "careful program" in run("show", "a", "--full")
    whole = json.loads(run("show", "a", "--json"))
    assert whole["body"] == MESSAGES
    assert whole["head"]["agent"] == "ann"


@pytest.mark.parametrize(("name", "said"), [("zzz", "hivemind checkpoint list"), ("", "may be aaa1 or bbb1 or ccc1")])
def test_an_unknown_id_is_one_line(folder, name, said):
    for command in (["show", name], ["export", name, "--as", "text"]):
        assert said in run(*command, status=1)


@pytest.mark.parametrize(("form", "name"), [("claude-code", "aaa1"), ("codex", "bbb1")])
def test_export_writes_a_session_to_where_its_agent_resumes_it(folder, tmp_path, form, name):
    said = run("export", name, "--as", form, "--write", "--cwd", tmp_path)
    (file,) = (tmp_path / form.removesuffix("-code")).rglob("*.jsonl")
    assert f"written: {file}" in said
    assert f"go on with: cd {tmp_path} && {form.removesuffix('-code')} " in said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = json.loads(run("export", name, "--as", form, "--write", "--json"))
    assert again["file"] != str(file), "another session: nothing is overwritten"
    assert again["command"].endswith(again["session"])


def test_export_writes_a_new_file_or_standard_output(folder, tmp_path):
    file = tmp_path / "new" / "body.json"
    said = run("export", "ccc", "--as", "api", "-o", file)
    assert json.loads(file.read_bytes()) == CHAT
    assert f"--data-binary @{file}" in said
    assert "is there already" in run("export", "ccc", "--as", "text", "-o", file, status=1)
    assert json.loads(file.read_bytes()) == CHAT
    done = CliRunner().invoke(main, ["checkpoint", "export", "ccc", "--as", "api"])
    assert json.loads(done.stdout) == CHAT
    assert "send it with: curl" in done.stderr
    assert "@-" in done.stderr
    done = CliRunner().invoke(main, ["checkpoint", "export", "aaa", "--as", "claude-code"])
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 4
    assert "--write puts it to" in done.stderr
    moved = run("export", "aaa", "--as", "claude-code", "-o", tmp_path / "session.jsonl")
    assert f"once it is {tmp_path / 'claude'}" in moved


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["aaa1", "--as", "codex"], 1, "Codex speaks the Responses API; `--as text`"),
        (["aaa1", "--as", "text", "--write"], 2, "name a file for text with -o FILE"),
        (["aaa1", "--as", "text", "--json"], 2, "name one with -o"),
        (["aaa1", "--as", "codex", "--write", "-o", "x"], 2, "choose one of them"),
        (["aaa1"], 2, "--as"),
        (["aaa1", "--as", "novel"], 2, "claude-code"),
        (["aaa1", "--as", "text", "-o", "/proc/none/x"], 1, "/proc/none: "),
    ],
)
def test_what_cannot_be_done_is_one_line_that_says_what_can(folder, arguments, status, said):
    assert said in run("export", *arguments, status=status)


def test_half_a_session_is_not_left_on_a_full_disk(folder, tmp_path, monkeypatch):
    def full(descriptor, mode):
        os.close(descriptor)
        return Path("/dev/full").open(mode)

    monkeypatch.setattr(commands.os, "fdopen", full)
    assert "No space left on device" in run("export", "aaa1", "--as", "text", "-o", tmp_path / "x.md", status=1)
    assert not (tmp_path / "x.md").exists()


def test_a_damaged_file_is_one_line(folder):
    (folder / "ddd1.checkpoint").write_bytes(b"{}")
    assert "damaged, or of a newer version" in run("show", "ddd1", status=1)
    assert "ddd1" not in run("list")
