import asyncio
import os
import sys
from collections import Counter

import pytest

from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.events import OddityNoted
from hivemind_addon.kernel.values.ticket import AttemptResult, PoolKey
from hivemind_addon.proxy.run.compose import _make_traces, make_runtime
from hivemind_addon.proxy.system.engine_url import read_cluster
from tests.kernel.samples import SUCCESS, ticket


async def test_everything_meets_and_observers_hear_of_every_event():
    heard = []
    runtime = make_runtime(observers=(heard.append,))
    event = OddityNoted(at=0, pool=PoolKey("h", "a", "m"), ticket_id=None, what="odd")
    runtime.driver.note(event)
    assert heard == [event]
    assert "hivemind_oddities_total 1.0" in runtime.metrics.exposition(runtime.driver.snapshot).decode()
    assert runtime.guard.trips == 0


async def test_the_end_of_a_request_that_nobody_looks_at_sums_words_and_encodes_nothing():
    """All that observers do for it is to keep four events; whoever looks then finds all of it."""
    runtime = make_runtime()
    driver = runtime.driver
    settings = PoolSettings()
    called: Counter[str] = Counter()

    def count(frame, what, _):
        name = frame.f_code.co_filename.replace(os.sep, "/")
        if what == "call" and any(part in name for part in ("proxy/record/", "api/event_text", "prometheus")):
            called[frame.f_code.co_qualname] += 1

    for number in range(2):  # the second one finds everything as a long run does
        called.clear()
        sys.setprofile(count)
        try:
            driver.submit(ticket(f"t{number}", at=driver.clock.monotonic()), settings)
            admitted = driver.decision(f"t{number}")
            driver.settle(admitted.attempt, AttemptResult(SUCCESS))
        finally:
            sys.setprofile(None)
    told = called.pop("EventBuffer.__call__")
    assert told <= 5
    assert sum(called.values()) <= 4, called  # its end may be news: its level is looked at
    assert runtime.histories.of("t1").end == "delivered"
    (pool,) = runtime.stats.view(driver.clock.monotonic()).pools
    assert (pool.admitted, pool.delivered) == (2, 2)


async def test_where_an_option_asks_for_a_cluster_its_member_is_driven():
    membership = make_runtime(cluster=read_cluster("valkey://localhost", "team", {}), port=8080).membership
    assert (membership.view(0.0).name, membership.view(0.0).role) == ("team", "joining")
    assert not membership.decides_here


async def test_two_runtimes_share_nothing():
    first, second = make_runtime(), make_runtime()
    first.guard.trip("here", RuntimeError())
    assert (first.guard.trips, second.guard.trips) == (1, 0)
    assert "hivemind_guard_trips_total 0.0" in second.metrics.exposition(second.driver.snapshot).decode()
    assert first.estimator is not second.estimator
    assert asyncio.get_running_loop().is_running()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    ],
)
async def test_there_are_no_traces_unless_the_environment_asks_for_them(environment, clock, caplog):
    assert _make_traces(environment, clock) is None
    assert caplog.messages == []


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"},
        {"OTEL_TRACES_EXPORTER": "otlp"},
        {"OTEL_TRACES_EXPORTER": "console"},
    ],
)
async def test_the_standard_variables_ask_for_traces(environment, clock):
    traces = _make_traces(environment, clock)
    assert traces is not None
    await traces.close()


async def test_an_exporter_that_is_not_known_is_one_line(clock, caplog):
    assert _make_traces({"OTEL_TRACES_EXPORTER": "zipkin"}, clock) is None
    (line,) = caplog.messages
    assert "OTEL_TRACES_EXPORTER is 'zipkin'" in line


async def test_without_the_extra_the_log_names_the_cure(clock, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "hivemind_addon.proxy.run.trace_export", None)
    assert _make_traces({"OTEL_TRACES_EXPORTER": "otlp"}, clock) is None
    (line,) = caplog.messages
    assert "pip install 'hivemind-addon[otel]'" in line
