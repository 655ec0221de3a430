"""Every failure that waiting cures is hidden from the client; every other reaches it as it came."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import httpx
import pytest
from mitmproxy.io import FlowReader

from hivemind_addon.kernel.values.ticket import REQUEST_HEADER
from hivemind_addon.sim import dialect as wire
from hivemind_addon.sim.dialect import SimDialect
from hivemind_addon.sim.faults import (
    NAMED,
    ODD_ENDS,
    OK,
    BodyCut,
    ErrorStatus,
    Fault,
    GoAway,
    Hangup,
    HeadThenReset,
    NoHead,
    OddEnd,
    RefusedStream,
    ResetStream,
    SpentCredit,
    Stall,
    StreamCut,
    StreamError,
)
from lab.running_server import running_server
from tests.e2e.conftest import Call, Stage, cut_off, send_apart, versions
from tests.e2e.proxy import PATIENCE_S, free_port, running
from tests.e2e.raw_provider import BAD_GATEWAY, STREAM_HEAD, chunk, disowning_provider, raw_provider

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("retries")]

client_versions = pytest.mark.parametrize("client", ["h1", "h2"])
alike = pytest.mark.parametrize("version", ["h1", "h2"])
"""The same on both sides."""


@dataclass(frozen=True, slots=True)
class Row:
    """One failure: what a plain and what a streamed request meet, and what the proxy sees of it."""

    plain: Fault
    streamed: Fault
    heads: int = 1
    """Response heads of the failed attempt."""
    ambiguous: bool = False
    """Ended without a status: it may have run."""


RETRIED = {
    "429": Row(NAMED["429"], NAMED["429"]),
    "429 with retry-after": Row(NAMED["429-retry-after"], NAMED["429-retry-after"]),
    "500": Row(ErrorStatus(500), ErrorStatus(500)),
    "502": Row(ErrorStatus(502), ErrorStatus(502)),
    "502 of a gateway, in HTML": Row(NAMED["html"], NAMED["html"]),
    "503": Row(ErrorStatus(503), ErrorStatus(503)),
    "504": Row(ErrorStatus(504), ErrorStatus(504)),
    "529": Row(ErrorStatus(529), ErrorStatus(529)),
    "RST before the head": Row(NoHead(Hangup.RESET), NoHead(Hangup.RESET), heads=0, ambiguous=True),
    "close before the head": Row(NoHead(Hangup.CLOSE), NoHead(Hangup.CLOSE), heads=0, ambiguous=True),
    "RST after the head": Row(HeadThenReset(), HeadThenReset(), ambiguous=True),
    "cut before the content": Row(BodyCut(), StreamCut(1), ambiguous=True),
    "cut of a chunked body": Row(BodyCut(chunked=True), StreamCut(0), ambiguous=True),
    "RST in the body": Row(BodyCut(how=Hangup.RESET), StreamCut(2, Hangup.RESET), ambiguous=True),
    "GOAWAY with an error": Row(GoAway(error=True), GoAway(error=True, after_events=1), ambiguous=True),
    "RST_STREAM": Row(ResetStream(), ResetStream(after_events=1), ambiguous=True),
    "error event first": Row(StreamError(0), StreamError(0)),
    "error event after message_start": Row(StreamError(1), StreamError(1)),
    "error event after ping": Row(StreamError(2), StreamError(2)),
}
HOOKS = ("requestheaders", "request", "responseheaders", "response", "error")


def check_told(stage: Stage, call: Call, response: httpx.Response) -> None:
    """The answer tells one ticket: one of the call's."""
    assert response.headers.get_list(REQUEST_HEADER)[1:] == []
    assert response.headers[REQUEST_HEADER] in [one.ticket_id for one in stage.ended(call)]


def check(
    stage: Stage, state, call: Call, response: httpx.Response, *, attempts: int, heads: int, ambiguous: bool
) -> None:
    """The client saw the last attempt only; everybody else saw what there was to see."""
    assert response.status_code == 200, response.text
    assert response.content == call.answer_of(response)
    assert response.headers["x-sim-attempt"] == str(attempts)
    assert stage.providers.attempts(call.key) == attempts
    check_told(stage, call, response)
    failed = attempts - 1
    assert [(one.end, one.attempts, one.ambiguous_resends) for one in stage.ended(call)] == [
        ("delivered", attempts, failed * ambiguous)
    ]
    hooks = {name: state["hooks"].get(f"{name} {call.key}", 0) for name in HOOKS}
    assert hooks == dict(zip(HOOKS, (1, 1, 1 + failed * heads, 1, 0), strict=True))


