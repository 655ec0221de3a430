"""Who gets a page, and what making it costs; the way through a real proxy is in tests/e2e/test_pages.py."""

import asyncio
import logging

import msgspec
import pytest
from mitmproxy import http
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons, tflow

from hivemind_addon.kernel.values.command import AddBudget, Cancel, Pause
from hivemind_addon.proxy.api.command import CommandReply
from hivemind_addon.proxy.api.report import ProxyView, Report
from hivemind_addon.proxy.api.report_source import ReportSource
from hivemind_addon.proxy.gate.addresses import is_in, is_loopback, parse_networks, parse_upstream
from hivemind_addon.proxy.gate.interfaces.page_history import Past
from hivemind_addon.proxy.gate.interfaces.pages import Pages
from hivemind_addon.proxy.gate.interfaces.steering_page import PageSteering
from hivemind_addon.proxy.page.sessions import IDLE_S, KEY_LASTS_S, PageSessions
from hivemind_addon.proxy.run.compose import make_runtime
from tests.conftest import FakeClock
from tests.proxy.gate.samples import make_proxy


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
        self.sessions = PageSessions()
        self.commands, self.questions = [], []
        self.coming = None
        """Set: commands are answered once this is."""
        reports = ReportSource(self._report, self.clock.monotonic)
        self.pages = Pages(
            reports=reports,
            metrics=self.runtime.metrics,
            driver=self.runtime.driver,
            guard=self.runtime.guard,
            authentication=make_proxy().intake.authentication,
            is_stopping=lambda: self.stopping,
            is_configured=lambda host, port: host == "models.example.com" and port in (8080, 11435),
            may_look=lambda host: is_loopback(host) or is_in(parse_networks("172.16.0.0/12"), host),
            upstream_of=lambda request: self.upstream,
            membership=None,
            steering=PageSteering(
                sessions=self.sessions,
                command=self._carry_out,
                now=self.clock.monotonic,
                changed=reports.outdate,
            ),
            past=Past(ask=self._ask, clock=self.clock),
        )

    def _carry_out(self, command):
        self.commands.append(command)
        reply = CommandReply(done=True, text="done")
        if self.coming is None:
            return reply

        async def later():
            await self.coming.wait()
            return reply

        return later()

    async def _ask(self, question):
        self.questions.append(msgspec.json.decode(question))
        return '[{"told": true}]'

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


# Steering -------------------------------------------------------------------------------------------------------------

HONEST = {
    "origin": "http://127.0.0.1:8080",
    "content-type": "application/json",
    "sec-fetch-site": "same-origin",
    "sec-fetch-mode": "cors",
    "sec-fetch-dest": "empty",
}
PAUSE = {"type": "pause", "pool": "*"}


def post(house, path, value, *, token="", headers=None, **way):
    """What a page gets that posts, as its status and its plain value."""
    all_headers = HONEST | ({"x-hivemind-token": token} if token else {}) | (headers or {})
    answer = house.ask(path, method="POST", headers={k: v for k, v in all_headers.items() if v is not None}, **way)
    if callable(answer):
        answer = answer(msgspec.json.encode(value))
    return answer.status_code, msgspec.json.decode(answer.content) if answer.content[:1] in b"{[" else answer.content


def opened(house, user="ann"):
    """The token of a page that steers."""
    status, told = post(house, "/page/session", {"key": house.sessions.make_key(user, house.clock.monotonic())})
    assert (status, told["user"]) == (200, user)
    return told["token"]


async def test_a_key_is_good_once_and_not_for_long(house):
    key = house.sessions.make_key("ann", house.clock.monotonic())
    assert post(house, "/page/session", {"key": key})[0] == 200
    assert post(house, "/page/session", {"key": key})[0] == 401
    late = house.sessions.make_key("ann", house.clock.monotonic())
    house.clock.now += KEY_LASTS_S
    for bad in ({"key": late}, {"key": ""}, {"key": "x" * 70_000}, {}, [], {"key": 7}):
        assert post(house, "/page/session", bad)[0] == 401


async def test_a_command_is_carried_out_once_in_the_name_of_who_opened_the_page(house):
    token = opened(house)
    asked = {
        "id": "1",
        "command": {"type": "add-budget", "scope": "everyone", "calls": 5, "by": "eve", "person": "eve"},
    }
    for _ in range(3):
        assert post(house, "/page/command", asked, token=token) == (200, {"done": True, "text": "done"})
    assert house.commands == [AddBudget(scope=house.commands[0].scope, calls=5, person="ann, on the page")]
    assert house.ask().status_code == 200
    made = house.made
    post(house, "/page/command", {"id": "2", "command": {"type": "cancel", "ticket_id": "t"}}, token=token)
    assert house.commands[1:] == [Cancel("t", person="ann, on the page")]
    assert (house.ask().status_code, house.made) == (200, made + 1), "it is shown at once"


async def test_a_command_whose_reply_comes_later_is_asked_for_again_and_carried_out_once(house):
    token, house.coming = opened(house, user=""), asyncio.Event()
    asked = {"id": "1", "command": PAUSE}
    assert [post(house, "/page/command", asked, token=token)[0] for _ in range(3)] == [202] * 3
    house.coming.set()
    await asyncio.gather(*house.pages._steering._replies.values())
    assert post(house, "/page/command", asked, token=token) == (200, {"done": True, "text": "done"})
    assert house.commands == [Pause("*", person="a person, on the page")]


