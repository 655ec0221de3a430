"""A scheduler, what drives it, and who listens: what lives as long as the process."""

import logging
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

from hivemind_addon.formats.wire.estimate import Estimator
from hivemind_addon.formats.wire.tokenizer import Tokenizer
from hivemind_addon.formats.wire.watchdog import Durations
from hivemind_addon.kernel.scheduler import Scheduler
from hivemind_addon.kernel.values.events import Event
from hivemind_addon.proxy.api.words import failing
from hivemind_addon.proxy.record.agent_use import AgentUse
from hivemind_addon.proxy.record.buffer import EventBuffer
from hivemind_addon.proxy.record.contexts import Contexts
from hivemind_addon.proxy.record.history import Histories
from hivemind_addon.proxy.record.metrics import Metrics
from hivemind_addon.proxy.record.news import News
from hivemind_addon.proxy.record.stats import Stats
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.proxy.run.driven import ClusterMembership
from hivemind_addon.proxy.run.driver import Driver
from hivemind_addon.proxy.run.guard import Guard
from hivemind_addon.proxy.run.sinks import Sink, Sinks
from hivemind_addon.proxy.system.clock import Clock, SystemClock
from hivemind_addon.proxy.system.engine_url import ClusterSettings

logger = logging.getLogger("hivemind")

_CLUSTER = "hivemind_addon.plugins.cluster.membership"  # loaded where an option asks for it: it needs an extra
_OTLP_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True)
class Runtime:
    """What lives as long as the proxy's process; a reloaded script adopts it."""

    driver: Driver
    guard: Guard
    estimator: Estimator
    tokenizer: Tokenizer
    first_bytes: Durations
    """Of streamed answers, by model, as the next two."""
    silences: Durations
    """Of streamed answers from the head on, the longest of each."""
    plain_answers: Durations
    """Of answers that are not streamed."""
    labels: set[tuple[str, str]]
    """Hosts whose answers have a wrong label, and what was noted of that: once for each."""
    news: News
    stats: Stats
    contexts: Contexts
    agent_use: AgentUse
    metrics: Metrics
    sinks: Sinks
    histories: Histories
    membership: ClusterMembership | None = None
    """In a cluster; None: the scheduler is this process's own."""


def make_runtime(
    *, observers: tuple[Callable[[Event], None], ...] = (), cluster: ClusterSettings | None = None, port: int = 0
) -> Runtime:
    """A scheduler and what drives it, for the running event loop; with `cluster`, a member of that in its place.

    `port`: the proxy's, for its name there.
    """
    tokenizer, buffer = Tokenizer(), EventBuffer()
    sums, histories = Sums(buffer.flush), Histories(buffer.flush)
    buffer.feed(sums)
    buffer.feed(histories)
    news = News(histories.agent_of)
    contexts = Contexts(buffer.flush)
    buffer.feed(contexts)
    clock = SystemClock()
    hear: list[Callable[[Event], None]] = [news, buffer, *observers]
    plugin = import_module(_CLUSTER) if cluster else None
    scheduler = plugin.make_node(cluster, port, _make_scheduler) if plugin else _make_scheduler()
    driver = Driver(scheduler=scheduler, clock=clock, observers=hear)
    contexts.tell = driver.note
    return Runtime(
        driver=driver,
        guard=Guard(driver),
        estimator=Estimator(tokenizer),
        tokenizer=tokenizer,
        first_bytes=Durations(),
        silences=Durations(),
        plain_answers=Durations(),
        labels=set(),
        news=news,
        stats=Stats(sums),
        contexts=contexts,
        agent_use=sums.agents,
        metrics=Metrics(sums, contexts),
        sinks=Sinks(driver, traces=_make_traces(os.environ, driver.clock)),
        histories=histories,
        membership=plugin.Membership(node=scheduler, driver=driver, settings=cluster) if plugin else None,
    )


def _make_scheduler() -> Scheduler:
    return Scheduler(rng=random.Random())  # noqa: S311 - jitter, no secret


def _make_traces(environment: Mapping[str, str], clock: Clock) -> Sink | None:
    """Traces, where OpenTelemetry's own variables ask for them; what cannot be done is one line in the log."""
    asked = environment.get("OTEL_TRACES_EXPORTER", "")
    if not asked and any(environment.get(name) for name in _OTLP_ENDPOINTS):
        asked = "otlp"
    if asked in ("", "none") or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if asked not in ("otlp", "console"):
        logger.warning("hivemind: no traces: OTEL_TRACES_EXPORTER is %r; otlp, console and none are known", asked)
        return None
    try:
        from hivemind_addon.proxy.run.trace_export import TraceExport, make_exporter  # noqa: PLC0415  needs an extra

        return TraceExport(make_exporter(asked), clock=clock)
    except ImportError as error:
        cure = "pip install 'hivemind-addon[otel]'"
        logger.warning("hivemind: no traces: OpenTelemetry is not installed (%s); %s", failing(error), cure)
        return None
    except ValueError as error:
        logger.warning("hivemind: no traces: %s", failing(error))
        return None
