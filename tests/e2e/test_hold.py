"""Requests that are held: in which order they go, what wakes them, and what is left of them when their client goes."""

import itertools
import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import httpx
import pytest

from hivemind_addon.api.ticket import Dimension
from hivemind_addon.lab.sim.limits import Limit, LimitKind
from hivemind_addon.lab.sim.provider import ProviderSettings
from hivemind_addon.lab.sim.server import running_server
from tests.e2e.origin import FIRST_PIECE, PLAIN, STREAMED, Origin, running_origin
from tests.e2e.proxy import MITMDUMP, NO_TLS, PATIENCE_S, Proxy, body, free_port, running
from tests.sim.clients import H2Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hold")]

_QUICK = "retry: {first_backoff_s: 0.02, max_backoff_s: 0.1}\nbreaker: {first_probe_s: 0.05, max_probe_s: 0.2}\n"
_numbers = itertools.count(1)


@dataclass
class House:
    """A proxy that lets one request at a time go to the origin (by its second port), and eight by its third."""

    proxy: Proxy
    origin: Origin
    threads: ThreadPoolExecutor

    @property
    def url(self):
        return f"http://127.0.0.1:{self.proxy.ports[1]}"

    def ask(self, name, *, path="/v1/messages", stream=False, headers=(), timeout=PATIENCE_S):
        """A request in a thread; its answer's future."""
        mine = {"x-api-key": "k", "content-type": "application/json", "x-test-id": name} | dict(headers)
        return self.threads.submit(
            httpx.post,
            self.url + path,
            content=body(stream=stream),
            headers=mine,
            timeout=timeout,
            trust_env=False,
            verify=NO_TLS,
        )

    def fill(self):
        """Use the one slot up; what has it."""
        name = f"filler-{next(_numbers)}"
        answer = self.ask(name, stream=True)
        self.origin.wait_for(lambda _: name in self.names, "the filler's arrival")
        return answer, self.request(name)

    def hold(self, *names, **more):
        """Requests that are held, in this order."""
        answers = []
        for name in names:
            before = queued(self.proxy.state())
            answers.append(self.ask(name, **more))
            self.proxy.wait_for(lambda state, before=before: queued(state) == before + 1, f"{name} held")
        return answers

    @property
    def names(self):
        return [request.headers["x-test-id"] for request in self.origin.arrived]

    def request(self, name):
        return next(request for request in self.origin.arrived if request.headers["x-test-id"] == name)

    def let_go(self, name):
        self.origin.wait_for(lambda _: name in self.names, f"{name}'s arrival")
        self.request(name).go.set()

    def assert_idle(self):
        """No ticket, stream or slot is left, and a new request goes at once."""
        state = self.proxy.wait_for(is_idle, "the return of every slot")
        assert state["guard_trips"] == 0
        name = f"after-{next(_numbers)}"
        after = self.ask(name)
        self.let_go(name)
        assert after.result(PATIENCE_S).content == PLAIN
        self.proxy.wait_for(is_idle, "the return of the last slot")


def queued(state):
    return sum(pool["queued"] for pool in state["snapshot"]["pools"])


def in_flight(state):
    return sum(pool["in_flight"] for pool in state["snapshot"]["pools"])


def is_idle(state):
    tickets = any(pool["tickets"] for pool in state["snapshot"]["pools"])
    return not (tickets or queued(state) or in_flight(state) or state["live"] or state["layer_streams"] > 1)


def is_idle_but_one_stream(state):
    return not (queued(state) or in_flight(state) or state["live"])


@pytest.fixture(scope="module")
def mute():
    """Takes TCP connections and never says a word: a TLS handshake with it does not end."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def stand(tmp_path_factory, mute):
    """What the module's tests share."""
    folder = tmp_path_factory.mktemp("hold")
    (folder / "profiles").mkdir()
    with running_origin() as one, running_origin() as eight:
        texts = {
            "one": f"extends: anthropic\nhosts: ['127.0.0.1:{one.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n{_QUICK}",
            "eight": f"extends: anthropic\nhosts: ['127.0.0.1:{eight.port}']\nconcurrency: {{initial: 8, maximum: 8}}\n{_QUICK}",
            "mute": f"extends: anthropic\nhosts: ['127.0.0.1:{mute}']\n{_QUICK}",
        }
        for name, text in texts.items():
            (folder / "profiles" / f"{name}.yaml").write_text(text)
        modes = ("regular", f"reverse:{one.url}", f"reverse:{eight.url}", f"reverse:https://127.0.0.1:{mute}")
        settings = ("--set", f"hivemind_profiles={folder / 'profiles'}")
        with running(folder / "conf", *settings, modes=modes) as proxy, ThreadPoolExecutor(40) as threads:
            try:
                yield House(proxy, one, threads), House(proxy, eight, threads)
            finally:
                one.open()
                eight.open()


