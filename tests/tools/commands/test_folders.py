"""What commands say where the user's own folders cannot be, or are somebody else's."""

import shlex

from click.testing import CliRunner

from hivemind_addon.tools.cli import main

COMMANDS = [
    *(
        "status",
        "status agents",
        "status pools",
        "top --once",
        "eta agent-1",
        "pause",
        "budget",
        "config",
        "setup env",
        "exec -- true",
    ),
    *(
        "history",
        "history agents",
        "history incident",
        "context list",
        "context show a",
        "context export a --as text",
    ),
    *("context list --folder /nowhere", "task submit -- true", "lease list"),
]


def said(command):
    done = CliRunner().invoke(main, shlex.split(command))
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.output.count("\n") == 1, done.output
    return done.output


def test_one_that_cannot_be_made_is_one_line_that_names_it(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("hivemind_addon.proxy.system.folders.LONGEST_SOCKET_PATH", 1000)
    for command in COMMANDS:
        assert said(command) == f"Error: {tmp_path}/file/hivemind_addon: Not a directory\n", command


def test_one_that_is_not_our_own_is_one_line_with_the_cure(monkeypatch, tmp_path):
    (tmp_path / "hivemind").symlink_to(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for command in COMMANDS:
        assert command == "lease list" or "XDG_RUNTIME_DIR" in said(command), command
