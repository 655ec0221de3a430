"""One row an agent."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

from hivemind_addon.api.snapshot import BudgetView
from hivemind_addon.api.spend import Budget, Period, Scope, Spend
from hivemind_addon.api.ticket import Usage
from hivemind_addon.tools.cli import main
from tests.commands.served import serving
from tests.dash.record import recorded
from tests.dash.samples import flying, pool, report, session, waiting

pytestmark = pytest.mark.usefixtures("folders")


def run(*arguments, width=160):
    return CliRunner().invoke(main, ["agents", *arguments], env={"COLUMNS": str(width)})


BUDGETS = (
    BudgetView(Budget(Scope.AGENT, "a", Period.DAY, tokens=1000), Spend(900, 0), Spend(), 60.0, added=Spend(500, 0)),
    BudgetView(Budget(Scope.AGENT, "a", Period.RUN, micro_usd=9_000_000), Spend(0, 1_000_000), Spend(), None),
    BudgetView(Budget(Scope.GROUP, "a", tokens=1), Spend(), Spend(), None),
)
REPORT = report(
    pool(tickets=(flying("t1", agent="a"), waiting("t2", agent="a", starts_in_s=12.0), waiting("t3", agent="b"))),
    sessions=(
        session("a", usage=Usage(input_tokens=10, cache_read_tokens=20, output_tokens=5), micro_usd=2_500_000, lost=1),
        session("old", is_priced=False, seen_ago_s=90.0),
    ),
    budgets=BUDGETS,
)


def test_programs_get_numbers():
    with serving(REPORT):
        rows = {row["agent"]: row for row in json.loads(run("--json").stdout)}
    a = rows["a"]
    assert (a["state"], a["running"], a["waiting"], a["starts_in_s"], a["priority"]) == (
        "waiting",
        1,
        1,
        12.0,
        "normal",
    )
    assert (a["input_tokens"], a["cached_tokens"], a["output_tokens"], a["usd"], a["lost"]) == (30, 20, 5, 2.5, 1)
    assert a["budgets"] == [
        {"per": "day", "tokens_left": 600, "renews_in_s": 60.0},
        {"per": "run", "usd_left": 8.0, "renews_in_s": None},
    ]
    assert (rows["b"]["starts_in_s"], rows["b"]["reason"]) == (None, "rate limit")
    assert (rows["old"]["state"], rows["old"]["seen_ago_s"], rows["old"]["all_priced"]) == ("idle", 90.0, False)


def test_people_get_words_about_what_is_scarcest():
    with serving(REPORT):
        printed = run().stdout
    (a,) = [line for line in printed.splitlines() if line.startswith("a ")]
    assert a.split() == [
        "a",
        "●",
        "1",
        "○",
        "#1",
        "rate",
        "limit",
        "~12",
        "s",
        "normal",
        "1",
        "1",
        "30",
        "5",
        "$2.50",
        "600",
        "tok",
        "/",
        "day",
    ]


def test_a_refusal_is_no_loss():
    ended = report(sessions=(session("a", refused=2), session("b")))
    with serving(ended):
        heading = run().stdout.splitlines()[0].split()
        rows = json.loads(run("--json").stdout)
        first, _ = csv.DictReader(io.StringIO(run("--csv").stdout))
    assert "refused" in heading
    assert "lost" not in heading
    assert [(row["lost"], row["refused"]) for row in rows] == [(0, 2), (0, 0)]
    assert (first["lost"], first["refused"]) == ("0", "2")


def test_a_spreadsheet_gets_the_same_columns_always():
    with serving(REPORT):
        rows = list(csv.DictReader(io.StringIO(run("--csv").stdout)))
    assert [row["agent"] for row in rows] == ["a", "b", "old"]
    assert (rows[0]["usd"], rows[1]["starts_in_s"]) == ("2.5", "")


def test_a_pattern_chooses_and_one_that_means_nobody_names_who_there_is():
    with serving(REPORT):
        assert [row["agent"] for row in json.loads(run("?", "--json").stdout)] == ["a", "b"]
        result = run("nobody")
    assert (result.exit_code, result.stderr) == (1, "Error: no agent 'nobody'; there are a, b, old\n")


def test_where_nobody_has_asked_that_is_said():
    with serving(report()):
        assert run().stdout == "no agent has asked for anything yet\n"
        assert run("x", "--json").stdout == "[]\n"


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("name", ["night", "incident", "steered"])
def test_it_fits_the_terminal(name, width):
    with serving(recorded(name)):
        lines = run(width=width).stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert "agent" in lines[0]
    assert "budget left" in lines[0]


def test_no_proxy_is_one_line():
    result = run("--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no proxy serves port 8080; start it with `hivemind run`\n"
