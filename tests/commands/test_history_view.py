import time

import pytest

from hivemind_addon.proxy.journal.tables import AttemptRow, HappeningRow, TicketRow, WaitRow
from hivemind_addon.tools.commands import history_view as view
from hivemind_addon.tools.history.history import Biography
from hivemind_addon.tools.history.incident_history import Aftermath
from hivemind_addon.tools.history.incidents import Incident, IncidentKind, IncidentLine, Trouble
from hivemind_addon.tools.history.records import RunRecord

NOON = 1_767_268_800.0
RUN = RunRecord(id=1, began=NOON - 60, seen=NOON + 50, ended=None, pid=7, version="1")
TICKET = TicketRow(
    id="3f9c01ab2e",
    run=1,
    task="nightly-1",
    idempotency_key="",
    agent="ann",
    group="reviewers",
    session="s-1",
    parent_session="",
    lineage="s-1",
    pool="api.anthropic.com/key-1/opus",
    host="api.anthropic.com",
    account="key-1",
    model="claude-opus-4-8",
    kind="turn",
    priority="normal",
    streamed=True,
    arrived=NOON,
    admitted=NOON + 1,
    ended=NOON + 22,
    end="delivered",
    reason="200",
    attempts=2,
    waited_s=11.0,
)
FIRST = AttemptRow(
    "3f9c01ab2e",
    1,
    NOON + 1,
    NOON + 2,
    waited_s=1.0,
    in_flight=3,
    outcome="overloaded",
    reason="529 overloaded_error",
    status=529,
    retry_at=NOON + 12,
    retry_reason="529 overloaded_error",
)
SECOND = AttemptRow(
    "3f9c01ab2e",
    2,
    NOON + 12,
    NOON + 22,
    waited_s=10.0,
    in_flight=1,
    outcome="success",
    reason="200",
    status=200,
    input_tokens=1000,
    cache_read_tokens=400,
    cache_write_tokens=0,
    output_tokens=100,
    reported=True,
    tokens=1500,
    micro_usd=30_000,
)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def biography(ticket=TICKET, attempts=(FIRST, SECOND), waits=(), happenings=()) -> Biography:
    return Biography(ticket=ticket, run=RUN, attempts=tuple(attempts), waits=tuple(waits), happenings=tuple(happenings))


def changed(row, **values):
    return type(row)(**{name: getattr(row, name) for name in row.__struct_fields__} | values)


def test_a_request_s_story():
    waits = [WaitRow("3f9c01ab2e", NOON, "rate limit", 4), WaitRow("3f9c01ab2e", NOON + 2, "backing off", 1)]
    front = HappeningRow(
        1, NOON + 3, "PersonActed", "", "3f9c01ab2e", "3f9c01ab2e: moved to the front by a person", "{}"
    )
    assert list(view.biography_lines(biography(waits=waits, happenings=[front]), NOON + 100)) == [
        "3f9c01ab2e ran once; 1 attempt failed without running",
        "",
        "  agent ann of group reviewers, session s-1",
        "  task nightly-1",
        "  claude-opus-4-8 at api.anthropic.com/key-1/opus",
        "  turn, normal priority, streamed",
        "  came 12:00:00, ended after 22 s, waited 11 s, 2 attempts, $0.0300",
        "",
        "  12:00:00       +0  came",
        "  12:00:00       +0  held, place 4: rate limit",
        "  12:00:01      +1s  attempt 1 sent after 1 s, 3 in flight",
        "  12:00:02      +2s  held, place 1: backing off",
        "  12:00:02      +2s  attempt 1: 529 overloaded_error, in 1 s",
        "  12:00:02      +2s  again in 10 s (529 overloaded_error)",
        "  12:00:03      +3s  moved to the front by a person",
        "  12:00:12     +12s  attempt 2 sent after 10 s",
        "  12:00:22     +22s  attempt 2: 200, in 10 s; 1,400 in (400 cached) + 100 out; $0.0300",
        "  12:00:22     +22s  delivered",
    ]


def test_another_day_is_named():
    lines = list(view.biography_lines(biography(), NOON + 86_400))
    assert lines[8:10] == ["  Jan  1", "  12:00:00       +0  came"]


