"""Who gets a page, and what making it costs; the way through a real proxy is in tests/e2e/test_pages.py."""

import logging

import msgspec
import pytest
from mitmproxy import http
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons, tflow

from hivemind_addon.api.report import ProxyView, Report
from hivemind_addon.api.report_source import ReportSource
from hivemind_addon.proxy.compose import make_runtime
from hivemind_addon.proxy.mitm.addresses import is_in, is_loopback, parse_networks, parse_upstream
from hivemind_addon.proxy.mitm.pages import Pages
from tests.conftest import FakeClock
from tests.proxy.mitm.samples import make_proxy


class House:
    """Pages before a report that counts how often it is made, takes its time, and may fail."""

    def __init__(self):
        self.runtime = make_runtime()
        self.runtime.driver.clock = self.clock = FakeClock(100.0, 1_000_000)
        self.made = 0
        self.takes_s = 0.0
        self.fails = False
        self.stopping = False
        self.upstream = None
        self.pages = Pages(
            reports=ReportSource(self._report, self.clock.monotonic),
            metrics=self.runtime.metrics,
            driver=self.runtime.driver,
            guard=self.runtime.guard,
            authentication=make_proxy().intake.authentication,
            is_stopping=lambda: self.stopping,
            is_configured=lambda host, port: host == "models.example.com" and port in (8080, 11435),
            may_look=lambda host: is_loopback(host) or is_in(parse_networks("172.16.0.0/12"), host),
            upstream_of=lambda request: self.upstream,
            membership=None,
        )

    def _report(self):
        if self.fails:
            raise RuntimeError("injected")
        self.made += 1
        self.clock.now += self.takes_s
        yield
        view = ProxyView(pid=1, port=8080, listens=(), confdir="", hosts=())
        return Report(version=1, proxy=view, snapshot=self.runtime.driver.snapshot())

    def ask(
        self,
        path="/report.json",
        *,
        peer="127.0.0.1",
        host="127.0.0.1:8080",
        mode="regular",
        to=None,
        method="GET",
        headers=None,
    ):
        client = tflow.tclient_conn()
        client.peername, client.sockname, client.proxy_mode = (peer, 50000), ("127.0.0.1", 8080), ProxyMode.parse(mode)
        request = http.Request.make(method, f"http://127.0.0.1{path}")
        request.host, request.port = "", 0  # origin form, as mitmproxy's parser leaves it
        request.headers["host"] = host
        request.headers.update(headers or {})
        self.request = request
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


REVERSE = "reverse:http://upstream.example.com:11434"


async def test_a_reverse_proxy_is_called_by_its_own_names_and_those_configured(house):
    cases = (
        "127.0.0.1:11435",
        "[::1]:11435",
        "192.168.1.4:11435",
        "localhost:11435",
        "LocalHost.:11435",
        "ollama.localhost",
        "host.docker.internal:11435",
        "ann.local",
        "proxy:11435",
        "upstream.example.com:11434",
        "models.example.com:11435",
    )
    assert [
        host
        for host in cases
        if house.ask("/api/tags", host=host, mode=REVERSE, to=("upstream.example.com", 11434)) is not None
    ] == []


async def test_a_name_that_was_made_to_lead_to_a_reverse_proxy_gets_nothing(house):
    for host in ("evil.test:11435", "evil.test", "127.0.0.1.evil.test", "evil.test:99999", "models.example.com", "a b"):
        refusal = house.ask("/api/tags", host=host, mode=REVERSE, to=("upstream.example.com", 11434))
        assert refusal.status_code == 421, host
        assert b"hivemind_reverse_hosts" in refusal.content, host
        assert house.ask("/api/tags", host=host, to=("elsewhere.test", 80)) is None, (
            "a forward proxy goes where it is asked"
        )


async def test_a_client_of_a_reverse_proxy_may_say_no_host_at_all(house):
    assert house.ask("/api/tags", host="", mode=REVERSE, to=("upstream.example.com", 11434)) is None


async def test_clients_from_elsewhere_are_refused(house):
    for peer in ("10.0.0.9", "192.168.1.4", "2001:db8::1"):
        assert house.ask(peer=peer).status_code == 403, peer
        assert house.ask("/health", peer=peer).status_code == 403, peer


