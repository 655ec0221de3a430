"""The HTTP layer without sockets, and the canary: mitmproxy's inside is as proxy/host/stream.py believes."""

import ast
import inspect
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import mitmproxy.version
import pytest
from h11._readers import ChunkedReader
from mitmproxy import http, optmanager
from mitmproxy.addonmanager import AddonManager, traverse
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.connection import ConnectionState, Server
from mitmproxy.proxy import events as mevents
from mitmproxy.proxy import layer as mlayer
from mitmproxy.proxy.layers import http as mhttp
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._base import HttpCommand, HttpConnection
from mitmproxy.proxy.layers.http._http1 import Http1Client, Http1Server, make_error_response
from mitmproxy.proxy.layers.http._http2 import Http2Client, Http2Server
from mitmproxy.proxy.layers.http._http_h2 import BufferedH2Connection
from mitmproxy.proxy.layers.http._upstream_proxy import HttpUpstreamProxy
from mitmproxy.proxy.layers.websocket import WebsocketConnection, WebsocketLayer
from mitmproxy.proxy.mode_servers import ServerInstance
from mitmproxy.test import tflow

from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.proxy.host import connections, hooks, upstream_client
from hivemind_addon.proxy.host import http_layer as our_layer
from hivemind_addon.proxy.host import stream as ours
from hivemind_addon.proxy.host.port import Alarm, Handling, Look, Next, Stage
from tests.proxy.gate.playbook import Playbook, make_context

WHICH = f"mitmproxy {mitmproxy.version.VERSION} is not as proxy/host/{{stream,http_layer,hooks,connections,upstream_client}}.py need it"


# The canary ---------------------------------------------------------------------------------------------------------------


def begun(layer):
    list(layer.handle_event(mevents.Start()))
    return layer


def make_samples():
    """One of each of mitmproxy's objects that we subclass, as mitmproxy makes it."""
    context = make_context()
    context.server = Server(address=("127.0.0.1", 9))
    http_layer = mhttp.HttpLayer(context, HTTPMode.regular)
    stream = mhttp.HttpStream(context.fork(), 1)
    stream.flow = http.HTTPFlow(context.client, context.server)
    return {
        "ScheduledStream": stream,
        "SchedulingHttpLayer": http_layer,
        "DrainingHttpLayer": http_layer,
        "FreshConnection": mhttp.GetHttpConnection(("127.0.0.1", 9), False, None, "tcp"),
        "GracefulHttpClient": mhttp.HttpClient(context),
        "GracefulHttp2Client": Http2Client(context),
        "GracefulH2Connection": Http2Client(context).h2_conn,
        "BoundedHttp1Client": Http1Client(context),
        "BoundedHttp1Server": Http1Server(context),
        "BoundedH2Connection": Http2Client(context).h2_conn,
        "BoundedHttp2": Http2Client(context),
        "BoundedHttp2Client": Http2Client(context),
        "BoundedHttp2Server": Http2Server(context),
        "DirectAddonManager": AddonManager(SimpleNamespace(options=context.options)),
        "TurnsLayer": begun(WebsocketLayer(context, tflow.twebsocketflow())),
        "BoundedUpstreamProxy": HttpUpstreamProxy(context, Server(address=("127.0.0.1", 9)), send_connect=True),
    }


SAMPLES = make_samples()
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef
MODULES = (connections, hooks, our_layer, upstream_client, ours)
CLASSES = {
    node.name: node
    for module in MODULES
    for node in ast.parse(Path(module.__file__).read_text()).body
    if isinstance(node, ast.ClassDef)
}


def own_names(node):
    """What one of our classes defines itself, or one of ours that it inherits."""
    inherited = [own_names(CLASSES[base.id]) for base in node.bases if getattr(base, "id", "") in CLASSES]
    methods = {part.name for part in node.body if isinstance(part, FUNCTIONS)}
    fields = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}
    fields |= {target.id for part in node.body if isinstance(part, ast.Assign) for target in part.targets}
    init = next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), node)
    assigned = {part.attr for part in ast.walk(init) if is_own(part) and isinstance(part.ctx, ast.Store)}
    return methods.union(fields, assigned, *inherited)


def is_own(node):
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def is_super(node):
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Call)
        and getattr(node.value.func, "id", "") == "super"
    )


def inherited_uses():
    for name, node in CLASSES.items():
        if name in SAMPLES:
            used = {part.attr for part in ast.walk(node) if is_own(part)} - own_names(node)
            used |= {part.attr for part in ast.walk(node) if is_super(part)}
            yield from ((name, attribute) for attribute in sorted(used))
    parents = {"ScheduledStream": "SchedulingHttpLayer"}
    for name, parent in parents.items():
        used = {
            part.attr
            for part in ast.walk(CLASSES[name])
            if isinstance(part, ast.Attribute) and is_own(part.value) and part.value.attr == "parent"
        }
        yield from ((parent, attribute) for attribute in sorted(used - own_names(CLASSES[parent])))


