"""Responses over a WebSocket, as the simulated provider speaks it: each `response.create` is a model call.

Its limits, faults and truth are the ones of plain requests. What `previous_response_id` names is known in this
connection alone, and forgotten when a call that names it fails. Lanes (`stream_id`) are answered beside each other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, assert_never, cast

import msgspec
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, CloseConnection, Ping, TextMessage
from wsproto.extensions import PerMessageDeflate
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from hivemind_addon.formats.wire.sse import SseParser
from hivemind_addon.sim.exchange import Incoming, WritingProtocol, drop, pause, start
from hivemind_addon.sim.faults import Hangup
from hivemind_addon.sim.plan import Data, Drop, DropStream, End, Head, Leave, LeaveInError, PauseStep, Step

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hivemind_addon.sim.exchange import Service

_Members = dict[str, Any]


class SocketConnection(WritingProtocol):
    """One connection, from its upgrade on."""

    def __init__(
        self, service: Service, upgrade: Incoming, transport: asyncio.Transport, *, life_s: float, ahead: bytes
    ) -> None:
        """`ahead`: what has come behind the upgrade's head."""
        super().__init__()
        self.service = service
        self._upgrade = upgrade
        self.transport = transport
        self._ends_at = asyncio.get_running_loop().time() + life_s
        self._text: list[str] = []
        self._known: dict[str, _Members] = {}
        """Id of an answer → the request that it answered, with the answer as the last of its input."""
        self._lanes: dict[str, _SocketLane] = {}
        self._ws = WSConnection(ConnectionType.SERVER)
        head = [(name.encode(), value.encode("latin-1")) for name, value in upgrade.headers.items()]
        self._ws.initiate_upgrade_connection(head, upgrade.path)
        next(self._ws.events())
        transport.write(self._ws.send(AcceptConnection(extensions=[PerMessageDeflate()])))
        if ahead:
            self.data_received(ahead)

    def __repr__(self) -> str:
        return f"<SocketConnection {self._upgrade.log.number}, knows {len(self._known)} answers>"

    def connection_lost(self, _error: Exception | None) -> None:
        """The client is gone, and with it whoever waits for what runs."""
        self._upgrade.log.open = False
        for lane in self._lanes.values():
            lane.stop()

    def data_received(self, data: bytes) -> None:
        """Frames, or pieces of them."""
        try:
            self._ws.receive_data(data)
            for event in self._ws.events():
                match event:
                    case TextMessage():
                        self._text.append(event.data)
                        if event.message_finished:
                            text, self._text = "".join(self._text), []
                            self._message(text)
                    case Ping():
                        self.transport.write(self._ws.send(event.response()))
                    case CloseConnection():
                        if self._ws.state is ConnectionState.REMOTE_CLOSING:
                            self.transport.write(self._ws.send(event.response()))
                        self.transport.close()
                    case _:
                        pass
        except RemoteProtocolError:
            self.transport.abort()

    def _message(self, text: str) -> None:
        try:
            frame = msgspec.json.decode(text, type=_Members)
        except msgspec.MsgspecError:
            frame = {}
        if frame.get("type") == "response.create":
            name = str(frame.get("stream_id") or "")
            lane = self._lanes.setdefault(name, _SocketLane(self, name))
            lane.ask(frame)

    def request(self, frame: _Members) -> tuple[_Members | None, str]:
        """The whole request that a frame asks for, and why there is none."""
        if asyncio.get_running_loop().time() > self._ends_at:
            return None, "websocket_connection_limit_reached"
        before = frame.get("previous_response_id")
        whole = {name: value for name, value in frame.items() if name not in {"type", "previous_response_id"}}
        whole |= {"input": _items(frame.get("input")), "stream": True}
        if before:
            if before not in self._known:
                return None, "previous_response_not_found"
            known = self._known[before]
            whole = {**known, **whole, "input": [*known["input"], *whole["input"]]}
        return whole, ""

    def learn(self, response: Mapping[str, Any], whole: _Members) -> None:
        """An answer is complete: the next request may go on from it."""
        self._known[str(response.get("id"))] = {**whole, "input": [*whole["input"], *(response.get("output") or ())]}

    def forget(self, frame: Mapping[str, Any]) -> None:
        """A call has failed: what it went on from is not known any more."""
        self._known.pop(str(frame.get("previous_response_id")), None)

    def incoming(self, whole: _Members) -> Incoming:
        """The plain request that a turn is."""
        upgrade = self._upgrade
        incoming = Incoming(
            method="POST", target=upgrade.path, headers=upgrade.headers, host=upgrade.host, log=upgrade.log
        )
        self.service.arrived(incoming)
        incoming.receive(msgspec.json.encode(whole))
        return incoming

    def send(self, frame: Mapping[str, object], lane: str) -> None:
        """One text frame."""
        if lane:
            frame = {**frame, "stream_id": lane}
        try:
            data = self._ws.send(TextMessage(msgspec.json.encode(frame).decode()))
        except LocalProtocolError:
            return  # it is closing
        self.transport.write(data)

    def close(self, code: int) -> None:
        """Say good-bye."""
        if self._ws.state is ConnectionState.OPEN:
            self.transport.write(self._ws.send(CloseConnection(code)))


