"""Whole delivery: a streamed answer reaches the client when it is complete and checked, so its middle may fail."""

import threading

import httpx
import pytest

from hivemind_addon.lab.sim.faults import (
    Encoded,
    Encoding,
    ErrorStatus,
    GoAway,
    Hangup,
    ResetStream,
    Stall,
    StreamCut,
    StreamError,
)
from tests.e2e.conftest import Call, cut_off, ended, meetings
from tests.e2e.proxy import PATIENCE_S
from tests.e2e.raw_provider import STREAM_HEAD, chunk, raw_provider

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("delivery")]

MIDDLE = {
    "close": StreamCut(),
    "RST": StreamCut(how=Hangup.RESET),
    "RST_STREAM": ResetStream(),
    "GOAWAY with an error": GoAway(error=True),
    "error event": StreamError(),
    "stall": Stall(60),
}
client_versions = pytest.mark.parametrize("client", ["h1", "h2"])
upstream_versions = pytest.mark.parametrize("upstream", ["h1", "h2"])


def check(stage, state, call, response, *, attempts):
    assert response.status_code == 200
    assert response.content == call.answer_of(response)
    assert stage.providers.attempts(call.key) == attempts
    assert [(one.end, one.attempts) for one in ended(state, call)] == [("delivered", attempts)]


@meetings(MIDDLE, slow={"stall"})
def test_a_failure_in_the_middle_of_a_whole_answer_is_hidden(stage, key, upstream, client, chat, name):
    call = Call(key, chat=chat, stream=True)
    stage.providers.script(key, [MIDDLE[name]])
    with stage.proxy.client(http2=client == "h2") as http:
        kind = ("stall" if name == "stall" else "whole") + ("chat" if chat else "")
        response = http.send(call.request(f"https://{upstream}.{kind}.test"))
        # On a busy machine a good answer may be silent for too long as well.
        attempts = max(2, int(response.headers["x-sim-attempt"])) if name == "stall" else 2
        check(stage, stage.settled(), call, response, attempts=attempts)


def test_a_whole_answer_whose_last_event_is_missing_is_fetched_again(stage, key, late_tls):
    """The connection ends cleanly, and HTTP says that the answer is complete; the terminal event never came."""
    call = Call(key, stream=True)
    good = call.answer("req_1", 2)
    unfinished = good[: good.index(b"event: message_stop")]

    def handle(number, reply):
        reply(STREAM_HEAD + chunk(unfinished if number == 0 else good) + chunk(b""))

    with raw_provider(stage.late_port, late_tls(), handle), stage.proxy.client() as http:
        response = http.send(call.request("https://late.whole.test"))
        stage.settled()
    assert response.content == good


@pytest.mark.parametrize("how", ["password", "header"])
@client_versions
def test_agent_and_request_can_ask_for_it(stage, key, client, how):
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamCut(), StreamError()])
    words = {"password": {"words": "x+whole"}, "header": {}}[how]
    headers = {"password": {}, "header": {"x_hivemind_delivery": "Whole"}}[how]
    with stage.proxy.client(http2=client == "h2", **words) as http:
        response = http.send(call.request("https://h2.sim.test", **headers))
        check(stage, stage.settled(), call, response, attempts=3)
    sent = [one.headers for one in stage.providers.h2.requests() if one.headers.get("x-api-key") == key]
    assert len(sent) == 3
    own = {name for headers in sent for name in headers if name.startswith(("x-hivemind-", "proxy-"))}
    assert own == set()


def test_a_plain_request_to_the_proxy_keeps_its_own_headers_to_itself_too(stage, key):
    """Without TLS the proxy's credentials are on the request itself."""
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamCut()])
    with stage.proxy.client(words="whole") as http:
        response = http.send(call.request(f"http://127.0.0.1:{stage.providers.plain.port}"))
        check(stage, stage.settled(), call, response, attempts=2)
    (first, second) = [one.headers for one in stage.providers.plain.requests() if one.headers.get("x-api-key") == key]
    assert "proxy-authorization" not in {*first, *second}


def test_a_request_can_ask_for_its_stream_where_the_profile_says_whole(stage, key):
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamCut()])
    with stage.proxy.client() as http:
        with pytest.raises(httpx.RemoteProtocolError):
            http.send(call.request("https://h1.whole.test", x_hivemind_delivery="stream"))
        stage.settled()
    assert stage.providers.attempts(key) == 1


@pytest.mark.parametrize("encoding", [Encoding.GZIP, Encoding.BROTLI, Encoding.ZSTD])
def test_an_encoded_answer_is_checked_and_delivered_as_it_came(stage, key, encoding):
    call = Call(key, stream=True)
    stage.providers.script(key, [StreamError(), Encoded(encoding)])
    with stage.proxy.client() as http:
        url = f"https://h1.whole.test{call.path}"
        with http.stream("POST", url, headers=call.headers, content=call.body) as response:
            raw = b"".join(response.iter_raw())
        stage.settled()
    assert response.headers["content-encoding"] == encoding.value
    assert httpx.Response(200, headers={"content-encoding": encoding.value}, content=raw).content == call.answer_of(
        response
    )
    assert stage.providers.attempts(key) == 2


@pytest.mark.parametrize(
    "faults", [[ErrorStatus(500), ErrorStatus(400)], [StreamCut(), ErrorStatus(400)]], ids=["status", "cut"]
)
def test_what_nothing_cures_still_ends_it(stage, key, faults):
    call = Call(key, stream=True)
    stage.providers.script(key, faults)
    with stage.proxy.client() as http:
        response = http.send(call.request("https://h2.whole.test"))
        state = stage.settled()
    assert response.status_code == 400
    assert [one.attempts for one in ended(state, call)] == [2]


def test_an_unstreamed_request_is_delivered_as_ever(stage, key):
    call = Call(key)
    stage.providers.script(key, [ErrorStatus(502)])
    with stage.proxy.client() as http:
        response = http.send(call.request("https://h1.whole.test"))
        check(stage, stage.settled(), call, response, attempts=2)


@upstream_versions
@client_versions
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
    comment = b": waiting for the rate limit\n\n"
    assert response.headers["content-type"] == "text/event-stream"
    assert "content-encoding" not in response.headers
    assert response.content.startswith(comment)
    body = response.content.replace(comment, b"")
    request_id = body[body.index(b"req_") :].partition(b" ")[0].decode()
    assert body == call.answer(request_id, 2)
    assert stage.providers.attempts(key) == 2
