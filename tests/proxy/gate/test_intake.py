import base64
import gzip
import json
from pathlib import Path

import brotli
import pytest
import zstandard
from mitmproxy import http
from mitmproxy.io import FlowReader
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._hooks import HttpRequestHeadersHook

from hivemind_addon.formats.wire.identity import Machine
from hivemind_addon.kernel.values.ticket import Delivery, Priority
from hivemind_addon.proxy.gate.settings import AgentsFile
from hivemind_addon.proxy.host.http_layer import SchedulingHttpLayer
from hivemind_addon.proxy.host.stream import HivemindHoldHook
from tests.proxy.gate.playbook import Playbook, make_context
from tests.proxy.gate.samples import make_flow, make_proxy

CAPTURES = Path(__file__).parents[2] / "captures"


@pytest.fixture
async def proxy():
    return make_proxy()


def basic(words):
    return "Basic " + base64.b64encode(words.encode()).decode()


async def test_what_talks_to_the_proxy_is_taken_off_the_request(proxy):
    flow = make_flow(
        proxy_authorization=basic("agent-7:x"), x_hivemind_delivery=" Whole ", X_Hivemind_Other="1", x_own="stays"
    )
    proxy.intake.take_own_headers(flow)
    assert set(flow.request.headers) == {"x-api-key", "x-own", "content-length"}
    exchange = proxy.make_exchange(flow)
    assert exchange.ticket.agent == "agent-7"
    assert exchange.delivery is Delivery.WHOLE


@pytest.mark.parametrize("capture", ["claude-code", "codex"])
async def test_agents_that_were_recorded_headless_get_their_answers_whole(proxy, capture):
    with (CAPTURES / f"{capture}.flow").open("rb") as file:
        flows = [flow for flow in FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)]
    assert flows
    for recorded in flows:
        exchange = proxy.make_exchange(make_flow(recorded.request.url, **dict(recorded.request.headers)))
        assert exchange.delivery is Delivery.WHOLE
        assert exchange.whole_until_at == exchange.ticket.arrived_at + exchange.profile.peek.whole_max_s


HEADLESS = {"user_agent": "claude-cli/2.1.330 (external, sdk-cli)"}
WATCHED = {"user_agent": "claude-cli/2.1.330 (external, cli)"}


async def test_what_is_asked_for_counts_before_what_the_client_says_of_itself(proxy):
    for asked, delivery in (
        (HEADLESS, Delivery.WHOLE),
        (WATCHED, Delivery.STREAM),
        (HEADLESS | {"x_hivemind_delivery": "stream"}, Delivery.STREAM),
        (WATCHED | {"x_hivemind_delivery": "whole"}, Delivery.WHOLE),
        (HEADLESS | {"proxy_authorization": basic("a:stream")}, Delivery.STREAM),
        (WATCHED | {"proxy_authorization": basic("a:whole")}, Delivery.WHOLE),
        (HEADLESS | {"proxy_authorization": basic("a:x")}, Delivery.WHOLE),
        (HEADLESS | {"proxy_authorization": basic("a:stream"), "x_hivemind_delivery": "auto"}, Delivery.WHOLE),
    ):
        flow = make_flow(**asked)
        proxy.intake.take_own_headers(flow)
        exchange = proxy.make_exchange(flow)
        assert exchange.delivery is delivery, asked
        if asked.get("x_hivemind_delivery") == "whole":
            assert exchange.whole_until_at == exchange.ticket.shed_at, "who asks for it waits for it"


async def test_odd_credentials_name_nobody_and_go_no_further(proxy):
    for credentials in ("Bearer x", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"\xff\xfe").decode()):
        flow = make_flow(proxy_authorization=credentials)
        proxy.intake.take_own_headers(flow)
        assert "proxy-authorization" not in flow.request.headers, credentials
        assert proxy.make_exchange(flow).ticket.agent, credentials
        assert proxy.guard.trips == 0, credentials


async def test_the_connects_user_is_the_agent_of_all_its_requests(proxy):
    flow = make_flow()
    proxy.intake.learn_proxy_user(flow, basic("agent-9:x"))
    assert proxy.make_exchange(flow).ticket.agent == "agent-9"
    proxy.client_disconnected(flow.client_conn)
    assert proxy.live == {}