async def test_without_a_good_token_nothing_is_carried_out(house):
    token = opened(house)
    for bad in ("", "x", token[:-1], token + "x"):
        assert post(house, "/page/command", {"id": "1", "command": PAUSE}, token=bad)[0] == 401
    house.clock.now += IDLE_S
    assert post(house, "/page/command", {"id": "1", "command": PAUSE}, token=token)[0] == 401
    token = opened(house)
    assert post(house, "/page/end", {}, token=token)[0] == 200
    assert post(house, "/page/command", {"id": "1", "command": PAUSE}, token=token)[0] == 401
    assert house.commands == []


@pytest.mark.parametrize(
    ("way", "status"),
    [
        ({"headers": {"origin": "http://evil.test"}}, 403),
        ({"headers": {"origin": "http://127.0.0.1:8081"}}, 403),
        ({"headers": {"origin": "null"}}, 403),
        ({"headers": {"origin": None}}, 403),
        ({"headers": {"origin": "https://127.0.0.1:8080"}}, 403),
        ({"headers": {"sec-fetch-site": "cross-site"}}, 403),
        ({"headers": {"sec-fetch-site": "same-site"}}, 403),
        ({"headers": {"sec-fetch-site": "none"}}, 403),
        ({"headers": {"content-type": "text/plain"}}, 415),
        ({"headers": {"content-type": "application/x-www-form-urlencoded"}}, 415),
        ({"headers": {"content-type": None}}, 415),
        ({"host": "hivemind.internal", "headers": {"origin": "http://hivemind.internal"}}, 403),
        ({"peer": "172.17.0.1"}, 403),
        ({"peer": "172.17.0.1", "host": "hivemind:8080", "headers": {"origin": "http://hivemind:8080"}}, 403),
        ({"to": ("hivemind.internal", 80)}, 403),
        ({"to": ("hivemind.internal", 443), "headers": {"origin": "https://hivemind.internal"}}, 403),
    ],
)
async def test_a_good_token_is_good_for_nothing_from_elsewhere(house, way, status):
    """Other sites, agents that come through the proxy, clients of allowed networks, other names of this machine."""
    token = opened(house)
    for path, value in (("/page/command", {"id": "1", "command": PAUSE}), ("/page/end", {}), ("/page/session", {})):
        assert post(house, path, value, token=token, **way)[0] == status, path
    assert house.commands == []
    assert post(house, "/page/command", {"id": "1", "command": PAUSE}, token=token)[0] == 200


async def test_a_name_that_was_made_to_lead_here_is_no_page_at_all(house):
    token = opened(house)
    for host in ("rebound.test:8080", "127.0.0.1.evil.test:8080", "127.0.0.1:8081"):
        asked = HONEST | {"x-hivemind-token": token, "origin": f"http://{host}"}
        assert house.ask("/page/command", method="POST", host=host, headers=asked) is None


async def test_the_page_changes_what_is_scheduled_and_nothing_else(house):
    token = opened(house)
    for command in (
        {"type": "set-config", "name": "notify", "value": "/bin/sh -c id"},
        {"type": "record", "file": "/tmp/x"},
        {"type": "config"},
        {"type": "open-page"},
        {"type": "ask-members", "question": "{}"},
    ):
        assert post(house, "/page/command", {"id": str(command), "command": command}, token=token)[0] == 403
    for bad in ({"id": "1"}, {"id": 1, "command": PAUSE}, {"id": "1", "command": {"type": "pause", "pol": 1}}, []):
        assert post(house, "/page/command", bad, token=token)[0] == 400
    assert post(house, "/page/command", {"id": "1", "command": PAUSE, "x": "y" * 70_000}, token=token)[0] == 413
    assert house.ask("/page/command", headers=HONEST).status_code == 405
    assert house.commands == []


async def test_a_link_may_lead_to_the_document_and_to_nothing_that_tells(house):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    for path in ("/", "/history", "/request/0a1b2c3d4e", "/fleets", "/fleet/night-1a2b"):
        answer = house.ask(path, headers=link)
        assert (answer.status_code, answer.headers["x-frame-options"]) == (200, "DENY")
        assert house.ask(path, headers=link | {"sec-fetch-dest": "iframe"}).status_code == 403
    for path in ("/report.json", "/metrics", "/page/history/day.json", "/page/page.js"):
        assert house.ask(path, headers=link).status_code == 403


async def test_what_was_is_read_once_and_fleets_are_for_their_owner(house):
    assert house.ask("/page/request/0a1b2c3d4e.json").status_code == 202
    await asyncio.gather(*house.pages._past._asking.values())
    assert house.ask("/page/request/0a1b2c3d4e.json").content == b'[{"told": true}]'
    assert house.questions == [{"type": "story", "ticket_id": "0a1b2c3d4e"}]
    for path in ("/page/fleets.json", "/page/fleet/night-1a2b.json"):
        assert house.ask(path).status_code == 401
        token = {"x-hivemind-token": opened(house)}
        assert house.ask(path, headers=token, host="hivemind.internal").status_code == 401
        assert house.ask(path, headers=token).status_code == 202
    for path in ("/page/fleet/..%2F..json", "/page/request/x.json", "/request/../x", "/page/nothing.js", "/page/"):
        assert house.ask(path, headers=token).status_code == 404
    await house.pages._past.close()
