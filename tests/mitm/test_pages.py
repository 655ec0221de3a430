"""Who gets a page, and what making it costs; the way through a real proxy is in tests/e2e/test_pages.py."""

import logging

import msgspec
import pytest
from mitmproxy import http
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons, tflow

from hivemind_addon.compose import make_runtime
from hivemind_addon.mitm.pages import Pages
from hivemind_addon.observe.report import ProxyView, Report
from tests.conftest import FakeClock


class House:
    """Pages before a report that counts how often it is made, takes its time, and may fail."""

    def __init__(self):
        self.runtime = make_runtime()
        self.runtime.driver.clock = self.clock = FakeClock(100.0, 1_000_000)
        self.made = 0
        self.takes_s = 0.0
        self.fails = False
        self.stopping = False
        self.pages = Pages(
            report=self._report,
            metrics=self.runtime.metrics,
            driver=self.runtime.driver,
            guard=self.runtime.guard,
            is_stopping=lambda: self.stopping,
        )

    def _report(self):
        if self.fails:
            raise RuntimeError("injected")
        self.made += 1
        self.clock.now += self.takes_s
        view = ProxyView(pid=1, port=8080, listens=(), confdir="", hosts=())
        return Report(version=1, proxy=view, snapshot=self.runtime.driver.snapshot())

    def ask(
        self, path="/report.json", *, peer="127.0.0.1", host="127.0.0.1:8080", mode="regular", to=None, method="GET"
    ):
        client = tflow.tclient_conn()
        client.peername, client.sockname, client.proxy_mode = (peer, 50000), ("127.0.0.1", 8080), ProxyMode.parse(mode)
        request = http.Request.make(method, f"http://127.0.0.1{path}")
        request.host, request.port = "", 0  # origin form, as mitmproxy's parser leaves it
        request.headers["host"] = host
        return self.pages.answer(request, client, to)


@pytest.fixture
async def house():
    with taddons.context():
        yield House()


async def test_many_readers_share_what_was_made_within_a_second(house):
    for _ in range(50):
        assert house.ask().status_code == 200
    assert house.made == 1
    house.clock.now += 1.01
    house.ask()
    assert house.made == 2


async def test_what_takes_long_is_made_less_often(house):
    house.takes_s = 0.2
    house.ask()
    house.clock.now += 3.9
    house.ask()
    assert house.made == 1
    house.clock.now += 0.2
    house.ask()
    assert house.made == 2


@pytest.mark.parametrize("peer", ["10.0.0.9", "192.168.1.4", "2001:db8::1"])
async def test_clients_from_elsewhere_are_refused(house, peer):
    assert house.ask(peer=peer).status_code == 403
    assert house.ask("/health", peer=peer).status_code == 403


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
async def test_clients_of_this_machine_are_served(house, peer):
    assert house.ask(peer=peer).status_code == 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST.:8080", "[::1]:8080", "hivemind.internal"]
)
async def test_its_own_names_are_served(house, host):
    assert house.ask(host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8081", "127.0.0.1", "rebound.test:8080", "hivemind.internal.evil.test", "api.anthropic.com", ":", "["],
)
async def test_another_name_is_somebody_elses(house, host):
    assert house.ask(host=host) is None


async def test_in_reverse_mode_only_the_made_up_name_is_ours(house):
    mode, upstream = "reverse:http://upstream.test", ("upstream.test", 80)
    assert house.ask(mode=mode, to=upstream) is None
    assert house.ask(mode=mode, to=upstream, host="hivemind.internal").status_code == 200


async def test_in_a_tunnel_its_destination_counts(house):
    assert house.ask(to=("hivemind.internal", 443), host="whatever.test").status_code == 200
    assert house.ask(to=("other.test", 443), host="hivemind.internal") is None


async def test_a_page_that_cannot_be_made_is_said_so_and_logged_once(house, caplog):
    house.fails = True
    with caplog.at_level(logging.ERROR):
        assert [house.ask().status_code for _ in range(5)] == [503] * 5
    assert house.runtime.guard.trips == 1
    assert len(caplog.records) == 1
    house.fails = False
    assert house.ask().status_code == 200


async def test_health_says_what_a_supervisor_should_know(house, monkeypatch):
    def told():
        answer = house.ask("/health")
        return answer.status_code, msgspec.json.decode(answer.content)["status"]

    assert told() == (200, "ok")
    house.stopping = True
    assert told() == (503, "stopping")

    def fails(now):
        raise RuntimeError("injected")

    monkeypatch.setattr(house.runtime.driver._scheduler, "poll", fails)
    assert told() == (503, "failing")
    assert house.ask("/metrics").status_code == 200
