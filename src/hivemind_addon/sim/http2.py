"""HTTP/2 for the simulated provider: one connection, many streams."""

import asyncio
from typing import assert_never, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.settings import SettingCodes, Settings
from hyperframe.frame import GoAwayFrame

from hivemind_addon.sim.exchange import Incoming, Service, WritingProtocol, drop, pause, start
from hivemind_addon.sim.faults import Hangup
from hivemind_addon.sim.plan import Data, Drop, DropStream, End, Head, Leave, LeaveInError, PauseStep, Step, StreamReset

_STREAM_WINDOW_BYTES = 1024 * 1024
_CONNECTION_WINDOW_BYTES = 16 * 1024 * 1024
_MAX_STREAMS = 1000
_DEFAULT_WINDOW_BYTES = 65535


class Http2Connection(WritingProtocol):
    """One connection."""

    def __init__(self, service: Service, *, sni: str | None) -> None:
        super().__init__()
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8", validate_outbound_headers=False)
        )
        self.h2.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW_BYTES,
                SettingCodes.MAX_CONCURRENT_STREAMS: _MAX_STREAMS,
            },
        )
        self._service = service
        self._log = service.opened(http2=True, sni=sni)
        self._streams: dict[int, _Stream] = {}
        self._leaving = False

    def __repr__(self) -> str:
        return f"<Http2Connection {self._log.number}, {len(self._streams)} streams>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open, TLS included."""
        self._transport = cast("asyncio.Transport", transport)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(_CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW_BYTES)
        self.flush()

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is gone, and with it the client of what runs."""
        self._log.open = False
        for stream in list(self._streams.values()):
            stream.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of any frames."""
        try:
            events = self.h2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self.flush()
            self._transport.close()
            return
        for event in events:
            self._handle(event)
        self.flush()

    def flush(self) -> None:
        """Send what is ready."""
        if (data := self.h2.data_to_send()) and not self._transport.is_closing():
            self._transport.write(data)

    def leave(self) -> None:
        """GOAWAY(NO_ERROR); streams up to the newest finish. Written as a frame: h2 ends all streams with its own."""
        self._leaving = True
        self._goaway(0)

    def leave_in_error(self, by: "_Stream") -> None:
        """GOAWAY(INTERNAL_ERROR) and the end."""
        self._goaway(StreamReset.INTERNAL_ERROR.value)
        self.drop(Hangup.CLOSE, by)

    def drop(self, how: Hangup, by: "_Stream") -> None:
        """End the connection, and before it all that is on it but the stream whose fault it is."""
        self.flush()
        self.dropped = True
        for stream in list(self._streams.values()):
            if stream is not by:
                stream.cancel()
        drop(self._transport, how)

    def finished(self, stream_id: int, task: asyncio.Task[None]) -> None:
        """A stream's answer is out, or was cancelled."""
        del self._streams[stream_id]
        if not task.cancelled() and task.exception() is not None:
            self._transport.abort()
        elif self._leaving and not self._streams:
            self._transport.close()
        if not task.cancelled():
            task.result()

    def _goaway(self, code: int) -> None:
        self.flush()
        frame = GoAwayFrame(0, last_stream_id=self.h2.highest_inbound_stream_id, error_code=code)
        self._transport.write(frame.serialize())

    def _handle(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived(stream_id=int(stream_id)):
                self._arrived(stream_id, event)
            case h2.events.DataReceived(stream_id=int(stream_id), data=bytes(data)):
                if (stream := self._streams.get(stream_id)) is not None:
                    stream.incoming.receive(data)
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
            case h2.events.StreamEnded(stream_id=int(stream_id)):
                if (stream := self._streams.get(stream_id)) is not None:
                    stream.respond()
            case h2.events.StreamReset(stream_id=int(stream_id)):
                if (stream := self._streams.get(stream_id)) is not None and not stream.cancel():
                    del self._streams[stream_id]
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                self.gate.release()
            case _:
                pass

    def _arrived(self, stream_id: int, event: h2.events.RequestReceived) -> None:
        if self._leaving:
            self.h2.reset_stream(stream_id, StreamReset.REFUSED_STREAM.value)
            return
        headers: dict[str, str] = {}
        for name, value in cast("list[tuple[str, str]]", event.headers):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        pseudo = {name: headers.pop(name, "") for name in (":method", ":path", ":authority", ":scheme")}
        incoming = Incoming(
            method=pseudo[":method"],
            target=pseudo[":path"],
            headers=headers,
            host=pseudo[":authority"],
            log=self._log,
        )
        self._streams[stream_id] = _Stream(self, stream_id, incoming, self._service)
        self._service.arrived(incoming)


class _Stream:
    """One request and the player of its answer."""

    def __init__(self, connection: Http2Connection, id_: int, incoming: Incoming, service: Service) -> None:
        self.incoming = incoming
        self._connection = connection
        self._id = id_
        self._service = service
        self._answering: asyncio.Task[None] | None = None

    @property
    def dropped(self) -> bool:
        """See Player."""
        return self._connection.dropped

    def respond(self) -> None:
        """The request is complete."""
        self._answering = start(self._service, self.incoming, self)
        if self._answering.done():
            self._connection.finished(self._id, self._answering)
        else:
            self._answering.add_done_callback(lambda task: self._connection.finished(self._id, task))

    def cancel(self) -> bool:
        """The client does not want it any more. Whether there was an answer to cancel."""
        return self._answering is not None and self._answering.cancel()

    async def play(self, step: Step) -> None:
        """See Player."""
        connection = self._connection
        match step:
            case Head(status, headers, length):
                said = [(":status", str(status)), *headers]
                if length is not None:
                    said.append(("content-length", str(length)))
                connection.h2.send_headers(self._id, said)
            case Data(data):
                await self._send(data)
            case End():
                connection.h2.end_stream(self._id)
                connection.flush()
            case PauseStep(pause_s):
                connection.flush()
                await pause(pause_s)
            case Drop(how):
                connection.drop(how, self)
            case DropStream(code):
                connection.h2.reset_stream(self._id, code.value)
                connection.flush()
            case Leave():
                connection.leave()
            case LeaveInError():
                connection.leave_in_error(self)
            case _:
                assert_never(step)
        await connection.written()

    async def _send(self, data: bytes) -> None:
        connection = self._connection
        rest = memoryview(data)
        while rest:
            window = connection.h2.local_flow_control_window(self._id)
            if window <= 0 or not connection.can_write:
                connection.flush()
                await connection.gate.wait()
                continue
            size = min(window, connection.h2.max_outbound_frame_size, len(rest))
            connection.h2.send_data(self._id, bytes(rest[:size]))
            rest = rest[size:]
