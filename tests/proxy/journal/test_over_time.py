from datetime import datetime

import pytest

from hivemind_addon.tools.history import over_time
from hivemind_addon.tools.history.filters import Span
from hivemind_addon.tools.history.over_time import MOST_AGENTS
from hivemind_addon.tools.history.reader import JournalReader
from tests.proxy.journal.book import NOON, journal_with

PART_S = 600.0


@pytest.fixture
def journal(tmp_path):
    def fill(book):
        book.run()
        for number in range(20):
            book.ticket(f"d{number}", arrived=NOON + number, waited_s=float(number))
            book.attempt(f"d{number}", began=NOON + number, micro_usd=0 if number == 19 else 10, tokens=5)
        book.ticket("s", arrived=NOON + PART_S, end="shed", waited_s=300.0)
        book.ticket("g", arrived=NOON + PART_S + 1, end="gave up")
        book.attempt("g", began=NOON + PART_S + 1, outcome="throttled", status=429, tokens=0)
        book.attempt("g", attempt=2, began=NOON + PART_S + 2, outcome="overloaded", status=529, tokens=0)
        book.attempt("g", attempt=3, began=NOON + PART_S + 3, outcome="failed", status=500, tokens=0)
        for number in range(30):
            name = f"a{number}"
            book.ticket(name, agent=name, arrived=NOON + 86_400)
            book.attempt(name, began=NOON + 86_400, micro_usd=1000 * (number + 1), tokens=7)

    with JournalReader(journal_with(tmp_path / "journal.db", fill)) as reader:
        yield reader


def test_requests_attempts_and_waits_are_told_by_parts(journal):
    first, second = over_time.parts(journal, Span(NOON, NOON + 3600), PART_S)
    assert (first.began, first.requests, first.delivered, first.shed, first.failed) == (NOON, 20, 20, 0, 0)
    assert (first.wait_p50_s, first.wait_p95_s) == (9.0, 15.0), "from ten seconds on, within five"
    assert (first.attempts, first.throttled, first.overloaded, first.broken) == (20, 0, 0, 0)
    assert (second.began, second.requests, second.shed, second.failed) == (NOON + PART_S, 2, 1, 1)
    assert (second.attempts, second.throttled, second.overloaded, second.broken) == (3, 1, 1, 1)


def test_costs_are_told_by_agent_and_hour_or_day_whoever_booked_nothing_last(journal):
    (ann,) = over_time.costs(journal, Span(NOON, NOON + 3600), by_day=False)
    assert (ann.began, ann.agent, ann.micro_usd, ann.tokens) == (NOON, "ann", 190, 100)
    days = over_time.costs(journal, Span(), by_day=True)
    began = datetime.fromtimestamp(NOON).replace(hour=0, minute=0, second=0).timestamp()  # noqa: DTZ006 - this machine's
    assert days[0].began == began
    named, others = [one for one in days if one.began > began][:-1], days[-1]
    assert [one.agent for one in named] == [f"a{number}" for number in range(29, 29 - MOST_AGENTS, -1)]
    assert (others.agent, others.micro_usd) == ("", sum(1000 * (number + 1) for number in range(30 - MOST_AGENTS)))