async def check_rows(stage: Stage, subtests, rows, requests, client: str) -> None:
    """Send them all at once; then each is looked at. `rows`: name, call, fault and row of each request."""
    answers = await send_apart(stage, client, requests)
    state = stage.settled()
    for (name, call, fault, row), answer in zip(rows, answers, strict=True):
        with subtests.test(name, stream=call.stream):
            heads = 1 if call.stream and isinstance(fault, StreamError) else row.heads
            check(stage, state, call, answer, attempts=2, heads=heads, ambiguous=row.ambiguous)
    assert {answer.http_version for answer in answers} == {"HTTP/2" if client == "h2" else "HTTP/1.1"}


@versions
async def test_a_failure_that_waiting_cures_is_hidden_from_the_client(stage, subtests, key, upstream, client):
    rows = [
        (name, Call(f"{key}-{number}-{stream}", stream=stream), row.streamed if stream else row.plain, row)
        for number, (name, row) in enumerate(RETRIED.items())
        for stream in (False, True)
    ]
    for _, call, fault, _ in rows:
        stage.providers.script(call.key, [fault])
    requests = [call.request(f"https://{upstream}.sim.test") for _, call, _, _ in rows]
    await check_rows(stage, subtests, rows, requests, client)


@alike
async def test_the_chat_dialect_is_retried_as_well(stage, subtests, key, version):
    names = ("429", "529", "cut before the content", "error event first", "error event after message_start")
    rows = [
        (name, Call(f"{key}-{number}-{stream}", chat=True, stream=stream), fault, row)
        for number, (name, row) in enumerate((name, RETRIED[name]) for name in names)
        for stream, fault in ((False, row.plain), (True, row.streamed))
    ]
    for _, call, fault, _ in rows:
        stage.providers.script(call.key, [fault])
    requests = [call.request(f"https://{version}.chat.test") for _, call, _, _ in rows]
    await check_rows(stage, subtests, rows, requests, version)


@alike
async def test_an_answer_with_an_odd_end_is_paid_once(stage, subtests, key, version):
    odd = {
        (host, how, stream): Call(f"{key}-{host}-{how}-{stream}", chat="chat" in host, stream=stream)
        for host, how, stream in itertools.product(("sim", "whole", "chat", "wholechat"), ODD_ENDS, (False, True))
    }
    for (_, how, _), call in odd.items():
        stage.providers.script(call.key, [OddEnd(how)])
    requests = [call.request(f"https://{version}.{host}.test") for (host, _, _), call in odd.items()]
    answers = await send_apart(stage, version, requests, return_exceptions=True)
    stage.settled()
    truths = [one.truth().agents for one in (stage.providers.h1, stage.providers.h2)]
    for ((host, how, stream), call), answer in zip(odd.items(), answers, strict=True):
        with subtests.test(how, host=host, stream=stream):
            if isinstance(answer, Exception):  # who counts bytes finds that the last is missing
                assert (how, stream) == ("length-too-large", True), answer
            else:
                assert b'"end_turn"' in answer.content or b'"stop"' in answer.content
            assert [(one.end, one.attempts) for one in stage.ended(call)] == [("delivered", 1)]
            seen = [agents[call.key] for agents in truths if call.key in agents]
            assert [(one.attempts, one.completed) for one in seen] == [(1, 1)]


@client_versions
def test_a_refused_stream_is_sent_again_and_does_not_count_as_ambiguous(stage, key, client):
    call = Call(key, stream=True)
    stage.providers.script(key, [RefusedStream()] * 6)
    with stage.proxy.client(http2=client == "h2") as http:
        response = http.send(call.request("https://h2.sim.test"))
        check(stage, stage.settled(), call, response, attempts=7, heads=0, ambiguous=False)


