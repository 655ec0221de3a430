"""One client connection inside mitmproxy's HTTP layer: its streams, its connections to providers, and the ways between.

It makes our streams (`proxy/host/stream.py`) and bounded connections (`proxy/host/connections.py`), gives each event to
the one that it is for with no step in between, and forgets what is over. Private names, as there.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands, events, layer
from mitmproxy.proxy.layers.http import (
    DropStream,
    GetHttpConnection,
    HttpClient,
    HttpLayer,
    HTTPMode,
    HttpStream,
    RegisterHttpConnection,
    SendHttp,
)
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import (
    RequestHeaders,
)
from mitmproxy.proxy.layers.http._upstream_proxy import HttpUpstreamProxy
from mitmproxy_rs.udp import UdpServer

from hivemind_addon.proxy.host.connections import (
    BoundedUpstreamProxy,
    dissolve,
    server_for,
)
from hivemind_addon.proxy.host.heads import twin
from hivemind_addon.proxy.host.stream import EndAttempt, ScheduledStream, SocketWord
from hivemind_addon.proxy.host.upstream_client import (
    DrainingHttpLayer,
    FreshConnection,
    GracefulHttpClient,
    client_for,
)
from hivemind_addon.proxy.host.writes import in_one_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mitmproxy.addons.proxyserver import Servers
    from mitmproxy.connection import Connection, Server
    from mitmproxy.proxy.context import Context
    from mitmproxy.proxy.mode_servers import ServerInstance

    from hivemind_addon.proxy.host.port import Port


class SchedulingHttpLayer(DrainingHttpLayer):
    """One client connection: makes our streams, and forgets upstream connections that are of no use any more."""

    alias_ids = itertools.count(1 << 32)
    """Ids of later attempts; beyond every id of a client's h2 stream."""

    def __init__(self, context: Context, mode: HTTPMode, port: Port) -> None:
        super().__init__(context, mode)
        self.port = port
        self.leaving: set[ScheduledStream] = set()
        """Those that are over, or about to be."""
        self._idle_alarms: set[commands.RequestWakeup] = set()
        """Nobody waits for them any more: each alarm is a task, which mitmproxy lets sleep to its end."""

    def make_stream(self, stream_id: int) -> layer.CommandGenerator[None]:
        """Build one of our streams."""
        self._new_stream(stream_id)
        yield from ()

    def _new_stream(self, stream_id: int) -> ScheduledStream:
        """Waiting for its head: it is not told to start, since it says nothing to that."""
        stream = self.streams[stream_id] = ScheduledStream(_forked(self.context), stream_id, self)
        stream.client_state = stream.state_wait_for_request_headers
        return stream

    def take_alarm(self, stream: ScheduledStream, delay_s: float) -> commands.RequestWakeup | None:
        """One that was left and rings no later; from now on it rings for this stream. None: there is none."""
        for alarm in self._idle_alarms:
            if alarm.delay <= delay_s:
                self._idle_alarms.discard(alarm)
                self.command_sources[alarm] = stream
                return alarm
        return None

    def leave_alarm(self, alarm: commands.RequestWakeup) -> None:
        """It rings for nobody."""
        if self.command_sources.pop(alarm, None) is not None:
            self._idle_alarms.add(alarm)

    def connection_to(self, peer: Connection) -> layer.Layer | None:
        """The innermost layer of a connection: the one that speaks HTTP."""
        return deque(_stack(self.connections.get(peer)), maxlen=1).pop() if peer in self.connections else None

    def ready_connection(self, wanted: FreshConnection) -> Server | None:
        """The one that `get_connection` would answer with at once; None: it has to be asked."""
        is_http2 = self.context.client.alpn == b"h2"
        for connection in self.connections:
            if wanted.connection_spec_matches(connection):
                if connection in self.waiting_for_establishment:
                    return None
                if connection.connected and not (is_http2 and connection.alpn != b"h2"):
                    return cast("Server", connection)
        return None

    def alias(self, stream: ScheduledStream) -> int:
        """A new id under which the server side knows `stream`."""
        attempt_id = next(self.alias_ids)
        self.streams[attempt_id] = stream
        return attempt_id

    def handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        """Handle it; what comes from a connection that is known goes there with no step in between."""
        if type(event) is not events.DataReceived or self._paused is not None or self.debug is not None:
            return super().handle_event(event)
        known = self.connections.get(event.connection)
        if known is None:
            return super().handle_event(event)
        return in_one_write(self.event_to_child(known, event), then=self._let_go)

    def _handle_event(self, event: events.Event) -> layer.CommandGenerator[None]:
        return in_one_write(self._handle_turn(event), then=self._let_go)

    def _let_go(self) -> None:
        """Nothing of a stream that is over waits for the collector."""
        if not self.leaving:
            return
        waiting = {stream for stream in self.leaving if stream.waits}
        for stream in self.leaving - waiting:
            if self.streams.get(stream.stream_id) is not stream:
                stream.dissolve()
        self.leaving = waiting
        if not self.streams and self.context.client.state is ConnectionState.CLOSED:
            dissolve(self.connections[self.context.client])

    def _handle_turn(self, event: events.Event) -> layer.CommandGenerator[None]:
        if isinstance(event, events.Wakeup) and event.command not in self.command_sources:
            self._idle_alarms.discard(event.command)
            return _nothing()
        if isinstance(event, events.ConnectionClosed) and event.connection is not self.context.client:
            return self._on_server_closed(event)
        if isinstance(event, (EndAttempt, SocketWord)):
            return self._on_word(event)
        # Bounded ones, before the base class builds its own.
        if isinstance(event, events.Start):
            self.connections.setdefault(self.context.client, server_for(self.context.fork(), self._takes_whole))
        server, known = self.context.server, self.connections
        if isinstance(event, events.DataReceived) and event.connection == server and server not in known:
            return self._on_greeting(event)
        return super()._handle_event(event)  # type: ignore[no-any-return]  # the host reassigns it

    def _takes_whole(self, stream_id: int) -> bool:
        stream = self.streams.get(stream_id)
        return isinstance(stream, ScheduledStream) and stream.takes_whole

    def _on_greeting(self, event: events.DataReceived) -> layer.CommandGenerator[None]:
        """A server that was connected early speaks before it is asked, as h2 ones do."""
        client = self.connections[event.connection] = client_for(self.context.fork())
        yield from self.event_to_child(client, events.Start())
        yield from self.event_to_child(client, event)

    def _on_word(self, event: EndAttempt | SocketWord) -> layer.CommandGenerator[None]:
        """Find the flow's stream: one of ours, or of a layer inside a tunnel of ours."""
        for stream in list(self.streams.values()):
            if getattr(stream, "flow", None) is event.flow:
                yield from self.event_to_child(stream, event)
                return
            if stream.child_layer is not None:
                yield from self.event_to_child(stream, event)

    def _on_server_closed(self, event: events.ConnectionClosed) -> layer.CommandGenerator[None]:
        if event.connection is not self.context.server and event.connection not in self.connections:
            return  # forgotten already
        yield from super()._handle_event(event)
        self._forget(event.connection)

    def _forget(self, connection: Connection) -> None:
        """Drop a closed upstream connection that no stream refers to; the base class keeps them all."""
        if any(stream.context.server is connection for stream in self.streams.values()):
            return
        if connection not in self.waiting_for_establishment:
            closed = self.connections.pop(connection, None)
            if not isinstance(closed, HttpStream):  # that is a tunnel, whose own layers it belongs to
                for one in _stack(closed):
                    dissolve(one)
            self.draining.discard(connection)

    def event_to_child(self, child: layer.Layer | HttpStream, event: events.Event) -> layer.CommandGenerator[None]:
        """Give an event to a stream or a connection, and what follows from it to the others, in mitmproxy's order.

        Theirs is a generator within a generator for each step from one to the other, and each command of the innermost
        goes through all of them; here one loop has them all.
        """
        if isinstance(event, events.Start) and not isinstance(child, HttpStream):
            _bound(child)
        active = [(child, child.handle_event(event))]
        while active:
            child, doing = active[-1]
            for command in doing:
                if isinstance(command, ReceiveHttp):
                    if isinstance(command.event, RequestHeaders):
                        self._new_stream(command.event.stream_id)
                    # One that is over is gone: late data is for nobody.
                    if stream := self.streams.get(command.event.stream_id):
                        active.append((stream, stream.handle_event(command.event)))
                        break
                elif isinstance(command, SendHttp):
                    connection = self.connections[command.connection]
                    active.append((connection, connection.handle_event(command.event)))
                    break
                elif isinstance(command, commands.SendData):
                    yield command
                elif isinstance(command, DropStream):
                    self.streams.pop(command.stream_id, None)
                else:
                    yield from self._obey(command, child)
            else:
                active.pop()

    def _obey(self, command: commands.Command, child: layer.Layer) -> layer.CommandGenerator[None]:
        """Do what is about connections, and remember whose the answer is to what has one."""
        if command.blocking or isinstance(command, commands.RequestWakeup):
            self.command_sources[command] = child
        if isinstance(command, GetHttpConnection):
            yield from self.get_connection(command)
        elif isinstance(command, RegisterHttpConnection):
            yield from self.register_connection(command)
        else:
            if isinstance(command, commands.OpenConnection):
                self.connections[command.connection] = child
            yield command


