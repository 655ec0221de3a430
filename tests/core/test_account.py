"""One account: whose limits count, and when its period begins and ends."""

import pytest

from hivemind_addon.api.spend import AccountState, Budget, Period, Scope, Spend
from hivemind_addon.proxy.core.budget import Account

KEY = (Scope.AGENT, "a", Period.HOUR)


def limit(tokens):
    return Budget(*KEY, tokens=tokens)


@pytest.fixture
def account():
    return Account(KEY, 100.0)


def test_without_a_word_from_anybody_it_limits_nothing(account):
    assert account.budget == Budget(*KEY)
    assert account.balances == []


def test_a_persons_word_counts_before_the_files_and_the_files_before_what_was_left(account):
    account.take_over(AccountState(limit(10), 0.0, Spend(), Spend()), 100.0)
    assert account.budget.tokens == 10
    account.file(limit(20))
    assert account.budget.tokens == 20
    account.give(limit(30))
    assert account.budget.tokens == 30
    account.give(None)
    assert account.budget.tokens == 20


def test_what_was_left_counts_no_more_once_somebody_has_said_what_does(account):
    account.take_over(AccountState(limit(10), 0.0, Spend(), Spend()), 100.0)
    account.give(limit(30))
    account.give(None)
    assert account.budget.tokens is None


def test_what_is_added_raises_only_what_is_limited_and_goes_with_its_period(account):
    account.file(limit(10))
    account.added += Spend(5, 7)
    assert account.budget == limit(15)
    assert not account.renew(3699.9)
    assert account.view(3700.0).budget == limit(10)
    assert account.renew(3700.0)
    assert account.budget == limit(10)


def test_its_period_begins_with_the_first_reservation_after_its_end(account):
    account.file(limit(10))
    assert account.view(500.0).renews_in_s == 3600.0
    account.set_aside(Spend(3), 500.0)
    assert account.view(600.0).renews_in_s == 3500.0
    account.settle(Spend(3), Spend(4))
    assert account.view(5000.0).spent == Spend()
    account.renew(5000.0)
    account.set_aside(Spend(3), 6000.0)
    assert account.view(6000.0).renews_in_s == 3600.0


def test_a_period_that_ends_while_attempts_run_begins_anew_at_once(account):
    account.file(limit(10))
    account.set_aside(Spend(3), 100.0)
    assert account.renew(3700.0)
    assert account.view(3800.0).renews_in_s == 3500.0
    account.settle(Spend(3), Spend(4))
    assert (account.spent, account.reserved) == (Spend(4), Spend())


def test_what_is_told_of_is_most_of_it_and_all_of_it(account):
    account.file(Budget(*KEY, tokens=100, micro_usd=1000))
    account.spent = Spend(85, 849)
    assert account.percents() == {"tokens": 85, "micro_usd": 0}
    account.spent = Spend(100, 2000)
    assert account.percents() == {"tokens": 100, "micro_usd": 100}
