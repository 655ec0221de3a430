"""A scheduled WebSocket in mitmproxy: the layer reports incoming frames, and takes frames to write.

Nothing waits in a hook: mitmproxy would hold pings, closes and the other side's frames back as well. The hook drops a
held frame, and the layer writes the frame at the frame's turn. Code outside that decides a turn wakes the layer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from mitmproxy import http
from msgspec.structs import replace

from hivemind_addon.formats.wire import frames
from hivemind_addon.kernel.values.ticket import Delivery
from hivemind_addon.proxy.gate.interfaces.annotation import SIZE_KEY
from hivemind_addon.proxy.host.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from mitmproxy.websocket import WebSocketMessage

    from hivemind_addon.formats.profile.model import Profile
    from hivemind_addon.proxy.gate.exchange import Exchange
    from hivemind_addon.proxy.gate.interfaces.annotation import Annotator
    from hivemind_addon.proxy.host.port import Written
    from hivemind_addon.proxy.host.turns import Turn
    from hivemind_addon.proxy.run.guard import Guard, GuardedBlock

_OF_ONE_CONNECTION = ("connection", "upgrade", "content-length", "content-type", "transfer-encoding")
_HANDSHAKE = "sec-websocket-"
_LEAST_KEPT = 4
"""Frames: the layer still looks at the newest."""


class SocketProxy(Protocol):
    """The part of `Proxy` that its sockets need."""

    annotator: Annotator
    guard: Guard
    wake_layer: Callable[[http.HTTPFlow], None]

    def guarded(self, where: str) -> GuardedBlock: ...  # noqa: D102 - see Proxy, as for the next
    def make_turn(self, flow: http.HTTPFlow, profile: Profile, turn: Turn) -> Exchange: ...  # noqa: D102
    def forget_turn(self, exchange: Exchange) -> None: ...  # noqa: D102


class ScheduledSocket:
    """One WebSocket. Implements `mitm.port.SocketPort` for its layer, and `mitm.turns.Wire` for its turns."""

    def __init__(self, flow: http.HTTPFlow, profile: Profile, proxy: SocketProxy) -> None:
        self.flow = flow
        self.profile = profile
        self._proxy = proxy
        self._turns = Turns(self)
        self._written: list[Written] = []
        self._in_layer = False
        """It takes what is written as soon as we answer."""
        self._is_woken = False
        self._is_over = False
        self._count = 0
        self._kept_bytes = 0
        """Of the frames that mitmproxy has."""
        self._waits: set[asyncio.Task[None]] = set()
        self._alarms: set[asyncio.TimerHandle] = set()

    # For the layer ---------------------------------------------------------------------------------------------------

    def came(self, message: WebSocketMessage) -> None:
        """See SocketPort."""
        self._kept_bytes += len(message.content)
        if self._is_over or message.dropped or message.injected or not (message.is_text or message.from_client):
            return  # a client's binary frame may say what a text frame says
        self._in_layer = True
        passes = True
        try:
            take = self._turns.from_client if message.from_client else self._turns.from_server
            passes = take(message.content)
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self._trip("websocket", error, message.content)
        finally:
            self._in_layer = False
        if not passes:
            message.drop()

    def take(self) -> list[Written]:
        """See SocketPort."""
        self._is_woken = False
        written, self._written = self._written, []
        return written

    def closed(self, *, by_client: bool) -> None:
        """See SocketPort."""
        if self._is_over:
            return
        self._is_over = True
        for alarm in self._alarms:
            alarm.cancel()
        self._alarms.clear()
        self._written.clear()
        with self._proxy.guarded("websocket"):
            self._turns.closed(by_client=by_client)

    # For the turns ---------------------------------------------------------------------------------------------------

    def to_client(self, text: bytes) -> None:
        """See Wire."""
        self._write((True, text))

    def to_server(self, text: bytes) -> None:
        """See Wire."""
        self._write((False, text))

    def close(self) -> None:
        """See Wire."""
        self._write(None)

    def begin(self, turn: Turn) -> Exchange | None:
        """See Wire."""
        self._count += 1
        exchange = self._proxy.make_turn(_plain(self.flow, turn), self.profile, turn)
        exchange.shown_on, exchange.turn, exchange.frames = self.flow, self._count, turn.seen
        if turn.asked.previous and turn.may_repeat and turn.lane.warm_up is not None:
            exchange.warm_up = turn.lane.warm_up.text
        if turn.asked.previous:  # such an input alone does not tell who comes back
            exchange.ticket = replace(exchange.ticket, request_hash="")
        if not turn.may_repeat:  # to keep all of its answer back has no use where it could not be asked for again
            exchange.delivery = Delivery.STREAM
        return exchange

    def wait(self, turn: Turn) -> None:
        """See Wire."""
        task = asyncio.ensure_future(self._wait(turn))
        self._waits.add(task)
        task.add_done_callback(self._waits.discard)

    def ring(self, turn: Turn, delay_s: float) -> None:
        """See Wire."""
        alarm: asyncio.TimerHandle | None = None

        def ring() -> None:
            if alarm is not None:
                self._alarms.discard(alarm)
            self._call(turn.rings)

        alarm = asyncio.get_running_loop().call_later(delay_s, ring)
        self._alarms.add(alarm)

    def ended(self, turn: Turn) -> None:
        """See Wire."""
        exchange: Exchange = turn.exchange  # type: ignore[assignment]  # `begin` made it
        if exchange.tape is not None and turn.seen:
            body = frames.answered(turn.seen)
            exchange.flow.response = http.Response.make(200, body, {"content-type": "text/event-stream"})
        self._proxy.forget_turn(exchange)
        self._forget_frames()

    def _forget_frames(self) -> None:
        """What nobody is to read any more goes."""
        assert self.flow.websocket is not None
        messages, room = self.flow.websocket.messages, self._proxy.annotator.shown_bytes
        gone = 0
        while self._kept_bytes > room and gone < len(messages) - _LEAST_KEPT:
            self._kept_bytes -= len(messages[gone].content)
            gone += 1
        del messages[:gone]
        self.flow.metadata[SIZE_KEY] = self._kept_bytes

    async def _wait(self, turn: Turn) -> None:
        exchange: Exchange = turn.exchange  # type: ignore[assignment]
        with self._proxy.guarded("annotate"):
            self._proxy.annotator.show(exchange)
        await exchange.hold()
        self._call(turn.decided)
        with self._proxy.guarded("annotate"):
            self._proxy.annotator.show(exchange)

    def _call(self, what: Callable[[], None]) -> None:
        if self._is_over:
            return
        try:
            what()
        except Exception as error:  # noqa: BLE001 - the guard at the edge
            self._trip("websocket", error)

    def _trip(self, where: str, error: Exception, came: bytes = b"") -> None:
        """An exception of ours: what is held goes, and the socket is a tunnel from now on."""
        self._proxy.guard.trip(where, error)
        with self._proxy.guarded("letting go of a WebSocket"):
            self._turns.let_go(but=came)
        self._is_over = True
        for turn in list(self._turns.live):
            turn.exchange.finished()
            self._proxy.forget_turn(turn.exchange)  # type: ignore[arg-type]  # `begin` made it

    def _write(self, what: Written) -> None:
        self._written.append(what)
        if not self._in_layer and not self._is_woken:
            self._is_woken = True
            self._proxy.wake_layer(self.flow)


def _plain(upgrade: http.HTTPFlow, turn: Turn) -> http.HTTPFlow:
    """The plain request that a turn would be: what reads, counts, records and keeps requests needs no other way."""
    flow = http.HTTPFlow(upgrade.client_conn, upgrade.server_conn, live=True)
    headers = [
        (name, value)
        for name, value in upgrade.request.headers.fields
        if (plain := name.lower().decode("ascii", "replace")) not in _OF_ONE_CONNECTION
        and not plain.startswith(_HANDSHAKE)
        and plain not in turn.asked.told
    ]
    told = [(name.encode(), value.encode("utf-8", "replace")) for name, value in turn.asked.told.items()]
    flow.request = upgrade.request.copy()
    flow.request.method = "POST"
    flow.request.headers = http.Headers([*headers, *told, (b"content-type", b"application/json")])
    flow.request.raw_content = frames.as_request(turn.text)
    flow.metadata.update({name: value for name, value in upgrade.metadata.items() if isinstance(value, str | tuple)})
    return flow
