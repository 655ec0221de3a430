"""What reaches a streaming client and when: whole delivery, streams that were begun to keep it waiting, watchdogs."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import httpx
import pytest

from hivemind_addon.formats.wire.sse import SseParser
from hivemind_addon.kernel.values.ticket import REQUEST_HEADER
from hivemind_addon.sim.faults import (
    NAMED,
    OK,
    Encoded,
    Encoding,
    ErrorStatus,
    Fault,
    GoAway,
    Hangup,
    JsonForStream,
    ResetStream,
    SpentCredit,
    Stall,
    StreamCut,
    StreamError,
)
from tests.e2e.conftest import Call, Stage, cut_off, meetings, send_apart, versions
from tests.e2e.proxy import PATIENCE_S, free_port
from tests.e2e.raw_provider import STREAM_HEAD, chunk, raw_provider, whole

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("delivery")]

client_versions = pytest.mark.parametrize("client", ["h1", "h2"])

# Whole delivery: a streamed answer comes when it is complete and checked, so its middle may fail -----------------------

MIDDLE = {
    "close": StreamCut(),
    "RST": StreamCut(how=Hangup.RESET),
    "RST_STREAM": ResetStream(),
    "GOAWAY with an error": GoAway(error=True),
    "error event": StreamError(),
    "stall": Stall(60),
}


def check(stage, call, response, *, attempts):
    assert response.status_code == 200
    assert response.content == call.answer_of(response)
    assert stage.providers.attempts(call.key) == attempts
    assert [(one.end, one.attempts) for one in stage.ended(call)] == [("delivered", attempts)]


@meetings
async def test_a_failure_in_the_middle_of_a_whole_answer_is_hidden(stage, subtests, key, upstream, client, chat):
    calls = [Call(f"{key}-{number}", chat=chat, stream=True) for number in range(len(MIDDLE))]
    requests = []
    for call, (name, fault) in zip(calls, MIDDLE.items(), strict=True):
        stage.providers.script(call.key, [fault])
        kind = ("stall" if name == "stall" else "whole") + ("chat" if chat else "")
        requests.append(call.request(f"https://{upstream}.{kind}.test"))
    answers = await send_apart(stage, client, requests)
    stage.settled()
    for name, call, answer in zip(MIDDLE, calls, answers, strict=True):
        with subtests.test(name):
            # On a busy machine a good answer may be silent for too long as well.
            attempts = max(2, int(answer.headers["x-sim-attempt"])) if name == "stall" else 2
            check(stage, call, answer, attempts=attempts)


def test_a_whole_answer_whose_last_events_are_missing_is_fetched_again(stage, key, late_tls):
    """The connection ends cleanly, and HTTP says that the answer is complete; it never told why it ended."""
    call = Call(key, stream=True)
    good = call.answer("req_1", 2)
    unfinished = good[: good.index(b"event: message_delta")]

    def handle(number, reply):
        reply(STREAM_HEAD + chunk(unfinished if number == 0 else good) + chunk(b""))

    with raw_provider(stage.late_port, late_tls(), handle), stage.proxy.client() as http:
        response = http.send(call.request("https://late.whole.test"))
        stage.settled()
    assert response.content == good


@pytest.mark.parametrize(("client", "how"), [("h1", "password"), ("h2", "header")])
def test_agent_and_request_can_ask_for_it(stage, key, client, how):
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamCut(), StreamError()])
    words = {"password": {"words": "x+whole"}, "header": {}}[how]
    headers = {"password": {}, "header": {"x_hivemind_delivery": "Whole"}}[how]
    with stage.proxy.client(http2=client == "h2", **words) as http:
        response = http.send(call.request("https://h2.sim.test", **headers))
        stage.settled()
    check(stage, call, response, attempts=3)


def test_a_request_can_ask_for_its_stream_where_the_profile_says_whole(stage, key):
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamCut()])
    with stage.proxy.client() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            http.send(call.request("https://h1.whole.test", x_hivemind_delivery="stream"))
        stage.settled()
    assert stage.providers.attempts(key) == 1


def test_an_encoded_answer_is_checked_and_delivered_as_it_came(stage, subtests, key):
    for encoding in (Encoding.GZIP, Encoding.BROTLI, Encoding.ZSTD):
        call = Call(f"{key}-{encoding.value}", stream=True)
        stage.providers.script(call.key, [StreamError(), Encoded(encoding)])
        with subtests.test(encoding.value), stage.proxy.client() as http:
            url = f"https://h1.whole.test{call.path}"
            with http.stream("POST", url, headers=call.headers, content=call.body) as response:
                raw = b"".join(response.iter_raw())
            stage.settled()
            packed = {"content-encoding": encoding.value}
            assert response.headers["content-encoding"] == encoding.value
            assert httpx.Response(200, headers=packed, content=raw).content == call.answer_of(response)
            assert stage.providers.attempts(call.key) == 2


async def test_what_nothing_cures_still_ends_it_and_a_plain_answer_is_delivered_as_ever(stage, key):
    after_status, after_cut = Call(f"{key}-status", stream=True), Call(f"{key}-cut", stream=True)
    plain = Call(f"{key}-plain")
    stage.providers.script(after_status.key, [ErrorStatus(500), ErrorStatus(400)])
    stage.providers.script(after_cut.key, [StreamCut(), ErrorStatus(400)])
    stage.providers.script(plain.key, [ErrorStatus(502)])
    requests = [call.request("https://h2.whole.test") for call in (after_status, after_cut, plain)]
    *refused, answer = await send_apart(stage, "h1", requests)
    stage.settled()
    assert [one.status_code for one in refused] == [400, 400]
    assert [[one.attempts for one in stage.ended(call)] for call in (after_status, after_cut)] == [[2], [2]]
    check(stage, plain, answer, attempts=2)


@versions
def test_past_its_size_the_rest_of_an_answer_is_streamed_and_its_cut_is_seen(stage, key, client, upstream):
    """small.test keeps 1,500 bytes back, a dozen events."""
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamCut(5), StreamCut(40)])
    with stage.proxy.client(http2=client == "h2") as http:
        url, headers = f"https://{upstream}.small.test{call.path}", call.headers | {"x-sim-chunks": "60"}
        with http.stream("POST", url, headers=headers, content=call.body) as response:
            received = cut_off(response)
        stage.settled()
    assert response.headers["x-sim-attempt"] == "2"
    assert call.answer_of(response, chunks=60).startswith(received)
    assert len(received) > 1500


@client_versions
def test_past_its_size_an_answer_arrives_piece_by_piece(stage, key, late_tls, client):
    """The provider goes on only when the client has got what came before."""
    call = Call(key, stream=True)
    good = call.answer("req_1", 1, chunks=60)
    pieces = [good[:1600], good[1600:3000], good[3000:]]
    got = threading.Semaphore(0)

    def handle(_number, reply):
        reply(STREAM_HEAD)
        for piece in pieces:
            reply(chunk(piece))
            assert got.acquire(timeout=PATIENCE_S)
        reply(chunk(b""))

    with raw_provider(stage.late_port, late_tls(), handle), stage.proxy.client(http2=client == "h2") as http:
        received = []
        url = f"https://late.small.test{call.path}"
        with http.stream("POST", url, headers=call.headers, content=call.body) as response:
            for piece in response.iter_raw():
                received.append(piece)
                got.release()
        stage.settled()
    assert received == pieces


@client_versions
def test_until_then_nothing_of_a_whole_answer_is_shown(stage, key, late_tls, client):
    call = Call(key, stream=True)
    good = call.answer("req_1", 1)
    shown, asked = threading.Event(), threading.Event()

    def handle(_number, reply):
        reply(STREAM_HEAD + chunk(good[:-30]))
        asked.set()
        # The probe has seen the answer's head and the client has not got it: it would be here by now.
        stage.proxy.wait_for(lambda state: state["hooks"].get(f"responseheaders {key}"), "the head's arrival")
        assert not shown.is_set()
        reply(chunk(good[-30:]) + chunk(b""))

    with raw_provider(stage.late_port, late_tls(), handle), stage.proxy.client(http2=client == "h2") as http:
        url = f"https://late.whole.test{call.path}"
        with http.stream("POST", url, headers=call.headers, content=call.body) as response:
            shown.set()
            received = b"".join(response.iter_raw())
        stage.settled()
    assert asked.is_set()
    assert received == good


@pytest.mark.parametrize(("client", "chat"), [("h1", True), ("h2", False)], ids=["h1-chat", "h2-anthropic"])
def test_keep_alives_reach_the_client_while_a_whole_answer_is_kept_back(stage, key, client, chat):
    """And a cut behind them is retried all the same."""
    call = Call(key, chat=chat, stream=True)
    stage.providers.script(key, [StreamCut(), Encoded(Encoding.GZIP)])
    host = "h1.heldchat.test" if chat else "h1.held.test"
    with stage.proxy.client(http2=client == "h2") as http:
        response = http.send(call.request(f"https://{host}", x_hivemind_delivery="whole", x_sim_interval_ms="100"))
        stage.settled()
    comment = b": waiting\n\n"
    assert response.headers["content-type"] == "text/event-stream"
    assert "content-encoding" not in response.headers
    assert response.content.startswith(comment)
    body = response.content.replace(comment, b"")
    request_id = body[body.index(b"req_") :].partition(b" ")[0].decode()
    assert body == call.answer(request_id, 2)
    assert stage.providers.attempts(key) == 2


# Committed streams: once a held client has got its head 200 and comments, nothing but an SSE body may follow -----------

COMMENT = b": waiting\n\n"


@dataclass(frozen=True, slots=True)
class Row:
    """What the attempts of a request meet whose client has got a head already."""

    faults: tuple[Fault, ...] = ()
    then: Fault = OK
    timeout: str = "600"
    """Seconds that the client announces."""
    attempts: int = 1
    error: str = ""
    """Found in the error event that ends the stream; empty: a good answer follows."""
    begins: bool = False
    """Whether a part of the answer comes before the error."""


ROWS = {
    "good": Row(),
    "400": Row((ErrorStatus(400),), error="simulated fault"),
    "401": Row((ErrorStatus(401),), error="simulated fault"),
    "429 that nothing cures": Row((SpentCredit(),), error="spend limit|credit|quota"),
    "429": Row((NAMED["429-retry-after"],), attempts=2),
    "529 until the deadline": Row(then=ErrorStatus(529), timeout="3", attempts=0, error="please retry|simulated fault"),
    "502, then good": Row((ErrorStatus(502),), attempts=2),
    "cut before the content": Row((StreamCut(1),), attempts=2),
    "cut": Row((StreamCut(),), error="closed|terminated|reset|incomplete", begins=True),
    "gzip": Row((Encoded(Encoding.GZIP),)),
    "br": Row((Encoded(Encoding.BROTLI),)),
    "zstd": Row((Encoded(Encoding.ZSTD),)),
    "JSON with status 200": Row((JsonForStream(),), error="."),
}
"""`attempts` 0: as many as it takes."""


@asynccontextmanager
async def blocked(stage: Stage, call: Call, url: str) -> AsyncIterator[httpx.Response]:
    """The pool's only slot is taken until the response is closed: by an answer that stalls."""
    headers = call.headers | {"x-test-id": "blocker"}
    async with (
        stage.proxy.async_client("agent-2") as http,
        http.stream("POST", url, headers=headers, content=call.body) as response,
    ):
        while stage.providers.attempts(call.key) == 0:  # the head was a keep-alive's
            await asyncio.sleep(0.01)
        yield response


