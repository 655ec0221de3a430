"""Held and running flows at the end of a real process are in tests/e2e/test_stop.py."""

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import pytest
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons

from hivemind_addon.kernel.sliced_work import whole
from hivemind_addon.kernel.values.command import Cancel
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.proxy.api.report import VENDORS_OWN
from hivemind_addon.proxy.gate.proxy import end_on_hangup
from hivemind_addon.proxy.record.news import NOTICE
from tests.patience import PATIENCE_S
from tests.proxy.gate.playbook import make_context
from tests.proxy.gate.samples import make_flow, make_proxy
from tests.proxy.journal.samples import column


@pytest.fixture
async def proxy():
    return make_proxy()


class Control:
    is_open = True

    def close(self):
        self.is_open = False


@pytest.mark.parametrize("ignored", [False, True])
async def test_a_hangup_ends_as_sigterm_does_unless_nohup_said_otherwise(ignored):
    was = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        ended = asyncio.Event()
        end_on_hangup(ended.set)
        if ignored:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        else:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, was)


async def test_the_end_writes_what_is_left_and_closes_what_is_open(tmp_path):
    proxy = make_proxy()
    proxy.control = Control()
    journal = tmp_path / "journal.db"
    proxy.files.follow(dataclasses.replace(proxy.settings.current, journal=journal))
    await proxy.drain()
    assert column(journal, "run", "ended") != [None]
    assert not proxy.control.is_open


async def test_a_report_says_who_the_proxy_is_and_what_it_does(monkeypatch):
    proxy = make_proxy()
    exchange = proxy.make_exchange(make_flow())
    assert exchange.enter()
    with taddons.context() as context:
        context.options.update(confdir="~/of-mine")
        monkeypatch.setattr("hivemind_addon.proxy.gate.proxy.listens", lambda: [("127.0.0.1", 4711), ("::1", 4712)])
        report = whole(proxy.report_in_parts())
    assert (report.proxy.port, report.proxy.listens) == (4711, ("127.0.0.1:4711", "::1:4712"))
    assert report.proxy.confdir == str(Path("~/of-mine").expanduser())
    assert "api.anthropic.com" in report.proxy.hosts
    assert [pool.in_flight for pool in report.snapshot.pools] == [1]
    assert [session.live for session in report.stats.sessions] == [1]


async def test_every_ticket_of_a_client_ends_with_its_connection(proxy):
    flows = [make_flow() for _ in range(3)]
    for flow in flows[1:]:
        flow.client_conn = flows[0].client_conn
    exchanges = [proxy.make_exchange(flow) for flow in flows]
    for exchange in exchanges[:2]:
        assert exchange.enter()
    proxy.client_disconnected(flows[0].client_conn)
    assert all(exchange.over for exchange in exchanges)
    assert proxy.live == {}
    assert all(not pool.in_flight and not pool.queued for pool in proxy.driver.snapshot().pools)


async def test_drained_waits_for_the_last_ticket(proxy):
    await proxy.drained()
    flow = make_flow()
    proxy.make_exchange(flow)
    waiting = asyncio.ensure_future(proxy.drained())
    done, _ = await asyncio.wait([waiting], timeout=0)
    assert not done
    proxy.live[flow.id].finished()
    await waiting


async def test_a_replay_that_is_called_off_is_killed_for_it_has_no_stream_of_ours():
    proxy = make_proxy()
    flow = make_flow()
    flow.live = True
    exchange = proxy.make_exchange(flow)
    proxy.replays[flow.id] = exchange
    assert exchange.enter()
    proxy.driver.call_off = lambda reservation: proxy.end_attempt(reservation, lambda _: pytest.fail("no stream"))
    assert proxy.driver.command(Cancel(exchange.ticket.id)).done
    assert flow.error.msg == flow.error.KILLED_MESSAGE
    assert exchange.over
    assert proxy.driver.snapshot().pools[0].in_flight == 0


def told(proxy):
    proxy.driver.tick()
    return [event.what for event in proxy.heard if isinstance(event, OddityNoted)]


async def test_a_host_of_models_that_passes_by_is_told_once(proxy):
    context = make_context()
    context.client.proxy_mode = ProxyMode.parse("regular")
    for host in ("github.com", "ollama.com", "Ollama.com."):
        context.server.address = (host, 443)
        assert proxy.is_foreign(context, None)
    (what,) = told(proxy)
    assert what.startswith("calls to ollama.com pass unscheduled")
    assert proxy.unscheduled == {"ollama.com"}


async def test_servers_of_vendors_are_tunnelled_and_it_is_told_once_why(proxy, caplog):
    context = make_context()
    context.client.proxy_mode = ProxyMode.parse("regular")
    with caplog.at_level(NOTICE):
        for host in ("api2.cursor.sh", "API2.cursor.sh.", "server.codeium.com"):
            context.server.address = (host, 443)
            assert proxy.is_foreign(context, None)
    assert proxy.vendors == {"api2.cursor.sh", "server.codeium.com"}
    assert [record.getMessage() for record in caplog.records] == [
        f"hivemind: calls to {host} are tunnelled (first by a client at 127.0.0.1), {VENDORS_OWN}"
        for host in ("api2.cursor.sh", "server.codeium.com")
    ]
    assert not told(proxy)


async def test_a_websocket_that_is_refused_is_known_and_does_not_pass(proxy):
    flow = make_flow("http://localhost:11434/v1/responses", method="GET")
    flow.request.headers["upgrade"] = "websocket"
    flow.response = proxy.upgrade_refusal(flow)
    assert flow.response.status_code == 426
    proxy.pass_by(flow)
    assert proxy.refused_sockets == {"a client at 127.0.0.1": "localhost"}
    assert not proxy.sockets
    assert not told(proxy)


async def test_a_websocket_for_model_calls_that_passes_by_is_told_once_for_each_agent(proxy):
    for path in ("/v1/responses", "/v1/responses", "/v1/realtime"):
        flow = make_flow(f"https://api.x.ai{path}", method="GET")
        flow.request.headers["upgrade"] = "websocket"
        proxy.pass_by(flow)
    (what,) = told(proxy)
    assert what.startswith("a WebSocket of a client at 127.0.0.1 to api.x.ai passes unscheduled")
    assert list(proxy.sockets.values()) == ["api.x.ai"]


async def test_a_request_like_a_model_call_that_passes_by_is_told_once(proxy):
    for path in ("/v1beta/models/gemini-3:generateContent", "/v1beta/models/other:generateContent", "/v1/files"):
        proxy.pass_by(make_flow(f"https://llm.test{path}"))
    proxy.pass_by(make_flow("https://llm.test/v1/messages", method="GET"))
    (what,) = told(proxy)
    assert what.startswith("calls to llm.test/v1beta/models/gemini-3:generateContent pass unscheduled")
