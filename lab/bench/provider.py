"""The provider of the measurements, a process of its own: canned answers over HTTP/1.1 and HTTP/2, as cheap as Python allows.

`python -m lab.bench.provider [--tls CERTIFICATE KEY] [--http2] [--format FORMAT]`; it prints its port as a line of JSON. It
answers every POST as the Messages API would, in 8 pieces when the body's first bytes ask for a stream; or, over HTTP/1.1,
always by a stream of another format (Gemini's, Bedrock's). Its pace is told by lines of JSON, each
echoed when it holds: {"latency_s": before the head, "interval_s": between the pieces}. With an interval each piece
after the first one tells the instant of its writing (`at=`, by the clock that all processes share).
"""

import argparse
import asyncio
import json
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from hivemind_addon.sim.dialect import eventstream
from lab.bench.frames import ACK, END_HEADERS, END_STREAM, PREFACE, WIDE_WINDOWS, Frames, Kind, frame, literal
from lab.bench.plan import CONVERSE, GEMINI, MESSAGES

PIECES = 8
pace = {"latency_s": 0.0, "interval_s": 0.0}
_SNIFFED = 200
_HEADERS = {"request-id": "req_bench", "anthropic-organization-id": "org-bench"}
_USAGE = {"input_tokens": 250, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
_STATUS_200 = b"\x88"


def _message(**more):
    return {"id": "msg_bench", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"} | more


def _event(name, **more):
    return f"event: {name}\ndata: {json.dumps({'type': name} | more, separators=(',', ':'))}\n\n"


def _delta(text):
    return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})


BODY = json.dumps(
    _message(
        content=[{"type": "text", "text": " ".join(f"w{number}" for number in range(PIECES))}],
        stop_reason="end_turn",
        stop_sequence=None,
        usage=_USAGE | {"output_tokens": PIECES},
    ),
    separators=(",", ":"),
).encode()
_OPENING = (
    _event("message_start", message=_message(content=[], stop_reason=None, usage=_USAGE | {"output_tokens": 1}))
    + _event("ping")
    + _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
).encode()
_CLOSING = (
    _event("content_block_stop", index=0)
    + _event(
        "message_delta",
        delta={"stop_reason": "end_turn", "stop_sequence": None},
        usage=_USAGE | {"output_tokens": PIECES},
    )
    + _event("message_stop")
).encode()


def _generated(text, **more):
    """An event of Gemini's."""
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0} | more
    usage = {"promptTokenCount": 250, "candidatesTokenCount": PIECES, "totalTokenCount": 250 + PIECES}
    event = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3-pro", "responseId": "bench"}
    return b"data: %b\r\n\r\n" % json.dumps(event, separators=(",", ":")).encode()


def _converse(kind, **content):
    """A binary message of Bedrock's, as long as real messages: `p` pads it there."""
    return eventstream.event(kind, json.dumps(content | {"p": "abcdefghijkl"}, separators=(",", ":")).encode())


@dataclass(frozen=True)
class Stream:
    """A streamed answer."""

    content_type: str
    delta: Callable[[str], bytes]
    opening: bytes = b""
    closing: bytes = b""

    def pieces(self, stamped):
        """Each piece is made at the last moment."""
        yield self.opening + self.delta("w0")
        for number in range(1, PIECES):
            text = self.delta(f" at={perf_counter():.7f}" if stamped else f" w{number}")
            yield text + self.closing if number == PIECES - 1 else text


_EVENTS = "text/event-stream; charset=utf-8"
STREAMS = {
    MESSAGES: Stream(_EVENTS, lambda text: _delta(text).encode(), _OPENING, _CLOSING),
    GEMINI: Stream("text/event-stream", _generated, closing=_generated("", finishReason="STOP")),
    CONVERSE: Stream(
        eventstream.CONTENT_TYPE,
        lambda text: _converse("contentBlockDelta", contentBlockIndex=0, delta={"text": text}),
        _converse("messageStart", role="assistant"),
        _converse("contentBlockStop", contentBlockIndex=0)
        + _converse("messageStop", stopReason="end_turn")
        + _converse(
            "metadata",
            metrics={"latencyMs": 900},
            usage={"inputTokens": 250, "outputTokens": PIECES, "totalTokens": 250 + PIECES},
        ),
    ),
}