async def test_the_deadline_is_what_the_client_announces(proxy):
    for headers, patience_s in (
        ({}, 600),
        ({"x_stainless_timeout": "100"}, 100),
        ({"x_stainless_timeout": "0"}, 600),
        ({"x_stainless_timeout": "-1"}, 600),
        ({"x_stainless_timeout": "1e9"}, 600),
        ({"x_stainless_timeout": "nan"}, 600),
        ({"x_stainless_timeout": "soon"}, 600),
    ):
        ticket = proxy.make_exchange(make_flow(**headers)).ticket
        assert ticket.deadline_at - ticket.arrived_at == pytest.approx(patience_s), headers
        assert ticket.arrived_at < ticket.shed_at < ticket.deadline_at, headers


async def test_of_a_client_that_announces_nothing_its_user_agent_tells(proxy):
    codex = make_flow("https://api.openai.com/v1/responses", user_agent="codex_exec/0.169.0 (Debian)")
    ticket = proxy.make_exchange(codex).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(1800)


@pytest.mark.parametrize(
    ("agent", "version", "headers", "client"),
    [
        ("node/20 (Linux)", "HTTP/1.1", {}, "node"),
        ("node/20 (Linux)", "HTTP/1.1", {"x_stainless_timeout": "100"}, ""),
        ("python-httpx/0.28", "HTTP/1.1", {}, ""),
        ("python-httpx/0.28", "HTTP/1.0", {}, "python-httpx"),
        ("python-httpx/0.28", "HTTP/2.0", {}, "python-httpx"),
        ("python-httpx/0.28", "HTTP/1.1", {"via": "1.1 front"}, "python-httpx"),
    ],
    ids=[
        "to be learned",
        "announced",
        "interim responses",
        "HTTP/1.0 has none",
        "HTTP/2 gets none",
        "nor who comes by a proxy",
    ],
)
async def test_a_client_that_waits_in_silence_and_announces_nothing_is_known_by_its_kind(
    proxy, agent, version, headers, client
):
    flow = make_flow(user_agent=agent, **headers)
    flow.request.http_version = version
    exchange = proxy.make_exchange(flow)
    assert exchange.ticket.client == client
    assert bool(exchange.interim) == (not client and not headers)


async def test_a_stream_that_hears_blank_lines_is_held_longer_unless_its_client_says_how_long_it_waits(proxy):
    url = "https://generativelanguage.googleapis.com/v1beta/models/gemini-3:"
    for path, headers, patience_s in (
        ("streamGenerateContent?alt=sse", {}, 1800),
        ("streamGenerateContent", {}, 60),
        ("generateContent", {}, 60),
        ("streamGenerateContent?alt=sse", {"x_server_timeout": "90"}, 90),
    ):
        flow = make_flow(f"{url}{path}", content=b'{"contents": []}', user_agent="GeminiCLI/0.61.0", **headers)
        ticket = proxy.make_exchange(flow).ticket
        assert ticket.deadline_at - ticket.arrived_at == pytest.approx(patience_s), (path, headers)


async def test_what_an_agent_says_by_its_proxy_password_counts_most(proxy):
    flow = make_flow(x_stainless_timeout="100")
    proxy.intake.learn_proxy_user(flow, basic("agent-9:whole.wait-3600"))
    ticket = proxy.make_exchange(flow).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(3600)


async def test_pools_are_host_account_and_model_group(proxy):
    first = proxy.make_exchange(make_flow()).ticket.pool
    same = proxy.make_exchange(make_flow()).ticket.pool
    other = proxy.make_exchange(make_flow(x_api_key="sk-2")).ticket.pool
    assert first == same
    assert first.host == "api.anthropic.com"
    assert first.model_group == "claude-sonnet-4*"
    assert "sk-1" not in first.account
    assert first.account != other.account
    assert (
        proxy.make_exchange(make_flow("https://api.anthropic.com:8443/v1/messages")).ticket.pool.host
        == "api.anthropic.com:8443"
    )


async def test_a_body_that_is_not_understood_is_scheduled_all_the_same(proxy):
    for content in (b"", b"{", b"\xff\xfe", b"[1,2]", b'{"model": 3}'):
        assert proxy.make_exchange(make_flow(content=content)).ticket.pool.host == "api.anthropic.com", content
        assert proxy.guard.trips == 0, content


