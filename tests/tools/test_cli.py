import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hivemind_addon import __version__
from hivemind_addon.tools.cli import main


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_the_version_is_the_packages():
    assert run("--version").output == f"hivemind, version {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["exec", "--help"], ["lab", "scenario", "list"], ["config", "files"]]
)
def test_a_reader_that_has_seen_enough_is_no_failure(arguments, tmp_path):
    environment = os.environ | {"XDG_STATE_HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    reader, writer = os.pipe()
    os.close(reader)  # as `| head -0` does
    command = [sys.executable, "-P", "-m", "hivemind_addon", *arguments]
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, env=environment, check=False)
    assert (done.returncode, b"Traceback" in done.stderr, b"BrokenPipe" in done.stderr) == (0, False, False)
