import json
import os
import subprocess
import sys
from dataclasses import replace
from threading import Event, Thread
from time import perf_counter

import pytest

from lab.bench import __main__ as command
from lab.bench import cluster_scale, decisions, growth, report, soak, stack
from lab.bench.__main__ import Check
from lab.bench.bodies import conversation, converse_request, gemini_request, next_turn
from lab.bench.client import Asked, Connection, Http2Connection
from lab.bench.frames import PREFACE, Frames, frame, literal
from lab.bench.plan import (
    FORWARD_TLS,
    FULL,
    HTTP2,
    HTTP2_TO_1,
    QUICK,
    REVERSE_TLS,
    SMALL_BYTES,
    STREAM_FORMATS,
    Cell,
    Plan,
)
from lab.bench.rounds import Row, Sample
from lab.bench.timing import Timing
from lab.markdown import markdown_filled
from tests.cases import each
from tests.e2e.proxy import free_port

TINY = Plan(
    cells=(
        Cell(SMALL_BYTES, False, 2, 4),
        Cell(SMALL_BYTES, True, 2, 4, interval_ms=1),
        *(Cell(SMALL_BYTES, True, 1, 2, mode=mode) for mode in (FORWARD_TLS, REVERSE_TLS, HTTP2, HTTP2_TO_1)),
        *(Cell(SMALL_BYTES, True, 1, 2, format=api) for api in STREAM_FORMATS),
    ),
    min_rounds=1,
    max_s=0,
    loop_cells=(Cell(SMALL_BYTES, True, 1, 2, mode=FORWARD_TLS),),
    loop_rounds=1,
    held_flows=2,
    watched_flows=2,
    watched_s=1.5,
    starts=1,
    intakes=2,
    queued=(10,),
    decisions=5,
    agents=(2, 4),
    growth_requests=2,
    cluster_agents=(3,),
    cluster_members=2,
    cluster_admissions=6,
    counted_cells=1,
)
PASSED = Check(sent=5, tickets=5, delivered=5, guard_trips=0)


@pytest.fixture(autouse=True)
def ports(monkeypatch):
    """A proxy takes seconds to start: meanwhile no connection of other tests may get its port."""
    monkeypatch.setattr(stack, "free_port", free_port)


def sample(p50_s):
    return Sample(p50_s=p50_s, first_p50_s=p50_s, transit_p50_s=p50_s, requests_per_s=1 / p50_s, cpu_s=p50_s)


def rounds(*pairs):
    return tuple({"direct": sample(1), "bare": sample(bare), "addon": sample(addon)} for bare, addon in pairs)


def test_the_cluster_is_measured():
    text = cluster_scale.table(cluster_scale.measure(TINY))
    assert "Agents, at 2 members" in text
    assert "\n| 3 | " in text


@pytest.mark.slow
def test_a_run_measures_every_row_and_all_its_requests_were_scheduled(monkeypatch):
    monkeypatch.setattr(
        decisions, "WEIGHED", 100
    )  # what is measured of so many is tests/lab/test_bench_decisions.py's matter
    monkeypatch.setattr(growth, "QUEUED", 10)
    monkeypatch.setattr(growth, "_FETCHES", 1)
    told = []
    parts, check = command.run(TINY, tell=told.append)
    page = markdown_filled(command.PAGE.read_text(), parts)
    assert check.passed, check
    # A warm-up and one round.
    assert check.sent == 2 + 4 + 2 + 4 + (4 + 2) * (1 + 2)
    for cell in TINY.cells:
        assert f"| {cell.name} |" in page
    assert "10 queued" in page
    for measured in (
        "next turn",
        "`hivemind eta`",
        "`hivemind run`",
        "objects left to",
        "the loop's delay",
        "(2 of them)",
        "at 2 members",
    ):
        assert measured in page
    assert check.text in page
    assert told[0].startswith("round 1")


@pytest.mark.slow
def test_a_night_in_mitmweb_is_measured():
    soaked = soak.run(0, requests=20, lag_s=0.2, web=True, flows=5, held_lag_s=0.2, tell=lambda _: None)
    assert [one.failures for one in soaked.rounds] == [0] * 4
    assert min(one.rss_bytes for one in soaked.rounds) > 10_000_000
    assert soaked.held_lag.max_s > 0
    text = soak.report(soaked)
    assert "80 streamed requests" in text
    assert f"{soaked.held} flows of 600 KB held" in text


