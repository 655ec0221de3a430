import gzip
import json

import pytest
from mitmproxy import contentviews, http
from mitmproxy.test import taddons, tflow

from hivemind_addon.proxy.gate.interfaces.annotation import write
from hivemind_addon.proxy.gate.interfaces.contentview import ALL_CHARS, PART_CHARS, WIDTH, ExchangeView
from hivemind_addon.proxy.record.history import Moment, TicketHistory, in_columns
from tests.formats.wire.test_transcript import MESSAGES_STREAM
from tests.proxy.gate.samples import make_flow

HISTORY = TicketHistory(
    ticket_id="1a2b",
    agent="agent-7",
    session="s9",
    parent_session="s1",
    kind="sub-agent",
    model="claude-x",
    pool="api.anthropic.com/org-1/sonnet",
    priority="normal",
    moments=[Moment(0.0, "queued, 3rd; rate limit"), Moment(12.0, "in flight")],
    waited_s=12.0,
)
RUNNING = f"{in_columns('agent-7', 'in flight', 'after 12 s')}[1a2b]"


@pytest.fixture(scope="module", autouse=True)
def registered():
    contentviews.add(ExchangeView())


@pytest.fixture(autouse=True)
def _host():
    """Views ask for mitmproxy's options."""
    with taddons.context():
        yield


def make(body=MESSAGES_STREAM, *, history=HISTORY, comment=RUNNING, **headers):
    flow = make_flow()
    flow.response = http.Response.make(200, body, {"content-type": "text/event-stream"} | headers)
    if history:
        write(flow, "anthropic", history, comment, "")
    return flow


def page(flow, message=None, view="auto"):
    shown = contentviews.prettify_message(message or flow.response, flow, view)
    return shown.view_name, shown.text


def test_an_answer_is_its_head_what_was_said_and_what_happened():
    name, text = page(make())
    assert name == "hivemind"
    assert text.splitlines()[:8] == [
        "model    claude-x",
        "agent    agent-7",
        "session  s9, child of s1",
        "kind     sub-agent, normal priority",
        "pool     api.anthropic.com/org-1/sonnet",
        "ticket   1a2b",
        "state    in flight, after 12 s",
        "",
    ]
    words = text[text.index("── thinking") :].replace("─", "").split()
    assert words[:2] == ["thinking", "hm"]
    order = [text.index(word) for word in ("I read.", "tool call Read", '"path": "a.py"', "tool_use", "what happened")]
    assert order == sorted(order)
    assert "    12.0 s  in flight\n" in text


def test_a_request_shows_the_newest_message_first_and_while_it_waits_why():
    flow = make()
    flow.request.content = json.dumps(
        {
            "model": "claude-x",
            "system": "Be brief.",
            "messages": [{"role": "user", "content": "first"}, {"role": "user", "content": "newest"}],
        }
    ).encode()
    name, text = page(flow, flow.request)
    assert name == "hivemind"
    order = [text.index(word) for word in ("queued, 3rd", "newest\n", "first\n", "Be brief.")]
    assert order == sorted(order)
    write(flow, "anthropic", TicketHistory(ticket_id="t", agent="a", end="delivered"), "delivered", "")
    assert "what happened" not in page(flow, flow.request)[1]


def test_flows_that_were_not_scheduled_keep_their_usual_view():
    flow = make(b'{"a": 1}', history=None)
    flow.response.headers["content-type"] = "application/json"
    assert page(flow)[0] == "JSON"
    assert page(tflow.tflow(resp=True))[0] != "hivemind"


def test_chosen_by_a_person_it_reads_any_model_call():
    for path, body in (
        ("/v1/messages?beta=true", MESSAGES_STREAM),
        ("/v1/chat/completions", b'{"choices":[{"message":{"content":"I read."}}]}'),
        ("/v1/responses", b'{"output":[{"type":"message","content":[{"type":"output_text","text":"I read."}]}]}'),
        ("/api/chat", b'{"message":{"content":"I read."}}'),
    ):
        flow = make(body, history=None)
        flow.request.path = path
        assert "I read." in page(flow, view="hivemind")[1], path


def test_of_other_messages_it_says_that_it_cannot_read_them():
    flow = tflow.twebsocketflow()
    assert "Couldn't parse" in contentviews.prettify_message(flow.websocket.messages[0], flow, "hivemind").text


def test_the_beginning_of_a_compressed_stream_is_read():
    whole = gzip.compress(MESSAGES_STREAM)
    flow = make()
    flow.response.headers["content-encoding"] = "gzip"
    flow.response.data.content = whole[:-20]
    assert "── thinking" in page(flow)[1]
    flow.response.data.content = whole
    assert "I read." in page(flow)[1]
    flow.response.headers["content-encoding"] = "unheard-of"
    assert "agent-7" in page(flow)[1]


def test_long_lines_are_wrapped_and_long_texts_cut():
    long = json.dumps({"content": [{"type": "text", "text": "word " * 100 + "x" * 1000 + "\n" + "y" * PART_CHARS}]})
    text = page(make(long.encode()))[1]
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "characters more" in text
    many = json.dumps({"content": [{"type": "text", "text": "z" * PART_CHARS}] * 100})
    text = page(make(many.encode()))[1]
    assert len(text) < ALL_CHARS + 2 * PART_CHARS
    assert text.endswith("the rest is in the raw view\n")


def test_an_error_says_what_it_is():
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    assert "overloaded_error: Overloaded" in page(make(body))[1]