@pytest.fixture
def house(stand):
    one, _ = stand
    one.origin.arrived.clear()
    return one


# Order ------------------------------------------------------------------------------------------------------------------


def test_held_requests_go_in_the_order_of_their_arrival(house):
    _, filler = house.fill()
    names = [f"order-{number}" for number in range(6)]
    answers = house.hold(*names)
    filler.go.set()
    for name, answer in zip(names, answers, strict=True):
        house.let_go(name)
        assert answer.result(PATIENCE_S).content == PLAIN
    assert house.names[1:] == names
    house.assert_idle()


def test_a_used_up_meter_holds_until_it_is_refilled_and_nobody_is_refused(tmp_path):
    settings = ProviderSettings(limits=(Limit(Dimension.REQUESTS, 3, window_s=1, kind=LimitKind.WINDOW),))
    with running_server(settings) as server, running(tmp_path, modes=("regular", f"reverse:{server.url}")) as proxy:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{proxy.ports[1]}", trust_env=False, verify=NO_TLS, timeout=PATIENCE_S
        ) as client:
            statuses = []

            def one_was_held(_):
                """On a slow machine eight may come no faster than they are let through: then eight more."""
                for _ in range(8):
                    answer = client.post("/v1/messages", content=body(), headers={"x-api-key": "k"})
                    statuses.append(answer.status_code)
                return any(event.startswith("Held") and "rate limit" in event for event in proxy.state()["events"])

            proxy.wait_for(one_was_held, "a hold")
        assert set(statuses) == {200}
        proxy.wait_for(is_idle, "the return of every slot")
        assert server.truth().completed == len(statuses)
        assert server.truth().refused <= 1  # before the first answer nothing is known


def test_resume_moves_a_held_request_to_the_front_and_not_past_the_limit(house):
    _, filler = house.fill()
    first, second = house.hold("patient"), house.hold("pressed", headers={"proxy-authorization": "Basic cHJlc3NlZDp4"})
    assert house.proxy.probe("resume", agent="pressed") == 1
    state = house.proxy.wait_for(lambda state: position(state, "pressed") == 1, "the move to the front")
    assert in_flight(state) == 1
    assert "pressed" not in house.names
    filler.go.set()
    house.let_go("pressed")
    assert second[0].result(PATIENCE_S).content == PLAIN
    house.let_go("patient")
    assert first[0].result(PATIENCE_S).content == PLAIN
    house.assert_idle()


def position(state, agent):
    tickets = [ticket for pool in state["snapshot"]["pools"] for ticket in pool["tickets"]]
    return next(ticket["position"] for ticket in tickets if ticket["ticket"]["agent"] == agent)


def test_abort_ends_a_held_request_only(house):
    _, filler = house.fill()
    (aborted,) = house.hold("aborted", headers={"proxy-authorization": "Basic YWJvcnRlZDp4"})
    (other,) = house.hold("other")
    assert house.proxy.probe("abort", agent="aborted") == 1
    answer = aborted.result(PATIENCE_S)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
    assert "a person cancelled" in answer.json()["error"]["message"]
    assert queued(house.proxy.state()) == 1
    filler.go.set()
    house.let_go("other")
    assert other.result(PATIENCE_S).content == PLAIN
    assert "aborted" not in house.names
    house.assert_idle()


