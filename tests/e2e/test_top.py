"""`hivemind top` and mitmproxy's console, in real terminals."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pexpect
import pyte
import pytest
from mitmproxy.io import FlowWriter

from tests.e2e.machine import machine
from tests.e2e.origin import PLAIN, running_origin
from tests.e2e.proxy import MITMDUMP, NO_TLS, PATIENCE_S, ROOT, body, for_host, options, profiles
from tests.proxy.gate.test_contentview import make

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("top")]


class Terminal:
    """A person's terminal with one command in it."""

    def __init__(self, command, environment, *, columns=110, rows=32):
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.process = pexpect.spawn(
            command[0], command[1:], env=environment, dimensions=(rows, columns), cwd=str(ROOT)
        )

    def close(self):
        self.process.close(force=True)

    @property
    def text(self):
        return "\n".join(self.screen.display)

    def wait_for(self, condition, what):
        """Read until it holds; a string is to be seen."""

        def holds():
            return condition in self.text if isinstance(condition, str) else condition(self.text)

        self._read_until(holds, what)

    def press(self, keys):
        self.process.send(keys)

    def left(self):
        """Its exit status, once it has ended."""
        self._read_until(lambda: not self.process.isalive(), "its end")
        return self.process.exitstatus

    def _read_until(self, condition, what):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} is not to be seen:\n{self.text}"
            try:
                self._stream.feed(self.process.read_nonblocking(65536, 0.05))
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                time.sleep(0.01)


class Stand:
    """A proxy that lets one request at a time go to an origin that answers when it is told to."""

    def __init__(self, mine, run, origin, threads):
        self.mine, self.run, self.origin, self._threads = mine, run, origin, threads

    def ask(self, agent):
        return self._threads.submit(
            httpx.post,
            f"http://127.0.0.1:{self.origin.port}/v1/messages",
            content=body(),
            headers={"x-api-key": "k", "content-type": "application/json", "x-test-id": agent},
            proxy=f"http://{agent}:x@127.0.0.1:{self.mine.port}",
            trust_env=False,
            verify=NO_TLS,
            timeout=PATIENCE_S,
        )

    def terminal(self, *arguments, **environment):
        variables = {"TERM": "xterm-256color", "LANG": "C.UTF-8"} | environment
        return closing(Terminal(self.mine.hivemind("top", *arguments), self.mine.environment | variables))

    @property
    def names(self):
        return [request.headers["x-test-id"] for request in self.origin.arrived]

    def let_go(self, agent):
        self.origin.wait_for(lambda _: agent in self.names, f"{agent}'s arrival")
        next(one for one in self.origin.arrived if one.headers["x-test-id"] == agent and not one.go.is_set()).go.set()


@pytest.fixture(scope="module")
def house(authority):
    with running_origin() as origin, machine(origin, authority) as mine, ThreadPoolExecutor(8) as threads:
        settings = profiles(mine.home, one=for_host(origin.port, slots=1))
        try:
            with mine.started("run", "--set", "flow_detail=0", *settings) as run:
                mine.wait_for(mine.report, "the start")
                yield Stand(mine, run, origin, threads)
        finally:
            origin.open()


@pytest.fixture
def stand(house):
    """The one proxy of all tests, with nothing in it."""
    house.origin.arrived.clear()
    yield house
    for request in house.origin.arrived:
        request.go.set()