@pytest.mark.parametrize("stream", [False, True])
@client_versions
def test_a_graceful_goaway_lets_the_answer_finish_and_the_next_request_opens_a_new_connection(
    stage, key, client, stream
):
    call = Call(key, stream=stream)
    stage.providers.script(key, [GoAway(), OK])
    with stage.proxy.client(http2=client == "h2") as http:
        first = http.send(call.request("https://h2.sim.test"))
        second = http.send(call.request("https://h2.sim.test"))
        stage.settled()
    assert [first.content, second.content] == [call.answer_of(first), call.answer_of(second)]
    assert stage.providers.attempts(key) == 2
    connections = [one.connection for one in stage.providers.h2.requests() if one.headers.get("x-api-key") == key]
    assert len(set(connections)) == 2


def ways(stage: Stage) -> dict[str, tuple[str, int, str | None]]:
    """The modes of the proxy: an URL, the port that is connected to for it, the proxy's own URL."""
    h1, h2, plain = stage.providers.h1, stage.providers.h2, stage.providers.plain
    return {
        "forward h1": ("https://h1.sim.test", h1.port, stage.proxy.url()),
        "forward h2": ("https://h2.sim.test", h2.port, stage.proxy.url()),
        "reverse": (stage.reverse, plain.port, None),
        "reverse h2": (stage.reverse_h2, h2.port, None),
        "upstream": (f"https://localhost:{h1.port}", stage.upstream_proxy_port, stage.upstream),
    }


@pytest.mark.parametrize("mode", ["reverse", "reverse h2", "upstream"])
def test_other_modes_of_the_proxy_retry_as_well(stage, subtests, key, mode):
    url, _, proxy = ways(stage)[mode]
    for number, name in enumerate(("502", "RST before the head", "cut before the content", "error event first")):
        row, call = RETRIED[name], Call(f"{key}-{number}", stream=True)
        stage.providers.script(call.key, [row.streamed, row.streamed])
        with subtests.test(name), stage.proxy.client(proxy=proxy) as http:
            response = http.send(call.request(url))
            check(stage, stage.settled(), call, response, attempts=3, heads=row.heads, ambiguous=row.ambiguous)


@pytest.mark.parametrize(
    "fault", [GoAway(), GoAway(error=True), ErrorStatus(429, retry_after_s=1), NoHead(Hangup.RESET)]
)
@versions
async def test_requests_that_share_their_connections_survive_each_others_failures(stage, key, client, upstream, fault):
    calls = [Call(key, text=f"number {number}") for number in range(12)]
    stage.providers.script(key, [OK, OK, fault, OK, OK, OK, fault])
    async with stage.proxy.async_client(http2=client == "h2") as http:
        requests = [call.request(f"https://{upstream}.sim.test", x_sim_latency_ms="20") for call in calls]
        answers = await asyncio.gather(*map(http.send, requests))
        stage.settled()
    for call, answer in zip(calls, answers, strict=True):
        assert answer.status_code == 200
        assert answer.content == call.answer_of(answer)
    assert [one.end for one in stage.ended(calls[0])] == ["delivered"] * 12


async def test_what_a_goaway_disowns_is_sent_again_and_does_not_count_as_ambiguous(stage, key, late_tls):
    """Two requests on one connection: the provider answers the first and says that it never saw the second."""
    call = Call(key)
    good = call.answer("req_1", 1)
    before = stage.proxy.state()["snapshot"]["counters"]
    with disowning_provider(stage.late_port, late_tls(), good) as requests:
        async with stage.proxy.async_client(http2=True) as http:
            await http.send(call.request("https://late.sim.test"))  # now the client knows that one connection is enough
            both = [http.send(call.request("https://late.sim.test")) for _ in range(2)]
            assert [one.content for one in await asyncio.gather(*both)] == [good, good]
            after = stage.settled()["snapshot"]["counters"]
    assert requests == [3, 1]
    assert after["retries"] - before["retries"] == 1
    assert after["ambiguous_resends"] == before["ambiguous_resends"]


