"""What a person does to running requests over the control socket, what their clients get of it, and what is typed for it."""

import json
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from hivemind_addon.formats.wire.sse import SseParser
from hivemind_addon.kernel.values.command import Cancel, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.kernel.values.ticket import Priority
from hivemind_addon.proxy.api.control import control_socket, read_report, send_command
from hivemind_addon.sim.faults import ErrorStatus, Stall
from hivemind_addon.tools.cli import main
from lab.generators.command_help import every_command
from tests.e2e.conftest import Call, Providers, meetings, versions
from tests.e2e.proxy import PATIENCE_S, Proxy, running
from tests.shell_lines import calls
from tests.tools.commands.test_help import examples

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("steer")]

STALLED = Stall(3600)


@dataclass
class Desk:
    """A proxy, and a person before it."""

    proxy: Proxy
    providers: Providers
    threads: ThreadPoolExecutor

    def tell(self, command):
        said = send_command(control_socket(self.proxy.port), command, timeout_s=PATIENCE_S)
        assert said.done, said.text
        return said.text

    def ask(self, call, host, *, agent=None, client="h1"):
        """A request in a thread; its answer's future."""

        def post():
            with self.proxy.client(agent or call.key, http2=client == "h2") as http:
                return http.send(call.request(f"https://{host}"))

        return self.threads.submit(post)

    def tickets(self, agent=None, *states):
        """The ids of an agent's tickets, or of all, in these states, or in any."""
        report = read_report(control_socket(self.proxy.port), timeout_s=PATIENCE_S)
        found = [view for pool in report.snapshot.pools for view in pool.tickets]
        mine = [view for view in found if agent in (None, view.ticket.agent)]
        return [view.ticket.id for view in mine if not states or view.state in states]

    def ticket(self, agent, state):
        """The one ticket of an agent, once it is in this state."""
        self.proxy.wait_for(lambda _: self.tickets(agent, state), f"{agent} {state}")
        (ticket_id,) = self.tickets(agent, state)
        return ticket_id

    def running(self, key, host, *, agent=None, stream=False, **more):
        """A request whose first attempt stalls, and its ticket's id."""
        self.providers.script(key, [STALLED])
        answer = self.ask(Call(key, stream=stream), host, agent=agent, **more)
        ticket_id = self.ticket(agent or key, "in flight")
        self.proxy.wait_for(lambda _: self.providers.attempts(key) >= 1, "its attempt")
        return answer, ticket_id


@contextmanager
def running_desk(folder, providers, *arguments):
    with running(folder, *arguments) as proxy, ThreadPoolExecutor(16) as threads:
        yield Desk(proxy, providers, threads)
        assert "Traceback" not in proxy.log, proxy.log


@pytest.fixture(scope="module")
def desk(providers, proxy_arguments, runtime_dir, tmp_path_factory):
    with running_desk(tmp_path_factory.mktemp("desk"), providers, *proxy_arguments) as desk:
        yield desk


def assert_final(answer):
    assert answer.status_code == 400
    assert answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "a person cancelled" in error["message"]


# Cancel -------------------------------------------------------------------------------------------------------------------


@versions
def test_a_running_request_of_which_nothing_was_seen_is_refused_for_good(desk, key, upstream, client):
    plain, plain_id = desk.running(f"{key}-plain", f"{upstream}.sim.test", client=client)
    whole, whole_id = desk.running(f"{key}-whole", f"{upstream}.whole.test", stream=True, client=client)
    for ticket_id, answer in ((plain_id, plain), (whole_id, whole)):
        assert ticket_id in desk.tell(Cancel(ticket_id))
        assert_final(answer.result(PATIENCE_S))
    desk.proxy.settled()
    assert [desk.providers.attempts(f"{key}-{name}") for name in ("plain", "whole")] == [1, 1]


@meetings
def test_a_running_stream_ends_with_one_error_event_and_a_clean_end(desk, key, upstream, client, chat):
    call = Call(key, chat=chat, stream=True)
    desk.providers.script(key, [], then=STALLED)
    with desk.proxy.client(key, http2=client == "h2") as http:
        response = http.send(call.request(f"https://{upstream}.{'chat' if chat else 'sim'}.test"), stream=True)
        pieces = response.iter_raw()
        seen = next(pieces)
        desk.tell(Cancel(desk.ticket(key, "in flight")))
        seen += b"".join(pieces)  # raises when the message has no clean end
    events = SseParser().feed(seen)
    error = json.loads(events[-1].data)["error"]
    assert error["type"] == "invalid_request_error"
    assert "a person cancelled" in error["message"]
    assert b"message_stop" not in seen
    assert b"[DONE]" not in seen
    desk.proxy.settled()
    assert desk.providers.attempts(key) == 1


