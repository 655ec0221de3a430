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
from mitmproxy.proxy.mode_specs import ProxyMode

from hivemind_addon.api.command import Cancel
from hivemind_addon.api.events import OddityNoted
from hivemind_addon.api.ticket import Delivery
from hivemind_addon.proxy.mitm.stream import HivemindHoldHook, SchedulingHttpLayer
from tests.mitm.playbook import Playbook, make_context
from tests.mitm.samples import make_flow, make_intake

CAPTURES = Path(__file__).parents[1] / "captures"


@pytest.fixture
async def intake():
    return make_intake()


def basic(words):
    return "Basic " + base64.b64encode(words.encode()).decode()


@pytest.mark.parametrize(
    ("url", "method", "claimed"),
    [
        ("https://api.anthropic.com/v1/messages", "POST", True),
        ("https://API.Anthropic.com./v1/messages?beta=true", "POST", True),
        ("https://api.anthropic.com/v1/messages", "GET", False),
        ("https://api.anthropic.com/v1/messages/count_tokens", "POST", False),
        ("https://api.anthropic.com/v1/models", "GET", False),
        ("https://api.anthropic.com/api/event_logging/batch", "POST", False),
        ("https://api.openai.com/v1/chat/completions", "POST", True),
        ("https://example.test/v1/messages", "POST", False),
    ],
)
async def test_only_model_calls_of_claimed_hosts_are_scheduled(intake, url, method, claimed):
    flow = make_flow(url, method=method)
    assert intake.claims(flow) is claimed
    assert (intake.intake(flow) is not None) is claimed
    assert len(intake.live) == claimed


@pytest.mark.parametrize(
    "path",
    ["/v1/%6dessages", "//v1/messages", "/v1/./messages", "/v1/messages;x", "/v1/messages/", "/V1/Messages?beta=true"],
)
async def test_any_spelling_of_a_path_is_scheduled_and_goes_on_as_it_came(intake, path):
    flow = make_flow(f"https://api.anthropic.com{path}")
    assert intake.intake(flow) is not None
    assert flow.request.path == path


async def test_the_sni_says_whom_the_client_means(intake):
    assert intake.claims(make_flow("https://127.0.0.1/v1/messages", sni="api.anthropic.com"))
    assert not intake.claims(make_flow("https://api.anthropic.com/v1/messages", sni="other.test"))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/chat/completions", "openai-compatible"),
        ("/v1/responses", "openai-compatible"),
    ],
)
async def test_an_unknown_reverse_upstream_has_the_profile_of_the_path(intake, path, name):
    assert intake.profile_for(make_flow(f"http://127.0.0.1:9{path}", mode="reverse:http://127.0.0.1:9")).name == name
    assert intake.profile_for(make_flow(f"http://127.0.0.1:9{path}")) is None


async def test_the_option_names_the_profile_of_a_reverse_upstream():
    intake = make_intake(reverse_profile="openai")
    assert (
        intake.profile_for(make_flow("http://127.0.0.1:9/v1/chat/completions", mode="reverse:http://127.0.0.1:9")).name
        == "openai"
    )
    assert intake.profile_for(make_flow("http://127.0.0.1:9/v1/messages", mode="reverse:http://127.0.0.1:9")) is None


async def test_what_talks_to_the_proxy_is_taken_off_the_request(intake):
    flow = make_flow(
        proxy_authorization=basic("agent-7:x"), x_hivemind_delivery=" Whole ", X_Hivemind_Other="1", x_own="stays"
    )
    intake.take_own_headers(flow)
    assert set(flow.request.headers) == {"x-api-key", "x-own", "content-length"}
    exchange = intake.intake(flow)
    assert exchange.ticket.agent == "agent-7"
    assert exchange.delivery is Delivery.WHOLE


@pytest.mark.parametrize("capture", ["claude-code", "codex"])
async def test_agents_that_were_recorded_headless_get_their_answers_whole(intake, capture):
    with (CAPTURES / f"{capture}.flow").open("rb") as file:
        flows = [flow for flow in FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)]
    assert flows
    for recorded in flows:
        exchange = intake.intake(make_flow(recorded.request.url, **dict(recorded.request.headers)))
        assert exchange.delivery is Delivery.WHOLE
        assert exchange.whole_until_at == exchange.ticket.arrived_at + exchange.profile.peek.whole_max_s


