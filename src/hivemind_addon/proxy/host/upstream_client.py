"""Connections to providers: bounded, and an h2 one that says GOAWAY finishes the streams that it has.

The library would refuse every frame after it, and mitmproxy would end all streams. An h2 one that answers no ping is
dead; mitmproxy sends one after each 58 s of silence (its option `http2_ping_keepalive`).
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

import h2.errors
import h2.events
from mitmproxy.connection import Connection, Server
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import (
    GetHttpConnection,
    HttpClient,
    HttpLayer,
    HTTPMode,
    RegisterHttpConnection,
    is_h3_alpn,
)
from mitmproxy.proxy.layers.http._base import HttpConnection, ReceiveHttp
from mitmproxy.proxy.layers.http._events import ErrorCode, ResponseProtocolError
from mitmproxy.proxy.layers.http._http3 import Http3Client

from hivemind_addon.formats.wire.outcome import TransportTrouble
from hivemind_addon.proxy.host.connections import (
    BAD_HEAD,
    BoundedH2Connection,
    BoundedHttp1Client,
    BoundedHttp2Client,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hyperframe.frame import Frame, GoAwayFrame
    from mitmproxy.proxy.context import Context

_MOST_UNANSWERED = 2
"""Pings. The next one would be due after nearly three minutes of silence: then the connection is dead."""
_NOT_PROCESSED = "not processed before GOAWAY"
"""How our h2 client names streams that the server's GOAWAY says it never ran."""
_CERTIFICATE = re.compile(r"certificate verify failed|certificate_verify|CERT_", re.IGNORECASE)
_NAME = re.compile(
    r"name or service not known|nodename nor servname|name resolution|no address associated", re.IGNORECASE
)
_NOT_RUN = re.compile(rf"REFUSED_STREAM|{_NOT_PROCESSED}")


class DrainingHttpLayer(HttpLayer):
    """An HTTP layer that knows which of its upstream connections take no more requests."""

    def __init__(self, context: Context, mode: HTTPMode) -> None:
        super().__init__(context, mode)
        self.draining: set[Connection] = set()
        """Upstream h2 connections that have said GOAWAY and finish the streams they have."""


class FreshConnection(GetHttpConnection):
    """Asks for an upstream connection that still takes requests: not one that failed, nor one that drains."""

    draining: Collection[Connection] = ()
    redirected: Mapping[str, tuple[str, int]] = MappingProxyType({})
    """Connection id → the address that a redirected connection stands for."""

    def connection_spec_matches(self, connection: Connection) -> bool:
        """Whether `connection` would do."""
        if not isinstance(connection, Server) or connection.error or connection in self.draining:
            return False
        return (
            self.address == self.redirected.get(connection.id, connection.address)
            and self.tls == connection.tls
            and self.via == connection.via
            and self.transport_protocol == connection.transport_protocol
        )


class GracefulHttpClient(HttpClient):
    """mitmproxy's `HttpClient`, with bounded connections, of which an h2 one outlives a graceful GOAWAY."""

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        error: str | None = None
        if not self.context.server.connected:
            error = yield commands.OpenConnection(self.context.server)
        if not error:
            self.child_layer = client_for(self.context)
            self._handle_event = self.child_layer.handle_event  # type: ignore[method-assign]
            yield from self._handle_event(event)
        yield RegisterHttpConnection(self.context.server, error)
        if not error and self.debug is None:
            self.handle_event = self.child_layer.handle_event  # type: ignore[method-assign]  # there is nothing more to wait for


class GracefulH2Connection(BoundedH2Connection):
    """An h2 connection that GOAWAY(NO_ERROR) does not close: the library would refuse every later frame."""

    unanswered = 0
    """Pings since anything came."""

    def ping(self, opaque_data: bytes | str) -> None:
        """Ask whether the server lives."""
        self.unanswered += 1
        super().ping(opaque_data)

    def receive_data(self, data: bytes) -> list[h2.events.Event]:
        """Take what came, which shows that the server lives."""
        self.unanswered = 0
        return super().receive_data(data)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[h2.events.Event]]:
        if frame.error_code != h2.errors.ErrorCodes.NO_ERROR:
            return super()._receive_goaway_frame(frame)
        goaway = h2.events.ConnectionTerminated()
        goaway.error_code = h2.errors.ErrorCodes.NO_ERROR
        goaway.last_stream_id = frame.last_stream_id
        goaway.additional_data = frame.additional_data or None
        return [], [goaway]


class GracefulHttp2Client(BoundedHttp2Client):
    """An h2 client whose running streams finish after GOAWAY(NO_ERROR); the connection takes no new ones."""

    connection_type = GracefulH2Connection
    h2_conn: GracefulH2Connection

    def _handle_event2(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, events.Wakeup) and self.h2_conn.unanswered == _MOST_UNANSWERED:
            return self.close_connection("no answer to HTTP/2 pings")
        return super()._handle_event2(event)

    def handle_h2_event(self, event: h2.events.Event) -> layer.CommandGenerator[bool]:
        """Drain on a graceful GOAWAY."""
        if not (
            isinstance(event, h2.events.ConnectionTerminated) and event.error_code == h2.errors.ErrorCodes.NO_ERROR
        ):
            done = yield from super().handle_h2_event(event)
            if isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset)):
                yield from self._close_when_drained()
            return done
        for parent in self.context.layers:
            if isinstance(parent, DrainingHttpLayer):
                parent.draining.add(self.conn)
        last = event.last_stream_id if event.last_stream_id is not None else 0
        for stream_id in [known for known in self.streams if known > last]:
            self.streams.pop(stream_id)
            yield ReceiveHttp(ResponseProtocolError(stream_id, _NOT_PROCESSED, ErrorCode.GENERIC_SERVER_ERROR))
        yield from self._close_when_drained()
        return False

    def _close_when_drained(self) -> layer.CommandGenerator[None]:
        for parent in self.context.layers:
            if isinstance(parent, DrainingHttpLayer) and self.conn in parent.draining and not self.streams:
                yield commands.CloseConnection(self.conn)


def client_for(context: Context) -> HttpConnection:
    """Our side of an upstream connection that is open."""
    alpn = context.server.alpn
    if alpn == b"h2":
        return GracefulHttp2Client(context)
    if is_h3_alpn(alpn):
        return Http3Client(context)
    return BoundedHttp1Client(context)


def connect_trouble(error: str) -> TransportTrouble:
    """What kept an upstream connection from opening, told from mitmproxy's message."""
    if _CERTIFICATE.search(error):
        return TransportTrouble.CERTIFICATE
    if _NAME.search(error):
        return TransportTrouble.NAME_NOT_FOUND
    return TransportTrouble.CONNECT_FAILED


def attempt_trouble(message: str, *, head_came: bool) -> TransportTrouble:
    """What broke an attempt whose request was sent, told from mitmproxy's message."""
    if _NOT_RUN.search(message):
        return TransportTrouble.REFUSED_STREAM
    if message.startswith(BAD_HEAD):
        return TransportTrouble.INVALID
    return TransportTrouble.CUT if head_came else TransportTrouble.CLOSED_BEFORE_HEAD