@pytest.mark.parametrize("client", ["h1", "h2"])
def test_a_queued_request_is_refused_for_good_and_never_sent(desk, key, client):
    first, first_id = desk.running(key, "h1.narrow.test", agent=f"{key}-first")
    queued = desk.ask(Call(key), "h1.narrow.test", client=client)
    desk.tell(Cancel(desk.ticket(key, "queued")))
    assert_final(queued.result(PATIENCE_S))
    desk.tell(Cancel(first_id))
    assert_final(first.result(PATIENCE_S))
    desk.proxy.settled()
    assert desk.providers.attempts(key) == 1


def test_one_that_backs_off_is_refused_for_good(desk, key):
    desk.providers.script(key, [ErrorStatus(429, retry_after_s=PATIENCE_S)])
    answer = desk.ask(Call(key), "h1.sim.test")
    desk.tell(Cancel(desk.ticket(key, "backing off")))
    assert_final(answer.result(PATIENCE_S))
    desk.proxy.settled()
    assert desk.providers.attempts(key) == 1


def test_one_whose_client_got_keep_alives_hears_of_it_in_its_stream(desk, key):
    first, first_id = desk.running(key, "h1.held.test", agent=f"{key}-first", stream=True)
    with desk.proxy.client(key) as http:
        response = http.send(Call(key, stream=True).request("https://h1.held.test"), stream=True)
        pieces = response.iter_raw()
        assert next(pieces).startswith(b":")
        desk.tell(Cancel(desk.ticket(key, "queued")))
        assert b"a person cancelled" in b"".join(pieces)
    desk.tell(Cancel(first_id))
    first.result(PATIENCE_S)
    desk.proxy.settled()


