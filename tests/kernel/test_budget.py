"""Budgets: the rule, its arithmetic, its events, and what the scheduler makes of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hivemind_addon.kernel.budget import Account, Budgets, actual_spend, actual_usage, spend_of
from hivemind_addon.kernel.overrides import Overrides
from hivemind_addon.kernel.pool import PoolSettings
from hivemind_addon.kernel.values.decision import Admitted, Backoff, Refused, Shed
from hivemind_addon.kernel.values.events import (
    AttemptEnded,
    BudgetBooked,
    BudgetSpent,
    BudgetWarned,
    OddityNoted,
    PriceMissing,
    TicketEnded,
)
from hivemind_addon.kernel.values.spend import AccountState, Budget, Period, Price, Scope, Spend
from hivemind_addon.kernel.values.ticket import AttemptResult, ContractError, Demand, PoolKey, Usage
from tests.kernel.samples import CANCELLED, CUT, FAILED, OVERLOADED, SUCCESS, THROTTLED, Bench, ticket

PRICE = Price(input=3_000_000, cache_write=3_750_000, cache_read=300_000, output=15_000_000)
OTHER_POOL = PoolKey(host="other.test", account="key-1", model_group="m")


def budget(tokens=1000, *, scope=Scope.AGENT, name="a", per=Period.RUN, micro_usd=None):
    return Budget(scope=scope, name=name, per=per, tokens=tokens, micro_usd=micro_usd)


FREE = Price(input=0, cache_write=0, cache_read=0, output=0)


def paid(ticket_id="t1", *budgets, tokens=100, micro_usd=0, price=None, at=0.0, model="m", **more):
    return replace(
        ticket(ticket_id, session=more.pop("session", ticket_id), at=at, **more),
        budgets=budgets or (budget(),),
        expected=Spend(tokens, micro_usd, unpriced_tokens=0 if price else tokens),
        price=price,
        model=model,
    )


def used(tokens):
    return Usage(output_tokens=tokens, reported=True)


class Books:
    def __init__(self, overrides=None):
        self.events = []
        self.booked = []
        self.budgets = Budgets(emit=self.hear, overrides=overrides or Overrides())

    def hear(self, event):
        (self.booked if isinstance(event, BudgetBooked) else self.events).append(event)

    def spend(self, actual, *budgets, now=0.0, **more):
        more.setdefault("price", FREE)
        one = paid("spender", *budgets, **more)
        assert self.budgets.reserve(one, now) is None
        return self.budgets.settle(one, Spend(tokens=actual), now)


class Till(Bench):
    """The bench of the other tests, for tickets with budgets."""

    def __init__(self, **more):
        super().__init__(**more)
        self.refused = []

    def pay(self, *tickets):
        for one in tickets:
            self.scheduler.submit(one, self.settings, self.now)
        return self.poll()

    def poll(self):
        admitted = []
        for decision in self.scheduler.poll(self.now):
            match decision:
                case Admitted(attempt):
                    self.running[attempt.ticket.id] = attempt
                    admitted.append(attempt.ticket.id)
                case Shed():
                    self.shed.append(decision)
                case Refused():
                    self.refused.append(decision)
        self.events.extend(self.scheduler.drain_events())
        return admitted


def test_a_usage_comes_to_all_its_tokens_and_to_money_where_there_is_a_price():
    usage = Usage(input_tokens=10, cache_read_tokens=1000, cache_write_tokens=100, output_tokens=20, reported=True)
    assert spend_of(usage, None) == Spend(tokens=1130, unpriced_tokens=1130)
    assert spend_of(usage, PRICE) == Spend(tokens=1130, micro_usd=30 + 375 + 300 + 300)


def test_an_attempt_takes_what_the_provider_reported_whatever_became_of_it():
    for outcome in (SUCCESS, CANCELLED, CUT, FAILED):
        assert actual_spend(paid(tokens=7), AttemptResult(outcome, used(3), None)) == Spend(tokens=3, unpriced_tokens=3)


def test_an_attempt_of_which_nothing_is_known_takes_what_was_expected_if_it_may_have_been_billed():
    ticket = replace(
        paid(tokens=1031, price=PRICE), demand=Demand(input_tokens=900, output_tokens=100), cached_tokens=300
    )
    for outcome in (SUCCESS, CANCELLED, CUT):
        result = AttemptResult(outcome, None, None)
        assert actual_spend(ticket, result) == ticket.expected
        assert actual_usage(ticket, result) == Usage(631, 300, 0, 100)


def test_an_attempt_takes_the_numbers_that_were_counted_of_it_whatever_became_of_it():
    counted = Usage(input_tokens=12, output_tokens=28)
    for outcome in (SUCCESS, CANCELLED, CUT, FAILED):
        assert actual_spend(paid(tokens=1031, price=PRICE), AttemptResult(outcome, counted, None)) == Spend(
            40, 36 + 420
        )


def test_a_refused_attempt_and_one_that_was_never_sent_take_nothing():
    for outcome in (THROTTLED, OVERLOADED, FAILED):
        assert actual_spend(paid(tokens=7), AttemptResult(outcome, None, None)) == Spend()
    assert actual_spend(paid(tokens=7), AttemptResult(CANCELLED, None, Demand(requests=0))) == Spend()


def test_what_is_expected_is_set_aside_and_settled_to_what_it_was():
    books = Books()
    one = paid(tokens=100)
    assert books.budgets.reserve(one, 0.0) is None
    (view,) = books.budgets.views(0.0)
    assert (view.spent, view.reserved) == (Spend(), Spend(tokens=100)), "no money is limited: no price is missed"
    books.budgets.settle(one, Spend(tokens=130), 1.0)
    (view,) = books.budgets.views(1.0)
    assert (view.spent, view.reserved) == (Spend(tokens=130), Spend())


def test_settling_twice_is_a_contract_error():
    books = Books()
    one = paid()
    books.budgets.reserve(one, 0.0)
    books.budgets.settle(one, Spend(), 0.0)
    with pytest.raises(ContractError):
        books.budgets.settle(one, Spend(), 0.0)


class TestAccount:
    """One account: whose limits count, and when its period begins and ends."""

    KEY = (Scope.AGENT, "a", Period.HOUR)

    def limit(self, tokens):
        return Budget(*self.KEY, tokens=tokens)

    @pytest.fixture
    def account(self):
        return Account(self.KEY, 100.0)

    def test_a_persons_word_counts_before_the_files_and_the_files_before_what_was_left(self, account):
        assert (account.budget, account.balances) == (Budget(*self.KEY), [])
        account.take_over(AccountState(self.limit(10), 0.0, Spend(), Spend()), 100.0)
        assert account.budget.tokens == 10
        account.file(self.limit(20))
        assert account.budget.tokens == 20
        account.give(self.limit(30))
        assert account.budget.tokens == 30
        account.give(None)
        assert account.budget.tokens == 20

    def test_what_was_left_counts_no_more_once_somebody_has_said_what_does(self, account):
        account.take_over(AccountState(self.limit(10), 0.0, Spend(), Spend()), 100.0)
        account.give(self.limit(30))
        account.give(None)
        assert account.budget.tokens is None

    def test_what_is_added_raises_only_what_is_limited_and_goes_with_its_period(self, account):
        account.file(self.limit(10))
        account.add(Spend(5, 7), 100.0)
        assert (account.budget, account.added) == (self.limit(15), Spend(5))
        assert not account.renew(3699.9)
        assert account.view(3700.0).budget == self.limit(10)
        assert account.renew(3700.0)
        assert account.budget == self.limit(10)

    def test_a_period_that_ends_while_attempts_run_begins_anew_at_once(self, account):
        account.file(self.limit(10))
        account.set_aside(paid(), Spend(3), 100.0)
        assert account.renew(3700.0)
        assert account.view(3800.0).renews_in_s == 3500.0
        account.settle(Spend(3), Spend(4))
        assert (account.spent, account.reserved) == (Spend(4), Spend())

    def test_warnings_are_due_for_most_of_it_and_for_all_of_it(self, account):
        account.file(Budget(*self.KEY, tokens=100, micro_usd=1000))
        account.spent = Spend(85, 849)
        assert account.percents() == {"tokens": 85, "micro_usd": 0}
        account.spent = Spend(100, 2000)
        assert account.percents() == {"tokens": 100, "micro_usd": 100}


def test_one_warning_at_85_percent_and_one_word_at_100():
    books = Books()
    books.spend(849)
    assert books.events == []
    books.spend(1)
    books.spend(50)
    (warned,) = books.events
    assert isinstance(warned, BudgetWarned)
    assert (warned.spent, warned.limit, warned.unit) == (850, 1000, "tokens")
    books.spend(200)
    (_, spent) = books.events
    assert isinstance(spent, BudgetSpent)
    assert spent.spent == 1100


def test_a_budget_in_money_reports_a_model_without_a_price_once_and_counts_its_tokens_apart():
    in_money = budget(None, micro_usd=1000)
    books = Books()
    for number, model in enumerate(("new", "new", "newer", "new")):
        one = paid(f"t{number}", in_money, budget(None, scope=Scope.EVERYONE, name="", micro_usd=9), model=model)
        assert books.budgets.reserve(one, 0.0) is None
        books.budgets.settle(one, Spend(tokens=5, unpriced_tokens=5), 0.0)
    assert [(type(event), event.model, event.budget) for event in books.events] == [
        (PriceMissing, "new", in_money),
        (PriceMissing, "newer", in_money),
    ]
    assert [view.spent for view in books.budgets.views(0.0)] == [Spend(20, unpriced_tokens=20)] * 2


def test_nobody_is_told_of_a_price_that_is_zero_or_where_no_model_is_called():
    books = Books()
    books.spend(5, budget(None, micro_usd=1000))
    books.spend(0, budget(None, name="tools", micro_usd=1000), tokens=0, price=None)
    assert books.events == []
    assert {view.spent.unpriced_tokens for view in books.budgets.views(0.0)} == {0}


def test_a_guess_is_reported_once_and_once_more_under_a_budget_in_money_which_names_it():
    books = Books()
    dollar, guessed = budget(None, per=Period.HOUR, micro_usd=1000), replace(FREE, guess="near")
    for payer in (budget(1000), budget(1000), dollar, dollar):
        books.spend(5, payer, price=guessed, model="far")
    books.spend(5, budget(1000), price=None, model="unknown")
    assert [(event.model, event.budget, event.guess) for event in books.events] == [
        ("far", None, "near"),
        ("far", dollar, "near"),
        ("unknown", None, ""),
    ]
    assert [view.guesses for view in books.budgets.views(0.0)] == [{}, {"far": "near"}]
    assert [view.guesses for view in books.budgets.views(3600.0)] == [{}, {}], "a new period has no guesses"


def test_only_a_budget_in_money_refuses_a_ticket_that_needs_a_price():
    books = Books()
    one = replace(paid("t", budget(1000), price=None), needs_price=True)
    assert books.budgets.reserve(one, 0.0) is None
    short = books.budgets.reserve(replace(one, id="t2", budgets=(budget(None, micro_usd=10**9),)), 0.0)
    assert (short.unpriced, short.may_pass) == ("m", False)


def test_clients_that_invent_names_of_models_do_not_fill_the_log():
    books = Books()
    for number in range(1000):
        one = paid(f"t{number}", budget(None, micro_usd=1000), model=f"m{number}")
        books.budgets.reserve(one, 0.0)
    assert len(books.events) == 100


def test_what_has_no_price_is_handed_on_to_the_next_process():
    first, second = Books(), Books()
    first.spend(5, budget(None, micro_usd=1000))
    one = paid("t", budget(None, micro_usd=1000))
    first.budgets.reserve(one, 0.0)
    first.budgets.settle(one, Spend(7, unpriced_tokens=7), 0.0)
    assert second.budgets.restore(first.budgets.standings(0.0), 0.0) == []
    (view,) = second.budgets.views(0.0)
    assert view.spent == Spend(12, unpriced_tokens=7)
    second.budgets.book([view.budget], [], Spend(3, unpriced_tokens=3), 0.0, 0.0)
    second.budgets.book([view.budget], [], Spend() - Spend(1, unpriced_tokens=1), 0.0, 0.0)
    assert second.budgets.views(0.0)[0].spent == Spend(14, unpriced_tokens=9)


def test_a_spent_budget_refuses_and_says_who_how_much_and_until_when():
    books = Books()
    books.spend(1000, budget(per=Period.HOUR), now=0.0)
    short = books.budgets.shortage(paid("t2", budget(per=Period.HOUR)), 600.0)
    assert short is not None
    assert not short.may_pass
    assert (short.budget.holder, short.spent, short.limit, short.renews_in_s) == ("agent a", 1000, 1000, 3000.0)


def test_an_hour_later_there_is_a_new_budget_and_a_new_warning():
    books = Books()
    hourly = budget(per=Period.HOUR)
    books.spend(900, hourly, now=0.0)
    books.spend(900, hourly, now=3600.0)
    assert [type(event) for event in books.events] == [BudgetWarned, BudgetWarned]


def test_a_raised_budget_counts_from_the_next_ticket_on():
    books = Books()
    books.spend(1000)
    assert books.budgets.shortage(paid("t2", budget(1000)), 0.0) is not None
    assert books.budgets.shortage(paid("t2", budget(2000)), 0.0) is None


def test_every_budget_of_a_ticket_has_to_let_it_go():
    group = budget(150, scope=Scope.GROUP, name="g")
    books = Books()
    books.spend(100, budget(), group)
    short = books.budgets.shortage(paid("t2", budget(), group), 0.0)
    assert short is not None
    assert short.budget.scope is Scope.GROUP
    assert books.budgets.shortage(paid("t3", budget()), 0.0) is None


def test_money_binds_only_what_has_a_price():
    dollar = budget(None, micro_usd=1_000_000)
    books = Books()
    one = paid("t1", dollar, micro_usd=900_000, price=PRICE)
    books.budgets.reserve(one, 0.0)
    books.budgets.settle(one, Spend(10, 1_000_000), 0.0)
    assert books.budgets.shortage(paid("t2", dollar, price=PRICE), 0.0) is not None
    assert books.budgets.shortage(paid("t2", dollar), 0.0) is None


def test_what_an_earlier_process_has_spent_is_forgiven_by_no_restart():
    books = Books()
    left = [AccountState(budget(per=per), 3600.0, Spend(400, 7), Spend()) for per in (Period.RUN, Period.DAY)]
    assert books.budgets.restore(left, 10.0) == []
    for per, renews_in_s in ((Period.RUN, None), (Period.DAY, 86_400 - 3600)):
        (view,) = [view for view in books.budgets.views(10.0) if view.budget.per is per]
        assert (view.spent, view.renews_in_s) == (Spend(400, 7), renews_in_s)
        short = books.budgets.shortage(paid("t", budget(per=per), tokens=601), 10.0)
        assert short is not None
        assert (short.spent, short.may_pass) == (400, False)
    assert [event.spent for event in books.booked] == [Spend(400, 7)] * 2


def test_what_was_left_of_a_period_that_is_over_is_nothing():
    books = Books()
    assert books.budgets.restore([AccountState(budget(per=Period.HOUR), 3600.0, Spend(400), Spend(5))], 0.0) == []
    assert books.budgets.views(0.0) == ()


def test_what_was_added_outlives_a_restart_and_the_files_limit_counts_as_the_next_ticket_brings_it():
    books = Books()
    books.budgets.restore([AccountState(budget(1500, per=Period.DAY), 0.0, Spend(1200), Spend(500))], 0.0)
    (view,) = books.budgets.views(0.0)
    assert (view.budget.tokens, view.added.tokens) == (1500, 500)
    assert books.budgets.shortage(paid("t", budget(1000, per=Period.DAY), tokens=300), 0.0) is None
    assert books.budgets.shortage(paid("t", budget(900, per=Period.DAY), tokens=300), 0.0) is not None
    assert books.budgets.shortage(paid("t", budget(900, per=Period.DAY), tokens=200), 86_399.0) is None
    short = books.budgets.shortage(paid("t", budget(900, per=Period.DAY), tokens=901), 86_400.0)
    assert short is not None
    assert (short.limit, short.spent) == (900, 0), "a new day: nothing spent, nothing added"


def test_what_was_spent_before_a_late_restore_counts_too():
    books = Books()
    books.spend(100, budget(per=Period.DAY), now=50.0)
    books.budgets.restore([AccountState(budget(per=Period.DAY), 3600.0, Spend(400), Spend())], 60.0)
    (view,) = books.budgets.views(60.0)
    assert (view.spent.tokens, view.renews_in_s) == (500, 86_400 - 3600)


def test_a_restart_does_not_tell_again_what_was_told():
    books = Books()
    books.budgets.restore([AccountState(budget(), 0.0, Spend(900), Spend())], 0.0)
    books.spend(10)
    assert books.events == []
    books.spend(90, tokens=1)
    assert [type(event) for event in books.events] == [BudgetSpent]


def test_damaged_books_are_left_out_and_named():
    damaged = [
        AccountState(budget(), -1.0, Spend(), Spend()),
        AccountState(budget(), float("nan"), Spend(), Spend()),
        AccountState(budget(), float("inf"), Spend(), Spend()),
        AccountState(budget(), 0.0, Spend(-1), Spend()),
        AccountState(budget(), 0.0, Spend(10**19), Spend()),
        AccountState(budget(100), 0.0, Spend(), Spend(101)),
    ]
    till = Till()
    till.scheduler.restore_budgets([*damaged, AccountState(budget(name="b"), 0.0, Spend(1), Spend())], 0.0)
    noted = [event.what for event in till.scheduler.drain_events() if isinstance(event, OddityNoted)]
    assert noted == [f"saved budget of agent a is left out: {one}"[:300] for one in damaged]
    assert [view.budget.name for view in till.scheduler.snapshot(0.0).budgets] == ["b"]


def test_every_change_is_booked_with_what_stands_then():
    books = Books()
    hourly = budget(per=Period.HOUR)
    one = paid("t", hourly)
    books.budgets.reserve(one, 5.0)
    books.budgets.settle(one, Spend(70), 6.0)
    books.budgets.shortage(one, 3605.0)
    books.budgets.reserve(one, 4000.0)
    told = [(event.at, event.began_at, event.spent.tokens, event.reserved.tokens) for event in books.booked]
    assert told == [
        (5.0, 5.0, 0, 100),
        (6.0, 5.0, 70, 0),
        (3605.0, 3605.0, 0, 0),
        (4000.0, 4000.0, 0, 100),
    ]


def test_whoever_looks_begins_no_period_and_books_nothing():
    books = Books()
    books.spend(100, budget(per=Period.HOUR), now=0.0)
    booked = list(books.booked)
    assert [(view.spent.tokens, view.renews_in_s) for view in books.budgets.views(5000.0)] == [(0, 3600.0)]
    assert books.booked == booked
    books.spend(100, budget(per=Period.HOUR), now=6000.0)
    assert [view.renews_in_s for view in books.budgets.views(6600.0)] == [3000.0]


def test_a_budget_given_at_run_time_counts_in_the_files_place_and_for_who_had_none():
    overrides = Overrides()
    overrides.give(budget(50, name="a*"))
    books = Books(overrides)
    assert books.budgets.shortage(paid("t", budget(1000), tokens=60, session="a"), 0.0) is not None
    assert (
        books.budgets.shortage(paid("t", budget(1000, scope=Scope.EVERYONE, name=""), tokens=60, session="b"), 0.0)
        is None
    )
    assert books.budgets.reserve(replace(paid("t", tokens=40, session="ann"), budgets=()), 0.0) is None
    views = [view for view in books.budgets.views(0.0) if view.budget.scope is Scope.AGENT]
    assert [(view.budget.name, view.reserved.tokens) for view in views] == [("a", 0), ("ann", 40)]


def test_what_runs_counts_in_accounts_that_are_opened_meanwhile_and_is_booked_once_in_each():
    overrides = Overrides()
    books = Books(overrides)
    free, bound = replace(paid("free", session="a"), budgets=()), paid("bound", budget(per=Period.DAY), session="a")
    books.budgets.reserve(free, 0.0)
    books.budgets.reserve(bound, 0.0)
    overrides.give(budget(50, per=Period.RUN))
    books.budgets.apply_overrides(0.0)
    assert books.budgets.settle(free, Spend(70), 1.0) == []
    books.budgets.settle(bound, Spend(30), 1.0)
    assert [(view.budget.per, view.spent.tokens) for view in books.budgets.views(1.0)] == [(Period.DAY, 100)]


def test_a_ticket_that_waits_goes_when_the_period_is_over_though_nothing_has_ended():
    till = Till()
    hourly = budget(per=Period.HOUR)
    till.pay(paid("early", hourly, tokens=500))
    till.settle("early", usage=used(500))
    till.pay(paid("long", hourly, tokens=400, patience_s=9000.0))
    assert till.pay(paid("waits", hourly, tokens=300, patience_s=9000.0)) == []
    while "waits" not in till.running and till.now < 3600.0:
        till.advance_to_wakeup()
    assert till.now == 3600.0
    assert "waits" in till.running


def test_every_attempt_tells_what_it_is_booked_with_budget_or_not():
    till = Till()
    till.pay(paid("paid", tokens=7), replace(paid("free", tokens=7), budgets=()))
    till.settle("paid", usage=used(3))
    till.settle("free", CANCELLED)
    assert [(event.ticket_id, event.spend.tokens) for event in till.of(AttemptEnded)] == [("paid", 3), ("free", 7)]


def test_tickets_without_budgets_cost_nothing():
    till = Till()
    till.pay(replace(paid("free"), budgets=()))
    till.settle("free")
    assert till.of(BudgetBooked) == []
    assert till.scheduler.snapshot(0.0).budgets == ()


# The scheduler's side --------------------------------------------------------------------------------------------------


def test_a_ticket_without_funds_is_refused_and_takes_no_slot():
    till = Till(slots=1)
    till.pay(paid("t1", tokens=900))
    till.settle("t1", usage=used(1000))
    assert till.pay(paid("t2")) == []
    (refused,) = till.refused
    assert refused.ticket.id == "t2"
    assert till.pool.in_flight == 0
    assert [event.end for event in till.of(TicketEnded)] == ["delivered", "refused"]
    assert till.scheduler.snapshot(0.0).counters.refused == 1
    assert till.scheduler.is_idle


def test_it_is_refused_at_once_although_others_are_before_it():
    till = Till(slots=1)
    till.pay(paid("t1", tokens=900))
    till.settle("t1", usage=used(1000))
    till.submit("runs")
    till.submit("waits")
    till.pay(paid("t2"))
    assert [one.ticket.id for one in till.refused] == ["t2"]


def test_running_attempts_finish():
    till = Till()
    till.pay(paid("t1", tokens=500), paid("t2", tokens=500))
    till.settle("t1", usage=used(2000))
    assert till.pay(paid("t3")) == []
    assert str(till.settle("t2", usage=used(500))).startswith("Finished")


def test_a_backed_off_ticket_counts_as_new():
    till = Till()
    till.pay(paid("t1", tokens=400), paid("t2", tokens=400))
    till.settle("t1", usage=used(1000))
    assert isinstance(till.settle("t2", FAILED), Backoff)
    assert [one.ticket.id for one in till.refused] == ["t2"]
    assert till.scheduler.is_idle


def test_a_ticket_waits_while_only_reservations_are_in_its_way_and_lets_others_pass():
    till = Till()
    assert till.pay(paid("t1", tokens=800)) == ["t1"]
    assert till.pay(paid("t2", tokens=800), paid("t3", budget(name="b"), at=0.0)) == ["t3"]
    waiting = next(one for one in till.pool.tickets if one.ticket.id == "t2")
    assert "reserved" in waiting.reason
    till.now = 5.0
    till.settle("t1", usage=used(100))
    assert "t2" in till.running
    assert till.refused == []


def test_a_ticket_that_waited_is_refused_when_the_running_one_took_too_much():
    till = Till()
    till.pay(paid("t1", tokens=800), paid("t2", tokens=800))
    till.settle("t1", usage=used(700))
    assert [one.ticket.id for one in till.refused] == ["t2"]


def test_an_attempt_of_another_pool_wakes_it():
    till = Till()
    till.pay(paid("t1", tokens=800, pool=OTHER_POOL), paid("t2", tokens=800))
    assert "t2" not in till.running
    till.settle("t1", usage=used(100))
    assert "t2" in till.running


def test_it_is_shed_in_time_when_its_budget_stays_reserved():
    till = Till()
    till.pay(paid("t1", tokens=800), paid("t2", tokens=800, patience_s=30.0))
    till.advance(30.0)
    (shed,) = till.shed
    assert shed.ticket.id == "t2"
    assert 0 < shed.come_back_s < 60


def test_it_can_be_cancelled():
    till = Till()
    till.pay(paid("t1", tokens=800), paid("t2", tokens=800))
    assert till.scheduler.cancel("t2", till.now)
    till.settle("t1", usage=used(100))
    assert till.scheduler.is_idle


def test_a_ticket_that_waits_for_its_budget_does_not_keep_others_from_probing():
    till = Till(settings=PoolSettings())
    till.pay(paid("t1", tokens=800, pool=OTHER_POOL))
    for name in ("x", "y", "z"):
        till.submit(name)
    for name in ("x", "y", "z"):
        till.settle(name, OVERLOADED)
    till.pay(paid("t2", tokens=800))
    seen = set()
    while till.scheduler.next_wakeup() is not None and seen != {"x", "y", "z"}:
        till.advance_to_wakeup()
        for name in list(till.running):
            if name != "t1":
                seen.add(name)
                till.settle(name, SUCCESS)
    assert seen == {"x", "y", "z"}


@settings(deadline=None)
@given(st.data())
def test_a_fleet_overshoots_by_no_more_than_what_was_in_flight_took_too_much(data):
    limit = data.draw(st.integers(100, 2000))
    till = Till(slots=data.draw(st.integers(1, 6)))
    fleet = budget(limit, scope=Scope.EVERYONE, name="")
    spent = excess = 0
    for step in range(data.draw(st.integers(1, 25))):
        expected = data.draw(st.integers(0, 300))
        till.pay(paid(f"t{step}", budget(None), fleet, tokens=expected, at=till.now))
        till.now += 1.0
        while till.running and data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(till.running)))
            reserved = till.running[name].ticket.expected.tokens
            actual = data.draw(st.integers(0, 400))
            till.settle(name, usage=used(actual))
            spent += actual
            excess += max(0, actual - reserved)
            assert spent <= limit + excess
    for name in list(till.running):
        till.settle(name, usage=used(till.running[name].ticket.expected.tokens))
    while till.running:
        for name in list(till.running):
            till.settle(name, usage=used(0))
    assert till.scheduler.is_idle, "nobody waits for a budget that nobody holds"
    for view in till.scheduler.snapshot(till.now).budgets:
        assert view.reserved == Spend()
