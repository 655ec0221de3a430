import pytest

from hivemind_addon.tools.history import history
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.reader import JournalReader
from tests.proxy.journal.book import NOON, POOL, journal_with


def fill(book):
    book.run(1, began=NOON - 3600, seen=NOON + 500)
    book.run(2, began=NOON + 600, seen=NOON + 700)
    book.ticket("3f9c01ab2e", task="nightly-1", idempotency_key="key-1", arrived=NOON)
    book.attempt("3f9c01ab2e", 1, NOON + 1, "overloaded", retry_at=NOON + 12, retry_reason="529", tokens=5)
    book.attempt("3f9c01ab2e", 2, NOON + 12)
    book.wait("3f9c01ab2e", NOON)
    book.wait("3f9c01ab2e", NOON + 10, "backing off")
    book.happening("PersonActed", NOON + 3, "moved to the front", ticket="3f9c01ab2e")
    book.ticket("3f9c77ab2e", task="nightly-1", idempotency_key="key-1", arrived=NOON + 20, end="")
    book.attempt("3f9c77ab2e", 1, NOON + 21, "")
    book.ticket("aa00000000", arrived=NOON + 640, end="", run=2)
    book.attempt("aa00000000", 1, NOON + 641, "")
    book.add(
        "limit", run=1, at=NOON, pool=POOL, meter="requests", kind="bucket", limit=50, window_s=60, dimension="requests"
    )
    book.add("limit", run=2, at=NOON + 9, pool="api.openai.com/k/g", meter="x", kind="window", limit=5, dimension="")
    book.happening("BudgetSpent", NOON + 4, "agent ann has spent its budget", pool="")
    book.happening("PersonActed", NOON + 5, "agent ann: budget reset (by a person)", pool="")
    book.happening("PersonActed", NOON + 6, "paused", pool="")


@pytest.fixture
def journal(tmp_path):
    with JournalReader(journal_with(tmp_path / "journal.db", fill)) as reader:
        yield reader


def test_the_newest_requests_with_what_they_have_used(journal):
    newest, _, oldest = history.requests(journal, RequestFilter(), 10)
    assert (newest.id, newest.end, newest.tokens_in) == ("aa00000000", "", 0)
    assert (oldest.tokens_in, oldest.tokens_cached, oldest.tokens_out) == (1405, 400, 100)
    assert (oldest.tokens, oldest.micro_usd) == (1505, 30_000)
    assert len(history.requests(journal, RequestFilter(), 1)) == 1


def test_what_a_dead_proxy_has_left_open_is_lost(journal):
    """The next proxy writes so when it starts; somebody may ask before."""
    [cut_off] = history.requests(journal, RequestFilter(Span(NOON + 20, NOON + 21)), 10)
    assert cut_off.end == "lost"
    [one] = history.biographies(journal, [cut_off])
    assert [attempt.outcome for attempt in one.attempts] == ["lost"]


def test_what_an_orphaned_journal_has_left_open_is_lost_too(tmp_path):
    path = journal_with(tmp_path / "journal.db", fill)
    path.with_name("journal.db.lock").touch()
    with JournalReader(path) as journal:
        assert history.requests(journal, RequestFilter(), 1)[0].end == "lost"


def test_a_request_is_found_by_each_of_its_names(journal):
    for name, what, ids in (
        ("3f9c01ab2e", "request", ["3f9c01ab2e"]),
        ("3f9c0", "request", ["3f9c01ab2e"]),
        ("nightly-1", "task", ["3f9c01ab2e", "3f9c77ab2e"]),
        ("key-1", "Idempotency-Key", ["3f9c01ab2e", "3f9c77ab2e"]),
    ):
        found = history.find(journal, name, 10)
        assert (found.what, [ticket.id for ticket in found.tickets]) == (what, ids), name
        assert not found.has_more, name


def test_of_many_the_newest_are_told(journal):
    found = history.find(journal, "nightly-1", 1)
    assert [ticket.id for ticket in found.tickets] == ["3f9c77ab2e"]
    assert found.has_more


def test_what_begins_alike_is_suggested(journal):
    for name, alike in (
        ("3f9c", ("3f9c01ab2e", "3f9c77ab2e")),
        ("3f9c01ab2f", ("3f9c01ab2e",)),
        ("nightly-2", ("nightly-1",)),
        ("zz", ()),
        ("", ()),
        ("a%", ()),
    ):
        found = history.find(journal, name, 10)
        assert not found.what, name
        assert found.alike == alike, name


def test_a_biography_has_all_that_belongs_to_a_request(journal):
    found = history.find(journal, "nightly-1", 10)
    first, second = history.biographies(journal, found.tickets)
    assert first.run is not None
    assert first.run.id == 1
    assert [attempt.attempt for attempt in first.attempts] == [1, 2]
    assert [wait.reason for wait in first.waits] == ["rate limit", "backing off"]
    assert [one.text for one in first.happenings] == ["moved to the front"]
    assert (second.ticket.id, len(second.attempts), second.waits) == ("3f9c77ab2e", 1, ())


def test_runs_limits_and_what_was_done_to_budgets(journal):
    assert [run.id for run in history.runs(journal)] == [1, 2]
    assert [run.id for run in history.runs(journal, Span(NOON + 550))] == [2]
    assert [one.meter for one in history.limits(journal, "", Span())] == ["requests", "x"]
    assert [one.meter for one in history.limits(journal, "api.openai.com", Span())] == ["x"]
    assert [one.meter for one in history.limits(journal, "", Span(until=NOON + 9))] == ["requests"]
    told = history.budget_changes(journal, Span())
    assert [one.text for one in told] == ["agent ann has spent its budget", "agent ann: budget reset (by a person)"]
