"""Requests that are held: in which order they go, what is left of them when their client goes, and replays of them."""

import json
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.limits import Limit, LimitKind
from hivemind_addon.sim.provider import ProviderSettings
from lab.running_server import running_server
from tests.e2e.house import House, running_house
from tests.e2e.origin import FIRST_PIECE, PLAIN, STREAMED, running_origin
from tests.e2e.proxy import (
    MITMDUMP,
    PATIENCE_S,
    QUICK,
    body,
    for_host,
    free_port,
    in_flight,
    is_idle,
    profiles,
    queued,
    running,
)
from tests.sim.clients import H2Client

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("hold")]


@pytest.fixture(scope="module")
def mute():
    """Takes TCP connections and never says a word: a TLS handshake with it does not end."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def stand(tmp_path_factory, mute):
    """What the module's tests share: one proxy, and an origin with one slot (its second port) and one with eight."""
    folder = tmp_path_factory.mktemp("hold")
    with running_origin() as one, running_origin() as eight:
        settings = profiles(
            folder,
            one=for_host(one.port, slots=1, more=QUICK),
            eight=for_host(eight.port, slots=8, more=QUICK),
            mute=for_host(mute, more=QUICK),
        )
        modes = ("regular", f"reverse:{one.url}", f"reverse:{eight.url}", f"reverse:https://127.0.0.1:{mute}")
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
        statuses = []

        def one_was_held(_):
            """On a slow machine five may come no faster than they are let through: then five more."""
            statuses.extend(proxy.post().status_code for _ in range(5))
            return any(event.startswith("Held") and "rate limit" in event for event in proxy.state()["events"])

        proxy.wait_for(one_was_held, "a hold")
        assert set(statuses) == {200}
        proxy.settled()
        assert server.truth().completed == len(statuses)
        assert server.truth().refused <= 1  # before the first answer nothing is known


def test_a_request_that_a_person_intercepted_in_mitmweb_costs_no_slot(tmp_path):
    web = ("--set", "intercept=~hq x-test-stop", "--no-web-open-browser", "--set", f"web_port={free_port()}")
    with running_house(tmp_path, *web, executable=MITMDUMP.with_name("mitmweb")) as house:
        proxy = house.proxy
        stopped = house.ask("stopped", headers={"x-test-stop": "1"})
        proxy.wait_for(
            lambda _: "stopped" in proxy.probe("known") and proxy.probe("flow", name="stopped")["intercepted"],
            "the interception",
        )
        state = proxy.state()
        assert (in_flight(state), queued(state), state["live"]) == (0, 0, 0)
        passing = house.ask("passing")
        house.origin.wait_for_calls(1)
        (held,) = house.hold("held")
        assert proxy.probe("flow", name="held")["intercepted"]  # mitmproxy's own look of it
        house.let_go("passing")
        house.let_go("held")
        assert [passing.result(PATIENCE_S).content, held.result(PATIENCE_S).content] == [PLAIN] * 2
        proxy.probe("release", name="stopped")
        house.let_go("stopped")
        proxy.wait_for(lambda _: proxy.probe("flow", name="stopped")["status"], "the answer, which is intercepted too")
        proxy.wait_for(lambda state: not (in_flight(state) or state["live"]), "the return of its slot")
        proxy.probe("release", name="stopped")
        assert stopped.result(PATIENCE_S).content == PLAIN
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
        house.proxy.settled()
    with closing(h2_client(house, port)) as client:
        ids = [h2_call(client, f"again-{number}") for number in range(4)]
        for number in range(4):
            house.let_go(f"again-{number}")
        assert [client.finish(id_).body for id_ in ids] == [PLAIN] * 4
    house.proxy.settled()


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
    state = house.proxy.settled()
    counters = state["snapshot"]["counters"]
    assert counters["tickets"] == sum(counters[end] for end in ("delivered", "gave_up", "shed", "cancelled"))
    ended = [event.partition("ticket_id='")[2][:10] for event in state["events"] if event.startswith("TicketEnded")]
    assert ended
    assert len(ended) == len(set(ended)), json.dumps(state["events"], indent=1)


# Replays: a flow that was admitted once is held anew --------------------------------------------------------------------


def test_a_replayed_flow_is_held_while_the_slot_is_used_up_and_settles_also_without_a_provider(tmp_path):
    with running_house(tmp_path) as house:
        proxy = house.proxy
        first = house.ask("again", stream=True)
        house.let_go("again")
        assert first.result(PATIENCE_S).content == STREAMED
        proxy.settled()

        filler, filling = house.fill()
        proxy.probe("replay", name="again")
        state = proxy.wait_for(
            lambda state: (in_flight(state), queued(state), state["live"]) == (1, 1, 2), "the hold of the replay"
        )
        assert len(house.origin.arrived) == 2
        assert state["snapshot"]["counters"]["tickets"] == 3

        filling.go.set()
        assert filler.result(PATIENCE_S).content == STREAMED
        house.origin.wait_for_calls(3)
        replayed = house.origin.arrived[2]
        assert replayed.headers["x-test-id"] == "again"
        assert replayed.complete.wait(PATIENCE_S)
        assert replayed.body == house.origin.arrived[0].body
        assert in_flight(proxy.state()) == 1
        replayed.go.set()
        state = proxy.settled()
        assert proxy.probe("flow", name="again")["content"] == STREAMED.decode()
        assert state["snapshot"]["counters"]["delivered"] == 3

        assert proxy.probe("set", option=f"hivemind_redirect=127.0.0.1=127.0.0.1:{free_port()}") == "ok"
        proxy.probe("replay", name="again")
        proxy.wait_for(
            lambda state: state["snapshot"]["counters"]["tickets"] == 4 and is_idle(state), "the end of the replay"
        )
        assert proxy.probe("set", option="hivemind_redirect") == "ok"
        house.assert_idle()


def test_flows_from_a_file_are_scheduled_like_new_ones(tmp_path):
    file = tmp_path / "flows"
    with running_origin() as origin:
        origin.open()
        settings = profiles(tmp_path, one=for_host(origin.port, slots=1))
        modes = ("regular", f"reverse:{origin.url}")
        with running(tmp_path / "conf", *settings, "-w", str(file), modes=modes) as proxy:
            for stream in (False, True, False):
                assert proxy.post(content=body(stream=stream)).status_code == 200
            assert proxy.stop() == 0
        with running(tmp_path / "conf", *settings, "-C", str(file), "--set", "keepserving=true", modes=modes) as proxy:
            proxy.wait_for(lambda state: state["snapshot"]["counters"]["delivered"] == 3, "the replay of all")
            assert proxy.settled()["snapshot"]["counters"]["tickets"] == 3
        bodies = [bytes(request.body) for request in origin.arrived if request.path == "/v1/messages"]
    assert bodies[:3] == bodies[3:]