async def answer_to_held(stage: Stage, call: Call, host: str, client: str, row: Row, *, refused_at: int = 0):
    """What follows in the answer to a call that waits for the pool's slot, once its head and a comment have come.

    `refused_at`: a port at which its first two connections are refused.
    """
    stage.providers.script(call.key, [Stall(60), *row.faults], then=row.then)
    url = f"https://{host}{call.path}"
    headers = call.headers | {"x-stainless-timeout": row.timeout}
    async with AsyncExitStack() as stack:
        blocking = await stack.enter_async_context(blocked(stage, call, url))
        http = await stack.enter_async_context(stage.proxy.async_client(http2=client == "h2"))
        response = await stack.enter_async_context(http.stream("POST", url, headers=headers, content=call.body))
        pieces = response.aiter_raw()
        assert (await anext(pieces)).startswith(b":")
        if refused_at:
            stage.misroute(refused_at, f"127.0.0.1:{free_port()}", times=2)
        await blocking.aclose()
        return response, b"".join([piece async for piece in pieces])  # raises when the message has no clean end


def check_body(call: Call, row: Row, response: httpx.Response, body: bytes) -> None:
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert "content-encoding" not in response.headers
    assert b"HTTP/1.1" not in body  # a second head would end up here
    body = re.sub(rb"\A(: waiting\n\n)+", b"", body)
    assert COMMENT not in body
    found = re.search(rb"(req_\d+) attempt (\d+) for", body)
    good = call.answer(found[1].decode(), int(found[2])) if found else b""
    if not row.error:
        assert body == good
        return
    if row.begins:
        kept = next(size for size in range(min(len(good), len(body)), -1, -1) if body[:size] == good[:size])
        kept = body.rindex(b"\n\n", 0, kept) + 2
        assert kept > 0
        body = body[kept:]
    events = SseParser().feed(body)
    assert body.endswith(b"\n\n")
    assert [event.event for event in events] == ["" if call.chat else "error"]
    assert b'"error":{' in events[0].data
    assert re.search(row.error.encode(), events[0].data), events[0].data


