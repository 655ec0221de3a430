"""A real scheduler's events, written by the real writer's parts, and asked: the two halves speak of the same things."""

import fcntl
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from hivemind_addon.kernel.values.command import AddBudget, ResetBudget, SetBudget, SetPriority
from hivemind_addon.kernel.values.events import AttemptEnded
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.kernel.values.ticket import Demand, Priority, Usage
from hivemind_addon.proxy.api.replies import in_words
from hivemind_addon.proxy.journal.file import JournalFile
from hivemind_addon.proxy.journal.rows import Rows
from hivemind_addon.proxy.journal.runs import begin, end, seen
from hivemind_addon.proxy.record.history import Histories
from hivemind_addon.proxy.record.stats import Stats
from hivemind_addon.proxy.record.sums import Sums
from hivemind_addon.tools.history import history, sums
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.incident_history import read_aftermath, read_incidents, read_timeline
from hivemind_addon.tools.history.incidents import IncidentKind
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.verdict import verdict
from tests.kernel.samples import CANCELLED, CUT, FAILED, SUCCESS, THROTTLED, Bench, brittle, requests_reading, ticket

NOON = 1_767_268_800.0


@pytest.fixture
def journal(tmp_path):
    """Two sessions fail until the breaker opens; one is saved by the probe, one was cut before, one is left in flight."""
    bench = Bench(settings=brittle(1))  # a session counts for half of it at most
    bench.submit("cut")
    bench.observe("cut", requests_reading(limit=50, remaining=49, reset_in_s=60))
    bench.settle("cut", CUT)
    while "cut" not in bench.running:
        bench.advance_to_wakeup()
    bench.settle("cut", usage=Usage(input_tokens=100, output_tokens=10, reported=True))
    bench.advance(100)
    bench.outage("saved", "other")
    while not bench.running:
        bench.advance_to_wakeup()
    for name in list(bench.running):
        bench.settle(name)
    while bench.scheduler.snapshot(bench.now).pools[0].queued:
        bench.advance_to_wakeup()
    for name in list(bench.running):
        bench.settle(name)
    bench.advance(100)
    bench.submit("left")
    for command in (
        SetPriority("left", Priority.LOW),
        SetBudget(Scope.AGENT, "left", Period.DAY, tokens=100),
        AddBudget(Scope.AGENT, "left", tokens=50, by="lead"),
        ResetBudget(Scope.AGENT, "left"),
        SetBudget(Scope.AGENT, "left", Period.DAY),
    ):
        assert bench.scheduler.command(command, bench.now).done
    bench.events.extend(bench.scheduler.drain_events())

    file = JournalFile(tmp_path / "journal.db", wall=NOON, told=pytest.fail)
    rows = Rows()
    rows.begin(begin(file.connection, pid=7, version="1", wall=NOON, goes_on=False))
    for event in map(in_words, bench.events):
        rows.take(event, NOON + event.at)
    file.write([*rows.batches(), seen(rows.run, NOON + bench.now, listens=True)])
    yield file
    file.close()


def told(journal: JournalReader, name: str) -> str:
    [one] = history.biographies(journal, history.find(journal, name, 1).tickets)
    return verdict([one.ticket], one.attempts)


def test_did_it_run(journal):
    with JournalReader(journal.path) as reader:
        assert told(reader, "cut") == "ran once and may have run once more; attempt 1: cut"
        assert told(reader, "saved") == "ran once; 1 attempt failed without running"
        assert told(reader, "left") == "runs now"


def test_what_was_done_to_budgets_is_told_with_who_asked(journal):
    with JournalReader(journal.path) as reader:
        assert [one.text for one in history.budget_changes(reader, Span())] == [
            "budget: agent left may spend 100 tokens per day (by a person)",
            "budget: 50 tokens added to agent left (by agent lead)",
            "budget: agent left begins anew (by a person)",
            "budget: agent left: what the agents file says per day counts again (by a person)",
        ]


def test_who_was_tried_again_and_what_it_cost(journal):
    with JournalReader(journal.path) as reader:
        assert {row["reason"]: row["retries"] for row in sums.retry_reasons(reader, RequestFilter())} == {
            "500": 2,
            "cut": 1,
        }
        [cost] = sums.costs(reader, RequestFilter(agent="cut"), sums.GroupBy.AGENT)
        columns = ("requests", "attempts", "retries", "tokens_in", "tokens_out")
        assert [cost[column] for column in columns] == [1, 2, 1, 100, 10]
        assert [one.meter for one in history.limits(reader, "", Span())] == ["requests"]