def test_a_request_that_a_person_intercepted_in_mitmweb_costs_no_slot(tmp_path):
    with running_origin() as origin:
        (tmp_path / "profiles").mkdir()
        (tmp_path / "profiles" / "one.yaml").write_text(
            f"extends: anthropic\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
        )
        settings = (
            "--set",
            f"hivemind_profiles={tmp_path / 'profiles'}",
            "--set",
            "intercept=~hq x-test-stop",
            "--no-web-open-browser",
            "--set",
            f"web_port={free_port()}",
        )
        with (
            running(
                tmp_path / "conf",
                *settings,
                modes=("regular", f"reverse:{origin.url}"),
                executable=MITMDUMP.with_name("mitmweb"),
            ) as proxy,
            ThreadPoolExecutor(4) as threads,
        ):
            house = House(proxy, origin, threads)
            stopped = house.ask("stopped", headers={"x-test-stop": "1"})
            proxy.wait_for(
                lambda _: "stopped" in proxy.probe("known") and proxy.probe("flow", name="stopped")["intercepted"],
                "the interception",
            )
            state = proxy.state()
            assert (in_flight(state), queued(state), state["live"]) == (0, 0, 0)
            passing = house.ask("passing")
            origin.wait_for_calls(1)
            (held,) = house.hold("held")
            assert proxy.probe("flow", name="held")["intercepted"]  # mitmproxy's own look of it
            house.let_go("passing")
            house.let_go("held")
            assert [passing.result(PATIENCE_S).content, held.result(PATIENCE_S).content] == [PLAIN] * 2
            proxy.probe("release", name="stopped")
            house.let_go("stopped")
            proxy.wait_for(
                lambda _: proxy.probe("flow", name="stopped")["status"], "the answer, which is intercepted too"
            )
            proxy.wait_for(is_idle_but_one_stream, "the return of its slot")
            proxy.probe("release", name="stopped")
            assert stopped.result(PATIENCE_S).content == PLAIN
            house.assert_idle()


# The client's deadline ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "error"),
    [("/v1/messages", 429, "rate_limit_error"), ("/v1/chat/completions", 503, "server_is_overloaded")],
)
def test_before_its_client_gives_up_a_held_request_gets_a_refusal_that_makes_it_come_back(
    tmp_path, path, status, error
):
    with running_origin() as origin:
        (tmp_path / "profiles").mkdir()
        name = "anthropic" if path == "/v1/messages" else "openai-compatible"
        (tmp_path / "profiles" / "mine.yaml").write_text(
            f"extends: {name}\nhosts: ['127.0.0.1:{origin.port}']\nconcurrency: {{initial: 1, maximum: 1}}\n"
        )
        settings = ("--set", f"hivemind_profiles={tmp_path / 'profiles'}")
        with (
            running(tmp_path / "conf", *settings, modes=("regular", f"reverse:{origin.url}")) as proxy,
            ThreadPoolExecutor(2) as threads,
        ):
            house = House(proxy, origin, threads)
            filler = house.ask("filler", path=path)
            origin.wait_for_calls(1)
            for stream in (False, True):
                impatient = {"x-stainless-timeout": "1.5"}
                refused = house.ask("refused", path=path, stream=stream, headers=impatient).result(PATIENCE_S)
                assert refused.status_code == status
                assert int(refused.headers["retry-after"]) >= 1
                assert refused.headers["x-should-retry"] == "true"
                assert refused.json()["error"]["type"] == error
                assert ("type" in refused.json()) == (name == "anthropic")
            assert len(origin.arrived) == 1
            origin.open()
            assert filler.result(PATIENCE_S).status_code == 200
            assert proxy.wait_for(is_idle, "the return of every slot")["guard_trips"] == 0


@pytest.mark.parametrize("announced", ["0", "-3", "soon", "1e9", "nan", ""])
def test_an_absurd_announcement_is_ignored(house, announced):
    answer = house.ask("absurd", headers={"x-stainless-timeout": announced})
    house.let_go("absurd")
    assert answer.result(PATIENCE_S).content == PLAIN
    house.assert_idle()


# Clients that go ------------------------------------------------------------------------------------------------------------


def raw_call(name, *, stream=False):
    content = body(stream=stream).encode()
    return (
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nx-test-id: {name}\r\ncontent-length: {len(content)}\r\n\r\n".encode()
        + content
    )


def h1_client(house, name, *, port=None, **more):
    connection = socket.create_connection(("127.0.0.1", port or house.proxy.ports[1]), timeout=PATIENCE_S)
    connection.sendall(raw_call(name, **more))
    return connection


def h2_client(house, port=None):
    context = ssl.create_default_context(cafile=str(house.proxy.ca))
    context.check_hostname = False
    return H2Client(port or house.proxy.ports[1], context)


def h2_call(client, name, *, stream=False):
    return client.request("POST", "/v1/messages", key="k", body=body(stream=stream).encode(), x_test_id=name)


def test_a_close_is_seen_at_once_while_held(house):
    _, filler = house.fill()
    with closing(h1_client(house, "leaver")):
        house.proxy.wait_for(lambda state: queued(state) == 1, "the hold")
    house.proxy.wait_for(lambda state: queued(state) == 0 and state["live"] == 1, "the end of the ticket")
    filler.go.set()
    house.assert_idle()
    assert "leaver" not in house.names


