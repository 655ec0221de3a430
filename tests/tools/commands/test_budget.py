"""How accounts are shown; what is sent is in test_steering.py, the real socket in tests/e2e/test_budgets.py."""

import json

import pytest
from click.testing import CliRunner

from hivemind_addon.kernel.values.snapshot import BudgetView, GivenBudget
from hivemind_addon.kernel.values.spend import Budget, Period, Scope, Spend
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import proxy as commands
from tests.tools.dash.samples import report

GIVEN = (
    GivenBudget(Budget(Scope.AGENT, "rev-*", Period.HOUR, tokens=5_000_000)),
    GivenBudget(Budget(Scope.AGENT, "night", Period.DAY, tokens=10), by="night"),
    GivenBudget(Budget(Scope.GROUP, "night", Period.DAY, tokens=10), by="night"),
)
VIEWS = (
    BudgetView(
        Budget(Scope.AGENT, "agent-7", Period.DAY, tokens=1_500_000, micro_usd=5_000_000),
        spent=Spend(1_480_000, 4_999_999),
        reserved=Spend(20_000, 0),
        renews_in_s=7500.0,
        added=Spend(500_000, 0),
    ),
    BudgetView(Budget(Scope.EVERYONE, "", micro_usd=20_000_000), Spend(9, 21_000_000), Spend(), renews_in_s=None),
)


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.proxy.system.folders.LONGEST_SOCKET_PATH", 1000)


@pytest.fixture
def proxy(monkeypatch):
    """A report of a proxy that has budgets."""
    made = report(budgets=VIEWS, given=GIVEN)
    monkeypatch.setattr(commands, "read_report", lambda _: made)


def run(*arguments):
    return CliRunner().invoke(main, ["budget", *arguments])


@pytest.mark.usefixtures("proxy")
def test_people_see_who_has_spent_what_and_what_is_left(golden, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    golden("budget.txt", run().stdout)
    assert run("list").stdout == run().stdout


def test_columns_that_nobody_needs_are_left_out(monkeypatch):
    monkeypatch.setattr(commands, "read_report", lambda _: report(budgets=VIEWS[1:]))
    shown = run().stdout
    assert "everyone" in shown
    assert "set aside" not in shown


@pytest.mark.usefixtures("proxy")
def test_programs_see_whole_numbers():
    first, second = json.loads(run("list", "--json").stdout)
    assert (first["left_tokens"], first["left_micro_usd"], first["added_tokens"]) == (0, 1, 500_000)
    assert (second["limit_tokens"], second["renews_in_s"], second["scope"], second["per"]) == (
        None,
        None,
        "everyone",
        "run",
    )
    head, *rows = run("--csv").stdout.splitlines()
    assert head.startswith("holder,scope,name,per,limit_tokens,")
    assert len(rows) == 2


def test_tokens_that_a_budget_in_money_does_not_count_are_shown_with_the_cure(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    spent = Spend(3_600_000, 0, unpriced_tokens=3_500_000)
    views = [BudgetView(Budget(Scope.EVERYONE, "", tokens=10**9, micro_usd=20), spent, Spend(), renews_in_s=None)]
    monkeypatch.setattr(commands, "read_report", lambda _: report(budgets=views))
    head, *_, last = run().stdout.splitlines()
    assert "not counted" in head
    assert run().stdout.count("3,500,000 tokens") == 1, "in the line of the money only"
    assert "write its price under `prices` of a profile" in last
    assert json.loads(run("--json").stdout)[0]["unpriced_tokens"] == 3_500_000


def test_models_that_a_budget_counts_at_a_guess_are_named_with_the_cure(monkeypatch):
    budget, guesses = Budget(Scope.EVERYONE, "", micro_usd=20), {"claude-opus-9\x1b": "claude-opus-5"}
    views = [BudgetView(budget, Spend(), Spend(), renews_in_s=None, guesses=guesses)]
    monkeypatch.setattr(commands, "read_report", lambda _: report(budgets=views))
    assert "guessed: claude-opus-9? at the price of claude-opus-5; write its price" in run().stdout
    assert json.loads(run("--json").stdout)[0]["guesses"] == guesses


def test_nobody_has_one(monkeypatch):
    monkeypatch.setattr(commands, "read_report", lambda _: report(budgets=()))
    assert "no budget was used yet" in run().stdout
    assert json.loads(run("--json").stdout) == []


def test_without_a_proxy_it_says_so():
    result = run()
    assert result.exit_code == 1
    assert "no proxy serves port" in result.stderr
    assert "`hivemind history budgets` tells how they stood" in result.stderr
