"""An agent whose rules ask for it gets its contexts made shorter, and everything after that sees what is sent."""

import gzip
import json
import sys

import pytest
from mitmproxy import http

from hivemind_addon.kernel.values.events import ContextCompacted, OddityNoted
from hivemind_addon.plugins.contexts.handover import sent_request
from hivemind_addon.proxy.gate.settings import AgentsFile
from tests.plugins.contexts.test_compaction import OURS, anthropic, chat, encoded, responses, texts
from tests.proxy.gate.samples import make_flow, make_proxy

RULES = "{at: 0.7, to: 0.4, keep: 2, window_tokens: 20000, by: stubs}"
OPENAI = "https://api.openai.com/v1/chat/completions"
LONG = 16
"""Results, of 4 kB each: of Claude's text three bytes are a token."""


@pytest.fixture
def made(tmp_path):
    """Makes proxies that keep contexts, with such rules."""

    def make(rules=RULES, *, journal=True, more=""):
        agents = tmp_path / "agents.yaml"
        agents.write_text(f"everyone: {{compaction: {rules}}}\n{more}")
        proxy = make_proxy(agents=AgentsFile(agents), journal=tmp_path / "journal.db" if journal else None)
        proxy.files.follow(proxy.settings.current)
        return proxy

    return make


def heard(proxy, kind):
    return [event for event in proxy.heard if isinstance(event, kind)]


async def test_what_is_estimated_sent_and_recorded_is_what_is_left_and_what_was_taken_can_be_read(made):
    proxy = made()
    came = encoded(anthropic(texts(LONG)))
    flow = make_flow(content=came, content_encoding="gzip", content_length="7")
    exchange = proxy.make_exchange(flow)
    sent = flow.request.raw_content
    assert len(sent) < 0.7 * len(came)
    assert flow.request.headers["content-length"] == str(len(sent))
    assert "content-encoding" not in flow.request.headers
    # The same as if its client had sent that.
    other = make_proxy().make_exchange(make_flow(content=sent))
    assert exchange.ticket.expected == other.ticket.expected
    assert exchange.ticket.request_hash == other.ticket.request_hash
    assert list(exchange.facts.message_bytes) == list(other.facts.message_bytes)
    # What is kept is what came.
    assert gzip.decompress(exchange.unedited.body) == came
    assert sent_request(flow, exchange.profile, exchange.dialect, exchange.unedited).encoding == "gzip"
    (event,) = heard(proxy, ContextCompacted)
    assert (event.ticket_id, event.agent) == (exchange.ticket.id, exchange.ticket.agent)
    assert event.results > 5
    assert event.tokens_after == exchange.ticket.expected.tokens - exchange.estimate.expected.output_tokens
    assert event.tokens_before > 1.5 * event.tokens_after
    store = proxy.files.keeper.store
    await proxy.files.close()
    gone = [name for name in json.loads(came)["messages"] if encoded(name) not in sent]
    assert len(gone) == event.results
    for message in gone:
        (block,) = message["content"]
        (name,) = (one.id for one in exchange_taken(sent) if one.call_id == block["tool_use_id"])
        assert json.loads(bytes(store.result(name).value)) == block["content"]