class _SocketLane:
    """What one lane asks, one after the other. Also the player of its answers."""

    def __init__(self, connection: SocketConnection, name: str) -> None:
        self.dropped = False
        self._connection = connection
        self._name = name
        self._waiting: deque[_Members] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._frame: _Members = {}
        self._whole: _Members = {}
        self._head: Head | None = None
        self._body = b""
        self._parser = SseParser()
        self._close_after = False

    def ask(self, frame: _Members) -> None:
        """A call came."""
        self._waiting.append(frame)
        self._go_on()

    def stop(self) -> None:
        """Nobody listens any more."""
        self._waiting.clear()
        if self._answering is not None:
            self._answering.cancel()

    def _go_on(self) -> None:
        while self._answering is None and self._waiting:
            frame = self._frame = self._waiting.popleft()
            whole, trouble = self._connection.request(frame)
            if whole is None:
                error = {"type": "invalid_request_error", "code": trouble, "message": trouble.replace("_", " ")}
                self._connection.send({"type": "error", "status": 400, "error": error}, self._name)
                if trouble == "websocket_connection_limit_reached":
                    self._connection.close(1000)
                continue
            self._whole, self._head, self._body, self._parser = whole, None, b"", SseParser()
            if frame.get("generate") is False:
                self._warm_up()
                continue
            whole.pop("stream_id", None)
            task = start(self._connection.service, self._connection.incoming(whole), self)
            if not task.done():
                self._answering = task
                task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering = None
        if task.cancelled():
            return
        task.result()
        self._go_on()

    def _warm_up(self) -> None:
        response: _Members = {"id": f"resp_warm_{id(self._frame):x}", "object": "response", "output": [], "usage": None}
        self._connection.learn(response, {name: value for name, value in self._whole.items() if name != "generate"})
        for status in ("created", "completed"):
            frame = {"type": f"response.{status}", "response": {**response, "status": status}}
            self._connection.send(frame, self._name)

    async def play(self, step: Step) -> None:
        """See Player."""
        match step:
            case Head():
                self._head = step
            case Data(data):
                self._piece(data)
            case End():
                self._end()
            case PauseStep(pause_s):
                await pause(pause_s)
            case Drop(how):
                self.dropped = True
                drop(self._connection.transport, how)
            case Leave():
                self._close_after = True
            case DropStream() | LeaveInError():
                self.dropped = True
                drop(self._connection.transport, Hangup.RESET)
            case _:
                assert_never(step)
        await self._connection.written()

    def _piece(self, data: bytes) -> None:
        assert self._head is not None
        if not dict(self._head.headers).get("content-type", "").startswith("text/event-stream"):
            self._body += data
            return
        for event in self._parser.feed(data):
            frame = msgspec.json.decode(event.data, type=_Members)
            self._connection.send(frame, self._name)
            if frame["type"] in {"response.completed", "response.incomplete"}:
                self._connection.learn(cast("_Members", frame["response"]), self._whole)
            elif frame["type"] == "response.failed":
                self._connection.forget(self._frame)

    def _end(self) -> None:
        assert self._head is not None
        if self._head.status != 200:
            self._connection.forget(self._frame)
            try:
                error = msgspec.json.decode(self._body, type=_Members).get("error")
            except msgspec.MsgspecError:  # a page of HTML
                error = {"type": "server_error", "code": None, "message": "an error of the gateway"}
            headers = {name: value for name, value in self._head.headers if not name.startswith("content-")}
            frame = {"type": "error", "status": self._head.status, "error": error, "headers": headers}
            self._connection.send(frame, self._name)
        if self._close_after:
            self._connection.close(1001)


def _items(said: object) -> list[object]:
    return said if isinstance(said, list) else [{"type": "message", "role": "user", "content": said}]
