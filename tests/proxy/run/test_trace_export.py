import asyncio
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from hivemind_addon.kernel.values.events import Submitted, TicketEnded
from hivemind_addon.proxy.run import trace_export
from hivemind_addon.proxy.run.trace_export import TraceExport, make_exporter
from tests.kernel.samples import POOL, ticket


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setattr(trace_export, "FLUSH_S", 120.0)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "120")


class Collector(SpanExporter):
    """Takes spans, or fails, or hangs."""

    def __init__(self):
        self.spans = []
        self.result = SpanExportResult.SUCCESS
        self.go = threading.Event()
        self.go.set()

    def export(self, spans):
        assert self.go.wait(120)
        if isinstance(self.result, Exception):
            raise self.result
        self.spans += spans
        return self.result


def one_ticket(made, clock, ticket_id="a"):
    made(Submitted(at=clock.monotonic(), ticket=ticket(ticket_id, at=clock.monotonic())))
    made(
        TicketEnded(
            at=clock.monotonic() + 1,
            ticket_id=ticket_id,
            pool=POOL,
            end="delivered",
            reason="200",
            attempts=1,
            ambiguous_resends=0,
            waited_s=0.0,
        )
    )


async def test_what_is_left_goes_out_at_the_end_by_the_wall_clock(clock):
    collector = Collector()
    made = TraceExport(collector, clock=clock)
    one_ticket(made, clock)
    await made.close()
    (span,) = collector.spans
    assert span.start_time == int(clock.wall() * 1e9)
    assert span.resource.attributes["service.name"] == "hivemind"


async def test_the_environment_may_name_the_service(clock, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "night-fleet")
    collector = Collector()
    made = TraceExport(collector, clock=clock)
    one_ticket(made, clock)
    await made.close()
    assert collector.spans[0].resource.attributes["service.name"] == "night-fleet"


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, ValueError("no such host")])
async def test_a_collector_that_is_away_is_told_once_and_when_it_is_back(clock, caplog, result):
    collector = Collector()
    collector.result = result
    telling = trace_export._Telling(collector)
    for _ in range(3):
        assert await asyncio.to_thread(telling.export, []) is SpanExportResult.FAILURE
    collector.result = SpanExportResult.SUCCESS
    await asyncio.to_thread(telling.export, [])
    assert [message.split(":")[1] for message in caplog.messages] == [
        " traces are lost until they can be exported",
        " traces are exported again",
    ]


async def test_a_collector_that_hangs_does_not_keep_the_proxy_from_ending(clock, monkeypatch):
    monkeypatch.setattr(trace_export, "FLUSH_S", 0.05)
    collector = Collector()
    collector.go.clear()
    made = TraceExport(collector, clock=clock)
    one_ticket(made, clock)
    await asyncio.wait_for(made.close(), 60)
    collector.go.set()


class Taker(BaseHTTPRequestHandler):
    """Says yes to whatever is posted."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_the_exporter_goes_through_no_proxy_that_the_environment_names(monkeypatch):
    with HTTPServer(("127.0.0.1", 0), Taker) as collector:
        thread = threading.Thread(target=collector.handle_request)
        thread.start()
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        assert make_exporter("otlp").export([]) is SpanExportResult.SUCCESS
        thread.join(120)
