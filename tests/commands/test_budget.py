"""What each command sends, and how accounts are shown; the real socket is in tests/e2e/test_grants.py."""

import json

import pytest
from click.testing import CliRunner

from hivemind_addon.api.command import AddBudget, ResetBudget, Said, SetBudget
from hivemind_addon.api.snapshot import BudgetView, GivenBudget
from hivemind_addon.api.spend import Budget, Period, Scope, Spend
from hivemind_addon.tools.cli import main
from hivemind_addon.tools.commands import proxy as commands
from tests.dash.samples import report

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


@pytest.fixture
def sent(monkeypatch):
    seen = []

    def send(path, command):
        seen.append((path.name, command))
        return Said(done="never" not in str(command), text="what was done", value=[{"holder": "agent a"}])

    monkeypatch.setattr(commands, "send_command", send)
    return seen


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("hivemind_addon.system.folders.LONGEST_SOCKET_PATH", 1000)


@pytest.fixture
def proxy(monkeypatch):
    """A report of a proxy that has budgets."""
    made = report(budgets=VIEWS, given=GIVEN)
    monkeypatch.setattr(commands, "read_report", lambda _: made)


def run(*arguments):
    return CliRunner().invoke(main, ["budget", *arguments])


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["add", "a", "--tokens", "500k"], AddBudget(Scope.AGENT, "a", tokens=500_000)),
        (["add", "a", "--tokens", "1_000", "--usd", "$2.50"], AddBudget(Scope.AGENT, "a", None, 1000, 2_500_000)),
        (["add", "--everyone", "--usd", "5", "--per", "day"], AddBudget(Scope.EVERYONE, "", Period.DAY, 0, 5_000_000)),
        (["add", "--group", "g", "--tokens", "2M"], AddBudget(Scope.GROUP, "g", tokens=2_000_000)),
        (["set", "rev-*", "--tokens", "1.5m"], SetBudget(Scope.AGENT, "rev-*", tokens=1_500_000)),
        (["set", "a", "--usd", "0"], SetBudget(Scope.AGENT, "a", micro_usd=0)),
        (
            ["set", "--everyone", "--per", "month", "--usd", "0.000001"],
            SetBudget(Scope.EVERYONE, "", Period.MONTH, None, 1),
        ),
        (["set", "a", "--per", "hour", "--auto"], SetBudget(Scope.AGENT, "a", Period.HOUR)),
        (["reset", "a"], ResetBudget(Scope.AGENT, "a")),
        (["reset", "--group", "g", "--per", "day"], ResetBudget(Scope.GROUP, "g", Period.DAY)),
    ],
)
def test_each_sends_what_it_says_to_the_proxy_of_its_port(sent, arguments, command):
    result = run(*arguments, "-p", "9090")
    assert (result.exit_code, result.stdout) == (0, "what was done\n")
    assert sent == [("9090.sock", command)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "--tokens", "5"], "say whose"),
        (["add", "a", "--everyone", "--tokens", "5"], "say whose"),
        (["add", "a"], "say how much"),
        (["add", "a", "--tokens", "0"], "say how much"),
        (["add", "a", "--tokens", "many"], "'many' is no amount"),
        (["add", "a", "--tokens", "1.5"], "finer than what is counted"),
        (["add", "a", "--tokens", "-5"], "no amount that a budget can have"),
        (["add", "a", "--tokens", "nan"], "no amount that a budget can have"),
        (["add", "a", "--usd", "1e99"], "no amount that a budget can have"),
        (["add", "a", "--usd", "0.0000001"], "finer than what is counted"),
        (["add", "a", "--tokens", ""], "is no amount"),
        (["set", "a"], "say how much"),
        (["set", "a", "--auto", "--tokens", "5"], "say how much"),
        (["reset"], "say whose"),
        (["add", "a", "--tokens", "5", "--per", "year"], "'year' is not one of"),
    ],
)
def test_a_slip_is_one_line_and_nothing_is_sent(sent, arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert sent == []


def test_what_was_not_done_is_an_error(sent):
    result = run("reset", "never")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "what was done\n")
    assert len(sent) == 1


def test_programs_get_what_stands_now(sent):
    said = json.loads(run("reset", "a", "--json").stdout)
    assert said == {"done": True, "text": "what was done", "value": [{"holder": "agent a"}]}


@pytest.mark.parametrize("arguments", [[], ["list"]])
@pytest.mark.usefixtures("proxy")
def test_people_see_who_has_spent_what_and_what_is_left(arguments, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = run(*arguments).stdout
    _, _, tokens, money, everyone, *_ = (line for line in shown.splitlines() if line.strip())
    for line, words in (
        (tokens, "agent-7 day 1,480,000 1,500,000 nothing 20,000 2 h 5 min"),
        (money, "agent-7 day $5.00 $5.00 $0.0000 2 h 5 min"),
        (everyone, "everyone run $21.00 $20.00 nothing next run"),
    ):
        assert " ".join(line.split()) == words
    assert shown.splitlines()[-3:] == [
        "set by a person: agent rev-* 5,000,000 tokens per hour",
        "set by night itself: agent night 10 tokens per day",
        "set by agent night: group night 10 tokens per day",
    ]


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


def test_nobody_has_one(monkeypatch):
    monkeypatch.setattr(commands, "read_report", lambda _: report(budgets=()))
    assert "no request has used a budget yet" in run().stdout
    assert json.loads(run("--json").stdout) == []


def test_without_a_proxy_it_says_so():
    result = run()
    assert result.exit_code == 1
    assert "no proxy serves port" in result.stderr
    assert "`hivemind history budgets` tells how they stood" in result.stderr