def overridden():
    for name, node in CLASSES.items():
        base = type(SAMPLES.get(name))
        for part in node.body:
            if isinstance(part, FUNCTIONS) and name in SAMPLES and hasattr(base, part.name):
                yield name, part.name


VALUES = {"HivemindHoldHook", "HivemindWaitHook", "EndAttempt", "SocketWord", "WholeRequest", "WholeResponse"}
"""They override nothing."""


def test_the_canary_sees_all_subclasses_of_mitmproxys_classes():
    foreign = {
        name
        for module in MODULES
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and any(base.__module__.startswith("mitmproxy") for base in value.__mro__)
    }
    assert foreign - VALUES == set(SAMPLES)


def test_every_inherited_name_that_we_use_is_there():
    uses = set(inherited_uses())
    gone = [(owner, name) for owner, name in uses if not hasattr(SAMPLES[owner], name) and name != "_handle_event"]
    assert len(uses) > 50
    assert not gone, WHICH


def test_every_method_that_we_override_takes_what_it_took():
    pairs = {(owner, name) for owner, name in overridden() if name != "__init__"}
    changed = {}
    for owner, name in pairs:
        theirs = inspect.signature(getattr(type(SAMPLES[owner]), name))
        mine = inspect.signature(getattr(next(vars(one)[owner] for one in MODULES if owner in vars(one)), name))
        if list(mine.parameters) != list(theirs.parameters):
            changed[owner, name] = str(theirs)
    assert len(pairs) > 20
    assert not changed, WHICH


SIGNATURES = {
    mhttp.HttpStream.__init__: ["self", "context", "stream_id"],
    mhttp.HttpStream.check_killed: ["self", "emit_error_hook"],
    mhttp.HttpStream.send_response: ["self", "already_streamed"],
    mhttp.HttpStream.handle_protocol_error: ["self", "event"],
    mhttp.HttpStream.flow_done: ["self"],
    mhttp.HttpLayer.__init__: ["self", "context", "mode"],
    mhttp.HttpLayer.get_connection: ["self", "event", "reuse"],
    mhttp.HttpLayer.register_connection: ["self", "command"],
    mhttp.GetHttpConnection.__init__: ["self", "address", "tls", "via", "transport_protocol"],
    mhttp.RegisterHttpConnection.__init__: ["self", "connection", "err"],
    mhttp.SendHttp.__init__: ["self", "event", "connection"],
    mhttp.DropStream.__init__: ["self", "stream_id"],
    ours.RequestHeaders.__init__: ["self", "stream_id", "request", "end_stream", "replay_flow"],
    ours.ResponseHeaders.__init__: ["self", "stream_id", "response", "end_stream"],
    ours.RequestProtocolError.__init__: ["self", "stream_id", "message", "code"],
    ours.ResponseProtocolError.__init__: ["self", "stream_id", "message", "code"],
    upstream_client.ReceiveHttp.__init__: ["self", "event"],
    BufferedH2Connection.__init__: ["self", "config"],
    HttpConnection.__init__: ["self", "context", "conn"],
    Http1Client.__init__: ["self", "context"],
    Http1Server.__init__: ["self", "context"],
    Http2Client.__init__: ["self", "context"],
    Http2Server.__init__: ["self", "context"],
    connections.make_body_reader: ["expected_size"],
    connections.make_error_response: ["status_code", "message"],
    connections.parse_h2_request_headers: ["h2_headers"],
    connections.parse_h2_response_headers: ["h2_headers"],
    mlayer.Layer.handle_event: ["self", "event"],
    WebsocketLayer.__init__: ["self", "context", "flow"],
    WebsocketConnection.send2: ["self", "event"],
    mevents.MessageInjected.__init__: ["self", "flow", "message"],
    Proxyserver.inject_event: ["self", "event"],
    traverse: ["chain"],
}


def test_what_we_call_takes_what_we_give():
    changed = {
        function.__qualname__: str(inspect.signature(function))
        for function, given in SIGNATURES.items()
        if list(inspect.signature(function).parameters) != given
    }
    assert not changed, WHICH


