from msgspec.structs import replace

from hivemind_addon.plugins.contexts.reading.tree import family, of_agent, tree
from tests.plugins.contexts.samples import context


def head(name, parent="", agent="ann", session=""):
    made = context(agent=agent, session=session or name).head
    return replace(made, id=name, parent_session=parent)


HEADS = [
    head("c1", parent="b1"),
    head("z", agent="bob"),
    head("b1", parent="a"),
    head("a"),
    head("b2", parent="a", agent="helper"),
    head("a-old", session="a"),
]
"""Newest first."""


def test_sub_agents_stand_below_the_session_that_started_them():
    assert [(place.rails + place.head.id, place.depth, place.parent) for place in tree(HEADS)] == [
        ("a", 0, ""),
        ("a-old", 0, ""),
        ("├╴b1", 1, "a"),
        ("│ └╴c1", 2, "b1"),
        ("└╴b2", 1, "a"),
        ("z", 0, ""),
    ]


def test_every_context_is_there_once_whatever_requests_claim():
    ring = [head("a", parent="b"), head("b", parent="a"), head("c", parent="c"), head("d", parent="gone")]
    assert sorted(place.head.id for place in tree(ring)) == ["a", "b", "c", "d"]
    deep = [head(str(number), parent=str(number - 1)) for number in range(1, 3000)]
    places = tree(deep)
    assert len(places) == 2999
    assert max(len(place.rails) for place in places) == 12
    twins = [head("x", parent="p"), head("p", agent="one"), head("p", agent="two")]
    assert {place.parent for place in tree(twins)} == {""}, "either may be meant"


def test_a_family_is_what_is_below_and_an_agent_has_its_sub_agents_by_other_names():
    by_id = {one.id: one for one in HEADS}
    assert [one.id for one in family(by_id["a"], HEADS)] == ["a", "b1", "c1", "b2"]
    assert [one.id for one in family(by_id["b1"], HEADS)] == ["b1", "c1"]
    assert [one.id for one in family(by_id["z"], HEADS)] == ["z"]
    assert [one.id for one in of_agent("ann", HEADS)] == ["c1", "b1", "a", "b2", "a-old"]
    assert [one.id for one in of_agent("helper", HEADS)] == ["b2"], "not those that it was started by"
