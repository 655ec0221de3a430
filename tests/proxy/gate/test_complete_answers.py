"""An answer that is complete by its own format is delivered and booked once, whatever its transport and its label say."""

import json
import re
from dataclasses import dataclass

import pytest
from mitmproxy.connection import ConnectionState
from mitmproxy.proxy.layers.http import HTTPMode
from mitmproxy.proxy.layers.http._hooks import HttpRequestHeadersHook

from hivemind_addon.formats.wire.answer_in_progress import AFTER_END_S, AFTER_STOP_S
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.proxy.host.http_layer import SchedulingHttpLayer
from hivemind_addon.proxy.host.stream import HivemindHoldHook
from tests.conftest import FakeClock
from tests.proxy.gate.playbook import Playbook, make_context
from tests.proxy.gate.samples import make_proxy


def event(value, *, line=b""):
    return line + b"data: " + json.dumps(value).encode() + b"\n\n"


def named(value):
    return event(value, line=b"event: %b\n" % value["type"].encode())


def chat(delta, stop=None, **more):
    return {"id": "c", "model": "gpt-5", "choices": [{"index": 0, "delta": delta, "finish_reason": stop}], **more}


def gemini(text, **more):
    return {"content": {"parts": [{"text": text}], "role": "model"}, **more}


def ollama(text, **more):
    return json.dumps({"model": "m", "message": {"role": "assistant", "content": text}, **more}).encode() + b"\n"


@dataclass(frozen=True)
class Format:
    url: str
    asked: dict
    begun: bytes
    """Up to the middle of the answer."""
    stop: bytes
    """To the event that says why it ended; empty: the last event says that."""
    last: bytes
    whole: dict
    """The same answer as one object."""
    label: str = "text/event-stream"