def test_shapes_that_no_signature_tells():
    http_layer = SAMPLES["SchedulingHttpLayer"]
    for name in ("streams", "connections", "waiting_for_establishment", "command_sources"):
        assert isinstance(getattr(http_layer, name), dict), f"{WHICH}: HttpLayer.{name} is no dict"
    buffer = SAMPLES["ScheduledStream"].response_body_buf
    buffer += b"x"
    assert bytes(buffer) == b"x", WHICH
    buffer.clear()
    assert bytes(buffer) == b"", WHICH
    assert isinstance(SAMPLES["GracefulHttp2Client"].streams, dict), WHICH
    assert isinstance(SAMPLES["ScheduledStream"].context.layers, list), WHICH
    assert "check_option_type(field.name, val, field.type)" in inspect.getsource(
        getattr(http.MessageData.__post_init__, "theirs", http.MessageData.__post_init__)
    ), f"{WHICH}: a message's check looks at more than types"
    assert isinstance(vars(http.Headers)["_kconv"], staticmethod), WHICH
    context = make_context()
    forked, theirs = our_layer._forked(context), context.fork()
    assert {**vars(forked), "layers": []} == {**vars(theirs), "layers": []}, f"{WHICH}: a fork is another thing"
    assert forked.layers == theirs.layers == context.layers, WHICH
    assert forked.layers is not context.layers, WHICH
    assert {"current", "default", "value", "_default"} <= set(dir(optmanager._Option)), WHICH
    assert isinstance(SAMPLES["BoundedH2Connection"].incoming_buffer._headers_buffer, list), WHICH
    assert isinstance(connections.make_body_reader(None), ChunkedReader), WHICH
    assert "self._servers" in inspect.getsource(inspect.getmodule(ServerInstance)), (
        f"{WHICH}: servers keep their listeners elsewhere"
    )
    assert "if type(inner) is HttpClient" in inspect.getsource(our_layer._bound)
    assert isinstance(SAMPLES["TurnsLayer"].client_ws._events, deque), WHICH
    assert "_handle_event = self.relay_messages" in inspect.getsource(WebsocketLayer.start), WHICH
    assert "self.child_layer = websocket.WebsocketLayer(" in inspect.getsource(mhttp.HttpStream.flow_done), WHICH
    known = {
        mhttp.SendHttp,
        mhttp.DropStream,
        mhttp.GetHttpConnection,
        mhttp.RegisterHttpConnection,
        our_layer.ReceiveHttp,
    }
    assert set(HttpCommand.__subclasses__()) == known, f"{WHICH}: event_to_child has to know another command"
    assert "self.connections[command.connection] = child" in inspect.getsource(mhttp.HttpLayer.event_to_child), WHICH
    assert "HttpClient(context)" in inspect.getsource(mhttp.HttpLayer.get_connection), (
        f"{WHICH}: get_connection builds another client"
    )


# The layer ----------------------------------------------------------------------------------------------------------------


class FakeExchange:
    """An exchange that does what the test says, and notes what it is told."""

    ticket_id = "7ee1f00d7ee1"

    def __init__(self, flow):
        self.flow = flow
        self.next = Next.SEND
        self.refusal = None
        self.over = False
        self.outgoing = None
        self.interim = b""
        self.tripped = False
        self.decided = True
        self.retry = []
        self.looks = []
        self.handling = Handling.COLLECT
        self.told = []
        self.bytes_heard = 0
        self.is_complete = self.is_ending = False
        self.stages = []
        self.alarm_s = None
        self.alarms = []

    def enter(self):
        self.told.append("enter")
        return self.decided

    def client_gone(self):
        self.told.append("client gone")

    def call_off(self):
        self.told.append("called off")
        self.over = True
        if not self.tripped:
            self.refusal = http.Response.make(400, b"cancelled", {"x-should-retry": "false"})

    def finished(self):
        self.over = True

    def cut_error(self, _detail):
        return b""

    def sent(self):
        self.told.append("sent")

    def head(self, response):
        self.told.append(f"head {response.status_code}")
        return self.handling

    def look(self, chunk):
        return self.looks.pop(0) if self.looks else Look.RELEASE

    def tee(self, chunk):
        return chunk

    def decoded_so_far(self):
        return b""

    def _verdict(self, what):
        self.told.append(what)
        return self.retry.pop(0) if self.retry else False

    def collected(self, response, body):
        return self._verdict(f"collected {response.status_code}")

    def failed(self, trouble, detail, *, client_saw_bytes):
        return self._verdict(f"failed {trouble.name}")

    def failed_in_stream(self):
        return self._verdict("failed in stream")

    def ended(self):
        return self._verdict("ended")

    def released(self, delivered):
        self.told.append("released")

    def streamed(self):
        self.told.append("streamed")

    def heard(self, chunk):
        self.bytes_heard += 1
        return chunk.startswith(b"data:")

    def complete(self, body):
        return self.is_complete

    def next_alarm_s(self, stage):
        self.stages.append(stage)
        return self.alarm_s

    def alarm(self, stage):
        return self.alarms.pop(0) if self.alarms else Alarm.NOTHING

    def committed_error(self, response, detail):
        return b"event: error\n\n"

    def trip(self, where, error):
        self.told.append(f"trip {where} {error!r}")


