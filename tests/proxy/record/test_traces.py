import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from hivemind_addon.kernel.values.events import GuardTripped, OddityNoted, Submitted
from hivemind_addon.kernel.values.ticket import PoolKey, Usage
from hivemind_addon.proxy.record import traces as ours
from hivemind_addon.proxy.record.traces import Traces
from tests.kernel.samples import CANCELLED, FAILED, IGNORED, Bench, ticket

AHEAD_S = 1_700_000_000.0


class Stage:
    """A scheduler with one slot in virtual time, its events traced."""

    def __init__(self):
        self.bench = Bench(slots=1)
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.traces = Traces(provider.get_tracer("test"), wall=lambda at: at + AHEAD_S)

    def spans(self):
        """Those that have ended, in the order of their ends."""
        for event in self.bench.events:
            self.traces(event)
        self.bench.events.clear()
        return self.exporter.get_finished_spans()


def seconds(span):
    return span.start_time / 1e9 - AHEAD_S, span.end_time / 1e9 - AHEAD_S


@pytest.fixture
def stage():
    return Stage()


def test_a_ticket_is_a_span_and_each_attempt_one_below_it(stage):
    bench = stage.bench
    bench.submit("a")
    bench.advance(2)
    bench.settle("a", FAILED)
    bench.advance_to_wakeup()
    again_at = bench.now
    bench.advance(3)
    bench.settle("a", usage=Usage(input_tokens=10, cache_read_tokens=5, output_tokens=7, reported=True))
    first, second, whole = stage.spans()

    assert (whole.name, whole.kind, first.name, first.kind) == ("ticket m", SpanKind.SERVER, "chat m", SpanKind.CLIENT)
    assert whole.parent is None
    assert {first.parent.span_id, second.parent.span_id} == {whole.context.span_id}
    assert seconds(whole) == pytest.approx((0, again_at + 3), abs=1e-3)
    assert seconds(first) == pytest.approx((0, 2), abs=1e-3)
    assert seconds(second) == pytest.approx((again_at, again_at + 3), abs=1e-3)

    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["http.response.status_code"] == 500
    assert first.attributes["error.type"] == "500"
    assert second.status.status_code is StatusCode.UNSET
    assert second.attributes["gen_ai.usage.input_tokens"] == 15
    assert second.attributes["gen_ai.usage.cache_read.input_tokens"] == 5
    assert second.attributes["gen_ai.usage.output_tokens"] == 7
    assert second.attributes["hivemind.attempt"] == 2

    assert whole.attributes["hivemind.end"] == "delivered"
    assert whole.attributes["hivemind.attempts"] == 2
    assert whole.attributes["gen_ai.agent.name"] == "a"
    assert not [name for name in whole.attributes if "usage" in name], "no sum may count tokens twice"
    assert [event.name for event in whole.events][:1] == ["backed off"]


def test_who_waits_says_why(stage):
    stage.bench.submit("a", "b")
    stage.bench.advance(1)
    stage.bench.settle("a")
    stage.bench.settle("b")
    waited = next(span for span in stage.spans() if span.attributes["hivemind.ticket"] == "b" and span.parent is None)
    (event,) = waited.events
    assert (event.name, event.attributes["hivemind.reason"]) == ("held", "concurrency limit")
    assert waited.attributes["hivemind.wait_s"] == 1


@pytest.mark.parametrize(
    ("outcome", "end", "status"), [(IGNORED, "gave up", "ERROR"), (CANCELLED, "cancelled", "UNSET")]
)
def test_how_it_ended(stage, outcome, end, status):
    stage.bench.submit("a")
    stage.bench.settle("a", outcome)
    _, whole = stage.spans()
    assert (whole.attributes["hivemind.end"], whole.status.status_code.name) == (end, status)


@pytest.mark.parametrize(
    ("host", "name", "port"),
    [
        ("api.anthropic.com", "anthropic", None),
        ("openai.com.evil.test", "openai.com.evil.test", None),
        ("localhost:11434", "localhost", 11434),
    ],
)
def test_the_server_is_named_in_the_conventions_words(stage, host, name, port):
    stage.bench.submit("a", pool=PoolKey(host, "k", "m"))
    stage.bench.settle("a")
    attempt, _ = stage.spans()
    assert attempt.attributes["gen_ai.provider.name"] == name
    assert attempt.attributes["server.address"] == host.partition(":")[0]
    assert attempt.attributes.get("server.port") == port


def test_every_name_of_generative_ai_is_one_of_the_convention(stage):
    stage.bench.submit("a")
    stage.bench.settle("a", usage=Usage())
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in stage.spans() for name in span.attributes if name.startswith("gen_ai.")}
    assert len(used) > 8
    assert used <= known


def test_what_still_lives_ends_with_the_proxy(stage):
    stage.bench.submit("a", "b")
    stage.spans()
    stage.traces.close(5.0)
    spans = stage.spans()
    assert len(spans) == 3
    assert {seconds(span)[1] for span in spans} == {5.0}


def test_it_is_bounded_and_events_of_others_pass_by(stage, monkeypatch):
    monkeypatch.setattr(ours, "LIVE", 1)
    stage.bench.submit("a", "b")
    stage.spans()
    stage.traces(GuardTripped(at=0, ticket_id=None, where="here", error="E"))
    stage.traces(OddityNoted(at=0, pool=None, ticket_id="b", what="odd"))
    assert len(stage.traces._live) == 1
    stage.bench.settle("a")
    stage.bench.settle("b")
    assert {span.attributes["hivemind.ticket"] for span in stage.spans()} == {"a"}


def test_a_name_that_is_no_text_can_be_exported(stage):
    stage.traces(Submitted(at=0.0, ticket=replace(ticket("a"), agent="a\udcff", model="m" * 5000)))
    stage.traces.close(1.0)
    (span,) = stage.spans()
    assert span.attributes["gen_ai.agent.name"] == "a?"
    assert len(span.name) < 400