HEADLESS = {"user_agent": "claude-cli/2.1.330 (external, sdk-cli)"}
WATCHED = {"user_agent": "claude-cli/2.1.330 (external, cli)"}


@pytest.mark.parametrize(
    ("asked", "delivery"),
    [
        (HEADLESS, Delivery.WHOLE),
        (WATCHED, Delivery.STREAM),
        (HEADLESS | {"x_hivemind_delivery": "stream"}, Delivery.STREAM),
        (WATCHED | {"x_hivemind_delivery": "whole"}, Delivery.WHOLE),
        (HEADLESS | {"proxy_authorization": basic("a:stream")}, Delivery.STREAM),
        (WATCHED | {"proxy_authorization": basic("a:whole")}, Delivery.WHOLE),
        (HEADLESS | {"proxy_authorization": basic("a:x")}, Delivery.WHOLE),
        (HEADLESS | {"proxy_authorization": basic("a:stream"), "x_hivemind_delivery": "auto"}, Delivery.WHOLE),
    ],
)
async def test_what_is_asked_for_counts_before_what_the_client_says_of_itself(intake, asked, delivery):
    flow = make_flow(**asked)
    intake.take_own_headers(flow)
    exchange = intake.intake(flow)
    assert exchange.delivery is delivery
    if asked.get("x_hivemind_delivery") == "whole":
        assert exchange.whole_until_at == exchange.ticket.shed_at, "who asks for it waits for it"


@pytest.mark.parametrize(
    "credentials", ["Bearer x", "Basic", "Basic !!!", "Basic " + base64.b64encode(b"\xff\xfe").decode()]
)
async def test_odd_credentials_name_nobody_and_go_no_further(intake, credentials):
    flow = make_flow(proxy_authorization=credentials)
    intake.take_own_headers(flow)
    assert "proxy-authorization" not in flow.request.headers
    assert intake.intake(flow).ticket.agent
    assert intake.guard.trips == 0


async def test_the_connects_user_is_the_agent_of_all_its_requests(intake):
    flow = make_flow()
    intake.learn_proxy_user(flow, basic("agent-9:x"))
    assert intake.intake(flow).ticket.agent == "agent-9"
    intake.client_disconnected(flow.client_conn)
    assert intake.live == {}


@pytest.mark.parametrize(
    ("headers", "patience_s"),
    [
        ({}, 600),
        ({"x_stainless_timeout": "100"}, 100),
        ({"x_stainless_timeout": "0"}, 600),
        ({"x_stainless_timeout": "-1"}, 600),
        ({"x_stainless_timeout": "1e9"}, 600),
        ({"x_stainless_timeout": "nan"}, 600),
        ({"x_stainless_timeout": "soon"}, 600),
    ],
)
async def test_the_deadline_is_what_the_client_announces(intake, headers, patience_s):
    ticket = intake.intake(make_flow(**headers)).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(patience_s)
    assert ticket.arrived_at < ticket.shed_at < ticket.deadline_at


async def test_of_a_client_that_announces_nothing_its_user_agent_tells(intake):
    codex = make_flow("https://api.openai.com/v1/responses", user_agent="codex_exec/0.169.0 (Debian)")
    ticket = intake.intake(codex).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(1800)


@pytest.mark.parametrize(
    ("headers", "client"),
    [({}, "python-httpx"), ({"x_stainless_timeout": "100"}, "")],
    ids=["how long it waits is to be learned", "it says how long it waits"],
)
async def test_a_client_that_announces_nothing_is_known_by_its_kind(intake, headers, client):
    flow = make_flow(user_agent="python-httpx/0.28 (Linux)", **headers)
    assert intake.intake(flow).ticket.client == client


async def test_what_an_agent_says_by_its_proxy_password_counts_most(intake):
    flow = make_flow(x_stainless_timeout="100")
    intake.learn_proxy_user(flow, basic("agent-9:whole.wait-3600"))
    ticket = intake.intake(flow).ticket
    assert ticket.deadline_at - ticket.arrived_at == pytest.approx(3600)