# Connections that do not open ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["forward h1", "forward h2", "reverse", "reverse h2", "upstream"])
def test_a_connection_that_does_not_open_is_tried_again(stage, subtests, key, mode):
    url, at, proxy = ways(stage)[mode]
    troubles = (("h1", f"127.0.0.1:{free_port()}"), ("h2", f"127.0.0.1:{free_port()}"), ("h1", "nosuch.invalid:443"))
    for number, (client, trouble) in enumerate(troubles):
        call = Call(f"{key}-{number}", stream=True)
        stage.misroute(at, trouble, times=2)
        with subtests.test(trouble, client=client), stage.proxy.client(http2=client == "h2", proxy=proxy) as http:
            response = http.send(call.request(url))
            stage.settled()
            assert response.status_code == 200, response.text
            assert response.content == call.answer_of(response)
            assert stage.providers.attempts(call.key) == 1
            assert [(one.attempts, one.ambiguous_resends) for one in stage.ended(call)] == [(3, 0)]


@versions
def test_a_later_connection_that_fails_is_tried_again(stage, key, client, upstream):
    call = Call(key)
    with stage.proxy.client(http2=client == "h2") as http:
        http.send(call.request(f"https://{upstream}.sim.test"))
        port = getattr(stage.providers, upstream).port
        stage.misroute(port, f"127.0.0.1:{free_port()}", times=1)
        stage.providers.script(key, [NoHead(Hangup.CLOSE)])
        response = http.send(call.request(f"https://{upstream}.sim.test"))
        stage.settled()
    assert response.content == call.answer_of(response)
    assert stage.providers.attempts(key) == 3
    assert [one.attempts for one in stage.ended(call)] == [1, 3]


@pytest.mark.parametrize(("mode", "client"), [("forward", "h2"), ("upstream", "h1")])
def test_a_provider_that_comes_up_late_answers_the_clients_that_have_waited(stage, key, late_tls, client, mode):
    call = Call(key)
    url = "https://late.patient.test" if mode == "forward" else f"https://127.0.0.1:{stage.late_port}"
    proxy = stage.proxy.url() if mode == "forward" else stage.upstream
    with stage.proxy.client(http2=client == "h2", proxy=proxy) as http, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(http.send, call.request(url))
        backed_off = stage.proxy.state()["snapshot"]["counters"]["retries"] + 2
        stage.proxy.wait_for(lambda state: state["snapshot"]["counters"]["retries"] >= backed_off, "two retries")
        with running_server(port=stage.late_port, tls=late_tls()) as late:
            response = answer.result(PATIENCE_S)
            assert response.content == call.answer_of(response)
            assert late.truth().attempts == 1
            stage.settled()


@client_versions
def test_a_certificate_of_a_stranger_is_told_at_once(stage, key, client):
    call = Call(key)
    with stage.proxy.client(http2=client == "h2") as http:
        response = http.send(call.request("https://other-ca.sim.test"))
        stage.settled()
    assert response.status_code == 502
    assert "certificate verify failed" in response.text.lower()
    check_told(stage, call, response)
    assert [one.attempts for one in stage.ended(call)] == [1]
    assert stage.providers.stranger.truth().attempts == 0


# Never retried ---------------------------------------------------------------------------------------------------------

HARD = {
    "400": ErrorStatus(400),
    "401": ErrorStatus(401),
    "402": ErrorStatus(402),
    "403": ErrorStatus(403),
    "404": ErrorStatus(404),
    "413": ErrorStatus(413),
    "x-should-retry on 500": ErrorStatus(500, should_retry=False),
    "x-should-retry on 429": ErrorStatus(429, retry_after_s=1, should_retry=False),
    "spent window": ErrorStatus(429, error="enforced_spend_limit_reached"),
    "daily quota": ErrorStatus(429, message="Rate limit of 50 per 86400s exceeded for UserByModelByDay"),
}
MESSAGES_ONLY, CHAT_ONLY = {"spent window"}, {"daily quota"}


