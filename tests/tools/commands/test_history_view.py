import time

import pytest

from hivemind_addon.proxy.api.page_questions import StoryLine
from hivemind_addon.proxy.journal.tables import AttemptRow, BudgetRow, HappeningRow, WaitRow
from hivemind_addon.tools.commands import history_view as view
from hivemind_addon.tools.history.history import Biography, RequestRecord, RunRecord, biographies, find
from hivemind_addon.tools.history.incidents import Incident, IncidentKind, Trouble
from hivemind_addon.tools.history.reader import JournalReader
from tests.proxy.journal.book import journal_with

NOON = 1_767_268_800.0
RUN = RunRecord(id=1, began=NOON - 60, seen=NOON + 50, ended=None, pid=7, version="1")
TICKET = RequestRecord(
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
    ticket = changed(ticket, micro_usd=sum(one.micro_usd for one in attempts))
    return Biography(ticket=ticket, run=RUN, attempts=tuple(attempts), waits=tuple(waits), happenings=tuple(happenings))


def changed(row, **values):
    return type(row)(**{name: getattr(row, name) for name in row.__struct_fields__} | values)


WAITS = [WaitRow("3f9c01ab2e", NOON, "rate limit", 4), WaitRow("3f9c01ab2e", NOON + 2, "backing off", 1)]
FRONT = HappeningRow(1, NOON + 3, "PersonActed", "", "3f9c01ab2e", "3f9c01ab2e: moved to the front by a person", "{}")
LOST = changed(TICKET, end="lost", ended=None, reason="its proxy died", waited_s=0.0)
LOST_ATTEMPT = changed(
    FIRST, outcome="lost", ended=None, retry_at=None, retry_reason="", reason="its proxy died", tokens=2000
)
NO_TOKENS = {"input_tokens": None, "cache_read_tokens": None, "output_tokens": None}


def test_stories_of_requests(golden):
    told = {
        "told on the same day": (biography(waits=WAITS, happenings=[FRONT]), NOON + 100),
        "told on another day": (biography(), NOON + 86_400),
        "its proxy died": (biography(LOST, [changed(LOST_ATTEMPT, micro_usd=20_000)]), NOON),
        "names with control characters": (
            biography(changed(TICKET, agent="ann\x1b[2J\r", reason="\x1b[31mred", end="gave up")),
            NOON,
        ),
        "tokens that nobody reported": (biography(attempts=[changed(SECOND, reported=False)]), NOON),
        "tokens that were written into the cache": (biography(attempts=[changed(SECOND, cache_write_tokens=7)]), NOON),
        "money without tokens": (biography(attempts=[changed(SECOND, **NO_TOKENS)]), NOON),
        "tokens that were only expected": (biography(attempts=[changed(SECOND, **NO_TOKENS, micro_usd=0)]), NOON),
    }
    parts = [f"# {name}\n\n" + "\n".join(view.biography_lines(*arguments)) for name, arguments in told.items()]
    golden("stories.txt", "\n\n".join(parts))
    assert not any(mark in "".join(parts) for mark in "\x1b\r")


def test_a_lost_request_ends_when_its_proxy_was_last_seen():
    assert view.story(biography(LOST, [LOST_ATTEMPT]))[-1].at == RUN.seen


def test_a_request_as_a_whole(tmp_path):
    def fill(book):
        book.run()
        book.ticket("a1")
        book.attempt("a1", 1, NOON + 1, "throttled", tokens=5, retry_at=NOON + 2, retry_reason="429")
        book.attempt("a1", 2, NOON + 2)
        book.wait("a1")

    with JournalReader(journal_with(tmp_path / "journal.db", fill)) as journal:
        [one] = biographies(journal, find(journal, "a1", 1).tickets)
    whole = view.whole(one)
    assert whole["verdict"] == "ran once; 1 attempt failed without running"
    assert [attempt["fate"] for attempt in whole["tries"]] == ["did not run", "ran"]
    assert (whole["tokens"], whole["tokens_in"], whole["micro_usd"]) == (1505, 1405, 30_000)
    assert whole["waits"][0]["reason"] == "rate limit"


def test_an_account_in_words():
    for limit, words in (
        ((None, 5_000_000), "$5.00"),
        ((1000, None), "1,000 tokens"),
        ((10, 20), "10 tokens, $0.0000"),
        ((0, None), "0 tokens"),
    ):
        row = view.account_row(BudgetRow("everyone", "", "day", 0, 1, *limit, NOON, 0, 0, 0, 0, 0, 0))
        assert (row["holder"], row["limit"], row["spent"]) == ("everyone", words, "")


def test_an_instant_is_there_for_people_and_for_programs():
    assert view.dated({"at": None, "text": "x"}) == {"at": None, "at_iso": None, "text": "x"}
    assert view.dated({"at": NOON}) == {"at": NOON, "at_iso": "2026-01-01T12:00:00.000+00:00"}


def test_a_task_s_requests_are_counted_by_what_became_of_them():
    never = biography(changed(TICKET, end="refused"), [])
    assert view.task_verdict([biography(), biography(), never], has_more=False) == "3 requests: 2 ran once, 1 never ran"
    assert view.task_verdict([never], has_more=True) == "the newest 1 request: 1 never ran"


def test_long_lines_go_on_below_their_text(golden):
    lines = ["", "  12:00:00       +0  " + "word " * 12, "  facts " + "word " * 12, "x" * 70]
    golden("folded.txt", "\n".join(view.folded(lines, 60)))


def test_reasons_are_counted():
    assert view.reasons_counted("a; b; a") == "2 x a; b"


ENDS = ("delivered", "shed", "gave_up", "refused", "cancelled", "lost", "unfinished")
NOTHING = dict.fromkeys((*ENDS, "requests", "waited", "failed_attempts"), 0)


def outage(ended: float | None = NOON + 200) -> Incident:
    ending = "" if ended is None else "the provider answered again"
    return Incident("api/k/opus", (Trouble(IncidentKind.BREAKER, "api/k/opus", NOON, ended, "529", ending),))


def test_incidents(golden):
    after = NOTHING | {"requests": 5, "waited": 3, "delivered": 4, "gave_up": 1, "failed_attempts": 10}
    after |= {"reasons": {f"reason {number}": 1 for number in range(10)}, "retried": 3, "rescued": 2}
    after |= {"tokens": 1200, "micro_usd": 2_500_000}
    timeline = [StoryLine(NOON - 1, "an omen"), StoryLine(NOON, "breaker open")]
    over = view.incident_lines(outage(), 2, after, timeline, NOON + 300)
    not_over = view.incident_lines(outage(None), 1, NOTHING, [], NOON + 30)
    golden("incidents.txt", "\n".join((*over, "", *not_over)))
