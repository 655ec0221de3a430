"""HTTP/1.1 for the simulated provider: one connection, requests one after the other.

Parsed by hand, strictly and in a small way: the simulator is the upstream of benchmarks and shares its core with
what is measured. What is not understood is a 400 and the end of the connection.
"""

import asyncio
import re
from http import HTTPStatus
from typing import assert_never, cast

from hivemind_addon.lab.sim.exchange import Incoming, Service, WriteGate, drop, pause, start
from hivemind_addon.lab.sim.faults import Hangup
from hivemind_addon.lab.sim.plan import Data, Drop, DropStream, End, Head, Leave, LeaveInError, PauseStep, Step

_MAX_HEAD_BYTES = 64 * 1024
_MAX_AHEAD_BYTES = 1024 * 1024
"""What is read of the next requests while one is being answered."""
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?\Z")


class _BadRequest(Exception):
    """The client broke the protocol."""


class Http1Connection(asyncio.Protocol):
    """One connection. Also the player of its answers, since there is only one at a time."""

    def __init__(self, service: Service, *, sni: str | None) -> None:
        self.dropped = False
        self._service = service
        self._log = service.opened(http2=False, sni=sni)
        self._buffer = bytearray()
        self._incoming: Incoming | None = None
        self._body_left: int | None = 0
        """Bytes of the body, or of the current chunk, that have not come; None: a chunk size comes next."""
        self._chunked_request = False
        self._answering: asyncio.Task[None] | None = None
        self._close_after = False
        self._old = False
        """HTTP/1.0: no chunked answers."""
        self._chunked_answer = False
        self._out: list[bytes] = []
        self._can_write = True
        self._gate = WriteGate()

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

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._can_write = False

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._can_write = True
        self._gate.release()

    def data_received(self, data: bytes) -> None:
        """Bytes of this or of the next requests."""
        self._buffer += data
        if self._answering is None:
            self._advance()
        elif len(self._buffer) > _MAX_AHEAD_BYTES:
            self._transport.pause_reading()

    async def play(self, step: Step) -> None:
        """See Player."""
        match step:
            case Head():
                self._put_head(step)
            case Data(data):
                if data:
                    self._out.append(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked_answer else data)
            case End():
                if self._chunked_answer:
                    self._out.append(b"0\r\n\r\n")
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
        while not self._can_write:
            await self._gate.wait()

    def _put_head(self, head: Head) -> None:
        lines = [_status_line(head.status), *(f"{name}: {value}\r\n" for name, value in head.headers)]
        self._chunked_answer = head.length is None and not self._old
        if head.length is not None:
            lines.append(f"content-length: {head.length}\r\n")
        elif self._chunked_answer:
            lines.append("transfer-encoding: chunked\r\n")
        else:
            self._close_after = True
        if self._close_after:
            lines.append("connection: close\r\n")
        lines.append("\r\n")
        self._out.append("".join(lines).encode("latin-1"))

    def _flush(self) -> None:
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()

    def _advance(self) -> None:
        """Read what is there, answering complete requests, until more is needed or an answer takes its time."""
        try:
            while self._answering is None and not self._transport.is_closing():
                if self._incoming is None and not self._read_head():
                    return
                if not self._read_body():
                    return
                self._respond()
        except _BadRequest as error:
            self._transport.write(
                b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(str(error)), str(error).encode())
            )
            self._transport.close()

    def _respond(self) -> None:
        incoming, self._incoming = self._incoming, None
        assert incoming is not None
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
        self._transport.resume_reading()
        self._advance()

    def _finish(self, task: asyncio.Task[None]) -> None:
        if task.exception() is not None:
            self._transport.abort()
        elif self._close_after:
            self._transport.close()
        task.result()

    def _read_head(self) -> bool:
        """Whether a head was there; `_incoming` is set then."""
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):
            del buffer[:2]
        end = buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(buffer) > _MAX_HEAD_BYTES:
                raise _BadRequest("head too long")
            return False
        first, *lines = buffer[:end].decode("latin-1").split("\r\n")
        del buffer[: end + 4]
        method, target, version = _request_line(first)
        headers = _headers(lines)
        host = headers.get("host", "")
        if target.startswith("http://"):
            host, _, path = target.removeprefix("http://").partition("/")
            target = f"/{path}"
        self._incoming = Incoming(method=method, target=target, headers=headers, host=host, log=self._log)
        self._old = version == "HTTP/1.0"
        self._close_after = self._old or headers.get("connection", "").lower() == "close"
        self._frame(headers)
        self._service.arrived(self._incoming)
        if headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _frame(self, headers: dict[str, str]) -> None:
        """How the body's end will be known."""
        length, coding = headers.get("content-length"), headers.get("transfer-encoding")
        if coding is not None:
            if coding.lower() != "chunked" or length is not None:
                raise _BadRequest("bad framing")
            self._chunked_request, self._body_left = True, None
        else:
            if length is not None and not (length.isascii() and length.isdigit()):
                raise _BadRequest("bad content-length")
            self._chunked_request, self._body_left = False, int(length or 0)

    def _read_body(self) -> bool:
        """Whether the body is complete."""
        while True:
            if self._body_left is None:
                if (size := self._read_chunk_size()) is None:
                    return False
                if size == 0:
                    self._body_left = -1
                else:
                    self._body_left = size
            if self._body_left < 0:
                return self._read_trailers()
            self._take()
            if self._body_left > 0:
                return False
            if not self._chunked_request:
                return True
            if len(self._buffer) < 2:
                return False
            if self._buffer[:2] != b"\r\n":
                raise _BadRequest("chunk longer than its size")
            del self._buffer[:2]
            self._body_left = None

    def _take(self) -> None:
        assert self._incoming is not None
        assert self._body_left is not None
        if self._body_left and self._buffer:
            data = self._buffer[: self._body_left]
            del self._buffer[: len(data)]
            self._body_left -= len(data)
            self._incoming.receive(data)

    def _read_chunk_size(self) -> int | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise _BadRequest("chunk head too long")
            return None
        match = _CHUNK_SIZE.match(self._buffer[:end])
        if match is None:
            raise _BadRequest("bad chunk size")
        del self._buffer[: end + 2]
        return int(match[1], 16)

    def _read_trailers(self) -> bool:
        while (end := self._buffer.find(b"\r\n")) > 0:
            del self._buffer[: end + 2]
        if end < 0:
            return False
        del self._buffer[:2]
        return True


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not _NAME.match(parts[0]) or parts[2] not in {"HTTP/1.1", "HTTP/1.0"}:
        raise _BadRequest("bad request line")
    return parts[0], parts[1], parts[2]


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _NAME.match(name):
            raise _BadRequest("bad header line")
        name = name.lower()
        value = value.strip(" \t")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _status_line(status: int) -> str:
    if (line := _STATUS_LINES.get(status)) is None:
        phrase = HTTPStatus(status).phrase if status in HTTPStatus else "Unknown"
        line = _STATUS_LINES[status] = f"HTTP/1.1 {status} {phrase}\r\n"
    return line


_STATUS_LINES: dict[int, str] = {529: "HTTP/1.1 529 Site is overloaded\r\n"}