def test_a_person_sees_who_waits_steers_and_outlives_the_proxy(stand):
    first = stand.ask("lead")
    stand.origin.wait_for(lambda _: stand.names == ["lead"], "the first request's arrival")
    with stand.terminal() as top:
        top.wait_for("1 of 1 in flight", "what is in flight")
        second = stand.ask("early")
        top.wait_for("early", "the second agent")
        third = stand.ask("zulu")
        top.wait_for("2 queued", "what waits")
        for words in ("1st", "2nd", "concurrency limit: 1 of 1", "3 agents"):
            top.wait_for(words, words)

        top.press("p")
        top.wait_for("paused by a person", "the pause")
        stand.let_go("lead")
        assert first.result(PATIENCE_S).content == PLAIN
        top.wait_for("0 of 1 in flight", "the end of the first")
        assert stand.names == ["lead"], "nothing goes while it is paused"

        top.press("/")
        top.wait_for("show only", "the filter")
        top.press("zul")
        top.wait_for("1 agent with “zul”", "what it finds")
        top.press("\r")
        top.wait_for(lambda text: "show only" not in text, "the keys' return")
        top.press("f")
        top.wait_for(lambda text: "1st" in row(text, "zulu"), "zulu at the front")
        top.press("P")
        top.wait_for(
            lambda text: "paused by a person" not in text.partition("what happened")[0], "the end of the pause"
        )
        stand.let_go("zulu")
        assert third.result(PATIENCE_S).content == PLAIN
        stand.origin.wait_for(lambda _: stand.names == ["lead", "zulu", "early"], "the last one's arrival")

        top.press("\x1b[H")  # the first row: the pool
        top.press("l")
        top.wait_for("a number or auto", "a question")
        top.press("3\r")
        top.wait_for("capped at 3 by a person", "the cap")

        stand.run.send_signal(signal.SIGSTOP)  # else a new one is there before the end of the old one is seen
        os.kill(stand.mine.report()["proxy"]["pid"], signal.SIGKILL)
        top.wait_for("proxy gone, waiting for it to come back", "the end of the proxy")
        stand.run.send_signal(signal.SIGCONT)
        top.wait_for(lambda text: "proxy gone" not in text, "its return")
        top.wait_for("no model call yet", "the new proxy's own state")
        assert second.exception(PATIENCE_S) is not None

        top.press("q")
        assert top.left() == 0


def row(text, agent):
    return next((line for line in text.splitlines() if f" {agent} " in line), "")


def test_a_request_is_cancelled_after_a_yes_and_top_stops_and_goes_on_as_its_shell_says(stand):
    stand.ask("lead")
    stand.origin.wait_for(lambda _: stand.names == ["lead"], "the first request's arrival")
    with stand.terminal(NO_COLOR="1") as top:
        top.wait_for("1 of 1 in flight", "what is in flight")
        waiting = stand.ask("wrong")
        top.wait_for("1 queued", "what waits")
        top.press("/")
        top.wait_for("show only", "the filter")
        top.press("wrong\r")
        top.wait_for(lambda text: "show only" not in text, "the keys' return")
        top.press("c")
        top.wait_for("of wrong? y/n", "a question")
        top.press("y")
        refused = waiting.result(PATIENCE_S)
        assert refused.status_code >= 400
        assert refused.headers["x-should-retry"] == "false"
        top.wait_for("0 queued", "the end of it")

        top.press("\x1a")
        stand.mine.wait_for(lambda: state(top.process.pid) == "T", "the stop")
        os.kill(top.process.pid, signal.SIGCONT)
        top.press("?")
        top.wait_for("leave; the proxy goes on", "the help")
        top.press("q")
        top.wait_for(lambda text: "leave; the proxy goes on" not in text, "the end of the help")
        top.press("\x03")
        assert top.left() == 0
        stand.let_go("lead")


def test_a_pipe_and_a_dumb_terminal_get_one_picture(stand):
    piped = stand.mine.run("top", COLUMNS="100")
    assert piped.returncode == 0
    assert "pools ─" in piped.stdout
    assert "\x1b" not in piped.stdout
    with stand.terminal(TERM="dumb") as top:
        top.wait_for("127.0.0.1", "the picture")
        assert top.left() == 0
    kept = stand.mine.home / "report.json"
    kept.write_text(stand.mine.run("top", "--json").stdout)
    assert stand.mine.run("top", "--snapshot", kept).stdout.startswith("hivemind ")


def state(pid):
    words = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return words.strip()[:1]


def test_a_story_of_an_earlier_night_is_read_from_a_file_in_mitmproxys_console(tmp_path):
    with (tmp_path / "night.mitm").open("wb") as file:
        FlowWriter(file).add(make())
    command = [str(MITMDUMP.with_name("mitmproxy")), "-n", "-r", str(tmp_path / "night.mitm"), "-s", "hivemind_addon"]
    command += ["--set", f"confdir={tmp_path}", *options(journal="off")]
    with closing(Terminal(command, os.environ | {"TERM": "xterm-256color"}, columns=120, rows=40)) as console:
        console.wait_for("anthropic.com", "the flow")
        console.press("\r")
        console.wait_for("Request", "the flow's page")
        console.press("\t")
        console.wait_for("tool call Read", "the conversation")
        console.wait_for("I read.", "its end")
        console.press(":hivemind.status\r")
        console.wait_for("no requests so far", "an answer to the command")