def test_an_rst_stream_is_seen_at_once_while_held_and_the_connection_goes_on(house):
    _, filler = house.fill()
    with closing(h2_client(house)) as client:
        leaver, stayer = h2_call(client, "leaver"), h2_call(client, "stayer")
        house.proxy.wait_for(lambda state: queued(state) == 2, "the hold of both")
        client.h2.reset_stream(leaver, 8)
        client.send()
        house.proxy.wait_for(lambda state: queued(state) == 1 and state["live"] == 2, "the end of the one ticket")
        filler.go.set()
        house.let_go("stayer")
        assert client.finish(stayer).body == PLAIN
    house.assert_idle()
    assert "leaver" not in house.names


@pytest.mark.parametrize("version", ["h1", "h2"])
def test_a_client_that_goes_while_the_upstream_connection_opens_leaves_no_ticket(house, version):
    port = house.proxy.ports[3]
    client = h1_client(house, "leaver", port=port) if version == "h1" else h2_client(house, port)
    with closing(client):
        if version == "h2":
            leaver = h2_call(client, "leaver")
        house.proxy.wait_for(lambda state: in_flight(state) == 1, "the admission")
        if version == "h2":
            client.h2.reset_stream(leaver, 8)
            client.send()
            house.proxy.wait_for(lambda state: in_flight(state) == 0 and state["live"] == 0, "the return of the slot")
    house.proxy.wait_for(lambda state: in_flight(state) == 0 and state["live"] == 0, "the return of the slot")
    assert house.proxy.state()["guard_trips"] == 0


@pytest.mark.parametrize("version", ["h1", "h2"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_while_its_answer_is_awaited_or_streams_gives_its_slot_back(house, version, stream):
    name = f"leaver-{version}-{stream}"
    if version == "h1":
        client = h1_client(house, name, stream=stream)
    else:
        client = h2_client(house)
        id_ = h2_call(client, name, stream=stream)
    with closing(client):
        house.origin.wait_for(lambda _: name in house.names and house.request(name).complete.is_set(), "its arrival")
        if stream and version == "h1":
            got = b""
            while b"one " not in got:
                got += client.recv(4096)
        elif stream:
            while FIRST_PIECE not in client.heard[id_].body:
                client.step()
        if version == "h2":
            client.h2.reset_stream(id_, 8)
            client.send()
            house.proxy.wait_for(lambda state: in_flight(state) == 0 and state["live"] == 0, "the return of the slot")
    house.assert_idle()
    assert not house.request(name).go.is_set()


def test_an_h2_client_that_closes_with_eight_streams_leaves_no_slot_behind(stand):
    _, house = stand
    house.origin.arrived.clear()
    port = house.proxy.ports[2]
    for stream in (False, True):
        with closing(h2_client(house, port)) as client:
            for number in range(8):
                h2_call(client, f"eight-{number}", stream=stream)
            house.proxy.wait_for(lambda state: in_flight(state) == 8, "the admission of all")
        state = house.proxy.wait_for(is_idle, "the return of every slot")
        assert state["guard_trips"] == 0
    with closing(h2_client(house, port)) as client:
        ids = [h2_call(client, f"again-{number}") for number in range(4)]
        for number in range(4):
            house.let_go(f"again-{number}")
        assert [client.finish(id_).body for id_ in ids] == [PLAIN] * 4
    house.proxy.wait_for(is_idle, "the return of every slot")


def test_twenty_clients_that_vanish_leave_nothing_behind(house):
    answer, filler = house.fill()
    clients = [h1_client(house, f"vanish-{number}", stream=number % 2 == 0) for number in range(20)]
    house.proxy.wait_for(lambda state: queued(state) == 20, "the hold of all")
    for client in clients:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST, not FIN
        client.close()
    house.proxy.wait_for(lambda state: queued(state) == 0 and state["live"] == 1, "the end of all")
    filler.go.set()
    assert answer.result(PATIENCE_S).content == STREAMED
    house.assert_idle()
    assert not [name for name in house.names if name.startswith("vanish")]


def test_every_ticket_ends_exactly_once(house):
    """The books of all tests before: as many ends as submissions, one for each id."""
    house.assert_idle()
    state = house.proxy.wait_for(is_idle, "the return of every slot")
    counters = state["snapshot"]["counters"]
    assert counters["tickets"] == sum(counters[end] for end in ("delivered", "gave_up", "shed", "cancelled"))
    ended = [event.partition("ticket_id='")[2][:10] for event in state["events"] if event.startswith("TicketEnded")]
    assert ended
    assert len(ended) == len(set(ended)), json.dumps(state["events"], indent=1)
