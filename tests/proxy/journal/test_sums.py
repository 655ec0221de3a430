import time
from types import SimpleNamespace

import pytest

from hivemind_addon.tools.history import sums
from hivemind_addon.tools.history.filters import RequestFilter, Span
from hivemind_addon.tools.history.reader import JournalReader
from hivemind_addon.tools.history.sums import GroupBy
from tests.proxy.journal.book import NOON, POOL, journal_with


def fill(book):
    book.run()
    book.ticket("1", waited_s=2.5, task="t", arrived=NOON)
    book.attempt("1", 1, NOON + 1, "overloaded", retry_at=NOON + 12, retry_reason="529 overloaded_error", tokens=10)
    book.attempt("1", 2, NOON + 12, "throttled", retry_at=NOON + 33, retry_reason="429 rate_limit_error")
    book.attempt("1", 3, NOON + 33)
    book.ticket("2", waited_s=0.5, arrived=NOON + 50, end="gave up")
    book.attempt("2", 1, NOON + 51, "overloaded", retry_at=NOON + 70, retry_reason="529 overloaded_error")
    book.attempt("2", 2, NOON + 70, "overloaded")
    book.ticket("3", agent="bob", arrived=NOON + 86_400, model="gpt-5", group="g", session="s", lineage="l")
    book.attempt("3", 1, NOON + 86_401)
    for number, end in enumerate(("refused", "lost", "shed", "cancelled", "")):
        book.ticket(f"9{number}", agent="carl", arrived=NOON, end=end)


@pytest.fixture
def journal(tmp_path):
    with JournalReader(journal_with(tmp_path / "journal.db", fill)) as reader:
        yield reader


def costs(*question) -> list[SimpleNamespace]:
    return [SimpleNamespace(**row) for row in sums.costs(*question)]


def test_what_each_agent_cost(journal):
    ann, bob, carl = costs(journal, RequestFilter(), GroupBy.AGENT)
    assert (ann.name, ann.requests, ann.delivered, ann.gave_up, ann.lost) == ("ann", 2, 1, 1, 0)
    assert (ann.attempts, ann.retries, ann.waited_s) == (5, 3, 3.0)
    assert (ann.tokens_in, ann.tokens_cached, ann.tokens_out) == (1410, 400, 100)
    assert (ann.tokens, ann.micro_usd) == (1510, 30_000)
    assert (bob.requests, bob.attempts, bob.retries) == (1, 1, 0)
    assert (carl.requests, carl.delivered, carl.attempts) == (5, 0, 0)


def test_a_refusal_is_no_loss(journal):
    """Each end is counted under its own name."""
    [carl] = costs(journal, RequestFilter(agent="carl"), GroupBy.AGENT)
    ends = (carl.gave_up, carl.refused, carl.lost, carl.shed, carl.cancelled, carl.unfinished)
    assert ends == (0, 1, 1, 1, 1, 1)
    [ann] = costs(journal, RequestFilter(agent="ann"), GroupBy.AGENT)
    assert (ann.gave_up, ann.refused) == (1, 0)


def test_the_total_is_the_sum(journal):
    whole = sums.total(sums.costs(journal, RequestFilter(), GroupBy.AGENT))
    assert [whole[name] for name in ("name", "requests", "attempts", "micro_usd")] == ["total", 8, 6, 60_000]
    assert set(sums.total([]).values()) == {"total", 0}


def test_what_is_lost_counts_with_what_was_expected(tmp_path):
    """So do budgets: it may have been billed."""

    def left_open(book):
        book.run(1)
        book.run(2)
        book.ticket("1", end="", run=1)
        book.attempt("1", 1, NOON, "")
        book.ticket("2", end="", run=2)
        book.attempt("2", 1, NOON, "")

    with JournalReader(journal_with(tmp_path / "journal.db", left_open)) as journal:
        [cost] = costs(journal, RequestFilter(), GroupBy.AGENT)
        assert (cost.lost, cost.unfinished, cost.tokens, cost.micro_usd) == (1, 1, 2000, 20_000)


def test_by_whatever_is_asked(journal):
    cases = (
        (GroupBy.GROUP, {"", "g"}),
        (GroupBy.TASK, {"", "t"}),
        (GroupBy.SESSION, {"ann-1", "s", "carl-1"}),
        (GroupBy.LINEAGE, {"ann-1", "l", "carl-1"}),
        (GroupBy.MODEL, {"claude-opus-4-8", "gpt-5"}),
        (GroupBy.POOL, {POOL}),
    )
    assert [
        (by, names) for by, names in cases if {cost.name for cost in costs(journal, RequestFilter(), by)} != names
    ] == []


@pytest.mark.parametrize(
    ("zone", "days"), [("UTC", ["2026-01-01", "2026-01-02"]), ("UTC-14", ["2026-01-02", "2026-01-03"])]
)
def test_days_are_this_machines_and_in_their_order(journal, monkeypatch, zone, days):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert [cost.name for cost in costs(journal, RequestFilter(), GroupBy.DAY)] == days
    finally:
        monkeypatch.undo()
        time.tzset()


def test_attempts_count_where_they_began(journal):
    """A request that came before midnight and ran after it was paid after it."""
    [after] = costs(journal, RequestFilter(Span(NOON + 30, NOON + 40)), GroupBy.AGENT)
    assert (after.requests, after.attempts, after.micro_usd) == (0, 1, 30_000)


def test_the_same_sums_on_every_way_through_the_tables(journal):
    """A glob reads everything as it lies on the disk, a name follows an index."""
    assert costs(journal, RequestFilter(agent="an[n]"), GroupBy.AGENT) == costs(
        journal, RequestFilter(agent="ann"), GroupBy.AGENT
    )


def test_why_requests_were_tried_again(journal):
    assert [tuple(row.values()) for row in sums.retry_reasons(journal, RequestFilter())] == [
        ("529 overloaded_error", 2, 2, 1),
        ("429 rate_limit_error", 1, 1, 1),
    ]
    assert sums.retry_reasons(journal, RequestFilter(agent="bob")) == []


def test_which_requests_were_tried_again(journal):
    second, first = (SimpleNamespace(**row) for row in sums.retried(journal, RequestFilter(), 10))
    assert (second.id, second.end, second.reasons) == ("2", "gave up", "529 overloaded_error")
    assert first.reasons == "529 overloaded_error; 429 rate_limit_error"
    assert (first.tokens, first.micro_usd, first.waited_s) == (10, 0, 2 + 12)
    assert [row["id"] for row in sums.retried(journal, RequestFilter(), 1)] == ["2"]