async def test_pools_are_host_account_and_model_group(intake):
    first = intake.intake(make_flow()).ticket.pool
    same = intake.intake(make_flow()).ticket.pool
    other = intake.intake(make_flow(x_api_key="sk-2")).ticket.pool
    assert first == same
    assert first.host == "api.anthropic.com"
    assert first.model_group == "claude-sonnet-4*"
    assert "sk-1" not in first.account
    assert first.account != other.account
    assert (
        intake.intake(make_flow("https://api.anthropic.com:8443/v1/messages")).ticket.pool.host
        == "api.anthropic.com:8443"
    )


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[1,2]", b'{"model": 3}'])
async def test_a_body_that_is_not_understood_is_scheduled_all_the_same(intake, content):
    assert intake.intake(make_flow(content=content)).ticket.pool.host == "api.anthropic.com"
    assert intake.guard.trips == 0


@pytest.mark.parametrize("broken", ["identify", "read_request"])
async def test_a_request_that_cannot_be_read_goes_on_under_the_guard(intake, monkeypatch, broken):
    def boom(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(f"hivemind_addon.proxy.mitm.intake.{broken}", boom)
    flow = make_flow()
    exchange = intake.intake(flow)
    assert exchange.tripped
    assert intake.guard.trips == 1
    exchange.finished()
    assert intake.live == {}


async def test_a_broken_match_claims_the_request_and_lets_it_pass_under_the_guard(intake, monkeypatch):
    def boom(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(intake, "profile_for", boom)
    assert intake.claims(make_flow())
    assert intake.intake(make_flow()).tripped


async def test_every_ticket_of_a_client_ends_with_its_connection(intake):
    flows = [make_flow() for _ in range(3)]
    for flow in flows[1:]:
        flow.client_conn = flows[0].client_conn
    exchanges = [intake.intake(flow) for flow in flows]
    for exchange in exchanges[:2]:
        assert exchange.enter()
    intake.client_disconnected(flows[0].client_conn)
    assert all(exchange.over for exchange in exchanges)
    assert intake.live == {}
    assert all(not pool.in_flight and not pool.queued for pool in intake.driver.snapshot().pools)


async def test_drained_waits_for_the_last_ticket(intake):
    await intake.drained()
    flow = make_flow()
    intake.intake(flow)
    import asyncio

    waiting = asyncio.ensure_future(intake.drained())
    done, _ = await asyncio.wait([waiting], timeout=0)
    assert not done
    intake.live[flow.id].finished()
    await waiting


def encoded(content, encoding):
    flow = make_flow(content=b"")
    flow.request.headers["content-encoding"] = encoding
    flow.request.raw_content = content
    return flow


# Bodies as they come ----------------------------------------------------------------------------------------------------

BODY = b'{"model": "claude-opus-4-1", "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("zstd", zstandard.ZstdCompressor().compress(BODY)),
        ("br", brotli.compress(BODY)),
        ("identity", BODY),
        ("", BODY),
    ],
)
async def test_a_compressed_request_is_read_and_sent_as_it_came(intake, encoding, content):
    flow = encoded(content, encoding)
    ticket = intake.intake(flow).ticket
    assert (ticket.model, ticket.streamed) == ("claude-opus-4-1", True)
    assert flow.request.raw_content == content
    assert intake.guard.trips == 0


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("gzip", BODY),
        ("gzip", gzip.compress(BODY, mtime=0)[:20]),
        ("what", BODY[:-1]),
        ("zstd", b""),
        ("gzip", gzip.compress(b"\xff", mtime=0)),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_scheduled_all_the_same(intake, encoding, content):
    exchange = intake.intake(encoded(content, encoding))
    assert exchange.ticket.pool.host == "api.anthropic.com"
    assert not exchange.tripped
    assert intake.guard.trips == 0


async def test_a_request_that_expands_without_end_is_not_read(intake):
    bomb = gzip.compress(bytes(64 * 1024 * 1024))
    exchange = intake.intake(encoded(bomb, "gzip"))
    assert not exchange.tripped
    assert exchange.facts.oddities


