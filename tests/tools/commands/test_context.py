import csv
import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.plugins.contexts.commands import context_options as commands
from hivemind_addon.plugins.contexts.store import ContextStore
from hivemind_addon.tools.cli import main
from tests.plugins.contexts.samples import CHAT, MESSAGES, WALL, context, conversation


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The state folder's own, with three conversations in it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    store = ContextStore(tmp_path / "hivemind_addon" / "contexts")
    store.keep(context("aaa1", agent="ann", task="task-9"))
    store.keep(context("bbb1", agent="bob", dialect="openai-responses", wall=WALL + 60))
    store.keep(context("ccc1", agent="bob", dialect="openai-chat", wall=WALL + 120, session="s-2"))
    return store.folder


def run(*arguments, status=0, **more):
    done = CliRunner().invoke(main, ["context", *map(str, arguments)], **more)
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
    assert f"no contexts of eve in {folder}" in run("list", "--agent", "eve")
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
    assert f"{tmp_path}/{port}/contexts" in run("list", *arguments, env=environment)


def test_show_reads_a_conversation_by_the_beginning_of_its_id(folder):
    shown = run("show", "a")
    assert "aaa1" in shown
    assert "Read r.txt." in shown
    assert "careful program" in run("show", "a", "--full")
    whole = json.loads(run("show", "a", "--json"))
    assert whole["body"] == MESSAGES
    assert whole["head"]["agent"] == "ann"


@pytest.mark.parametrize(("name", "said"), [("zzz", "hivemind context list"), ("", "may be aaa1 or bbb1 or ccc1")])
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
    done = CliRunner().invoke(main, ["context", "export", "ccc", "--as", "api"])
    assert json.loads(done.stdout) == CHAT
    assert "send it with: curl" in done.stderr
    assert "@-" in done.stderr
    done = CliRunner().invoke(main, ["context", "export", "aaa", "--as", "claude-code"])
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
    for side in ("", "-wal", "-shm"):
        (folder / f"contexts.db{side}").write_bytes(b"no file of ours, or none any more")
    for asked in (("show", "aaa1"), ("list",)):
        assert f"{folder / 'contexts.db'} is damaged" in run(*asked, status=1)


def versions(folder, *lengths, agent="ann", session="s-9"):
    """A conversation that grew, or was compacted; its id."""
    store, words = ContextStore(folder), "abcdefgh"
    for at, length in enumerate(lengths):
        head = store.keep(conversation(*words[:length], agent=agent, session=session, wall=WALL + at))
    return head.id


def test_versions_are_listed_shown_and_compared(folder):
    name = versions(folder, 1, 3, 5)
    assert [row["version"] for row in json.loads(run("list", name[:5], "--json"))] == [1, 2, 3]
    assert f"{name}@2 (3 versions kept)" in run("show", f"{name}@2")
    assert len(json.loads(run("show", f"{name}@2", "--json"))["body"]["messages"]) == 3
    for words, said in (
        ([name], "from  NAME@2: 3 messages"),
        ([f"{name}@1"], "to    NAME@3: 5 messages"),
        ([name[:6], f"{name}@1"], "to    NAME@1: 1 message,"),
    ):
        assert said.replace("NAME", name) in run("diff", *words)
    runs = json.loads(run("diff", f"{name}@1", f"{name}@3", "--json"))["runs"]
    assert [run["change"] for run in runs] == ["same", "came"]
    assert "aaa1 has one version" in run("diff", "aaa1", status=1)
    assert "ID@3 is the third one" in run("show", f"{name}@0", status=2)
    assert "9" in run("show", f"{name}@9", status=1)


def test_search_shows_where_each_thing_was_said(folder):
    hits = json.loads(run("search", "LINE 1", "--json"))
    assert [(hit["id"], hit["message"]) for hit in hits] == [("ccc1", 4), ("bbb1", 7), ("aaa1", 4)]
    shown = run("search", "line 1", "--most", "2")
    assert "ccc1@1 message 4, bob, " in shown
    assert "aaa1" not in shown
    assert "(the 2 newest; --most 20 shows more)" in shown
    assert "'line 9' is in none of them" in run("search", "line 9")
    assert [hit["id"] for hit in json.loads(run("search", "line 1", "--agent", "a*", "--json"))] == ["aaa1"]
    assert "name some words" in run("search", " ", status=2)


def ids():
    return sorted(head["id"] for head in json.loads(run("list", "--json")))