@pytest.mark.parametrize("chat", [False, True], ids=["anthropic", "chat"])
@alike
async def test_what_waiting_cannot_cure_reaches_the_client_as_it_came(stage, subtests, key, version, chat):
    dialect = SimDialect.CHAT if chat else SimDialect.MESSAGES
    rows = [
        (name, Call(f"{key}-{number}-{stream}", chat=chat, stream=stream), fault)
        for number, (name, fault) in enumerate(HARD.items())
        for stream in (False, True)
        if name not in (MESSAGES_ONLY if chat else CHAT_ONLY)
    ]
    spent = Call(f"{key}-spent", chat=chat)
    stage.providers.script(spent.key, [SpentCredit()])
    for _, call, fault in rows:
        stage.providers.script(call.key, [fault])
    host = f"https://{version}.{'chat' if chat else 'sim'}.test"
    requests = [call.request(host) for _, call, _ in rows]
    *answers, without_credit = await send_apart(stage, version, [*requests, spent.request(host)])
    stage.settled()
    for (name, call, fault), answer in zip(rows, answers, strict=True):
        with subtests.test(name, stream=call.stream):
            error = wire.error_object(dialect, fault.status, message=fault.message, error=fault.error)
            assert answer.status_code == fault.status
            assert answer.content == wire.SHAPES[dialect].error_body(error, answer.headers["request-id"])
            check_told(stage, call, answer)
            assert stage.providers.attempts(call.key) == 1
            assert [one.attempts for one in stage.ended(call)] == [1]
    assert without_credit.status_code == 429
    assert stage.providers.attempts(spent.key) == 1


CUTS = {
    "close": StreamCut(),
    "RST": StreamCut(how=Hangup.RESET),
    "RST_STREAM": ResetStream(),
    "GOAWAY with an error": GoAway(error=True),
}


@versions
def test_a_cut_in_a_delivered_stream_reaches_the_client_as_a_cut(stage, subtests, key, upstream, client):
    for number, (name, fault) in enumerate(CUTS.items()):
        call = Call(f"{key}-{number}", stream=True)
        stage.providers.script(call.key, [fault])
        with subtests.test(name), stage.proxy.client(http2=client == "h2") as http:
            url = f"https://{upstream}.sim.test{call.path}"
            with http.stream("POST", url, headers=call.headers, content=call.body) as response:
                received = cut_off(response)
            state = stage.settled()
            good = call.answer_of(response)
            assert received
            assert good.startswith(received)
            assert received != good
            assert stage.providers.attempts(call.key) == 1
            check_told(stage, call, response)
            assert [(one.end, one.reason) for one in stage.ended(call)] == [("gave up", "client has seen part of it")]
            assert state["hooks"][f"error {call.key}"] == 1
            assert f"response {call.key}" not in state["hooks"]


@client_versions
def test_an_error_event_in_a_delivered_stream_reaches_the_client(stage, key, client):
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamError()])
    with stage.proxy.client(http2=client == "h2") as http:
        response = http.send(call.request("https://h2.sim.test"))
        stage.settled()
    assert response.content.count(b"event: error\n") == 1
    assert b"event: message_stop" not in response.content
    assert stage.providers.attempts(key) == 1


# How often -------------------------------------------------------------------------------------------------------------


@versions
async def test_an_attempt_that_may_have_been_billed_is_sent_again_four_times_at_most(
    stage, subtests, key, upstream, client
):
    faults = {"no head": NoHead(Hangup.CLOSE), "head only": HeadThenReset(), "cut": BodyCut()}
    calls = [Call(f"{key}-{number}") for number in range(len(faults))]
    for call, fault in zip(calls, faults.values(), strict=True):
        stage.providers.script(call.key, [], then=fault)
    answers = await send_apart(stage, client, [call.request(f"https://{upstream}.sim.test") for call in calls])
    stage.settled()
    for name, call, answer in zip(faults, calls, answers, strict=True):
        with subtests.test(name):
            assert answer.status_code == 502
            check_told(stage, call, answer)
            assert "x-sim-attempt" not in answer.headers
            assert stage.providers.attempts(call.key) == 5
            assert [(one.end, one.attempts, one.ambiguous_resends) for one in stage.ended(call)] == [("gave up", 5, 4)]