def _bound(child: layer.Layer) -> None:
    """Give a new upstream connection a client that survives a graceful GOAWAY, and bound a proxy's answer."""
    for inner in _stack(child):
        if type(inner) is HttpClient:
            # The base class builds it inside get_connection and offers no factory to override.
            inner.__class__ = GracefulHttpClient
        elif type(inner) is HttpUpstreamProxy:
            inner.__class__ = BoundedUpstreamProxy


def _forked(context: Context) -> Context:
    """What `fork` answers, which also makes a server, with an id of its own, and throws it away."""
    forked = twin(context)
    forked.layers = context.layers.copy()
    return forked


def _nothing() -> layer.CommandGenerator[None]:
    yield from ()


def _stack(top: layer.Layer | None) -> Iterator[layer.Layer]:
    current: Any = top
    while current is not None:
        yield current
        current = getattr(current, "child_layer", None)


def scheduling_layer(chosen: layer.Layer | None, port: Port) -> layer.Layer | None:
    """Replace the `HttpLayer` in the stack that mitmproxy chose by ours; any other stack stays as it is."""
    above: layer.Layer | None = None
    current: Any = chosen
    while current is not None and type(current) is not HttpLayer:
        above, current = current, getattr(current, "child_layer", None)
    if current is None:
        return chosen
    current.context.layers.remove(current)  # ours takes its place, the last one
    ours = SchedulingHttpLayer(current.context, current.mode, port)
    if above is None:
        return ours
    above.child_layer = ours  # type: ignore[attr-defined]
    return chosen


def forget_unbound(servers: Servers) -> None:
    """Drop mitmproxy's servers that were never bound; it would take them for its own that run."""
    for mode in [mode for mode, server in servers._instances.items() if not server.is_running]:  # noqa: SLF001
        del servers._instances[mode]  # noqa: SLF001


def datagram_listeners(servers: Iterable[ServerInstance[Any]]) -> list[UdpServer]:
    """The UDP listeners of mitmproxy's servers: reverse mode has them for HTTP/3."""
    return [one for server in servers for one in getattr(server, "_servers", ()) if isinstance(one, UdpServer)]
