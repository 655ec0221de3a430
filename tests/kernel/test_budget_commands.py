"""What a person can do to budgets: what each command changes, and whom it lets go."""

import pytest
from msgspec.structs import replace

from hivemind_addon.kernel.values.command import AddBudget, CommandResult, Declined, Pause, ResetBudget, SetBudget
from hivemind_addon.kernel.values.events import BudgetBooked, BudgetSpent
from hivemind_addon.kernel.values.spend import AccountState, Balance, Period, Scope, Spend
from hivemind_addon.proxy.api.command import read_command
from tests.kernel.test_budget import PRICE, Till, budget, paid, used

AGENT, GROUP, EVERYONE = Scope.AGENT, Scope.GROUP, Scope.EVERYONE


@pytest.fixture
def till():
    return Till()


def tell(till, command):
    result = till.scheduler.command(command, till.now)
    till.poll()
    return result


def declined(till, command):
    """Why it was not carried out; then nothing has changed."""
    before = till.scheduler.snapshot(till.now)
    result = tell(till, command)
    assert till.scheduler.snapshot(till.now) == before
    return result.declined


def spend(till, tokens, *budgets, agent="a", **more):
    till.pay(paid("spender", *budgets, tokens=tokens, session=agent, at=till.now, **more))
    till.settle("spender", usage=used(tokens))


def replace_period(standing, per):
    return AccountState(budget(None, per=per), standing.age_s, standing.spent, standing.added)


def refused(till):
    return [one.ticket.id for one in till.refused]


class TestAdd:
    def test_an_agent_that_was_refused_goes_on_with_its_next_request(self, till):
        spend(till, 1000)
        till.pay(paid("t"))
        assert refused(till) == ["t"]
        (view,) = tell(till, AddBudget(AGENT, "a", tokens=500)).budgets
        assert (view.budget.holder, view.added) == ("agent a", Spend(500))
        assert view.balances == [Balance("tokens", limit=1500, spent=1000, reserved=0)]
        assert till.pay(paid("t2")) == ["t2"]

    def test_whoever_waits_for_what_is_reserved_goes_at_once(self, till):
        till.pay(paid("runs", tokens=800), paid("waits", tokens=800))
        assert "waits" not in till.running
        assert tell(till, AddBudget(AGENT, "a", tokens=600)).done
        assert "waits" in till.running

    def test_it_counts_for_this_period_only(self, till):
        hourly = budget(per=Period.HOUR)
        spend(till, 100, hourly)
        tell(till, AddBudget(AGENT, "a", tokens=500))
        till.now = 3600.0
        (view,) = till.scheduler.snapshot(till.now).budgets
        assert (view.budget.tokens, view.added, view.spent) == (1000, Spend(), Spend())

    def test_only_the_period_that_is_named_and_only_units_that_are_limited(self, till):
        spend(till, 10, budget(per=Period.HOUR), budget(None, per=Period.DAY, micro_usd=5_000_000), price=PRICE)
        result = tell(till, AddBudget(AGENT, "a", tokens=500, micro_usd=1_000_000))
        assert [(view.budget.per, view.added) for view in result.budgets] == [
            (Period.HOUR, Spend(500)),
            (Period.DAY, Spend(0, 1_000_000)),
        ]
        assert declined(till, AddBudget(AGENT, "a", Period.DAY, tokens=5)) is Declined.NO_SUCH_UNIT
        assert declined(till, AddBudget(AGENT, "a", Period.MONTH, tokens=5)) is Declined.NO_BUDGET

    def test_a_glob_adds_to_each_that_has_one(self, till):
        for name in ("rev-1", "rev-2", "lead"):
            spend(till, 10, budget(name=name), agent=name)
        result = tell(till, AddBudget(AGENT, "rev-*", tokens=5))
        assert [view.budget.name for view in result.budgets] == ["rev-1", "rev-2"]

    def test_who_has_none_is_told_who_has(self, till):
        for name in ("rev-1", "rev-2"):
            spend(till, 10, budget(name=name), agent=name)
        result = tell(till, AddBudget(GROUP, "reviewers", tokens=5))
        assert (result.declined, result.holders) == (Declined.NO_BUDGET, ("agent rev-1", "agent rev-2"))

    def test_there_is_an_end_to_what_can_be_added(self, till):
        spend(till, 10)
        for _ in range(5):
            result = tell(till, AddBudget(AGENT, "a", tokens=10**15))
        assert result.declined is Declined.HUGE_SUM
        (view,) = till.scheduler.snapshot(0.0).budgets
        assert view.budget.tokens < 2**62