@client_versions
async def test_after_many_failures_of_its_own_the_client_gets_the_providers_answer(stage, subtests, key, client):
    """Ten, and twice as many as nobody else is answered: the first is its own, each of the others counts for half."""
    calls = {status: Call(f"{key}-{status}", stream=True) for status in (500, 502, 504)}
    for status, call in calls.items():
        stage.providers.script(call.key, [], then=ErrorStatus(status))
    answers = await send_apart(stage, client, [call.request("https://h1.sim.test") for call in calls.values()])
    stage.settled()
    for (status, call), answer in zip(calls.items(), answers, strict=True):
        with subtests.test(status=status):
            error = wire.error_object(SimDialect.MESSAGES, status, message="simulated fault")
            assert answer.status_code == status
            assert answer.headers["x-sim-attempt"] == "19"
            assert answer.content == wire.SHAPES[SimDialect.MESSAGES].error_body(error, answer.headers["request-id"])
            assert stage.providers.attempts(call.key) == 19
            ends = [(one.end, one.reason, one.attempts) for one in stage.ended(call)]
            assert ends == [("gave up", "attempts spent", 19)]


@pytest.mark.parametrize(
    ("client", "chat", "status", "error"),
    [("h1", False, 429, "rate_limit_error"), ("h2", True, 503, "server_is_overloaded")],
)
def test_before_its_client_gives_up_a_held_request_is_asked_to_come_back(stage, key, client, chat, status, error):
    """The pool's slot is taken: by a stream that stalls."""
    call = Call(key, chat=chat)
    stage.providers.script(key, [Stall(60)])
    host = "h1.heldchat.test" if chat else "h1.narrow.test"
    with stage.proxy.client("agent-2") as other, stage.proxy.client(http2=client == "h2") as http:
        blocking = replace(call, stream=True)
        url, headers = f"https://{host}{call.path}", call.headers | {"x-test-id": "blocker"}
        with other.stream("POST", url, headers=headers, content=blocking.body):  # it has the only slot
            response = http.send(call.request(f"https://{host}", x_stainless_timeout="1"))
        stage.settled()
    assert response.status_code == status
    assert response.json()["error"]["type"] == error
    assert ("type" in response.json()) != chat
    assert response.headers["x-should-retry"] == "true"
    assert int(response.headers["retry-after"]) >= 1
    check_told(stage, call, response)
    assert stage.providers.attempts(key) == 1
    assert "shed" in [one.end for one in stage.ended(call)]


