"""What a person can do to budgets: each command, what it says, and whom it lets go."""

import pytest
from msgspec.structs import replace

from hivemind_addon.api.command import AddBudget, Pause, ResetBudget, SetBudget, read_command
from hivemind_addon.api.events import BudgetBooked, BudgetSpent, PersonActed
from hivemind_addon.api.spend import AccountState, Period, Scope, Spend
from tests.core.test_budget import PRICE, Till, budget, paid, used

AGENT, GROUP, EVERYONE = Scope.AGENT, Scope.GROUP, Scope.EVERYONE


@pytest.fixture
def till():
    return Till()


def tell(till, command):
    said = till.scheduler.command(command, till.now)
    assert said.text
    assert "\n" not in said.text
    till.poll()
    return said


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
        said = tell(till, AddBudget(AGENT, "a", tokens=500))
        assert said.done
        assert said.text == (
            "500 tokens added to agent a: agent a has spent 1,000 tokens of 1,500 tokens, 500 tokens left for this run"
        )
        (value,) = said.value
        assert (value["holder"], value["spent_tokens"], value["limit_tokens"]) == ("agent a", 1000, 1500)
        assert (value["left_tokens"], value["added_tokens"], value["limit_micro_usd"]) == (500, 500, None)
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
        said = tell(till, AddBudget(AGENT, "a", tokens=500, micro_usd=1_000_000))
        assert [(one["per"], one["added_tokens"], one["added_micro_usd"]) for one in said.value] == [
            ("hour", 500, 0),
            ("day", 0, 1_000_000),
        ]
        assert not tell(till, AddBudget(AGENT, "a", Period.DAY, tokens=5)).done
        assert "no budget in tokens" in tell(till, AddBudget(AGENT, "a", Period.DAY, tokens=5)).text
        assert not tell(till, AddBudget(AGENT, "a", Period.MONTH, tokens=5)).done

    def test_a_glob_adds_to_each_that_has_one(self, till):
        for name in ("rev-1", "rev-2", "lead"):
            spend(till, 10, budget(name=name), agent=name)
        said = tell(till, AddBudget(AGENT, "rev-*", tokens=5))
        assert [one["name"] for one in said.value] == ["rev-1", "rev-2"]

    def test_whoever_is_unknown_hears_who_is_known(self, till):
        for name in ("rev-1", "rev-2"):
            spend(till, 10, budget(name=name), agent=name)
        said = tell(till, AddBudget(GROUP, "reviewers", tokens=5))
        assert not said.done
        assert "group reviewers has no budget" in said.text
        assert "known: agent rev-1, agent rev-2." in said.text

    def test_the_many_that_are_known_are_not_all_named(self, till):
        for number in range(50):
            spend(till, 1, budget(name=f"agent-{number}"), agent=f"agent-{number}")
        said = tell(till, AddBudget(AGENT, "x", tokens=5))
        assert "agent agent-7 and 42 more." in said.text
        said = tell(till, AddBudget(AGENT, "*", tokens=5))
        assert len(said.value) == 50
        assert said.text.endswith("and 42 more")

    def test_there_is_an_end_to_what_can_be_added(self, till):
        spend(till, 10)
        for _ in range(5):
            said = tell(till, AddBudget(AGENT, "a", tokens=10**15))
        assert not said.done
        (view,) = till.scheduler.snapshot(0.0).budgets
        assert view.budget.tokens < 2**62


class TestReset:
    def test_what_was_spent_is_forgiven_and_what_runs_is_booked_when_it_ends(self, till):
        hourly = budget(per=Period.HOUR)
        spend(till, 600, hourly)
        till.pay(paid("runs", hourly, tokens=300), paid("waits", hourly, tokens=200))
        tell(till, AddBudget(AGENT, "a", tokens=1))
        till.now = 60.0
        said = tell(till, ResetBudget(AGENT, "a"))
        assert said.done
        assert "agent a begins anew" in said.text
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
        said = tell(till, ResetBudget(AGENT, "a"))
        assert not said.done
        assert "known: nobody yet" in said.text


