from dataclasses import replace

import pytest

from hivemind_addon.api.snapshot import BudgetView
from hivemind_addon.api.spend import Budget, Scope, Spend
from hivemind_addon.api.ticket import Usage
from hivemind_addon.tools.dash.agents import agent_rows, agents_grid, spent_share
from hivemind_addon.tools.dash.family import family, lines
from tests.dash.samples import flying, pool, report, session, waiting


def drawn(*tickets, width=200, sessions=(), budgets=(), opened=()):
    """The rows, with one blank between words."""
    made = report(pool(tickets=tickets), sessions=sessions)
    rows = agent_rows(agents_grid(width), list(lines(family(made), frozenset(opened))), budgets)
    return [" ".join(row.plain.split()) for row in rows]


@pytest.mark.parametrize(
    ("tickets", "says"),
    [
        ([flying()], "● in flight "),
        ([flying(attempts=3)], "● in flight, attempt 3 "),
        ([flying("1"), flying("2")], "● 2 in flight "),
        ([waiting(position=4)], "○ #4 rate limit 3 s ? "),
        ([waiting(starts_in_s=12.2)], "○ #1 rate limit 3 s ~12 s "),
        ([waiting("1", position=2), waiting("2", position=5)], "○ 2, #2 rate limit "),
        ([flying("1"), waiting("2", position=5)], "● 1 ○ #5 rate limit "),
        ([waiting(state="backing off", reason="backing off", attempts=2)], "↻ #1 backing off after attempt 2 "),
    ],
)
def test_a_row_says_what_its_requests_do(tickets, says):
    (row,) = drawn(*tickets)
    assert f"a · s {says}" in f"{row} "


def test_whoever_has_no_request_is_idle():
    assert "· idle 5 s" in drawn(sessions=[session()])[0]
    assert "· idle 0" in drawn(sessions=[session(seen_ago_s=0.2)])[0], "its tokens follow at once"


def test_whoever_waits_beyond_the_end_of_the_report_is_not_idle():
    assert "○ waits far behind" in drawn(sessions=[session(live=1)])[0]


def test_a_row_says_what_it_used_and_what_came_of_it():
    usage = Usage(input_tokens=1000, cache_read_tokens=9000, output_tokens=500)
    one = session(usage=usage, micro_usd=2_500_000, delivered=40, lost=2, retries_absorbed=3, model="opus")
    assert drawn(sessions=[one]) == ["a · s · idle 5 s 10.0k 90% 500 $2.50 40 2 3 opus"]
    assert " $2.50+ " in drawn(sessions=[replace(one, is_priced=False)])[0], "that is only a part of it"
    assert " ? " in drawn(sessions=[replace(one, is_priced=False, micro_usd=0)])[0]


def test_an_agents_own_budget_is_in_its_row():
    budget = Budget(scope=Scope.AGENT, name="a", tokens=1000, micro_usd=10)
    view = BudgetView(budget, spent=Spend(500, 9), reserved=Spend(), renews_in_s=None)
    other = BudgetView(replace(budget, scope=Scope.GROUP), spent=Spend(1, 1), reserved=Spend(), renews_in_s=None)
    assert "━━━━╸ 90%" in drawn(sessions=[session()], budgets=[other, view])[0]
    assert spent_share(replace(view, spent=Spend(2000, 0))) == 2


def test_requests_are_rows_of_their_own_when_they_are_listed():
    rows = drawn(
        waiting("t-1", name="s1"), waiting("t-2", name="s2", position=2), opened=["agent a", "session ('a', 's1')"]
    )
    assert rows[0].startswith("▾ a ○ 2, #1")
    assert rows[1].startswith("├ ▾ s1 ○ #1")
    assert rows[2].startswith("└ t-1 · turn ○ #1")
    assert rows[3].startswith("└ s2 ○ #2")


@pytest.mark.parametrize("width", [20, 60, 80, 100, 120, 160, 200, 300])
def test_rows_fit_whatever_the_names(width):
    made = report(
        pool(tickets=(waiting(agent="日本語" * 30, name="\x1b[2J" * 20, reason="r" * 200),)),
        sessions=[session("n" * 90, "s" * 90), session("n" * 90, "t")],
    )
    grid = agents_grid(width)
    rows = [grid.heading(), *agent_rows(grid, list(lines(family(made), frozenset())), ())]
    assert all(row.cell_len <= width for row in rows)
    assert not any("\x1b" in row.plain for row in rows)


def test_narrow_screens_keep_who_what_and_how_long():
    heading = agents_grid(80).heading().plain.split()
    assert heading == ["agent", "state", "waited", "starts", "in", "cost"]
