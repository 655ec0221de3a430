from types import SimpleNamespace

import pytest

from hivemind_addon.tools.history.filters import Span
from hivemind_addon.tools.history.incident_history import read_aftermath, read_incidents, read_timeline
from hivemind_addon.tools.history.incidents import IncidentKind
from hivemind_addon.tools.history.reader import JournalReader
from tests.proxy.journal.book import NOON, POOL, journal_with

OTHER = "api.openai.com/k/gpt"


def fill(book):
    """A provider that was down for a minute, two hours after a guard trip; another provider that was well."""
    book.run(seen=NOON + 7200)
    book.ticket("g1", arrived=NOON - 7200)
    book.happening("GuardTripped", NOON - 7200, "guard trip in settle: KeyError", pool="", ticket="g1")
    book.ticket("1", arrived=NOON - 5, ended=NOON + 70, attempts=2)
    book.attempt("1", 1, NOON - 4, "overloaded", took_s=3, reason="529 overloaded_error", tokens=7, micro_usd=70)
    book.wait("1", NOON + 1, "provider down")
    book.attempt("1", 2, NOON + 61)
    book.ticket("2", arrived=NOON - 3, end="gave up", ended=NOON + 20, attempts=1)
    book.attempt("2", 1, NOON - 2, "failed", took_s=1, reason="cut", tokens=5, micro_usd=50)
    book.ticket("3", arrived=NOON + 10, end="lost", ended=None, attempts=1)
    book.attempt("3", 1, NOON + 11, "lost", ended=None, tokens=0)
    book.ticket("4", arrived=NOON + 5, pool=OTHER)
    book.attempt("4", 1, NOON + 6, "failed", took_s=1, reason="cut")
    book.ticket("5", arrived=NOON + 1000)
    book.breaker("open", NOON)
    book.happening("ConcurrencyChanged", NOON + 1, f"{POOL}: concurrency limit 3 (x)")
    book.breaker("half-open", NOON + 59, before="open")
    book.breaker("closed", NOON + 60, "200", before="half-open")


@pytest.fixture
def journal(tmp_path):
    with JournalReader(journal_with(tmp_path / "journal.db", fill)) as reader:
        yield reader


def test_incidents_of_a_span(journal):
    trip, outage = read_incidents(journal, Span(), NOON + 7200)
    assert (trip.pool, trip.kinds) == (POOL, (IncidentKind.GUARD,))
    assert (outage.began, outage.ended) == (NOON, NOON + 60)
    assert read_incidents(journal, Span(NOON), NOON + 7200) == [outage]
    assert read_incidents(journal, Span(until=NOON), NOON + 7200) == [trip]


def test_what_an_outage_did_to_the_requests_of_its_time(journal):
    *_, outage = read_incidents(journal, Span(), NOON + 7200)
    after = SimpleNamespace(**read_aftermath(journal, outage))
    assert (after.requests, after.waited) == (3, 1)
    assert (after.delivered, after.gave_up, after.lost, after.unfinished) == (1, 1, 1, 0)
    assert after.failed_attempts == 3
    assert after.reasons == {"529 overloaded_error": 1, "cut": 1, "lost": 1}
    assert (after.retried, after.rescued) == (1, 1)
    # What is lost may have been billed: it counts with what was expected.
    assert (after.tokens, after.micro_usd) == (12 + 2000, 120 + 20_000)


def test_the_timeline_has_what_matters(journal):
    *_, outage = read_incidents(journal, Span(), NOON + 7200)
    assert [line.text for line in read_timeline(journal, outage, 40)] == [
        "breaker open (529 overloaded_error)",
        "breaker half-open (529 overloaded_error)",
        "breaker closed (200)",
    ]


def test_failures_in_a_row_are_told_though_no_breaker_opened(tmp_path):
    """One session's failures may be its own; they are an incident of its all the same."""

    def failing(book):
        book.run(seen=NOON + 7200)
        for number in range(12):
            at = NOON + 5 * number
            book.ticket(f"1{number:02}", arrived=at, end="gave up", ended=at + 2)
            book.attempt(f"1{number:02}", 1, at, "failed", took_s=1, reason="500 api_error")
        book.ticket("200", arrived=NOON + 58)
        book.attempt("200", 1, NOON + 58, took_s=4)
        book.ticket("300", arrived=NOON + 20, pool=OTHER)
        book.attempt("300", 1, NOON + 20, took_s=4)  # another pool's answer changes nothing

    with JournalReader(journal_with(tmp_path / "journal.db", failing)) as journal:
        [one] = read_incidents(journal, Span(), NOON + 7200)
        assert (one.kinds, one.began, one.ended) == ((IncidentKind.FAILURES,), NOON + 1, NOON + 62)
        assert one.ending == "an attempt was answered"
        assert read_aftermath(journal, one)["reasons"] == {"500 api_error": 12}
