"""What commands print: it fits 80 columns, and has colours only where somebody sees them and nobody minds."""

import os
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hivemind_addon.proxy.api.command import CommandReply, ShowConfig
from hivemind_addon.tools.cli import main
from tests.tools.commands.served import serving
from tests.tools.dash.samples import flying, pool, report, session, waiting

pytestmark = pytest.mark.usefixtures("folders")

REPORT = report(
    pool(in_flight=1, queued=1, tickets=(flying("t-run", agent="a-name-that-is-long"), waiting("t-wait", agent="b"))),
    sessions=(session("a-name-that-is-long"), session("b")),
)
OPTIONS = [{"name": "hivemind_keep", "value": "20 flows", "default": "500 flows", "help": "How many."}]
USUAL = (
    *("--help", "--version", "status", "status agents", "status pools", "top --once", "eta b", "config", "config show"),
    *("config schema", "budget", "lease list", "task list", "fleet list", "history", "history agents", "context"),
    *("capture start x.flow", "pause", "resume", "cap 3", "front t-wait", "cancel t-wait", "lab scenario list"),
    *("nonsense", "logs -p 1", "setup env -p 1", "stop -p 1", "history ticket nobody", "agent list", "setup"),
)
"""What people type, and where it goes wrong."""
_COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9\d|10\d)(?:;\d+)*m")


def answer(command):
    return CommandReply(done=True, text="done", value=OPTIONS if isinstance(command, ShowConfig) else [])


def test_usual_outputs_fit_eighty_columns_and_a_pipe_gets_plain_text():
    with serving(REPORT, answer=answer):
        printed = {words: CliRunner().invoke(main, words.split(), env={"COLUMNS": "80"}) for words in USUAL}
    broken = {words: result.exception for words, result in printed.items() if result.exit_code not in (0, 1, 2)}
    assert broken == {}
    lines = [(words, line) for words, result in printed.items() for line in result.stdout.splitlines()]
    assert "\n".join(f"{words}: {line}" for words, line in lines if len(line) > 80 and "/" not in line) == ""
    assert [words for words, result in printed.items() if "\x1b" in result.output] == []


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals here")
def test_on_a_terminal_colours_are_for_those_who_did_not_say_no():
    def seen(words, **environment):
        ours, theirs = os.openpty()
        command = [sys.executable, "-m", "hivemind_addon", *words.split()]
        clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            process = subprocess.Popen(command, stdout=theirs, env=clean | {"COLUMNS": "80"} | environment)
            os.close(theirs)
            said = b""
            while True:
                try:
                    said += terminal.read(65536) or b""
                except OSError:  # its other end is closed: that is how a terminal ends
                    break
            assert process.wait(120) == 0
        return said.decode()

    with serving(REPORT, answer=answer):
        for words in ("status", "status agents", "lab scenario list"):
            coloured = seen(words, TERM="xterm-256color")
            assert "\x1b[" in coloured, words
            assert not _COLOUR.search(seen(words, TERM="xterm-256color", NO_COLOR="1")), words
            assert "\x1b" not in seen(words, TERM="dumb"), words
        assert _COLOUR.search(seen("status", TERM="xterm-256color"))
