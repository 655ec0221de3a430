"""What a person does to running requests, over the control socket and in mitmweb, and what their clients get of it."""

import json
import ssl
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import anthropic
import httpx
import pytest

from hivemind_addon.api.command import Cancel, MoveToFront, Pause, Resume, SetLimit, SetPriority
from hivemind_addon.api.control import control_socket, read_report, send_command
from hivemind_addon.api.ticket import Priority
from hivemind_addon.lab.sim.faults import OK, ErrorStatus, Stall
from hivemind_addon.proxy.wire.sse import SseParser
from tests.e2e.conftest import Call, Providers
from tests.e2e.proxy import MITMDUMP, NO_TLS, PATIENCE_S, Proxy, free_port, running

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
            with self.proxy.client(agent or call.key, http2=client == "h2", timeout=PATIENCE_S) as http:
                return http.send(call.request(f"https://{host}"))

        return self.threads.submit(post)

    def tickets(self, agent, state=None):
        pools = self.proxy.state()["snapshot"]["pools"]
        found = [one for pool in pools for one in pool["tickets"] if one["ticket"]["agent"] == agent]
        return [one["ticket"]["id"] for one in found if state in (None, one["state"])]

    def ticket(self, agent, state):
        """The one ticket of an agent, once it is in this state."""
        self.proxy.wait_for(lambda _: self.tickets(agent, state), f"{agent} {state}")
        (ticket_id,) = self.tickets(agent, state)
        return ticket_id

    def settled(self):
        state = self.proxy.wait_for(
            lambda state: state["live"] == 0 and not any(pool["in_flight"] for pool in state["snapshot"]["pools"]),
            "the return of every slot",
        )
        assert state["guard_trips"] == 0, self.proxy.log
        assert "Traceback" not in self.proxy.log, self.proxy.log

    def attempted(self, key, count):
        self.proxy.wait_for(lambda _: self.providers.attempts(key) >= count, f"attempt {count}")


@pytest.fixture(scope="module")
def runtime_dir():
    """Where the proxy's socket is; pytest's own folders are too deep for one."""
    with tempfile.TemporaryDirectory(prefix="hm") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield folder


@pytest.fixture(scope="module")
def desk(providers, proxy_arguments, runtime_dir, tmp_path_factory):
    with running(tmp_path_factory.mktemp("desk"), *proxy_arguments) as proxy, ThreadPoolExecutor(16) as threads:
        yield Desk(proxy, providers, threads)


def assert_final(answer):
    assert answer.status_code == 400
    assert answer.headers["x-should-retry"] == "false"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "a person cancelled" in error["message"]


# Cancel -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "whole"])
@pytest.mark.parametrize("client", ["h1", "h2"])
@pytest.mark.parametrize("upstream", ["h1", "h2"])
def test_a_running_request_of_which_nothing_was_seen_is_refused_for_good(desk, key, upstream, client, stream):
    call = Call(key, stream=stream)
    desk.providers.script(key, [], then=STALLED)
    answer = desk.ask(call, f"{upstream}.{'whole' if stream else 'sim'}.test", client=client)
    ticket_id = desk.ticket(key, "in flight")
    desk.attempted(key, 1)
    assert ticket_id in desk.tell(Cancel(ticket_id))
    assert_final(answer.result(PATIENCE_S))
    desk.settled()
    assert desk.providers.attempts(key) == 1


@pytest.mark.parametrize("chat", [False, True], ids=["anthropic", "chat"])
@pytest.mark.parametrize("client", ["h1", "h2"])
@pytest.mark.parametrize("upstream", ["h1", "h2"])
def test_a_running_stream_ends_with_one_error_event_and_a_clean_end(desk, key, upstream, client, chat):
    call = Call(key, chat=chat, stream=True)
    desk.providers.script(key, [], then=STALLED)
    with desk.proxy.client(key, http2=client == "h2", timeout=PATIENCE_S) as http:
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
    desk.settled()
    assert desk.providers.attempts(key) == 1


@pytest.mark.parametrize("client", ["h1", "h2"])
def test_a_queued_request_is_refused_for_good_and_never_sent(desk, key, client):
    call = Call(key)
    desk.providers.script(key, [STALLED])
    running_one = desk.ask(call, "h1.narrow.test", agent=f"{key}-first")
    first = desk.ticket(f"{key}-first", "in flight")
    desk.attempted(key, 1)
    queued = desk.ask(call, "h1.narrow.test", client=client)
    desk.tell(Cancel(desk.ticket(key, "queued")))
    assert_final(queued.result(PATIENCE_S))
    desk.tell(Cancel(first))
    assert_final(running_one.result(PATIENCE_S))
    desk.settled()
    assert desk.providers.attempts(key) == 1