class FakePort:
    def __init__(self, prepare=lambda exchange: None):
        self.exchanges = []
        self.holds = []
        """What was said of reading the client."""
        self.redirected = {}
        self._prepare = prepare

    def page(self, request, client, destination):
        return http.Response.make(200, b"a page") if request.path == "/page" else None

    def call_hook(self, hook):
        return hook

    def is_ours(self, flow):
        return flow.request.path.startswith("/ours")

    def tap(self, flow, response):
        return True

    def passes_body(self, flow):
        return flow.request.path == "/ours/long"

    def hold_reading(self, client, *, held):
        self.holds.append(held)

    def make_exchange(self, flow):
        if not self.is_ours(flow):
            return None
        exchange = FakeExchange(flow)
        self._prepare(exchange)
        self.exchanges.append(exchange)
        return exchange


def play(prepare=lambda exchange: None, **more):
    port = FakePort(prepare)
    book = Playbook(
        our_layer.SchedulingHttpLayer(make_context(**more.pop("options", {})), HTTPMode.regular, port), **more
    )
    return book, port


def request(path="/ours", body=b"question"):
    return b"POST http://origin.test%s HTTP/1.1\r\nhost: origin.test\r\ncontent-length: %d\r\n\r\n%s" % (
        path.encode(),
        len(body),
        body,
    )


def response(status=200, body=b"answer"):
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def named(answer):
    """An answer as its client gets it: its head tells the ticket's id."""
    head, gap, body = answer.partition(b"\r\n\r\n")
    return b"%s\r\nx-hivemind-request: %s%s%s" % (head, FakeExchange.ticket_id.encode(), gap, body)


def hook_names(book):
    return [hook.name for hook in book.hooks]


def test_a_request_that_is_not_ours_has_no_exchange():
    book, port = play()
    book.from_client(request("/theirs"))
    book.from_server(response())
    assert book.to_client.endswith(b"answer")
    assert port.exchanges == []


def test_a_page_is_answered_before_any_hook_and_the_next_request_goes_on():
    book, port = play()
    book.from_client(request("/page", b"x" * 100_000))
    assert book.to_client.endswith(b"a page")
    assert not book.hooks
    assert not book.opened
    assert not book.layer.streams
    book.from_client(request("/other"))
    assert len(book.opened) == 1
    assert port.exchanges == []


LONG = 3 * ours.MOST_WAITING_BYTES