@pytest.mark.parametrize("broken", ["read_requester", "read_request"])
async def test_a_request_that_cannot_be_read_goes_on_under_the_guard(proxy, monkeypatch, broken):
    def boom(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(f"hivemind_addon.formats.wire.description.{broken}", boom)
    flow = make_flow()
    exchange = proxy.make_exchange(flow)
    assert exchange.tripped
    assert proxy.guard.trips == 1
    exchange.finished()
    assert proxy.live == {}


async def test_a_broken_match_claims_the_request_and_lets_it_pass_under_the_guard(proxy, monkeypatch):
    def boom(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(proxy.claims, "profile_for", boom)
    assert proxy.is_ours(make_flow())
    assert proxy.make_exchange(make_flow()).tripped


def encoded(content, encoding):
    flow = make_flow(content=b"")
    flow.request.headers["content-encoding"] = encoding
    flow.request.raw_content = content
    return flow


# Bodies as they come ----------------------------------------------------------------------------------------------------

BODY = b'{"model": "claude-opus-4-1", "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "hi"}]}'


async def test_a_compressed_request_is_read_and_sent_as_it_came(proxy):
    for encoding, content in (
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("zstd", zstandard.ZstdCompressor().compress(BODY)),
        ("br", brotli.compress(BODY)),
        ("identity", BODY),
        ("", BODY),
    ):
        flow = encoded(content, encoding)
        ticket = proxy.make_exchange(flow).ticket
        assert (ticket.model, ticket.streamed) == ("claude-opus-4-1", True), encoding
        assert flow.request.raw_content == content, encoding
        assert proxy.guard.trips == 0, encoding


async def test_a_body_that_cannot_be_decoded_is_scheduled_all_the_same(proxy):
    for encoding, content in (
        ("gzip", BODY),
        ("gzip", gzip.compress(BODY, mtime=0)[:20]),
        ("what", BODY[:-1]),
        ("zstd", b""),
        ("gzip", gzip.compress(b"\xff", mtime=0)),
    ):
        exchange = proxy.make_exchange(encoded(content, encoding))
        assert exchange.ticket.pool.host == "api.anthropic.com", encoding
        assert not exchange.tripped, encoding
        assert proxy.guard.trips == 0, encoding


async def test_a_request_that_expands_without_end_is_not_read(proxy):
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    exchange = proxy.make_exchange(encoded(bomb, "gzip"))
    assert not exchange.tripped
    assert exchange.facts.oddities


async def test_a_session_may_change_its_model_with_every_request(proxy):
    pools = set()
    for model in ("claude-opus-4-1", "claude-haiku-4-5", "", "\u0000odd", 7, None, "x" * 9999):
        content = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
        exchange = proxy.make_exchange(make_flow(content=content, x_claude_code_session_id="s"))
        assert exchange.enter()
        exchange.client_gone()
        pools.add(exchange.ticket.pool.model_group)
    assert pools == {"claude-opus-4*", "claude-haiku-4-5*", ""}
    assert proxy.guard.trips == 0


async def test_every_key_shares_a_local_servers_one_queue(proxy):
    first, second = (
        proxy.make_exchange(
            make_flow("http://127.0.0.1:11434/api/chat", content=b'{"model": "qwen3"}', authorization=f"Bearer {key}")
        )
        for key in "ab"
    )
    assert first.ticket.pool == second.ticket.pool
    assert first.ticket.streamed
    assert first.enter()
    assert not second.enter(), "one slot"


# Ids that clients give ----------------------------------------------------------------------------------------------------


async def test_a_request_names_its_task_by_a_header_else_its_agent_in_the_proxy_password(proxy):
    flow = make_flow(x_hivemind_task_id="Header-1", idempotency_key="order-7")
    proxy.intake.take_own_headers(flow)
    proxy.intake.learn_proxy_user(flow, basic("agent-9:task-Word-1"))
    ticket = proxy.make_exchange(flow).ticket
    assert (ticket.task, ticket.idempotency_key) == ("Header-1", "order-7")
    plain = make_flow()
    proxy.intake.learn_proxy_user(plain, basic("agent-9:whole,task-Word-1"))
    ticket = proxy.make_exchange(plain).ticket
    assert (ticket.task, ticket.idempotency_key) == ("Word-1", "")


async def test_odd_ids_are_cut_and_cleaned(proxy):
    for odd in ("x" * 5000, "a\tb", "é" * 200, "\udc80 no text"):
        flow = make_flow()
        flow.request.headers.set_all("x-hivemind-task-id", [odd])
        flow.request.headers.set_all("idempotency-key", [odd])
        proxy.intake.take_own_headers(flow)
        ticket = proxy.make_exchange(flow).ticket
        for given in (ticket.task, ticket.idempotency_key):
            assert 0 < len(given) <= 80
            assert given.isprintable()
        assert proxy.guard.trips == 0, odd


async def test_of_two_ids_the_provider_sees_one_and_each_attempt_has_the_same(tmp_path):
    """Through the HTTP layer: refused once, sent again."""
    (tmp_path / "quick.yaml").write_text(
        "extends: anthropic\nhosts: [quick.test]\nretry: {first_backoff_s: 0.01, max_backoff_s: 0.02}\n"
    )
    proxy = make_proxy(tmp_path)
    held = []

    def on_hook(hook):
        match hook:
            case HttpRequestHeadersHook():
                proxy.intake.take_own_headers(hook.flow)
            case HivemindHoldHook():
                held.append(hook)
                return False
        return True

    book = Playbook(SchedulingHttpLayer(make_context(), HTTPMode.regular, proxy), on_hook=on_hook)
    body = make_flow().request.content
    book.from_client(
        b"POST http://quick.test/v1/messages HTTP/1.1\r\nhost: quick.test\r\nx-hivemind-task-id: task-9\r\n"
        b"Idempotency-Key: Order-7\r\nx-api-key: k\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    (exchange,) = proxy.live.values()
    ticket = exchange.ticket
    sent = await book.attempts(
        held,
        b"HTTP/1.1 529 Overloaded\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    )
    assert (ticket.task, ticket.idempotency_key) == ("task-9", "Order-7")
    assert exchange.attempts == len(sent) == 2
    for attempt in sent:
        assert b"Idempotency-Key: Order-7\r\n" in attempt
        assert b"x-hivemind" not in attempt
        assert b"task-9" not in attempt
    assert b"200 OK" in book.to_client


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nbad key sk-ant-api03-echoed\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nsk-ant-api03-echoed bad: 1\r\n\r\n",
        b"sk-ant-api03-echoed\r\n\r\n",
        b"HTTP/1.1 429 X\r\nretry-after: use sk-ant-api03-echoed\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 X\r\ncontent-encoding: sk-ant-api03-echoed\r\ncontent-length: 2\r\n\r\n{}",
    ],
    ids=["no field", "bad field", "no status", "retry-after", "encoding"],
)
async def test_a_key_that_a_provider_echoes_in_its_head_is_in_no_event_and_no_report(proxy, head):
    events = []
    proxy.driver.listen(events.append)
    book = Playbook(
        SchedulingHttpLayer(make_context(), HTTPMode.regular, proxy),
        on_hook=lambda hook: not isinstance(hook, HivemindHoldHook),
    )
    body = make_flow().request.content
    book.from_client(
        b"POST http://api.anthropic.com/v1/messages HTTP/1.1\r\nx-api-key: sk-ant-api03-echoed\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    book.from_server(head)
    assert len(events) > 2
    assert "sk-ant" not in repr((events, proxy.driver.snapshot(), book.logs))


async def test_a_deployment_of_azure_is_a_pool_of_its_own(tmp_path):
    (tmp_path / "azure.yaml").write_text("extends: openai-compatible\nhosts: ['*.openai.azure.com']")
    proxy = make_proxy(tmp_path)
    pools = set()
    for name in ("eu", "us", "eu"):
        url = f"https://r.openai.azure.com/openai/deployments/{name}/chat/completions?api-version=1"
        pools.add(proxy.make_exchange(make_flow(url)).ticket.pool)
    assert {pool.model_group for pool in pools} == {"eu", "us"}


# In a cluster ---------------------------------------------------------------------------------------------------------


def recorded():
    """The requests of Claude Code, Codex and others."""
    for capture in ("claude-code", "codex", "mixed"):
        with (CAPTURES / f"{capture}.flow").open("rb") as file:
            for flow in FlowReader(file).stream():
                if isinstance(flow, http.HTTPFlow) and flow.request.method == "POST":
                    yield flow.request


def tickets_of(request, proxies):
    """What each proxy makes of the same request, from another connection each."""
    tickets = []
    for number, proxy in enumerate(proxies):
        named = {name: value for name, value in request.headers.items() if not name.startswith("proxy-")}
        flow = make_flow(request.url, content=request.raw_content, **named)
        flow.client_conn.peername = ("127.0.0.1", 50000 + number)
        proxy.intake.take_own_headers(flow)
        exchange = proxy.make_exchange(flow)
        if exchange is not None:
            tickets.append(exchange.ticket)
    return tickets


@pytest.mark.parametrize("apart", [False, True], ids=["joined", "apart"])
async def test_sessions_and_parents_are_the_same_whichever_proxy_of_a_cluster_is_used(apart):
    hosts = ("ci-1", "ci-2")
    proxies = [make_proxy(machine=Machine(has_own_agents=apart, name=host)) for host in hosts]
    named = [tickets for tickets in (tickets_of(request, proxies) for request in recorded()) if tickets]
    named = [tickets for tickets in named if "@127.0.0.1" not in tickets[0].session]
    assert len(named) > 2
    for tickets in named:
        one, other = tickets
        assert (one.session, one.parent_session, one.pool) == (other.session, other.parent_session, other.pool)
        assert one.agent.removesuffix("@ci-1") == other.agent.removesuffix("@ci-2")
        assert [ticket.agent.endswith(f"@{host}") for ticket, host in zip(tickets, hosts, strict=True)] == [apart] * 2


async def test_a_connection_to_one_proxy_is_none_to_another_even_where_both_have_one_name():
    proxies = [make_proxy(machine=Machine(name="laptop")) for _ in range(2)]
    tickets = []
    for proxy in proxies:
        flow = make_flow()
        flow.client_conn.peername = ("127.0.0.1", 50000)
        tickets.append(proxy.make_exchange(flow).ticket)
    assert tickets[0].agent != tickets[1].agent
    assert tickets[0].session != tickets[1].session


async def test_where_agents_are_told_apart_each_has_its_own_budget_by_the_rules_of_its_plain_name(tmp_path):
    (tmp_path / "agents.yaml").write_text(
        "everyone: {budgets: [{usd: 9}]}\nagents: {ann: {budgets: [{usd: 1}], max_priority: high}}"
    )
    for apart, kept_under in ((False, {"ann"}), (True, {"ann@ci-1", "ann@ci-2"})):
        proxies = [
            make_proxy(machine=Machine(has_own_agents=apart, name=host), agents=AgentsFile(tmp_path / "agents.yaml"))
            for host in ("ci-1", "ci-2")
        ]
        tickets = []
        for proxy in proxies:
            flow = make_flow(proxy_authorization=basic("ann:prio-high"))
            proxy.intake.take_own_headers(flow)
            tickets.append(proxy.make_exchange(flow).ticket)
        assert {ticket.agent for ticket in tickets} == kept_under
        assert {ticket.session for ticket in tickets} == kept_under
        assert {budget.name for ticket in tickets for budget in ticket.budgets} == kept_under | {""}
        assert {ticket.priority for ticket in tickets} == {Priority.HIGH}


async def test_where_the_option_says_so_models_without_a_price_of_their_own_need_one():
    for refuses in (False, True):
        proxy = make_proxy(refuses_unpriced=refuses)
        for model, is_known in (("claude-opus-5", True), ("claude-opus-9", False), ("qwerty-7b", False)):
            content = json.dumps({"model": model, "messages": [], "service_tier": "batch"}).encode()
            made = proxy.make_exchange(make_flow(content=content)).ticket
            assert made.needs_price is (refuses and not is_known)
            assert made.price is None or made.price.tier == "batch"


async def test_a_secret_of_the_cluster_is_a_key_of_accounts():
    def account(key):
        return make_proxy(machine=Machine(name="a", account_key=key)).make_exchange(make_flow()).ticket.pool.account

    plain = make_proxy().make_exchange(make_flow()).ticket.pool.account
    assert account(b"") == plain, "without one, hashes are those of a proxy alone"
    assert account(b"one") == account(b"one")
    assert len({plain, account(b"one"), account(b"two")}) == 3
