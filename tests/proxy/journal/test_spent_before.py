from contextlib import closing

import pytest

from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.proxy.journal.spent_before import spent_before
from tests.proxy.journal.book import NOON, Book

HOUR_S = 3600.0


@pytest.fixture
def book(tmp_path):
    with closing(Book(tmp_path / "journal.db")) as made:
        yield made


def before(book, per=Period.DAY, *, scope=Scope.AGENT, name="ann", since=float("-inf"), until=NOON + HOUR_S, port=0):
    return spent_before(book.connection, Budget(scope, name, per), since=since, until=until, port=port)


def spend(book, name, began, *, agent="ann", group="", run=1, unpriced=False, **attempt):
    book.ticket(name, agent=agent, arrived=began, run=run, group=group, unpriced=unpriced)
    book.attempt(name, began=began, **attempt)


def test_who_has_spent_nothing_begins_with_nothing(book):
    assert before(book) is None


def test_what_a_holder_spent_within_the_period_is_summed(book):
    book.run()
    spend(book, "t1", NOON, group="reviewers")
    spend(book, "t2", NOON + 60, agent="bob", group="reviewers")
    spend(book, "t3", NOON + 120, outcome="failed", tokens=7, micro_usd=3)
    ann = before(book)
    assert (ann.began, ann.spent) == (NOON, Spend(1507, 30_003, 1))
    assert before(book, scope=Scope.GROUP, name="reviewers").spent == Spend(3000, 60_000, 2)
    assert before(book, scope=Scope.EVERYONE, name="").spent == Spend(3007, 60_003, 2)


def test_only_what_began_within_the_periods_length_counts(book):
    book.run()
    spend(book, "old", NOON - 2 * HOUR_S)
    spend(book, "new", NOON + 60)
    assert before(book, Period.HOUR).began == NOON + 60
    assert before(book, Period.DAY).spent == Spend(3000, 60_000, 2)
    assert before(book, Period.DAY, since=NOON).spent == Spend(1500, 30_000, 1), "the rest was of a period that is over"


def test_what_runs_is_left_to_the_account_and_what_was_lost_counts_as_expected(book):
    book.run()
    spend(book, "runs", NOON, outcome="")
    spend(book, "ends later", NOON, took_s=2 * HOUR_S)
    spend(book, "lost", NOON, outcome="lost", ended=None)
    assert before(book).spent == Spend(2000, 20_000, 1)


def test_what_had_no_price_is_told_apart(book):
    book.run()
    spend(book, "priced", NOON)
    spend(book, "unpriced", NOON, unpriced=True, micro_usd=0)
    spend(book, "lost", NOON, unpriced=True, outcome="lost", ended=None, expected_micro_usd=0)
    assert before(book).spent == Spend(5000, 30_000, 3, unpriced_tokens=3500)


def test_a_run_goes_on_over_deaths_and_short_breaks_and_no_longer_ones(book):
    book.run(1, NOON - 9 * HOUR_S, ended=NOON - 8 * HOUR_S)
    book.run(2, NOON - 4 * HOUR_S, ended=NOON - 3 * HOUR_S)  # after a long break
    book.run(3, NOON - 2.5 * HOUR_S)  # soon, and then it died
    book.run(4, NOON - HOUR_S)
    for run in (1, 2, 3, 4):
        spend(
            book,
            f"t{run}",
            {1: NOON - 8.5 * HOUR_S, 2: NOON - 3.5 * HOUR_S, 3: NOON - 2 * HOUR_S, 4: NOON}[run],
            run=run,
        )
    assert before(book, Period.RUN).spent == Spend(4500, 90_000, 3)
    assert before(book, Period.RUN).began == NOON - 3.5 * HOUR_S


def test_only_what_went_through_its_own_port_counts_in_a_budget_per_run(book):
    book.run(1, NOON - 60, port=8080)
    book.run(2, NOON, port=9090)
    spend(book, "there", NOON - 30, run=1)
    spend(book, "here", NOON + 1, run=2)
    assert before(book, Period.RUN, port=9090).spent == Spend(1500, 30_000, 1)
    assert before(book, Period.DAY, port=9090).spent == Spend(3000, 60_000, 2)