@meetings
async def test_after_the_head_comes_a_good_body_or_one_error_event(stage, subtests, key, upstream, client, chat):
    calls = [Call(f"{key}-{number}", chat=chat, stream=True) for number in range(len(ROWS))]
    host = f"{upstream}.{'heldchat' if chat else 'held'}.test"
    answers = await asyncio.gather(
        *(answer_to_held(stage, call, host, client, row) for call, row in zip(calls, ROWS.values(), strict=True))
    )
    state = stage.settled()
    for call, (name, row), (response, body) in zip(calls, ROWS.items(), answers, strict=True):
        with subtests.test(name):
            check_body(call, row, response, body)
            assert response.headers[REQUEST_HEADER] in [one.ticket_id for one in stage.ended(call)]
            if row.attempts:
                assert stage.providers.attempts(call.key) == row.attempts + 1
            names = ("requestheaders", "request", "response", "error")
            assert [state["hooks"].get(f"{name} {call.key}", 0) for name in names] == [1, 1, 1, 0]


@pytest.mark.parametrize(("version", "chat"), [("h1", False), ("h2", True)], ids=["h1-anthropic", "h2-chat"])
async def test_a_provider_that_refuses_connections_is_tried_again_behind_the_head(stage, key, version, chat):
    call = Call(key, chat=chat, stream=True)
    port = getattr(stage.providers, version).port
    host = f"{version}.{'heldchat' if chat else 'held'}.test"
    response, body = await answer_to_held(stage, call, host, version, Row(), refused_at=port)
    stage.settled()
    assert max(one.attempts for one in stage.ended(call)) == 3
    check_body(call, Row(), response, body)