async def test_a_session_may_change_its_model_with_every_request(intake):
    pools = set()
    for model in ("claude-opus-4-1", "claude-haiku-4-5", "", "\u0000odd", 7, None, "x" * 9999):
        content = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
        exchange = intake.intake(make_flow(content=content, x_claude_code_session_id="s"))
        assert exchange.enter()
        exchange.client_gone()
        pools.add(exchange.ticket.pool.model_group)
    assert pools == {"claude-opus-4*", "claude-haiku-4-5*", ""}
    assert intake.guard.trips == 0


# WebSockets -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("https://api.openai.com/v1/responses", True),
        ("https://api.openai.com/v1/responses?x=1", True),
        ("https://chatgpt.com/backend-api/codex/responses", True),
        ("https://api.openai.com/v1/realtime", False),
        ("https://api.anthropic.com/v1/messages", False),
        ("https://example.test/v1/responses", False),
    ],
)
async def test_a_websocket_on_a_scheduled_path_is_refused_where_the_profile_says_so(intake, url, refused):
    upgrade = make_flow(url, method="GET", content=b"", upgrade="WebSocket", connection="Upgrade")
    answer = intake.upgrade_refusal(upgrade)
    assert (answer is not None) is refused
    assert answer is None or answer.status_code == 426
    assert intake.upgrade_refusal(make_flow(url, method="GET", content=b"")) is None


async def test_a_profile_may_let_websockets_pass(tmp_path):
    (tmp_path / "openai.yaml").write_text("extends: openai\nrefuse_websocket: false\n")
    intake = make_intake(tmp_path)
    url = "https://api.openai.com/v1/responses"
    assert intake.upgrade_refusal(make_flow(url, method="GET", content=b"", upgrade="websocket")) is None


async def test_every_key_shares_a_local_servers_one_queue(intake):
    first, second = (
        intake.intake(
            make_flow("http://127.0.0.1:11434/api/chat", content=b'{"model": "qwen3"}', authorization=f"Bearer {key}")
        )
        for key in "ab"
    )
    assert first.ticket.pool == second.ticket.pool
    assert first.ticket.streamed
    assert first.enter()
    assert not second.enter(), "one slot"


async def test_a_replay_that_is_called_off_is_killed_for_it_has_no_stream_of_ours():
    intake = make_intake()
    flow = make_flow()
    flow.live = True
    exchange = intake.intake(flow)
    intake.replays[flow.id] = exchange
    assert exchange.enter()
    intake.driver.call_off = lambda reservation: intake.end_attempt(reservation, lambda _: pytest.fail("no stream"))
    assert intake.driver.command(Cancel(exchange.ticket.id)).done
    assert flow.error.msg == flow.error.KILLED_MESSAGE
    assert exchange.over
    assert intake.driver.snapshot().pools[0].in_flight == 0


# Ids that clients give ----------------------------------------------------------------------------------------------------


async def test_a_request_names_its_task_by_a_header_else_its_agent_in_the_proxy_password(intake):
    flow = make_flow(x_hivemind_task_id="Header-1", idempotency_key="order-7")
    intake.take_own_headers(flow)
    intake.learn_proxy_user(flow, basic("agent-9:task-Word-1"))
    ticket = intake.intake(flow).ticket
    assert (ticket.task, ticket.idempotency_key) == ("Header-1", "order-7")
    plain = make_flow()
    intake.learn_proxy_user(plain, basic("agent-9:whole,task-Word-1"))
    ticket = intake.intake(plain).ticket
    assert (ticket.task, ticket.idempotency_key) == ("Word-1", "")


@pytest.mark.parametrize("odd", ["x" * 5000, "a\tb", "é" * 200, "\udc80 no text"])
async def test_odd_ids_are_cut_and_cleaned(intake, odd):
    flow = make_flow()
    flow.request.headers.set_all("x-hivemind-task-id", [odd])
    flow.request.headers.set_all("idempotency-key", [odd])
    intake.take_own_headers(flow)
    ticket = intake.intake(flow).ticket
    for given in (ticket.task, ticket.idempotency_key):
        assert 0 < len(given) <= 80
        assert given.isprintable()
    assert intake.guard.trips == 0