def play_long(*, decided=True, **more):
    """A request whose body goes on as it comes, all of it sent."""

    def on_hook(hook):
        if hook.name == "requestheaders":
            hook.flow.request.stream = True
        return hook.name != "hivemind_hold"

    book, port = play(lambda exchange: setattr(exchange, "decided", decided), on_hook=on_hook, **more)
    whole = request("/ours/long", b"x" * LONG)
    for at in range(0, len(whole), LONG // 16):
        book.from_client(whole[at : at + LONG // 16])
    return book, port


def test_a_long_body_that_waits_for_its_turn_is_read_again_once_it_goes():
    book, port = play_long(decided=False)
    assert port.holds == [True]
    book.answer(book.hooks[-1])
    assert port.holds == [True, False]
    assert book.to_server().endswith(b"x" * LONG)


def test_so_is_one_that_comes_while_the_proxy_connects():
    book, port = play_long(defer_opening=True)
    assert port.holds == [True]
    book.open()
    assert port.holds == [True, False]
    assert book.to_server().endswith(b"x" * LONG)
    book.from_server(response())
    assert book.to_client.endswith(b"answer")


def test_so_is_one_that_is_refused_before_it_came():
    book, port = play_long(decided=False)
    port.exchanges[0].next = Next.REFUSE
    port.exchanges[0].refusal = http.Response.make(429, b"later")
    book.answer(book.hooks[-1])
    assert port.holds == [True, False]
    assert book.to_client.startswith(b"HTTP/1.1 429")


def test_a_retried_request_is_sent_again_unchanged_and_the_client_sees_the_last_answer_only():
    book, port = play(lambda exchange: exchange.retry.extend([True, True]))
    book.from_client(request())
    sent = book.to_server()
    book.from_server(response(429, b"later"))
    book.from_server(response(503, b"later"))
    assert book.to_client == b""
    book.from_server(response())
    assert book.to_client.startswith(b"HTTP/1.1 200")
    assert b"later" not in book.to_client
    assert len(book.opened) == 1
    assert book.to_server() == sent * 3
    assert port.exchanges[0].told == [
        "enter",
        "sent",
        "head 429",
        "collected 429",
        "enter",
        "sent",
        "head 503",
        "collected 503",
        "enter",
        "sent",
        "head 200",
        "collected 200",
    ]
    assert [hook_names(book).count(name) for name in ("requestheaders", "request", "responseheaders", "response")] == [
        1,
        1,
        3,
        1,
    ]
    assert book.layer.streams == {}


def test_a_cut_answer_is_asked_for_again_on_another_connection():
    book, port = play(lambda exchange: exchange.retry.append(True))
    book.from_client(request())
    book.from_server(response()[:-3])
    book.close(book.opened[0])
    book.from_server(response())
    assert len(book.opened) == 2
    assert book.to_client.endswith(b"answer")
    assert "failed CUT" in port.exchanges[0].told
    assert list(book.layer.connections) == [book.client, book.opened[1]]


def test_nothing_is_sent_upstream_while_a_request_is_held_and_a_close_is_seen_at_once():
    def prepare(exchange):
        exchange.decided = False

    book, port = play(prepare, on_hook=lambda hook: hook.name != "hivemind_hold")
    book.from_client(request())
    assert book.opened == []
    assert hook_names(book)[-1] == "hivemind_hold"
    assert port.exchanges[0].told == ["enter"]
    book.close(book.client)
    assert port.exchanges[0].told == ["enter", "client gone"]
    port.exchanges[0].next = Next.LEAVE
    book.answer(book.hooks[-1])
    assert book.opened == []
    assert book.layer.streams == {}


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b""])
@pytest.mark.parametrize("decided", [True, False])
def test_a_held_client_hears_interim_responses_until_its_request_goes(interim, decided):
    def prepare(exchange):
        exchange.interim, exchange.decided = interim, decided

    book, port = play(prepare, on_hook=lambda hook: hook.name != "hivemind_hold")
    book.from_client(request())
    if not decided:
        for what in (Next.PULSE, Next.PULSE, Next.SEND) if interim else (Next.SEND,):
            assert book.opened == []
            port.exchanges[0].next = what
            book.answer(book.hooks[-1])
    book.from_server(response())
    assert book.to_client == interim * 3 * (not decided) + named(response())


def test_a_refusal_goes_to_the_client_and_nothing_upstream():
    def prepare(exchange):
        exchange.next = Next.REFUSE
        exchange.refusal = http.Response.make(429, b"come back", {"retry-after": "3"})

    book, _ = play(prepare)
    book.from_client(request())
    assert book.opened == []
    assert book.to_client.startswith(b"HTTP/1.1 429")
    assert book.to_client.endswith(b"come back")
    assert book.layer.streams == {}


def test_a_connection_that_does_not_open_is_a_failure_of_the_attempt():
    book, port = play(lambda exchange: exchange.retry.extend([True, False]), refuse="Connection refused")
    book.from_client(request())
    assert port.exchanges[0].told == ["enter", "failed CONNECT_FAILED"] * 2
    assert book.to_client.startswith(b"HTTP/1.1 502")
    assert book.layer.streams == {}


def test_what_is_kept_back_is_released_in_order_and_then_streamed():
    def prepare(exchange):
        exchange.handling = Handling.PEEK
        exchange.looks = [Look.HOLD_BACK, Look.HOLD_BACK, Look.RELEASE]

    book, port = play(prepare)
    book.from_client(request())
    book.from_server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    book.from_server(b"3\r\none\r\n")
    book.from_server(b"3\r\ntwo\r\n")
    assert book.to_client == b""
    book.from_server(b"5\r\nthree\r\n")
    assert book.to_client.endswith(b"b\r\nonetwothree\r\n")
    book.from_server(b"4\r\nfour\r\n0\r\n\r\n")
    assert book.to_client.endswith(b"4\r\nfour\r\n0\r\n\r\n")
    assert port.exchanges[0].told[-1] == "streamed"
    assert port.exchanges[0].flow.response.content == b"onetwothreefour"


def refusing(exchange):
    exchange.next, exchange.refusal = Next.REFUSE, http.Response.make(429, b"come back", {"retry-after": "3"})


def streaming(exchange):
    exchange.handling = Handling.PEEK


def keeping_alive(exchange):
    streaming(exchange)
    exchange.keep_alive = b": held\n\n"
    exchange.alarms = [Alarm.PULSE]
    exchange.alarm_s = 1.0


def test_every_answer_tells_its_ticket_and_the_flow_keeps_the_providers_head():
    chunks = b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n6\r\nanswer\r\n"
    elsewhere = b"HTTP/1.1 200 X\r\nX-Hivemind-Request: of another proxy\r\ncontent-length: 0\r\n\r\n"
    page = make_error_response(502, "bad head: it is no HTTP/1")
    cases = {
        "plain": (None, [response()], named(response())),
        "of a proxy behind ours": (
            None,
            [elsewhere],
            named(elsewhere.replace(elsewhere.split(b"\r\n")[1] + b"\r\n", b"")),
        ),
        "tried again": (lambda one: one.retry.append(True), [response(503), response()], named(response())),
        "refused": (
            refusing,
            [],
            named(b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: 9\r\n\r\ncome back"),
        ),
        "streamed": (streaming, [chunks + b"0\r\n\r\n"], named(chunks + b"0\r\n\r\n")),
        "cut": (streaming, [chunks, None], named(chunks)),
        "an error of ours": (None, [b"no HTTP\r\n\r\n"], named(page)),
    }
    for name, (prepare, pieces, wanted) in cases.items():
        book, port = play(prepare or (lambda exchange: None))
        book.from_client(request())
        for piece in pieces:
            book.close(book.opened[-1]) if piece is None else book.from_server(piece)
        assert book.to_client == wanted, name
        kept = port.exchanges[0].flow.response
        assert kept is None or "7ee1f00d7ee1" not in str(kept.headers), name


def test_a_stream_that_is_kept_alive_tells_its_ticket_once():
    book, _ = play(keeping_alive)
    book.from_client(request())
    book.ring()
    book.from_server(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n6\r\nanswer\r\n0\r\n\r\n")
    assert b": held" in book.to_client
    assert book.to_client.count(b"x-hivemind-request: 7ee1f00d7ee1\r\n") == 1


def silent(*alarms, handling=Handling.COLLECT):
    """An exchange that wants to be asked in a minute, and then says `alarms`."""

    def prepare(exchange):
        exchange.alarm_s = 60.0
        exchange.alarms = list(alarms)
        exchange.handling = handling

    return prepare


def test_the_layer_asks_at_every_stage_of_an_attempt_and_no_alarm_is_long():
    book, port = play(silent(handling=Handling.PEEK))
    book.from_client(request())
    book.from_server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    book.from_server(b"3\r\none\r\n")
    assert port.exchanges[0].stages == [Stage.AWAITED, Stage.PEEKED, Stage.STREAMED]
    assert [wakeup.delay for wakeup in book.wakeups] == [ours.LONGEST_ALARM_S], "the first one rings in time for all"
    book.ring()
    assert port.exchanges[0].stages[3:] == [Stage.STREAMED]
    book.from_server(b"0\r\n\r\n")
    book.ring()
    assert port.exchanges[0].told[-1] == "streamed"
    assert book.layer.streams == {}


def test_what_is_due_sooner_gets_an_alarm_of_its_own():
    book, port = play(silent(handling=Handling.PEEK))
    book.from_client(request())
    exchange = port.exchanges[0]
    exchange.alarm_s = 1.0
    book.from_server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    assert [wakeup.delay for wakeup in book.wakeups] == [ours.LONGEST_ALARM_S, 1.0]
    book.ring(0)
    assert exchange.stages == [Stage.AWAITED, Stage.PEEKED], "the first one is not wanted any more"
    book.ring()
    assert exchange.stages == [Stage.AWAITED, Stage.PEEKED, Stage.PEEKED]


def test_an_alarm_that_a_request_leaves_rings_for_the_next_one():
    book, port = play(silent())
    for _ in range(3):
        book.from_client(request())
        book.from_server(response())
    assert len(book.wakeups) == 1
    book.from_client(request())
    book.ring()
    assert port.exchanges[3].stages == [Stage.AWAITED, Stage.AWAITED]
    assert len(book.wakeups) == 1, "it has rung, and this one goes on waiting"
    book.from_server(response())
    book.ring()
    book.from_client(request())
    assert len(book.wakeups) == 1, "that one rang for nobody"


def test_a_plain_answer_that_goes_on_is_heard():
    book, port = play(silent())
    book.from_client(request())
    book.from_server(response()[:-3])
    book.from_server(b"w")
    assert port.exchanges[0].stages == [Stage.AWAITED, Stage.COLLECTED]
    assert port.exchanges[0].bytes_heard == 2


@pytest.mark.parametrize("came", [b"", response()[:-3]], ids=["no head", "half a body"])
def test_a_silent_attempt_is_ended_and_asked_for_again_on_another_connection(came):
    book, port = play(silent(Alarm.STALLED))
    book.from_client(request())
    port.exchanges[0].retry.append(True)
    if came:
        book.from_server(came)
    book.ring()
    assert "failed STALLED" in port.exchanges[0].told
    assert book.opened[0].state is ConnectionState.CLOSED
    book.from_server(response())
    assert len(book.opened) == 2
    assert book.to_client.startswith(b"HTTP/1.1 200")
    assert book.to_client.endswith(b"answer")
    assert book.layer.streams == {}


def test_a_stream_that_falls_silent_before_the_clients_eyes_is_cut():
    book, port = play(silent(Alarm.STALLED, handling=Handling.PEEK))
    book.from_client(request())
    book.from_server(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
    book.ring()
    assert port.exchanges[0].told[-1] == "failed STALLED"
    assert book.opened[0].state is ConnectionState.CLOSED
    assert book.client.state is ConnectionState.CLOSED
    assert b"0\r\n\r\n" not in book.to_client
    assert book.layer.streams == {}


def test_an_attempt_whose_client_asked_again_elsewhere_is_ended():
    book, port = play()
    book.from_client(request())
    exchange = port.exchanges[0]
    book.tell(ours.EndAttempt(exchange.flow))
    assert exchange.told == ["enter", "sent", "client gone"]
    assert book.opened[0].state is ConnectionState.CLOSED
    assert book.layer.streams == {}


def test_nothing_is_ended_for_another_flow_or_while_the_request_is_held():
    def prepare(exchange):
        exchange.decided = False

    book, port = play(prepare, on_hook=lambda hook: hook.name != "hivemind_hold")
    book.from_client(request())
    book.tell(ours.EndAttempt(http.HTTPFlow(book.client, Server(address=None))))
    book.tell(ours.EndAttempt(port.exchanges[0].flow))
    assert port.exchanges[0].told == ["enter"]
    assert len(book.layer.streams) == 1


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def called_off(book, port):
    """A person cancels the request that runs."""
    book.tell(ours.EndAttempt(port.exchanges[0].flow, called_off=True))
    assert book.layer.streams == {}
    assert book.opened[0].state is ConnectionState.CLOSED, "nothing runs upstream any more"


@pytest.mark.parametrize("came", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"])
def test_a_request_that_is_called_off_before_its_answer_went_out_gets_the_refusal(came):
    book, port = play()
    book.from_client(request())
    book.from_server(came)
    called_off(book, port)
    assert book.to_client.startswith(b"HTTP/1.1 400")
    assert book.to_client.endswith(b"cancelled")
    assert book.to_client.count(b"HTTP/1.1") == 1
    assert b"half" not in book.to_client
    assert book.client.state is ConnectionState.OPEN, "its connection goes on"
    assert hook_names(book)[-1] == "response"


def test_a_stream_that_is_kept_back_is_thrown_away_when_it_is_called_off():
    def prepare(exchange):
        exchange.handling, exchange.looks = Handling.PEEK, [Look.HOLD_BACK]

    book, port = play(prepare)
    book.from_client(request())
    book.from_server(SSE_HEAD + b"\r\n" + chunk(b"data: 1\n\n"))
    called_off(book, port)
    assert book.to_client.startswith(b"HTTP/1.1 400")
    assert b"data: 1" not in book.to_client


@pytest.mark.parametrize(
    ("sent", "between"), [(b"data: 1\n\n", b""), (b"data: 1\n\ndata: {half", b"\n")], ids=["whole", "half"]
)
def test_a_stream_of_which_the_client_has_seen_a_part_ends_with_one_error_event(sent, between):
    def prepare(exchange):
        exchange.handling = Handling.PEEK

    book, port = play(prepare)
    book.from_client(request())
    book.from_server(SSE_HEAD + b"\r\n" + chunk(b"data: 0\n\n"))
    book.from_server(chunk(sent))
    called_off(book, port)
    event = b"event: error\n\n"
    assert book.to_client.endswith(chunk(sent) + chunk(between + event) + b"0\r\n\r\n")
    assert port.exchanges[0].flow.response.content.endswith(sent + between + event)
    assert book.client.state is ConnectionState.OPEN


@pytest.mark.parametrize("header", [b"content-encoding: gzip\r\n", b""], ids=["encoded", "of known length"])
def test_where_nothing_can_follow_what_it_has_seen_the_client_sees_a_cut(header):
    def prepare(exchange):
        exchange.handling = Handling.PEEK

    book, port = play(prepare)
    book.from_client(request())
    head = SSE_HEAD if header else SSE_HEAD.replace(b"transfer-encoding: chunked", b"content-length: 99")
    book.from_server(head + header + b"\r\n" + (chunk(b"data: 1\n\n") if header else b"data: 1\n\n"))
    called_off(book, port)
    assert b"event: error" not in book.to_client
    assert not book.to_client.endswith(b"0\r\n\r\n")
    assert book.client.state is ConnectionState.CLOSED


COUNTED = SSE_HEAD.replace(b"transfer-encoding: chunked", b"content-length: 99")


@pytest.mark.parametrize(
    ("head", "pieces", "hears"),
    [
        (SSE_HEAD, (b"data: 1\n\n",), True),
        (SSE_HEAD, (b"data: 1\r\n\r", b"\n"), True),
        (SSE_HEAD, (b"data: 1\n",), False),
        (SSE_HEAD, (b"data: {half",), False),
        (SSE_HEAD + b"content-encoding: gzip\r\n", (b"data: 1\n\n",), False),
        (SSE_HEAD.replace(b"event-stream", b"plain"), (b"data: 1\n\n",), False),
        (COUNTED, (b"data: 1\n\n",), False),
    ],
    ids=["an event", "in pieces", "amid an event", "amid a line", "encoded", "no events", "of known length"],
)
def test_the_client_of_a_stream_that_is_silent_between_two_events_hears_that_it_lives(head, pieces, hears):
    def prepare(exchange):
        exchange.handling, exchange.alarm_s, exchange.keep_alive = Handling.PEEK, 0.0, b": held\n\n"

    book, port = play(prepare)
    book.from_client(request())
    book.from_server(head + b"\r\n")
    for piece in (b"data: 0\n\n", *pieces):
        book.from_server(piece if head is COUNTED else chunk(piece))
    port.exchanges[0].alarms = [Alarm.PULSE]
    book.ring()
    assert book.to_client.endswith(b": held\n\n\r\n") is hears


def test_a_committed_stream_that_is_called_off_ends_with_one_error_event():
    def prepare(exchange):
        exchange.alarms, exchange.alarm_s = [Alarm.PULSE], 0.0

    book, port = play(prepare)
    book.from_client(request())
    book.ring()
    called_off(book, port)
    assert book.to_client.endswith(chunk(b"event: error\n\n") + b"0\r\n\r\n")
    assert book.to_client.count(b"HTTP/1.1") == 1


def test_what_is_called_off_while_it_connects_is_refused_when_that_is_over():
    book, port = play(defer_opening=True)
    book.from_client(request())
    book.tell(ours.EndAttempt(port.exchanges[0].flow, called_off=True))
    assert port.exchanges[0].told == ["enter", "called off"], "its slot is free at once"
    book.open()
    assert book.to_client.startswith(b"HTTP/1.1 400")
    assert b"question" not in book.to_server()
    assert book.layer.streams == {}


def test_what_our_guard_has_in_hand_is_cut_when_it_is_called_off():
    def prepare(exchange):
        exchange.tripped = True
        exchange.call_off = lambda: exchange.told.append("called off")

    book, port = play(prepare)
    book.from_client(request())
    book.tell(ours.EndAttempt(port.exchanges[0].flow, called_off=True))
    assert port.exchanges[0].told == ["enter", "sent", "called off", "client gone"]
    assert book.opened[0].state is ConnectionState.CLOSED
    assert book.layer.streams == {}


def test_an_exception_in_the_layer_is_a_trip_and_an_answer(monkeypatch):
    def boom(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(ours.ScheduledStream, "_end_collecting", boom)
    book, port = play()
    book.from_client(request())
    book.from_server(response())
    assert book.to_client.startswith(b"HTTP/1.1 502")
    assert port.exchanges[0].told[-1] == "trip layer RuntimeError('boom')"
    assert book.layer.streams == {}


def test_2000_refused_attempts_do_not_recurse():
    book, port = play(lambda exchange: exchange.retry.extend([True] * 2000))
    book.from_client(request())
    for _ in range(2000):
        book.from_server(response(429, b""))
    book.from_server(response())
    assert book.to_client.endswith(b"answer")
    assert port.exchanges[0].told.count("sent") == 2001
    assert book.layer.streams == {}


def test_mitmproxys_words_for_a_connection_that_did_not_open():
    cases = (
        ("certificate verify failed: self-signed", TransportTrouble.CERTIFICATE),
        ("[Errno -2] Name or service not known", TransportTrouble.NAME_NOT_FOUND),
        ("[Errno 111] Connect call failed", TransportTrouble.CONNECT_FAILED),
    )
    assert [(error, trouble) for error, trouble in cases if upstream_client.connect_trouble(error) is not trouble] == []


def test_mitmproxys_words_for_an_attempt_that_broke():
    cases = (
        ("stream reset by server (REFUSED_STREAM)", False, TransportTrouble.REFUSED_STREAM),
        ("not processed before GOAWAY", True, TransportTrouble.REFUSED_STREAM),
        (f"{connections.BAD_HEAD}x", False, TransportTrouble.INVALID),
        ("server closed connection", False, TransportTrouble.CLOSED_BEFORE_HEAD),
        ("server closed connection", True, TransportTrouble.CUT),
    )
    assert [
        (message, head_came, trouble)
        for message, head_came, trouble in cases
        if upstream_client.attempt_trouble(message, head_came=head_came) is not trouble
    ] == []


def test_a_stack_without_http_stays_as_it_is():
    nothing = mlayer.NextLayer(make_context())
    assert our_layer.scheduling_layer(nothing, FakePort()) is nothing
    assert our_layer.scheduling_layer(None, FakePort()) is None
    context = make_context()
    assert (
        type(our_layer.scheduling_layer(mhttp.HttpLayer(context, HTTPMode.regular), FakePort()))
        is our_layer.SchedulingHttpLayer
    )
    assert len(context.layers) == 1
