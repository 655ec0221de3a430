import subprocess
import sys

import pytest

from hivemind_addon.tools.launch.process_replacement import insist

BECOME = "import os; from hivemind_addon.tools.launch.process_replacement import become; print('before'); become({!r}, {{**os.environ, 'WORD': 'w'}})"


def become(*command):
    return subprocess.run(
        [sys.executable, "-c", BECOME.format(command)], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_command_has_our_place_its_environment_and_its_own_signals():
    done = become("sh", "-c", "echo $WORD; kill -PIPE $$")
    assert (done.returncode, done.stdout) == (-13, "before\nw\n")


def test_what_is_not_there_or_no_program_has_the_shells_status(tmp_path):
    done = become("no-such-command")
    assert (done.returncode, done.stderr) == (127, "Error: there is no command 'no-such-command' on the PATH\n")
    file = tmp_path / "plain"
    file.touch()
    done = become(str(file))
    assert (done.returncode, done.stderr) == (126, f"Error: {file}: Permission denied\n")


def test_what_is_not_there_can_be_said_before(capsys):
    insist(["sh"])
    insist(["./perhaps-made-meanwhile"])
    with pytest.raises(SystemExit) as ended:
        insist(["no-such-command"])
    assert ended.value.code == 127
    assert "no-such-command" in capsys.readouterr().err