class Answering(asyncio.Protocol):
    """A connection; `http2` once it is known."""

    def __init__(self, api):
        self.api = api

    def connection_made(self, transport):
        self.transport = transport
        tls = transport.get_extra_info("ssl_object")
        self.over = False
        way = Http2 if tls is not None and tls.selected_alpn_protocol() == "h2" else Http1
        self.way = way(self)
        self.data_received = self.way.received

    def connection_lost(self, _error):
        self.over = True

    def answer(self, write):
        """Call it when it is time."""
        if pace["latency_s"] > 0:
            asyncio.get_running_loop().call_later(pace["latency_s"], lambda: self.over or write())
        else:
            write()

    def stream(self, write, end):
        """Write the pieces of an answer, at once or in turn."""
        interval_s = pace["interval_s"]
        left = STREAMS[self.api].pieces(stamped=interval_s > 0)
        if interval_s <= 0:
            for piece in left:
                write(piece)
            end()
            return
        loop = asyncio.get_running_loop()

        def go_on(due_at):
            if self.over:
                return
            piece = next(left, None)
            if piece is None:
                end()
                return
            write(piece)
            loop.call_at(due_at + interval_s, go_on, due_at + interval_s)

        go_on(loop.time())


class Http1:
    _PLAIN = "".join(f"{name}: {value}\r\n" for name, value in _HEADERS.items())
    WHOLE = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{_PLAIN}content-length: {len(BODY)}\r\n\r\n".encode()
        + BODY
    )
    HEAD = "HTTP/1.1 200 OK\r\ncontent-type: {}\r\n{}Transfer-Encoding: chunked\r\n\r\n"

    def __init__(self, connection):
        self.connection = connection
        self.write = connection.transport.write
        self.head = b""
        self.left = 0
        self.always_streams = connection.api != MESSAGES
        self.stream_head = self.HEAD.format(STREAMS[connection.api].content_type, self._PLAIN).encode()

    def received(self, data):
        if not self.left:
            head, end, data = (self.head + data).partition(b"\r\n\r\n")
            if not end:
                self.head = head
                return
            self.head, self.start = head.lower(), b""
            self.left = int(self.head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self.start) < _SNIFFED:
            self.start += data[:_SNIFFED]
        self.left -= len(data)
        if self.left <= 0:
            self.left = 0
            self.asked()

    def asked(self):
        self.head = b""
        self.connection.answer(self.answer)

    def answer(self):
        if not self.always_streams and not _asks_for_a_stream(self.start):
            self.write(self.WHOLE)
            return
        self.write(self.stream_head)
        self.connection.stream(lambda piece: self.write(b"%x\r\n%b\r\n" % (len(piece), piece)), self.end)

    def end(self):
        self.write(b"0\r\n\r\n")


HTTP2_HEADS = {
    kind: _STATUS_200 + b"".join(literal(name, value) for name, value in ({"content-type": kind} | _HEADERS).items())
    for kind in ("application/json", _EVENTS)
}


class Http2:
    def __init__(self, connection):
        self.connection = connection
        self.write = connection.transport.write
        self.frames = Frames(skip=PREFACE)
        self.starts = {}
        self.write(WIDE_WINDOWS)

    def received(self, data):
        for kind, flags, stream, content in self.frames.read(data):
            match kind:
                case Kind.HEADERS:
                    self.starts[stream] = b""
                case Kind.DATA if stream in self.starts:
                    if len(self.starts[stream]) < _SNIFFED:
                        self.starts[stream] += content[:_SNIFFED]
                case Kind.RESET:
                    self.starts.pop(stream, None)
                case Kind.SETTINGS | Kind.PING if not flags & ACK:
                    self.write(frame(kind, ACK, 0, content if kind == Kind.PING else b""))
            if kind in (Kind.HEADERS, Kind.DATA) and flags & END_STREAM and stream in self.starts:
                self.connection.answer(partial(self.answer, stream, self.starts.pop(stream)))

    def answer(self, stream, start):
        if not _asks_for_a_stream(start):
            self.write(
                frame(Kind.HEADERS, END_HEADERS, stream, HTTP2_HEADS["application/json"])
                + frame(Kind.DATA, END_STREAM, stream, BODY)
            )
            return
        self.write(frame(Kind.HEADERS, END_HEADERS, stream, HTTP2_HEADS[_EVENTS]))
        self.connection.stream(
            lambda piece: self.write(frame(Kind.DATA, 0, stream, piece)),
            lambda: self.write(frame(Kind.DATA, END_STREAM, stream, b"")),
        )


def _asks_for_a_stream(start):
    return b'"stream": true' in start or b'"stream":true' in start


def told():
    """A new pace."""
    if line := sys.stdin.readline():
        pace.update(json.loads(line))
        print(json.dumps(pace), flush=True)
    else:
        asyncio.get_running_loop().remove_reader(sys.stdin)


async def main(arguments):
    context = None
    if arguments.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*arguments.tls)
        context.set_alpn_protocols(["h2", "http/1.1"] if arguments.http2 else ["http/1.1"])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Answering, arguments.format), "127.0.0.1", 0, ssl=context, backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    loop.add_reader(sys.stdin, told)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m lab.bench.provider")
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    parser.add_argument("--http2", action="store_true", help="offered over TLS, beside HTTP/1.1")
    parser.add_argument("--format", default=MESSAGES, choices=tuple(STREAMS))
    asyncio.run(main(parser.parse_args()))
