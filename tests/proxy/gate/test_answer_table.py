"""Never more calls than a direct client needs where the direct client succeeds: a generated table of answers.

Its axes: formats, streamed or plain requests, deliveries, ends of the transport, labels, oddities of the content. A
reference client reads the same bytes by the format alone. A cell says what the proxy does worse.
"""

import json
import logging
import re
import zlib
from base64 import b64decode, b64encode
from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import h2.config
import h2.connection
import pytest
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import HTTPMode

from hivemind_addon.formats.wire.transcript import answer_of
from hivemind_addon.kernel.values.events import AttemptEnded
from hivemind_addon.kernel.values.ticket import OutcomeKind
from hivemind_addon.plugins.contexts.handover import handed_over, whole_answer
from hivemind_addon.proxy.host.http_layer import SchedulingHttpLayer
from hivemind_addon.sim.dialect import (
    SHAPES,
    Reply,
    SimDialect,
    TaskTurn,
    error_object,
    eventstream,
    stream_events,
    whole_body,
)
from tests.conftest import FakeClock
from tests.proxy.gate.playbook import Playbook, make_context, make_options
from tests.proxy.gate.samples import make_proxy

ENDED_S, STOPPED_S = 1.0, 5.0
"""How long after the terminal event, and after a stop reason or a complete object, the client's answer may take to end."""
WORDS, ODD = "hello world", "@@"
OPTIONS = make_options()
JSON, SSE, BINARY = "application/json", "text/event-stream", eventstream.CONTENT_TYPE


# Formats --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    dialect: SimDialect
    urls: tuple[str, ...]
    """Of a plain and of a streamed request; one: the request says which it is."""
    asked: dict
    terminal: str = ""
    """The name of the event after which nothing comes; empty: there is none."""

    def events(self, **said):
        return [event.data for event in stream_events(self._reply(**said))]

    def whole(self, **said):
        return whole_body(self._reply(**said))

    def _reply(self, text=f"{WORDS} {ODD}", *, truncated=False):
        fields = ("req_1", 1, "d", "claude-sonnet-4-5", 123, 0, 45, 1, truncated, True)
        return Reply(self.dialect, *fields, turn=TaskTurn(text=text))

    @property
    def label(self):
        return SHAPES[self.dialect].stream_type.partition(";")[0]

    @property
    def ping(self):
        if self.dialect is SimDialect.MESSAGES:
            return b'event: ping\ndata: {"type": "ping"}\n\n'
        return b": ping\n\n" if self.label == SSE and self.terminal else b"" if self.label == BINARY else b"\n"

    def parts(self, events):
        """The stream to its middle; the stop reason and the usage; the rest."""
        last = len(events) - bool(self.terminal or self.label == JSON)
        says_all = self.dialect in (SimDialect.RESPONSES, SimDialect.OLLAMA, SimDialect.COHERE)
        stop = last - (0 if says_all else 2 if self.dialect is SimDialect.CHAT else 1)
        return [b"".join(events[:stop]), *events[stop:last], b"".join(events[last:])]


