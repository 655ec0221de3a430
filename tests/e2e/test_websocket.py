"""Turns of WebSockets through a real mitmdump, before the simulated provider."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from hivemind_addon.kernel.values.ticket import REQUEST_HEADER, Dimension
from hivemind_addon.plugins.contexts.store import ContextStore
from hivemind_addon.sim.faults import ErrorStatus, Hangup, NoHead, StreamCut, StreamError
from hivemind_addon.sim.limits import Limit
from hivemind_addon.sim.provider import ProviderSettings
from lab.running_server import running_server
from tests.e2e.proxy import PATIENCE_S, QUICK, for_host, in_flight, options, profiles, queued, running
from tests.socket_client import Closed, Refused, SocketClient, create

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("websocket")]

SPEAKS = ProviderSettings(websocket_s=3600, chunks=3)
TURNS = f"websocket: turns\nkeep_alive_s: 0.05\n{QUICK}"


class Stand:
    """A proxy before a provider."""

    def __init__(self, proxy, server, contexts):
        self.proxy, self.server, self.contexts = proxy, server, contexts

    def client(self, key="k", **more):
        return SocketClient("127.0.0.1", self.server.port, key=key, proxy=self.proxy.port, **more)

    def tickets(self):
        return self.proxy.state()["snapshot"]["counters"]["tickets"]


@pytest.fixture(scope="module")
def stand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("websocket")
    with running_server(SPEAKS) as server:
        mine = for_host(server.port, extends="openai", slots=1, more=TURNS)
        kept = options(journal=folder / "journal.db", contexts="end")
        with running(folder / "conf", *profiles(folder, mine=mine), *kept) as proxy:
            yield Stand(proxy, server, ContextStore(folder / "contexts"))
            assert "Traceback" not in proxy.log, proxy.log
            proxy.settled()


def test_each_turn_of_a_connection_is_a_ticket(stand):
    before = stand.tickets()
    with stand.client("k1") as client:
        assert client.ask(generate=False)["type"] == "response.completed"
        first = client.ask("a" * 100_000)
        second = client.ask("more", previous_response_id=first["response"]["id"])
        assert second["type"] == "response.completed"
        client.ping()
    assert stand.tickets() == before + 2
    state = stand.proxy.settled()
    assert sum("TicketEnded" in event and "end='delivered'" in event for event in state["events"]) >= 2
    assert stand.server.truth().completed >= 2


def test_a_held_turn_hears_of_it_and_goes_when_the_other_has_ended(stand):
    slow = [(b"x-sim-latency-ms", b"700")]
    with stand.client("k2", headers=slow) as one, stand.client("k2", user="agent-2") as two:
        one.send(**create())
        stand.proxy.wait_for(lambda state: in_flight(state) == 1, "the first")
        two.send(**create("other"))
        stand.proxy.wait_for(lambda state: queued(state) == 1, "the second")
        two.ping()
        assert one.answer()[-1]["type"] == two.answer()[-1]["type"] == "response.completed"
        assert {"type": "hivemind.held"} in two.frames
    stand.proxy.settled()


def test_an_unchained_turn_that_fails_is_sent_again_on_the_same_connection(stand):
    faults = [
        ErrorStatus(429, retry_after_s=0.01),
        ErrorStatus(503, error="server_is_overloaded"),
        StreamError(at_event=1),
        ErrorStatus(500),
    ]
    stand.server.script("k3", faults)
    with stand.client("k3") as client:
        assert [frame["type"] for frame in client.frames] == []
        assert client.ask()["type"] == "response.completed"
        assert {frame["type"] for frame in client.frames}.isdisjoint({"error", "response.failed"})
        assert client.ask("again")["type"] == "response.completed"
    stand.proxy.settled()


def test_codexs_first_turn_is_sent_again_with_the_warm_up_that_it_goes_on_from(stand):
    stand.server.script("k7", [ErrorStatus(503, error="server_is_overloaded"), ErrorStatus(429, retry_after_s=0.01)])
    with stand.client("k7") as client:
        warm = client.ask("all", generate=False)["response"]["id"]
        del client.frames[:]
        first = client.ask("hello", previous_response_id=warm)
        assert first["type"] == "response.completed"
        assert {frame["type"] for frame in client.frames}.isdisjoint({"error", "response.failed"})
        assert client.ask("more", previous_response_id=first["response"]["id"])["type"] == "response.completed"
    stand.proxy.settled()

    def kept(_):
        """Who said what in both turns, put together."""
        bodies = [json.loads(bytes(stand.contexts.read(head.id).body)) for head in stand.contexts.heads()]
        said = [[(item["role"], item["content"]) for item in body["input"] if "role" in item] for body in bodies]
        return [one for one in said if ("user", "all") in one and len(one) == 4]

    stand.proxy.wait_for(kept, "both turns, put together")
    ((*_, hello, answer, more),) = kept(None)
    assert (hello, answer[0], more) == (("user", "hello"), "assistant", ("user", "more"))


def test_a_chained_turn_that_fails_is_told_to_come_back_and_is_whole_then(stand):
    with stand.client("k4") as client:
        first = client.ask()["response"]["id"]
        stand.server.script("k4", [ErrorStatus(503, error="server_is_overloaded", retry_after_s=9)])
        failed = client.ask("more", previous_response_id=first)
        assert (failed["status"], failed["error"]["code"]) == (429, "rate_limit_exceeded")
        assert set(failed["headers"]) == {"retry-after", REQUEST_HEADER}
        assert failed["headers"]["retry-after"] == "1"
    with stand.client("k4") as client:
        assert client.ask("hello, more")["type"] == "response.completed"
    stand.proxy.settled()


def test_a_cut_reaches_the_client_and_a_client_that_goes_frees_its_slot(stand):
    for fault in (NoHead(Hangup.CLOSE), NoHead(Hangup.RESET), StreamCut()):
        stand.server.script("k5", [fault])
        with stand.client("k5") as client, pytest.raises((Closed, ConnectionError)):
            client.ask()
        stand.proxy.settled()
    for leave in ("close", "reset"):
        client = stand.client("k6", headers=[(b"x-sim-latency-ms", b"60000")])
        client.send(**create())
        stand.proxy.wait_for(lambda state: in_flight(state) == 1, "the turn")
        held = stand.client("k6")
        held.send(**create("held"))
        stand.proxy.wait_for(lambda state: queued(state) == 1, "another")
        getattr(held, leave)()
        stand.proxy.wait_for(lambda state: queued(state) == 0, "its end")
        getattr(client, leave)()
        stand.proxy.settled()
    stand.proxy.wait_for(lambda _: stand.server.truth().in_flight == 0, "the provider's hearing of it")


def test_a_fleet_of_connections_keeps_a_strict_limit(tmp_path):
    strict = ProviderSettings(websocket_s=3600, limits=(Limit(Dimension.REQUESTS, 10, 1),), chunks=3)
    with running_server(strict) as server:
        mine = for_host(server.port, extends="openai", more=TURNS)
        with running(tmp_path / "conf", *profiles(tmp_path, mine=mine)) as proxy:

            def session(number):
                ends = []
                before = {}
                client = SocketClient("127.0.0.1", server.port, key="k", proxy=proxy.port, user=f"agent-{number}")
                while len(ends) < 3:
                    last = client.ask(f"turn {len(ends)} of {number}", **before)
                    if last["type"] == "response.completed":
                        ends.append(last["response"]["id"])
                        before = {"previous_response_id": ends[-1]}
                    else:
                        assert (last["status"], last["error"]["code"]) == (429, "rate_limit_exceeded")
                        client.close()
                        client = SocketClient(
                            "127.0.0.1", server.port, key="k", proxy=proxy.port, user=f"agent-{number}"
                        )
                        before = {}
                client.close()
                return len(ends)

            with ThreadPoolExecutor(6) as threads:
                assert list(threads.map(session, range(6))) == [3] * 6
            proxy.settled()
            truth = server.truth()
            assert truth.completed == 18


def test_the_proxys_end_answers_who_is_held_and_lets_end_who_runs(tmp_path):
    with running_server(SPEAKS) as server:
        mine = for_host(server.port, extends="openai", slots=1, more=TURNS)
        with running(tmp_path / "conf", *profiles(tmp_path, mine=mine)) as proxy:
            stand = Stand(proxy, server, None)
            one, two = stand.client(headers=[(b"x-sim-latency-ms", b"500")]), stand.client()
            one.send(**create())
            proxy.wait_for(lambda state: in_flight(state) == 1, "the first")
            two.send(**create("other"))
            proxy.wait_for(lambda state: queued(state) == 1, "the second")
            with ThreadPoolExecutor(1) as thread:
                stopped = thread.submit(proxy.stop)
                frame = two.answer()[-1]
                assert (frame["status"], "stopping" in frame["error"]["message"]) == (429, True)
                assert one.answer()[-1]["type"] == "response.completed"
                assert stopped.result(PATIENCE_S) == 0


def test_a_connection_that_has_lived_its_hour_ends_for_the_client_too(tmp_path):
    with running_server(ProviderSettings(websocket_s=1e-9)) as server:
        mine = for_host(server.port, extends="openai", more=TURNS)
        with running(tmp_path / "conf", *profiles(tmp_path, mine=mine)) as proxy:
            client = Stand(proxy, server, None).client()
            last = client.ask()
            assert (last["status"], last["error"]["code"]) == (400, "websocket_connection_limit_reached")
            with pytest.raises(Closed):
                client.hear()
            proxy.settled()


def test_what_a_profile_says_of_websockets(tmp_path):
    with running_server(SPEAKS) as server:
        texts = {
            use: for_host(server.port, extends="openai", more=f"websocket: {use}\n") for use in ("refuse", "tunnel")
        }
        for use, text in texts.items():
            folder = tmp_path / use
            with running(folder / "conf", *profiles(folder, mine=text)) as proxy:
                if use == "refuse":
                    with pytest.raises(Refused, match="426"):
                        SocketClient("127.0.0.1", server.port, proxy=proxy.port)
                    continue
                with SocketClient("127.0.0.1", server.port, proxy=proxy.port) as client:
                    assert client.ask()["type"] == "response.completed"
                assert proxy.state()["snapshot"]["counters"]["tickets"] == 0
