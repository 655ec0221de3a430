import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hivemind_addon.proxy.context.pieces import MOST_ITEMS, join, split
from tests.cases import each
from tests.proxy.context.samples import BODIES

MESSAGES = ("messages",)
TEXT = st.text(max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)
MARK = {"cache_control": {"type": "ephemeral"}}


def rejoined(body, messages=MESSAGES):
    parts = split(body, messages)
    return join(parts.frame, parts.pieces)


@each("dialect", BODIES)
@pytest.mark.parametrize("form", [{}, {"indent": 1}, {"separators": (",", ":")}])
def test_a_body_is_put_together_again_byte_by_byte(dialect, form):
    body = json.dumps({**BODIES[dialect], "tools": [{"name": f"t{at}", "about": "x" * 99} for at in range(9)]}, **form)
    assert rejoined(body.encode()) == body.encode()


@given(
    top=st.dictionaries(st.sampled_from(["messages", "system", "input", "a"]) | TEXT, VALUES, max_size=5),
    messages=st.lists(VALUES | st.just(MARK) | st.just({"role": "user", "content": "y" * 300, **MARK}), max_size=6),
    indent=st.sampled_from([None, 0, 3]),
)
def test_whatever_is_in_a_body_comes_back(top, messages, indent):
    body = json.dumps({**top, "messages": messages}, indent=indent).encode()
    assert rejoined(body) == body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"no JSON",
        b'{"messages": 1}',
        b'{"messages": [], "x": [1,2]}',
        b'{"a": "%b", "messages": [1], "messages": ["two", "three"]}' % (b"z" * 300),
        b'{"x": {"messages": [5]}, "messages": [5, 5,\n5]}',
        b'{"messages": ["a\\"cache_control\\": null", {"cache_control" : null }]}',
    ],
)
def test_odd_bodies_come_back_too(body):
    assert rejoined(body) == body


def test_a_body_that_grows_shares_all_but_what_is_new():
    first = {**BODIES["anthropic"], "system": "s" * 400}
    grown = {**first, "messages": [*first["messages"], {"role": "assistant", "content": "new"}]}
    one, two = (split(json.dumps(body).encode(), MESSAGES) for body in (first, grown))
    new = {place: piece for place, piece in two.pieces.items() if one.pieces.get(place) != piece}
    assert [json.loads(piece) for piece in new.values()] == [{"role": "assistant", "content": "new"}]
    assert list(new) == [len(first["messages"])]


def test_marks_of_a_cache_that_move_on_change_no_piece():
    def marked(at):
        messages = [{"role": "user", "content": [{"type": "text", "text": f"m{n}"}]} for n in range(4)]
        messages[at]["content"][0] |= MARK
        return json.dumps({"messages": messages}).encode()

    parts = [split(marked(at), MESSAGES) for at in range(4)]
    assert all(part.pieces == parts[0].pieces for part in parts)
    assert [join(part.frame, part.pieces) for part in parts] == [marked(at) for at in range(4)]
    assert all(json.loads(piece) for piece in parts[0].pieces.values())


def test_long_values_beside_the_messages_are_pieces_of_places_of_their_own():
    body = {"system": "s" * 300, "input": [{"n": "x" * 90}] * 4, "tools": [{"name": "t" * 90}] * 4, "ids": [1] * 400}
    pieces = split(json.dumps(body).encode(), ("input",)).pieces
    assert len(pieces) == 4 + 4 + 1 + 1
    assert sorted(place for place in pieces if place < MOST_ITEMS) == [0, 1, 2, 3]
