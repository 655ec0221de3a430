"""A message that has come in one piece passes the layers in one event; nobody outside sees a difference."""

import itertools

import pytest
from mitmproxy import http

from hivemind_addon.proxy.host import connections
from hivemind_addon.proxy.host.port import Handling, Look
from tests.proxy.host.test_stream import play, request, response

CLOSING = b"HTTP/1.1 200 X\r\ncontent-length: 6\r\nconnection: close\r\n\r\nanswer"
OLD = b"HTTP/1.0 200 X\r\ncontent-length: 6\r\n\r\nanswer"
CHUNKED = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n3\r\nans\r\n3\r\nwer\r\n0\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n" + response()
MORE_THAN_IT_SAYS = response() + b"more"
LEAVES = request().replace(b"content-length", b"connection: close\r\ncontent-length")
EXPECTS = request().replace(b"content-length", b"expect: 100-continue\r\ncontent-length")
REQUESTS = {
    "ours": request(),
    "another's": request("/other"),
    "large": request(body=b"x" * 40_000),
    "page": request("/page"),
    "long": request("/ours/long"),
    "empty": request(body=b""),
    "leaves": LEAVES,
    "expects": EXPECTS,
    "two": request() + request("/ours/2", b"next"),
}
ANSWERS = {
    "plain": response(),
    "error": response(529, b"overloaded"),
    "large": response(body=b"y" * 40_000),
    "empty": response(body=b""),
    "closing": CLOSING,
    "old": OLD,
    "chunked": CHUNKED,
    "interim": INTERIM,
    "more": MORE_THAN_IT_SAYS,
}


def answered_by_an_addon(hook):
    if hook.name == "request":
        hook.flow.response = http.Response.make(418, b"tea")


def killed(where):
    def on_hook(hook):
        if hook.name == where:
            hook.flow.kill()

    return on_hook


def streamed(where):
    def on_hook(hook):
        if hook.name == where:
            message = hook.flow.request if where == "requestheaders" else hook.flow.response
            message.stream = True

    return on_hook


def changed(hook):
    """All of both messages that an addon may change."""
    if hook.name == "request":
        hook.flow.request.content = b"another question"
        hook.flow.request.headers["transfer-encoding"] = "chunked"
        del hook.flow.request.headers["content-length"]
    elif hook.name == "response":
        hook.flow.response.content = b"another answer"
        hook.flow.response.headers["x-more"] = "1"


def emptied(hook):
    if hook.name in ("request", "response"):
        getattr(hook.flow, hook.name).content = b""


def with_trailers(hook):
    if hook.name == "response":
        hook.flow.response.headers["transfer-encoding"] = "chunked"
        hook.flow.response.trailers = http.Headers(x=b"1")


HOOKS = {
    "none": lambda hook: None,
    "answered": answered_by_an_addon,
    **{f"killed in {name}": killed(name) for name in ("requestheaders", "request", "responseheaders", "response")},
    **{f"streamed from {name}": streamed(name) for name in ("requestheaders", "responseheaders")},
    "changed": changed,
    "emptied": emptied,
    "trailers": with_trailers,
}
COLLECTS = {"handling": Handling.COLLECT}
EXCHANGES = {
    "collects": COLLECTS,
    "retries": {"handling": Handling.COLLECT, "retry": [True]},
    "peeks": {"handling": Handling.PEEK, "looks": [Look.HOLD_BACK]},
    "passes": {"handling": Handling.PASS},
}
PLAIN = ("ours", "plain", "none", "collects")


def cases():
    """Each of all beside the plain ones, and each answer as each exchange takes it."""
    axes = REQUESTS, ANSWERS, HOOKS, EXCHANGES
    for axis, values in enumerate(axes):
        for value in values:
            yield (*PLAIN[:axis], value, *PLAIN[axis + 1 :])
    yield from (("ours", answer, "none", exchange) for answer, exchange in itertools.product(ANSWERS, EXCHANGES))
    yield from (("another's", "plain", hook, "collects") for hook in HOOKS)
    yield from (("two", "plain", hook, "collects") for hook in HOOKS)


def seen(case, *, whole, waits):
    """What clients, providers, addons and the exchange see. `waits`: each hook is answered a while after it."""
    asked, answer, hooks, exchange = case
    told = []

    def on_hook(hook):
        flow = hook.flow
        states = flow.client_conn.state.name, flow.server_conn.state.name
        body = flow.request.raw_content, flow.response and (flow.response.status_code, flow.response.raw_content)
        told.append((hook.name, flow.request.path, *states, *body))
        HOOKS[hooks](hook)
        return not waits

    def prepare(one):
        for name, value in EXCHANGES[exchange].items():
            setattr(one, name, list(value) if isinstance(value, list) else value)

    book, port = play(prepare, on_hook=on_hook)

    def go_on():
        while waits and book.hooks[len(done) :]:
            done.append(book.hooks[len(done)])
            book.answer(done[-1])

    def say(say_it, data):
        end = data.index(b"\r\n\r\n") + 4
        for piece in (data,) if whole else (data[: end - 9], data[end - 9 : end], data[end:]):
            if piece:
                say_it(piece)
                go_on()

    done = []
    say(book.from_client, REQUESTS[asked])
    for _ in range(3):
        number = len(port.exchanges)
        if not book.opened:
            break
        say(book.from_server, ANSWERS[answer])
        if len(port.exchanges) == number and exchange != "retries":
            break
    sent = [b"".join(book.sent.get(one, b"") for one in book.opened), book.to_client]
    logs = {log.message for log in book.logs}  # each read that nobody waits for is told
    heard = [one.told for one in port.exchanges]
    return told, sent, logs, heard, [one.state.name for one in book.opened], len(book.layer.streams)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("case", sorted(set(cases())), ids=", ".join)
def test_it_is_as_if_its_body_came_after_its_head(case, waits):
    assert seen(case, whole=True, waits=waits) == seen(case, whole=False, waits=waits)


def test_the_usual_ones_do_pass_in_one(monkeypatch):
    passed = []
    for kind in (connections.BoundedHttp1Server, connections.BoundedHttp1Client):
        taken = kind._send_whole
        monkeypatch.setattr(
            kind, "_send_whole", lambda self, event, taken=taken: (passed.append(type(event)), taken(self, event))[1]
        )
    seen(PLAIN, whole=True, waits=False)
    assert passed == [connections.WholeRequest, connections.WholeResponse]
