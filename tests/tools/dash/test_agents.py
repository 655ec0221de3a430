from re import split

from msgspec.structs import replace
from rich.cells import cell_len

from hivemind_addon.kernel.values.snapshot import BudgetView, RequestState
from hivemind_addon.kernel.values.spend import Budget, Scope, Spend
from hivemind_addon.kernel.values.ticket import Usage
from hivemind_addon.tools.dash.agents import Column, Grid, GridCell, agent_rows, agents_grid
from hivemind_addon.tools.dash.family import Sort, family, lines
from tests.tools.dash.record import recorded
from tests.tools.dash.samples import context, flying, pool, report, session, waiting


def drawn(*tickets, width=200, sessions=(), budgets=(), opened=(), contexts=()):
    """The rows, with one blank between words."""
    made = report(pool(tickets=tickets), sessions=sessions, budgets=budgets, contexts=contexts)
    return [" ".join(row.split()) for row in table(made, width, opened)[1:]]


def table(made, width, opened=()):
    """The heading and the rows as they stand on the screen."""
    tree, budgets = list(lines(family(made), frozenset(opened))), made.snapshot.budgets
    grid = agents_grid(width, tree, budgets)
    return [line.plain for line in (grid.heading(), *agent_rows(grid, tree, budgets))]


USED = session(
    usage=Usage(input_tokens=1000, cache_read_tokens=9000, output_tokens=500),
    micro_usd=2_500_000,
    delivered=40,
    lost=2,
    refused=1,
    retries_absorbed=3,
    model="opus",
)
BUDGET = Budget(scope=Scope.AGENT, name="a", tokens=1000, micro_usd=10)
OWN = BudgetView(BUDGET, spent=Spend(500, 9), reserved=Spend(), renews_in_s=None)
GROUPS = BudgetView(replace(BUDGET, scope=Scope.GROUP), spent=Spend(1, 1), reserved=Spend(), renews_in_s=None)
ROWS = {
    "in flight": drawn(flying()),
    "a later attempt": drawn(flying(attempts=3)),
    "two in flight": drawn(flying("1"), flying("2")),
    "waits": drawn(waiting(position=4)),
    "waits, and it is known how long": drawn(waiting(starts_in_s=12.2)),
    "two wait": drawn(waiting("1", position=2), waiting("2", position=5)),
    "one runs, one waits": drawn(flying("1"), waiting("2", position=5)),
    "backs off": drawn(waiting(state=RequestState.BACKING_OFF, reason="backing off: attempt 2 failed", attempts=2)),
    "idle": drawn(sessions=[session()]),
    "idle since just now": drawn(sessions=[session(seen_ago_s=0.2)]),
    "waits beyond the end of the report": drawn(sessions=[session(live=1)]),
    "what it used": drawn(sessions=[USED]),
    "what it used, of which only a part has a price": drawn(sessions=[replace(USED, is_priced=False)]),
    "what it used has no price": drawn(sessions=[replace(USED, is_priced=False, micro_usd=0)]),
    "with a budget of its own": drawn(sessions=[session()], budgets=[GROUPS, OWN]),
    "how full its contexts are, the fullest in the agent's row": drawn(
        sessions=[session(name="s1"), session(name="s2"), session(name="s3")],
        contexts=[
            context(name="s1", tokens=9_000, window_tokens=None, growth_per_turn=0.0, cache_lapses_in_s=None),
            context(name="s2", tokens=20_000, is_full=False, cache_lapses_in_s=0.0),
            context(name="s3"),
            context(name="nobody knows it"),
        ],
    ),
    "its requests are listed": drawn(
        waiting("t-1", name="s1"), waiting("t-2", name="s2", position=2), opened=["agent a", "session ('a', 's1')"]
    ),
}


def test_rows_in_words(golden):
    golden("rows.txt", "\n\n".join("\n".join((f"# {name}", *rows)) for name, rows in ROWS.items()))
    assert replace(OWN, spent=Spend(2000, 0)).spent_share == 2


def test_rows_fit_whatever_the_names():
    made = report(
        pool(tickets=(waiting(agent="日本語" * 30, name="\x1b[2J" * 20, reason="r" * 200),)),
        sessions=[session("n" * 90, "s" * 90), session("n" * 90, "t")],
    )
    for width in (20, 60, 80, 100, 120, 160, 200, 300):
        rows = table(made, width)
        assert all(cell_len(row) <= width for row in rows), width
        assert not any("\x1b" in row for row in rows)


WORST = report(
    pool(tickets=(flying("1"), flying("2"), waiting("3", position=17, waited_s=8000, starts_in_s=40_000))),
    sessions=[replace(USED, wasted_micro_usd=900_000), session("idle")],
    budgets=(OWN,),
)
FLEETS = {
    "night: waste and a budget": recorded("night"),
    "idle: nothing but a request that went well": report(pool(), sessions=[session()]),
    "the worst of all: waste, losses, refusals and a budget": WORST,
}


def test_screens_of_each_width_show_what_an_operator_needs_first(golden):
    parts = [
        "\n".join((f"# {name}, {width} columns", *table(made, width)))
        for name, made in FLEETS.items()
        for width in (80, 100, 120)
    ]
    golden("widths.txt", "\n\n".join(parts))
    for fleet in ("night", "incident", "steered"):
        assert {"in vain", "budget", "done", "cost"} < set(split("  +", table(recorded(fleet), 120)[0])), fleet
    assert "in vain" in table(WORST, 120)[0]


def test_how_full_contexts_are_is_seen_at_120_columns_and_taken_for_an_order():
    every = [session("few"), session("grows"), session("full")]
    contexts = [context("few", tokens=10), context("grows", tokens=999, growth_per_turn=1e4), context("full")]
    made = report(pool(), sessions=every, contexts=contexts)
    assert "context" in split("  +", table(made, 120)[0])
    assert [node.name for node in family(made, sort=Sort.CONTEXT)] == ["full", "grows", "few"]
    assert next(node.name for node in family(made, sort=Sort.GROWTH)) == "grows"


def test_what_nobody_has_gives_way_to_the_rest_where_it_is_narrow():
    assert "lost" not in table(FLEETS["idle: nothing but a request that went well"], 120)[0]
    assert "lost" in table(FLEETS["idle: nothing but a request that went well"], 200)[0]


COLUMNS = (Column("name", 0, 6, grows=1), Column("a", 2, 4, right=True), Column("b", 1, 4))


def shown(width, **cells):
    (line,) = Grid(COLUMNS, width).rows([{title: GridCell(text) for title, text in cells.items()}])
    return line.plain


def test_columns_have_the_same_place_in_every_row():
    assert Grid(COLUMNS, 20).heading().plain == "name       a  b   "[:8].ljust(8) + "     a  b   "
    assert shown(20, name="x", a="1", b="y") == "x            1  y   "
    assert shown(20, a="12345") == "          123…      "


def test_what_does_not_fit_goes_by_rank():
    assert shown(12, name="x", a="1", b="y") == "x       y   "
    assert shown(6, name="x", a="1", b="y") == "x     "


def test_no_line_is_wider_than_its_screen():
    assert all(len(shown(width, name="n" * 70, a="a" * 70, b="b" * 70)) <= width for width in range(1, 60))


def test_it_tells_which_columns_there_are():
    grid = Grid(COLUMNS, 12)
    assert (grid.width_of("name"), grid.width_of("b"), grid.width_of("a")) == (6, 4, 0)
