"""Committed streams: once a held client has got its head 200 and comments, nothing but an SSE body may follow."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import pytest

from hivemind_addon.lab.sim.faults import (
    NAMED,
    OK,
    Encoded,
    Encoding,
    ErrorStatus,
    Fault,
    JsonForStream,
    SpentCredit,
    Stall,
    StreamCut,
)
from hivemind_addon.proxy.wire.sse import SseParser
from tests.e2e.conftest import Call, Stage, ended, meetings
from tests.e2e.proxy import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("committed")]

COMMENT = b": waiting for the rate limit\n\n"


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


@contextmanager
def blocked(stage: Stage, call: Call, url: str) -> Iterator[httpx.Response]:
    """The pool's only slot is taken until the response is closed: by an answer that stalls."""
    headers = call.headers | {"x-test-id": "blocker"}
    with (
        stage.proxy.client("agent-2") as http,
        http.stream("POST", url, headers=headers, content=call.body) as response,
    ):
        if "request-id" not in response.headers:  # the provider was slow, and the head is a keep-alive's
            stage.proxy.wait_for(lambda _: stage.providers.attempts(call.key) == 1, "the first attempt")
        yield response


@contextmanager
def held(
    stage: Stage, call: Call, host: str, client: str, row: Row, *, refused_at: int = 0
) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
    """The answer to a call that waits for the pool's slot, once its head and a comment have come; then it may go.

    `refused_at`: a port at which its first two connections are refused.
    """
    stage.providers.script(call.key, [Stall(60), *row.faults], then=row.then)
    url = f"https://{host}{call.path}"
    headers = call.headers | {"x-stainless-timeout": row.timeout}
    with (
        blocked(stage, call, url) as blocking,
        stage.proxy.client(http2=client == "h2") as http,
        http.stream("POST", url, headers=headers, content=call.body) as response,
    ):
        pieces = response.iter_raw()
        assert next(pieces).startswith(b":")
        if refused_at:
            stage.misroute(refused_at, f"127.0.0.1:{free_port()}", times=2)
        blocking.close()
        yield response, pieces


def check(call: Call, row: Row, response: httpx.Response, body: bytes) -> None:
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert "content-encoding" not in response.headers
    assert b"HTTP/1.1" not in body  # a second head would end up here
    body = re.sub(rb"\A(: waiting for the rate limit\n\n)+", b"", body)
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


@meetings(ROWS, slow={"429", "529 until the deadline"})
def test_after_the_head_comes_a_good_body_or_one_error_event(stage, key, upstream, client, chat, name):
    row = ROWS[name]
    call = Call(key, chat=chat, stream=True)
    host = f"{upstream}.{'heldchat' if chat else 'held'}.test"
    with held(stage, call, host, client, row) as (response, pieces):
        body = b"".join(pieces)  # raises when the message has no clean end
        state = stage.settled()
    check(call, row, response, body)
    if row.attempts:
        assert stage.providers.attempts(key) == row.attempts + 1
    hooks = {
        name: state["hooks"].get(f"{name} {key}", 0) for name in ("requestheaders", "request", "response", "error")
    }
    assert hooks == {"requestheaders": 1, "request": 1, "response": 1, "error": 0}


@pytest.mark.parametrize("chat", [False, True], ids=["anthropic", "chat"])
@pytest.mark.parametrize("version", ["h1", "h2"])
def test_a_provider_that_refuses_connections_is_tried_again_behind_the_head(stage, key, version, chat):
    call = Call(key, chat=chat, stream=True)
    port = getattr(stage.providers, version).port
    host = f"{version}.{'heldchat' if chat else 'held'}.test"
    with held(stage, call, host, version, Row(), refused_at=port) as (response, pieces):
        body = b"".join(pieces)
        state = stage.settled()
    assert max(one.attempts for one in ended(state, call)) == 3
    check(call, Row(), response, body)


@pytest.mark.parametrize(("version", "chat"), [("h1", False), ("h2", True)], ids=["h1-anthropic", "h2-chat"])
def test_a_deadline_while_held_ends_the_stream_with_one_error_event(stage, key, version, chat):
    call = Call(key, chat=chat, stream=True)
    host = f"{version}.{'heldchat' if chat else 'held'}.test"
    stage.providers.script(key, [Stall(60)])
    url = f"https://{host}{call.path}"
    with blocked(stage, call, url), stage.proxy.client(http2=version == "h2") as http:
        response = http.post(url, headers=call.headers | {"x-stainless-timeout": "3"}, content=call.body)
    state = stage.settled()
    check(call, Row(error="please retry"), response, response.content)
    assert stage.providers.attempts(key) == 1
    assert "shed" in [one.end for one in ended(state, call)]