@pytest.mark.slow
def test_a_soak_loses_no_request_although_the_provider_fails():
    told = []
    soaked = soak.run(0, requests=60, lag_s=0.2, tell=told.append)
    assert [one.failures for one in soaked.rounds] == [0] * 4
    assert soaked.guard_trips == 0
    assert min(one.descriptors for one in soaked.rounds) > 10
    assert "240 requests" in told[-1]
    assert "240 streamed requests" in soak.report(soaked)


def rounds_of(**series):
    """Twelve rounds; what is not given is level."""
    level = {"failures": 0, "rss_bytes": 100_000_000, "descriptors": 60, "lag_s": 0.02}
    return tuple(
        soak.Round(
            requests=1500,
            failures=one["failures"],
            rss_bytes=one["rss_bytes"],
            descriptors=one["descriptors"],
            lag=Timing(0.001, one["lag_s"], 0.001, 1.0),
        )
        for one in (level | {name: values(number) for name, values in series.items()} for number in range(12))
    )


@each(
    ("series", "complaints"),
    [
        ({}, []),
        ({"rss_bytes": lambda number: 100_000_000 + min(number, 4) * 30_000_000}, []),  # until caches are full
        ({"rss_bytes": lambda number: 100_000_000 + number % 2 * 3_000_000}, []),
        ({"rss_bytes": lambda number: 100_000_000 + number * 2_000_000}, ["memory"]),
        ({"descriptors": lambda number: 60 + number * 2}, ["descriptors"]),
        ({"lag_s": lambda number: 0.01 * number}, ["loop delay"]),
        ({"failures": lambda number: number == 7}, ["lost requests"]),
    ],
)
def test_a_soak_complains_of_what_grows_and_of_nothing_else(series, complaints):
    soaked = soak.Soaked(rounds_of(**series), guard_trips=0)
    assert soaked.complaints == complaints
    assert ("FAILED" in soak.report(soaked)) is bool(complaints)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"tickets": 4}, id="one passed by"),
        pytest.param({"delivered": 4}, id="one was lost"),
        pytest.param({"guard_trips": 1}, id="the guard tripped"),
    ],
)
def test_what_was_not_scheduled_fails_the_check_and_the_command(wrong, monkeypatch, capsys):
    failed = replace(PASSED, **wrong)
    monkeypatch.setattr(command, "run", lambda *_, **__: ({"rows": "the page"}, failed))
    assert not failed.passed
    assert "FAILED" in failed.text
    assert command.main(["--quick"]) == 1
    assert capsys.readouterr().out == "the page\n"


OLD_PAGE = "# Page\n\n<!-- rows -->\n\nold\n\n<!-- end -->\n"


def test_only_a_full_run_writes_the_page(monkeypatch, tmp_path):
    plans = []

    def run(plan, *_, **__):
        plans.append(plan)
        return {"rows": "the page"}, PASSED

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command, "PAGE", tmp_path / "bench.md")
    command.PAGE.write_text(OLD_PAGE)
    assert command.main(["--quick"]) == 0
    assert command.PAGE.read_text() == OLD_PAGE
    assert command.main([]) == 0
    assert command.PAGE.read_text() == OLD_PAGE.replace("old", "the page")
    assert plans == [QUICK, FULL]


def test_a_ratio_is_the_median_of_the_rounds_own_ratios():
    row = Row(TINY.cells[0], rounds((1.0, 1.0), (10.0, 12.0), (1.0, 5.0)))
    assert row.ratio("p50_s") == pytest.approx(1.2)
    assert row.spread("p50_s") == (1.0, 5.0)
    assert row.value("addon", "p50_s") == 5.0


@each(
    ("cell", "bare", "addon", "missed"),
    [
        (Cell(SMALL_BYTES, True, 1, 4), 1.0, 0.7, 0),
        (Cell(SMALL_BYTES, True, 1, 4), 1.0, 0.82, 1),  # processor time
        (Cell(SMALL_BYTES, True, 1, 4), 1.0, 1.0, 4),
        (Cell(SMALL_BYTES, False, 20, 4), 1.0, 0.7, 2),  # p50 and throughput: more is asked of many connections
        (
            Cell(SMALL_BYTES, True, 20, 4, interval_ms=20),
            1.0,
            0.95,
            2,
        ),  # first chunk, processor time; p50 is the pace's
    ],
)
def test_what_misses_its_goal_is_marked(cell, bare, addon, missed):
    table = report.rows_table([Row(cell, rounds((bare, addon)))])
    assert table.count("**!** ") == missed


