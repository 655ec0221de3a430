import pytest

from hivemind_addon.kernel.values.ticket import Usage
from hivemind_addon.tools.dash.family import NodeKind, Sort, family, lines, natural
from tests.cpu_time import least_cpu_s
from tests.tools.dash.samples import flying, pool, report, session, waiting


def drawn(made, *, opened=(), **more):
    """Names with their depth."""
    return [(line.depth, line.node.name) for line in lines(family(made, **more), frozenset(opened))]


def test_an_agents_only_session_is_not_shown_apart():
    (agent,) = family(report(sessions=[session("a", "s-1")]))
    assert (agent.kind, agent.name, agent.detail, agent.children) == (NodeKind.AGENT, "a", "s-1", [])


def test_sessions_stand_below_their_agent_and_sub_agents_below_who_started_them():
    made = report(
        sessions=[
            session("lead", "main"),
            session("lead", "child", parent_session="main"),
            session("lead", "grandchild", parent_session="child"),
            session("lead", "other"),
        ]
    )
    assert drawn(made) == [(0, "lead"), (1, "main"), (2, "child"), (3, "grandchild"), (1, "other")]


def test_a_sub_agent_with_a_name_of_its_own_stands_below_the_one_that_started_it():
    made = report(sessions=[session("lead", "main"), session("helper", "h", parent_session="main")])
    assert drawn(made) == [(0, "lead"), (1, "h")]


def test_a_parent_that_nobody_knows_or_two_are_changes_nothing():
    unknown = report(sessions=[session("a", "s", parent_session="gone")])
    assert drawn(unknown) == [(0, "a")]
    two = report(sessions=[session("a", "s"), session("b", "s"), session("c", "x", parent_session="s")])
    assert drawn(two) == [(0, "a"), (0, "b"), (0, "c")]


def test_circles_and_endless_chains_are_cut():
    circle = report(sessions=[session("a", "x", parent_session="y"), session("a", "y", parent_session="x")])
    assert sorted(drawn(circle)) == [(0, "a"), (1, "x"), (1, "y")]
    chain = [session("a", str(number), parent_session=str(number - 1)) for number in range(2000)]
    rows = drawn(report(sessions=chain))
    assert len(rows) == 2001
    assert max(depth for depth, _ in rows) < 20


def test_an_agent_counts_everything_below_it():
    usage = Usage(input_tokens=10, cache_read_tokens=5, output_tokens=1)
    made = report(
        pool(tickets=(waiting("w", name="child", waited_s=7), flying("f", name="main"))),
        sessions=[
            session(
                "a",
                "main",
                usage=usage,
                tokens=16,
                wasted_tokens=6,
                micro_usd=3,
                delivered=2,
                lost=1,
                refused=2,
                seen_ago_s=9,
            ),
            session(
                "a",
                "child",
                parent_session="main",
                usage=usage,
                tokens=16,
                micro_usd=4,
                wasted_micro_usd=2,
                is_priced=False,
                seen_ago_s=2,
            ),
        ],
    )
    (agent,) = family(made)
    wanted = {"tickets": 2, "delivered": 3, "lost": 1, "refused": 2, "is_priced": False, "seen_ago_s": 2}
    wanted |= {"tokens": 32, "wasted_tokens": 6, "micro_usd": 7, "wasted_micro_usd": 2, "usage": usage + usage}
    assert {name: getattr(agent.stats, name) for name in wanted} == wanted
    assert (agent.in_flight, agent.wait_s) == (1, 7)
    assert [one.ticket.id for one in agent.tickets] == ["f", "w"]


def test_a_session_that_only_the_queue_knows_is_there():
    assert drawn(report(pool(tickets=(waiting(agent="new", name="s"),)))) == [(0, "new")]


def test_an_open_row_lists_its_own_requests():
    made = report(
        pool(tickets=(waiting("w1", name="main"), waiting("w2", name="child", position=2))),
        sessions=[session("a", "main"), session("a", "child", parent_session="main")],
    )
    assert drawn(made, opened=["agent a"]) == [(0, "a"), (1, "w1"), (1, "child")]
    assert drawn(made, opened=["session ('a', 'child')"]) == [(0, "a"), (1, "child"), (2, "w2")]


def test_names_are_ordered_as_people_count():
    made = report(sessions=[session(f"agent-{number}", "s") for number in (10, 9, 1)])
    assert [name for _, name in drawn(made, sort=Sort.NAME)] == ["agent-1", "agent-9", "agent-10"]
    assert sorted(["a10b", "a9b", "7", "a"], key=natural) == ["7", "a", "a9b", "a10b"]


@pytest.mark.parametrize(
    ("sort", "first"),
    [(Sort.ACTIVE, "b"), (Sort.NAME, "a"), (Sort.WAIT, "w"), (Sort.TOKENS, "t"), (Sort.COST, "c"), (Sort.LOST, "l")],
)
def test_each_order_has_its_first(sort, first):
    made = report(
        pool(tickets=(waiting(agent="w", name="s"),)),
        sessions=[
            session("a", seen_ago_s=900),
            session("b", seen_ago_s=9),
            session("t", seen_ago_s=900, tokens=99),
            session("c", seen_ago_s=900, micro_usd=99),
            session("l", seen_ago_s=900, lost=1),
        ],
    )
    assert drawn(made, sort=sort)[0] == (0, first)


def test_the_orders_go_round():
    seen, sort = [], Sort.ACTIVE
    for _ in Sort:
        seen.append(sort)
        sort = sort.next()
    assert (set(seen), sort) == (set(Sort), Sort.ACTIVE)


def test_a_filter_finds_names_models_and_requests_below():
    made = report(
        pool(tickets=(waiting("t-77", agent="q", name="s"),)),
        sessions=[session("Alpha", "main"), session("Alpha", "kid", parent_session="main"), session("b", model="Opus")],
    )
    for pattern, names in {"alp": ["Alpha"], "KID": ["Alpha"], "opus": ["b"], "t-77": ["q"], "nobody": []}.items():
        assert [agent.name for agent in family(made, pattern=pattern)] == names


def test_a_large_fleet_takes_no_time():
    tickets = tuple(waiting(f"t{n}", agent=f"a{n % 50}", name=f"s{n % 500}", position=n) for n in range(10_000))
    made = report(pool(tickets=tickets), sessions=[session(f"a{n % 50}", f"s{n}") for n in range(500)])
    assert len(list(lines(family(made), frozenset()))) == 550
    assert least_cpu_s(lambda: list(lines(family(made), frozenset()))) < 0.5


def test_who_goes_next_stands_first_then_who_runs_then_the_others():
    tickets = (flying("f", agent="b"), waiting("w", agent="z", position=2), waiting("n", agent="y", position=1))
    made = report(pool(tickets=tickets), sessions=[session(name, "s") for name in "abyz"])
    assert [name for _, name in drawn(made, sort=Sort.PLACE)] == ["y", "z", "b", "a"]
