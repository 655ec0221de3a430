"""What makes shells complete: printed, and put into their own files once."""

import os
import shutil
import stat
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hivemind_addon.tools.cli import main
from lab.generators.command_help import every_command


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ZDOTDIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_shell_that_asks_in_the_middle_of_a_command_gets_no_traceback(home, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    for path, _ in every_command(main):
        asked = {"_HIVEMIND_COMPLETE": "bash_complete", "COMP_WORDS": f"{path} ", "COMP_CWORD": str(len(path.split()))}
        result = CliRunner().invoke(main, env=asked, prog_name="hivemind")
        assert (result.exit_code, result.stderr) == (0, ""), path


def run(*arguments):
    return CliRunner().invoke(main, ["setup", "completion", *arguments])


def test_the_script_is_printed_and_nothing_is_written(home):
    for shell in ("bash", "zsh", "fish"):
        result = run(shell)
        assert result.exit_code == 0
        assert "_HIVEMIND_COMPLETE" in result.stdout
    assert list(home.iterdir()) == []


@pytest.mark.parametrize(("shell", "name"), [("bash", ".bashrc"), ("zsh", ".zshrc")])
def test_it_is_appended_once_and_what_was_there_stays(home, shell, name):
    file = home / name
    file.write_text("export MINE=1")  # without a last newline
    file.chmod(0o600)
    told = run(shell, "--install")
    assert told.exit_code == 0
    assert f"appended to {file}" in told.stdout
    assert file.read_text().startswith("export MINE=1\n# hivemind completion\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (copy,) = home.glob(f"{name}.hivemind-backup-*")
    assert copy.read_text() == "export MINE=1"
    before = file.read_text()
    assert run(shell, "--install").stdout == f"{file} has it already\n"
    assert file.read_text() == before
    assert len(list(home.iterdir())) == 2


def test_a_file_that_is_not_there_is_made_and_a_link_stays_one(home):
    assert run("bash", "--install").exit_code == 0
    assert (home / ".bashrc").read_text().startswith("# hivemind completion\n")
    (home / "dotfiles").mkdir()
    (home / "dotfiles" / "zshrc").write_text("x=1\n")
    (home / ".zshrc").symlink_to("dotfiles/zshrc")
    assert run("zsh", "--install").exit_code == 0
    assert (home / ".zshrc").is_symlink()
    assert "# hivemind completion" in (home / "dotfiles" / "zshrc").read_text()


def test_fish_gets_a_file_of_its_own_and_a_foreign_one_is_kept(home):
    file = home / ".config" / "fish" / "completions" / "hivemind.fish"
    assert run("fish", "--install").stdout == f"wrote {file}; fish reads it by itself\n"
    assert run("fish", "--install").stdout == f"{file} has it already\n"
    file.write_text("# somebody else's\n")
    assert "as it was" in run("fish", "--install").stdout
    (copy,) = file.parent.glob("*.hivemind-backup-*")
    assert copy.read_text() == "# somebody else's\n"


def test_a_file_that_cannot_be_written_is_one_line(home):
    (home / ".bashrc").mkdir()
    result = run("bash", "--install")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: {home / '.bashrc'}: ")
    assert run("tcsh").exit_code == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_takes_it_and_completes(home, tmp_path):
    """The real shell, with a `hivemind` on its PATH that is this checkout's."""
    program = tmp_path / "bin" / "hivemind"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hivemind_addon "$@"\n')
    program.chmod(0o755)
    run("bash", "--install")
    script = """
. ~/.bashrc
COMP_WORDS=(hivemind pau); COMP_CWORD=1; _hivemind_completion hivemind; echo "${COMPREPLY[@]}"
COMP_WORDS=(hivemind capture s); COMP_CWORD=2; COMPREPLY=(); _hivemind_completion hivemind; echo "${COMPREPLY[@]}"
"""
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("pause\nshow start stop strip\n", "")