class TestReset:
    def test_what_was_spent_is_forgiven_and_what_runs_is_booked_when_it_ends(self, till):
        hourly = budget(per=Period.HOUR)
        spend(till, 600, hourly)
        till.pay(paid("runs", hourly, tokens=300), paid("waits", hourly, tokens=200))
        tell(till, AddBudget(AGENT, "a", tokens=1))
        till.now = 60.0
        assert tell(till, ResetBudget(AGENT, "a")).done
        assert "waits" in till.running
        (view,) = till.scheduler.snapshot(60.0).budgets
        assert (view.spent, view.reserved, view.added, view.renews_in_s) == (Spend(), Spend(500), Spend(), 3600.0)
        till.settle("runs", usage=used(450))
        (view,) = till.scheduler.snapshot(60.0).budgets
        assert (view.spent, view.reserved) == (Spend(450), Spend(200))

    def test_an_idle_ones_period_begins_with_its_next_request(self, till):
        hourly = budget(per=Period.HOUR)
        spend(till, 600, hourly)
        tell(till, ResetBudget(AGENT, "a", Period.HOUR))
        till.now = 1800.0
        spend(till, 1, hourly)
        (view,) = till.scheduler.snapshot(1860.0).budgets
        assert view.renews_in_s == 3540.0

    def test_nobody_is_there_to_be_forgiven(self, till):
        assert tell(till, ResetBudget(AGENT, "a")) == CommandResult(Declined.NO_BUDGET)


class TestSet:
    def test_it_counts_in_the_place_of_the_files(self, till):
        spend(till, 500)
        (view,) = tell(till, SetBudget(AGENT, "a", tokens=550)).budgets
        assert view.balances == [Balance("tokens", limit=550, spent=500, reserved=0)]
        assert till.pay(paid("t", tokens=100)) == []
        assert refused(till) == ["t"]
        assert tell(till, SetBudget(AGENT, "a")).done
        assert till.pay(paid("t2", tokens=100)) == ["t2"]

    def test_who_has_none_gets_one_and_who_waits_for_something_else_is_refused_at_once(self):
        till = Till(slots=1)
        till.submit("runs")
        till.pay(*(replace(paid(name, tokens=100), budgets=()) for name in ("rich", "poor")))
        tell(till, SetBudget(AGENT, "poor", tokens=99))
        assert refused(till) == ["poor"]
        till.settle("runs")
        assert set(till.running) == {"rich"}

    def test_a_lower_one_is_told_of_as_spent(self, till):
        spend(till, 500)
        tell(till, SetBudget(AGENT, "a", tokens=400))
        assert [(event.spent, event.limit) for event in till.of(BudgetSpent)] == [(500, 400)]

    def test_a_glob_gives_each_agent_one_of_its_own_also_those_that_come(self, till):
        assert tell(till, SetBudget(AGENT, "rev-*", Period.DAY, tokens=100)).done
        free = [replace(paid(name, tokens=60, session=name), budgets=()) for name in ("rev-1", "rev-2", "lead")]
        assert till.pay(*free) == ["rev-1", "rev-2", "lead"]
        assert till.pay(replace(paid("again", tokens=60, session="rev-1"), budgets=())) == []
        snapshot = till.scheduler.snapshot(0.0)
        assert [view.budget.name for view in snapshot.budgets] == ["rev-1", "rev-2"]
        assert [one.budget.name for one in snapshot.given] == ["rev-*"]

    def test_groups_and_everyone_have_theirs(self, till):
        tell(till, SetBudget(GROUP, "g", tokens=100))
        tell(till, SetBudget(EVERYONE, "", tokens=150))
        one = replace(paid("one", tokens=100), budgets=(), group="g")
        assert till.pay(one, replace(one, id="two", group=""), replace(one, id="three")) == ["one"]
        assert {view.budget.holder: view.reserved.tokens for view in till.scheduler.snapshot(0.0).budgets} == {
            "group g": 100,
            "everyone": 100,
        }

    def test_it_can_be_listed_and_added_to_before_anybody_has_used_it(self, till):
        tell(till, SetBudget(AGENT, "new", Period.DAY, tokens=100))
        assert tell(till, AddBudget(AGENT, "new", tokens=5)).done
        (view,) = till.scheduler.snapshot(0.0).budgets
        assert (view.budget.name, view.budget.tokens) == ("new", 105)

    def test_what_was_never_given_cannot_be_taken_back(self, till):
        spend(till, 10)
        assert declined(till, SetBudget(AGENT, "a", Period.DAY)) is Declined.NEVER_GIVEN

    def test_who_had_none_is_told_that_what_was_spent_before_counts(self, till):
        spend(till, 30, budget(1000, per=Period.DAY))
        assert tell(till, SetBudget(AGENT, "a", Period.HOUR, tokens=100)).is_new
        assert tell(till, SetBudget(AGENT, "nobody-*", Period.DAY, tokens=100)).is_new
        assert not tell(till, SetBudget(AGENT, "a", Period.DAY, tokens=100)).is_new
        assert not tell(till, SetBudget(AGENT, "a", Period.HOUR)).is_new

    def test_what_is_counted_in_may_spend_it_and_ends_its_period_earlier(self, till):
        till.now = 1000.0
        tell(till, SetBudget(AGENT, "a", Period.HOUR, tokens=100))
        known = AccountState(budget(None, per=Period.HOUR), 600.0, Spend(90), Spend())
        till.scheduler.count_in([known, replace_period(known, Period.DAY)], till.now)
        (view,) = till.scheduler.snapshot(till.now).budgets
        assert (view.spent, view.renews_in_s) == (Spend(90), 3000.0)
        assert till.pay(paid("t", tokens=20, at=till.now, session="a")) == []
        assert refused(till) == ["t"]
        till.scheduler.count_in([AccountState(budget(None, per=Period.HOUR), 600.0, Spend(20), Spend())], till.now)
        till.poll()
        assert [event.unit for event in till.of(BudgetSpent)] == ["tokens"], "and everybody hears of it"

    def test_what_runs_while_a_budget_is_set_counts_in_it(self, till):
        till.pay(paid("t", budget(per=Period.DAY), tokens=10, at=0.0, session="a"))
        tell(till, SetBudget(AGENT, "a", Period.HOUR, tokens=100))
        tell(till, SetBudget(EVERYONE, "", Period.DAY, tokens=100))
        till.settle("t", usage=used(60))
        spent = {(view.budget.scope, view.budget.per): view.spent for view in till.scheduler.snapshot(0.0).budgets}
        assert set(spent.values()) == {Spend(60)}
        assert len(spent) == 3

    def test_it_outlives_a_restart_and_so_does_what_was_spent_of_it(self, till):
        tell(till, Pause("nowhere"))
        tell(till, SetBudget(AGENT, "a", Period.DAY, tokens=100))
        spend(till, 60, replace_with := budget(1000, per=Period.DAY))
        (last,) = [event for event in till.of(BudgetBooked) if event.spent.tokens][-1:]
        after = Till()
        after.scheduler.restore_budgets([AccountState(last.budget, 5.0, last.spent, last.added)], 0.0)
        after.scheduler.restore_overrides(till.scheduler.export_overrides(0.0, 0.0), 0.0, 0.0)
        assert after.pay(paid("t", replace_with, tokens=50)) == []
        assert refused(after) == ["t"]
        assert tell(after, SetBudget(AGENT, "a", Period.DAY)).done
        assert after.pay(paid("t2", replace_with, tokens=50)) == ["t2"]


