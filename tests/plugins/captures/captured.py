"""Captured flows in memory, as a recorder writes them."""

from mitmproxy import http

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.plugins.captures.flow_file import dump
from hivemind_addon.plugins.captures.model import CapturedCall
from hivemind_addon.plugins.captures.recording import Circumstances, metadata
from hivemind_addon.plugins.captures.redact import FlowRedactor
from tests.plugins.captures.samples import make_call
from tests.proxy.gate.samples import make_flow

STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","type":"message","role":"assistant",'
    b'"model":"claude-sonnet-4-5","content":[],"usage":{"input_tokens":9,"output_tokens":1}}}\n\n'
    b'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hi"}}\n\n'
    b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)


def answered(flow, body=STREAM, status=200, **headers):
    """The flow with an answer, whose head came after 1 s and whose end after 3 s."""
    named = {"content-type": "text/event-stream"} | {name.replace("_", "-"): text for name, text in headers.items()}
    began = flow.request.timestamp_start
    flow.response = http.Response.make(status, body, named)
    flow.response.timestamp_start, flow.response.timestamp_end = began + 1.0, began + 3.0
    flow.error = None
    return flow


PROFILES = load_profiles(None)


def make_redactor(*, content=True):
    return FlowRedactor(PROFILES.by_name.values(), content=content)


def record(call: CapturedCall | None = None, flow=None, *, content=True, beside=None) -> bytes:
    """One record of a file."""
    state = (flow or answered(make_flow())).get_state()
    state["metadata"] = metadata(call or make_call(), beside or Circumstances(began_wall=1e9, content=content))
    return dump(make_redactor(content=content).clean_state(state))