class TestSet:
    def test_it_counts_in_the_place_of_the_files(self, till):
        spend(till, 500)
        said = tell(till, SetBudget(AGENT, "a", tokens=550))
        assert said.text.startswith("agent a may spend 550 tokens for this run: agent a has spent 500 tokens of 550")
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
        assert tell(till, SetBudget(AGENT, "rev-*", Period.DAY, tokens=100)).text.startswith("each agent rev-* may")
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
        said = tell(till, SetBudget(AGENT, "a", Period.DAY))
        assert not said.done
        assert "nobody gave agent a a budget per day" in said.text

    def test_who_had_none_is_told_that_what_was_spent_before_counts(self, till):
        spend(till, 30, budget(1000, per=Period.DAY))
        note = "what the journal knows to have been spent in this period before is counted in: `hivemind budget`"
        assert tell(till, SetBudget(AGENT, "a", Period.HOUR, tokens=100)).text.endswith(f"per hour; {note}")
        assert f"per day; {note}" in tell(till, SetBudget(AGENT, "nobody-*", Period.DAY, tokens=100)).text
        assert tell(till, SetBudget(AGENT, "a", Period.DAY, tokens=100)).text.endswith("70 tokens left per day")
        assert "journal" not in tell(till, SetBudget(AGENT, "a", Period.HOUR)).text

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
        after.scheduler.restore_orders(till.scheduler.export_orders(0.0, 0.0), 0.0, 0.0)
        assert after.pay(paid("t", replace_with, tokens=50)) == []
        assert refused(after) == ["t"]
        assert tell(after, SetBudget(AGENT, "a", Period.DAY)).done
        assert after.pay(paid("t2", replace_with, tokens=50)) == ["t2"]


@pytest.mark.parametrize(
    "command",
    [
        AddBudget(AGENT, "", tokens=1),
        AddBudget(GROUP, "", tokens=1),
        AddBudget(EVERYONE, "x", tokens=1),
        AddBudget(AGENT, "a"),
        AddBudget(AGENT, "a", tokens=-1),
        AddBudget(AGENT, "a", tokens=-1, micro_usd=10**16),
        AddBudget(AGENT, "a", micro_usd=10**16),
        SetBudget(AGENT, "a", tokens=-1),
        SetBudget(AGENT, "a", tokens=10**30),
        SetBudget(AGENT, "", tokens=1),
        ResetBudget(EVERYONE, "x"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(till, command):
    spend(till, 10)
    before = till.scheduler.snapshot(0.0)
    assert not tell(till, command).done
    assert till.scheduler.snapshot(0.0) == before


def test_what_was_done_is_told(till):
    spend(till, 10)
    tell(till, ResetBudget(AGENT, "a"))
    assert [event.text for event in till.of(PersonActed)] == ["budget: agent a begins anew (by a person)"]


@pytest.mark.parametrize(
    ("command", "who"),
    [
        (SetBudget(AGENT, "a", Period.DAY, tokens=100, by="a"), "by a itself"),
        (SetBudget(AGENT, "*", Period.DAY, tokens=100, by="a"), "by agent a"),
        (SetBudget(GROUP, "a", Period.DAY, tokens=100, by="a"), "by agent a"),
        (AddBudget(AGENT, "a", tokens=100, by="b"), "by agent b"),
        (ResetBudget(AGENT, "a", by="b"), "by agent b"),
    ],
)
def test_it_is_told_who_asked(till, command, who):
    """By the line that the log and the journal have, by the event's field, and by what stands."""
    spend(till, 10)
    assert tell(till, command).done
    (acted,) = till.of(PersonActed)
    assert acted.text.endswith(f" ({who})")
    assert acted.by == command.by
    given = till.scheduler.snapshot(0.0).given
    assert [one.by for one in given] == ([command.by] if isinstance(command, SetBudget) else [])


def test_they_are_read_from_json():
    command = read_command({"type": "add-budget", "scope": "everyone", "per": "month", "micro_usd": 5})
    assert command == AddBudget(EVERYONE, "", Period.MONTH, micro_usd=5)
