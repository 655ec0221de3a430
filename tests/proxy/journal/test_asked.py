import pytest

from hivemind_addon.tools.history.filters import RequestFilter, Span, is_broad
from hivemind_addon.tools.history.history import requests
from hivemind_addon.tools.history.reader import JournalReader
from tests.proxy.journal.book import NOON, journal_with


@pytest.fixture
def journal(tmp_path):
    def fill(book):
        book.run()
        book.ticket("1", agent="ann", arrived=NOON, task="t-1")
        book.ticket("2", agent="bob", arrived=NOON + 50, end="", session="s-2")
        book.ticket("3", agent="b[o]b", arrived=NOON + 100, end="gave up", pool="api.openai.com/k/gpt", task="t-2")

    with JournalReader(journal_with(tmp_path / "journal.db", fill)) as reader:
        yield reader


def test_which_requests_are_meant(journal):
    cases = (
        (RequestFilter(), "321"),
        (RequestFilter(agent="bob"), "2"),
        (RequestFilter(agent="b*"), "32"),
        (RequestFilter(agent="[!b]*"), "1"),
        (RequestFilter(agent="b[o]b"), "32"),
        (RequestFilter(agent="?ob"), "2"),
        (RequestFilter(pool="api.openai.com"), "3"),
        (RequestFilter(pool="api.openai.com/k/gpt"), "3"),
        (RequestFilter(pool="*/opus"), "21"),
        (RequestFilter(task="t-*"), "31"),
        (RequestFilter(task="t-1"), "1"),
        (RequestFilter(task="*"), "31"),
        (RequestFilter(session="s-2"), "2"),
        (RequestFilter(end="open"), "2"),
        (RequestFilter(end="gave up"), "3"),
        (RequestFilter(Span(NOON + 50)), "32"),
        (RequestFilter(Span(until=NOON + 50)), "1"),
        (RequestFilter(Span(NOON + 1, NOON + 51), agent="bob"), "2"),
        (RequestFilter(Span(NOON + 1, NOON + 51), pool="*/opus", end="open"), "2"),
        (RequestFilter(agent="' OR 1=1 --"), ""),
    )
    assert [
        (asked, ids) for asked, ids in cases if "".join(ticket.id for ticket in requests(journal, asked, 10)) != ids
    ] == []


def test_much_of_a_journal_is_read_as_it_lies_on_the_disk(journal):
    cases = (
        (RequestFilter(), True),
        (RequestFilter(agent="b*"), True),
        (RequestFilter(agent="bob"), False),
        (RequestFilter(task="t-1"), False),
        (RequestFilter(Span(NOON + 50)), True),
        (RequestFilter(Span(NOON + 95)), False),
        (RequestFilter(Span(NOON + 1000)), False),
    )
    assert [(asked, is_it) for asked, is_it in cases if is_broad(journal, asked) is not is_it] == []


def test_of_an_empty_journal_nothing_is_much(tmp_path):
    with JournalReader(journal_with(tmp_path / "journal.db", lambda book: book.run())) as journal:
        assert not is_broad(journal, RequestFilter())