HI = "hi " * 60
SAYS = {"max_tokens": 99, "messages": [{"role": "user", "content": HI}]}
MS = {"model": "claude-sonnet-4-5", **SAYS}
CHAT = {"model": "gpt-5", **SAYS, "stream_options": {"include_usage": True}}
CONTENTS = {"contents": [{"role": "user", "parts": [{"text": HI}]}]}
CONVERSE = {"messages": [{"role": "user", "content": [{"text": HI}]}]}
WRAPPED = {"model": "gemini-2.5-pro", "project": "p", "request": CONTENTS}
GOOGLE = "generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro:"
ASSIST = "cloudcode-pa.googleapis.com/v1internal:"
CLAUDE = "bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-sonnet-4-5-v1%3A0/"
PLAIN, STREAM, EVENTS = "generateContent", "streamGenerateContent", "streamGenerateContent?alt=sse"
FORMS = {
    "messages": Form(SimDialect.MESSAGES, ("api.anthropic.com/v1/messages",), MS, "message_stop"),
    "chat": Form(SimDialect.CHAT, ("api.openai.com/v1/chat/completions",), CHAT, "[DONE]"),
    "responses": Form(
        SimDialect.RESPONSES, ("api.openai.com/v1/responses",), {"model": "gpt-5", "input": HI}, "response.completed"
    ),
    "gemini": Form(SimDialect.GEMINI, (GOOGLE + PLAIN, GOOGLE + EVENTS), CONTENTS),
    "gemini-array": Form(SimDialect.GEMINI_ARRAY, (GOOGLE + PLAIN, GOOGLE + STREAM), CONTENTS),
    "code-assist": Form(SimDialect.CODE_ASSIST, (ASSIST + PLAIN, ASSIST + EVENTS), WRAPPED),
    "ollama": Form(SimDialect.OLLAMA, ("localhost:11434/api/chat",), {"model": "m", **SAYS}, "done"),
    "cohere": Form(SimDialect.COHERE, ("api.cohere.com/v2/chat",), {"model": "m", **SAYS}, "message-end"),
    "converse": Form(SimDialect.CONVERSE, (CLAUDE + "converse", CLAUDE + "converse-stream"), CONVERSE, "metadata"),
    "invoke": Form(
        SimDialect.INVOKE, (CLAUDE + "invoke", CLAUDE + "invoke-with-response-stream"), SAYS, "message_stop"
    ),
}


# What a direct client gets --------------------------------------------------------------------------------------------


def objects_in(text):
    """JSON values one after another, or in an array; and whether nothing is missing at the end."""
    found, at, depth = [], 0, 0
    while at < len(text):
        if text[at] in "[],\r\n \t":
            depth += {"[": 1, "]": -1}.get(text[at], 0)
            at += 1
            continue
        try:
            value, at = json.JSONDecoder(strict=False).raw_decode(text, at)
        except ValueError:
            return found, text[at:].startswith("data:") and not depth
        found.append(value)
    return found, not depth


def messages_in(data):
    """AWS's messages: name and payload."""
    while len(data) >= 12 and len(data) >= (size := int.from_bytes(data[:4])):
        head = 12 + int.from_bytes(data[4:8])
        name = re.search(rb":(?:event|exception)-type\x07..([\w.-]+)", data[12:head], re.DOTALL)
        yield name[1].decode(), data[head : size - 4]
        data = data[size:]


def read(payload):
    return json.loads(payload.decode("utf-8", "replace"), strict=False)


def events_in(form, body):
    """The values that a stream's reader gets, each with its event's name as a type; and whether a whole object came."""
    if body[:2] == b"\x1f\x8b":
        body = zlib.decompressobj(wbits=31).decompress(body)
    if form.label == BINARY and body[:1] != b"{":
        values = ({"type": name, **read(payload)} for name, payload in messages_in(body))
        return [read(b64decode(one["bytes"])) if "bytes" in one else one for one in values], False
    text = body.decode("utf-8", "replace").lstrip("\ufeff\r\n\t ")
    if text.startswith(("{", "[")):
        values, is_whole = objects_in(text)
        return values, is_whole and not (
            text.startswith("{") and form.label == "application/x-ndjson" and len(values) > 1
        )
    *complete, _ = re.split(r"\r?\n\r?\n", text)
    lines = ("\n".join(re.findall(r"^data: ?(.*?)\r?$", one, re.MULTILINE)) for one in complete)
    return [json.loads(line, strict=False) if line != "[DONE]" else {"type": line} for line in lines if line], False


def members(value):
    if isinstance(value, dict):
        yield from value.items()
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from members(one)


COUNTS = {
    *("input_tokens", "prompt_tokens", "promptTokenCount", "prompt_eval_count", "inputTokens"),
    *("output_tokens", "completion_tokens", "candidatesTokenCount", "eval_count", "outputTokens"),
}
STOPS = {"stop_reason", "finish_reason", "finishReason", "stopReason", "done_reason"}


def direct(form, body):
    """How a client that reads by the format knows that the answer is complete (None: not at all), and the tokens."""
    found, is_whole = events_in(form, body)
    said = [member for value in found for member in members(value)]
    told = {name for name, value in said if name in COUNTS and value}
    usage = (123, 45) if len(told) > 1 else None
    if len(found) == 1 and is_whole:
        return "stop", usage
    terminal = form.terminal and {("type", form.terminal), (form.terminal, True), ("type", "response.incomplete")}
    if terminal and any(isinstance(value, str | bool) and (name, value) in terminal for name, value in said):
        return "terminal", usage
    if is_whole or any(name in STOPS and value for name, value in said):
        return "stop", usage
    return None, usage


