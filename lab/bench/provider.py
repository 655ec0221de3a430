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
from functools import cache, partial
from time import perf_counter

from hivemind_addon.sim import dialect
from hivemind_addon.sim.dialect import SimDialect
from lab.bench.frames import ACK, END_HEADERS, END_STREAM, PREFACE, WIDE_WINDOWS, Frames, Kind, frame, literal
from lab.bench.plan import CONVERSE, GEMINI, MESSAGES

PIECES = 8
pace = {"latency_s": 0.0, "interval_s": 0.0}
_SNIFFED = 200
_HEADERS = {"request-id": "req_bench", "anthropic-organization-id": "org-bench"}
_STATUS_200 = b"\x88"
_DIALECTS = {MESSAGES: SimDialect.MESSAGES, GEMINI: SimDialect.GEMINI, CONVERSE: SimDialect.CONVERSE}


def _reply(api, text):
    """An answer that is this text, in a single piece."""
    return dialect.Reply(
        _DIALECTS[api],
        request_id="req_bench",
        attempt=1,
        digest="",
        model="gemini-3-pro" if api == GEMINI else "claude-sonnet-4-5",
        input_tokens=250,
        cached_tokens=0,
        output_tokens=PIECES,
        tokens_per_delta=PIECES * PIECES,
        truncated=False,
        include_usage=True,
        turn=dialect.TaskTurn(text),
    )


BODY = dialect.whole_body(_reply(MESSAGES, " ".join(f"w{number}" for number in range(PIECES))))


@cache
def _around(api):
    """What precedes the content of a stream, and what follows."""
    events = dialect.stream_events(_reply(api, "w0"))
    (place,) = (place for place, event in enumerate(events) if event.output_tokens)
    return tuple(b"".join(event.data for event in some) for some in (events[:place], events[place + 1 :]))


def _delta(api, text):
    return next(event.data for event in dialect.stream_events(_reply(api, text)) if event.output_tokens)


_known_delta = cache(_delta)


def pieces(api, stamped):
    """Each piece of a streamed answer is made at the last moment."""
    opening, closing = _around(api)
    yield opening + _known_delta(api, "w0")
    for number in range(1, PIECES):
        text = _delta(api, f" at={perf_counter():.7f}") if stamped else _known_delta(api, f" w{number}")
        yield text + closing if number == PIECES - 1 else text


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
        left = pieces(self.api, stamped=interval_s > 0)
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
        self.stream_head = self.HEAD.format(dialect.SHAPES[_DIALECTS[connection.api]].stream_type, self._PLAIN).encode()

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
    for kind in ("application/json", dialect.SHAPES[SimDialect.MESSAGES].stream_type)
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
        self.write(
            frame(Kind.HEADERS, END_HEADERS, stream, HTTP2_HEADS[dialect.SHAPES[SimDialect.MESSAGES].stream_type])
        )
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
    parser.add_argument("--format", default=MESSAGES, choices=tuple(_DIALECTS))
    asyncio.run(main(parser.parse_args()))