async def test_of_two_ids_the_provider_sees_one_and_each_attempt_has_the_same(tmp_path):
    """Through the HTTP layer: refused once, sent again."""
    (tmp_path / "quick.yaml").write_text(
        "extends: anthropic\nhosts: [quick.test]\nretry: {first_backoff_s: 0.01, max_backoff_s: 0.02}\n"
    )
    intake = make_intake(tmp_path)
    held = []

    def on_hook(hook):
        match hook:
            case HttpRequestHeadersHook():
                intake.take_own_headers(hook.flow)
            case HivemindHoldHook():
                held.append(hook)
                return False
        return True

    book = Playbook(SchedulingHttpLayer(make_context(), HTTPMode.regular, intake), on_hook=on_hook)
    body = make_flow().request.content
    book.from_client(
        b"POST http://quick.test/v1/messages HTTP/1.1\r\nhost: quick.test\r\nx-hivemind-task-id: task-9\r\n"
        b"Idempotency-Key: Order-7\r\nx-api-key: k\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    (exchange,) = intake.live.values()
    ticket = exchange.ticket
    sent = [book.to_server()]
    for answer in (
        b"HTTP/1.1 529 Overloaded\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ):
        before = sum(map(len, sent))
        book.from_server(answer)
        while held:  # on a slow machine its time has come already, and nothing is held
            hook = held.pop()
            await hook.exchange.hold()
            book.answer(hook)
        if more := b"".join(book.to_server(number) for number in range(len(book.opened)))[before:]:
            sent.append(more)
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
async def test_a_key_that_a_provider_echoes_in_its_head_is_in_no_event_and_no_report(intake, head):
    events = []
    intake.driver.listen(events.append)
    book = Playbook(
        SchedulingHttpLayer(make_context(), HTTPMode.regular, intake),
        on_hook=lambda hook: not isinstance(hook, HivemindHoldHook),
    )
    body = make_flow().request.content
    book.from_client(
        b"POST http://api.anthropic.com/v1/messages HTTP/1.1\r\nx-api-key: sk-ant-api03-echoed\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(body), body)
    )
    book.from_server(head)
    assert len(events) > 2
    assert "sk-ant" not in repr((events, intake.driver.snapshot(), book.logs))


async def test_a_deployment_of_azure_is_a_pool_of_its_own(tmp_path):
    (tmp_path / "azure.yaml").write_text("extends: openai-compatible\nhosts: ['*.openai.azure.com']")
    intake = make_intake(tmp_path)
    pools = set()
    for name in ("eu", "us", "eu"):
        url = f"https://r.openai.azure.com/openai/deployments/{name}/chat/completions?api-version=1"
        pools.add(intake.intake(make_flow(url)).ticket.pool)
    assert {pool.model_group for pool in pools} == {"eu", "us"}


def told(intake):
    intake.driver.tick()
    return [event.what for event in intake.runtime.events if isinstance(event, OddityNoted)]


async def test_a_host_of_models_that_passes_by_is_told_once(intake):
    context = make_context()
    context.client.proxy_mode = ProxyMode.parse("regular")
    for host in ("github.com", "generativelanguage.googleapis.com", "GenerativeLanguage.googleapis.com."):
        context.server.address = (host, 443)
        assert intake.is_foreign(context, None)
    (what,) = told(intake)
    assert what.startswith("calls to generativelanguage.googleapis.com pass unscheduled")
    assert intake.unscheduled == {"generativelanguage.googleapis.com"}


async def test_a_request_like_a_model_call_that_passes_by_is_told_once(intake):
    for path in ("/v1beta/models/gemini-3:generateContent", "/v1beta/models/other:generateContent", "/v1/files"):
        intake.passes_by(make_flow(f"https://llm.test{path}"))
    intake.passes_by(make_flow("https://llm.test/v1/messages", method="GET"))
    (what,) = told(intake)
    assert what.startswith("calls to llm.test/v1beta/models/gemini-3:generateContent pass unscheduled")