def exchange_taken(sent):
    """The stubs in a body, as values with their call and the id that they name."""
    for message in json.loads(sent)["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "tool_result" and "hivemind context recall" in block["content"]:
                yield _Stub(
                    block["tool_use_id"], block["content"].partition("hivemind context recall ")[2].partition("`")[0]
                )


class _Stub:
    def __init__(self, call_id, name):
        self.call_id, self.id = call_id, name


async def test_the_next_requests_begin_the_same_and_so_they_do_after_a_restart(made):
    proxy, sent = made(), []
    for count in range(LONG, LONG + 3):
        flow = make_flow(content=encoded(anthropic(texts(count))))
        proxy.make_exchange(flow)
        sent.append(flow.request.raw_content)
    assert sent[1].startswith(sent[0][:-2])
    assert sent[2].startswith(sent[1][:-2])
    assert len(heard(proxy, ContextCompacted)) == 1, "told once"
    await proxy.files.close()
    again = made()
    flow = make_flow(content=encoded(anthropic(texts(LONG + 2))))
    again.make_exchange(flow)
    assert flow.request.raw_content == sent[2]
    await again.files.close()


async def test_the_provider_does_it_where_it_can_and_is_asked_in_every_request(made):
    proxy = made("{at: 0.7, to: 0.4, keep: 2, window_tokens: 20000}")
    for count, beta in ((1, None), (LONG, "oauth-2025-04-20, context-management-2025-06-27"), (LONG, "a-1")):
        body = anthropic(texts(count)) | {"model": "claude-sonnet-4-5"}
        flow = make_flow(content=encoded(body), **({"anthropic_beta": beta} if beta else {}))
        exchange = proxy.make_exchange(flow)
        assert json.loads(flow.request.raw_content) == body | {"context_management": {"edits": [OURS]}}
        named = flow.request.headers["anthropic-beta"].replace(" ", "").split(",")
        assert named.count("context-management-2025-06-27") == 1
        assert set((beta or "").replace(" ", "").split(",")) - {""} <= set(named)
        assert exchange.unedited is not None
    # Others that speak its format get stubs, and so do models that cannot.
    for url, model in (
        ("https://api.anthropic.com/v1/messages", "claude-3-5-haiku"),
        ("http://gate.local/v1/messages", "m"),
    ):
        flow = make_flow(
            url, content=encoded(anthropic(texts(LONG)) | {"model": model}), mode="reverse:http://gate.local"
        )
        proxy.make_exchange(flow)
        assert b"hivemind context recall" in flow.request.raw_content
    assert not proxy.guard.trips
    await proxy.files.close()


def cleared(results, tokens, *, stream):
    """Claude's answer to a request whose oldest results it has cleared, as its documentation has it."""
    usage = {"input_tokens": 9000, "output_tokens": 3}
    edits = {"applied_edits": [{"type": OURS["type"], "cleared_tool_uses": results, "cleared_input_tokens": tokens}]}
    if not stream:
        said = {"content": [{"type": "text", "text": "Well."}], "stop_reason": "end_turn"}
        return json.dumps({"type": "message", **said, "usage": usage, "context_management": edits}).encode()
    events = (
        {"type": "message_start", "message": {"content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Well."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage, "context_management": edits},
        {"type": "message_stop"},
    )
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_provider_says_that_it_took_out_is_told_as_it_grows(made, stream):
    proxy = made("{window_tokens: 20000}")
    for results, tokens in ((0, 0), (5, 4000), (5, 4000), (7, 6000)):
        body = encoded(anthropic(texts(LONG), stream=stream) | {"model": "claude-sonnet-4-5"})
        exchange = proxy.make_exchange(make_flow(content=body, x_claude_code_session_id="s-1"))
        assert exchange.enter()
        exchange.sent()
        answer = cleared(results, tokens, stream=stream)
        kind = "text/event-stream" if stream else "application/json"
        response = http.Response.make(200, answer, {"content-type": kind})
        exchange.head(response)
        if stream:
            exchange.look(answer)
            exchange.streamed()
        else:
            exchange.collected(response, answer)
        assert exchange.over
    told = [(event.results, event.tokens_before, event.tokens_after) for event in heard(proxy, ContextCompacted)]
    assert told == [(5, 13_000, 9000), (2, 15_000, 9000)]
    # The next one of the conversation is expected as short; of others it has taught only what the first one did.
    follows = proxy.make_exchange(make_flow(content=body, x_claude_code_session_id="s-1"))
    assert follows.estimate.expected.total_input_tokens < 10_000
    other = proxy.make_exchange(make_flow(content=body, x_claude_code_session_id="s-2"))
    assert other.estimate.expected.total_input_tokens > 15_000
    assert not proxy.guard.trips
    await proxy.files.close()


SIGNED = "AWS4-HMAC-SHA256 Credential=A/20261120/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0"


async def test_what_must_not_be_touched_stays(made, tmp_path, monkeypatch):
    proxy = made(more="agents: {alone: {compaction: {by: nobody}}}\n")
    long, encoded_long = anthropic(texts(LONG)), encoded(anthropic(texts(LONG)))
    kept = [
        make_flow(content=encoded(anthropic(texts(3)))),
        make_flow(content=encoded_long, authorization=SIGNED),
        make_flow("https://api.anthropic.com/v1/messages?X-Amz-Signature=0", content=encoded_long),
        make_flow(
            "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude/invoke", content=encoded_long
        ),
        make_flow(content=encoded_long, content_md5="Q2hlY2sgSW50ZWdyaXR5IQ=="),
        make_flow(content=encoded(long | {"context_management": {"edits": [{"type": "compact_20260112"}]}})),
        make_flow(
            "https://api.openai.com/v1/responses", content=encoded(responses(texts(20), previous_response_id="r"))
        ),
        make_flow(content=b"\x00" * 70_000),
        make_flow(content=encoded_long),
    ]
    kept[-1].request.headers["content-encoding"] = "gzip"
    for flow in kept:
        came = flow.request.raw_content
        exchange = proxy.make_exchange(flow)
        assert flow.request.raw_content == came
        assert exchange.unedited is None
    flow = make_flow(content=encoded_long, proxy_authorization="Basic YWxvbmU6")
    proxy.intake.take_own_headers(flow)
    proxy.make_exchange(flow)
    assert flow.request.raw_content == encoded_long, "its own rules say so"
    flow = make_flow("https://api.openai.com/v1/responses", content=encoded(responses(texts(20))))
    proxy.make_turn(flow, proxy.claims.profile_for(flow), None)
    assert b"recall" not in flow.request.raw_content, "a frame is what is sent, not the flow"
    assert not proxy.guard.trips
    await proxy.files.close()


async def test_without_a_place_to_keep_it_nothing_is_taken_out_and_a_person_is_told_once(made, tmp_path):
    body = encoded(chat(texts(20)))
    for rules, journal, why in (
        (RULES, False, "hivemind_journal"),
        ("{by: stubs}", True, "its context window is not known"),
    ):
        proxy = made(rules, journal=journal)
        for _ in range(2):
            flow = make_flow(OPENAI, content=body.replace(b'"model":"m"', b'"model":"nobody-knows-it"'))
            proxy.make_exchange(flow)
            assert flow.request.raw_content == body.replace(b'"model":"m"', b'"model":"nobody-knows-it"')
        (told,) = [event.what for event in heard(proxy, OddityNoted)]
        assert why in told
        await proxy.files.close()


async def test_a_disk_that_cannot_be_written_ends_it_until_it_can(made, tmp_path):
    proxy = made()
    (tmp_path / "contexts").write_text("in the way")
    body = encoded(chat(texts(20)))

    async def sent():
        flow = make_flow(OPENAI, content=body)
        proxy.make_exchange(flow)
        await proxy.files.keeper.settled()
        return flow.request.raw_content

    assert await sent() != body, "nobody knows it yet"
    assert await sent() == body
    (told,) = [event.what for event in heard(proxy, OddityNoted)]
    assert "cannot be kept" in told
    (tmp_path / "contexts").unlink()
    assert await sent() == body
    assert await sent() != body
    await proxy.files.close()


async def test_who_asks_for_nothing_pays_nothing(monkeypatch):
    monkeypatch.delitem(sys.modules, "hivemind_addon.plugins.contexts.compactor", raising=False)
    proxy = make_proxy()
    flow = make_flow(content=encoded(anthropic(texts(LONG))))
    exchange = proxy.make_exchange(flow)
    assert exchange.unedited is None
    assert "hivemind_addon.plugins.contexts.compactor" not in sys.modules
