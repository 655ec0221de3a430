"""Sends traces to an OpenTelemetry collector. Needs the extra `otel`; whoever imports this has looked for it.

Endpoint, headers, sampling, batches and resource follow the SDK's own environment variables. A thread of the SDK
exports; it never goes through a proxy that the environment names, which may be this one, and a collector that is away
is one line in the log.
"""

import asyncio
import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter, SpanExportResult

from hivemind_addon import __version__
from hivemind_addon.kernel.values.events import Event
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.record.traces import Traces
from hivemind_addon.proxy.system.clock import Clock

logger = logging.getLogger("hivemind")

FLUSH_S = 3.0
"""How long a stopping proxy waits for the collector."""


def make_exporter(kind: str) -> SpanExporter:
    """`console`: to standard output, for whoever tries it out; else by OTLP over HTTP, through no proxy.

    Raises ValueError where the environment says what the SDK cannot read.
    """
    if kind == "console":
        return ConsoleSpanExporter()
    session = requests.Session()
    session.trust_env = False
    return OTLPSpanExporter(session=session)


class TraceExport:
    """An observer, to be made and called on the event loop; ends with `close`."""

    hears = Traces.hears

    def __init__(self, exporter: SpanExporter, *, clock: Clock) -> None:
        # The SDK logs each batch that fails; we tell the first one.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        own = Resource({"service.name": "hivemind", "service.version": __version__})
        self._clock = clock
        self._provider = TracerProvider(
            resource=Resource.create().merge(own).merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(_Telling(exporter)))
        self._traces = Traces(
            self._provider.get_tracer("hivemind_addon", __version__),
            wall=lambda at: clock.wall() - clock.monotonic() + at,
        )

    def __call__(self, event: Event) -> None:
        """Hear of one event; never waits."""
        self._traces(event)

    async def close(self) -> None:
        """What is left goes out if the collector takes it within three seconds."""
        self._traces.close(self._clock.monotonic())
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop did not wait any longer
                loop.call_soon_threadsafe(closed.set)

        # A thread that nobody joins: a collector that hangs must not keep the proxy from ending.
        threading.Thread(target=shut_down, name="hivemind-traces-end", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await closed.wait()


class _Telling(SpanExporter):
    """Another exporter that says once when it fails, and when it works again. Called by the SDK's thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._loop = asyncio.get_running_loop()
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As the other does; never raises."""
        why = "what OTEL_EXPORTER_OTLP_ENDPOINT names does not take OTLP over HTTP (port 4318, as a rule)"
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - a bad endpoint, names that cannot be encoded, …
            result, why = SpanExportResult.FAILURE, failing(error)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            self._tell(f"traces are lost until they can be exported: {why}")
        elif self._is_failing and not is_failing:
            self._tell("traces are exported again")
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        """As the other does."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As the other does."""
        return self._exporter.force_flush(timeout_millis)

    def _tell(self, line: str) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(logger.warning, "hivemind: %s", line)
