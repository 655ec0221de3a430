"""What a real proxy tells others: the event log, a call for help at a wall, traces to a collector."""

import gzip
import json
import select
import stat
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.e2e.proxy import PATIENCE_S, body, free_port, running
from tests.e2e.raw_provider import raw_provider, whole

pytestmark = pytest.mark.slow

GOOD = b'{"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 5, "output_tokens": 2}}'
SPENT = b'{"type":"error","error":{"type":"rate_limit_error","message":"This would exceed your limit."}}'
SECRET_KEY, SECRET_WORD = "sk-very-secret", "xyzzy-prompt"
WALL_S = 6
"""Longer than a starved proxy takes to read that there is one."""


class Collector(BaseHTTPRequestHandler):
    """Takes spans as an OpenTelemetry collector does."""

    def do_POST(self):
        data = self.rfile.read(int(self.headers["content-length"]))
        data = gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            for scope in resource.scope_spans:
                self.server.spans.extend(scope.spans)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextmanager
def collecting():
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.spans = []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def good_then_spent_then_good(resets):
    """A provider that notes when it says that it is back."""

    def handler(number, send):
        if number != 1:
            send(whole(200, GOOD))
            return
        resets.append(int(time.time()) + WALL_S)
        status, reset = "anthropic-ratelimit-unified-status", "anthropic-ratelimit-unified-reset"
        send(whole(429, SPENT, **{status: "rejected", reset: str(resets[0])}))

    return handler


def calls(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.glob("[0-9]*"))]


def wait_for(condition, what):
    """Threads of the proxy's and processes that it starts tell: there is no clock to advance."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        select.select([], [], [], 0.02)


def attributes(span):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def test_a_night_with_a_wall_is_in_the_event_log_calls_for_help_and_is_traced(tmp_path, monkeypatch):
    port, called, resets = free_port(), tmp_path / "called", []
    called.mkdir()
    script = tmp_path / "call.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        f"place = pathlib.Path({str(called)!r})\n"
        "(place / 'unfinished').write_text(sys.stdin.read())\n"
        "(place / 'unfinished').rename(place / str(time.time_ns()))\n"
    )
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text(f"extends: anthropic\nhosts: ['127.0.0.1:{port}']\n")
    log = tmp_path / "events.jsonl"
    options = {
        "hivemind_profiles": tmp_path / "profiles",
        "hivemind_log": log,
        "hivemind_notify": f"{sys.executable} -I -S '{script}'",
    }
    arguments = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    url = f"http://127.0.0.1:{port}/v1/messages"
    headers = {"x-api-key": SECRET_KEY, "content-type": "application/json"}
    content = body(messages=[{"role": "user", "content": SECRET_WORD}])

    with collecting() as collector, raw_provider(port, None, good_then_spent_then_good(resets)):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(PATIENCE_S))
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        begun = time.time()
        with running(tmp_path / "conf", *arguments) as proxy:
            with proxy.client("agent-1") as client:
                assert client.post(url, content=content, headers=headers).status_code == 200
                assert client.post(url, content=content, headers=headers).status_code == 429
                wait_for(lambda: len(calls(called)) == 1, "the first call for help")
                proxy.wait_for(
                    lambda state: state["snapshot"]["pools"][0]["wall"]["ends_in_s"] == 0,
                    "the wall's end",
                )
                assert client.post(url, content=content, headers=headers).status_code == 200
                wait_for(lambda: len(calls(called)) == 2, "the second call for help")
            wait_for(lambda: log.read_text().count('"TicketEnded"') == 3, "the last line of the event log")
            wait_for(lambda: len(collector.spans) == 6, "the last span")  # a stopping proxy waits for neither long
            assert proxy.stop() == 0
            text = proxy.log
        spans = list(collector.spans)

    began, ended = calls(called)
    assert (began["cause"], began["state"], ended["cause"], ended["state"]) == ("wall", "began", "wall", "ended")
    assert abs(began["ends_at"] - resets[0]) < 2
    assert "the call for help failed" not in text

    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = [line["event"] for line in lines]
    assert [kinds.count(kind) for kind in ("Submitted", "AttemptEnded", "TicketEnded", "WallHit", "WallOpened")] == [
        *(3, 3, 3, 1, 1)
    ]
    assert all(begun - 1 < line["wall"] < time.time() + 1 for line in lines)
    for secret in (SECRET_KEY, SECRET_WORD):
        assert secret not in log.read_text() + text + json.dumps(calls(called)) + str(spans)

    tickets = [span for span in spans if span.name.startswith("ticket ")]
    attempts = [span for span in spans if span.name.startswith("chat ")]
    assert (len(tickets), len(attempts)) == (3, 3)
    assert {span.parent_span_id for span in attempts} == {span.span_id for span in tickets}
    assert [attributes(span)["http.response.status_code"] for span in attempts] == [200, 429, 200]
    assert attributes(attempts[0])["gen_ai.usage.output_tokens"] == 2
    assert {attributes(span)["hivemind.agent"] for span in tickets} == {"agent-1"}
    assert "Traceback" not in text
