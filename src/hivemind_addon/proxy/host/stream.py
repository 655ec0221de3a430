"""Hold, peek, retry and keep-alive inside mitmproxy's HTTP layer.

Every private mitmproxy name we use is in this file and, of its layer, hooks, connections and TLS, in `http_layer.py`,
`hooks.py`, `connections.py` and `upstream_client.py` beside it.

mitmproxy builds one `HttpStream` per request inside one `HttpLayer` per client connection. We subclass both:

    request complete ─ request hooks ─► make_server_connection = the one gate ─► hold ─► connect ─► send
                                             ▲                                                        │
                                             └───── retry: no byte of the answer has gone out ◄───────┤
                                                                                                      ▼
              client ◄── streaming ◄── peeking (SSE, before its first content) ◄── head ── collecting ──► client

Layers are sans-io generators: they yield commands and get events. We stay so: the only wait of ours is the blocking
`HivemindHoldHook`, which carries the exchange and no flow (a hook with a flow costs mitmweb an update). All
decisions are the exchange's (`proxy/gate/exchange.py`), which never raises: its guard turns an exception into "go on".

An attempt is known upstream by an id. The first has the stream's own id, each later one a fresh alias in
`HttpLayer.streams` (an h2 upstream never reuses an id); late events of an attempt that was given up are told apart
by theirs. Between attempts `attempt_id` is None and nothing from upstream is listened to.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from mitmproxy import http
from mitmproxy.connection import ConnectionState
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import (
    DropStream,
    HTTPMode,
    HttpStream,
    SendHttp,
)
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)
from mitmproxy.proxy.layers.http._hooks import (
    HttpConnectedHook,
    HttpConnectErrorHook,
    HttpConnectHook,
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)
from mitmproxy.proxy.layers.websocket import (
    WebsocketEndHook,
    WebsocketLayer,
    WebsocketMessageHook,
    WebSocketMessageInjected,
)
from wsproto.connection import ConnectionState as SocketState
from wsproto.events import CloseConnection, TextMessage
from wsproto.frame_protocol import CloseReason

from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.kernel.values.ticket import REQUEST_HEADER
from hivemind_addon.proxy.host.body import Body
from hivemind_addon.proxy.host.connections import (
    BoundedHttp1Client,
    BoundedHttp1Server,
    BoundedUpstreamProxy,
    WholeRequest,
    WholeResponse,
    error_page,
    over,
)
from hivemind_addon.proxy.host.heads import BAD_HEAD, is_framed, with_field
from hivemind_addon.proxy.host.port import (
    MAX_PAGE_BODY_BYTES,
    Alarm,
    ExchangePort,
    Handling,
    Look,
    Next,
    Outgoing,
    SocketPort,
    Stage,
)
from hivemind_addon.proxy.host.upstream_client import (
    FreshConnection,
    attempt_trouble,
    connect_trouble,
)
from hivemind_addon.proxy.host.writes import Flush

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mitmproxy.proxy.context import Context

    from hivemind_addon.proxy.host.http_layer import SchedulingHttpLayer
    from hivemind_addon.proxy.host.port import TakesBody

REQUEST_PARTS = RequestHeaders, RequestData, RequestTrailers, RequestEndOfMessage
RESPONSE_PARTS = ResponseHeaders, ResponseData, ResponseTrailers, ResponseEndOfMessage
FROM_SERVER = (*RESPONSE_PARTS, ResponseProtocolError)
FLOW_HOOKS = frozenset(
    {
        HttpConnectedHook,
        HttpConnectErrorHook,
        HttpConnectHook,
        HttpErrorHook,
        HttpRequestHeadersHook,
        HttpRequestHook,
        HttpResponseHeadersHook,
        HttpResponseHook,
    }
)
"""Hooks of a stream of ours."""
LONGEST_ALARM_S = 5.0
"""After this time an exchange is asked again, whatever it waits for: so long may an alarm outlive its stream."""
CALLED_OFF = "a person cancelled it"
_SWITCHING = 101
"""The status of an answer after which another protocol is spoken."""
MOST_WAITING_BYTES = 1024 * 1024
"""Of a body that goes on as it comes, while it cannot."""


@dataclass
class HivemindHoldHook(commands.StartHook):
    """Wait until the exchange may go on; the addon sets `exchange.next`."""

    exchange: ExchangePort


class EndAttempt(events.MessageInjected[None]):
    """From the addon: the flow's client has asked again elsewhere, so its running attempt is of no use any more.

    `called_off`: no, a person cancelled it, and its client is to be told.
    """

    def __init__(self, flow: http.HTTPFlow, *, called_off: bool = False) -> None:
        super().__init__(flow, None)
        self.called_off = called_off


class SocketWord(WebSocketMessageInjected):
    """From the addon: the flow's WebSocket has something to write."""

    def __init__(self, flow: http.HTTPFlow) -> None:
        super().__init__(flow, None)  # type: ignore[arg-type]  # it waits with the socket