def test_the_outage_is_an_incident(journal):
    with JournalReader(journal.path) as reader:
        [outage] = read_incidents(reader, Span(), NOON + 1000)
        assert outage.kinds == (IncidentKind.BREAKER,)
        assert outage.ending == "the provider answered again"
        after = read_aftermath(reader, outage)
        assert (after["requests"], after["reasons"], after["rescued"]) == (2, {"500": 2}, 2)
        assert "breaker open" in read_timeline(reader, outage, 40)[0].text


def test_what_a_death_leaves_is_lost_at_once_and_after_the_next_start_alike(journal):
    journal.connection.close()
    fcntl.flock(journal._lock, fcntl.LOCK_UN)
    with JournalReader(journal.path) as reader:
        assert told(reader, "left") == "may have run once; its proxy died while attempt 1 was under way"
        assert [one.kinds for one in read_incidents(reader, Span(), NOON + 1000)][-1] == (IncidentKind.DEATH,)
    again = JournalFile(journal.path, wall=NOON + 500, told=pytest.fail)
    run = begin(again.connection, pid=8, version="1", wall=NOON + 500, goes_on=True)
    with JournalReader(journal.path) as reader:
        assert told(reader, "left") == "may have run once; its proxy died while attempt 1 was under way"
        [cost] = sums.costs(reader, RequestFilter(agent="left"), sums.GroupBy.AGENT)
        assert (cost["lost"], cost["unfinished"]) == (1, 0)
    again.write(end(run, NOON + 600, "its proxy ended"))
    with JournalReader(journal.path) as reader:
        assert [run.ended for run in history.runs(reader)] == [None, NOON + 600]
    again.close()


numbers = st.integers(0, 10**6)
ends = st.tuples(
    st.sampled_from([SUCCESS, CUT, CANCELLED, FAILED, THROTTLED]),
    st.none() | st.builds(Usage, numbers, numbers, numbers, numbers, reported=st.booleans()),
    st.sampled_from([None, Demand(requests=0)]),
)


@given(st.lists(st.tuples(numbers, numbers, numbers, ends), min_size=1, max_size=6))
def test_input_and_output_are_the_tokens_in_every_view(tmp_path_factory, requests):
    """However attempts end, and whatever is known of them."""
    bench, sums_, histories, rows = Bench(), Sums(), Histories(), Rows()
    whole = Budget(Scope.EVERYONE, "", Period.RUN, tokens=10**9)
    for number, (tokens, output, cached, (outcome, usage, charged)) in enumerate(requests):
        name = f"t{number}"
        one = structs.replace(
            ticket(name, session=name, at=bench.now, patience_s=10_000),
            budgets=(whole,),
            expected=Spend(tokens, unpriced_tokens=tokens),
            demand=Demand(output_tokens=output),
            cached_tokens=cached,
        )
        bench.scheduler.submit(one, bench.settings, bench.now)
        bench.poll()
        while name not in bench.running:
            bench.advance_to_wakeup()
        bench.settle(name, outcome, usage=usage, charged=charged, client_saw_bytes=True)
    attempts = bench.of(AttemptEnded)
    assert len(attempts) == len(requests)
    booked = [one.spend.tokens for one in attempts]
    assert [0 if one.usage is None else _all(one.usage) for one in attempts] == booked

    with closing(JournalFile(tmp_path_factory.mktemp("journal") / "journal.db", wall=NOON, told=pytest.fail)) as file:
        rows.begin(begin(file.connection, pid=7, version="1", wall=NOON, goes_on=False))
        for event in bench.events:
            sums_(event)
            histories(event)
        for event in map(in_words, bench.events):
            rows.take(event, NOON + event.at)
        file.write([*rows.batches(), seen(rows.run, NOON + bench.now, listens=True)])
        with JournalReader(file.path) as reader:
            [cost] = sums.costs(reader, RequestFilter(), sums.GroupBy.POOL)
            newest = history.requests(reader, RequestFilter(), 10)
    view, snapshot = Stats(sums_).view(bench.now), bench.scheduler.snapshot(bench.now)
    assert [one.tokens_in + one.tokens_out for one in reversed(newest)] == [one.tokens for one in reversed(newest)]
    assert sorted(one.tokens for one in newest) == sorted(booked)
    assert [_all(histories.of(f"t{number}").usage) for number in range(len(requests))] == booked
    totals = {
        "journal": cost["tokens_in"] + cost["tokens_out"],
        "journal's tokens": cost["tokens"],
        "sessions": sum(_all(one.usage) for one in view.sessions),
        "pools": sum(_all(one.usage) for one in view.pools),
        "tokens of pools": sum(one.tokens for one in view.pools),
        "counters": snapshot.counters.input_tokens + snapshot.counters.output_tokens,
        "budget": sum(one.spent.tokens for one in snapshot.budgets),
    }
    assert set(totals.values()) == {sum(booked)}, totals


def _all(usage: Usage) -> int:
    return usage.total_input_tokens + usage.output_tokens