def test_the_official_sdk_does_not_send_it_again(desk, key):
    import anthropic

    desk.providers.script(key, [], then=STALLED)
    context = ssl.create_default_context(cafile=str(desk.proxy.ca))
    with anthropic.DefaultHttpxClient(
        proxy=desk.proxy.url(key), verify=context, trust_env=False, timeout=PATIENCE_S
    ) as http:
        client = anthropic.Anthropic(api_key=key, base_url="https://h1.sim.test", max_retries=4, http_client=http)
        question = {"model": "sim-1", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
        answer = desk.threads.submit(client.messages.create, **question)
        desk.proxy.wait_for(lambda _: desk.providers.attempts(key) == 1, "its attempt")
        desk.tell(Cancel(desk.ticket(key, "in flight")))
        with pytest.raises(anthropic.BadRequestError, match="a person cancelled"):
            answer.result(PATIENCE_S)
        with client.messages.stream(**question) as stream:
            text = iter(stream.text_stream)
            next(text)
            desk.tell(Cancel(desk.ticket(key, "in flight")))
            with pytest.raises(anthropic.APIStatusError, match="a person cancelled"):
                list(text)
    desk.proxy.settled()
    assert desk.providers.attempts(key) == 2


# Pause, limit, priority, front --------------------------------------------------------------------------------------------


def test_a_pause_holds_and_a_resume_lets_go(desk, key):
    desk.tell(Pause(pool="h1.sim.test"))
    answer = desk.ask(Call(key), "h1.sim.test")
    desk.ticket(key, "queued")
    report = read_report(control_socket(desk.proxy.port), timeout_s=PATIENCE_S)
    (pool,) = [pool for pool in report.snapshot.pools if pool.tickets]
    assert pool.paused
    assert pool.tickets[0].reason == "paused by a person"
    assert desk.providers.attempts(key) == 0
    assert desk.ask(Call(f"{key}-other"), "h2.sim.test").result(PATIENCE_S).status_code == 200
    desk.tell(Resume(pool="h1.sim.test"))
    assert answer.result(PATIENCE_S).status_code == 200
    desk.proxy.settled()


def test_no_more_run_than_a_person_lets(desk, key):
    desk.providers.script(key, [], then=STALLED)
    desk.tell(SetLimit(limit=2, pool="h1.sim.test"))
    answers = [desk.ask(Call(key), "h1.sim.test") for _ in range(4)]
    desk.proxy.wait_for(lambda _: len(desk.tickets(key)) == 4, "four requests")
    desk.proxy.wait_for(lambda _: desk.providers.attempts(key) == 2, "two attempts")
    assert len(desk.tickets(key, "in flight")) == 2
    desk.tell(SetLimit(limit=None, pool="h1.sim.test"))
    desk.proxy.wait_for(lambda _: desk.providers.attempts(key) == 4, "four attempts")
    for ticket_id in desk.tickets(key):
        desk.tell(Cancel(ticket_id))
    for answer in answers:
        assert_final(answer.result(PATIENCE_S))
    desk.proxy.settled()


def test_a_persons_order_counts(desk, key):
    first, first_id = desk.running(key, "h1.narrow.test", agent=f"{key}-first")
    waiting, ids = {}, {}
    for name in ("early", "late", "last"):
        waiting[name] = desk.ask(Call(key), "h1.narrow.test", agent=f"{key}-{name}")
        ids[desk.ticket(f"{key}-{name}", "queued")] = name
    desk.tell(SetPriority(f"{key}-late", Priority.HIGH))
    desk.tell(MoveToFront(desk.ticket(f"{key}-last", "queued")))
    desk.tell(Cancel(first_id))
    assert_final(first.result(PATIENCE_S))
    assert [answer.result(PATIENCE_S).status_code for answer in waiting.values()] == [200] * 3
    started = [event for event in desk.proxy.state()["events"] if event.startswith("AttemptStarted ")][-3:]
    assert [ids[event.split("ticket_id='")[1].split("'")[0]] for event in started] == ["last", "late", "early"]
    desk.tell(SetPriority(f"{key}-late", None))
    desk.proxy.settled()


# What people type -----------------------------------------------------------------------------------------------------

HOST = "h1.narrow.test"
"""Has one slot: one request runs, the next one waits."""
EXECUTED = (
    "hivemind status",
    "hivemind status proxies",
    "hivemind top",
    "hivemind status agents",
    "hivemind status pools",
    "hivemind eta",
    "hivemind cap",
    "hivemind priority",
    "hivemind pause",
    "hivemind resume",
    "hivemind config",
    "hivemind config get",
    "hivemind config set",
    "hivemind config files",
    "hivemind capture start",
    "hivemind capture stop",
    "hivemind setup env",
    "hivemind setup completion",
    "hivemind front",
    "hivemind cancel",
)
"""In this order: what they do to the proxy has to leave the next one something to do."""


@pytest.fixture
def home(runtime_dir, tmp_path, monkeypatch):
    """A home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    Path("agents.yaml").write_text("agents:\n  reviewer-1: {budgets: [{tokens: 5000000, per: day}]}\n")
    return tmp_path


def test_every_example_of_a_command_does_what_it_says(home, providers, proxy_arguments, subtests):
    """`reviewer-1` runs and `nightly` waits."""
    with running_desk(home / "conf", providers, *proxy_arguments) as desk:
        environment = {"HIVEMIND_PORT": str(desk.proxy.port), "HIVEMIND_AGENT": "reviewer-1"}

        def typed(*arguments):
            return CliRunner().invoke(main, arguments, env=environment)

        assert desk.ask(Call("sk-sim-first"), HOST, agent="reviewer-1").result(PATIENCE_S).status_code == 200
        answers = [desk.running("sk-sim-busy", HOST, agent="reviewer-1")[0]]
        answers.append(desk.ask(Call("sk-sim-busy"), HOST, agent="nightly"))
        desk.ticket("nightly", "queued")

        command = [
            sys.executable,
            "-m",
            "hivemind_addon",
            "status",
            "agents",
            "reviewer-1",
            "--json",
            "-p",
            str(desk.proxy.port),
        ]
        (row,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert (row["agent"], row["delivered"]) == ("reviewer-1", 1)
        for words in (
            "status",
            "status agents",
            "status pools",
            "top --once",
            "eta nightly",
            "config files",
            "setup env",
            "doctor",
        ):
            with subtests.test(f"{words} --json"):
                assert json.loads(typed(*words.split(), "--json").stdout)

        every = dict(every_command(main))
        for path in EXECUTED:
            for line in examples(every[path]):
                with subtests.test(line):
                    queued = desk.tickets(None, "queued")
                    said = line.replace("api.anthropic.com", HOST).replace("api.openai.com", HOST)
                    said = said.replace("-p 9090", "").replace("/claude-opus*", "/*")
                    said = said.replace("3f9c01ab2e", queued[0] if queued else "none")
                    for name, *arguments in calls(said):
                        if name != "hivemind":
                            continue
                        if path == "hivemind resume":
                            assert typed("pause").exit_code == 0
                        if "--snapshot" in arguments:
                            Path("report.json").write_text(typed("status", "--json").stdout)
                        result = typed(*arguments)
                        assert result.exit_code == 0, result.output
                        if "--json" in arguments:
                            json.loads(result.stdout)
        assert "night.jsonl" not in typed("config", "get", "log").stdout
        desk.proxy.wait_for(lambda _: Path("night.jsonl").read_text().count("\n") > 0, "the log's first line")
        assert Path(".zshrc").exists()
        for ticket_id in desk.tickets():
            typed("cancel", ticket_id)
        assert {answer.result(PATIENCE_S).status_code for answer in answers} == {400}
