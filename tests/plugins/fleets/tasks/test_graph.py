from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.plugins.fleets.tasks import graph

names = st.sampled_from("abcdefgh")
graphs = st.dictionaries(names, st.lists(names, max_size=4), max_size=8)


def test_a_circle_is_named_from_its_beginning_to_its_beginning():
    assert graph.cycle({"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]}) == ["a", "b", "c", "a"]
    assert graph.cycle({"a": ["a"]}) == ["a", "a"]
    assert graph.arrows(["a", "b", "a"]) == "a → b → a"


def test_a_diamond_and_a_long_chain_are_no_circles():
    assert graph.cycle({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}) == []
    assert graph.cycle({str(n): [str(n + 1)] for n in range(50_000)}) == []


@given(graphs)
def test_a_circle_is_found_exactly_where_no_order_exists(edges):
    done = set()
    while new := {name for name in edges if name not in done and {one for one in edges[name] if one in edges} <= done}:
        done |= new
    found = graph.cycle(edges)
    assert bool(found) == (done != set(edges))
    assert all(after in edges[before] for before, after in pairwise(found))
    assert not found or found[0] == found[-1]


@given(graphs, names, names)
def test_a_way_leads_along_the_edges(edges, start, goal):
    found = graph.way(edges, [start], goal)
    if found:
        assert (found[0], found[-1]) == (start, goal)
        assert all(after in edges[before] for before, after in pairwise(found))
    reached, todo = {start}, [start]
    while todo:
        new = [one for one in edges.get(todo.pop(), ()) if one not in reached]
        reached |= set(new)
        todo += new
    assert bool(found) == (goal in reached)