class TurnsLayer(WebsocketLayer):
    """A WebSocket whose turns are scheduled: what a turn writes goes out whole, in one frame, before what follows."""

    turns: SocketPort

    def relay_messages(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Tell what came once other addons have seen it; write what is due."""
        if isinstance(event, SocketWord):
            yield from self._write()
            return
        relaying = super().relay_messages(event)
        reply = None
        while True:
            try:
                command = relaying.send(reply)
            except StopIteration:
                return
            if isinstance(command, WebsocketEndHook):
                assert self.flow.websocket
                self.turns.closed(by_client=bool(self.flow.websocket.closed_by_client))
            reply = yield command
            if isinstance(command, WebsocketMessageHook):
                assert self.flow.websocket
                self.turns.came(self.flow.websocket.messages[-1])
                yield from self._write()
                if self._handle_event == self.done:
                    return

    def _write(self) -> layer.CommandGenerator[None]:
        for written in self.turns.take():
            if written is None:
                # As if the client had said good-bye: what it sends behind that is for nobody.
                self.client_ws._events.append(CloseConnection(CloseReason.GOING_AWAY))  # noqa: SLF001
                yield from super().relay_messages(events.DataReceived(self.context.client, b""))
                self.turns.closed(by_client=True)
                return
            to_client, text = written
            peer = self.client_ws if to_client else self.server_ws
            if peer.state is SocketState.OPEN:
                yield peer.send2(TextMessage(text.decode("utf-8", "replace")))


class ScheduledStream(HttpStream):
    """One request. Behaves as mitmproxy's own unless the port claims it."""

    _takes_body: TakesBody | None = None
    """Makes the answer of one of the proxy's own pages that takes a body."""
    _page_body: bytearray

    def __init__(self, context: Context, stream_id: int, parent: SchedulingHttpLayer) -> None:
        super().__init__(context, stream_id)
        self.request_body_buf = Body()  # type: ignore[assignment]  # it does what the host asks of its own
        self.response_body_buf = Body()  # type: ignore[assignment]
        self.parent = parent
        self.attempt_id: int | None = stream_id
        self.exchange: ExchangePort | None = None
        self.committed = False
        """Head 200 and comments of ours have been sent: what follows is an SSE body or one error event."""
        self.held_back: list[bytes] = []
        self._request_sent = False
        self._is_head_out = False
        """The client has the head of an answer."""
        self._outgoing: Outgoing | None = None
        """What the running attempt sends in place of the flow's request."""
        self._seen_end = b"\n\n"
        """The last bytes of an answer that the client has seen."""
        self._alarm: commands.RequestWakeup | None = None
        self._keeps_answer = True
        """What has come of the answer is kept, to be in the flow at its end."""
        self._waiting_bytes = 0
        """Of the request's body, which goes on as it comes, since this stream waits."""
        self._holds_reading = False

    @property
    def takes_whole(self) -> bool:
        """Whether a request's body, of which its head has come, may be given to it in one piece."""
        return self._paused is None and self.client_state == self.state_consume_request_body

    @property
    def claimed(self) -> bool:
        """Whether this request is scheduled; asked anew, because other addons may change it until the gate."""
        return self.exchange is not None or self.parent.port.is_ours(self.flow)

    # Events ----------------------------------------------------------------------------------------------------------

    def handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        """See a client's going and a person's word at once, also while this stream waits and its events queue up."""
        if self.exchange:
            if isinstance(event, RequestData) and self._paused is not None:
                self._keep_waiting(len(event.data))
            elif isinstance(event, RequestProtocolError):
                self.exchange.client_gone()
            elif isinstance(event, EndAttempt) and event.called_off:
                self.exchange.call_off()
        reaction = super().handle_event(event)
        return self._until_it_goes_on(reaction) if self._waiting_bytes else reaction

    def _keep_waiting(self, size: int) -> None:
        """A piece of a body came that cannot go on yet: soon no more of it is to come here."""
        self._waiting_bytes += size
        if self._waiting_bytes > MOST_WAITING_BYTES and not self._holds_reading:
            self._holds_reading = True
            self.parent.port.hold_reading(self.context.client, held=True)

    def _until_it_goes_on(self, reaction: layer.CommandGenerator[None]) -> layer.CommandGenerator[None]:
        """React; and once this stream waits for nothing, whatever that was, what came of the body has gone on."""
        yield from reaction
        if self._paused is None:
            self._waiting_bytes = 0
            if self._holds_reading:
                self._holds_reading = False
                self.parent.port.hold_reading(self.context.client, held=False)

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        """React. The flow's hooks are called on the way: only what takes time is left to whoever runs the layer."""
        if isinstance(event, FROM_SERVER):
            if event.stream_id != self.attempt_id:
                return  # a late event of an attempt that was given up
            event.stream_id = self.stream_id
        doing: layer.CommandGenerator[None] | None = None
        reply = None
        has_failed = False
        while True:
            try:
                if doing is None:
                    doing = self._reaction(event)  # the gate opens in here
                command = doing.send(reply)
            except StopIteration:
                return
            except Exception as error:  # the guard at the edge: the client must get an answer
                if self.exchange is None or has_failed:
                    raise
                has_failed = True
                self.exchange.trip("layer", error)
                doing = self._fail(f"hivemind_addon failed: {error!r}", ErrorCode.GENERIC_SERVER_ERROR)
                reply = None
                continue
            if type(command) in FLOW_HOOKS and command.blocking is True:
                begun = self.parent.port.call_hook(cast("commands.StartHook", command))
                if begun is None:
                    reply = None
                    continue
                command = begun
            if type(command) is SendHttp:
                if self._outgoing is not None:
                    self._replace(command, self._outgoing.request)
                if not self._is_head_out and self.exchange is not None and command.connection is self.context.client:
                    yield from self._named(command, self.exchange)
                    reply = None
                    continue
            reply = yield command

    def _replace(self, command: SendHttp, request: http.Request) -> None:
        """Send another request than the flow's, which keeps the client's own."""
        event = command.event
        if isinstance(event, RequestHeaders):
            event.request = request
            if type(event) is WholeRequest:
                event.content = request.raw_content or b""
        elif isinstance(event, RequestData):
            event.data = request.raw_content or b""

    def _named(self, command: SendHttp, exchange: ExchangePort) -> layer.CommandGenerator[None]:
        """Let the head of the answer tell the ticket's id, to the client alone: the flow's is as the provider made it.

        So does the page that mitmproxy would make of an error.
        """
        event = command.event
        if isinstance(event, ResponseHeaders):
            self._is_head_out = True
            event.response = with_field(event.response, REQUEST_HEADER, exchange.ticket_id)
        elif isinstance(event, ResponseProtocolError) and (page := self._error_page(event)):
            self._is_head_out = True
            head = with_field(page, REQUEST_HEADER, exchange.ticket_id)
            yield SendHttp(ResponseHeaders(self.stream_id, head), self.context.client)
            yield SendHttp(ResponseData(self.stream_id, page.raw_content or b""), self.context.client)
            if page.is_http2:  # of HTTP/1 the connection ends with it
                command = SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        yield command

    def _error_page(self, event: ResponseProtocolError) -> http.Response | None:
        status = event.code.http_status_code()
        if status is None or not self.context.client.state & ConnectionState.CAN_WRITE:
            return None
        return error_page(status, event.message, self.flow.request)

    def _reaction(self, event: events.Event) -> layer.CommandGenerator[None]:
        """What an event leads to; a message's parts go to its state without a step in between."""
        if type(event) is WholeRequest:
            return self._take_request(event)
        if type(event) is WholeResponse:
            return self._take_answer(event)
        if isinstance(event, REQUEST_PARTS):
            return self.client_state(event)  # type: ignore[no-any-return]  # the host assigns it
        if isinstance(event, RESPONSE_PARTS):
            return self.server_state(event)  # type: ignore[no-any-return]
        exchange = self.exchange
        if exchange is not None:
            if isinstance(event, events.Wakeup):
                return self._on_alarm(exchange, event)
            if isinstance(event, EndAttempt):
                return self._on_called_off(exchange) if event.called_off else self._on_end_attempt(exchange)
            if isinstance(event, ResponseProtocolError):
                return self._on_server_error(exchange, event)
            if isinstance(event, RequestProtocolError):
                return self._on_client_error(event)
        return super()._handle_event(event)  # type: ignore[no-any-return]  # the host reassigns it

    def _take_request(self, event: WholeRequest) -> layer.CommandGenerator[None]:
        """One that came in one piece: its parts, unless the head has led elsewhere."""
        yield from self.client_state(event)
        if self.client_state == self.state_consume_request_body:
            yield from self._end_request(event.content)
            return
        for part in (RequestData(self.stream_id, event.content), RequestEndOfMessage(self.stream_id)):
            if self.parent.streams.get(self.stream_id) is self:  # else it is over, and more of it is for nobody
                yield from self._handle_event(part)

    def _take_answer(self, event: WholeResponse) -> layer.CommandGenerator[None]:
        """The same of an answer."""
        attempt_id = self.attempt_id
        yield from self.server_state(event)
        if self.server_state == self.state_collect and self.attempt_id == attempt_id:
            if not self._scheduled().heard(event.content):
                yield from self._end_collecting(event.content)
                return
            self.server_state = self.state_peek
        for part in (ResponseData(self.stream_id, event.content), ResponseEndOfMessage(self.stream_id)):
            if self.attempt_id == attempt_id and self.parent.streams.get(self.stream_id) is self:
                yield from self.server_state(part)

    def _on_client_error(self, event: RequestProtocolError) -> layer.CommandGenerator[None]:
        """The client went, or broke the protocol."""
        self._cancel_alarm()
        upstream_id, self.attempt_id = self.attempt_id, None
        # The base class passes a client's error on under the stream's own id; the attempt may have another.
        event = RequestProtocolError(self.stream_id if upstream_id is None else upstream_id, event.message, event.code)
        if upstream_id is None or not self._request_sent:
            self.client_state = self.state_errored  # nothing runs upstream that could be cancelled
        yield from super()._handle_event(event)
        yield from self._drop()

    def _on_end_attempt(self, exchange: ExchangePort) -> layer.CommandGenerator[None]:
        """The client has come back with the same request: this attempt makes room for that one."""
        if self._request_sent and not exchange.over:
            exchange.client_gone()
            yield from self._fail("its client has come back with the same request", ErrorCode.KILL)

    def _on_called_off(self, exchange: ExchangePort) -> layer.CommandGenerator[None]:
        """A person cancelled this attempt: the client gets an error, as an answer or at the end of what it has seen."""
        if not self._request_sent or (exchange.over and not exchange.refusal):
            return  # it is held, or connects: what it waits for comes, and then it looks; or it has just ended
        began = self.server_state == self.state_stream
        yield from self._end_attempt()
        if not exchange.refusal:  # its guard has tripped: no answer can be made
            exchange.client_gone()
            yield from self._fail(CALLED_OFF, ErrorCode.KILL)
        elif not began:
            yield from self._refuse(exchange)
        elif self.committed or self._takes_more():
            self._cancel_alarm()
            yield from self._end_with_error(exchange.committed_error(None, CALLED_OFF))
        else:
            yield from self._fail(CALLED_OFF, ErrorCode.KILL)

    def _end_with_error(self, error: bytes) -> layer.CommandGenerator[None]:
        """An error event of ours follows what the client has seen, and a clean end."""
        error = (b"" if self._seen_end.endswith(b"\n") else b"\n") + error
        if self._takes_more():
            self.response_body_buf += error
        yield from self._send_chunk(error)
        self._store_body()
        yield from self._finish()

    def _takes_more(self) -> bool:
        """Whether something of ours can follow what the client has seen of an answer."""
        assert self.flow.response
        headers = self.flow.response.headers
        return "content-length" not in headers and headers.get("content-encoding", "identity") == "identity"

    # The proxy's own pages: answered here, before the first hook, so that no list, log or recording has them ----------

    def state_wait_for_request_headers(self, event: RequestHeaders) -> layer.CommandGenerator[None]:
        """Look whether the request is for the proxy itself."""
        destination = self.context.server.address if self.mode is HTTPMode.transparent else None
        page = None if event.replay_flow else self.parent.port.page(event.request, self.context.client, destination)
        if page is None:
            yield from super().state_wait_for_request_headers(event)
            return
        self.flow = http.HTTPFlow(self.context.client, self.context.server)
        self.flow.request = event.request
        if isinstance(page, http.Response):
            self.flow.response = page
        else:
            self._takes_body, self._page_body = page, bytearray()
        self.client_state = self.state_ask_for_page

    def state_ask_for_page(
        self, event: RequestData | RequestTrailers | RequestEndOfMessage
    ) -> layer.CommandGenerator[None]:
        """Most pages are asked for without a body; one that comes all the same is not kept."""
        if not isinstance(event, RequestEndOfMessage):
            if self._takes_body is not None and isinstance(event, RequestData):
                self._page_body += event.data[: MAX_PAGE_BODY_BYTES + 1 - len(self._page_body)]
            return
        if self._takes_body is not None:
            self.flow.response = self._takes_body(bytes(self._page_body))
        assert self.flow.response
        self.client_state = self.server_state = self.state_done
        content = b"" if self.flow.request.method == "HEAD" else self.flow.response.raw_content
        yield SendHttp(ResponseHeaders(self.stream_id, self.flow.response, not content), self.context.client)
        if content:
            yield SendHttp(ResponseData(self.stream_id, content), self.context.client)
        yield from self.flow_done()

    # Body size: a scheduled message is never streamed because of its size, but the limit still refuses ---------------

    def check_body_size(self, request: bool) -> layer.CommandGenerator[bool]:
        """Ignore `stream_large_bodies` for scheduled requests and their answers."""
        if self.context.options.stream_large_bodies:
            if self.claimed:
                # This stream's own context (a fork): no other stream sees it.
                self.context.options = _Overlaid(self.context.options, stream_large_bodies=None)  # type: ignore[assignment]
        elif not self.context.options.body_size_limit:
            return False
        return (yield from super().check_body_size(request))

    def start_request_stream(self) -> layer.CommandGenerator[None]:
        """Never for one that an addon has answered in `requestheaders`; of scheduled ones only a long plain call's."""
        if self.flow.response or (self.claimed and not self.parent.port.passes_body(self.flow)):
            self.flow.request.stream = False
            self.client_state = self.state_consume_request_body
        else:
            yield from super().start_request_stream()

    def state_consume_request_body(self, event: events.Event) -> layer.CommandGenerator[None]:
        """A request that is sent when all of it is here."""
        if not isinstance(event, RequestEndOfMessage):
            yield from super().state_consume_request_body(event)
            return
        content = bytes(self.request_body_buf)
        self.request_body_buf.clear()
        yield from self._end_request(content)

    def _end_request(self, content: bytes) -> layer.CommandGenerator[None]:
        """All of it is here: what mitmproxy does then, with fewer commands."""
        flow = self.flow
        flow.request.timestamp_end = time.time()  # noqa: TID251 - mitmproxy's own wall stamp
        flow.request.data.content = content
        self.client_state = self.state_done
        yield HttpRequestHook(flow)
        if (yield from self.check_killed(True)):
            return
        if flow.response:  # an addon's
            flow.response.timestamp_start = time.time()  # noqa: TID251
            yield HttpResponseHeadersHook(flow)
            if not (yield from self.check_killed(True)):
                yield from self.send_response()
        elif (yield from self.make_server_connection()):
            yield from self._send_request(self.stream_id)

    def _send_request(self, attempt_id: int) -> layer.CommandGenerator[None]:
        """Send all of it upstream, in one command where that connection takes it so."""
        server, request = self.context.server, self.flow.request
        content = request.raw_content
        if content and not request.trailers and isinstance(self.parent.connection_to(server), BoundedHttp1Client):
            yield SendHttp(WholeRequest(attempt_id, request, end_stream=False, content=content), server)
            return
        yield SendHttp(RequestHeaders(attempt_id, request, not (content or request.trailers)), server)
        if content:
            yield SendHttp(RequestData(attempt_id, content), server)
        if request.trailers:
            yield SendHttp(RequestTrailers(attempt_id, request.trailers), server)
        yield SendHttp(RequestEndOfMessage(attempt_id), server)

    def handle_connect_upstream(self) -> layer.CommandGenerator[None]:
        """Tunnel what is not ours through a proxy whose answer is bounded."""
        self.child_layer = BoundedUpstreamProxy.make(self.context, send_connect=True)[0]
        yield from self.handle_connect_finish()  # type: ignore[no-untyped-call]  # the host's own

    # The gate --------------------------------------------------------------------------------------------------------

    def make_server_connection(self) -> layer.CommandGenerator[bool]:
        """Step 3: hold here, after every request hook, until admitted; then connect."""
        if self.exchange is None and (not self.flow.request.stream or self.parent.port.passes_body(self.flow)):
            self.exchange = self.parent.port.make_exchange(self.flow)
        exchange = self.exchange
        _frame(self.flow.request)
        while True:
            if exchange and not (yield from self._hold(exchange)):
                return False
            self._outgoing = exchange.outgoing if exchange else None
            sent = self._outgoing.request if self._outgoing else self.flow.request
            request = FreshConnection(
                (sent.host, sent.port),
                sent.scheme == "https",
                self.flow.server_conn.via,
                self.flow.server_conn.transport_protocol,
            )
            request.draining = self.parent.draining
            request.redirected = self.parent.port.redirected
            connection, error = self.parent.ready_connection(request), None
            if connection is None:
                connection, error = yield request
            if exchange and (yield from self._left(exchange)):
                return False
            if exchange and exchange.refusal:  # a person cancelled it while it connected
                yield from self._refuse(exchange)
                return False
            if error is None:
                self.context.server = self.flow.server_conn = connection
                if exchange:
                    self._request_sent = True
                    exchange.sent()
                    yield from self._arm(exchange, Stage.AWAITED)
                return True
            if exchange and exchange.failed(connect_trouble(error), error, client_saw_bytes=False):
                continue
            yield from self._fail(error, ErrorCode.CONNECT_FAILED)
            return False

    def _hold(self, exchange: ExchangePort) -> layer.CommandGenerator[bool]:
        """Wait for admission. False: the stream is over (refused, or the client went)."""
        decided = exchange.enter()
        while True:
            if not decided:
                yield HivemindHoldHook(exchange)
                if (yield from self._left(exchange)):
                    return False
                if exchange.interim and exchange.next in (Next.SEND, Next.PULSE):
                    yield commands.SendData(self.context.client, exchange.interim)
            decided = False
            match exchange.next:
                case Next.SEND:
                    return True
                case Next.PULSE if not exchange.interim:
                    yield from self._send_keep_alive(exchange)
                case Next.REFUSE | Next.LEAVE:
                    yield from self._refuse(exchange)
                    return False

    def _refuse(self, exchange: ExchangePort) -> layer.CommandGenerator[None]:
        """The client, which has seen nothing of an answer, gets the refusal."""
        self._cancel_alarm()
        self.held_back = []
        self.response_body_buf.clear()
        self.flow.response = exchange.refusal
        if self.flow.response is None:
            yield from self._fail("given up", ErrorCode.KILL)
            return
        self.flow.response.timestamp_start = time.time()  # noqa: TID251 - mitmproxy's own wall stamp
        yield HttpResponseHeadersHook(self.flow)
        if not (yield from self._left(exchange)):
            yield from self._deliver(exchange)

    def _left(self, exchange: ExchangePort) -> layer.CommandGenerator[bool]:
        """After any wait: whether the client went or the flow was killed meanwhile; then this stream is over."""
        if not (yield from self.check_killed(True)):
            return False
        exchange.client_gone()
        yield from self._end_attempt()
        yield from self._drop()
        return True

    # The answer ------------------------------------------------------------------------------------------------------

    def state_wait_for_response_headers(self, event: ResponseHeaders) -> layer.CommandGenerator[None]:
        """Step 6: the head of an attempt's answer."""
        exchange = self.exchange
        if exchange is None:
            # What is not scheduled is streamed, unless another addon says otherwise.
            event.response.stream = self.parent.port.tap(self.flow, event.response)
            yield from super().state_wait_for_response_headers(event)
            return
        self.flow.response = event.response
        # One of HTTP/1 was checked where it was read.
        if event.response.data.http_version != b"HTTP/1.1" and self.context.options.validate_inbound_headers:
            try:
                validate_headers(event.response)
            except ValueError:  # its words would quote them
                yield from self._attempt_failed(exchange, TransportTrouble.INVALID, f"{BAD_HEAD}it has invalid fields")
                return
        if not event.end_stream and (yield from self.check_body_size(False)):
            exchange.failed(TransportTrouble.INVALID, "larger than body_size_limit", client_saw_bytes=True)
            yield from self._drop()
            return
        yield HttpResponseHeadersHook(self.flow)
        if (yield from self._left(exchange)):
            return
        assert self.flow.response
        self.server_state = self.state_collect
        handling = exchange.head(self.flow.response)
        if event.end_stream:
            return
        if handling is Handling.PASS:
            self._keeps_answer = self.context.options.store_streamed_bodies
            yield from self._release(exchange)
        elif handling is Handling.PEEK:
            self.server_state = self.state_peek
            yield from self._arm(exchange, Stage.PEEKED)
        elif type(event) is not WholeResponse:
            yield from self._arm(exchange, Stage.COLLECTED)

    def state_collect(self, event: events.Event) -> layer.CommandGenerator[None]:
        """An answer that is judged when it is complete: an error, or a plain one."""
        exchange = self._scheduled()
        assert self.flow.response
        if isinstance(event, ResponseData):
            self.response_body_buf += event.data
            is_stream = exchange.heard(event.data)
            if (yield from self.check_body_size(False)):
                exchange.failed(TransportTrouble.INVALID, "larger than body_size_limit", client_saw_bytes=True)
                yield from self._drop()
            elif is_stream:
                begun = bytes(self.response_body_buf)
                self.response_body_buf.clear()
                self.server_state = self.state_peek
                yield from self._arm(exchange, Stage.PEEKED)
                yield from self.state_peek(ResponseData(self.stream_id, begun))
            elif exchange.is_ending:
                yield from self._arm(exchange, Stage.COLLECTED)
        elif isinstance(event, ResponseTrailers):
            self.flow.response.trailers = event.trailers
        elif isinstance(event, ResponseEndOfMessage):
            body = bytes(self.response_body_buf)
            self.response_body_buf.clear()
            yield from self._end_collecting(body)

    def _end_collecting(self, body: bytes) -> layer.CommandGenerator[None]:
        """Step 7: all of an answer is here."""
        exchange = self._scheduled()
        assert self.flow.response
        if exchange.collected(self.flow.response, body):
            yield from self._retry()
        else:
            self.flow.response.data.content = body
            yield from self._deliver(exchange)

    def state_peek(self, event: events.Event) -> layer.CommandGenerator[None]:
        """A streamed answer, kept back until its first content is judged (or, delivered whole, until its end)."""
        exchange = self._scheduled()
        assert self.flow.response
        if isinstance(event, ResponseData):
            self.held_back.append(event.data)
            match exchange.look(event.data):
                case Look.FAILED if exchange.failed_in_stream():
                    yield from self._end_attempt()
                    yield from self._retry()
                case Look.COMPLETE if exchange.ended():
                    yield from self._end_attempt()
                    yield from self._retry()
                case Look.RELEASE | Look.FAILED | Look.COMPLETE:
                    yield from self._release(exchange)
                case Look.COLLECT:
                    begun, self.held_back = b"".join(self.held_back), []
                    self.server_state = self.state_collect
                    yield from self.state_collect(ResponseData(self.stream_id, begun))
                case Look.HOLD_BACK:
                    if exchange.is_ending:
                        yield from self._arm(exchange, Stage.PEEKED)
        elif isinstance(event, ResponseTrailers):
            self.flow.response.trailers = event.trailers
        elif isinstance(event, ResponseEndOfMessage):
            if exchange.ended():
                yield from self._retry()
            else:
                yield from self._release(exchange)
                yield from self.server_state(event)

    def _complete(self, exchange: ExchangePort) -> layer.CommandGenerator[bool]:
        """End an answer that has said that it is complete, whatever its transport does. False: it has not."""
        response, stage = self.flow.response, self._stage()
        body = bytes(self.response_body_buf) if stage is Stage.COLLECTED else b"".join(self.held_back)
        if response is None or stage in (None, Stage.AWAITED) or not exchange.complete(body):
            return False
        yield from self._end_attempt()
        if stage is Stage.COLLECTED:
            response.headers.pop("content-length", None)
            self.response_body_buf.clear()
            yield from self._end_collecting(body)
        elif stage is Stage.PEEKED and exchange.ended():
            yield from self._retry()
        else:
            if stage is Stage.PEEKED:
                yield from self._release(exchange)
            exchange.streamed()
            self._store_body()
            yield from self._finish()
        return True

    def _release(self, exchange: ExchangePort) -> layer.CommandGenerator[None]:
        """The client gets what was kept back; from here on every chunk goes to it as it comes."""
        assert self.flow.response
        is_read = self.server_state == self.state_peek and self.flow.response.status_code < 400
        self.server_state = self.state_stream
        if not self.committed:
            head = ResponseHeaders(self.stream_id, self._streamed_head(is_read=is_read), end_stream=False)
            yield SendHttp(head, self.context.client)
        held_back = b"".join(self.held_back)
        self.held_back = []
        self.response_body_buf += held_back
        exchange.released(self.response_body_buf)
        decoded = exchange.decoded_so_far()
        if held_back:  # in one piece: what came apart has waited together
            yield from self._send_chunk(decoded if self.committed else held_back)
        yield Flush()  # the first content goes now, whatever else has come with it
        yield from self._arm(exchange, Stage.STREAMED)

    def _streamed_head(self, *, is_read: bool) -> http.Response:
        """The head of a streamed answer: an HTTP/1.1 client must be able to tell its end from a cut.

        mitmproxy hands on an HTTP/2 answer without any framing; then both look like the connection's end. Where the
        format says where the answer ends, no length does: gateways count wrong (2026-11).
        """
        response = self.flow.response
        assert response
        is_chunked = self.flow.request.http_version == "HTTP/1.1" and "transfer-encoding" not in response.headers
        has_length = "content-length" in response.headers
        if (has_length and not is_read) or not (has_length or is_chunked):
            return response
        head = response.copy()
        head.headers.pop("content-length", None)
        if is_chunked:
            head.headers["transfer-encoding"] = "chunked"
        return head

    def state_stream(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Step 8: chunk by chunk to the client; a tee reads usage on the way."""
        exchange = self._scheduled()
        assert self.flow.response
        if isinstance(event, ResponseData):
            if self._keeps_answer:
                self.response_body_buf += event.data
            decoded = exchange.tee(event.data)
            yield from self._send_chunk(decoded if self.committed else event.data)
            if exchange.is_ending:
                yield from self._arm(exchange, Stage.STREAMED)
        elif isinstance(event, ResponseTrailers):
            self.flow.response.trailers = event.trailers
        elif isinstance(event, ResponseEndOfMessage):
            if not self.committed and callable(self.flow.response.stream):
                yield from self._send_chunk(b"")  # mitmproxy's sign of the end to a stream function
            exchange.streamed()
            self._store_body()
            yield from self._finish()

    def _send_chunk(self, chunk: bytes) -> layer.CommandGenerator[None]:
        """One chunk to the client, through the stream function that another addon may have set."""
        assert self.flow.response
        tap = self.flow.response.stream
        chunks: Iterable[bytes] = [chunk]
        if callable(tap) and not self.committed:
            answer = tap(chunk)
            chunks = [answer] if isinstance(answer, bytes) else answer
        for part in chunks:
            if part:
                self._seen_end = (self._seen_end + part[-4:])[-4:]
                yield SendHttp(ResponseData(self.stream_id, part), self.context.client)

    def _store_body(self) -> None:
        """Streamed answers are complete in `-w` files and in mitmweb once they have ended."""
        assert self.flow.response
        if not self._keeps_answer:
            return
        self.flow.response.data.content = bytes(self.response_body_buf)
        self.response_body_buf.clear()

    # Ends ------------------------------------------------------------------------------------------------------------

    def _deliver(self, exchange: ExchangePort) -> layer.CommandGenerator[None]:
        """`flow.response` is complete and nothing of it has gone out: send it."""
        assert self.flow.response
        self._cancel_alarm()
        if self.committed:
            error = exchange.committed_error(self.flow.response, "")
            yield SendHttp(ResponseData(self.stream_id, error), self.context.client)
            yield from self._finish()
        else:
            _frame(self.flow.response)
            yield from self.send_response()
            if self.client_state == self.state_wait_for_request_headers:
                # It was refused before its body came; what comes of that is for nobody.
                yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
            yield from self._part()

    def send_response(self, already_streamed: bool = False) -> layer.CommandGenerator[None]:
        """Let the flow's hook have an answer, and send it, in one command where the client's connection takes it so."""
        response = self.flow.response
        assert response
        client = self.context.client
        if (
            already_streamed
            or response.status_code == _SWITCHING
            or type(self.parent.connections[client]) is not BoundedHttp1Server
        ):
            yield from super().send_response(already_streamed)
            return
        response.timestamp_end = time.time()  # noqa: TID251 - mitmproxy's own wall stamp
        yield HttpResponseHook(self.flow)
        self.server_state = self.state_done
        if (yield from self.check_killed(False)):
            return
        response = self.flow.response
        assert response
        content = response.raw_content
        if (
            content
            and not response.trailers
            and self.client_state == self.state_done
            and response.status_code != _SWITCHING
        ):
            self.flow.live = False
            yield DropStream(self.stream_id)
            self.parent.leaving.add(self)
            yield SendHttp(WholeResponse(self.stream_id, response, content=content), client)
            return
        yield SendHttp(ResponseHeaders(self.stream_id, response, not (content or response.trailers)), client)
        if content:
            yield SendHttp(ResponseData(self.stream_id, content), client)
        if response.trailers:
            yield SendHttp(ResponseTrailers(self.stream_id, response.trailers), client)
        if self.client_state == self.state_done:
            yield from self.flow_done()

    def _finish(self) -> layer.CommandGenerator[None]:
        """Everything has gone out: the response hook, and a clean end of message."""
        if self.committed and self.flow.response:
            self.flow.response.trailers = None
        yield from self.send_response(already_streamed=True)
        yield from self._part()

    def _part(self) -> layer.CommandGenerator[None]:
        """The answer has gone out, and nothing of ours is left; it stays for a tunnel, or what comes of its request."""
        if self.child_layer is None and self.client_state != self.state_stream_request_body:
            yield from self._drop()
            return
        self._cancel_alarm()
        if self.exchange:
            self.exchange.finished()

    def _on_server_error(self, exchange: ExchangePort, event: ResponseProtocolError) -> layer.CommandGenerator[None]:
        """The attempt's connection or stream broke."""
        if self.server_state in (self.state_done, self.state_errored):
            yield from super()._handle_event(event)
            return
        seen = self.server_state == self.state_stream
        trouble = attempt_trouble(event.message, head_came=self.server_state != self.state_wait_for_response_headers)
        yield from self._attempt_failed(exchange, trouble, event.message, client_saw_bytes=seen, code=event.code)

    def _attempt_failed(
        self,
        exchange: ExchangePort,
        trouble: TransportTrouble,
        detail: str,
        *,
        client_saw_bytes: bool = False,
        code: ErrorCode = ErrorCode.GENERIC_SERVER_ERROR,
    ) -> layer.CommandGenerator[None]:
        """Step 7: try again, or let the client see it as it came."""
        if (yield from self._complete(exchange)):
            return
        if exchange.failed(trouble, detail, client_saw_bytes=client_saw_bytes):
            yield from self._end_attempt()
            yield from self._retry()
            return
        if self.server_state == self.state_peek and self.held_back and not self.committed:
            yield from self._release(exchange)  # as it came: the beginning, then the cut
        yield from self._fail(detail, code)

    def _fail(self, detail: str, code: ErrorCode) -> layer.CommandGenerator[None]:
        """The flow ends without a complete answer: an error event on a committed stream, else mitmproxy's own way.

        Clients of some formats also see a cut as such an event, because they try again only then.
        """
        exchange = self.exchange
        self._cancel_alarm()
        is_seen = self.server_state == self.state_stream and code is not ErrorCode.KILL
        if exchange and is_seen and self._takes_more() and (error := exchange.cut_error(detail)):
            yield from self._end_attempt()
            yield from self._end_with_error(error)
            return
        if self.committed and exchange and self.client_state == self.state_done:
            yield from self._end_attempt()
            error = exchange.committed_error(None, detail)
            yield SendHttp(ResponseData(self.stream_id, error), self.context.client)
            if self.flow.response is None:
                self.flow.response = http.Response.make(200, error, {"content-type": "text/event-stream"})
            yield from self._finish()
            return
        yield from self._end_attempt()
        if self.response_body_buf and self.flow.response:
            self._store_body()
        yield from self.handle_protocol_error(ResponseProtocolError(self.stream_id, detail, code))
        yield from self._drop()

    def _end_attempt(self) -> layer.CommandGenerator[None]:
        """Nothing runs upstream for this stream any more: the h2 stream is reset, the h1 connection closed."""
        attempt_id, self.attempt_id = self.attempt_id, None
        server = self.context.server
        if attempt_id is None or not self._request_sent:
            return
        self._request_sent = False
        if attempt_id != self.stream_id:
            self.parent.streams.pop(attempt_id, None)
        if server in self.parent.connections and server.state is not ConnectionState.CLOSED:
            yield SendHttp(RequestProtocolError(attempt_id, "attempt given up", ErrorCode.CANCEL), server)

    def _drop(self) -> layer.CommandGenerator[None]:
        """Leave no trace in the layer: the stream itself, its alias, its alarm."""
        self._cancel_alarm()
        if self.attempt_id is not None and self.attempt_id != self.stream_id:
            self.parent.streams.pop(self.attempt_id, None)
        self.held_back = []
        if self.exchange:
            self.exchange.finished()
        self.parent.leaving.add(self)
        yield DropStream(self.stream_id)

    def flow_done(self) -> layer.CommandGenerator[None]:
        """The answer has gone out: the base class drops the stream, or makes a tunnel of it."""
        yield from super().flow_done()
        if type(self.child_layer) is WebsocketLayer and (turns := self.parent.port.make_socket(self.flow)):
            # The base class builds it in there; it still waits for its first hook.
            self.child_layer.__class__ = TurnsLayer
            cast("TurnsLayer", self.child_layer).turns = turns
        self.parent.leaving.add(self)

    def handle_protocol_error(
        self, event: RequestProtocolError | ResponseProtocolError
    ) -> layer.CommandGenerator[None]:
        """One side broke off: the base class drops the stream."""
        yield from super().handle_protocol_error(event)
        self.parent.leaving.add(self)

    @property
    def waits(self) -> bool:
        """Whether a hook or a connection has to answer before it goes on."""
        return self._paused is not None

    def dissolve(self) -> None:
        """Cut what ties it to itself, so that it goes now with its bodies, and not when a collector comes."""
        if self.child_layer is None:  # a tunnel ends with its connection
            self.client_state = self.server_state = over
            self.context.layers.clear()

    # Retry -----------------------------------------------------------------------------------------------------------

    def _retry(self) -> layer.CommandGenerator[None]:
        """Hold again, then send the same request once more, as a new attempt of the same stream."""
        self._cancel_alarm()
        if self.attempt_id is not None and self.attempt_id != self.stream_id:
            self.parent.streams.pop(self.attempt_id, None)
        self.attempt_id = None
        self._request_sent = False
        # The old connection may be gone by the time somebody looks at it.
        self.context.server = self.parent.context.server
        self.flow.response = None
        self.flow.error = None
        self.response_body_buf.clear()
        self.held_back = []
        self.server_state = self.state_wait_for_response_headers
        if not (yield from self.make_server_connection()):
            return
        self.attempt_id = self.parent.alias(self)
        yield from self._send_request(self.attempt_id)

    # Keep-alive and alarms -------------------------------------------------------------------------------------------

    def _send_keep_alive(self, exchange: ExchangePort) -> layer.CommandGenerator[None]:
        """What the client overlooks, between two events; before an answer the first one commits the head 200."""
        if self.server_state == self.state_stream:
            if not self._may_interject():
                return
        elif not self.committed:
            self.committed = True
            head = http.Response.make(200, b"", {"content-type": "text/event-stream", "cache-control": "no-cache"})
            del head.headers["content-length"]
            if not self.flow.request.is_http2:
                head.headers["transfer-encoding"] = "chunked"
            yield SendHttp(ResponseHeaders(self.stream_id, head, end_stream=False), self.context.client)
        yield SendHttp(ResponseData(self.stream_id, exchange.keep_alive), self.context.client)

    def _may_interject(self) -> bool:
        """Whether a comment of ours can stand where the provider's stream is silent."""
        assert self.flow.response
        is_events = self.flow.response.headers.get("content-type", "").startswith("text/event-stream")
        is_between = self._seen_end.endswith((b"\n\n", b"\r\n\r\n"))
        return is_between and (self.committed or (is_events and self._takes_more()))

    def _arm(self, exchange: ExchangePort, stage: Stage) -> layer.CommandGenerator[None]:
        """One alarm at a time, no later than the next instant at which the exchange wants to be asked."""
        delay_s = exchange.next_alarm_s(stage)
        if delay_s is None:
            self._cancel_alarm()
            return
        delay_s = min(delay_s, LONGEST_ALARM_S)
        if self._alarm is not None and self._alarm.delay <= delay_s:
            return  # it rings in time and asks then
        self._cancel_alarm()
        self._alarm = self.parent.take_alarm(self, delay_s)
        if self._alarm is None:
            self._alarm = commands.RequestWakeup(delay_s)
            yield self._alarm

    def _cancel_alarm(self) -> None:
        if self._alarm is not None:
            self.parent.leave_alarm(self._alarm)
            self._alarm = None

    def _on_alarm(self, exchange: ExchangePort, event: events.Wakeup) -> layer.CommandGenerator[None]:
        if event.command is not self._alarm:
            return
        self._alarm = None
        stage = self._stage()
        if stage is None:
            return
        match exchange.alarm(stage):
            case Alarm.PULSE:
                yield from self._send_keep_alive(exchange)
            case Alarm.RELEASE:
                yield from self._release(exchange)
                return
            case Alarm.COMPLETE if (yield from self._complete(exchange)):
                return
            case Alarm.STALLED:
                seen = stage is Stage.STREAMED
                yield from self._attempt_failed(
                    exchange, TransportTrouble.STALLED, "no byte came", client_saw_bytes=seen
                )
                return
            case Alarm.COMPLETE | Alarm.NOTHING:
                pass
        yield from self._arm(exchange, stage)

    def _stage(self) -> Stage | None:
        """How far the running attempt has come; None: there is nothing to wait for."""
        if self.server_state == self.state_wait_for_response_headers:
            return Stage.AWAITED
        if self.server_state == self.state_peek:
            return Stage.PEEKED
        if self.server_state == self.state_collect:
            return Stage.COLLECTED
        return Stage.STREAMED if self.server_state == self.state_stream else None

    def _scheduled(self) -> ExchangePort:
        assert self.exchange is not None
        return self.exchange


def _frame(message: http.Message) -> None:
    """Say how long a complete body is, where nothing says it: from HTTP/2 it comes so, and HTTP/1.1 must know."""
    if message.raw_content and not is_framed(message):
        message.headers["content-length"] = str(len(message.raw_content))


class _Overlaid:
    """Options with some values replaced, for one call into the base class."""

    def __init__(self, options: Any, **replaced: Any) -> None:
        self._options = options
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced[name] if name in self._replaced else getattr(self._options, name)