async def test_a_deadline_while_held_ends_the_stream_with_one_error_event(stage, key):
    async def ask(version, chat):
        call = Call(f"{key}-{version}", chat=chat, stream=True)
        stage.providers.script(call.key, [Stall(60)])
        url = f"https://{version}.{'heldchat' if chat else 'held'}.test{call.path}"
        headers = call.headers | {"x-stainless-timeout": "3"}
        async with blocked(stage, call, url), stage.proxy.async_client(http2=version == "h2") as http:
            return call, await http.post(url, headers=headers, content=call.body)

    both = await asyncio.gather(ask("h1", False), ask("h2", True))
    stage.settled()
    for call, response in both:
        check_body(call, Row(error="please retry"), response, response.content)
        assert stage.providers.attempts(call.key) == 1
        assert "shed" in [one.end for one in stage.ended(call)]


# Watchdogs: late.silent.test may be silent for half a second -----------------------------------------------------------


def test_a_stream_that_hangs_before_its_content_is_tried_again(stage, key, late_tls):
    streamed = [Call(f"{key}-{number}", stream=True) for number in range(4)]
    good = streamed[0].answer("req_1", 2)
    error = b"HTTP/1.1 500 No\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
    hanging = [b"", STREAM_HEAD, STREAM_HEAD + chunk(good[:100]), error]
    over = threading.Event()

    def handle(number, reply):
        if number < len(hanging):
            reply(hanging[number])
            over.wait(PATIENCE_S)
        else:
            reply(STREAM_HEAD + chunk(good) + chunk(b""))

    with (
        raw_provider(stage.late_port, late_tls(), handle),
        stage.proxy.client() as http,
        ThreadPoolExecutor(4) as threads,
    ):

        def ask(call):
            return threads.submit(http.send, call.request("https://late.silent.test"))

        answers = [ask(call).result for call in streamed]
        assert [answer(PATIENCE_S).content for answer in answers] == [good] * 4
        over.set()
        stage.settled()
    assert all(stage.ended(call)[0].attempts >= 2 for call in streamed)


def test_a_stream_that_hangs_after_its_content_is_cut_and_frees_its_slot(stage, key, late_tls):
    call, over = Call(key, stream=True), threading.Event()
    good = call.answer("req_1", 1)

    def handle(_number, reply):
        reply(STREAM_HEAD + chunk(good[: good.index(b"event: message_delta")]))
        over.wait(PATIENCE_S)

    with raw_provider(stage.late_port, late_tls(), handle), stage.proxy.client() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            http.send(call.request("https://late.silent.test"))
        stage.settled()
        over.set()


def test_an_attempt_whose_client_has_come_back_makes_room(stage, key, late_tls):
    call, served, over = Call(key), [], threading.Event()

    def handle(number, reply):
        served.append(number)
        if number == 0:
            over.wait(PATIENCE_S)
        else:
            reply(whole(200, call.answer("req_1", 1)))

    with raw_provider(stage.late_port, late_tls(), handle), ThreadPoolExecutor(1) as threads:

        def ask(timeout):
            with stage.proxy.client() as http:
                return http.send(call.request("https://late.narrow.test", x_stainless_timeout=timeout))

        first = threads.submit(ask, "1")
        stage.proxy.wait_for(lambda _: served, "the first request's arrival")
        with suppress(TimeoutError):
            first.result(1.2)
        assert ask("60").content == call.answer("req_1", 1)
        with pytest.raises(httpx.RemoteProtocolError):
            first.result(PATIENCE_S)
        stage.settled()
        over.set()
