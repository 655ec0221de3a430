"""The simulated provider over a WebSocket."""

import pytest

from hivemind_addon.kernel.values.ticket import Dimension
from hivemind_addon.sim.faults import ErrorStatus, StreamCut, StreamError
from hivemind_addon.sim.limits import Limit
from hivemind_addon.sim.provider import ProviderSettings
from lab.running_server import running_server
from tests.socket_client import Closed, SocketClient

SPEAKS = ProviderSettings(websocket_s=3600)


def test_turns_go_on_from_each_other_and_are_counted_as_plain_calls():
    with running_server(SPEAKS) as server, SocketClient(server.host, server.port) as client:
        first = client.ask("a" * 400)
        usage = first["response"]["usage"]
        second = client.ask("more", previous_response_id=first["response"]["id"])
        assert second["response"]["usage"]["input_tokens"] > usage["input_tokens"] + usage["output_tokens"]
        assert server.truth().completed == 2
        assert server.requests()[-1].method == "POST"


def test_a_warm_up_is_no_call_and_can_be_gone_on_from():
    with running_server(SPEAKS) as server, SocketClient(server.host, server.port) as client:
        warm = client.ask("a" * 400, generate=False)
        assert server.truth().attempts == 0
        last = client.ask("b", previous_response_id=warm["response"]["id"])
        assert last["response"]["usage"]["input_tokens"] > 100


def test_what_is_not_known_here_or_was_part_of_a_failure_is_not_found():
    with running_server(SPEAKS) as server, SocketClient(server.host, server.port) as client:
        first = client.ask()["response"]["id"]
        with SocketClient(server.host, server.port) as other:
            assert other.ask(previous_response_id=first)["error"]["code"] == "previous_response_not_found"
        server.script("k", [ErrorStatus(503, retry_after_s=7)])
        failed = client.ask(previous_response_id=first)
        assert (failed["status"], failed["headers"]["retry-after"]) == (503, "7")
        assert client.ask(previous_response_id=first)["status"] == 400
        assert client.ask()["type"] == "response.completed"


def test_limits_and_faults_are_the_ones_of_plain_calls():
    limits = ProviderSettings(websocket_s=3600, limits=(Limit(Dimension.REQUESTS, 1, 60),))
    with running_server(limits) as server, SocketClient(server.host, server.port) as client:
        assert client.ask()["type"] == "response.completed"
        refused = client.ask()
        assert (refused["status"], refused["error"]["code"]) == (429, "rate_limit_exceeded")
        assert float(refused["headers"]["retry-after"]) > 1
    with running_server(SPEAKS) as server:
        server.script("k", [StreamError(), StreamCut()])
        with SocketClient(server.host, server.port) as client:
            assert client.ask()["type"] == "response.failed"
            with pytest.raises((Closed, ConnectionError)):
                client.ask()


def test_lanes_and_the_end_of_a_connections_life():
    with running_server(SPEAKS) as server, SocketClient(server.host, server.port) as client:
        for lane in ("a", "b"):
            client.send(type="response.create", model="m", input="hi", stream_id=lane)
        ends = [client.answer()[-1]["stream_id"] for _ in range(2)]
        assert sorted(ends) == ["a", "b"]
    with (
        running_server(ProviderSettings(websocket_s=1e-9)) as server,
        SocketClient(server.host, server.port) as client,
    ):
        assert client.ask()["error"]["code"] == "websocket_connection_limit_reached"
        with pytest.raises(Closed):
            client.hear()