def test_a_timing_tells_median_mean_and_the_worst():
    seen = Timing.of([1.0, 2.0, 6.0])
    assert (seen.median_s, seen.mean_s, seen.max_s) == (2.0, 3.0, 6.0)


@each("size_bytes", [1_000, 30_000, 600_000])
def test_a_body_has_about_the_size_that_was_asked_for(size_bytes):
    body = conversation(size_bytes, streamed=True)
    assert abs(len(body) - size_bytes) < size_bytes * 0.1
    assert json.loads(body)["stream"] is True
    assert body == conversation(size_bytes, streamed=True)


@each("request_of", [gemini_request, converse_request])
def test_a_request_of_another_format_has_its_size_too(request_of):
    body = request_of(SMALL_BYTES)
    assert abs(len(body) - SMALL_BYTES) < SMALL_BYTES * 0.1
    assert body == request_of(SMALL_BYTES)


def test_the_next_turn_continues_the_conversation():
    body = conversation(30_000, streamed=False)
    before, after = json.loads(body)["messages"], json.loads(next_turn(body, "done", 500))["messages"]
    assert after[: len(before)] == before
    assert [message["role"] for message in after[len(before) :]] == ["assistant", "user"]


ASKED = Asked("provider.test", SMALL_BYTES, streamed=True)


class Transport:
    def __init__(self):
        self.written = b""

    def write(self, data):
        self.written += data


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", id="chunked"),
    ],
)
def test_the_client_sees_the_end_of_an_answer_wherever_it_is_cut(answer):
    for cut in range(1, len(answer)):
        connection, done = Connection(), []
        connection.on_done = lambda _, status, first_s, latency_s, done=done: done.append((status, first_s, latency_s))
        connection.connection_made(Transport())
        connection.ask(ASKED, b"bench-00000007")
        assert b"x-session-id: bench-00000007\r\n" in connection.transport.written
        assert connection.transport.written.endswith(ASKED.body)
        connection.data_received(answer[:cut])
        assert done == []
        connection.data_received(answer[cut:])
        ((status, first_s, latency_s),) = done
        assert status == 200
        assert 0 < first_s <= latency_s


@pytest.mark.skipif(not stack.MEASURABLE, reason="this system does not tell it")
def test_processor_time_is_measured_while_threads_end():
    over = Event()

    def end_threads():
        while not over.is_set():
            thread = Thread(target=int)
            thread.start()
            thread.join()

    threads = [Thread(target=end_threads) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        readings = [stack.cpu_s(os.getpid()) for _ in range(2000)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert readings == sorted(readings), "what an ended thread took is not lost"
    assert 0 < readings[0] < readings[-1]


def test_processor_time_of_a_process_that_has_ended_is_none():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert stack.cpu_s(process.pid) == 0.0


def test_a_lost_connection_is_a_failure_of_its_request_only_while_one_is_open():
    connection, done = Connection(), []
    connection.on_done = lambda _, status, *__: done.append(status)
    connection.connection_made(Transport())
    connection.connection_lost(None)
    assert done == []
    connection.connection_made(Transport())
    connection.ask(ASKED, b"bench-00000007")
    connection.connection_lost(None)
    assert done == [0]


def test_the_client_sees_the_end_of_a_stream_wherever_it_is_cut():
    answer = frame(4, 0, 0, b"") + frame(1, 4, 1, b"\x88" + literal("a", "b" * 300)) + frame(0, 1, 1, b"hello")
    for cut in range(1, len(answer)):
        connection, done = Http2Connection(), []
        connection.on_done = lambda _, status, first_s, latency_s, done=done: done.append((status, first_s, latency_s))
        connection.connection_made(Transport())
        connection.ask(ASKED, b"bench-00000007")
        connection.data_received(answer[:cut])
        assert done == []
        connection.data_received(answer[cut:])
        ((status, first_s, latency_s),) = done
        assert status == 200
        assert 0 < first_s <= latency_s
        *_, (kind, flags, stream, content) = Frames(skip=PREFACE).read(connection.transport.written[:-9])
        assert (kind, flags, stream, content) == (0, 1, 1, ASKED.body)


def test_pieces_tell_how_long_they_were_on_their_way():
    connection = Connection()
    connection.on_done = lambda *_: None
    connection.connection_made(Transport())
    connection.ask(ASKED, b"bench-00000007")
    connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    assert connection.transits_s == []
    connection.data_received(b'13\r\n{"text": " at=0.25"}\r\n')
    (transit_s,) = connection.transits_s
    assert transit_s == pytest.approx(perf_counter() - 0.25, abs=60)