def test_rm_says_what_it_removes_and_asks_once(folder):
    assert "say which" in run("rm", status=2)
    assert "leave out the @N" in run("rm", "aaa1@1", status=2)
    assert "is none of the contexts" in run("rm", "zzz", "--yes", status=1)
    asked = run("rm", "[ab]*", input="n\n", status=1)
    assert "aaa1 of ann, task-9: 5 messages" in asked
    assert "remove 2 conversations for good?" in asked
    assert ids() == ["aaa1", "bbb1", "ccc1"]
    assert "nothing was removed" in run("rm", "--agent", "eve", "--yes")
    assert "nothing was removed" in run("rm", "*", "--older-than", f"{9 * 365}d", "--yes")
    assert "removed: 1 conversation" in run("rm", "*", "--agent", "ann", "--older-than", "0.001s", input="y\n")
    assert ids() == ["bbb1", "ccc1"]
    assert "removed: 2 conversations" in run("rm", "b", "ccc1", "--yes")
    assert ids() == []


def test_a_bundle_takes_a_family_to_another_machine_once(folder, tmp_path):
    name = versions(folder, 1, 3)
    file, there = tmp_path / "x.contexts", tmp_path / "there"
    there.mkdir()
    said = run("export", name, "--as", "bundle", "-o", file)
    assert f"hivemind context import {file}" in said
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f"{name} of ann: 2 versions" in run("import", file, "--folder", there)
    assert f"{name} of ann: nothing new" in run("import", file, "--folder", there)
    assert json.loads(run("show", name, "--json", "--folder", there)) == json.loads(run("show", name, "--json"))
    run("export", f"{name}@1", "--as", "bundle", "-o", tmp_path / "one.contexts")
    assert json.loads(run("import", tmp_path / "one.contexts", "--json"))[0]["new_versions"] == 0
    file.write_bytes(file.read_bytes()[:-30])
    assert "is cut off" in run("import", file, "--folder", there, status=1)


def test_what_resumes_a_session_is_prepared_and_printed(folder, tmp_path):
    line = run("resume", "aaa1", "--cwd", tmp_path, "--print", "--say", "Go on.", "--", "--model", "m 1")
    (file,) = (tmp_path / "claude").rglob("*.jsonl")
    assert line == (
        f"cd {tmp_path} && hivemind exec -p 8080 --agent ann --task task-9 -- "
        f"claude -p --resume {file.stem} --model 'm 1' -- 'Go on.'\n"
    )
    assert "neither Claude Code nor Codex" in run("resume", "bbb1", "--print", status=1)
    line = run("resume", "bbb1", "--as", "codex", "--print", "--agent", "other", "--cwd", tmp_path)
    (file,) = (tmp_path / "codex").rglob("*.jsonl")
    assert line.endswith(f"hivemind exec -p 8080 --agent other -- codex resume {file.stem[-36:]}\n")


def test_a_plain_program_reads_the_conversation_or_is_told_it(folder, tmp_path):
    words = ("resume", "ccc1@1", "--cwd", tmp_path, "--print")
    line = run(*words, "--as", "text", "--", "./agent.sh", "-v")
    piped = "hivemind context export ccc1@1 -p 8080 --as text | hivemind exec -p 8080 --agent bob -- ./agent.sh -v\n"
    assert line == f"cd {tmp_path} && {piped}"
    assert '-- ask "$(hivemind context export ccc1@1 -p 8080 --as api)"' in run(
        *words, "--as", "api", "--", "ask", "{}"
    )
    assert "name the program" in run(*words, "--as", "text", status=1)
    assert "--say is for claude-code and codex" in run(*words, "--as", "text", "--say", "x", "--", "y", status=1)
    assert "Responses API" not in run(*words, "--as", "claude-code", status=1)
    store = ContextStore(folder)
    long = store.keep(conversation("word " * 40_000, agent="bob", session="long")).id
    assert "leave out {}" in run("resume", long, "--as", "text", "--", "cat", "{}", status=1)
    there = folder.rename(tmp_path / "there")
    elsewhere = run("resume", "ccc1", "--as", "text", "--print", "--folder", there, "-p", "7", "--", "cat")
    assert f"export ccc1 -p 7 --folder {there} --as text |" in elsewhere
    there.rename(folder)
    missing = run("resume", long, "--as", "text", "--", "no-such-program", status=127)
    assert "no command 'no-such-program'" in missing
