"""HTTP/1.1 for the simulated provider: one connection, requests one after the other, as h11 reads and writes them."""

import asyncio
from http import HTTPStatus
from typing import assert_never, cast

import h11

from hivemind_addon.sim.exchange import Incoming, Service, WritingProtocol, drop, pause, start
from hivemind_addon.sim.faults import Hangup
from hivemind_addon.sim.plan import Data, Drop, DropStream, End, Head, Leave, LeaveInError, PauseStep, Step
from hivemind_addon.sim.websocket import SocketConnection

_MAX_HEAD_BYTES = 64 * 1024
_MAX_AHEAD_BYTES = 1024 * 1024
"""What is read of the next requests while one is being answered."""
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Site is overloaded"}


class Http1Connection(WritingProtocol):
    """One connection. Also the player of its answers, since there is only one at a time."""

    def __init__(self, service: Service, *, sni: str | None) -> None:
        super().__init__()
        self._service = service
        self._log = service.opened(http2=False, sni=sni)
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._incoming: Incoming | None = None
        self._answering: asyncio.Task[None] | None = None
        self._ahead_bytes = 0
        self._close_after = False
        self._out: list[bytes] = []

    def __repr__(self) -> str:
        return f"<Http1Connection {self._log.number}, {self._log.requests} requests>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open, TLS included."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is gone, and with it the client of what runs."""
        self._log.open = False
        if self._answering is not None:
            self._answering.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of this or of the next requests."""
        self._http.receive_data(data)
        if self._answering is None:
            self._advance()
            return
        self._ahead_bytes += len(data)
        if self._ahead_bytes > _MAX_AHEAD_BYTES:
            self._transport.pause_reading()

    async def play(self, step: Step) -> None:
        """See Player."""
        match step:
            case Head(status, headers, length):
                sized = [] if length is None else [("content-length", str(length))]
                self._put(h11.Response(status_code=status, headers=[*headers, *sized], reason=_REASONS.get(status, "")))
            case Data(data):
                if data:
                    self._put(h11.Data(data=data))
            case End():
                self._put(h11.EndOfMessage())
                self._flush()
            case PauseStep(pause_s):
                self._flush()
                await pause(pause_s)
            case Drop(how):
                self._flush()
                self.dropped = True
                drop(self._transport, how)
            case Leave():
                self._close_after = True
            case DropStream() | LeaveInError():
                self.dropped = True
                drop(self._transport, Hangup.RESET)
            case _:
                assert_never(step)
        await self.written()

    def _put(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            self._out.append(data)

    def _flush(self) -> None:
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _advance(self) -> None:
        """Read what is there, answering complete requests, until more is needed or an answer takes its time."""
        try:
            while self._answering is None and not self._transport.is_closing():
                match self._http.next_event():
                    case h11.Request() as request:
                        self._begin(request)
                    case h11.Data(data=data) if self._incoming is not None:
                        self._incoming.receive(data)
                    case h11.EndOfMessage():
                        self._respond()
                    case _:
                        return
        except h11.RemoteProtocolError as error:
            said = str(error).encode()
            headers = [("content-type", "text/plain"), ("content-length", str(len(said))), ("connection", "close")]
            self._put(h11.Response(status_code=400, headers=headers, reason="Bad Request"))
            self._put(h11.Data(data=said))
            self._flush()
            self._transport.close()

    def _begin(self, request: h11.Request) -> None:
        headers: dict[str, str] = {}
        for raw_name, raw_value in request.headers:
            name, value = raw_name.decode(), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        target, host = request.target.decode(), headers.get("host", "")
        if target.startswith("http://"):
            host, _, path = target.removeprefix("http://").partition("/")
            target = f"/{path}"
        self._incoming = Incoming(
            method=request.method.decode(), target=target, headers=headers, host=host, log=self._log
        )
        self._service.arrived(self._incoming)
        if self._http.they_are_waiting_for_100_continue:
            self._put(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))
            self._flush()

    def _respond(self) -> None:
        incoming, self._incoming = self._incoming, None
        assert incoming is not None
        life_s = self._service.socket_life_s(incoming)
        if life_s is not None:
            ahead = self._http.trailing_data[0]
            self._transport.set_protocol(
                SocketConnection(self._service, incoming, self._transport, life_s=life_s, ahead=ahead)
            )
            return
        task = start(self._service, incoming, self)
        if task.done():
            self._finish(task)
        else:
            self._answering = task
            task.add_done_callback(self._answered)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._answering = None
        if task.cancelled():
            return
        self._finish(task)
        if self._transport.is_closing():
            return
        self._ahead_bytes = 0
        self._transport.resume_reading()
        self._advance()

    def _finish(self, task: asyncio.Task[None]) -> None:
        if task.exception() is not None:
            self._transport.abort()
        elif self._close_after or self._http.our_state is not h11.DONE:
            self._transport.close()
        else:
            self._http.start_next_cycle()
        task.result()
