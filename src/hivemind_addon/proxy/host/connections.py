"""mitmproxy's HTTP connections with bounds: what one peer sends may cost no other one its turn. Private names, as in
`proxy/host/stream.py`.

    a head          64 KB and 256 fields, of a request, an answer, an interim answer, a chunk, trailers
    interim answers 16 before the final one; none is taken for it, and none goes to the client
    HTTP/2 frames   those that carry little or nothing are counted (`Frames`); beyond the count the connection is closed
    CONNECT         the head of an upstream proxy's answer, as any head

What is said of a broken message never quotes it: a provider may echo a key in it, and the words go far.

A body that is kept comes in one piece.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h11
from hyperframe import frame as h2_frame
from mitmproxy import http, version
from mitmproxy.net.http import http1
from mitmproxy.net.http.validate import validate_headers
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import is_h3_alpn
from mitmproxy.proxy.layers.http._base import HttpConnection, HttpEvent, ReceiveHttp, format_error
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
from mitmproxy.proxy.layers.http._http1 import (
    Http1Client,
    Http1Connection,
    Http1Server,
    TBodyReader,
    make_body_reader,
    make_error_response,
)
from mitmproxy.proxy.layers.http._http2 import (
    Http2Client,
    Http2Connection,
    Http2Server,
    parse_h2_request_headers,
    parse_h2_response_headers,
)
from mitmproxy.proxy.layers.http._http3 import Http3Server
from mitmproxy.proxy.layers.http._http_h2 import BufferedH2Connection
from mitmproxy.proxy.layers.http._upstream_proxy import HttpUpstreamProxy
from mitmproxy.utils import human

from hivemind_addon.proxy.host.heads import BAD_HEAD as BAD_HEAD  # noqa: PLC0414 - others have it from here
from hivemind_addon.proxy.host.heads import (
    LONGEST_HEAD_BYTES,
    MOST_FIELDS,
    TOO_LONG,
    TOO_MANY,
    BadHead,
    body_size,
    check_fields,
    is_framed,
    leave_open,
    take_request,
    take_response,
)
from hivemind_addon.proxy.host.heads import with_field as with_field  # noqa: PLC0414

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from h11._readers import ChunkedReader
    from h11._receivebuffer import ReceiveBuffer
    from mitmproxy.connection import Connection
    from mitmproxy.proxy.context import Context

logger = logging.getLogger("hivemind")

_CONTINUE = 100
"""As a proxy like ours sends it to a held client, as often as the wait needs."""
MOST_INTERIMS = 16
_HEAD_END = b"\r\n\r\n"
_LARGE_BYTES = 16 * 1024
"""A piece of more is not copied where that can be helped."""
_TAKEN_BYTES = 32 * 1024
"""By h2 at a time: two frames of the usual size."""
_CHUNK_HEAD = re.compile(rb"([0-9a-fA-F]{1,8})\r\n")
_METHOD = re.compile(rb"[^\x00-\x20\x7f]+")
_PATH = re.compile(rb"(?:/|\*$)[^\x00-\x20\x7f]*")
_SWITCHING_PROTOCOLS = 101


def error_page(status: int, message: str, request: http.Request) -> http.Response:
    """The page that mitmproxy would answer itself, as a response."""
    content = format_error(status, message)
    if request.is_http2 or request.is_http3:
        page = http.Response.make(status, content, {"server": version.MITMPROXY, "content-type": "text/html"})
        del page.headers["content-length"]
        page.http_version = "HTTP/2.0"
        return page
    return http.Response.make(
        status, content, http.Headers(Server=version.MITMPROXY, Connection="close", Content_Type="text/html")
    )


# HTTP/1 ---------------------------------------------------------------------------------------------------------------


class _Chunks:
    """h11's reader of a chunked body, bounded; what has come together is one piece of data.

    It passes trailers over, since mitmproxy has no way to send them on. Chunks that have come whole, as those of a
    stream do, are read here, in less time; what comes otherwise, and all after it, is h11's.
    """

    def __init__(self, reader: ChunkedReader) -> None:
        self._reader = reader
        self._after: h11.EndOfMessage | h11.RemoteProtocolError | None = None
        """What came after the last piece."""
        self._come_whole = True

    def _take_whole(self, buf: ReceiveBuffer) -> list[bytes]:
        """What is in the chunks before the first that is not here from its head to its end, or is the last one."""
        data, taken, pieces = bytes(buf), 0, list[bytes]()
        while head := _CHUNK_HEAD.match(data, taken):
            begin = head.end()
            end = begin + int(head[1], 16)
            if end == begin or data[end : end + 2] != b"\r\n":
                break
            pieces.append(data[begin:end])
            taken = end + 2
        if taken:
            buf.maybe_extract_at_most(taken)
        self._come_whole = taken == len(data)
        return pieces

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        after, self._after = self._after, None
        pieces = self._take_whole(buf) if self._come_whole and after is None else []
        while after is None and buf:
            try:
                event = self._reader(buf)
            except h11.ProtocolError:
                after = h11.RemoteProtocolError("malformed chunk")
                break
            if isinstance(event, h11.Data):
                pieces.append(event.data)
                continue
            if event is not None:
                after = h11.EndOfMessage()
            elif len(buf) > LONGEST_HEAD_BYTES:
                after = h11.RemoteProtocolError(
                    f"a chunk's head or trailers longer than {LONGEST_HEAD_BYTES // 1024} KB"
                )
            break
        if pieces:
            self._after = after
            return h11.Data(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if isinstance(after, h11.RemoteProtocolError):
            raise after
        return after

    def read_eof(self) -> None:
        """The connection ended in the middle of the body."""
        self._reader.read_eof()


def _body_reader(size: int | None) -> TBodyReader:
    reader = make_body_reader(size)
    return _Chunks(reader) if size is None else reader  # type: ignore[arg-type, return-value]  # it reads chunks


@dataclass
class WholeRequest(RequestHeaders):
    """A request whose body, which is not empty, has come with its head, or is to be sent so: no other event follows."""

    content: bytes = b""


@dataclass
class WholeResponse(ResponseHeaders):
    """The same of an answer."""

    content: bytes = b""


class BoundedHttp1Server(Http1Server):
    """A client's HTTP/1 connection."""

    _missing_bytes = 0
    """Of a body that goes on in one piece."""
    _pieces: Sequence[bytes | memoryview] = ()
    """What has come of it."""
    takes_whole: Callable[[int], bool] | None = None
    """Whether a stream, of which the head has come, wants its body in one piece."""

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        if self._missing_bytes:
            if isinstance(event, events.DataReceived):
                return self._collect(event.data)
            if isinstance(event, events.ConnectionClosed):
                self._give_up()
        elif isinstance(event, events.DataReceived) and len(event.data) > _LARGE_BYTES:
            end = event.data.find(_HEAD_END, 0, LONGEST_HEAD_BYTES) if not self.buf else -1
            if end >= 0 and self.state == self.read_headers:
                return self._handle_apart(event, end + len(_HEAD_END))
        return super()._handle_event(event)

    def _handle_apart(self, event: events.DataReceived, end: int) -> layer.CommandGenerator[None]:
        """First a head, then what has come behind it: so that the latter is not copied to and fro."""
        yield from super()._handle_event(events.DataReceived(event.connection, event.data[:end]))
        behind = memoryview(event.data)[end:]
        if self._missing_bytes:
            yield from self._collect(behind)
        else:
            yield from super()._handle_event(events.DataReceived(event.connection, bytes(behind)))

    def _give_up(self) -> None:
        """The rest of the body does not come; the reader says so."""
        self.buf += b"".join(self._pieces)
        self.body_reader(self.buf)
        self._pieces, self._missing_bytes = (), 0

    def _collect(self, piece: bytes | memoryview) -> layer.CommandGenerator[None]:
        """One more piece of a body of known length: no layer sees it before the last one has come."""
        self._pieces = [*self._pieces, piece[: self._missing_bytes]]
        missing_bytes = self._missing_bytes - len(piece)
        self._missing_bytes = max(0, missing_bytes)
        if missing_bytes > 0:
            return
        if missing_bytes < 0:
            self.buf += bytes(piece[missing_bytes:])
        body = b"".join(self._pieces)
        self._pieces = ()
        yield ReceiveHttp(RequestData(self.stream_id, body))
        yield ReceiveHttp(RequestEndOfMessage(self.stream_id))
        yield from self.mark_done(request=True)

    def send(self, event: HttpEvent) -> layer.CommandGenerator[None]:
        """Pass trailers over, which the base class does not know."""
        if type(event) is WholeResponse:
            return self._send_whole(event)
        return _nothing() if isinstance(event, ResponseTrailers) else super().send(event)

    def _send_whole(self, event: WholeResponse) -> layer.CommandGenerator[None]:
        response = event.response
        if response.is_http2 or response.is_http3 or "transfer-encoding" in response.headers:
            yield from super().send(ResponseHeaders(event.stream_id, response))
            yield from super().send(ResponseData(event.stream_id, event.content))
            yield from super().send(ResponseEndOfMessage(event.stream_id))
            return
        assert event.stream_id == self.stream_id
        self.response = response
        yield from _in_one_piece(self.conn, http1.assemble_response_head(response), event.content)
        yield from self.mark_done(response=True)

    def read_headers(self, event: events.ConnectionEvent) -> layer.CommandGenerator[None]:
        """Read a request's head."""
        if isinstance(event, events.ConnectionClosed):
            self.buf = type(self.buf)()  # what there is of a head would be quoted in the log
            yield from super().read_headers(event)
            return
        request: http.Request | None = None
        try:
            request = take_request(self.buf)
            if request is None:
                return
            self.request = request
            size = body_size(request)
        except BadHead as error:
            yield commands.SendData(self.conn, make_error_response(400, f"{BAD_HEAD}{error}"))
            yield commands.CloseConnection(self.conn)
            if request is None:
                yield commands.Log(f"{human.format_address(self.conn.peername)}: {BAD_HEAD}{error}")
            else:  # for the interfaces
                yield ReceiveHttp(RequestHeaders(self.stream_id, request, end_stream=False))
                yield ReceiveHttp(
                    RequestProtocolError(self.stream_id, f"{BAD_HEAD}{error}", ErrorCode.GENERIC_CLIENT_ERROR)
                )
            self.state = self.done
            return
        if size and 0 < size <= len(self.buf) and self.takes_whole is not None and request.method != "CONNECT":
            content = bytes(self.buf.maybe_extract_at_most(size) or b"")
            yield ReceiveHttp(WholeRequest(self.stream_id, request, end_stream=False, content=content))
            yield from self.mark_done(request=True)
            return
        yield ReceiveHttp(RequestHeaders(self.stream_id, request, size == 0))
        self.body_reader = _body_reader(size)
        self.state = self.read_body
        if size is not None and size > len(self.buf) and self.takes_whole and self.takes_whole(self.stream_id):
            begun = bytes(self.buf.maybe_extract_at_most(size) or b"")
            self._pieces, self._missing_bytes = [begun] if begun else [], size - len(begun)
        else:
            yield from self.state(event)