def test_what_makes_no_sense_is_declined_and_changes_nothing(till):
    spend(till, 10)
    for command, why in (
        (AddBudget(AGENT, "", tokens=1), Declined.NO_HOLDER_NAMED),
        (AddBudget(GROUP, "", tokens=1), Declined.NO_HOLDER_NAMED),
        (AddBudget(EVERYONE, "x", tokens=1), Declined.EVERYONE_NAMED),
        (AddBudget(AGENT, "a"), Declined.NOTHING_ADDED),
        (AddBudget(AGENT, "a", tokens=-1), Declined.NEGATIVE_AMOUNT),
        (AddBudget(AGENT, "a", tokens=-1, micro_usd=10**16), Declined.NEGATIVE_AMOUNT),
        (AddBudget(AGENT, "a", micro_usd=10**16), Declined.HUGE_AMOUNT),
        (SetBudget(AGENT, "a", tokens=-1), Declined.NEGATIVE_AMOUNT),
        (SetBudget(AGENT, "a", tokens=10**30), Declined.HUGE_AMOUNT),
        (SetBudget(AGENT, "", tokens=1), Declined.NO_HOLDER_NAMED),
        (ResetBudget(EVERYONE, "x"), Declined.EVERYONE_NAMED),
    ):
        assert declined(till, command) is why, command


def test_it_is_kept_which_agent_gave_one(till):
    tell(till, SetBudget(AGENT, "a", Period.DAY, tokens=100, by="planner"))
    assert [one.by for one in till.scheduler.snapshot(0.0).given] == ["planner"]


def test_they_are_read_from_json():
    command = read_command({"type": "add-budget", "scope": "everyone", "per": "month", "micro_usd": 5})
    assert command == AddBudget(EVERYONE, "", Period.MONTH, micro_usd=5)