@pytest.mark.parametrize(("version", "fault"), [("h1", NoHead(Hangup.RESET)), ("h2", RefusedStream())])
def test_many_retried_requests_on_one_connection_leave_nothing_behind(stage, key, version, fault):
    call, requests = Call(key), 60
    stage.providers.script(key, [ErrorStatus(502), OK, fault, OK] * (requests // 2))
    before = stage.settled()["connections"]
    with stage.proxy.client(http2=version == "h2") as http:
        request = call.request(f"https://{version}.tiny.test")
        for _ in range(requests):
            response = http.send(request)
            assert response.content == call.answer_of(response)
        state = stage.settled()
        assert state["connections"] - before <= 4  # the client's, twice because of CONNECT, and upstream
    assert stage.providers.attempts(key) == 2 * requests


# What passes by and through --------------------------------------------------------------------------------------------


@versions
def test_a_chunked_request_that_another_addon_changed_is_sent_again_whole(stage, key, upstream, client):
    call = Call(key)
    stage.providers.script(key, [ErrorStatus(502), NoHead(Hangup.CLOSE)])
    headers = {name: value for name, value in call.headers.items() if name != "content-length"}
    begun = call.body[:-1]
    chunks = (begun[start : start + 10] for start in range(0, len(begun), 10))
    with stage.proxy.client(http2=client == "h2") as http:
        url = f"https://{upstream}.sim.test{call.path}"
        response = http.post(url, headers=headers | {"x-test-append": "}"}, content=chunks)
        stage.settled()
    assert response.content == call.answer_of(response)  # the digest in it is that of the changed body
    assert stage.providers.attempts(key) == 3
    assert [one.attempts for one in stage.ended(call)] == [3]


def test_an_answer_that_an_addon_makes_is_never_retried(stage, key):
    call = Call(key)
    with stage.proxy.client() as http:
        response = http.send(call.request("https://h1.sim.test", x_test_answer="529"))
        state = stage.settled()
    assert (response.status_code, response.content) == (529, b"{}")
    assert stage.providers.attempts(key) == 0
    assert state["hooks"][f"response {key}"] == 1
    assert stage.ended(call) == []


# Piece by piece --------------------------------------------------------------------------------------------------------


@client_versions
def test_a_stream_after_a_hidden_retry_arrives_piece_by_piece(stage, key, late_tls, client):
    """The provider sends each piece only after the client has got the one before."""
    call = Call(key, stream=True)
    events = [event + b"\n\n" for event in call.answer("req_1", 2).split(b"\n\n") if event]
    pieces = [b"".join(events[:3]), *events[3:]]  # up to the first content nothing is shown
    got = threading.Semaphore(0)

    def handle(number, reply):
        if number == 0:
            reply(BAD_GATEWAY)
            return
        reply(STREAM_HEAD)
        for piece in pieces:
            reply(chunk(piece))
            assert got.acquire(timeout=PATIENCE_S)
        reply(chunk(b""))

    with raw_provider(stage.late_port, late_tls(), handle), stage.proxy.client(http2=client == "h2") as http:
        url = f"https://late.sim.test{call.path}"
        received = []
        with http.stream("POST", url, headers=call.headers, content=call.body) as response:
            for piece in response.iter_raw():
                received.append(piece)
                got.release()
        stage.settled()
    assert received == pieces


@pytest.mark.parametrize(("client", "why"), [("h1", "time"), ("h2", "size")])
def test_the_beginning_of_a_stream_is_not_kept_back_for_long(stage, key, late_tls, client, why):
    """late.peek.test keeps back half a second or 500 bytes; the provider waits until the client has got it."""
    call = Call(key, stream=True)
    events = [event + b"\n\n" for event in call.answer("req_1", 1).split(b"\n\n") if event]
    beginning, rest = events[0] + events[1], b"".join(events[2:])
    beginning += events[1] * (20 if why == "size" else 0)
    got = threading.Event()

    def handle(_number, reply):
        reply(STREAM_HEAD + chunk(beginning))
        assert got.wait(PATIENCE_S)
        reply(chunk(rest) + chunk(b""))

    with raw_provider(stage.late_port, late_tls(), handle), stage.proxy.client(http2=client == "h2") as http:
        url = f"https://late.peek.test{call.path}"
        with http.stream("POST", url, headers=call.headers, content=call.body) as response:
            pieces = response.iter_raw()
            first = next(pieces)
            got.set()
            body = first + b"".join(pieces)
        stage.settled()
    assert first == beginning
    assert body == beginning + rest


# mitmproxy's own options -------------------------------------------------------------------------------------------------


def test_limits_and_flow_files_of_mitmproxy_work_as_ever(tmp_path, providers, proxy_arguments, key):
    """`-w` has the complete answer of a retried stream; body_size_limit refuses; stream_large_bodies changes nothing."""
    flows = tmp_path / "flows"
    limits = ["--set", "body_size_limit=20k", "--set", "stream_large_bodies=1k", "-w", flows]
    call = Call(key, stream=True, text="x" * 5000)
    with running(tmp_path / "conf", *proxy_arguments, *limits) as proxy:
        with proxy.client() as http, proxy.client(http2=True) as http2:
            answers = []
            for client, host in ((http, "h1.sim.test"), (http2, "h2.sim.test")):
                providers.script(key, [ErrorStatus(502), StreamError(1), StreamCut(1)])
                answers.append(client.send(call.request(f"https://{host}", x_sim_chunks="60")))
            too_big = replace(call, text="x" * 30_000)
            refused = [client.send(too_big.request("https://h1.sim.test")) for client in (http, http2)]
            long = Call(f"{key}-long", max_tokens=9000)
            too_long = http.send(long.request("https://h1.sim.test", x_sim_chunks="9000"))
        proxy.settled()
        proxy.stop()
    for answer in answers:
        assert answer.content == call.answer_of(answer, chunks=60)
    assert [answer.status_code for answer in refused] == [413, 413]
    assert too_long.status_code == 502
    assert providers.attempts(long.key) == 1
    with flows.open("rb") as file:
        stored = {
            flow.response.headers.get("request-id"): flow.response
            for flow in FlowReader(file).stream()
            if flow.response
        }
    for answer in answers:
        assert stored[answer.headers["request-id"]].raw_content == answer.content