class BoundedHttp1Client(Http1Client):
    """A provider's HTTP/1 connection."""

    _interims = 0

    def read_body(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Tell the end of an answer when this connection can take the next request: it may come at once."""
        end: commands.Command | None = None
        for command in super().read_body(event):
            if isinstance(command, ReceiveHttp) and isinstance(command.event, ResponseEndOfMessage):
                assert self.response
                if self.response.status_code != _SWITCHING_PROTOCOLS:
                    end = command
                    continue
            yield command
        if end is not None:
            yield end

    def send(self, event: HttpEvent) -> layer.CommandGenerator[None]:
        """Send it in chunks where nothing says how long it is; pass trailers over, which the base class does not know.

        A request of HTTP/2 needs to say no length: its frames end it.
        """
        if isinstance(event, RequestHeaders):
            self._interims = 0
            if not event.end_stream and not is_framed(event.request):
                event.request = event.request.copy()
                event.request.headers["transfer-encoding"] = "chunked"
        if type(event) is WholeRequest:
            return self._send_whole(event)
        # An empty piece would be the last chunk.
        is_nothing = isinstance(event, RequestTrailers) or (isinstance(event, RequestData) and not event.data)
        return _nothing() if is_nothing else super().send(event)

    def _send_whole(self, event: WholeRequest) -> layer.CommandGenerator[None]:
        request = event.request
        if request.is_http2 or request.is_http3 or "transfer-encoding" in request.headers:
            yield from super().send(RequestHeaders(event.stream_id, request, end_stream=False))
            yield from super().send(RequestData(event.stream_id, event.content))
            yield from super().send(RequestEndOfMessage(event.stream_id))
            return
        assert self.stream_id in (None, event.stream_id)
        self.stream_id, self.request = event.stream_id, request
        yield from _in_one_piece(self.conn, http1.assemble_request_head(request), event.content)
        yield from self.mark_done(request=True)

    def read_headers(self, event: events.ConnectionEvent) -> layer.CommandGenerator[None]:
        """Read an answer's head, and pass over the interim ones before it."""
        if isinstance(event, events.ConnectionClosed) and self.stream_id and self.buf:
            yield from self._refuse("the connection was closed in the middle of it")
            return
        if isinstance(event, events.ConnectionClosed):
            yield from super().read_headers(event)
            return
        if self.request is None or self.stream_id is None:
            yield commands.Log("Unexpected data from server")
            yield commands.CloseConnection(self.conn)
            return
        try:
            response = self._final_head()
            if response is None:
                return
            size = body_size(self.request, response)
            if self.context.options.validate_inbound_headers:
                check_fields(response)
        except BadHead as error:
            yield from self._refuse(str(error))
            return
        self.response = response
        if size and size == len(self.buf) and self.request_done and leave_open(self.request, response):
            # As of one in parts, its end is told when this connection can take the next request: what `mark_done` does.
            whole = WholeResponse(self.stream_id, response, content=bytes(self.buf.maybe_extract_at_most(size) or b""))
            self.request_done = self.response_done = False
            self.request = self.response = self.stream_id = None
            self.state = self.read_headers
            yield ReceiveHttp(whole)
            return
        yield ReceiveHttp(ResponseHeaders(self.stream_id, response, size == 0))
        self.body_reader = _body_reader(size)
        self.state = self.read_body
        yield from self.state(event)

    def _final_head(self) -> http.Response | None:
        """The head of the final answer; None: it is not here. Raises BadHead."""
        while (response := take_response(self.buf)) is not None:
            if response.status_code >= 200 or response.status_code == _SWITCHING_PROTOCOLS:
                return response
            self._interims += response.status_code != _CONTINUE or bool(response.headers)
            if self._interims > MOST_INTERIMS:
                raise BadHead(f"more than {MOST_INTERIMS} interim answers are before it")
        return None

    def _refuse(self, why: str) -> layer.CommandGenerator[None]:
        assert self.stream_id is not None
        yield commands.CloseConnection(self.conn)
        yield ReceiveHttp(ResponseProtocolError(self.stream_id, f"{BAD_HEAD}{why}", ErrorCode.GENERIC_SERVER_ERROR))


def _nothing() -> layer.CommandGenerator[None]:
    yield from ()


def _in_one_piece(conn: Connection, head: bytes, content: bytes) -> layer.CommandGenerator[None]:
    """Send a message, a large body without a copy."""
    if len(content) <= _LARGE_BYTES:
        yield commands.SendData(conn, head + content)
    else:
        yield commands.SendData(conn, head)
        yield commands.SendData(conn, content)


class BoundedUpstreamProxy(HttpUpstreamProxy):
    """A tunnel through another proxy."""

    def receive_handshake_data(self, data: bytes) -> layer.CommandGenerator[tuple[bool, str | None]]:
        """Read the head of its answer to CONNECT."""
        if not self.send_connect:
            return (yield from super().receive_handshake_data(data))
        where = human.format_address(self.tunnel_connection.address)
        self.buf += data
        try:
            response = take_response(self.buf)
        except BadHead as error:
            return False, f"upstream proxy {where}: {BAD_HEAD}{error}"
        if response is None:
            return False, None
        if not 200 <= response.status_code < 300:
            return False, f"upstream proxy {where} refused to connect: {response.status_code}"
        if self.buf:
            yield from self.receive_data(bytes(self.buf))
            del self.buf
        return True, None


# HTTP/2 ---------------------------------------------------------------------------------------------------------------


class Flood(h2.exceptions.ProtocolError):
    """A peer sends frames that carry little or nothing, without end."""

    error_code = h2.errors.ErrorCodes.ENHANCE_YOUR_CALM


class Frames:
    """Counts what a peer sends that carries little or nothing.

    A frame costs what handling it costs us, in units of about 20 µs. A thousand are free, and a hundred more each
    second. What we send pays for what it brings about: window updates for data, heads and resets for a head. Data pays
    for its own frames, also for some small ones after it.
    """

    BURST: ClassVar = 1000
    EACH_SECOND: ClassVar = 100
    BYTES_OF_FRAME: ClassVar = 16
    """Of data, pay for its frame; the lines of a stream that say next to nothing have more."""
    SMALL_AFTER_LARGE: ClassVar = 100
    UPDATES_OF_DATA: ClassVar = 16
    """Window updates for one data frame of ours; Go's servers send one for each piece that is read."""
    HEADS_OF_HEAD: ClassVar = 3
    """An answer, its trailers and a reset, for one request."""
    RESET: ClassVar = 8
    """Of a stream that a client opens and resets we have made a flow."""

    def __init__(self, now: Callable[[], float], *, from_client: bool) -> None:
        self._now = now
        self._from_client = from_client
        self._left: float = self.BURST
        self._counted_at = now()
        self._data_due = 0.0
        """Data frames that earlier data has paid for."""
        self._updates_due = 0
        self._heads_due = 0

    def sent(self, frame: h2_frame.Frame) -> None:
        """We sent a frame."""
        if isinstance(frame, h2_frame.DataFrame):
            self._updates_due = min(self._updates_due + self.UPDATES_OF_DATA, self.BURST)
        elif isinstance(frame, h2_frame.HeadersFrame) and not self._from_client:
            self._heads_due = min(self._heads_due + self.HEADS_OF_HEAD, self.BURST)

    def count(self, frame: h2_frame.Frame) -> None:
        """A frame came. Raises Flood: one too many."""
        now = self._now()
        self._left = min(self.BURST, self._left + (now - self._counted_at) * self.EACH_SECOND) - self._cost(frame)
        self._counted_at = now
        if self._left < 0:
            raise Flood("too many frames that carry little or nothing")

    def _cost(self, frame: h2_frame.Frame) -> int:
        match frame:
            case h2_frame.DataFrame() if "END_STREAM" in frame.flags:
                return 0
            case h2_frame.DataFrame():
                paid = self._data_due + len(frame.data) / self.BYTES_OF_FRAME
                self._data_due = min(max(0.0, paid - 1), self.SMALL_AFTER_LARGE)
                return 0 if paid >= 1 else 1
            case h2_frame.WindowUpdateFrame() if self._updates_due:
                self._updates_due -= 1
                return 0
            case h2_frame.HeadersFrame() if self._from_client:
                return 0  # a request: the streams that are open at a time are bounded
            case h2_frame.RstStreamFrame() if self._from_client:
                return self.RESET
            case h2_frame.HeadersFrame() | h2_frame.RstStreamFrame() if self._heads_due:
                self._heads_due -= 1
                return 0
            case h2_frame.WindowUpdateFrame() | h2_frame.PingFrame() | h2_frame.PriorityFrame():
                return 1
            case h2_frame.SettingsFrame():
                return 5 + len(frame.settings)
        return 10


class BoundedH2Connection(BufferedH2Connection):
    """An HTTP/2 connection that counts frames."""

    def __init__(self, config: h2.config.H2Configuration) -> None:
        super().__init__(config)
        # Real time: it bounds what the event loop really spends.
        self.frames = Frames(time.monotonic, from_client=not config.client_side)  # noqa: TID251

    def receive_data(self, data: bytes) -> list[h2.events.Event]:
        """Take what came; of a request's body what has come together is one event.

        The pieces of an answer stay apart: what the first of them says may have to go to the client before the next.

        Raises ProtocolError, also for a head that does not end.
        """
        received: list[h2.events.Event] = []
        for start in range(0, len(data), _TAKEN_BYTES):  # h2 copies all the rest for each frame that it takes
            received += super().receive_data(data[start : start + _TAKEN_BYTES])
        if not self.config.client_side:
            received = _joined(received)
        if sum(len(part.data) for part in self.incoming_buffer._headers_buffer) > LONGEST_HEAD_BYTES:  # noqa: SLF001
            raise Flood(f"{BAD_HEAD}{TOO_LONG}")
        return received

    def _receive_frame(self, frame: h2_frame.Frame) -> list[h2.events.Event]:
        self.frames.count(frame)
        return super()._receive_frame(frame)

    def _prepare_for_sending(self, frames: list[h2_frame.Frame]) -> None:
        for frame in frames:
            self.frames.sent(frame)
        super()._prepare_for_sending(frames)


def _joined(received: list[h2.events.Event]) -> list[h2.events.Event]:
    """The same, with pieces of one body that follow each other as one piece."""
    joined: list[h2.events.Event] = []
    run: list[h2.events.DataReceived] = []
    for event in received:
        if run and not (isinstance(event, h2.events.DataReceived) and event.stream_id == run[0].stream_id):
            joined.append(_one_piece(run))
            run = []
        if isinstance(event, h2.events.DataReceived):
            run.append(event)
        else:
            joined.append(event)
    if run:
        joined.append(_one_piece(run))
    return joined


def _one_piece(run: list[h2.events.DataReceived]) -> h2.events.DataReceived:
    last = run[-1]
    if len(run) > 1:
        last.data = b"".join([event.data or b"" for event in run])
        last.flow_controlled_length = sum([event.flow_controlled_length or 0 for event in run])
    return last


class BoundedHttp2(Http2Connection):
    """What both sides have in common."""

    connection_type: ClassVar = BoundedH2Connection

    def __init__(self, context: Context) -> None:
        super().__init__(context)  # type: ignore[call-arg]  # the next class is one side, which knows the connection
        self.h2_conn = self.connection_type(self.h2_conf)
        if self.h2_conf.client_side:  # as the base class does for its own connection object
            self.h2_conn.local_settings.enable_push = 0
            self.h2_conn.local_settings.acknowledge()

    def handle_h2_event(self, event: h2.events.Event) -> layer.CommandGenerator[bool]:
        """Look at heads, and say in our words what is wrong."""
        if isinstance(event, h2.exceptions.ProtocolError):
            why = str(event) if isinstance(event, Flood) else type(event).__name__
            yield from self.protocol_error(f"HTTP/2 protocol error: {why}", event.error_code)
            return True
        if isinstance(event, h2.events.ConnectionTerminated):
            code = getattr(event.error_code, "name", event.error_code)
            yield from self.close_connection(f"HTTP/2 connection closed: {code}")
            return True
        if isinstance(event, (h2.events.RequestReceived, h2.events.ResponseReceived, h2.events.TrailersReceived)):
            try:
                self._look_at(event)
            except BadHead as error:
                yield from self.protocol_error(f"{BAD_HEAD}{error}")
                return True
        return (yield from super().handle_h2_event(event))

    def _look_at(
        self, event: h2.events.RequestReceived | h2.events.ResponseReceived | h2.events.TrailersReceived
    ) -> None:
        headers = event.headers or []
        if len(headers) > MOST_FIELDS:
            raise BadHead(TOO_MANY)
        try:
            if isinstance(event, h2.events.RequestReceived):
                _, _, method, _, _, path, _ = parse_h2_request_headers(headers)
                if not _METHOD.fullmatch(method) or not _PATH.fullmatch(path):  # in HTTP/1 it would be another request
                    raise BadHead("its method or its path is none")
            elif isinstance(event, h2.events.ResponseReceived):
                status, fields = parse_h2_response_headers(headers)
                if self.context.options.validate_inbound_headers:
                    validate_headers(http.Response(b"HTTP/2.0", status, b"", fields, None, None, 0, None))
        except ValueError:
            raise BadHead("it is no HTTP/2") from None


class BoundedHttp2Server(BoundedHttp2, Http2Server):
    """A client's HTTP/2 connection."""


class BoundedHttp2Client(BoundedHttp2, Http2Client):
    """A provider's HTTP/2 connection."""


def over(event: events.Event) -> layer.CommandGenerator[None]:  # noqa: ARG001 - a state
    """The state of a connection or a stream that is over: it hears nothing."""
    yield from ()


def dissolve(closed: layer.Layer) -> None:
    """Cut what ties a closed connection to itself, and its last messages with their bodies from it."""
    closed.context.layers.clear()
    if isinstance(closed, Http1Connection):
        closed.request = closed.response = None
        closed.state = over


def server_for(context: Context, takes_whole: Callable[[int], bool] | None = None) -> HttpConnection:
    """Our side of a client's connection. `takes_whole`: whether a stream wants its request's body in one piece."""
    alpn = context.client.alpn
    if alpn == b"h2":
        return BoundedHttp2Server(context)
    if is_h3_alpn(alpn):
        return Http3Server(context)
    server = BoundedHttp1Server(context)
    server.takes_whole = takes_whole
    return server
