"""mitmproxy's console with a file of an earlier night: nothing is scheduled, and the stories can still be read."""

import time
from contextlib import suppress

import pexpect
import pyte
import pytest
from mitmproxy.io import FlowWriter

from tests.e2e.proxy import MITMDUMP, PATIENCE_S, ROOT
from tests.mitm.test_contentview import make

pytestmark = pytest.mark.slow


class Terminal:
    """What somebody sees of a program."""

    def __init__(self, command, *arguments):
        self.screen = pyte.Screen(120, 40)
        self._stream = pyte.ByteStream(self.screen)
        self.process = pexpect.spawn(command, list(arguments), dimensions=(40, 120), cwd=str(ROOT), timeout=PATIENCE_S)

    @property
    def text(self):
        return "\n".join(self.screen.display)

    def wait_for(self, words):
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.text:
            assert time.monotonic() < deadline, f"{words!r} did not appear:\n{self.text}"
            with suppress(pexpect.TIMEOUT):
                self._stream.feed(self.process.read_nonblocking(65536, timeout=0.2))


@pytest.fixture
def console(tmp_path):
    with (tmp_path / "night.mitm").open("wb") as file:
        FlowWriter(file).add(make())
    arguments = ("-n", "-r", str(tmp_path / "night.mitm"), "-s", "hivemind_addon", "--set", f"confdir={tmp_path}")
    terminal = Terminal(str(MITMDUMP.with_name("mitmproxy")), *arguments, "--set", "hivemind_journal=off")
    yield terminal
    terminal.process.close(force=True)


def test_a_story_is_read_from_a_file(console):
    console.wait_for("anthropic.com")
    console.process.send("\r")
    console.wait_for("Request")
    console.process.send("\t")
    console.wait_for("tool call Read")
    console.wait_for("I read.")
    console.process.send(":hivemind.status\r")
    console.wait_for("no requests so far")