def test_of_a_lost_attempt_nobody_knows_the_end():
    lost = changed(TICKET, end="lost", ended=None, reason="its proxy died", waited_s=0.0)
    attempt = changed(FIRST, outcome="lost", ended=None, retry_at=None, retry_reason="", reason="its proxy died")
    attempt = changed(attempt, tokens=2000, micro_usd=20_000)
    texts = [moment.text for moment in view.story(biography(lost, [attempt]))]
    assert texts == [
        "came",
        "attempt 1 sent after 1 s, 3 in flight",
        "attempt 1: nobody knows its end; booked with $0.0200",
        "its proxy died",
    ]
    assert view.story(biography(lost, [attempt]))[-1].at == RUN.seen
    assert view.summary(biography(lost, [attempt]), NOON) == "came 12:00:00, 1 attempt, $0.0200"


def test_names_out_of_requests_do_not_move_the_cursor():
    evil = changed(TICKET, agent="ann\x1b[2J\r", reason="\x1b[31mred", end="gave up")
    assert not any("\x1b" in line or "\r" in line for line in view.biography_lines(biography(evil), NOON))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"reported": False}, "1,400 in (400 cached) + 100 out, by our count; $0.0300"),
        ({"cache_write_tokens": 7}, "1,407 in (400 cached, 7 written) + 100 out; $0.0300"),
        ({"input_tokens": None, "cache_read_tokens": None, "output_tokens": None}, "$0.0300"),
        (
            {"input_tokens": None, "cache_read_tokens": None, "output_tokens": None, "micro_usd": 0},
            "booked with 1,500 tokens",
        ),
    ],
)
def test_what_an_attempt_used(values, words):
    moments = view.story(biography(attempts=[changed(SECOND, **values)]))
    assert f"attempt 2: 200, in 10 s; {words}" in [moment.text for moment in moments]


def test_a_task_s_requests_are_counted_by_what_became_of_them():
    never = biography(changed(TICKET, end="refused"), [])
    assert view.task_verdict([biography(), biography(), never], has_more=False) == "3 requests: 2 ran once, 1 never ran"
    assert view.task_verdict([never], has_more=True) == "the newest 1 request: 1 never ran"


def test_long_lines_go_on_below_their_text():
    lines = ["", "  12:00:00       +0  " + "word " * 12, "  facts " + "word " * 12, "x" * 70]
    assert list(view.folded(lines, 60)) == [
        "",
        "  12:00:00       +0  word word word word word word word word",
        "                     word word word word",
        "  facts word word word word word word word word word word",
        "    word word",
        "x" * 70,
    ]


def test_reasons_are_counted():
    assert view.reasons_counted("a; b; a") == "2 x a; b"


NOTHING = Aftermath(
    requests=0,
    waited=0,
    failed_attempts=0,
    reasons={},
    retried=0,
    rescued=0,
    delivered=0,
    shed=0,
    gave_up=0,
    refused=0,
    cancelled=0,
    lost=0,
    unfinished=0,
    tokens=0,
    micro_usd=0,
)


def outage(ended: float | None = NOON + 200) -> Incident:
    ending = "" if ended is None else "the provider answered again"
    return Incident("api/k/opus", (Trouble(IncidentKind.BREAKER, "api/k/opus", NOON, ended, "529", ending),))


def test_an_incident():
    reasons = {f"reason {number}": 1 for number in range(10)}
    after = changed(
        NOTHING,
        requests=5,
        waited=3,
        delivered=4,
        gave_up=1,
        failed_attempts=10,
        reasons=reasons,
        retried=3,
        rescued=2,
        tokens=1200,
        micro_usd=2_500_000,
    )
    timeline = [IncidentLine(NOON - 1, "an omen"), IncidentLine(NOON, "breaker open")]
    lines = list(view.incident_lines(outage(), 2, after, timeline, NOON + 300))
    assert lines == [
        "incident 2: provider down at api/k/opus",
        "",
        "  from 12:00:00 to 12:03:20, 3m20s",
        "  ended: the provider answered again",
        "  5 requests in that time, 3 of them waited: 4 delivered, 1 gave up",
        "  10 attempts failed, which cost 1,200 tokens and $2.50:",
        *(f"         1  reason {number}" for number in range(8)),
        "            and 2 other reasons",
        "  of the requests that failed so 3 were tried again, 2 were delivered after all",
        "",
        "  11:59:59      -1s  an omen",
        "  12:00:00       +0  breaker open",
    ]


def test_an_incident_that_is_not_over_and_hurt_nobody():
    lines = list(view.incident_lines(outage(None), 1, NOTHING, [], NOON + 30))
    assert lines[2:] == [
        "  from 12:00:00 and is not over after 30s",
        "  0 requests in that time",
        "  no attempt failed",
        "",
    ]