async def test_clients_of_an_allowed_network_are_served_by_names_that_nobody_elsewhere_can_give(house):
    for peer in ("172.17.0.1", "::ffff:172.17.0.1"):
        for host in (
            "localhost:9090",
            "hivemind:8080",
            "10.1.2.3",
            "proxy.hive.svc.cluster.local",
            "models.example.com:8080",
        ):
            assert house.ask("/metrics", peer=peer, host=host).status_code == 200, host
        told = msgspec.json.decode(house.ask("/health", peer=peer, host="10.1.2.3:8080").content)
        assert told.keys() == {"status", "hivemind", "version", "up_s", "guard_trips"}
        refusal = house.ask("/metrics", peer=peer, host="rebound.test:8080")
        assert (refusal.status_code, b"hivemind_reverse_hosts" in refusal.content) == (421, True)
        house.upstream = parse_upstream("https://llm.test")
        assert house.ask("/v1/messages", peer=peer, host="rebound.test:8080", method="POST") is None
        assert house.request.host == ""


async def test_clients_of_this_machine_are_served(house):
    cases = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
    assert [peer for peer in cases if house.ask(peer=peer).status_code != 200] == []


async def test_its_own_names_are_served(house):
    cases = ("127.0.0.1:8080", "localhost:8080", "LOCALHOST.:8080", "[::1]:8080", "hivemind.internal")
    assert [host for host in cases if house.ask(host=host).status_code != 200] == []


async def test_another_name_is_somebody_elses(house):
    cases = (
        "127.0.0.1:8081",
        "127.0.0.1",
        "rebound.test:8080",
        "hivemind.internal.evil.test",
        "api.anthropic.com",
        ":",
        "[",
    )
    assert [host for host in cases if house.ask(host=host) is not None] == []


async def test_in_reverse_mode_only_the_made_up_name_is_ours(house):
    mode, upstream = "reverse:http://upstream.test", ("upstream.test", 80)
    assert house.ask(mode=mode, to=upstream) is None
    assert house.ask(mode=mode, to=upstream, host="hivemind.internal").status_code == 200


async def test_a_base_url_that_names_the_port_leads_on_to_the_provider(house):
    house.upstream = parse_upstream("https://llm.test/base/")
    assert house.ask("/v1/messages?beta=true", method="POST") is None
    assert house.request.url == "https://llm.test/base/v1/messages?beta=true"
    assert house.request.headers["host"] == "llm.test"
    assert house.ask("/v1/models") is None
    assert house.ask("/health").status_code == 200  # the proxy's own stay


async def test_without_a_provider_an_unknown_path_says_how_to_name_one(house):
    answer = house.ask("/v1/nothing", method="POST")
    assert (answer.status_code, b"--upstream URL" in answer.content) == (404, True)


async def test_a_base_url_may_name_the_port_by_every_name_of_a_reverse_proxy(house):
    for host in ("host.docker.internal:8080", "192.168.1.4:8080", "models.example.com:8080"):
        house.upstream = parse_upstream("https://llm.test")
        assert house.ask("/v1/messages", host=host, method="POST") is None, host
        assert house.request.host == "llm.test", host
        assert house.ask("/report.json", host=host) is None, "a page is read by the proxy's own names only"
        assert house.request.host == "", host


async def test_a_name_that_was_made_to_lead_here_leads_no_further(house):
    for host in ("evil.test:8080", "127.0.0.1.evil.test:8080", "192.168.1.4:8081", "models.example.com"):
        house.upstream = parse_upstream("http://127.0.0.1:11434")
        assert house.ask("/api/chat", host=host, method="POST") is None, host
        assert house.request.host == "", "mitmproxy refuses what has no destination"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_pages_of_other_sites_do_not_reach_the_provider(house, site):
    house.upstream = parse_upstream("http://127.0.0.1:11434")
    answer = house.ask("/api/chat", method="POST", headers={"sec-fetch-site": site})
    assert (answer.status_code, house.request.host) == (403, "")


async def test_neither_a_tunnel_nor_the_made_up_name_leads_on(house):
    house.upstream = parse_upstream("https://llm.test")
    assert house.ask("/v1/messages", host="hivemind.internal", method="POST").status_code == 404
    assert house.ask("/v1/messages", host="hivemind.internal", to=("hivemind.internal", 443)).status_code == 404


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