ASKED = {"max_tokens": 99, "messages": [{"role": "user", "content": "hello " * 50}]}
MESSAGE = {"type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
SAID = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]}]
RESPONSE = {"id": "r", "output": SAID, "usage": {"input_tokens": 123, "output_tokens": 45}}
COUNTED = {"promptTokenCount": 123, "candidatesTokenCount": 45}
FORMATS = {
    "messages": Format(
        "api.anthropic.com/v1/messages",
        {"model": "claude-sonnet-4-5", **ASKED},
        named({"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 123, "output_tokens": 1}}})
        + named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        + named({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hello"}}),
        named({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 45}}),
        named({"type": "message_stop"}),
        {
            **MESSAGE,
            "content": [{"type": "text", "text": "hello"}],
            "stop_reason": "end_turn",
            "usage": {"input_tokens": 123, "output_tokens": 45},
        },
    ),
    "chat": Format(
        "api.openai.com/v1/chat/completions",
        {"model": "gpt-5", **ASKED},
        event(chat({"role": "assistant", "content": ""})) + event(chat({"content": "hello"})),
        event(chat({}, "stop"))
        + event({"id": "c", "choices": [], "usage": {"prompt_tokens": 123, "completion_tokens": 45}}),
        b"data: [DONE]\n\n",
        {
            "id": "c",
            "choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 123, "completion_tokens": 45},
        },
    ),
    "responses": Format(
        "api.openai.com/v1/responses",
        {"model": "gpt-5", "input": "hello " * 50},
        named({"type": "response.created", "response": {"id": "r"}})
        + named({"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hello"}),
        b"",
        named({"type": "response.completed", "response": {**RESPONSE, "status": "completed"}}),
        {**RESPONSE, "object": "response", "status": "completed"},
    ),
    "gemini": Format(
        "generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "hello " * 50}]}]},
        event({"candidates": [gemini("hel")]}),
        event({"candidates": [gemini("lo", finishReason="STOP")], "usageMetadata": COUNTED}),
        b"",
        {"candidates": [gemini("hello", finishReason="STOP")], "usageMetadata": COUNTED},
    ),
    "ollama": Format(
        "localhost:11434/api/chat",
        {"model": "m", **ASKED},
        ollama("hel", done=False),
        b"",
        ollama("lo", done=True, done_reason="stop", prompt_eval_count=123, eval_count=45),
        json.loads(ollama("hello", done=True, done_reason="stop", prompt_eval_count=123, eval_count=45)),
        label="application/x-ndjson",
    ),
}


class Call:
    """One request through the layer, and what its provider does."""

    def __init__(self, name, delivery, *, streamed=True, proxy=None):
        self.form, self.clock = FORMATS[name], FakeClock()
        self.proxy = proxy or make_proxy()
        self.proxy.driver.clock = self.clock

        def on_hook(hook):
            if isinstance(hook, HttpRequestHeadersHook):
                self.proxy.intake.take_own_headers(hook.flow)
            return not isinstance(hook, HivemindHoldHook)

        self.book = Playbook(SchedulingHttpLayer(make_context(), HTTPMode.regular, self.proxy), on_hook=on_hook)
        url = self.form.url if streamed else self.form.url.replace(":streamGenerateContent?alt=sse", ":generateContent")
        body = json.dumps(self.form.asked | ({} if name == "gemini" else {"stream": streamed})).encode()
        self.book.from_client(
            b"POST http://%b HTTP/1.1\r\nx-api-key: k\r\nauthorization: Bearer k\r\nx-hivemind-delivery: %b\r\n"
            b"content-length: %d\r\n\r\n%b" % (url.encode(), delivery.encode(), len(body), body)
        )

    def answers(self, *pieces, label="", status=200, more=b""):
        """`label` None: the head has no label."""
        kind = b"" if label is None else b"content-type: %b\r\n" % (label or self.form.label).encode()
        self.book.from_server(b"HTTP/1.1 %d X\r\n%b%btransfer-encoding: chunked\r\n\r\n" % (status, kind, more))
        for piece in filter(None, pieces):
            self.book.from_server(b"%x\r\n%b\r\n" % (len(piece), piece))

    def ends(self):
        self.book.from_server(b"0\r\n\r\n")

    def closes(self):
        self.book.close(self.book.opened[-1])

    def passes(self, seconds):
        """Time, with each alarm when it is due."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            for _ in range(len(self.book.wakeups)):
                if self.book.wakeups:
                    self.book.ring(0)

    @property
    def slots(self):
        return sum(pool.in_flight for pool in self.proxy.driver.snapshot().pools)

    def check(self, *, tokens=(123, 45)):
        """It was sent once, delivered with a right end, and booked as the provider told."""
        counters = self.proxy.driver.snapshot().counters
        assert (counters.attempts, counters.delivered, self.slots) == (1, 1, 0)
        assert (counters.input_tokens, counters.output_tokens) == tokens
        head, _, body = self.book.to_client.partition(b"\r\n\r\n")
        if b"content-length" in head.lower():
            assert b"content-length: %d" % len(body) in head.lower()
        else:
            assert body.endswith(b"\r\n0\r\n\r\n")
        assert b"hel" in re.sub(rb"\r\n[0-9a-f]+\r\n", b"", body)
        assert self.book.client.state is ConnectionState.OPEN
        assert self.proxy.live == {}
        assert self.proxy.guard.trips == 0


deliveries = pytest.mark.parametrize("delivery", ["stream", "whole"])
formats = pytest.mark.parametrize("name", FORMATS)


async def test_an_error_behind_content_takes_no_slot_either_and_ends_the_stream():
    call = Call("messages", "stream")
    failure = named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    call.answers(call.form.begun, failure)
    counters = call.proxy.driver.snapshot().counters
    assert (call.slots, counters.attempts, counters.delivered) == (0, 1, 0)
    call.passes(AFTER_END_S + 5)
    assert call.book.to_client.endswith(b"\r\n0\r\n\r\n")
    assert failure in call.book.to_client


@formats
@deliveries
async def test_content_behind_a_reason_to_stop_is_waited_for(name, delivery):
    """The first of several choices has ended."""
    call = Call(name, delivery)
    call.answers(call.form.begun, call.form.stop, call.form.begun)
    call.passes(AFTER_STOP_S + 6)
    assert call.slots == 1


@formats
@pytest.mark.parametrize("clean", [False, True])
async def test_a_cut_in_the_middle_is_tried_again(name, clean):
    call = Call(name, "whole")
    call.answers(call.form.begun)
    if clean:
        call.ends()
    else:
        call.closes()
    snapshot = call.proxy.driver.snapshot()
    assert (sum(pool.queued for pool in snapshot.pools), snapshot.counters.delivered) == (1, 0)
    assert call.book.to_client == b""


async def test_a_stream_that_comes_in_one_piece_under_another_label_is_one():
    call = Call("chat", "whole")
    body = call.form.begun + call.form.stop + call.form.last
    call.book.from_server(
        b"HTTP/1.1 200 X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
    call.check()


async def test_an_object_in_the_place_of_events_whose_first_byte_comes_late_is_booked():
    call = Call("chat", "stream", streamed=False)
    call.answers(label="text/event-stream")
    call.passes(15)
    assert call.book.to_client, "its head has gone on"
    body = json.dumps(call.form.whole).encode()
    call.book.from_server(b"%x\r\n%b\r\n" % (len(body), body))
    call.ends()
    call.check()


async def test_half_an_object_in_the_place_of_events_is_none():
    call = Call("chat", "whole")
    call.answers(json.dumps(call.form.whole).encode()[:-9], label="text/event-stream")
    call.ends()
    assert call.proxy.driver.snapshot().counters.delivered == 0


async def test_half_an_object_is_tried_again_and_one_that_pauses_is_waited_for():
    call = Call("chat", "stream", streamed=False)
    body = json.dumps(call.form.whole).encode()
    middle = body.index(b"}") + 1
    call.answers(body[:middle], label="application/json")
    call.passes(AFTER_STOP_S + 6)
    assert (call.slots, call.book.to_client) == (1, b"")
    call.closes()
    assert sum(pool.queued for pool in call.proxy.driver.snapshot().pools) == 1


async def test_a_wrong_label_is_noted_once():
    call = Call("chat", "stream")
    for again in (call, Call("chat", "whole", proxy=call.proxy)):
        again.answers(again.form.begun, again.form.stop, again.form.last, label="application/json")
        again.ends()
    notes = [event.what for event in call.proxy.heard if isinstance(event, OddityNoted)]
    assert notes == ["answer: it is text/event-stream and is labelled application/json; it is read as what it is"]