def test_one_that_backs_off_is_refused_for_good(desk, key):
    desk.providers.script(key, [ErrorStatus(429, retry_after_s=PATIENCE_S)])
    answer = desk.ask(Call(key), "h1.sim.test")
    desk.tell(Cancel(desk.ticket(key, "backing off")))
    assert_final(answer.result(PATIENCE_S))
    desk.settled()
    assert desk.providers.attempts(key) == 1


def test_one_whose_client_got_keep_alives_hears_of_it_in_its_stream(desk, key):
    call = Call(key, stream=True)
    desk.providers.script(key, [STALLED])
    filler = desk.ask(call, "h1.held.test", agent=f"{key}-first")
    first = desk.ticket(f"{key}-first", "in flight")
    desk.attempted(key, 1)
    with desk.proxy.client(key, timeout=PATIENCE_S) as http:
        response = http.send(call.request("https://h1.held.test"), stream=True)
        pieces = response.iter_raw()
        assert next(pieces).startswith(b":")
        desk.tell(Cancel(desk.ticket(key, "queued")))
        assert b"a person cancelled" in b"".join(pieces)
    desk.tell(Cancel(first))
    filler.result(PATIENCE_S)
    desk.settled()


def test_the_official_sdk_does_not_send_it_again(desk, key):
    desk.providers.script(key, [], then=STALLED)
    context = ssl.create_default_context(cafile=str(desk.proxy.ca))
    with anthropic.DefaultHttpxClient(
        proxy=desk.proxy.url(key), verify=context, trust_env=False, timeout=PATIENCE_S
    ) as http:
        client = anthropic.Anthropic(api_key=key, base_url="https://h1.sim.test", max_retries=4, http_client=http)
        question = {"model": "sim-1", "max_tokens": 64, "messages": [{"role": "user", "content": "hello"}]}
        answer = desk.threads.submit(client.messages.create, **question)
        desk.attempted(key, 1)
        desk.tell(Cancel(desk.ticket(key, "in flight")))
        with pytest.raises(anthropic.BadRequestError, match="a person cancelled"):
            answer.result(PATIENCE_S)
        with client.messages.stream(**question) as stream:
            text = iter(stream.text_stream)
            next(text)
            desk.tell(Cancel(desk.ticket(key, "in flight")))
            with pytest.raises(anthropic.APIStatusError, match="a person cancelled"):
                list(text)
    desk.settled()
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
    passing = Call(f"{key}-other")
    assert desk.ask(passing, "h2.sim.test").result(PATIENCE_S).status_code == 200
    desk.tell(Resume(pool="h1.sim.test"))
    assert answer.result(PATIENCE_S).status_code == 200
    desk.settled()


def test_no_more_run_than_a_person_lets(desk, key):
    desk.providers.script(key, [], then=STALLED)
    desk.tell(SetLimit(limit=2, pool="h1.sim.test"))
    answers = [desk.ask(Call(key), "h1.sim.test") for _ in range(4)]
    desk.proxy.wait_for(lambda _: len(desk.tickets(key)) == 4, "four requests")
    desk.attempted(key, 2)
    assert len(desk.tickets(key, "in flight")) == 2
    desk.tell(SetLimit(limit=None, pool="h1.sim.test"))
    desk.attempted(key, 4)
    for ticket_id in desk.tickets(key):
        desk.tell(Cancel(ticket_id))
    for answer in answers:
        assert_final(answer.result(PATIENCE_S))
    desk.settled()


def test_a_persons_order_counts(desk, key):
    desk.providers.script(key, [STALLED])
    first = desk.ask(Call(key), "h1.narrow.test", agent=f"{key}-first")
    running_one = desk.ticket(f"{key}-first", "in flight")
    desk.attempted(key, 1)
    waiting = {}
    for name in ("early", "late", "last"):
        waiting[name] = desk.ask(Call(key), "h1.narrow.test", agent=f"{key}-{name}")
        desk.ticket(f"{key}-{name}", "queued")
    desk.tell(SetPriority(f"{key}-late", Priority.HIGH))
    desk.tell(MoveToFront(desk.ticket(f"{key}-last", "queued")))
    desk.tell(Cancel(running_one))
    assert_final(first.result(PATIENCE_S))
    assert [answer.result(PATIENCE_S).status_code for answer in waiting.values()] == [200] * 3
    events = desk.proxy.state()["events"]
    ids = [event.split("ticket_id='")[1][:10] for event in events if event.startswith("AttemptStarted ")][-3:]
    agents = {
        event.split("id='")[1][:10]: event.split("agent='")[1].split("'")[0]
        for event in events
        if event.startswith("Submitted ")
    }
    assert [agents[ticket_id] for ticket_id in ids] == [f"{key}-last", f"{key}-late", f"{key}-early"]
    desk.tell(SetPriority(f"{key}-late", None))
    desk.settled()