# What the proxy does --------------------------------------------------------------------------------------------------


class Kept:
    """Who keeps conversations, as the proxy sees them."""

    handed = None

    def ended(self, exchange):
        self.handed = handed_over(exchange)

    @property
    def words(self):
        body = whole_answer(self.handed)
        return " ".join(part.text for part in answer_of(self.handed.dialect, body).parts)


class Book(Playbook):
    """It knows when its alarms are due; `alpn`: what its provider speaks."""

    def __init__(self, layer, clock, alpn, **more):
        self.clock, self.alpn = clock, alpn
        super().__init__(layer, **more)

    def _obey(self, command):
        if isinstance(command, commands.OpenConnection):
            command.connection.alpn = self.alpn
        elif isinstance(command, commands.RequestWakeup):
            command.due_at = self.clock.monotonic() + command.delay
        return super()._obey(command)

    def ring_due(self):
        while due := [at for at, one in enumerate(self.wakeups) if one.due_at <= self.clock.monotonic()]:
            self.ring(due[0])


class Call:
    """One request through the layer, and what its provider does."""

    def __init__(self, form, *, streamed, delivery, h2_=False):
        self.form, self.clock, self.kept = form, FakeClock(), Kept()
        self.proxy = make_proxy()
        self.proxy.driver.clock, self.proxy.files.keeper = self.clock, self.kept
        self.sent, self.framing, self.complete_at, self.free_at, self.ended_at = b"", "chunked", None, None, None
        layer = SchedulingHttpLayer(make_context(OPTIONS), HTTPMode.regular, self.proxy)
        self.book = Book(layer, self.clock, b"h2" if h2_ else None, on_hook=self._on_hook)
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False)) if h2_ else None
        url = form.urls[streamed and len(form.urls) > 1]
        body = json.dumps(form.asked | ({"stream": streamed} if len(form.urls) == 1 else {})).encode()
        self.book.from_client(
            b"POST http://%b HTTP/1.1\r\nhost: %b\r\nx-api-key: k\r\nauthorization: Bearer k\r\n"
            b"x-hivemind-delivery: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (url.encode(), url.partition("/")[0].encode(), delivery.encode(), len(body), body)
        )
        if self.h2:
            self.h2.initiate_connection()
            self.h2.receive_data(self.book.to_server())
            self.book.from_server(self.h2.data_to_send())

    def _on_hook(self, hook):
        if hook.name == "requestheaders":
            self.proxy.intake.take_own_headers(hook.flow)
        return hook.name != "hivemind_hold"

    def head(self, headers, framing="chunked", status=200):
        self.framing = framing
        if self.h2:
            self.h2.send_headers(1, [(":status", str(status)), *headers])
            self.book.from_server(self.h2.data_to_send())
            return
        lines = {"chunked": "transfer-encoding: chunked", "close": "connection: close"}
        head = [f"HTTP/1.1 {status} X", *map(": ".join, headers), lines.get(framing) or f"content-length: {framing}"]
        self.book.from_server("\r\n".join([*head, "", ""]).encode())

    def says(self, piece):
        """A piece of the body, as far as anybody listens."""
        if not piece or not self.is_open:
            return
        self.sent += piece
        if self.h2:
            self.h2.send_data(1, piece)
            self.book.from_server(self.h2.data_to_send())
        else:
            self.book.from_server(b"%x\r\n%b\r\n" % (len(piece), piece) if self.framing == "chunked" else piece)

    @property
    def is_open(self):
        return self.book.opened[0].state is ConnectionState.OPEN

    def ends(self, how):
        """`clean`, `closed`, or (HTTP/2) `reset` and `goaway`."""
        if self.is_open:
            if self.h2 and how != "closed":
                if how == "goaway":
                    self.h2.close_connection()
                else:
                    (self.h2.end_stream if how == "clean" else self.h2.reset_stream)(1)
                self.book.from_server(self.h2.data_to_send())
            elif how == "clean" and self.framing == "chunked":
                self.book.from_server(b"0\r\n\r\n")
            elif how == "closed" or self.framing == "close":
                self.book.close(self.book.opened[0])
        self.look()

    def passes(self, seconds):
        """Time, with each alarm when it is due."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            self.book.ring_due()
            self.look()

    def look(self):
        now = self.clock.monotonic()
        if self.complete_at is None and direct(self.form, self.sent)[0] == "terminal":
            self.complete_at = now
        if self.free_at is None and not sum(pool.in_flight for pool in self.proxy.driver.snapshot().pools):
            self.free_at = now
        if self.ended_at is None and self.answer[2]:
            self.ended_at = now

    @property
    def answer(self):
        """What the client has: status, body, and whether it has come to its end, not to a cut."""
        head, _, body = self.book.to_client.partition(b"\r\n\r\n")
        status = head[9:12].decode()
        if b"transfer-encoding: chunked" in head.lower():
            pieces, rest = b"", body
            while (size := rest.partition(b"\r\n")[0]) and int(size, 16):
                pieces, rest = pieces + rest[len(size) + 2 :][: int(size, 16)], rest[len(size) + 4 + int(size, 16) :]
            return status, pieces, rest == b"0\r\n\r\n"
        length = re.search(rb"content-length: (\d+)", head.lower())
        return status, body, length is not None and len(body) == int(length[1])

    def worse(self, at, *, status, words=WORDS):
        """What is worse than direct; `at`: when, at the latest, a direct client knew that the answer was complete."""
        snapshot = self.proxy.driver.snapshot()
        counters, (got_status, body, _) = snapshot.counters, self.answer
        how, usage = direct(self.form, self.sent)
        at, bound_s = (self.complete_at, ENDED_S) if how == "terminal" else (at, STOPPED_S)
        if self.proxy.guard.trips:
            return "guard tripped"
        if counters.attempts != 1 or sum(pool.queued for pool in snapshot.pools):
            return "called again"
        if self.ended_at is None or got_status != status:
            return "hangs" if self.ended_at is None else f"status {got_status}"
        if self.free_at is None or self.ended_at > at + bound_s or self.free_at > at + (how != "terminal") * bound_s:
            return "late"
        if body != self.sent[: len(body)] or direct(self.form, body)[0] != how:
            return "other bytes"
        booked = counters.input_tokens, counters.output_tokens
        if status != "200":
            return "other words" if body != self.sent else ""
        if booked != usage if usage else words and not booked[1]:
            return f"booked {booked[0]}/{booked[1]}"
        if counters.delivered != 1:
            return "not delivered"
        return "words lost" if words not in self.kept.words else ""


# The table ------------------------------------------------------------------------------------------------------------


def ends_of(form, events):
    """Name, pieces of the body and seconds between them, and how the transport ends (with what the head says of it)."""
    begun, *stop, last = form.parts(events)
    to_stop, half = [begun, *stop], last[: len(last) // 2]
    for then in ("clean", "closed", "open", "pings"):
        yield then, [*to_stop, last], then
        yield f"no last, {then}", to_stop, then
    for then in ("closed", "open"):
        yield f"half, {then}", [*to_stop, half], then
        yield f"one too many, {then}", [*to_stop, last], f"{then}, +1"
        yield f"one too few, {then}", [*to_stop, last], f"{then}, -1"
    yield "stop again", [*to_stop, *stop[:1], last], "clean"
    yield "last late", [*(part for one in to_stop for part in (one, 1.5)), last], "clean"
    body = b"".join([*to_stop, last])
    yield "byte by byte", [body[:-25], *(body[at : at + 1] for at in range(len(body) - 25, len(body)))], "clean"
    yield "no framing", [*to_stop, last], "clean, close"


def whole_ends(body):
    pieces = [body[:40], body[40:-1], body[-1:]]
    for then in ("clean", "closed", "open"):
        yield then, [body], then
    for then in ("closed", "open"):
        yield f"one too many, {then}", [body], f"{then}, +1"
    yield "pieces", pieces, "clean"
    yield "pieces, open", [pieces[0], 2.0, *pieces[1:]], "open"
    yield "one too few", [body + b"\n"], "closed, -1"
    yield "length", [body], "closed, +0"
    yield "no framing", [body], "clean, close"


MAIN_ENDS = ("clean", "closed", "open", "no last, clean")
LABELS = (
    JSON,
    SSE,
    "text/plain",
    "application/x-ndjson",
    "application/octet-stream",
    "text/html",
    "",
    "right",
    "UPPER",
)
WAYS = {"stream": (True, "stream"), "whole": (True, "whole"), "plain": (False, "auto")}


def play(form, way, *, pieces, end, label, more=(), h2_=False, status=200, **expected):
    """One cell: what is worse than direct; None: a direct client gets nothing either."""
    streamed, delivery = WAYS[way]
    body = b"".join(piece for piece in pieces if isinstance(piece, bytes))
    then, _, framing = end.partition(", ")
    is_told = framing[:1] in ("+", "-")
    readable = body[: len(body) + int(framing)] if is_told else body
    if direct(form, readable)[0] is None:
        return None
    call = Call(form, streamed=streamed, delivery=delivery, h2_=h2_)
    framing = str(len(body) + int(framing)) if is_told else framing or "chunked"
    call.head([*more, *([("content-type", label)] if label else [])], framing, status)
    for piece in pieces:
        call.passes(piece) if isinstance(piece, float) else call.says(piece)
    at = call.clock.monotonic()
    call.look()
    call.sent = call.sent[: len(readable)]
    if then == "pings":
        for _ in range(8):
            call.says(form.ping)
            call.passes(1)
    elif then != "open":
        call.ends(then)
    call.passes(8 if call.ended_at is None or call.free_at is None else 0)
    return call.worse(at, status=str(status), **expected)


def labelled(right):
    for label in LABELS:
        yield label or "none", {"right": right, "UPPER": right.upper() + "; Charset=UTF-8"}.get(label, label)


def cells(form):
    """(way, kind, variant, what is played) of all cells of a format."""
    events, whole = form.events(), form.whole()
    refusal = SHAPES[form.dialect].error_body(error_object(form.dialect, 400, message="bad value"), "req_1")
    ends = {"events": [*ends_of(form, events)], "object": [*whole_ends(whole)], "refusal": [*whole_ends(refusal)]}
    for way, (body, some) in product(WAYS, ends.items()):
        right = form.label if body == "events" else JSON
        is_apt = (way == "plain") == (body != "events") or body == "refusal"
        for (end, pieces, then), (label, value) in product(some, labelled(right)):
            if (is_apt or end in MAIN_ENDS) and (body, way) != ("refusal", "whole"):
                status = 400 if body == "refusal" else 200
                yield way, f"{body}, {end}", label, {"pieces": pieces, "end": then, "label": value, "status": status}
        odd = () if body == "refusal" else oddities(form, body, events, whole)
        for (kind, pieces, more, expected), then in product(odd, ("clean", "closed")):
            what = {"pieces": pieces, "end": then, "label": right, "more": more, **expected}
            yield way, f"{body}, {kind}", then, what
    for way, then in product(("stream", "whole"), ("clean", "reset", "goaway", "closed", "open")):
        what = {"pieces": form.parts(events), "end": then, "label": form.label, "h2_": True}
        yield way, "events, HTTP/2", then, what


def rewritten(form, event, change):
    """An event with other JSON in it."""
    if form.label != BINARY:
        return change(event)
    ((name, payload),) = messages_in(event)
    if b'"bytes"' in payload:
        payload = json.dumps({"bytes": b64encode(change(b64decode(json.loads(payload)["bytes"]))).decode()}).encode()
    else:
        payload = change(payload)
    return eventstream.event(name, payload)


def oddities(form, body, events, whole):
    """Name, pieces, more headers, and what is expected."""
    packer = zlib.compressobj(wbits=31)
    is_object, is_sse, pieces = body == "object", form.label == SSE, [whole] if body == "object" else form.parts(events)
    packed = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces]
    yield "gzip without its end", packed, [("content-encoding", "gzip")], {}
    for coding in ("gzip", "br", "UTF-8", "none"):
        yield f"{coding} over plain", pieces, [("content-encoding", coding)], {}

    def changed(change):
        return [change(whole)] if is_object else form.parts([rewritten(form, event, change) for event in events])

    yield "half an emoji", changed(lambda one: one.replace(b"@@", b"\\ud83d")), (), {}
    yield "no UTF-8", changed(lambda one: one.replace(b"@@", b"\xff\xfe")), (), {}
    yield "zeros", changed(lambda one: re.sub(rb'(Tokens?(?:Count)?|_tokens|_count)":\d+', rb'\1":0', one)), (), {}
    empty = {"text": "", "truncated": True}
    cut = [form.whole(**empty)] if is_object else form.parts(form.events(**empty))
    yield "empty, cut at its maximum", cut, (), {"words": ""}
    yield "unknown members", changed(lambda one: one.replace(b"{", b'{"x_y":{"a":[1]},"error":null,', 1)), (), {}
    if is_object or is_sse:
        yield "mark first", [b"\xef\xbb\xbf" + pieces[0], *pieces[1:]], (), {}
        yield "newlines first", [b"\r\n\n" + pieces[0], *pieces[1:]], (), {}
    if is_object and is_sse:
        yield "[DONE] behind", [whole + b"\n\ndata: [DONE]\n\n"], (), {}
        yield "object as event", [b"data: " + whole + b"\n\n"], (), {}
    if not is_object and is_sse:
        yield "comment first", [b": hi\n\n" + pieces[0], *pieces[1:]], (), {}
        yield "CRLF", [piece.replace(b"\n", b"\r\n") for piece in pieces], (), {}
        yield "no space", [piece.replace(b"data: ", b"data:") for piece in pieces], (), {}
        yield "no names", [re.sub(rb"event: .*\n", b"", piece) for piece in pieces], (), {}


@pytest.mark.parametrize("name", FORMS)
async def test_never_worse_than_direct(name, caplog):
    caplog.set_level(logging.CRITICAL, "hivemind")
    worse, played = defaultdict(dict), 0
    for way, kind, variant, what in cells(FORMS[name]):
        found = play(FORMS[name], way, **what)
        played += found is not None
        if found:
            worse[kind, found].setdefault(variant, []).append(way)
    assert played > 400
    lines = []
    for (kind, found), variants in worse.items():
        ways = sorted({way for some in variants.values() for way in some})
        size = sum(map(len, variants.values()))
        lines.append(f"{size:3} {kind}: {found} [{', '.join(ways)}: {', '.join(variants)}]")
    if worse:
        pytest.fail("\n".join([f"{len(lines)} kinds; of {played} cells:", *lines]), pytrace=False)


SAID = "Too many requests, the rate limit is 8000000 tokens per minute."
CODED = {"error_code": "InferHub.ModelArts.81101.429", "error_msg": SAID}
REFUSALS = {
    "named otherwise": {"error": CODED},
    "beside text": {"text": "[DONE]", **CODED},
    "detail": {"detail": SAID},
    "words": {"type": "error", "error": {"type": "invalid_request_error", "message": SAID}},
    "status in a code": {"error": {"message": "no", "code": "Upstream.429"}},
}
BEGUN = b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'


@pytest.mark.parametrize("name", ["messages", "chat", "responses"])
async def test_a_throttle_with_a_good_status_is_seen(name, caplog):
    """A direct client is dead; the proxy waits, and lets nothing through before that."""
    caplog.set_level(logging.CRITICAL, "hivemind")
    worse = []
    for (odd, error), delivery, is_object, begun in product(
        REFUSALS.items(), ("stream", "whole"), (False, True), (False, True)
    ):
        if begun and (is_object or name != "messages"):
            continue
        event = json.dumps(error).encode()
        call = Call(FORMS[name], streamed=True, delivery=delivery)
        call.head([("content-type", JSON if is_object else SSE)])
        call.says(BEGUN * begun)
        call.says(event if is_object else b"data: " + event + b"\n\n")
        call.ends("clean")
        kinds = [one.outcome.kind for one in call.proxy.heard if isinstance(one, AttemptEnded)]
        if kinds != [OutcomeKind.THROTTLED] or call.book.to_client:
            seen = "seen" if call.book.to_client else "held"
            worse.append(
                f"{odd}, {delivery}, {'object' if is_object else 'event'}{' behind a start' * begun}: {[one.name for one in kinds]}, {seen}"
            )
    if worse:
        pytest.fail("\n".join(worse), pytrace=False)
