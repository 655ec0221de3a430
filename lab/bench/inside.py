"""What is measured inside this process, with the addon's own functions: the intake of a body."""

import asyncio
import json
from collections import defaultdict
from time import thread_time

from mitmproxy.test import tflow
from mitmproxy.test.tutils import treq

from hivemind_addon.formats.profile.load import load_profiles
from hivemind_addon.proxy.gate.proxy import Proxy
from hivemind_addon.proxy.gate.settings import Settings
from hivemind_addon.proxy.run.compose import make_runtime
from lab.bench.bodies import conversation, next_turn
from lab.bench.timing import Timing

BLOCKED_BYTES = 1_000_000
_NEW_TEXT_BYTES = 4_000
_ANSWER = "I have read the file; the error comes from the import at its top."


def intake_times(count, size_bytes=BLOCKED_BYTES):
    """How long a body of 1 MB keeps the event loop busy, from the complete request to the submitted ticket.

    `first sight`: of a new session. `next turn`: the same body, with an answer and 4 KB of new text.
    """
    return asyncio.run(_intake_times(count, size_bytes))


async def _intake_times(count, size_bytes):
    runtime = make_runtime()
    runtime.tokenizer.load()
    proxy = Proxy(runtime=runtime, settings=Settings(profiles=load_profiles(None)))
    body = conversation(size_bytes, streamed=False)
    later = next_turn(body, _ANSWER, _NEW_TEXT_BYTES)
    samples = defaultdict(list)
    for number in range(count):
        for name, content in (("first sight", body), ("next turn", later)):
            flow = _flow(content, session=f"bench-{number}")
            began = thread_time()
            exchange = proxy.make_exchange(flow)
            admitted = exchange.enter()
            samples[name].append(thread_time() - began)
            assert admitted, "nothing keeps it"
            exchange.sent()
            exchange.head(flow.response)
            exchange.collected(flow.response, flow.response.raw_content)
    assert runtime.guard.trips == 0
    return {name: Timing.of(values) for name, values in samples.items()}


def _flow(content, *, session):
    flow = tflow.tflow(req=treq(content=content, host="api.anthropic.com", port=443, scheme=b"https"), resp=True)
    flow.client_conn.sni = flow.request.host
    flow.request.method = "POST"
    flow.request.path = "/v1/messages"
    flow.request.headers["x-session-id"] = session
    flow.request.headers["x-api-key"] = "sk-bench"
    flow.response.headers["content-type"] = "application/json"
    flow.response.content = json.dumps(
        {
            "type": "message",
            "content": [{"type": "text", "text": _ANSWER}],
            "usage": {"input_tokens": len(content) // 4, "output_tokens": 15},
        }
    ).encode()
    return flow