def test_the_command_line_says_what_was_done(desk, key):
    def hivemind(*arguments):
        command = [sys.executable, "-m", "hivemind_addon", *arguments, "-p", str(desk.proxy.port)]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)

    paused = hivemind("pause", "nobody.test")
    assert (paused.returncode, paused.stderr) == (0, "")
    assert "nobody.test (no pool yet): paused" in paused.stdout
    resumed = hivemind("resume", "nobody.test", "--json")
    assert json.loads(resumed.stdout)["done"]
    again = hivemind("resume", "nobody.test")
    assert (again.returncode, again.stdout) == (1, "")
    assert "nothing of nobody.test is paused" in again.stderr


# mitmweb ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mitmweb(providers, proxy_arguments, runtime_dir, tmp_path):
    settings = ("--no-web-open-browser", "--set", f"web_port={free_port()}", "--set", "web_password=secret")
    with (
        running(tmp_path, *proxy_arguments, *settings, executable=MITMDUMP.with_name("mitmweb")) as proxy,
        ThreadPoolExecutor(16) as threads,
    ):
        desk = Desk(proxy, providers, threads)
        port = desk.proxy.probe("option", name="web_port")
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=NO_TLS, timeout=PATIENCE_S
        ) as web:
            web.get("/", params={"token": "secret"}).raise_for_status()
            # Any will do that comes in both places; the page's own script brings it.
            web.headers["x-xsrftoken"] = token = "ab" * 16
            web.cookies.set("_mitmproxy_xsrf", token)
            yield desk, web


def flow_ids(web):
    """Flows that are not over, oldest first."""
    return [
        flow["id"]
        for flow in web.get("/flows").raise_for_status().json()
        if "response" not in flow or flow["intercepted"]
    ]


def test_mitmwebs_buttons_do_what_the_commands_do(mitmweb, key):
    desk, web = mitmweb
    call = Call(key)
    desk.providers.script(key, [STALLED], then=OK)
    running_one = desk.ask(call, "h1.narrow.test", agent="running")
    desk.ticket("running", "in flight")
    desk.attempted(key, 1)
    held = {}
    for name in ("aborted", "one", "two"):
        held[name] = desk.ask(call, "h1.narrow.test", agent=name)
        desk.ticket(name, "queued")
    ids = flow_ids(web)
    assert len(ids) == 4
    web.post(f"/flows/{ids[1]}/kill").raise_for_status()
    assert_final(held["aborted"].result(PATIENCE_S))
    assert desk.tickets("running", "in flight")
    web.post("/flows/resume").raise_for_status()  # "Resume All" breaks no limit
    assert desk.tickets("one", "queued")
    assert desk.tickets("two", "queued")
    assert desk.providers.attempts(key) == 1
    web.post(f"/flows/{ids[0]}/kill").raise_for_status()
    assert_final(running_one.result(PATIENCE_S))
    assert [held[name].result(PATIENCE_S).status_code for name in ("one", "two")] == [200, 200]
    desk.settled()
    assert desk.providers.attempts(key) == 3


def test_an_abort_ends_a_stream_that_runs_and_so_does_a_deletion(mitmweb, key):
    desk, web = mitmweb
    call = Call(key, stream=True)
    desk.providers.script(key, [], then=STALLED)
    for press in (lambda flow: web.post(f"/flows/{flow}/kill"), lambda flow: web.delete(f"/flows/{flow}")):
        known = {flow["id"] for flow in web.get("/flows").json()}
        with desk.proxy.client(key, timeout=PATIENCE_S) as http:
            response = http.send(call.request("https://h1.sim.test"), stream=True)
            pieces = response.iter_raw()
            next(pieces)
            (flow,) = {flow["id"] for flow in web.get("/flows").json()} - known
            press(flow).raise_for_status()
            assert b"a person cancelled" in b"".join(pieces)
        desk.settled()
    assert desk.providers.attempts(key) == 2
